"""Laws of quotas by amounts as time passes: asks, shrinks and cool-downs in any order, through the queue and the plugin."""

from hypothesis import given, settings
from hypothesis import strategies as st

from protocol.values import ZERO, Resources
from tests.support.amounts import cu
from tests.support.virtual_time import now_s, virtually
from tests.unit.scheduler_pools.pool_worlds import until
from tests.unit.scheduler_pools.test_quota_amounts import Quotas

TEXT = """
computeUnit: {cpu: 1, memory: 1Gi}
tenants:
- {name: org, limits: {units: 48, cpu: 12, memory: 32Gi}}
- {name: a, parent: org, guarantees: {units: 8, cpu: 2, memory: 8Gi}, weight: 2}
- {name: b, parent: org, guarantees: {units: 4, cpu: 4, memory: 2Gi}}
- {name: c, parent: org, limits: {units: 24, memory: 12Gi}}
"""
GUARANTEED = {"a": (8, cu(2, 8)), "b": (4, cu(4, 2)), "c": (0, ZERO)}
LIMIT = cu(12, 32)
LIMIT_OF_C = 12

_half_units = st.integers(1, 60).map(lambda halves: halves / 2)
_asks = st.tuples(st.sampled_from("abc"), st.integers(1, 2), _half_units, _half_units, st.booleans())
_steps = st.lists(_asks | st.sampled_from([1.0, 20.0, 61.0, 130.0]), min_size=1, max_size=25)


async def opened() -> Quotas:
    """Two pools of each tenant, with one small VM each."""
    world = await Quotas.of(TEXT, **{f"{tenant}{number}": tenant for tenant in "abc" for number in (1, 2)})
    for tenant in "abc":
        for number in (1, 2):
            world.vm(f"{tenant}{number}", f"{tenant}{number}", cu(0.5, 0.5))
    return world


def held(world: Quotas, tenant: str) -> tuple[int, Resources]:
    accounts = [account for account in world.core.ledger.pools() if account.name.startswith(tenant)]
    amount = ZERO
    for account in accounts:
        amount += account.amount
    return sum(account.units for account in accounts), amount


async def ask(world: Quotas, name: str, want: Resources, *, tied: bool) -> Resources:
    """Ask, and let the VM have what it gets."""
    got, _ = await world.wants(name, want, tied=tied)
    world.shows_size(name, got)
    return got


@settings(max_examples=60, deadline=None)
@given(_steps)
@virtually
async def test_no_limit_is_passed_and_what_is_guaranteed_is_there_at_once(
    steps: list[tuple[str, int, float, float, bool] | float],
) -> None:
    world = await opened()
    for step in steps:
        if isinstance(step, float):
            await until(now_s() + step)
            continue
        tenant, number, cpu, memory, tied = step
        name, want = f"{tenant}{number}", cu(cpu, memory)
        before = world.has(name)
        units, amount = held(world, tenant)
        got = await ask(world, name, want, tied=tied)
        after = amount - before + want
        least_units, least = GUARANTEED[tenant]
        own = units - before.units(cu(1)) + want.units(cu(1))
        if after.fits_in(least) and own <= least_units:
            assert got == want, "what is guaranteed"
        total = [held(world, each) for each in "abc"]
        assert sum(each for each, _ in total) <= 48
        assert total[2][0] <= 24
        assert total[2][1].memory_bytes <= LIMIT_OF_C * 2**30
        together = total[0][1] + total[1][1] + total[2][1]
        assert together.fits_in(LIMIT)
    assert await world.clean()
    for account in tuple(world.core.ledger.pools()):
        await ask(world, account.name, cu(0.5, 0.5), tied=False)
    await until(now_s() + 1000)
    assert await ask(world, "a1", cu(20, 40), tied=False) == cu(6.5, 28.5), (
        "all that others are not guaranteed"
    )
