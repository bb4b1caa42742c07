"""The announcer tells the owners of pods of faults, lasting denials and other controllers at work on a pod, and evicts a
pod that is denied for long if it may."""

import random
from typing import Any

import pytest

from agent.core.condition import VM, Condition, DeniedGrowth, Health
from agent.core.eviction import APART_S
from agent.core.model import PerResource
from agent.core.owner_notices import PREDICTED_EVERY_S, AskedSizeChange
from agent.daemon.announcer import AFTER_FAULT_S, DEFAULT_DENIALS, Announcer, Conditions, DenialSettings
from agent.daemon.controllers import AGAIN_S, Controllers
from agent.daemon.evictor import Evictor
from agent.sources.described import Found, NodeFacts, describe
from hosting import logs
from hosting.kubernetes import objects
from hosting.kubernetes.connection import ApiCall
from hosting.kubernetes.names import ENABLED, EVICT, PREDICTED
from hosting.kubernetes.resources import LIMIT_RANGES, PODS, VERTICAL_POD_AUTOSCALERS, Manifest
from protocol.values import Resources
from tests.support.amounts import GIB, cu
from tests.support.kube_api import FakeApiServer, lists, writes
from tests.support.kube_store import RefusalError
from tests.support.manifests import pod_manifest
from tests.support.virtual_time import now_s, virtually

OWNED = [{"kind": "ReplicaSet", "name": "web-1", "controller": True}]
FULL = "node-headroom (cpu): 1 CPU is free"
DENIED = Condition(Health.DENIED, (FULL,))


class Recorded:
    """An event recorder that keeps what it is given."""

    def __init__(self) -> None:
        self.events: list[tuple[str, str, str, str]] = []

    def record(self, regarding: Manifest, type_: str, reason: str, action: str, note: str) -> None:
        assert action
        self.events.append((regarding["metadata"]["name"], type_, reason, note))

    def taken(self) -> list[tuple[str, str, str, str]]:
        events, self.events = self.events, []
        return events


class World:
    """An announcer over a fake API server with these pods; `conditions` are those of their runners."""

    def __init__(
        self, *pods: Manifest, after_s: float = 600.0, denials: DenialSettings = DEFAULT_DENIALS
    ) -> None:
        self.server = FakeApiServer()
        self.api = self.server.api()
        self.pods = {f"default/{pod['metadata']['name']}": self.server.put(PODS, pod) for pod in pods}
        self.conditions: dict[str, Condition] = {}
        self.faults: list[str] = []
        self.recorded = Recorded()
        log, rng = logs.logger("test"), random.Random(1)
        self.controllers = Controllers(
            self.api, "node-1", self.found, manager="parley-agent", log=log, rng=rng
        )
        self.evictor = Evictor(self.api, after_s, rng)
        self.conditions_ = Conditions(self.api, log)
        self.announcer = Announcer(
            self.found,
            self.recorded,
            self.controllers,
            self.evictor,
            self.conditions_,
            log,
            pods_of_node=self.all_pods,
            denials=denials,
        )

    def all_pods(self) -> list[Manifest]:
        return list(self.pods.values())

    def found(self) -> dict[str, Found]:
        facts = NodeFacts(cu(16), "http://127.0.0.1:10302", (), lambda *_: {})
        described = {name: describe(pod, facts) for name, pod in self.pods.items()}
        return {name: each for name, each in described.items() if each is not None}

    def look(self, at_s: float) -> list[tuple[str, str, str, str]]:
        self.announcer.look(self.found(), self.conditions, lambda _: self.faults, at_s)
        return self.recorded.taken()

    async def write(self, at_s: float) -> list[Any]:
        """Write conditions; those of the pod `a` afterwards."""
        self.look(at_s)
        await self.conditions_.write(self.announcer.told_in_status(self.conditions), at_s)
        self.pods = {name: self.server.get(PODS, *name.split("/")) for name in self.pods}
        told = self.pods["default/a"]["status"].get("conditions") or ()
        return [(each["type"], each["status"], each["message"]) for each in told]

    def predicted(self) -> str | None:
        """The annotation of the pod `a`."""
        return objects.annotations(self.pods["default/a"]).get(PREDICTED)

    async def evict(self, at_s: float) -> list[tuple[str, str, str, str]]:
        await self.evictor.look(self.found(), self.conditions, at_s, self.announcer.tell_of_eviction)
        return self.recorded.taken()


