"""Every move of the model world with the ranges of its numbers and how often the walk makes it.

One table serves the seeded walk and the Hypothesis machine: a move and its numbers are all that it takes to repeat it.
"""

import bisect
import inspect
import itertools
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from protocol.wire import PodName
from tests.machines import moves_agents, moves_cluster, moves_placing, moves_pools, moves_room
from tests.machines.cluster_models import cu
from tests.machines.core_port import HANDOVER_S, POOL, SAFE_HANDOVER_S
from tests.machines.ledger_world import World
from tests.machines.moves_agents import AMOUNTS, FATES, SKEWS_MS, SPANS_S
from tests.machines.moves_cluster import ASIDE_S, MAXIMA, POD_AMOUNTS, POOLS_OF_BIRTHS, STEPS
from tests.machines.moves_pools import HOWS, LABELS, LIMITS, OWN_LIMITS, PER_VM
from tests.machines.moves_room import HOWS as HOWS_OF_NOTICES
from tests.machines.moves_room import MODES, NEEDS, PRIORITIES
from tests.machines.placing_models import AMOUNTS as PLACED_AMOUNTS
from tests.machines.pool_models import OTHER

VM: Final = 12
MANY: Final = 24
_YES_NO: Final = 2
_WANT: Final = len(AMOUNTS)
_FATE: Final = len(FATES)
_POOLS: Final = 2
_ASIDE: Final = len(ASIDE_S)


@dataclass(frozen=True, slots=True)
class Move:
    """A move: each of its numbers lies in 0..size - 1. `is_fault` moves are rarer in calm worlds."""

    act: Callable[..., None]
    sizes: tuple[int, ...]
    weight: float
    is_fault: bool = False
    names: tuple[str, ...] = field(init=False)

    def __post_init__(self) -> None:
        names = tuple(inspect.signature(self.act).parameters)[1:]
        assert len(names) == len(self.sizes), self.act
        object.__setattr__(self, "names", names)

    @property
    def name(self) -> str:
        return self.act.__name__

    def told(self, numbers: tuple[int, ...]) -> str:
        given = ", ".join(f"{name}={number}" for name, number in zip(self.names, numbers, strict=True))
        return f"{self.name}({given})"


