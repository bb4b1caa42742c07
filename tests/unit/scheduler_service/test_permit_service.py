"""The permit service, bytes to status and bytes: whose fault it is decides between an answer and a hang-up."""

import json
from collections.abc import Collection
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from hosting.server import HangUp, Reply, Request
from hosting.settings import SettingsError
from protocol.values import Bounds, Observation, Resources
from protocol.wire import PodName
from scheduler.core import events
from scheduler.core.core import Core
from scheduler.core.model import Holder, Kind, NodeSpec, PodSpec, VmSpec
from scheduler.core.state import SchedulerConfig
from scheduler.ports import ClusterUnreachableError
from scheduler.service.permits import PermitService
from tests.unit.hosting.raw_peers import recorded

GIB = 2**30
POD = PodName("a", "d")
INSTANCE = UUID(int=5)
SIZE = Resources(1000, GIB)
UNIT = Resources(1000, GIB)
VM = VmSpec(POD, "u1", "n1", Bounds(UNIT, UNIT * 8), GIB, UNIT)


def published(cpu: int = 2, **changes: Any) -> bytes:
    content = {
        "protoVersion": 2,
        "pod": {"name": POD.name, "namespace": POD.namespace},
        "resources": {"vCPUs": cpu, "mem": cpu},
        "metrics": None,
    }
    return json.dumps({**content, **changes}).encode()


def extended(cpu: int = 2, **changes: Any) -> bytes:
    raw = {
        "resources": {"cpu": str(cpu), "memory": f"{cpu}Gi"},
        "lastPermit": {"cpu": "1", "memory": "1Gi"},
        "computeUnit": {"cpu": "1", "memory": "1Gi"},
    }
    content = {
        "agentID": str(UUID(int=1)),
        "agentStartedAtMs": 1,
        "podUID": "u1",
        "sequenceNumber": 1,
        "seenEpoch": 0,
        "schedulerInstance": str(INSTANCE),
        "raw": raw,
    }
    return published(cpu, **{**content, **changes})


class Cluster:
    """A cluster with one VM that shows its size, until it cannot be read."""

    def __init__(self) -> None:
        self.fault: Exception | None = None
        self.reads = 0
        self.changes: tuple[events.Input, ...] = ()

    async def refresh(self) -> tuple[events.Input, ...]:
        self.reads += 1
        if self.fault is not None:
            raise self.fault
        return self.changes

    async def read(self, pods: Collection[PodName]) -> tuple[events.Input, ...]:
        del pods
        return await self.refresh()

    def look(self, pod: PodName) -> events.Look:
        return events.Look(pod == POD, Observation(SIZE, SIZE, 0.0) if pod == POD else None)


class BrokenCore(Core):
    """A core with a fault of ours."""

    def apply(self, event: events.Input) -> tuple[events.Output, ...]:
        if isinstance(event, events.RequestArrived):
            raise AssertionError("ours")
        return super().apply(event)


class Setting:
    """A service with its surroundings."""

    def __init__(self, core: type[Core] = Core) -> None:
        self.core = core(
            SchedulerConfig(INSTANCE, is_first_start=True, published_agents=("*",), hold_first_s=0.0)
        )
        self.cluster = Cluster()
        log, self.lines = recorded()
        self.service = PermitService(self.core, self.cluster, lambda: 1.0, log)
        self.core.apply(events.NodeSeen(NodeSpec("n1", UNIT * 20, UNIT)))
        self.core.apply(events.VmSeen(VM, Observation(SIZE, SIZE, 0.0), 0.0, is_new=True))

    async def reply(self, body: bytes, method: str = "POST", *, header: bool = False) -> Reply:
        got = await self.answer(body, method, header=header)
        assert isinstance(got, Reply)
        return got

    async def answer(self, body: bytes, method: str = "POST", *, header: bool = False) -> Reply | HangUp:
        headers = {"parley-agent": str(UUID(int=1))} if header else {}
        return await self.service.serve(Request(method, "/", body, headers))


CALLERS = pytest.mark.parametrize("body", [published(), extended()], ids=["published", "extended"])


