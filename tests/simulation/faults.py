"""The menu: everything that can go wrong, and what guests may want. Each happening befalls a VM, or its node."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from protocol.values import ComputeUnit, Resources, Units
from tests.simulation.network import Weather
from tests.simulation.vms import UNIT, Vm
from tests.simulation.world import World, load_for

ONE: Final = ComputeUnit(UNIT, is_apart=True)


def _span_s(long: float, least: float, most: float) -> float:
    return least + (most - least) * long


# ---------------------------------------------------------------- load


def load_moves(world: World, vm: Vm, much: float, long: float) -> None:
    """The guest wants another size, of each resource its own."""
    memory = (much * 7.3 + long) % 1.0  # far from the CPUs as often as near
    world.informants[vm.name].guest.set_load(load_for(1 + int(much * 8), 1 + int(memory * 8)))


def _wants(world: World, vm: Vm, share: float, long: float) -> None:
    """The guest wants this share of its largest size: of CPU, of memory, or of both; of the other it wants little."""
    units = 1 + int(share * 8)
    cpu, memory = (units, units) if long < 0.6 else (units, 1) if long < 0.8 else (1, units)
    world.informants[vm.name].guest.set_load(load_for(cpu, memory))


def vm_wants_much(world: World, vm: Vm, much: float, long: float) -> None:
    """The guest wants nearly all that it may have."""
    _wants(world, vm, 0.6 + 0.4 * much, long)


def vm_wants_little(world: World, vm: Vm, much: float, long: float) -> None:
    _wants(world, vm, 0.5 * much, long)


def neighbours_want_much(world: World, vm: Vm, much: float, long: float) -> None:
    """The other guests of the node want all that there is."""
    for other in world.vms:
        if other.spec.node == vm.spec.node and other is not vm:
            _wants(world, other, 0.7 + 0.3 * much, long)


# ---------------------------------------------------------------- the network


def cut_off(world: World, vm: Vm, much: float, long: float) -> None:
    """The VM's agents reach no scheduler for a while."""
    del much
    world.network.cut_until_s[vm.name] = world.clock.now_s + _span_s(long, 5, 130)


def requests_are_lost(world: World, vm: Vm, much: float, long: float) -> None:
    del vm
    world.network.weather = Weather(world.clock.now_s + _span_s(long, 5, 40), lost_request=0.2 + 0.6 * much)


def replies_are_lost(world: World, vm: Vm, much: float, long: float) -> None:
    """Replies are lost, and what was granted is known to one side only."""
    del vm
    world.network.weather = Weather(world.clock.now_s + _span_s(long, 5, 40), lost_reply=0.2 + 0.6 * much)


def requests_are_late(world: World, vm: Vm, much: float, long: float) -> None:
    """Requests arrive when nobody waits for their answers any more, perhaps long after."""
    del vm
    until_s = world.clock.now_s + _span_s(long, 5, 40)
    world.network.weather = Weather(until_s, late_request=0.5, late_s=10 + 60 * much)


def replies_are_late(world: World, vm: Vm, much: float, long: float) -> None:
    del vm
    until_s = world.clock.now_s + _span_s(long, 5, 40)
    world.network.weather = Weather(until_s, late_reply=0.3 + 0.6 * much, late_s=3.9)


# ---------------------------------------------------------------- processes


def scheduler_is_killed(world: World, vm: Vm, much: float, long: float) -> None:
    del vm, much
    world.scheduler.kill(_span_s(long**3, 0.2, 45))


def scheduler_stops(world: World, vm: Vm, much: float, long: float) -> None:
    del vm, much
    if world.scheduler.process is not None:
        world.scheduler.process.stop(_span_s(long, 1, 70))


def agent_is_killed(world: World, vm: Vm, much: float, long: float) -> None:
    """The daemon is killed, and another one begins."""
    del much
    world.end_daemon(vm)
    world.clock.after(_span_s(long**3, 0.2, 80), lambda: _starts_if_none(world, vm))


def _starts_if_none(world: World, vm: Vm) -> None:
    if not world.daemons[vm.name]:
        world.start_daemon(vm)


def agent_overlaps(world: World, vm: Vm, much: float, long: float) -> None:
    """A second daemon begins beside the first, without a common lock; one of them ends after a while."""
    if len(world.daemons[vm.name]) > 1:
        return
    world.start_daemon(vm)
    index = 0 if much < 0.7 else -1

    def ends() -> None:
        if len(world.daemons[vm.name]) > 1:
            world.end_daemon(vm, index)

    world.clock.after(_span_s(long, 1, 60), ends)


def agent_stops(world: World, vm: Vm, much: float, long: float) -> None:
    """The agent's process is stopped for a while."""
    del much
    for life in world.lives(vm):
        life.stop(_span_s(long, 1, 90))


def agent_stops_before_a_write(world: World, vm: Vm, much: float, long: float) -> None:
    """The agent's process is stopped between its next decision to resize and the write."""
    del much
    for life in world.lives(vm):
        life.stops_at_write_s = _span_s(long, 1, 110)


def informant_restarts(world: World, vm: Vm, much: float, long: float) -> None:
    """The informant is killed and comes back."""
    del much
    world.informants[vm.name].restart(_span_s(long, 0.2, 10))


# ---------------------------------------------------------------- VMs, nodes, pods


