"""Moves of the clock, the scheduler and the cluster, chosen by small numbers."""

import itertools

from protocol.values import ZERO
from tests.machines import ledger_pods
from tests.machines.cluster_models import UNIT, Vm, cu
from tests.machines.core_port import HANDOVER_S, POOL
from tests.machines.ledger_world import BORN, World
from tests.machines.moves_agents import (
    ANSWER_LOST,
    ANSWERED,
    FATES,
    SPANS_S,
    UNDER_WAY,
    agent_asks,
    agent_asks_again,
    agent_goes_down,
    agent_overlaps,
    agent_takes_over,
    amount_for,
    neighbours_go_up,
    pick_vm,
)
from tests.machines.pool_models import OTHER

POD_AMOUNTS = (cu(1), cu(3), cu(0.5, 2), cu(4, 1))
STEPS = (0, 1, -1, -3)
MAXIMA = (cu(8), cu(4), cu(6, 5), cu(2), cu(8, 3), cu(3, 8))
POOLS_OF_BIRTHS = (None, None, POOL, OTHER)
VANISHES_OVER_A_START = False
"""Whether the scheduler restarts while the cluster does not show a VM, which returns at once: else that is rare."""
LONGER_THAN_LEASES_S = HANDOVER_S + 1.0
ASIDE_S = (-4.0, -0.125, 0.0, 0.125)
"""How long before or after a moment at which something ends the clock stops."""
_MOST_PODS = 3


def time_passes(world: World, span: int, ticks: int) -> None:
    """Time passes, and the scheduler looks at its clock, or is late."""
    world.pass_time(SPANS_S[span], ticks=ticks > 0)


def time_goes_to_an_end(world: World, which: int, aside: int) -> None:
    """Time passes to about the moment at which a lease, a command or a placement ends."""
    ends_s = [agent.lease_until_s for vm in world.vms for agent in vm.agents if agent.held != ZERO]
    ends_s += [command.until_s for vm in world.vms for command in vm.commands]
    ends_s += [binding.until_s for binding in world.binder.bindings]
    if ends_s:
        go_to(world, ends_s[which % len(ends_s)] + ASIDE_S[aside])


def go_to(world: World, at_s: float) -> None:
    """Time passes until `at_s`, where that is not over."""
    if at_s > world.now_s:
        world.pass_time(at_s - world.now_s)


def read_begins(world: World, vm: int) -> None:
    """A read of a VM begins; what it shows is told later."""
    world.watch.begin(pick_vm(world, vm))


def reading_is_told(world: World, which: int) -> None:
    """The scheduler is told what a read showed, in any order."""
    if world.watch.pending:
        world.watch.tell(world.watch.pending.pop(which % len(world.watch.pending)))


def all_is_read(world: World) -> None:
    """A fresh look at everything, told at once."""
    world.watch.tell_all()


def scheduler_restarts(world: World, is_cached: int, behind: int) -> None:
    """Another process takes over. The cache that it may begin with may not have one of the VMs yet."""
    pick_vm(world, behind).cached = None
    world.start_scheduler(is_cached=is_cached > 0)


def daemons_change_over_a_restart(world: World, vm: int, before: int, after: int) -> None:
    """The scheduler restarts; the runner of a VM asks the new one so often, and then that of a second daemon does."""
    if _do_clocks_contradict_fences(world, vm):
        return
    world.start_scheduler()
    agent_takes_over(world, vm, before, after)


def _do_clocks_contradict_fences(world: World, vm: int) -> bool:
    """Whether by a wrong clock a life that is fenced off counts as the later one: it may be permitted more, and can use nothing of it."""
    lives = sorted(pick_vm(world, vm).agents, key=lambda life: life.started_ms)
    return any(one.fences > other.fences for one, other in itertools.pairwise(lives))


def daemons_live_on_over_a_restart(
    world: World, vm: int, want: int, neighbours: int, is_older: int, is_long: int
) -> None:
    """Two daemons serve a small VM. One of them gets more just before the scheduler restarts, the other one asks the new one first.

    `is_older` says that the older one gets it. Most often every lease from before the two is over by then. The neighbours want
    what is left.
    """
    agent_goes_down(world, vm, 0, 0)
    if is_older:
        agent_overlaps(world, vm, 0)
    if is_long:
        world.pass_time(LONGER_THAN_LEASES_S)
    if not is_older:
        agent_overlaps(world, vm, 0)
    if _do_clocks_contradict_fences(world, vm):
        return
    agent_asks(world, vm, is_older, want, 0)
    world.start_scheduler()
    for _ in range(2):
        agent_asks_again(world, vm, 1 - is_older, 0)
    neighbours_go_up(world, vm, neighbours)


def vm_is_edited(world: World, vm: int, amount: int, at_once: int) -> None:
    """Somebody sets a VM's target.

    Not while a command of a published agent has the old or the new target: it is written blind, and who observes one of
    the two could not tell whose it is. Nor does such an agent ever learn of a lower target: it is spared.
    """
    there, to = pick_vm(world, vm), amount_for(pick_vm(world, vm), amount)
    blind = [command.target for command in there.commands if command.is_published]
    if there.is_gone or to in blind or there.target in blind:
        return
    if there.published is not None:
        to = to.max(there.target)
    if to != there.target:
        world.edit(there, to)
        if at_once:
            there.set_size(to)


