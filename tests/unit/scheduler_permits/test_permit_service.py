"""The permit service, bytes to status and bytes: whose fault it is decides between an answer and a hang-up."""

import asyncio
import json
from pathlib import Path
from uuid import UUID

import pytest

from hosting.routes import answered
from hosting.server import HangUp, Reply, Request
from hosting.settings import SettingsError
from protocol.values import Observation
from protocol.wire import PodName
from scheduler.permits.core import events
from scheduler.permits.core.core import Core
from scheduler.permits.core.model import Beneficiary, Holder, Kind, NodeSpec, PodSpec
from scheduler.ports import ClusterUnreachableError
from tests.support.amounts import UNIT, cu
from tests.support.virtual_time import now_s, virtually
from tests.unit.scheduler_permits.service_worlds import ServiceWorld, ask, plain, refusal

OURS = {"parley-agent": str(UUID(int=1))}
CALLERS = pytest.mark.parametrize("body", [plain("a", 2), ask("a", 2)], ids=["published", "extended"])


@CALLERS
@virtually
async def test_a_request_that_fits_is_granted(body: bytes) -> None:
    world = ServiceWorld("a", pool=None)
    reply = await world.reply(body)
    assert (reply.status, json.loads(reply.body)["permit"]) == (200, {"vCPUs": 2, "mem": 2})
    assert world.answers == {("permit", "200"): 1}
    assert world.service.stats.permits == {("full", ""): 1}
    assert [line["event"] for line in world.lines] == ["decision"]
    is_published = body == plain("a", 2)
    assert world.cluster.reads == is_published, "published callers alone are judged by a fresh look"
    assert await world.is_clean()


@virtually
async def test_a_permit_is_logged_where_it_changes_something_or_is_denied() -> None:
    world = ServiceWorld("a", pool=None)
    await world.reply(ask("a", 1))
    assert (world.lines, world.service.stats.permits["full", ""]) == ([], 1)
    await world.reply(ask("a", 9, 2))
    (line,) = world.lines
    assert (line["event"], line["reason"], line["seq"]) == ("decision", "vm-bounds", 2)
    assert line["requested"] != line["permit"]


class Talker(Core):
    """A core that has something to tell beside each answer."""

    def apply(self, event: events.Input) -> tuple[events.Output, ...]:
        outputs = super().apply(event)
        if not isinstance(event, events.RequestArrived):
            return outputs
        pod = event.request.pod
        return (
            *outputs,
            events.RoomOffered(pod, "uid-a", "n1", UNIT),
            events.YieldAsked(pod, "uid-a", "n1", UNIT, UNIT, Beneficiary(PodName("b", "d"), 5)),
            events.YieldEnded(pod, "uid-a", "n1", UNIT, Beneficiary(PodName("b", "d"), 5)),
        )


@CALLERS
@virtually
async def test_what_the_core_tells_beside_an_answer_goes_to_the_agent_that_listens(body: bytes) -> None:
    world = ServiceWorld("a", pool=None, core=Talker)
    poll = asyncio.create_task(
        world.service.notices.serve(Request("GET", "/v1/notices", query={"agent": "n1"}))
    )
    await asyncio.sleep(0)
    reply = await world.reply(body)
    assert (reply.status, json.loads(reply.body)["permit"]) == (200, {"vCPUs": 2, "mem": 2})
    assert world.service.stats.permits == {("full", ""): 1}
    page = json.loads((await poll).body)
    assert [each["kind"] for each in page["notices"]] == ["room", "yield"]
    assert await world.is_clean()


@CALLERS
@virtually
async def test_batches_and_notices_are_offered_to_agents_of_ours_alone(body: bytes) -> None:
    reply = await ServiceWorld("a", pool=None).reply(body)
    offered = {"Parley-Batch": "128", "Parley-Notices": "1"}
    assert reply.headers == ({} if body == plain("a", 2) else offered)


def in_form(reply: Reply, *, is_ours: bool) -> str:
    """The code or the text of an error; callers without the extension get no JSON."""
    expected = "application/problem+json" if is_ours else "text/plain; charset=utf-8"
    assert reply.content_type == expected
    if not is_ours:
        return reply.body.decode()
    content = json.loads(reply.body)
    assert (content["status"], content["detail"]) == (reply.status, content["error"])
    return str(content["code"])