MOVES: Final = (
    Move(moves_agents.agent_asks, (VM, 2, _WANT, _FATE), 14),
    Move(moves_agents.agent_asks_again, (VM, 2, _FATE), 9),
    Move(moves_agents.agent_goes_up, (VM, _WANT, 3), 10),
    Move(moves_agents.agent_goes_down, (VM, _WANT, _FATE), 9),
    Move(moves_agents.agent_observes, (VM, 2, 3), 7),
    Move(moves_agents.agent_resizes, (VM, 2, _WANT, 3), 9),
    Move(moves_agents.agent_changes_kind, (VM, 2, 3), 1.5),
    Move(moves_agents.packet_arrives, (MANY, _YES_NO, _YES_NO), 6),
    Move(moves_agents.answer_arrives, (MANY, _YES_NO), 4),
    Move(moves_pools.pool_answers, (_POOLS, len(HOWS)), 5),
    Move(moves_pools.pool_verdict_is_formed, (_POOLS, len(HOWS)), 2),
    Move(moves_pools.pool_verdict_is_applied, (_POOLS, 6), 3),
    Move(moves_agents.command_ends, (VM, 3, 3), 5),
    Move(moves_agents.vm_moves, (VM, 3), 5),
    Move(moves_cluster.time_passes, (len(SPANS_S), _YES_NO), 10),
    Move(moves_cluster.time_goes_to_an_end, (MANY, _ASIDE), 3),
    Move(moves_cluster.read_begins, (VM,), 4),
    Move(moves_cluster.reading_is_told, (MANY,), 6),
    Move(moves_cluster.all_is_read, (), 2),
    Move(moves_agents.published_scales, (VM, _WANT, 4), 9),
    Move(moves_agents.published_asks, (VM, 3), 3),
    Move(moves_agents.published_goes, (VM, _WANT, 3), 9),
    Move(moves_agents.published_fails, (VM, _WANT, _YES_NO, 3), 3),
    Move(moves_agents.published_stands_by, (VM, _WANT, _YES_NO), 1),
    Move(moves_agents.published_comes_back, (VM, 4), 5),
    Move(moves_agents.look_ends, (MANY, _YES_NO), 4),
    Move(moves_agents.agent_restarts, (VM, len(SKEWS_MS)), 1.2, is_fault=True),
    Move(moves_agents.agent_overlaps, (VM, len(SKEWS_MS)), 0.8, is_fault=True),
    Move(moves_agents.agent_takes_over, (VM, 3, 3), 0.8, is_fault=True),
    Move(moves_agents.agent_dies, (VM, 2), 0.5, is_fault=True),
    Move(moves_agents.dormant_wakes, (VM,), 2),
    Move(moves_agents.published_restarts, (VM, 4), 1.0, is_fault=True),
    Move(moves_agents.published_dies, (VM,), 0.2, is_fault=True),
    Move(moves_cluster.scheduler_restarts, (_YES_NO, VM), 0.5, is_fault=True),
    Move(moves_cluster.daemons_change_over_a_restart, (VM, 3, 3), 0.4, is_fault=True),
    Move(moves_cluster.daemons_live_on_over_a_restart, (VM, _WANT, _WANT, _YES_NO, 3), 0.8, is_fault=True),
    Move(moves_cluster.vm_is_replaced, (VM, _YES_NO, 3, len(POOLS_OF_BIRTHS)), 0.6, is_fault=True),
    Move(moves_cluster.vm_is_edited, (VM, _WANT, _YES_NO), 0.6, is_fault=True),
    Move(moves_cluster.growth_is_switched, (4,), 0.4, is_fault=True),
    Move(moves_cluster.bounds_change, (VM, len(MAXIMA)), 0.4, is_fault=True),
    Move(moves_cluster.vm_is_tied, (VM, 3, _YES_NO), 0.5),
    Move(moves_cluster.vm_vanishes, (VM, 4), 0.5, is_fault=True),
    Move(moves_cluster.vm_vanishes_while_a_packet_is_under_way, (VM, _WANT), 0.5, is_fault=True),
    Move(moves_cluster.vm_returns, (VM,), 4),
    Move(moves_cluster.late_news, (MANY,), 1.5),
    Move(moves_cluster.pod_comes, (3, len(POD_AMOUNTS), _YES_NO), 0.4, is_fault=True),
    Move(moves_cluster.pod_ends, (3, _YES_NO), 0.5),
    Move(moves_cluster.node_changes, (3, len(STEPS)), 0.3, is_fault=True),
    Move(moves_placing.pod_is_placed, (3, len(PLACED_AMOUNTS), 6, _YES_NO), 1.0),
    Move(moves_placing.vm_is_placed, (VM, len(PLACED_AMOUNTS), len(POOLS_OF_BIRTHS), 6), 1.5),
    Move(moves_placing.binding_is_accepted, (MANY,), 1.0),
    Move(moves_placing.binding_is_lost, (MANY,), 0.2, is_fault=True),
    Move(moves_placing.binding_is_given_up, (MANY,), 0.3, is_fault=True),
    Move(moves_placing.cluster_read_begins, (), 0.8),
    Move(moves_placing.cluster_read_is_told, (MANY,), 1.0),
    Move(moves_placing.binding_comes_to_its_end, (MANY, _ASIDE), 0.5),
    Move(moves_placing.room_is_reserved, (3, len(PLACED_AMOUNTS), _YES_NO), 0.3),
    Move(moves_placing.reservation_is_deleted, (), 0.2, is_fault=True),
    Move(moves_pools.pool_verdict_is_late, (MANY,), 0.4, is_fault=True),
    Move(moves_pools.pool_limit_moves, (_POOLS, len(LIMITS), _YES_NO), 0.6),
    Move(moves_pools.pool_is_changed, (_POOLS, 16, len(OWN_LIMITS), len(PER_VM)), 0.3, is_fault=True),
    Move(moves_pools.pool_is_changed_while_it_is_asked, (_POOLS, len(OWN_LIMITS)), 0.6, is_fault=True),
    Move(moves_pools.pool_goes, (_POOLS, 4), 0.3, is_fault=True),
    Move(moves_pools.pool_comes, (_POOLS,), 1.5),
    Move(moves_pools.vm_is_labelled, (VM, len(LABELS), _YES_NO), 0.6, is_fault=True),
    Move(moves_room.vm_is_described, (VM, len(PRIORITIES), len(MODES), len(NEEDS)), 4),
    Move(moves_room.notice_arrives, (MANY, len(HOWS_OF_NOTICES), _FATE), 12),
    Move(moves_room.node_negotiates, (VM, _WANT, 6, _YES_NO), 6),
    Move(moves_room.quota_is_exceeded, (256, _WANT), 3),
    Move(moves_room.offer_comes_to_its_end, (MANY, _ASIDE), 1),
    Move(moves_room.scheduler_is_restored, (), 0.5),
)
HAND_OVERS: Final = frozenset(
    {
        moves_cluster.daemons_live_on_over_a_restart,
        moves_cluster.vm_vanishes_while_a_packet_is_under_way,
    }
)
HAND_OVERS_EVERY: Final = 2
"""In every second world the moves of `HAND_OVERS` are made as well. With them a minute passes in which nobody says anything: bugs
that need many words in a row show in the other worlds."""
NEGOTIATION: Final = frozenset(move.act for move in MOVES if move.act.__module__ == moves_room.__name__)
NEGOTIATES_EVERY: Final = 5
"""In two of so many worlds agents tell their needs, and notices reach them. In the others all growth that is denied is needed, and room is
offered to deaf ears."""


