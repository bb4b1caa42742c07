"""Answers about nodes are kept from one pod to the next: they are those that plugins would give again, and no plugin gives them again."""

import random
from collections.abc import Mapping
from dataclasses import dataclass

import pytest

from hosting import logs
from hosting.kubernetes.resources import NODES, PODS
from protocol.values import Resources
from scheduler.permits.core import events
from scheduler.permits.core.model import ReservationOwner, ReservationSpec
from scheduler.permits.service.inputs import CorePlacements
from scheduler.placing.core.objects import LedgerReservations, NodeInfo, PodInfo
from scheduler.placing.core.plugin import CycleContext
from scheduler.placing.core.profile import EnabledPlugin, PluginSet, Profile
from scheduler.placing.core.values import Status
from scheduler.placing.cycle import kept
from scheduler.placing.cycle.assembly import of_profile
from scheduler.placing.cycle.context import CycleState
from scheduler.placing.cycle.framework import SchedulingFramework
from scheduler.placing.cycle.hooks import ExtenderPorts, SharedHooks
from scheduler.placing.cycle.passes import find_nodes, score_nodes
from scheduler.placing.plugins.growth_headroom import GrowthHeadroom
from scheduler.placing.plugins.ledger_fit import LedgerFit
from scheduler.placing.plugins.registry import EXTENDER_PROFILE, new_registry
from tests.support.amounts import cu
from tests.support.virtual_time import now_s, virtually
from tests.unit.scheduler_clusters.kube_manifests import bounds, node, pod
from tests.unit.scheduler_clusters.kube_worlds import opened
from tests.unit.scheduler_clusters.test_placing import PlacingWorld
from tests.unit.scheduler_framework.plugin_worlds import PoolsAsTold

BOUNDS = bounds({"cpu": "250m", "memory": "256Mi"}, {"cpu": 2, "memory": "2Gi"})
SHAPES = (cu(1), cu(0.5), Resources(100, 2**30))


class Whimsical:
    """Goes by more than the node, and does not say what."""

    def __init__(self, args: object, handle: object) -> None:
        del args, handle

    def name(self) -> str:
        return "Whimsical"

    def filter(self, context: CycleContext, pod: PodInfo, node: NodeInfo) -> Status | None:
        return None


@dataclass(frozen=True)
class Answer:
    """What the passes say of a pod."""

    feasible: tuple[str, ...]
    statuses: Mapping[str, Status]
    scores: Mapping[str, int]


