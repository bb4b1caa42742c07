"""Moves of pools and of the VMs that wait for them, chosen by small numbers."""

from tests.machines.cluster_models import cu
from tests.machines.core_port import POOL
from tests.machines.ledger_world import World
from tests.machines.moves_agents import pick_vm
from tests.machines.pool_models import ALL, FAILED, NONE, OTHER, SOME, Pool

LIMITS = (None, None, 40, 20, 14, 10, 7, 4, 0)
HOWS = (ALL, ALL, ALL, ALL, SOME, NONE, FAILED)
POOL_UNITS = (cu(1), cu(2), cu(0.5), cu(1, 2))
OWN_LIMITS = (None, None, 30, 12, 8, 5)
PER_VM = (None, None, 8, 4, 2)
LABELS = (POOL, OTHER, None)


def pick_pool(world: World, pool: int) -> Pool:
    pools = list(world.pools.all.values())
    return pools[pool % len(pools)]


def pool_answers(world: World, pool: int, how: int) -> None:
    """The round under way ends, or a whole one begins and ends at once."""
    world.pools.answer(pick_pool(world, pool), HOWS[how])


def pool_verdict_is_formed(world: World, pool: int, how: int) -> None:
    """A chain is asked for all who wait; its verdict is applied later."""
    world.pools.form(pick_pool(world, pool), HOWS[how])


def pool_verdict_is_applied(world: World, pool: int, at: int) -> None:
    """A verdict reaches the next one whom it was formed for, or, out of order, another one."""
    world.pools.serve(pick_pool(world, pool), max(0, at - 3))


def pool_verdict_is_late(world: World, which: int) -> None:
    """A verdict comes once more, or long after nobody waits for it."""
    past = world.pools.past
    if past:
        world.pools.tell(*past[which % len(past)])


def pool_limit_moves(world: World, pool: int, to: int, is_prompt: int) -> None:
    """A chain changes its mind; it answers at once from now on, or takes its time."""
    there = pick_pool(world, pool)
    there.limit, there.is_prompt = LIMITS[to], is_prompt > 0


def pool_is_changed(world: World, pool: int, unit: int, most: int, per_vm: int) -> None:
    there = pick_pool(world, pool)
    if not there.is_there:
        return
    if unit < len(POOL_UNITS):
        there.unit = POOL_UNITS[unit]
    there.max_units, there.max_units_per_vm = OWN_LIMITS[most], PER_VM[per_vm]
    world.pools.change(there)


def pool_is_changed_while_it_is_asked(world: World, pool: int, most: int) -> None:
    """A verdict is formed, the pool is described otherwise, and then the verdict is applied."""
    there = pick_pool(world, pool)
    world.pools.form(there)
    if there.is_there and there.round is not None:
        there.max_units = OWN_LIMITS[most]
        world.pools.change(there)
        world.pools.serve(there)


def pool_goes(world: World, pool: int, how: int) -> None:
    """A pool is being deleted, or is gone, or is gone and made anew at once."""
    there = pick_pool(world, pool)
    if there.is_there and how == 0:
        there.is_deleting = True
        world.pools.change(there)
    elif there.is_there:
        world.pools.go(there)
        if how > 1:
            world.pools.come(there)


def pool_comes(world: World, pool: int) -> None:
    """A pool that is gone, or being deleted, is made anew."""
    there = pick_pool(world, pool)
    if there.is_there and there.is_deleting:
        world.pools.go(there)
    if not there.is_there:
        world.pools.come(there)


def vm_is_labelled(world: World, vm: int, to: int, is_told: int) -> None:
    """A VM is labelled with another pool, or with none; the scheduler is told at once or with the next read."""
    there = pick_vm(world, vm)
    if not there.is_gone and there.pool != LABELS[to]:
        world.pools.label(there, LABELS[to])
        if is_told and not there.is_vanished and there not in world.untold_births:
            world.watch.tell(world.read(there))