@CALLERS
async def test_a_request_that_fits_is_granted(body: bytes) -> None:
    setting = Setting()
    reply = await setting.reply(body)
    assert reply.status == 200
    assert json.loads(reply.body)["permit"] == {"vCPUs": 2, "mem": 2}
    assert setting.service.stats.answers == {("permit", "200"): 1}
    assert setting.service.stats.permits == {("full", ""): 1}
    assert [line["event"] for line in setting.lines] == ["permit"]
    assert setting.core.audit() == []


async def test_a_published_caller_is_judged_by_a_fresh_look_and_an_extended_one_is_not() -> None:
    setting = Setting()
    await setting.reply(extended())
    assert setting.cluster.reads == 0
    await setting.reply(published())
    assert setting.cluster.reads == 1


async def test_a_permit_that_changes_nothing_is_counted_and_not_logged() -> None:
    setting = Setting()
    await setting.reply(extended(1))
    setting.lines.clear()
    await setting.reply(extended(1, sequenceNumber=2))
    assert setting.service.stats.permits["full", ""] == 2
    assert setting.lines == []


async def test_a_denial_is_logged_with_its_reason() -> None:
    setting = Setting()
    await setting.reply(extended(9))
    (line,) = setting.lines
    assert (line["event"], line["reason"], line["seq"]) == ("permit", "vm-bounds", 1)
    assert line["requested"] != line["permit"]


MALFORMED = [b"", b"[]", b"\xff", published(protoVersion="two"), published()[:-1]]


@pytest.mark.parametrize("body", MALFORMED)
async def test_what_is_malformed_is_400_in_the_callers_form(body: bytes) -> None:
    setting = Setting()
    plain, ours = await setting.reply(body), await setting.reply(body, header=True)
    assert (plain.status, ours.status) == (400, 400)
    assert plain.content_type.startswith("text/plain")
    assert ours.content_type == "application/json"
    assert json.loads(ours.body)["code"] == "malformed"
    assert setting.service.stats.answers == {("error", "malformed"): 2}


@pytest.mark.parametrize("method", ["GET", "PUT", "DELETE", "HEAD"])
async def test_any_method_but_post_is_400(method: str) -> None:
    setting = Setting()
    plain = await setting.reply(published(), method)
    ours = await setting.reply(extended(), method, header=True)
    assert (plain.status, plain.body) == (400, b"must be POST\n")
    assert (ours.status, json.loads(ours.body)["code"]) == (400, "wrong-method")


@pytest.mark.parametrize(("header", "status"), [(True, 413), (False, 200)])
async def test_a_body_that_was_cut_is_refused_to_those_alone_whom_that_does_not_end(
    header: bool, status: int
) -> None:
    """A published agent is answered by what was read, as its own schedulers do."""
    setting = Setting()
    body = published().ljust(1024)
    got = await setting.service.serve(
        Request("POST", "/", body, {"parley-agent": str(UUID(int=1))} if header else {}, is_cut=True)
    )
    assert isinstance(got, Reply)
    assert got.status == status
    assert (json.loads(got.body).get("code") == "malformed") is header


async def test_an_unknown_pod_is_404_in_the_callers_form() -> None:
    setting = Setting()
    pod = {"name": "z", "namespace": "d"}
    plain, ours = await setting.reply(published(pod=pod)), await setting.reply(extended(pod=pod))
    assert (plain.status, plain.content_type) == (404, "text/plain; charset=utf-8")
    assert (ours.status, json.loads(ours.body)["code"]) == (404, "unknown-pod")


async def test_a_409_names_the_last_sequence_number() -> None:
    setting = Setting()
    await setting.reply(extended(sequenceNumber=5))
    reply = await setting.reply(extended(sequenceNumber=3))
    content = json.loads(reply.body)
    assert (reply.status, content["code"], content["lastSequenceNumber"]) == (409, "sequence-stale", 5)


