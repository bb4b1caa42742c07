"""The plugin `Reservation` with `LedgerFit` over a real ledger: who may use the room of a reservation, and which one."""

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import pytest

from hosting.kubernetes import names
from protocol.values import Resources
from scheduler.permits.core import events
from scheduler.permits.core.model import ReservationOwner
from scheduler.permits.service.inputs import CorePlacements
from scheduler.placing.core import runs
from scheduler.placing.core.objects import LedgerReservations, NodeInfo, NodeSnapshot, PodInfo, RowInfo
from scheduler.placing.core.profile import EnabledPlugin, PluginSet, Profile
from scheduler.placing.core.values import ExtensionPoint, Status
from scheduler.placing.cycle.assembly import of_profile
from scheduler.placing.cycle.context import CycleState
from scheduler.placing.cycle.framework import SchedulingFramework
from scheduler.placing.cycle.hooks import ExtenderPorts, SharedHooks
from scheduler.placing.plugins.base import RESERVATION_USED, find
from scheduler.placing.plugins.ledger_fit import LedgerFit
from scheduler.placing.plugins.queueing import PrioritySort
from scheduler.placing.plugins.registry import Registry
from scheduler.placing.plugins.reservation import NO_RESERVATION, ReservationPlugin
from tests.support.amounts import cu
from tests.support.servers import QUIET
from tests.unit.scheduler_core import core_worlds
from tests.unit.scheduler_framework.extender_worlds import FILTERED, Told, texts, told
from tests.unit.scheduler_framework.plugin_worlds import BinderAsTold, PoolsAsTold, pod

FOUR = cu(4)
DB = (ReservationOwner("default", (("app", "db"),)),)
ANYBODY = (ReservationOwner(),)
POD = pod("p", cu(2), labels={"app": "db"})
FULL = ("Unschedulable", "Insufficient cpu")


def _requiring(word: str) -> PodInfo:
    return replace(POD, manifest={"metadata": {"annotations": {names.RESERVATION_REQUIRED: word}}})


REQUIRING = _requiring("true")


class World:
    """A core with the node `n1` and `nodes`, each of four units, and the extender around it."""

    def __init__(self, *nodes: str, others: Iterable[Told] = (), reservable: Resources = FOUR) -> None:
        self.core = core_worlds.World(reservable)
        for name in nodes:
            self.core.node(name, FOUR)
        state = self.core.core.state
        placements = CorePlacements(self.core.core, self.core.apply, lambda: 0.0, lambda *_: None)
        self.ledger_reservations = LedgerReservations(state)
        ports = ExtenderPorts(
            placements, PoolsAsTold(), lambda: 0.0, self.ledger_reservations.on, BinderAsTold()
        )
        registry = Registry()
        registry.register("Reservation", ReservationPlugin)
        for plugin in (LedgerFit, PrioritySort):
            registry.register(plugin.__name__, plugin)
        registry.register("Binder", lambda _, __: told("Binder", "bind").made([]))
        enabled = ["Reservation", "LedgerFit", "PrioritySort", "Binder"]
        for each in others:
            registry.register(each.name, self._factory(each))
            enabled.append(each.name)
        profile = Profile("test", multi_point=PluginSet(tuple(EnabledPlugin(name) for name in enabled)))
        self.shared = SharedHooks(ports, QUIET)
        self.extender = SchedulingFramework(of_profile(profile, registry), self.shared)

    @staticmethod
    def _factory(each: Told) -> Any:
        return lambda _, __: each.made([])

    def node(self, name: str) -> NodeInfo:
        account = self.core.core.ledger.node(name)
        assert account is not None
        rows = {row.holder: RowInfo(row.holder, row.name, row.reserved) for row in account.rows.values()}
        return NodeInfo(name, account.capacity.reservable, account.reserved, rows)

    def nodes(self) -> list[NodeInfo]:
        return [self.node(account.capacity.name) for account in self.core.core.ledger.nodes()]

    async def filtered(self, each: PodInfo, context: CycleState | None = None) -> dict[str, tuple[str, str]]:
        """The rejections of the filters by node: the code, and the first words."""
        context = context if context is not None else CycleState()
        nodes = self.nodes()
        self.extender.set_snapshot(NodeSnapshot({node.name: node for node in nodes}))
        _, status = await self.extender.run_pre_filter_plugins(context, each, nodes)
        assert status is None
        found = {node.name: await self.extender.run_filter_plugins(context, each, node) for node in nodes}
        return {name: _brief(status) for name, status in found.items() if status is not None}

    async def placed(self, each: PodInfo, node: str = "n1") -> tuple[Status | None, str | None]:
        """Place a pod on a node that the filters let pass: the status of Reserve, and the reservation that is used."""
        context = CycleState()
        assert node not in await self.filtered(each, context)
        _, status = await self.extender.nominate_reservation(context, each, node)
        if status is None:
            status = await self.extender.run_reserve_plugins_reserve(context, each, node)
        return status, find(context, RESERVATION_USED)

    def kept(self, uid: str, node: str = "n1") -> Resources:
        return next(row.reserved for holder, row in self.node(node).rows.items() if holder.uid == uid)