def growth_is_switched(world: World, stopped: int) -> None:
    """The configuration stops growth, or lets it go on (more often)."""
    world.switch_growth(is_stopped=stopped == 0)


def bounds_change(world: World, vm: int, most: int) -> None:
    there = pick_vm(world, vm)
    if not there.is_gone:
        world.change_bounds(there, MAXIMA[most])


def vm_is_tied(world: World, vm: int, is_tied: int, is_told: int) -> None:
    """A VM's resources are tied from now on, or not any more; the scheduler is told at once or with the next read."""
    there = pick_vm(world, vm)
    if not there.is_gone:
        there.set_tied(is_tied=is_tied == 0)
        if is_told and not there.is_vanished and there not in world.untold_births:
            world.watch.tell(world.read(there))


def vm_vanishes(world: World, vm: int, how: int) -> None:
    """The cluster ceases to show a VM for a while, or for a moment; then a late packet of its agent arrives, or another daemon takes over."""
    there = pick_vm(world, vm)
    if not (there.is_gone or there.is_vanished or there in world.untold_births):
        world.vanish(there)
        if VANISHES_OVER_A_START:
            world.start_scheduler()
        if VANISHES_OVER_A_START or how > 0:
            _returns(world, there)
        late = [packet for packet in world.packets if packet.agent.vm is there]
        if how > 2:
            agent_asks_again(world, vm, 0, FATES.index(ANSWER_LOST))
            agent_takes_over(world, vm, 0, 1)
        elif how > 1 and late:
            world.deliver(late[0])


def vm_vanishes_while_a_packet_is_under_way(world: World, vm: int, want: int) -> None:
    """The agent of a small VM asks for that, and is permitted more before the packet arrives: after a moment in which the VM was not shown."""
    agent_goes_down(world, vm, 0, 0)
    sent = len(world.packets)
    agent_asks(world, vm, 0, 0, FATES.index(UNDER_WAY))
    late = world.packets[sent:]
    agent_asks(world, vm, 0, want, FATES.index(ANSWERED))
    vm_vanishes(world, vm, 1)
    for packet in late:
        world.deliver(packet)


def vm_returns(world: World, which: int) -> None:
    """The cluster shows a VM again that had vanished, with the same UID."""
    vanished = [vm for vm in world.vms if vm.is_vanished and not vm.is_gone]
    if vanished:
        _returns(world, vanished[which % len(vanished)])


def _returns(world: World, vm: Vm) -> None:
    vm.is_vanished = False
    world.watch.tell(world.read(vm))


def vm_is_replaced(world: World, vm: int, is_late: int, death: int, pool: int) -> None:
    """A VM goes and another one begins under its name, perhaps in another pool.

    Either may be told late, and the death never.
    """
    at = vm % len(world.vms)
    old = world.vms[at]
    if old in world.untold_births:
        world.untold_births.remove(old)
    world.dead(old)
    if death == 0:
        world.tell_death(old)
    elif death == 1:
        world.untold_deaths.append(old)
    new = world.vms[at] = world.born(
        old.name, old.node, old.bounds.max, BORN, unit=old.unit, pool=POOLS_OF_BIRTHS[pool] or old.pool
    )
    new.asks_apart = old.asks_apart
    del world.by_uid[old.uid]
    start_agent(world, new, is_published=old.node.serves_published and old.published is not None)
    if is_late:
        world.untold_births.append(new)
    else:
        world.watch.tell(world.read(new))


def start_agent(world: World, vm: Vm, *, is_published: bool) -> None:
    if is_published:
        world.published_starts(vm)
    else:
        world.new_life(vm, round(world.now_s * 1000))


def late_news(world: World, which: int) -> None:
    """A birth, a death or a pod is told at last."""
    if world.untold_births:
        vm = world.untold_births.pop(which % len(world.untold_births))
        world.watch.tell(vm.cached or world.read(vm))
    if world.untold_deaths:
        world.tell_death(world.untold_deaths.pop(which % len(world.untold_deaths)))
    untold = [pod for pod in world.pods if pod.has_ended or not pod.is_told]
    if untold:
        ledger_pods.pod_is_told(world, untold[which % len(untold)])


def pod_comes(world: World, node: int, amount: int, is_late: int) -> None:
    """A pod begins that bypassed the scheduler."""
    if len(world.pods) < _MOST_PODS:
        pod = ledger_pods.pod_comes(world, world.nodes[node % len(world.nodes)], POD_AMOUNTS[amount])
        if not is_late:
            ledger_pods.pod_is_told(world, pod)


def pod_ends(world: World, which: int, is_late: int) -> None:
    """A pod runs to its end; it may stay listed for a while, terminal."""
    running = [pod for pod in world.pods if not pod.has_ended]
    if running:
        pod = running[which % len(running)]
        ledger_pods.pod_ends(world, pod)
        if not is_late:
            ledger_pods.pod_is_told(world, pod)


def node_changes(world: World, node: int, by: int) -> None:
    """A node's configuration is loaded again: it may reserve some units more or less than it did at first."""
    there = world.nodes[node % len(world.nodes)]
    reservable = (there.born_with + UNIT * STEPS[by]).max(UNIT)
    if reservable != there.reservable:
        world.change_node(there, reservable)