MALFORMED = [b"", b"[]", b"\xff", ask("a", 2, protoVersion="two"), plain("a", 2)[:-1]]


@pytest.mark.parametrize("body", MALFORMED)
@virtually
async def test_what_is_malformed_is_400_in_the_callers_form(body: bytes) -> None:
    world = ServiceWorld("a", pool=None)
    for is_ours in (False, True):
        reply = await world.post(body, header=is_ours)
        assert isinstance(reply, Reply)
        assert reply.status == 400
        assert in_form(reply, is_ours=is_ours) == "malformed" or not is_ours
    assert world.answers == {("error", "malformed"): 2}


@pytest.mark.parametrize("method", ["GET", "PUT", "DELETE", "HEAD"])
@virtually
async def test_any_method_but_post_is_400(method: str) -> None:
    world = ServiceWorld("a", pool=None)
    for headers, told in (({}, "must be POST\n"), (OURS, "wrong-method")):
        reply = await answered(world.transport.serve(Request(method, "/", plain("a", 2), headers)))
        assert isinstance(reply, Reply)
        assert (reply.status, in_form(reply, is_ours=bool(headers))) == (400, told)


@pytest.mark.parametrize(("headers", "status"), [(OURS, 413), ({}, 200)], ids=["extended", "published"])
@virtually
async def test_a_body_that_was_cut_is_refused_to_those_alone_whom_that_does_not_end(
    headers: dict[str, str], status: int
) -> None:
    """A published agent is answered by what was read, as its own schedulers do."""
    world = ServiceWorld("a", pool=None)
    body = plain("a", 2).ljust(1024)
    reply = await answered(world.transport.serve(Request("POST", "/", body, headers, is_cut=True)))
    assert isinstance(reply, Reply)
    assert reply.status == status
    assert (json.loads(reply.body).get("code") == "malformed") is bool(headers)


@virtually
async def test_errors_of_the_core_are_told_in_the_callers_form() -> None:
    world = ServiceWorld("a", pool=None)
    assert refusal(await world.reply(ask("z", 2))) == (404, "unknown-pod")
    await world.reply(ask("a", 2, 5))
    reply = await world.reply(ask("a", 2, 3))
    assert refusal(reply) == (409, "sequence-stale")
    assert json.loads(reply.body)["lastSequenceNumber"] == 5


# ---------------------------------------------------------------- faults of ours, and of the cluster


class BrokenCore(Core):
    """A core with a fault of ours in requests, and in what is shown of a node and a pod that are called `bad`."""

    def apply(self, event: events.Input) -> tuple[events.Output, ...]:
        match event:
            case events.RequestArrived() | events.NodeSeen(NodeSpec(name="bad")):
                raise AssertionError("ours")
            case events.PodSeen(PodSpec(pod=PodName(name="bad"))):
                raise AssertionError("ours")
            case _:
                return super().apply(event)


@virtually
async def test_a_fault_of_ours_is_500_for_the_extension_and_a_hang_up_for_published_callers() -> None:
    world = ServiceWorld("a", pool=None, core=BrokenCore)
    assert refusal(await world.reply(ask("a", 2))) == (500, "internal")
    assert isinstance(await world.post(plain("a", 2)), HangUp)
    assert world.answers == {("error", "internal"): 1, ("hang-up", "internal"): 1}
    told = [(line["event"], line["log_level"]) for line in world.lines]
    assert told == [("request failed by our fault", "error"), ("decision", "warning")] * 2


UNREADABLE: dict[str, tuple[Exception, tuple[int, str]]] = {
    "unreachable": (ClusterUnreachableError("away"), (503, "cluster-unreachable")),
    "bad file": (SettingsError(Path("c"), ["bad"]), (503, "cluster-unreachable")),
    "adapter broken": (RuntimeError("the adapter is broken"), (500, "internal")),
}


