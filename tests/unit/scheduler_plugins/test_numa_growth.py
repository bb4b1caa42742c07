"""Pods with CPUs of their own that grow: no core is two pods' at any moment, and no permit is more than what is pinned, whatever answers are lost
and whenever the scheduler is another one."""

import json
import random
from collections.abc import Mapping
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from hosting.kubernetes.errors import RefusedError, UnreachableError
from hosting.kubernetes.koordinator import RESOURCE_STATUS
from hosting.kubernetes.resources import Manifest
from parley.testing import amount, node, pod
from protocol.cpu_lists import cpu_list, cpus_of
from protocol.values import Bounds, Resources
from scheduler.placing.core.objects import NodeInfo, NodeSnapshot, PodInfo, RowInfo
from scheduler.placing.plugins.base import shared_state
from scheduler.placing.plugins.node_numa_resource.core import resized
from scheduler.placing.plugins.node_numa_resource.given import GivenCpus
from scheduler.placing.plugins.node_numa_resource.growth import (
    GIVEN_BACK_AFTER_S,
    NO_ROOM,
    CpusChanges,
    OwnCpusController,
)
from scheduler.placing.plugins.node_numa_resource.pod_notes import PodAllocation, read_allocation
from scheduler.placing.plugins.node_numa_resource.topology import NodeOptions, NodeTopology
from scheduler.placing.plugins.node_numa_resource.view import NumaView
from tests.support.virtual_time import virtually
from tests.unit.scheduler_plugins.numa_worlds import machine

DECLARED = 8


class Ledger:
    """Of one scheduler process: the permits and bounds as its core knows them. Also what its shared state belongs to."""

    def __init__(self) -> None:
        self.shown: dict[str, Manifest] = {}
        """As the watch has shown pods."""
        self.most: dict[str, int] = {}
        """The bounds of pods in CPUs, as they were told to the core."""
        self.held: dict[str, tuple[int | None, str]] = {}


