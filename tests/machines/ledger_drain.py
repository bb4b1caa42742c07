"""The end of each run: faults stop, and everything must come right.

First every VM wants much: it gets it or carries a reason. Then one VM of each node wants all the rest and the others
little, which the node can bear and for which the chains of the pools have just enough room: everybody gets exactly that,
so what was released must have been given back. Then the first VM takes all that it may have of one resource alone, and the
second wants all of both: where its resources are apart it gets all that is left of each, where they are tied one number of
units. At the end every row is settled, no floor keeps more than a permit, no runner is dormant, and nobody waits for a
verdict that never came.
"""

from protocol.values import ZERO, Resources
from tests.machines import ledger_laws, ledger_pods
from tests.machines.agent_models import ExtendedAgent
from tests.machines.cluster_models import UNIT, Node, Vm
from tests.machines.ledger_observer import LawBrokenError
from tests.machines.ledger_world import World
from tests.machines.permit_laws import owed
from tests.machines.published_models import Phase, PublishedAgent

ROUND_S = 6.0
HELD_S = 4.0
_GREEDY_ROUNDS = 5
# Longer than a hand-over, a silence and a command deadline after anybody from before was last heard.
_MODEST_ROUNDS = 15
_LOPSIDED_ROUNDS = 3
_LAST_ROUNDS = 1


def drain(world: World) -> None:
    """Bring a world to rest and check it. Raises `LawBrokenError`."""
    _end_faults(world)
    greedy = {vm.uid: vm.bounds.max for vm in world.vms}
    _check_nobody_waits(world)
    for _ in range(_GREEDY_ROUNDS):
        _round(world, greedy)
    for vm in world.vms:
        if not (_is_at(vm, greedy[vm.uid]) or _has_reason(vm)):
            raise LawBrokenError(
                f"{_told(world, vm)}: it does not reach {greedy[vm.uid]} and carries no reason"
            )
    modest = _modest_goals(world)
    _reach(world, modest, _MODEST_ROUNDS)
    for vm in world.vms:
        _check_rest(world, vm)
    _one_resource_alone(world)
    for node in world.nodes:
        buffer = world.port.node_buffer(node.name)
        if buffer != ZERO:
            raise LawBrokenError(f"{node.name}: floors keep {buffer} above the permits for ever")
    if world.port.is_pending():
        raise LawBrokenError("something is kept for a request that nobody waits for")
    ledger_laws.check_audit(world)


def _reach(
    world: World, goals: dict[str, Resources], rounds: int, wants: dict[str, Resources] | None = None
) -> None:
    """Everybody asks for what it `wants`, its goal where nothing else is said, and all are at their goals in the end."""
    _fit_pools(world, goals)
    for _ in range(rounds):
        _round(world, wants or goals)
    for vm in world.vms:
        if not _is_at(vm, goals[vm.uid]):
            raise LawBrokenError(
                f"{_told(world, vm)}: it does not reach {goals[vm.uid]}, which its node can bear"
            )


def _one_resource_alone(world: World) -> None:
    """On each node the first VM grows one resource as far as it can. What that leaves, the second VM gets by its kind."""
    goals = {vm.uid: vm.bounds.min for vm in world.vms}
    places = [[vm for vm in world.vms if vm.node is node] for node in world.nodes]
    for index, (first, *_) in enumerate(places):
        least, most = first.bounds.min, _the_rest(world, first.node, places[index])
        alone = (most.vcpu_milli, least.memory_bytes) if index % 2 else (least.vcpu_milli, most.memory_bytes)
        goals[first.uid] = Resources(*alone)
    _reach(world, goals, _LOPSIDED_ROUNDS)
    wants = dict(goals)
    for _, second, *_ in places:
        wants[second.uid] = second.bounds.max
        room, step = world.port.room(second.spec), second.unit or UNIT
        is_apart = second.published is None and second.agents[-1].is_apart and not second.is_tied
        goals[second.uid] = owed(second.size, second.bounds.max, step, room, apart=is_apart)
    _reach(world, goals, _LAST_ROUNDS, wants)


def _end_faults(world: World) -> None:
    """The network delivers, one agent lives for each VM, and the cluster shows everything."""
    world.packets, world.answers = [], []
    world.switch_growth(is_stopped=False)
    world.binder.drain()
    for pool in world.pools.all.values():
        pool.waiting, pool.round, pool.is_prompt = [], None, False  # no verdict comes for those who wait
        pool.max_units = pool.max_units_per_vm = None
        if pool.is_there and not pool.is_deleting:
            world.pools.change(pool)
        else:
            world.pools.come(pool)
    for pod in list(world.pods):
        if pod.has_ended or not pod.is_told:
            ledger_pods.pod_is_told(world, pod)
    for vm in world.untold_deaths:
        world.tell_death(vm)
    world.untold_deaths = []
    for vm in world.vms:
        vm.is_vanished = False
        if vm.agents and vm.published is not None:
            world.published_dies(vm)
        if vm.published is not None and vm.published.usage != vm.target:
            world.published_dies(vm)  # it never learns of an edit
            world.published_starts(vm)
        for agent in vm.agents[:-1]:
            world.dies(agent)
        if vm.agents and vm.agents[0].fences != vm.fences:
            world.dies(vm.agents[0])  # a life that died later fenced it off: its daemon starts another one
        if not vm.agents and vm.published is None:
            world.new_life(vm, round(world.now_s * 1000))