@dataclass(frozen=True, slots=True)
class Shape:
    """The beginning of a world: units per node, the nodes that serve published agents, and VMs per node.

    Some have the shortest hand-over that the scheduler takes for safe.
    """

    nodes: tuple[tuple[float, float, bool], ...]
    vms_each: int
    has_published: bool = False
    shows_sizes: bool = True
    handover_s: float = HANDOVER_S
    mixes_kinds: bool = True


SHAPES: Final = (
    Shape(((10, 10, False),), 3),
    Shape(((6, 8, False),), 2, handover_s=SAFE_HANDOVER_S),
    Shape(((9, 9, False), (5, 7, False)), 3),
    Shape(((14, 14, True),), 3, has_published=True, mixes_kinds=False),
    Shape(((9, 9, True), (8, 6, False)), 3, has_published=True),
    Shape(((10, 10, False),), 3, shows_sizes=False),
    Shape(((16, 16, False), (12, 12, True), (7, 9, False)), 4, has_published=True),
    Shape(((6, 15, False),), 3, handover_s=SAFE_HANDOVER_S),
    Shape(((15, 6, False), (7, 14, True)), 3, has_published=True),
)


def build(shape: Shape, *, is_known: bool) -> World:
    """A world of that shape; `is_known` says that the scheduler saw the births of its VMs."""
    world = World(shows_sizes=shape.shows_sizes, handover_s=shape.handover_s, mixes_kinds=shape.mixes_kinds)
    for index, (cpus, gib, serves) in enumerate(shape.nodes):
        world.add_node(f"n{index}", cu(cpus, gib), serves_published=serves)
    if is_known:
        world.start_scheduler(is_first=True)
    for number, node in itertools.product(range(shape.vms_each), world.nodes):
        name = PodName(f"vm{len(world.vms)}", "default")
        vm = world.born(
            name,
            node,
            MAXIMA[number % 2],
            unit=cu(2) if number == 2 else None,
            pool=(None, POOL, OTHER)[number % 3],
        )
        vm.asks_apart = len(world.vms) % 3 < 2
        world.vms.append(vm)
        moves_cluster.start_agent(
            world, vm, is_published=node.serves_published and (number % 2 == 0 or not shape.mixes_kinds)
        )
        if is_known:
            world.watch.tell(world.read(vm))
    if not is_known:
        world.start_scheduler()
    return world


class Chooser:
    """Draws moves. `calm` worlds have rarer faults, so that what faults leave behind has time to matter."""

    def __init__(
        self, dice: random.Random, shape: Shape, calm: float, *, hands_over: bool, negotiates: bool
    ) -> None:
        self._draw = dice.random
        moves = [
            move
            for move in MOVES
            if (shape.has_published or not (move.name.startswith("published") or move.name == "look_ends"))
            and (hands_over or move.act not in HAND_OVERS)
            and (negotiates or move.act not in NEGOTIATION)
        ]
        weights = [move.weight * (calm if move.is_fault else 1.0) for move in moves]
        self._moves = moves
        self._bounds = list(itertools.accumulate(weights))
        self._total = self._bounds[-1]

    def next(self) -> tuple[Move, tuple[int, ...]]:
        draw = self._draw
        move = self._moves[bisect.bisect(self._bounds, draw() * self._total)]
        return move, tuple([int(draw() * size) for size in move.sizes])