def test_a_pod_that_cannot_be_scaled_is_told_at_once_and_shown() -> None:
    world = World(pod_manifest("a", requests={"cpu": "1"}))
    ((name, type_, reason, note),) = world.look(0)
    assert (name, type_, reason) == ("a", "Warning", "NotScalable")
    assert note.startswith("none of its containers requests memory")
    assert world.announcer.not_scaled() == {"default/a": (note,)}
    assert world.look(5) == []


def test_faults_of_annotations_are_told_once_for_both_who_read_them() -> None:
    world = World(pod_manifest("a", annotations={"parley.dev/restart": "perhaps", EVICT: "true"}))
    world.faults = ["parley.dev/config: colour: there is no such setting"]
    ((_, _, reason, note),) = world.look(0)
    assert reason == "AnnotationIgnored"
    told = world.announcer.warnings()["default/a"]
    assert note == "; ".join(told)
    assert [text.partition(":")[0] for text in told] == ["parley.dev/restart", "parley.dev/config", EVICT]


@pytest.mark.parametrize(
    ("condition", "reason"),
    [
        (DENIED, "GrowthDenied"),
        (Condition(Health.STUCK, ("VM: 3 resizes failed",), (VM,)), "ResizeStuck"),
        (Condition(Health.STUCK, ("scheduler: not heard",), ("scheduler",)), "PeerSilent"),
        (Condition(Health.OK, ("busy",)), None),
        (Condition(Health.DORMANT, ("superseded",)), None),
    ],
)
def test_what_lasts_is_told_by_its_reasons(condition: Condition, reason: str | None) -> None:
    world = World(pod_manifest("a"))
    world.conditions = {"default/a": condition}
    events = [*world.look(0), *world.look(60)]
    assert [(each[2], each[3]) for each in events] == ([(reason, condition.reasons[0])] if reason else [])
    world.conditions = {}
    assert [each[1] for each in world.look(65)] == (["Normal"] if reason else [])


def test_a_change_of_size_is_an_event_of_the_pod_and_no_warning() -> None:
    world = World(pod_manifest("a"))
    grown = AskedSizeChange(Resources(200, GIB), Resources(300, GIB), PerResource("throttled", ""))
    told = []
    for at_s in (0.0, 5.0, 310.0):
        world.announcer.look(world.found(), {}, lambda _: [], at_s, {"default/a": [grown]})
        told.append(world.recorded.taken())
    event = ("a", "Normal", "Grown", "CPU 200m → 300m: throttled")
    assert told == [[event], [], [(*event[:3], f"{event[3]} (2 times)")]]


@virtually
async def test_other_controllers_are_read_for_the_namespaces_of_our_pods() -> None:
    world = World(pod_manifest("a", ownerReferences=OWNED))
    target: dict[str, Any] = {"targetRef": {"kind": "ReplicaSet", "name": "web-1"}}
    metadata = {"namespace": "default", "name": "x"}
    world.server.put(VERTICAL_POD_AUTOSCALERS, {"metadata": metadata, "spec": target})
    world.server.put(LIMIT_RANGES, {"metadata": {**metadata, "namespace": "other"}, "spec": {}})
    await world.controllers.read(now_s())
    ((_, _, reason, note),) = world.look(0)
    assert (reason, note.split(" (")[0]) == ("OtherController", "VerticalPodAutoscaler x")
    count = len(world.server.calls)
    await world.controllers.read(now_s() + AGAIN_S - 1)
    assert len(world.server.calls) == count
    world.server.delete(VERTICAL_POD_AUTOSCALERS, "default", "x")
    await world.controllers.read(now_s() + AGAIN_S)
    assert world.announcer.warnings() == {}


@virtually
async def test_types_that_are_missing_are_no_fault_and_what_fails_is_read_again() -> None:
    world = World(pod_manifest("a"))

    def missing(call: ApiCall) -> None:
        if "autoscaling" in call.path:
            raise RefusalError(404, "NotFound", "the server could not find the requested resource")

    world.server.hooks.append(missing)
    world.server.fail("status", lists, times=1)
    await world.controllers.read(0)
    await world.controllers.read(1)
    count = len(world.server.calls)
    await world.controllers.read(2)
    assert len(world.server.calls) == count