def _brief(status: Status) -> tuple[str, str]:
    return str(status.code), status.message.split(":")[0]


async def test_the_room_of_a_reservation_is_for_pods_that_match_it() -> None:
    """The room that they take of it is no longer kept for others, and the node is never over-full."""
    world = World()
    world.core.other_pod("other", cu(2))
    world.core.reserve(cu(2), owners=DB)
    assert await world.filtered(pod("stranger", cu(2))) == {"n1": FULL}
    assert await world.placed(POD) == (None, "r1")
    assert world.kept("r1") == cu(0)
    assert world.node("n1").reserved == cu(4)
    second = replace(POD, uid="uid-second")
    assert await world.filtered(second) == {"n1": FULL}, "it serves one pod"


async def test_a_pod_that_is_larger_takes_the_rest_of_the_nodes_own_room() -> None:
    world = World()
    world.core.other_pod("other", cu(1))
    world.core.reserve(cu(2), owners=DB)
    large = replace(POD, amount=cu(3))
    assert await world.placed(large) == (None, "r1")
    assert world.node("n1").reserved == cu(4)
    assert await world.filtered(replace(POD, uid="uid-two", amount=cu(1))) == {"n1": FULL}


async def test_a_pod_uses_one_reservation_and_no_sum_of_them() -> None:
    world = World()
    world.core.reserve(cu(2), uid="r1", owners=DB)
    world.core.reserve(cu(2), uid="r2", owners=DB)
    assert await world.filtered(replace(POD, amount=cu(3))) == {"n1": FULL}
    assert await world.filtered(POD) == {}


async def test_one_that_serves_many_keeps_what_they_leave() -> None:
    world = World()
    world.core.reserve(cu(3), owners=ANYBODY, allocate_once=False)
    world.core.other_pod("other", cu(1))
    assert await world.placed(replace(POD, amount=cu(1))) == (None, "r1")
    assert world.kept("r1") == cu(2)
    assert await world.placed(replace(POD, uid="uid-two", amount=cu(2))) == (None, "r1")
    assert world.kept("r1") == cu(0)


async def test_a_pod_that_requires_a_reservation_goes_nowhere_else() -> None:
    """Also where there is room enough. No victim would help."""
    world = World("n2", "n3")
    world.core.reserve(cu(2), node="n1", owners=DB)
    world.core.reserve(cu(2), node="n2", uid="r2", owners=(ReservationOwner("other"),))
    refused = ("UnschedulableAndUnresolvable", NO_RESERVATION)
    assert await world.filtered(REQUIRING) == {"n2": refused, "n3": refused}
    assert await world.filtered(POD) == {}
    for word in ("True", "yes", "flase", ""):
        assert await world.filtered(_requiring(word)) == {"n2": refused, "n3": refused}, word
    assert await world.filtered(_requiring("false")) == {}


@pytest.mark.parametrize(
    ("each", "ended"),
    [
        (POD, ("Success", "", "")),
        (
            REQUIRING,
            (
                "Error",
                f'plugin "Reservation" failed to nominate a reservation of node n1: {NO_RESERVATION}',
                "Reservation",
            ),
        ),
    ],
)
async def test_a_reservation_that_goes_while_a_node_is_chosen_is_not_nominated(
    each: PodInfo, ended: tuple[str, str, str]
) -> None:
    """The pod may use the room of the node itself, unless it requires a reservation."""
    world, context = World(), CycleState()
    world.core.reserve(cu(2), owners=DB)
    assert await world.filtered(each, context) == {}
    world.core.apply(events.ReservationGone("r1"))
    found, status = await world.extender.nominate_reservation(context, each, "n1")
    assert (found, texts(status)) == (None, ended)


