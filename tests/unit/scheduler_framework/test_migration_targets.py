"""The plugins that place pods name the nodes to which a VM can go that is to leave its own."""

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from hosting import logs
from scheduler.permits.core.events import MigrationWanted
from scheduler.placing.core.objects import NodeInfo, NodeSnapshot, PodInfo
from scheduler.placing.core.plugin import CycleContext
from scheduler.placing.core.profile import EnabledPlugin, PluginArgs, PluginSet, Profile
from scheduler.placing.core.values import PreFilterResult, Status
from scheduler.placing.cycle.assembly import of_profile
from scheduler.placing.cycle.framework import SchedulingFramework
from scheduler.placing.cycle.hooks import ExtenderPorts, SharedHooks
from scheduler.placing.cycle.passes import CHOICE_DEADLINE_S, MigrationTargets
from scheduler.placing.plugins.registry import FULL_PROFILE, Registry, new_registry
from scheduler.ports import MigratorError
from tests.support.amounts import cu
from tests.support.virtual_time import now_s, virtually
from tests.unit.scheduler_framework.plugin_worlds import Assumed, LedgerAsTold, PoolsAsTold, node, pod, row

VM = pod(
    "vm", cu(4), most=cu(8), pool="ci", nodeName="a", nodeSelector={"disk": "ssd"}, schedulerName="parley"
)
WANTED = MigrationWanted(VM.pod, VM.uid, "a")
HERE = node("a", cu(32), [row("vm", cu(4), bounds=VM.bounds)], pods=[VM], labels={"disk": "ssd"})


def other(name: str, taken: float, **labels: str) -> NodeInfo:
    return node(name, cu(16), [row(f"on-{name}", cu(taken))], labels=labels or {"disk": "ssd"})


class Misbehaving:
    """A plugin whose pre-filter raises, or never answers."""

    def __init__(self, args: Any, handle: Any) -> None:
        del handle
        self._error: Exception | None = args

    def name(self) -> str:
        return "Misbehaving"

    async def pre_filter(
        self, context: CycleContext, pod: PodInfo, nodes: Sequence[NodeInfo]
    ) -> tuple[PreFilterResult | None, Status | None]:
        if self._error is None:
            await asyncio.Event().wait()
        assert self._error is not None
        raise self._error


def framework_of(profile: Profile, registry: Registry) -> SchedulingFramework:
    """The plugins of the profile, over a ledger in which the VM is on its node."""
    ledger = LedgerAsTold(kept={VM.uid: Assumed(VM.name, "a", VM.amount, 0.0, VM.pool, None)})
    shared = SharedHooks(ExtenderPorts(ledger, PoolsAsTold(), now_s), logs.logger("test"))
    return SchedulingFramework(of_profile(profile, registry, FULL_PROFILE), shared)


def targets(*nodes: NodeInfo, extra: Profile | None = None) -> MigrationTargets:
    registry = new_registry()
    registry.register("Misbehaving", Misbehaving)
    framework = framework_of(extra or Profile("parley"), registry)
    snapshot = NodeSnapshot({each.name: each for each in nodes})
    profiles: dict[str, Any] = {"parley": framework}
    return MigrationTargets(profiles.__getitem__, lambda: snapshot)


def misbehaving(error: Exception | None) -> Profile:
    enabled = PluginSet((EnabledPlugin("Misbehaving"),))
    return Profile("parley", multi_point=enabled, args=(PluginArgs("Misbehaving", error),))


async def test_a_vm_goes_where_its_likely_growth_has_most_room() -> None:
    nodes = [HERE, other("b", 10), other("c", 6), other("d", 14), other("e", 0, disk="hdd")]
    assert await targets(*nodes).choose(WANTED) == ("c", "b")


async def test_plugins_see_the_nodes_that_the_choice_goes_by() -> None:
    """Not those of a cycle that was before."""
    framework = framework_of(Profile("parley"), new_registry())
    framework.set_snapshot(NodeSnapshot())
    now = NodeSnapshot({each.name: each for each in (HERE, other("b", 0))})
    await MigrationTargets(lambda _: framework, lambda: now).choose(WANTED)
    assert framework.node_info_snapshot() is now


@pytest.mark.parametrize(
    ("nodes", "why"),
    [
        (
            [HERE, other("b", 14), other("c", 0, disk="hdd")],
            "no other node can take default/vm of 4 CPU / 4Gi: 0/2 nodes are available: ",
        ),
        ([HERE], "no other node can take default/vm of 4 CPU / 4Gi: no nodes available to schedule pods"),
        ([node("a", cu(32)), other("b", 0)], "pod default:vm is not on node a any more"),
        ([other("b", 0)], "pod default:vm is not on node a any more"),
    ],
    ids=["none has room", "there is no other node", "the pod is gone", "its node is gone"],
)
async def test_no_move_begins_that_has_nowhere_to_go(nodes: list[NodeInfo], why: str) -> None:
    with pytest.raises(MigratorError) as caught:
        await targets(*nodes).choose(WANTED)
    assert str(caught.value).startswith(why)


@pytest.mark.parametrize(
    ("error", "why"),
    [
        (ValueError("broken"), r"no node can be chosen: ValueError\('broken'\)"),
        (None, f"no node was chosen within {CHOICE_DEADLINE_S:g} s"),
    ],
)
@virtually
async def test_a_plugin_that_fails_or_never_answers_ends_the_choice(
    error: Exception | None, why: str
) -> None:
    with pytest.raises(MigratorError, match=why):
        await targets(HERE, other("b", 0), extra=misbehaving(error)).choose(WANTED)