@virtually
async def test_a_pod_that_is_denied_for_long_is_evicted_where_its_budget_allows_it() -> None:
    wanted = pod_manifest("a", annotations={EVICT: "true"}, ownerReferences=OWNED)
    world = World(wanted, pod_manifest("b", ownerReferences=OWNED))
    world.conditions = {"default/a": DENIED, "default/b": DENIED}

    def budget(call: ApiCall) -> None:
        if call.path.endswith("/eviction"):
            raise RefusalError(429, "TooManyRequests", "the disruption budget web needs 3 healthy pods")

    world.server.hooks.append(budget)
    assert await world.evict(0) == []
    told = await world.evict(600)
    assert [each[2] for each in told] == ["Evicting", "EvictionRefused"]
    assert "the disruption budget web" in told[1][3]
    assert await world.evict(601) == []
    world.server.hooks.clear()
    assert [each[2] for each in await world.evict(600 + 2 * APART_S)] == ["Evicting"]
    assert world.server.calls[-1].body["deleteOptions"] == {
        "preconditions": {"uid": objects.uid(world.pods["default/a"])}
    }
    assert world.server.store.find(PODS, ("default", "a")) is None
    assert world.server.store.find(PODS, ("default", "b")) is not None, "its owner did not allow it"


@pytest.mark.parametrize(
    "owners",
    [
        [],
        [{"kind": "DaemonSet", "name": "d", "controller": True}],
        [{"kind": "Node", "name": "n", "controller": True}],
    ],
)
@virtually
async def test_a_pod_that_would_not_come_back_elsewhere_is_never_evicted(owners: list[Manifest]) -> None:
    world = World(pod_manifest("a", annotations={EVICT: "true"}, ownerReferences=owners))
    world.conditions = {"default/a": DENIED}
    for at_s in (0, 600, 6000):
        assert await world.evict(at_s) == []
    ((_, _, reason, note), _) = world.look(0) + world.look(60)
    assert (reason, note.split(",")[0]) == ("AnnotationIgnored", f"{EVICT}: has no effect")


@virtually
async def test_a_denial_that_lasts_becomes_a_condition_of_the_pod_and_ends_there_too() -> None:
    world = World(pod_manifest("a"))
    world.conditions = {"default/a": DENIED}
    assert await world.write(0) == []
    assert await world.write(30) == [("parley.dev/Denied", "True", FULL)]
    count = len(world.server.calls)
    await world.write(35)
    assert len(world.server.calls) == count, "it says so already"
    world.conditions = {}
    assert await world.write(40) == [("parley.dev/Denied", "True", FULL)], "nobody has judged"
    world.conditions = {"default/a": Condition(Health.OK)}
    assert await world.write(45) == [("parley.dev/Denied", "False", "")]


@virtually
async def test_control_groups_that_differ_become_an_event_and_a_condition_of_their_own() -> None:
    world = World(pod_manifest("a"))
    told = "the pod's control group allows 64 MiB of memory where 512 MiB is in force by its status"
    world.conditions = {"default/a": Condition(Health.DENIED, (told,), mismatch=told)}
    assert world.look(0) == []
    assert world.look(5) == [("a", "Warning", "CgroupMismatch", told)]
    assert await world.write(10) == [("parley.dev/CgroupMismatch", "True", told)]
    world.conditions = {"default/a": Condition(Health.OK)}
    assert world.look(15) == [("a", "Normal", "CgroupsMatch", "CgroupMismatch is over")]
    assert await world.write(20) == [("parley.dev/CgroupMismatch", "False", "")]


@virtually
async def test_a_pod_whose_condition_is_refused_keeps_no_other_waiting() -> None:
    world = World(pod_manifest("b"), pod_manifest("a"))
    world.conditions = {"default/a": DENIED, "default/b": DENIED}
    world.look(0)
    world.server.fail("status", lambda call: writes(call) and "/b/" in call.path, times=9, status=403)
    assert await world.write(30) == [("parley.dev/Denied", "True", FULL)]


@virtually
async def test_a_condition_that_is_refused_is_written_later() -> None:
    world = World(pod_manifest("a"))
    world.conditions = {"default/a": DENIED}
    world.look(0)
    world.server.fail("status", writes, status=403, reason="Forbidden")
    assert await world.write(30) == []
    assert await world.write(31 + AFTER_FAULT_S / 2) == []
    assert len(await world.write(30 + AFTER_FAULT_S)) == 1