async def test_a_fault_of_ours_is_500_for_the_extension_and_a_hang_up_for_published_callers() -> None:
    setting = Setting(BrokenCore)
    reply = await setting.reply(extended())
    assert (reply.status, json.loads(reply.body)["code"]) == (500, "internal")
    assert isinstance(await setting.answer(published()), HangUp)
    assert setting.service.stats.answers == {("error", "internal"): 1, ("hang-up", "internal"): 1}
    assert [(line["event"], line["log_level"]) for line in setting.lines] == [
        ("request failed by our fault", "error")
    ] * 2


async def test_an_adapter_that_fails_is_a_fault_of_ours_too() -> None:
    setting = Setting()
    setting.cluster.fault = RuntimeError("the adapter is broken")
    assert isinstance(await setting.answer(published()), HangUp)


UNREADABLE = [ClusterUnreachableError("away"), SettingsError(Path("c"), ["bad"])]


@pytest.mark.parametrize("fault", UNREADABLE, ids=["unreachable", "bad file"])
async def test_a_cluster_that_cannot_be_read_is_503_or_a_hang_up(fault: Exception) -> None:
    setting = Setting()
    setting.cluster.fault = fault
    reply = await setting.reply(extended(pod={"name": "z", "namespace": "d"}))
    assert (reply.status, json.loads(reply.body)["code"]) == (503, "cluster-unreachable")
    assert isinstance(await setting.answer(published()), HangUp)
    assert setting.service.stats.answers["hang-up", "cluster-unreachable"] == 1
    assert len(setting.lines) == 1, "the same fault is told once"


async def test_a_fault_of_the_cluster_is_told_again_after_it_went_away() -> None:
    setting = Setting()
    for fault in (
        ClusterUnreachableError("a"),
        None,
        ClusterUnreachableError("a"),
        ClusterUnreachableError("b"),
    ):
        setting.cluster.fault = fault
        assert await setting.service.refresh() == (fault is None)
    assert [line.get("error", line["event"]) for line in setting.lines] == [
        "a",
        "cluster readable again",
        "a",
        "b",
    ]


async def test_what_a_refresh_shows_is_applied() -> None:
    setting = Setting()
    setting.cluster.changes = (events.VmGone(POD, "u1", 0.0),)
    assert await setting.service.refresh()
    assert setting.core.vms.find(POD) is None
    await setting.service.tick()
    assert setting.core.audit() == []


async def test_a_change_that_fails_by_our_fault_takes_no_other_with_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    core = Core(SchedulerConfig(INSTANCE, is_first_start=True))
    apply = core.apply

    def failing(event: events.Input) -> tuple[events.Output, ...]:
        if event == events.NodeSeen(NodeSpec("bad", UNIT)):
            raise AssertionError("a fault of ours")
        return apply(event)

    monkeypatch.setattr(core, "apply", failing)

    class Told(Cluster):
        async def refresh(self) -> tuple[events.Input, ...]:
            return tuple(events.NodeSeen(NodeSpec(name, UNIT)) for name in ("bad", "good"))

    log, written = recorded()
    assert await PermitService(core, Told(), lambda: 0.0, log).refresh()
    assert core.ledger.node("good") is not None
    assert [line["event"] for line in written] == ["change not taken by our fault"]


async def test_a_read_that_was_not_taken_whole_ends_no_placement(monkeypatch: pytest.MonkeyPatch) -> None:
    """The pod that was placed may be in what could not be taken."""
    setting = Setting()
    holder = Holder(Kind.POD, "u7")
    setting.core.apply(events.PlacementAssumed(1, holder, "d/p", "n1", UNIT, 5.0, 1.0))
    apply = setting.core.apply

    def fail(event: events.Input) -> tuple[events.Output, ...]:
        if isinstance(event, events.PodSeen):
            raise AssertionError("ours")
        return apply(event)

    monkeypatch.setattr(setting.core, "apply", fail)
    pod = events.PodSeen(PodSpec(PodName("p", "d"), "u7", "n1", UNIT))
    setting.cluster.changes = (pod, events.ClusterRead(9.0))
    await setting.service.refresh()
    assert setting.core.ledger.row(holder) is not None
    setting.cluster.changes = (events.ClusterRead(10.0),)
    await setting.service.refresh()
    assert setting.core.ledger.row(holder) is None
