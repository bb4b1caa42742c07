"""When faults stop: within bounded time every VM reaches its goal, nobody is stuck, and nothing is left behind."""

from typing import Final

from protocol.values import ZERO, ComputeUnit, Resources, Units
from tests.machines.ledger_observer import LawBrokenError
from tests.simulation.cluster import Node
from tests.simulation.network import Weather
from tests.simulation.vms import UNIT, Vm
from tests.simulation.world import RESERVABLE, World, load_for

BOUND_S: Final = 260.0
"""The longest silence, hand-over and lease after one another, and some ticks."""
ONE: Final = ComputeUnit(UNIT, is_apart=True)
GOALS: Final = (5, 2, 3)
"""Units for the VMs of each node, which has room for their sum."""


def end_faults(world: World) -> None:
    """Everything works from now on, and every guest wants what its node has room for."""
    world.network.weather = Weather()
    world.network.cut_until_s.clear()
    world.pool.limit, world.pool.slow_s, world.pool.silent_until_s = None, 0.1, 0.0
    world.placements.end_all()
    for node, reservable in zip(world.nodes, RESERVABLE, strict=True):
        node.allocatable = reservable
        world.scheduler.node_changed(node)
        for vm, goal in zip(node.vms, _goals(world, node), strict=True):
            vm.refuses_until_s = vm.slow_until_s = vm.keeps_until_s = 0.0
            world.informants[vm.name].guest.set_load(load_for(goal.cpu, goal.memory))
            while len(world.daemons[vm.name]) > 1:
                world.end_daemon(vm)
            if not world.daemons[vm.name]:
                world.start_daemon(vm)
            for life in world.lives(vm):
                life.stops_at_write_s = 0.0


def _goals(world: World, node: Node) -> list[Units]:
    """The wishes of the VMs of a node: tied, the same of both resources; those that are apart swap their memory."""
    apart = [place for place, vm in enumerate(node.vms) if world.unit(vm).is_apart]
    memory = list(GOALS)
    for place, other in zip(apart, (*apart[1:], *apart[:1]), strict=True):
        memory[place] = GOALS[other]
    return [Units(*each) for each in zip(GOALS, memory, strict=True)]


def check(world: World) -> None:
    """The laws that must hold `BOUND_S` later. Raises `LawBrokenError`."""
    process = world.scheduler.process
    wrong = [] if process is not None else ["scheduler: none serves"]
    if process is not None:
        if process.is_idle():
            wrong.append(f"scheduler: {process.is_idle()}")
        wrong += process.core.audit()
    for node in world.nodes:
        wrong += _wrong_on(world, node)
    if wrong:
        raise LawBrokenError("; ".join(wrong))


def _keeps(world: World, vm: Vm) -> bool:
    """Whether the VM keeps what its guest has missed once: the load is constant now, and nobody knows how much less would do."""
    wishes = [wish for life in world.lives(vm) for wish in life.state.informant.wishes]
    return any(wish is not None and wish.is_over and wish.relapses for wish in wishes)


def _wrong_on(world: World, node: Node) -> list[str]:
    wrong: list[str] = []
    is_kept = any(vm.name not in world.published and _keeps(world, vm) for vm in node.vms)
    for vm, units in zip(node.vms, _goals(world, node), strict=True):
        goal = ONE.amount(units)
        if is_kept and vm.name not in world.published:
            goal, lives = vm.size, world.lives(vm)  # the neighbours may wait for its room
            if vm.target != goal or len(lives) != 1 or lives[0].is_stopped or not lives[0].is_registered:
                wrong.append(f"{vm.name}: size {vm.size}, target {vm.target}, {len(lives)} runners live")
            wrong += _wrong_row(world, vm, goal, is_denied=True)
            continue
        wrong += _wrong_row(world, vm, goal)
        if vm.name in world.published:
            if not (vm.size == vm.target == goal and world.published[vm.name].is_at_rest):
                wrong.append(f"{vm.name}: size {vm.size}, target {vm.target}, and its goal is {goal}")
            continue
        lives = world.lives(vm)
        said = "; ".join(str(life.condition()) for life in lives)
        if not (vm.size == vm.target == goal):
            wrong.append(f"{vm.name}: size {vm.size}, target {vm.target}, and its goal is {goal} ({said})")
        if len(lives) != 1 or lives[0].is_stopped:
            wrong.append(f"{vm.name}: {len(lives)} runners live")
        elif lives[0].condition().health.value != "ok" or not lives[0].is_registered:
            wrong.append(f"{vm.name}: its runner is not well: {said}")
    return wrong


def _wrong_row(world: World, vm: Vm, goal: Resources, *, is_denied: bool = False) -> list[str]:
    process = world.scheduler.process
    record = process.core.vms.find(vm.pod) if process is not None else None
    if record is None:
        return [f"{vm.name}: the scheduler does not know it"]
    state = record.row.state
    if state.floors or not record.settled or state.current != goal:
        return [f"{vm.name}: its row is {state.current}, settled {record.settled}, {state.floors}"]
    return (
        [f"{vm.name}: pressure {state.pressure} is left"] if state.pressure != ZERO and not is_denied else []
    )