def lowered_by_hand(world: World, vm: Vm, much: float, long: float) -> None:
    """Somebody lowers the VM behind everybody's back. A published runner never learns of that: its VM is spared."""
    del long
    if vm.name in world.published:
        return
    standing = vm.target.min(vm.size)
    lowered = ONE.amount(
        Units(
            *(
                1 + int(much * (units - 1))
                for units in (standing.vcpu_milli // 1000, standing.memory_bytes // 2**30)
            )
        )
    )
    if lowered != standing:
        vm.edit(lowered)


def backend_refuses(world: World, vm: Vm, much: float, long: float) -> None:
    """The back end takes no resizes."""
    del much
    vm.refuses_until_s = world.clock.now_s + _span_s(long, 1, 60)


def backend_is_slow(world: World, vm: Vm, much: float, long: float) -> None:
    """Looks fail, and resizes are accepted after their sender gave them up."""
    del much
    vm.slow_until_s = world.clock.now_s + _span_s(long, 5, 100)


def guest_keeps_memory(world: World, vm: Vm, much: float, long: float) -> None:
    del much
    vm.keeps_until_s = world.clock.now_s + _span_s(long, 5, 60)


def agent_is_told_another_kind(world: World, vm: Vm, much: float, long: float) -> None:
    """The VM's description for its agents changes for a while: its resources are apart, or not any more."""
    del much
    before = vm.agent_vm.unit.is_apart
    world.set_kind(vm, is_apart=not before)
    world.clock.after(_span_s(long, 1, 60), lambda: world.set_kind(vm, is_apart=before))


def cluster_ties(world: World, vm: Vm, much: float, long: float) -> None:
    """The cluster says for a while that the VM is tied, whatever its agents ask for."""
    del much
    world.set_kind(vm, is_tied=True)
    world.clock.after(_span_s(long, 1, 60), lambda: world.set_kind(vm, is_tied=False))


def not_shown(world: World, vm: Vm, much: float, long: float) -> None:
    """The cluster does not show the VM for a while."""
    del much
    if vm.name not in world.published:  # it is told that its pod is gone, and ends
        world.hiding.hide(vm, _span_s(long**2, 1, 80))


def restarted_while_not_shown(world: World, vm: Vm, much: float, long: float) -> None:
    """The scheduler is started again just while the cluster does not show the VM."""
    if vm.name not in world.published:
        world.hiding.hide(vm, _span_s(long, 2, 25))
    world.scheduler.kill(_span_s(much, 0.1, 3))


def pod_is_placed(world: World, vm: Vm, much: float, long: float) -> None:
    node = next(node for node in world.nodes if node.name == vm.spec.node)
    amount = (UNIT * (1 + int(3 * much))).max(Resources(500, 0))
    world.placements.want(node, amount, _span_s(long, 20, 200), world.cluster_dice)


def node_shrinks(world: World, vm: Vm, much: float, long: float) -> None:
    """The configuration leaves less of the node for a while."""
    node = next(node for node in world.nodes if node.name == vm.spec.node)
    whole, by = node.allocatable, UNIT * (1 + int(3 * much))
    if whole.vcpu_milli < 8000:
        return
    node.allocatable = whole - by
    world.scheduler.node_changed(node)

    def grows_back() -> None:
        node.allocatable += by
        world.scheduler.node_changed(node)

    world.clock.after(_span_s(long, 20, 120), grows_back)


def watch_lags(world: World, vm: Vm, much: float, long: float) -> None:
    """The scheduler is told late of what happens in the cluster."""
    del vm
    if world.scheduler.process is not None:
        watch = world.scheduler.process.watch
        watch.lag_s, watch.lag_until_s = 5 + 30 * much, world.clock.now_s + _span_s(long, 10, 60)


def pool_limit_moves(world: World, vm: Vm, much: float, long: float) -> None:
    """The pool admits another total, and takes its time."""
    del vm
    world.pool.limit, world.pool.slow_s = 2 + int(14 * much), 3 * long**2


def pool_is_described_anew(world: World, vm: Vm, much: float, long: float) -> None:
    """The pool has another description while its plugins take their time over the one before."""
    del vm
    world.pool.slow_s = 3 * long
    for number in range(1 + int(8 * much)):
        world.clock.after(4.0 * number, lambda: _described_anew(world))


def _described_anew(world: World) -> None:
    world.pool.generation += 1
    world.scheduler.pool_changed()


def pool_is_silent(world: World, vm: Vm, much: float, long: float) -> None:
    """The pool gives no answers for a while, and none ever to what was asked meanwhile."""
    del vm, much
    world.pool.silent_until_s = world.clock.now_s + _span_s(long, 2, 40)


# ---------------------------------------------------------------- the menu


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of happening and how often it is drawn as a fault."""

    act: Callable[[World, Vm, float, float], None]
    weight: float = 0.0


MENU: Final = {
    kind.act.__name__: kind
    for kind in (
        Kind(load_moves),
        Kind(vm_wants_much),
        Kind(vm_wants_little),
        Kind(neighbours_want_much),
        Kind(cut_off, 3),
        Kind(requests_are_lost, 1),
        Kind(replies_are_lost, 1.5),
        Kind(requests_are_late, 2),
        Kind(replies_are_late, 1),
        Kind(scheduler_is_killed, 2),
        Kind(scheduler_stops, 1),
        Kind(agent_is_killed, 1.5),
        Kind(agent_overlaps, 1.5),
        Kind(agent_stops, 1),
        Kind(agent_stops_before_a_write, 2),
        Kind(informant_restarts, 0.7),
        Kind(lowered_by_hand, 2.5),
        Kind(backend_refuses, 0.7),
        Kind(backend_is_slow, 1.5),
        Kind(guest_keeps_memory, 0.5),
        Kind(agent_is_told_another_kind, 1),
        Kind(cluster_ties, 1),
        Kind(not_shown, 0.7),
        Kind(restarted_while_not_shown, 0.7),
        Kind(pod_is_placed, 2),
        Kind(node_shrinks, 0.7),
        Kind(watch_lags, 1),
        Kind(pool_limit_moves, 0.7),
        Kind(pool_is_silent, 0.7),
        Kind(pool_is_described_anew),
    )
}