class World:
    """One node of two NUMA nodes with 8 CPUs each. `truth` are the pods as the API server has them, `permits` what agents hold."""

    def __init__(self, **cpusets: str) -> None:
        self.now_s = 100.0
        self.leads = True
        self.reserved_milli = 0
        """For pods that share their CPUs."""
        self.truth: dict[str, Manifest] = {}
        self.permits: dict[str, int] = {}
        self.wanted: dict[str, int] = {}
        self.outcomes: list[str] = []
        for name, cpuset in cpusets.items():
            made = pod(
                name, "2", "1Gi", node="n1", annotations={RESOURCE_STATUS: json.dumps({"cpuset": cpuset})}
            )
            manifest = dict(made.manifest)
            manifest["metadata"]["resourceVersion"] = "1"
            self.truth[made.uid] = manifest
            self.permits[made.uid] = self.wanted[made.uid] = 1000 * len(cpus_of(cpuset))
        self.restart()

    def restart(self) -> None:
        """Another process leads, which has listed everything."""
        self.ledger = Ledger()
        self.show()
        handle = SimpleNamespace(
            placements=self.ledger,
            nodes_now=self.nodes,
            own_cpus=self,
            now_s=lambda: self.now_s,
            client_set=lambda: self,
        )
        self.controller = OwnCpusController(cast("Any", handle), self.view)

    def show(self) -> None:
        """The watch shows everything, and the core is told."""
        self.ledger.shown = json.loads(json.dumps(self.truth))
        self.ledger.most = {uid: min(DECLARED, len(cpus)) for uid, cpus in self.of(self.ledger.shown).items()}

    @staticmethod
    def of(pods: Mapping[str, Manifest]) -> dict[str, frozenset[int]]:
        found = {uid: read_allocation(each) for uid, each in pods.items()}
        return {uid: each.cpus for uid, each in found.items() if each is not None}

    @property
    def cpus(self) -> dict[str, str]:
        return {uid.removeprefix("uid-"): cpu_list(cpus) for uid, cpus in self.of(self.truth).items()}

    # ------------------------------------------------------------ what the plugin asks

    def nodes(self) -> NodeSnapshot:
        pods, rows = list[PodInfo](), {}
        for uid, manifest in self.ledger.shown.items():
            bounds = Bounds(Resources(1, 1), Resources(1000 * self.ledger.most[uid], 1 << 40))
            reserved = Resources(self.permits[uid], 1 << 30)
            made = pod(manifest["metadata"]["name"], "2", "1Gi", node="n1", grows_to=amount("8", "1Gi"))
            made = replace(made, manifest=manifest, amount=reserved)
            pods.append(made)
            rows[made.holder] = RowInfo(made.holder, made.name, reserved, bounds=bounds)
        reserved = Resources(self.reserved_milli + sum(self.permits.values()), 0)
        found: NodeInfo = replace(node("n1", "16", "32Gi"), pods=tuple(pods), rows=rows, reserved=reserved)
        return NodeSnapshot({"n1": found}, 1)

    def view(self, of: NodeInfo) -> NumaView:
        told = {each.uid: read_allocation(each.manifest) for each in of.pods}
        kept = shared_state(self.ledger, GivenCpus).on(of.name)
        allocations = {uid: each for uid, each in told.items() if each is not None}
        return NumaView(NodeTopology(machine()), NodeOptions(), {**allocations, **kept})

    def given_after_a_cycle(self) -> Mapping[str, PodAllocation]:
        """What is kept in mind once a cycle has seen the nodes."""
        given, pods = shared_state(self.ledger, GivenCpus), self.nodes()["n1"].pods
        told = {each.uid: found for each in pods if (found := read_allocation(each.manifest)) is not None}
        given.forget_settled({"n1": told}, self.now_s)
        return given.on("n1")

    def wanted_milli(self, uid: str) -> int | None:
        return self.wanted.get(uid)

    def may_decide(self) -> bool:
        return self.leads

    def hold(self, uid: str, most_milli: int | None = None, why: str = "") -> None:
        self.ledger.held[uid] = (most_milli, why)

    async def patch(self, _type: Any, _namespace: str, name: str, body: Any, **_: Any) -> None:
        outcome = self.outcomes.pop(0) if self.outcomes else "written"
        found, meta = self.truth.get(f"uid-{name}"), body["metadata"]
        if found is None or outcome == "refused":
            raise RefusedError(404 if found is None else 403, "Forbidden", "no")
        if outcome != "lost":
            if found["metadata"]["resourceVersion"] != meta["resourceVersion"]:
                raise RefusedError(409, "Conflict", "changed")
            found["metadata"]["annotations"].update(meta["annotations"])
            self.touch(found)
        if outcome != "written":
            raise UnreachableError("no answer")

    async def get(self, _type: Any, _namespace: str, name: str) -> Manifest:
        if self.outcomes and self.outcomes[0] == "unreadable":
            self.outcomes.pop(0)
            raise UnreachableError("no answer")
        if f"uid-{name}" not in self.truth:
            raise RefusedError(404, "NotFound", "no")
        return self.truth[f"uid-{name}"]

    @staticmethod
    def touch(manifest: Manifest) -> None:
        metadata = manifest["metadata"]
        metadata["resourceVersion"] = str(int(metadata["resourceVersion"]) + 1)

    # ------------------------------------------------------------ what goes on

    async def look(self, *, after_s: float = 1.0) -> None:
        self.now_s += after_s
        await self.controller.look()

    async def settle(self) -> None:
        """A look, what is written is shown, and the look that sees it."""
        await self.look()
        self.show()
        await self.look()

    def permit(self, uid: str) -> None:
        """The agent asks for what it wants."""
        held = self.ledger.held.get(uid, (None, ""))[0]
        most = 1000 * self.ledger.most[uid]
        most = most if held is None else min(most, held)
        self.permits[uid] = min(self.wanted[uid], max(most, self.permits[uid]))

    def why(self, name: str) -> str:
        return self.ledger.held.get(f"uid-{name}", (None, ""))[1]

    def assert_laws(self) -> None:
        truth = self.of(self.truth)
        assert sum(map(len, truth.values())) == len(frozenset().union(*truth.values())), self.cpus
        for uid, cpus in truth.items():
            assert self.permits[uid] <= 1000 * len(cpus), (uid, self.permits, self.cpus)
        kept = self.view(self.nodes()["n1"]).allocations
        assert sum(len(each.cpus) for each in kept.values()) == len(
            frozenset().union(*(each.cpus for each in kept.values()))
        )


@virtually
async def test_a_pod_gets_cores_before_it_is_permitted_more() -> None:
    world = World(a="0-1", b="4-5")
    world.wanted["uid-a"] = 4000
    await world.look()
    assert world.cpus == {"a": "0-3", "b": "4-5"}
    world.permit("uid-a")
    assert world.permits["uid-a"] == 2000, "the cluster has not shown it yet"
    world.show()
    world.permit("uid-a")
    assert world.permits["uid-a"] == 4000
    await world.look()
    assert not shared_state(world.ledger, CpusChanges).open
    given = shared_state(world.ledger, GivenCpus).on("n1")
    assert given["uid-a"].cpus == cpus_of("0-3"), "a cycle that began before has not seen it"
    world.wanted["uid-a"] = 6000
    await world.look()
    assert world.cpus["a"] == "0-3,6-7", "no cycle is needed for further growth"
    world.show()
    await world.look()
    assert not world.given_after_a_cycle()


@virtually
async def test_cores_that_no_permit_could_use_stay_with_those_who_share_them() -> None:
    world = World(a="0-1")
    world.wanted["uid-a"], world.reserved_milli, world.leads = 8000, 13_000, False
    await world.look()
    assert world.cpus == {"a": "0-1"}, "it is not ours to decide"
    world.leads = True
    await world.look()
    assert world.cpus == {"a": "0-3"}, "the ledger has room for one CPU more"
    assert world.ledger.held["uid-a"] == (None, NO_ROOM)


