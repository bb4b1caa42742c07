"""Moves of pods that are placed, chosen by small numbers."""

from tests.machines.ledger_world import BORN, World
from tests.machines.moves_cluster import ASIDE_S, POOLS_OF_BIRTHS, go_to
from tests.machines.placing_models import AMOUNTS

OFTEN = 4


def pod_is_placed(world: World, node: int, amount: int, kind: int, reserved: int) -> None:
    """Somebody wants room for a pod that is no VM, perhaps that of a reservation."""
    if sum(not pod.has_ended for pod in world.pods) < OFTEN:
        there = world.nodes[node % len(world.nodes)]
        world.binder.place(there, AMOUNTS[amount], is_other_kind=kind == 0, uses_reservation=reserved > 0)


def vm_is_placed(world: World, vm: int, amount: int, pool: int, kind: int) -> None:
    """Somebody wants room for a VM that will take the place of another one."""
    at = vm % len(world.vms)
    if all(binding.place != at for binding in world.binder.bindings):
        world.binder.place(
            world.vms[at].node,
            AMOUNTS[amount].max(BORN),
            place=at,
            pool=POOLS_OF_BIRTHS[pool],
            is_other_kind=kind == 0 and POOLS_OF_BIRTHS[pool] is None,
        )


def binding_is_accepted(world: World, which: int) -> None:
    """The API server binds a pod."""
    if world.binder.bindings:
        world.binder.bind(world.binder.bindings[which % len(world.binder.bindings)])


def binding_is_lost(world: World, which: int) -> None:
    if world.binder.bindings:
        world.binder.lose(world.binder.bindings[which % len(world.binder.bindings)])


def binding_is_given_up(world: World, which: int) -> None:
    """A binder gives the room back."""
    if world.binder.bindings:
        world.binder.forget(world.binder.bindings[which % len(world.binder.bindings)])


def binding_comes_to_its_end(world: World, which: int, aside: int) -> None:
    """A read of everything begins about when the time of a placement ends, and is told at once."""
    if world.binder.bindings:
        binding = world.binder.bindings[which % len(world.binder.bindings)]
        go_to(world, binding.until_s + ASIDE_S[aside])
        world.binder.read_begins()
        cluster_read_is_told(world, len(world.binder.reads) - 1)


def cluster_read_begins(world: World) -> None:
    world.binder.read_begins()


def cluster_read_is_told(world: World, which: int) -> None:
    """A read of everything is told, in any order."""
    if world.binder.reads:
        world.binder.read_is_told(world.binder.reads[which % len(world.binder.reads)])


def room_is_reserved(world: World, node: int, amount: int, is_once: int) -> None:
    there = world.nodes[node % len(world.nodes)]
    world.binder.reserve(there, AMOUNTS[amount], allocate_once=is_once > 0)


def reservation_is_deleted(world: World) -> None:
    world.binder.unreserve()