class Places(PlacingWorld):
    """Nodes `n1` to `n4`, and the plugins that run beside kube-scheduler."""

    def __init__(self) -> None:
        super().__init__()
        self._pods = 0
        self.ledger = CorePlacements(self.core, self.core.apply, now_s, lambda *_: None)

    def framework(self, *more: str) -> SchedulingFramework:
        registry = new_registry()
        registry.register("Whimsical", Whimsical)
        profile = Profile("test", multi_point=PluginSet(tuple(map(EnabledPlugin, more))))
        reservations = LedgerReservations(self.core.state)
        ports = ExtenderPorts(
            self.ledger,
            PoolsAsTold(),
            now_s,
            reservations.on,
            nodes=self.view.snapshot,
            are_reservations=reservations.are_any,
        )
        shared = SharedHooks(ports, logs.logger("test"))
        return SchedulingFramework(of_profile(profile, registry, EXTENDER_PROFILE), shared)

    def asking(self, amount: Resources, **labels: str) -> PodInfo:
        self._pods += 1
        cpu, memory = f"{amount.vcpu_milli}m", str(amount.memory_bytes)
        manifest = pod(f"p{self._pods}", cpu, memory, labels=labels, phase="Pending")
        del manifest["spec"]["nodeName"]
        return self.view.pod_info(manifest)

    async def answer(self, framework: SchedulingFramework, asking: PodInfo) -> Answer:
        nodes = self.view.snapshot()
        framework.set_snapshot(nodes)
        context = CycleState()
        found = await find_nodes(framework, context, asking, tuple(nodes.values()))
        scored = await score_nodes(framework, context, asking, tuple(nodes.values()))
        assert found.status is scored.status is None
        return Answer(tuple(each.name for each in found.feasible), found.statuses, scored.scores)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Of which nodes plugins are asked: the first letter of the method, and the node."""
    asked: list[str] = []
    for plugin, method in ((LedgerFit, "filter"), (GrowthHeadroom, "score")):
        answer = getattr(plugin, method)

        def noted(
            made: object, context: CycleContext, pod: PodInfo, node: NodeInfo, answer: object = answer
        ) -> object:
            asked.append(f"{'f' if isinstance(made, LedgerFit) else 's'} {node.name}")
            assert callable(answer)
            return answer(made, context, pod, node)

        monkeypatch.setattr(plugin, method, noted)
    return asked


async def begun(world: Places) -> None:
    for number in range(1, 5):
        world.put(NODES, node(f"n{number}"))
    await world.refresh()


@virtually
async def test_of_a_pod_like_the_last_one_plugins_are_asked_on_changed_nodes_alone(asked: list[str]) -> None:
    world = Places()
    async with opened(world):
        await begun(world)
        framework = world.framework()
        first = world.asking(cu(1))
        before = await world.answer(framework, first)
        assert len(asked) == 8
        world.assume(first, "n2")
        asked.clear()
        after = await world.answer(framework, world.asking(cu(1)))
        assert asked == ["f n2", "s n2"]
        assert after.scores["n2"] < before.scores["n2"]
        asked.clear()
        await world.answer(framework, world.asking(cu(2)))
        assert len(asked) == 8


@virtually
async def test_of_a_pod_that_has_room_plugins_are_asked(asked: list[str]) -> None:
    """Its own room changes the answer."""
    world = Places()
    async with opened(world):
        await begun(world)
        framework = world.framework()
        mine = world.asking(cu(3))
        world.assume(mine, "n2")
        assert "n2" not in (await world.answer(framework, world.asking(cu(3)))).feasible
        asked.clear()
        assert (await world.answer(framework, mine)).feasible == ("n2",)
        assert asked[0] == "f n2"


@virtually
async def test_a_plugin_that_does_not_say_what_it_goes_by_is_asked_each_time(asked: list[str]) -> None:
    world = Places()
    async with opened(world):
        await begun(world)
        framework = world.framework("Whimsical")
        for _ in range(2):
            asked.clear()
            await world.answer(framework, world.asking(cu(1)))
            assert [each for each in asked if each[0] == "f"] == ["f n1", "f n2", "f n3", "f n4"]


@virtually
async def test_what_is_kept_has_a_bound(monkeypatch: pytest.MonkeyPatch, asked: list[str]) -> None:
    monkeypatch.setattr(kept, "MAX_KEPT", 16)
    world = Places()
    async with opened(world):
        await begun(world)
        framework = world.framework()
        for milli in (100, 200, 300, 400):
            await world.answer(framework, world.asking(Resources(milli, 1)))
        asked.clear()
        await world.answer(framework, world.asking(Resources(400, 1)))
        assert asked == []
        await world.answer(framework, world.asking(Resources(100, 1)))
        assert len(asked) == 8


@pytest.mark.parametrize("seed", range(6))
@virtually
async def test_what_is_kept_is_what_plugins_would_say_again(seed: int) -> None:
    rng = random.Random(seed)
    world = Places()
    async with opened(world):
        await begun(world)
        framework, placed = world.framework(), list[PodInfo]()
        for step in range(60):
            await _change(world, rng, placed, step)
            if rng.random() < 0.5:
                await world.refresh()
            for amount in SHAPES:
                asking = world.asking(amount, app=rng.choice("ab"))
                assert await world.answer(framework, asking) == await world.answer(world.framework(), asking)
            for mine in placed[-2:]:
                assert await world.answer(framework, mine) == await world.answer(world.framework(), mine)


async def _change(world: Places, rng: random.Random, placed: list[PodInfo], step: int) -> None:
    """Something happens to a node, or near it."""
    names = list(world.view.snapshot())
    name = rng.choice(names)
    match rng.randrange(7):
        case 0 | 1:
            mine = world.asking(rng.choice(SHAPES))
            if world.ledger.assume(mine.holder, mine.name, name, mine.amount, until_s=now_s() + 30) is None:
                world.view.assume_pod(mine, name)
                placed.append(mine)
        case 2 if placed:
            world.ledger.forget(placed.pop(rng.randrange(len(placed))).holder)
        case 3:
            annotations = BOUNDS if rng.random() < 0.7 else {}
            made = pod(f"shown-{step}", "500m", scaled=rng.random() < 0.5, annotations=annotations)
            made["spec"]["nodeName"] = name
            world.put(PODS, made)
        case 4:
            world.put(NODES, node(name, rng.choice(["2", "4", "8"])))
        case 5:
            world.put(NODES, node(f"n{rng.randrange(1, 7)}"))
        case _:
            owners = (ReservationOwner("default", (("app", rng.choice("ab")),)),)
            uid = f"r-{rng.randrange(3)}"
            spec = ReservationSpec(uid, uid, name, cu(rng.choice([1, 2])), owners)
            if world.core.state.reservations.find(uid) is None:
                world.core.apply(events.ReservationSeen(spec))
            else:
                world.core.apply(events.ReservationGone(uid))