@virtually
async def test_cores_count_as_taken_from_the_decision_on() -> None:
    world = World(a="0-1", b="4-5")
    world.wanted.update({"uid-a": 8000, "uid-b": 8000})
    await world.look()
    assert world.cpus == {"a": "0-3,6-7", "b": "4-5"}
    await world.settle()
    assert world.cpus == {"a": "0-3,6-7", "b": "4-5"}
    assert world.why("a") == "NUMA node 0 of the pod has 0 CPUs of free cores, and 2 more are needed"
    assert world.why("b") == "NUMA node 0 of the pod has 0 CPUs of free cores, and 6 more are needed"
    world.wanted["uid-b"] = 2000
    await world.look()
    assert world.why("b") == ""


@virtually
async def test_cores_are_given_back_once_they_were_not_needed_for_a_while_and_nothing_grows_meanwhile() -> (
    None
):
    world = World(a="0-3", b="4-5")
    world.wanted["uid-a"] = world.permits["uid-a"] = 1500
    await world.look()
    await world.look(after_s=GIVEN_BACK_AFTER_S - 2)
    assert world.cpus["a"] == "0-3"
    await world.look(after_s=2)
    assert world.cpus["a"] == "0-1"
    world.wanted["uid-a"] = 4000
    world.permit("uid-a")
    assert world.permits["uid-a"] == 2000, "before the cluster shows it"
    world.wanted["uid-a"] = 2000
    world.show()
    await world.look()
    assert world.ledger.held["uid-a"] == (None, "")
    world.wanted["uid-b"] = 6000
    await world.look()
    assert world.cpus == {"a": "0-1", "b": "2-7"}


@virtually
async def test_a_pod_that_holds_its_cpus_keeps_them() -> None:
    world = World(a="0-3")
    world.wanted["uid-a"] = 1000
    for _ in range(3):
        await world.look(after_s=GIVEN_BACK_AFTER_S + 1)
    assert world.cpus["a"] == "0-3", "what is permitted still is not less"


@pytest.mark.parametrize(
    ("outcomes", "found"),
    [
        (["refused"], "0-1"),
        (["lost"], "0-1"),
        (["lost", "unreadable"], "0-1"),
        (["written, lost"], "0-3"),
        (["written, lost", "unreadable"], "0-3"),
    ],
)
@virtually
async def test_a_lost_answer_is_looked_up_before_anything_else(outcomes: list[str], found: str) -> None:
    world = World(a="0-1")
    world.wanted["uid-a"], world.outcomes = 4000, outcomes
    await world.look()
    assert world.cpus["a"] == found
    world.assert_laws()
    for _ in range(8):
        await world.settle()
    assert world.cpus["a"] == "0-3", "it is tried again"
    assert not world.given_after_a_cycle()


@virtually
async def test_who_has_changed_the_pod_meanwhile_is_seen_first() -> None:
    world = World(a="0-1")
    world.wanted["uid-a"] = 4000
    world.truth["uid-a"]["metadata"]["annotations"][RESOURCE_STATUS] = '{"cpuset": "6-7"}'
    world.touch(world.truth["uid-a"])
    await world.look()
    assert world.cpus["a"] == "6-7"
    await world.settle()
    await world.settle()
    assert world.cpus["a"] == "0-1,6-7"


@virtually
async def test_a_pod_that_goes_leaves_nothing() -> None:
    world = World(a="0-1")
    world.wanted["uid-a"] = 4000
    await world.look()
    del world.truth["uid-a"]
    world.show()
    await world.look()
    assert not world.given_after_a_cycle()
    assert shared_state(world.ledger, CpusChanges) == CpusChanges()


@pytest.mark.parametrize("seed", range(20))
@virtually
async def test_no_core_is_two_pods_and_no_permit_is_more_than_what_is_pinned(seed: int) -> None:
    dice, world = random.Random(seed), World(a="0-1", b="4-5", c="8-11", d="12")
    before, moved = world.cpus, False
    for _ in range(120):
        match dice.randrange(8):
            case 0 | 1:
                uid = dice.choice(tuple(world.wanted))
                world.wanted[uid] = dice.randrange(100, 8001)
            case 2 | 3:
                for uid in world.wanted:
                    world.permit(uid)
            case 4:
                world.show()
            case 5:
                world.outcomes = dice.choices(
                    ["written", "lost", "written, lost", "refused", "unreadable"], k=2
                )
            case 6 if dice.random() < 0.2:
                world.restart()
            case _:
                await world.look(after_s=dice.choice([0.5, 1, GIVEN_BACK_AFTER_S]))
        world.assert_laws()
        moved = moved or world.cpus != before
    assert moved


def test_what_is_given_and_taken_is_never_somebody_elses() -> None:
    dice = random.Random(1)
    for _ in range(300):
        cpus = dice.sample(range(16), 16)
        held = {"a": PodAllocation(frozenset(cpus[:3])), "b": PodAllocation(frozenset(cpus[3:8]))}
        view = NumaView(NodeTopology(machine()), NodeOptions(), held)
        milli = dice.randrange(0, 20_000)
        found, _ = resized(view, "a", milli)
        assert found.cpus.isdisjoint(held["b"].cpus)
        assert found.cpus <= held["a"].cpus or found.cpus > held["a"].cpus
        assert found.cpus >= held["a"].cpus or 1000 * len(found.cpus) >= milli