@pytest.mark.parametrize(("fault", "told"), UNREADABLE.values(), ids=UNREADABLE)
@virtually
async def test_a_cluster_that_cannot_be_read_is_an_error_or_a_hang_up(
    fault: Exception, told: tuple[int, str]
) -> None:
    world = ServiceWorld("a", pool=None)
    world.cluster.fails(fault)
    assert refusal(await world.reply(ask("z", 2))) == told
    assert isinstance(await world.post(plain("a", 2)), HangUp)
    assert world.answers["hang-up", told[1]] == 1
    faults = [line for line in world.lines if line["event"] != "decision"]
    assert told[0] == 500 or len(faults) == 1, "the same fault of the cluster is told once"


@virtually
async def test_a_fault_of_the_cluster_is_told_again_after_it_went_away() -> None:
    world = ServiceWorld()
    away = ClusterUnreachableError("a")
    for fault in (away, None, away, ClusterUnreachableError("b")):
        world.cluster.fails(fault)
        assert await world.service.refresh() == (fault is None)
    told = [line.get("error", line["event"]) for line in world.lines]
    assert told == ["a", "cluster readable again", "a", "b"]


@virtually
async def test_what_a_refresh_shows_is_taken_and_a_fault_of_ours_takes_no_other_change_with_it() -> None:
    world = ServiceWorld("a", pool=None, core=BrokenCore)
    nodes = [events.NodeSeen(NodeSpec(name, UNIT)) for name in ("bad", "good")]
    world.cluster.changes = (*nodes, events.VmGone(PodName("a", "d"), "uid-a", 0.0))
    assert await world.service.refresh()
    assert world.core.ledger.node("good") is not None
    assert world.core.vms.find(PodName("a", "d")) is None
    assert [line["event"] for line in world.lines] == ["change not taken by our fault"]
    world.service.tick()
    assert await world.is_clean()


@virtually
async def test_a_read_that_was_not_taken_whole_ends_no_placement() -> None:
    """The pod that was placed may be in what could not be taken."""
    world = ServiceWorld(core=BrokenCore)
    holder = Holder(Kind.POD, "u7")
    world.core.apply(events.PlacementAssumed(1, holder, "d/p", "n1", UNIT, 5.0, 1.0))
    bad = events.PodSeen(PodSpec(PodName("bad", "d"), "u7", "n1", UNIT))
    for changes, is_kept in (((bad, events.ClusterRead(9.0)), True), ((events.ClusterRead(10.0),), False)):
        world.cluster.changes = changes
        await world.service.refresh()
        assert (world.core.ledger.row(holder) is not None) is is_kept


@virtually
async def test_requests_of_one_pod_share_the_look_of_the_first_where_the_cluster_is_watched() -> None:
    """Each took a look of its own, one after the other: two calls of the API server for each, and who came last was closed."""
    world = ServiceWorld("a", pool=None)
    world.cluster.is_watched = True

    async def slowly() -> None:
        await asyncio.sleep(1.0)

    world.cluster.before = slowly
    got = await asyncio.gather(*(world.post(plain("a", 1)) for _ in range(64)))
    assert {each.status for each in got if isinstance(each, Reply)} == {200}
    assert (len(got), world.cluster.reads, now_s()) == (64, 1, 1.0)
    world.cluster.is_watched = False
    await world.reply(plain("a", 1))
    assert world.cluster.reads == 2


@virtually
async def test_a_read_that_fails_by_our_fault_is_told() -> None:
    """Somebody waits for the room that another VM has given, and the last read still shows it in use."""
    world = ServiceWorld("a", "b", pool=None, room=5)
    await world.reply(ask("a", 4))
    spec = world.record("a").spec
    world.core.apply(events.VmSeen(spec, Observation(cu(4), cu(4), 1.0), 1.0))
    await world.reply(ask("b", 3))

    async def breaks() -> None:
        raise RuntimeError("broken")

    world.cluster.before = breaks
    await world.reply(ask("a", 2, 2, claim=4))
    await asyncio.sleep(0.1)
    assert [line["error"] for line in world.lines if line["event"] == "read failed by our fault"] == [
        "RuntimeError('broken')"
    ]