def _check_nobody_waits(world: World) -> None:
    """The clock answers every request whose verdict does not come."""
    world.pass_time(ROUND_S)
    if world.asking or world.port.is_pending():
        raise LawBrokenError("a request waits for ever for a verdict that does not come")


def _fit_pools(world: World, goals: dict[str, Resources]) -> None:
    """Each pool may hold what the goals take of it, and its chain admits that and no more."""
    for pool in world.pools.all.values():
        parts = [goals[vm.uid].units(pool.unit) for vm in world.vms if vm.pool == pool.name]
        pool.limit, pool.max_units, pool.max_units_per_vm = (
            sum(parts),
            sum(parts) or None,
            max(parts, default=None),
        )
        world.pools.change(pool)


def _round(world: World, goals: dict[str, Resources]) -> None:
    """Everybody asks, and then the pools answer: those of one pool wait together."""
    world.pass_time(ROUND_S)
    for vm in world.vms:
        for command in list(vm.commands):
            vm.end(command, lands=True)
        vm.set_size(vm.target)
    world.watch.tell_all()
    for _ in range(2):  # who has just started wants to be named, or names first what is in use
        for vm in world.vms:
            if vm.published is not None:
                _published_asks(world, vm.published, goals[vm.uid])
            else:
                _agent_asks(world, vm.agents[-1], goals[vm.uid])
        _pools_answer(world)
        for vm in world.vms:
            if vm.published is not None:
                _published_resizes(world, vm.published)
            else:
                _resize(world, vm.agents[-1], goals[vm.uid])
    world.watch.tell_all()


def _agent_asks(world: World, agent: ExtendedAgent, goal: Resources) -> None:
    if agent.is_dormant:
        if world.now_s < agent.dormant_since_s + 1.0:
            return
        agent = world.wake(agent)
    world.observe(agent)
    _resize(world, agent, goal)
    world.observe(agent)
    returned = world.deliver(agent.ask(goal, world.now_s), is_taken=True)
    if returned is not None:
        world.takes(returned)


def _pools_answer(world: World) -> None:
    for pool in world.pools.all.values():
        while pool.waiting:
            world.pools.answer(pool)


def _resize(world: World, agent: ExtendedAgent, goal: Resources) -> None:
    vm = agent.vm
    command = world.resize(agent, goal)
    if command is not None:
        vm.end(command, lands=True)
        vm.set_size(vm.target)


def _published_asks(world: World, agent: PublishedAgent, goal: Resources) -> None:
    if agent.phase is Phase.ENDED:
        world.published_dies(agent.vm)
        agent = world.published_starts(agent.vm)
    agent.wants = goal
    _published_resizes(world, agent)
    if agent.is_idle:
        waiting = world.published_asks(agent)
        if waiting is not None:
            world.published_look_ends(waiting, is_answered=True)
            if waiting in world.waiting:  # held for a look that may help
                world.pass_time(HELD_S)
                world.published_look_ends(waiting, is_answered=True)


def _published_resizes(world: World, agent: PublishedAgent) -> None:
    command = agent.command or world.published_resizes(agent)
    if command is not None:
        agent.vm.end(command, lands=True)
        agent.vm.set_size(agent.vm.target)


def _modest_goals(world: World) -> dict[str, Resources]:
    """The first VM of each node takes what the others leave at their least, in whole units; else the least, too."""
    goals = {vm.uid: vm.bounds.min for vm in world.vms}
    for node in world.nodes:
        there = [vm for vm in world.vms if vm.node is node]
        if there:
            goals[there[0].uid] = _the_rest(world, node, there)
    return goals


def _the_rest(world: World, node: Node, there: list[Vm]) -> Resources:
    first, room = there[0], node.reservable
    for pod in world.pods:
        if pod.node is node:
            room -= pod.spec.requests
    for vm in there[1:]:
        room -= vm.bounds.min
    room, unit = room.min(first.bounds.max), first.unit or UNIT
    units = min(room.vcpu_milli // unit.vcpu_milli, room.memory_bytes // unit.memory_bytes)
    return (unit * units).max(first.bounds.min)


def _is_at(vm: Vm, goal: Resources) -> bool:
    return vm.size == vm.target == goal


def _has_reason(vm: Vm) -> bool:
    if vm.published is not None:
        return vm.published.is_denied or vm.published.phase is Phase.ENDED
    return bool(vm.agents[-1].codes)


def _check_rest(world: World, vm: Vm) -> None:
    glance = world.port.glance(vm.spec, vm.holder)
    if glance is None or not glance.is_settled:
        raise LawBrokenError(f"{_told(world, vm)}: it stays unsettled")
    if any(agent.is_dormant for agent in vm.agents):
        raise LawBrokenError(f"{_told(world, vm)}: its runner stays dormant")


def _told(world: World, vm: Vm) -> str:
    return f"{vm.name.name} on {vm.node.name} of {vm.node.reservable} ({world.port.describe(vm.holder)}, size {vm.size})"