def lacking(wanted: Resources, *, elsewhere: bool | None = None) -> Condition:
    growth = DeniedGrowth(wanted, Resources(500, 0), lacks_room=True, has_room_elsewhere=elsewhere)
    return Condition(Health.DENIED, (FULL,), growth=growth)


PREDICTING = DenialSettings(30, are_predicted=True)


@virtually
async def test_the_requests_that_a_denied_pod_should_have_are_an_annotation_until_the_denial_ends() -> None:
    world = World(pod_manifest("a"), denials=PREDICTING)
    world.conditions = {"default/a": lacking(Resources(8500, GIB))}
    await world.write(0)
    assert world.predicted() is None
    assert await world.write(30) == [
        (
            "parley.dev/Denied",
            "True",
            f"denied 500m CPU, of the {Resources(8500, GIB)} that it should have: {FULL}",
        )
    ]
    assert world.predicted() == '{"cpu": "8500m", "memory": "1Gi"}'
    count = len(world.server.calls)
    world.conditions = {"default/a": lacking(Resources(9000, GIB))}
    await world.write(35)
    assert len(world.server.calls) == count, "not so often"
    await world.write(30 + PREDICTED_EVERY_S)
    assert world.predicted() == '{"cpu": "9", "memory": "1Gi"}'
    world.conditions = {"default/a": Condition(Health.OK)}
    assert await world.write(70) == [("parley.dev/Denied", "False", "")]
    assert world.predicted() is None


@virtually
async def test_nothing_is_foretold_unless_that_is_set_and_what_others_foretell_stays() -> None:
    theirs = '{"cpu": "2", "memory": "4Gi"}'
    world = World(pod_manifest("a"), pod_manifest("b", annotations={PREDICTED: theirs}))
    world.conditions = {"default/a": lacking(cu(2)), "default/b": Condition(Health.OK)}
    await world.write(0)
    await world.write(30)
    assert world.predicted() is None
    assert objects.annotations(world.pods["default/b"])[PREDICTED] == theirs


@pytest.mark.parametrize("denials", [PREDICTING, DEFAULT_DENIALS])
@pytest.mark.parametrize("labels", [{ENABLED: "true"}, {}])
@virtually
async def test_what_an_earlier_agent_has_left_at_a_pod_goes(
    labels: dict[str, str], denials: DenialSettings
) -> None:
    """Also if the pod is not scaled any more."""
    condition = {"type": "parley.dev/Denied", "status": "True", "message": FULL}
    left = pod_manifest("a", labels=labels, annotations={PREDICTED: "{}"})
    left["status"] = {**left["status"], "conditions": [condition]}
    world = World(left, denials=denials)
    if labels:
        world.conditions = {"default/a": lacking(cu(2))}
        assert await world.write(0) == [("parley.dev/Denied", "True", FULL)], "it may still be so"
        world.conditions = {"default/a": Condition(Health.OK)}
    assert await world.write(1) == [("parley.dev/Denied", "False", "")]
    assert world.predicted() is None


@virtually
async def test_a_foretold_pod_asks_for_no_less_than_it_needs_while_it_starts() -> None:
    manifest = pod_manifest("a")
    manifest["spec"]["initContainers"] = [
        {"name": "init", "resources": {"requests": {"cpu": "1", "memory": "9Gi"}}}
    ]
    world = World(manifest, denials=PREDICTING)
    world.conditions = {"default/a": lacking(Resources(8500, GIB))}
    await world.write(0)
    await world.write(30)
    assert world.predicted() == '{"cpu": "8500m", "memory": "9Gi"}'


@pytest.mark.parametrize(("elsewhere", "goes"), [(False, False), (True, True), (None, True)])
@virtually
async def test_a_pod_is_evicted_only_if_another_node_has_room_or_nobody_can_tell(
    elsewhere: bool | None, goes: bool
) -> None:
    world = World(pod_manifest("a", annotations={EVICT: "true"}, ownerReferences=OWNED))
    world.conditions = {"default/a": lacking(cu(2), elsewhere=elsewhere)}
    await world.evict(0)
    assert [each[2] for each in await world.evict(600)] == (["Evicting"] if goes else [])
    world.conditions = {"default/a": lacking(cu(2), elsewhere=True)}
    assert [each[2] for each in await world.evict(605)] == ([] if goes else ["Evicting"])