@pytest.mark.parametrize(
    ("reservations", "chosen"),
    [
        ({"small": {"amount": cu(2)}, "large": {"amount": cu(3)}}, "small"),
        ({"small": {"amount": cu(2)}, "large": {"amount": cu(3), "order": 9}}, "large"),
        ({"small": {"amount": cu(2), "order": 2}, "large": {"amount": cu(3), "order": 1}}, "large"),
        ({"small": {"amount": cu(1)}, "large": {"amount": cu(3)}}, "large"),
    ],
)
async def test_the_best_reservation_is_nominated(
    reservations: dict[str, dict[str, Any]], chosen: str
) -> None:
    """The lowest order first; without one, the reservation that becomes fullest. One that is too small leaves the rest to the node."""
    world = World(reservable=cu(6))
    for uid, described in reservations.items():
        world.core.reserve(uid=uid, owners=DB, **described)
    assert await world.placed(POD) == (None, chosen)


async def test_what_was_nominated_is_told_until_the_pod_was_reserved_for() -> None:
    """And for the node that was chosen only."""
    world, context = World(), CycleState()
    world.core.reserve(cu(2), owners=DB)
    await world.filtered(POD, context)
    found, _ = await world.extender.nominate_reservation(context, POD, "n1")
    nominator = world.extender.get_reservation_nominator()
    assert nominator is not None
    assert found is not None
    assert nominator.nominated_reservation(POD, "n1") == found
    assert nominator.nominated_reservation(POD, "n2") is None
    await world.extender.run_reserve_plugins_reserve(context, POD, "n1")
    assert nominator.nominated_reservation(POD, "n1") is None


@pytest.mark.parametrize("method", ["filter_reservation", "filter_nominate_reservation"])
async def test_other_plugins_may_refuse_a_reservation(method: str) -> None:
    """While nodes are looked at, or when one was chosen."""
    refuses = told(
        "Refuses", "reserve", **{method: lambda _, __, each, ___: FILTERED if each.uid == "r1" else None}
    )
    world = World(others=[refuses])
    world.core.reserve(cu(2), uid="r1", owners=DB, order=1)
    world.core.reserve(cu(2), uid="r2", owners=DB)
    assert await world.placed(POD) == (None, "r2")


async def test_a_plugin_that_cannot_restore_a_node_speaks_for_that_node() -> None:
    broken = told("Broken", "reserve", "pre_restore_reservation", restore_reservation=(None, FILTERED))
    world = World("n2", others=[broken])
    world.core.reserve(cu(2), owners=DB)
    assert await world.filtered(POD) == {"n1": ("Unschedulable", "no")}


@pytest.mark.parametrize("is_filtered", [True, False], ids=["in one cycle", "in a call of its own"])
@pytest.mark.parametrize(
    ("reservations", "scores"),
    [
        ({}, {"n1": 0, "n2": 0, "n3": 0}),
        ({"n1": {"amount": cu(4)}, "n2": {"amount": cu(2)}}, {"n1": 50, "n2": 100, "n3": 0}),
        (
            {"n1": {"amount": cu(4), "order": 3}, "n2": {"amount": cu(2), "order": 4}},
            {"n1": 100, "n2": 10, "n3": 0},
        ),
    ],
)
async def test_nodes_with_a_reservation_for_the_pod_are_better(
    reservations: dict[str, dict[str, Any]], scores: dict[str, int], is_filtered: bool
) -> None:
    """By the best reservation; the one of the lowest order makes all others small. kube-scheduler's prioritize runs no filters."""
    world, context = World("n2", "n3"), CycleState()
    for node, described in reservations.items():
        world.core.reserve(uid=node, node=node, owners=DB, **described)
    nodes = world.nodes()
    if is_filtered:
        assert await world.filtered(POD, context) == {}
    else:
        assert await world.extender.run_pre_filter_plugins(context, POD, nodes) == (None, None)
    assert await world.extender.run(runs.PRE_SCORE, context, POD, nodes) is None
    found, _ = await world.extender.run_score_plugins(context, POD, nodes)
    assert {each.name: each.total for each in found} == scores


async def test_reservations_are_shown_on_the_plugins_pages() -> None:
    world = World()
    world.core.reserve(cu(2), owners=DB)
    await world.filtered(POD, context := CycleState())
    await world.extender.nominate_reservation(context, POD, "n1")
    plugin = world.extender.plugins["Reservation"]
    assert isinstance(plugin, ReservationPlugin)
    pages = {each.path: each.read for each in plugin.endpoints()}
    (shown,) = pages["/nodes/{node}"]({"node": "n1"})
    assert (shown.uid, shown.available) == ("r1", True)
    assert pages["/nominated"]({}) == {POD.uid: {"node": "n1", "reservation": "default/r1"}}
    assert pages["/nodes/{node}"]({"node": "x"}) == []
    assert world.extender.profile.points[ExtensionPoint.FILTER] == ("Reservation", "LedgerFit")
