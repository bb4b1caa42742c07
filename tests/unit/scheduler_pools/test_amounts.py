"""Plugins that limit amounts: when and what they are asked, how they are merged, and what is remembered of a resource."""

import asyncio
from typing import Any, cast

import pytest
from msgspec.structs import replace

from protocol.values import ZERO, ComputeUnit, Resources
from protocol.wire import PodName
from scheduler.permits.core.events import AdmissionCallNeeded
from scheduler.pools.chain.admission_queue import WAKE_S
from scheduler.pools.chain.manager import PluginManager
from scheduler.pools.chain.plugin import BasePlugin
from scheduler.pools.core import batches
from scheduler.pools.core.admission_state import CachedRefusal, PoolAdmissionState
from scheduler.pools.core.batches import PoolGrowth, Question, Waiter
from scheduler.pools.core.errors import new_insufficient_resources, new_internal
from scheduler.pools.core.queues import UnmetDemand
from scheduler.pools.core.values import (
    ADMITTED,
    NOTHING,
    UNITS,
    Admission,
    AmountCap,
    Context,
    Measures,
    Pods,
    Pool,
    Purpose,
)
from tests.support.amounts import GIB, UNIT, cu
from tests.support.virtual_time import now_s, turns, virtually
from tests.unit.scheduler_pools.pool_worlds import Doorman, until
from tests.unit.scheduler_pools.test_quota_amounts import Quotas


def caps(cpu: float | None = None, memory: float | None = None, **more: Any) -> tuple[AmountCap, ...]:
    found = []
    if cpu is not None:
        found.append(AmountCap("cpu", round(cpu * 1000), **more))
    if memory is not None:
        found.append(AmountCap("memory", round(memory * GIB), **more))
    return tuple(found)


class Scales(BasePlugin):
    """Lets a pool have `most`; says so by caps, or, where it `refuses`, by an error. `delay_s` makes it wait."""

    def __init__(self, most: Resources, *, refuses: bool = False, delay_s: float = 0.0) -> None:
        self.most = most
        self.refuses = refuses
        self.delay_s = delay_s
        self.heard: list[tuple[int, Resources, Resources]] = []
        self.fault: Exception | None = None

    def name(self) -> str:
        return "scales"

    def limits_amounts(self, pool: Pool) -> bool:
        if self.fault is not None:
            raise self.fault
        return pool.name != "other"

    def pre_update_pool(self, ctx: Context, new_pool: Pool, pods: Pods) -> Any:
        del pods
        if ctx.purpose is not Purpose.PROBE:
            return ADMITTED
        self.heard.append((new_pool.replicas, new_pool.amount, ctx.held))
        return self._later(new_pool) if self.delay_s else self._judge(new_pool)

    def _judge(self, pool: Pool) -> Admission:
        if pool.amount.fits_in(self.most):
            return ADMITTED
        if self.refuses:
            raise new_insufficient_resources("too heavy")
        return Admission(amounts=caps(self.most.vcpu_milli / 1000, self.most.memory_bytes / GIB))

    async def _later(self, pool: Pool) -> Admission:
        await asyncio.sleep(self.delay_s)
        return self._judge(pool)


async def opened(*plugins: BasePlugin, **vms: Resources) -> Quotas:
    """A world with the pool `bank`, and these VMs in it."""
    world = Quotas(*plugins)
    await world.open("bank", "other")
    for name, size in vms.items():
        world.vm(name, "bank", size)
    return world


# ------------------------------------------------------------ the question


@virtually
async def test_a_question_has_the_amounts_before_and_after() -> None:
    scales = Scales(cu(100))
    world = await opened(scales, a=cu(1, 4), b=cu(0.5, 1))
    assert await world.wants("a", cu(2.5, 5)) == (cu(2.5, 5), [])
    assert await world.wants("b", cu(1, 1)) == (cu(1, 1), [])
    assert scales.heard == [(6, cu(3, 6), cu(1.5, 5)), (6, cu(3.5, 6), cu(3, 6))]
    world.vm("c", "other", cu(1, 4))
    assert await world.wants("c", cu(4, 4)) == (cu(4, 4), [])
    assert len(scales.heard) == 2, "amounts of that pool are not limited"
    assert await world.wants("c", cu(4, 5)) == (cu(4, 5), [])
    assert scales.heard[2] == (5, ZERO, ZERO)


@virtually
async def test_a_plugin_that_only_refuses_is_searched_for_by_units_and_what_they_can_hold() -> None:
    scales = Scales(cu(3, 5), refuses=True)
    world = await opened(scales, a=cu(1))
    assert await world.wants("a", cu(1, 9)) == (cu(1, 5), ["pool memory"])
    asked = [(9, cu(1, 9)), (4, cu(1, 4)), (6, cu(1, 6)), (5, cu(1, 5))]
    assert [(units, amount) for units, amount, _ in scales.heard] == asked
    assert await world.wants("a", cu(4, 5)) == (cu(1, 5), ["pool"]), "the whole question was refused"


@virtually
async def test_a_cap_of_amounts_is_not_asked_about_again_and_refuses_no_units() -> None:
    scales, doorman = Scales(cu(3, 5)), Doorman(7)
    world = await opened(scales, doorman, a=cu(1))
    assert await world.wants("a", cu(2, 9)) == (cu(2, 5), ["pool memory", "pool memory"])
    assert [units for units, *_ in scales.heard] == doorman.replicas == [9, 4, 6, 7, 8]


@virtually
async def test_each_resource_is_cut_by_the_plugin_that_leaves_the_least() -> None:
    class Caps(BasePlugin):
        def __init__(self, name: str, *said: AmountCap) -> None:
            self._name, self._said = name, said

        def name(self) -> str:
            return self._name

        def limits_amounts(self, pool: Pool) -> bool:
            return pool.name == "bank"

        def pre_update_pool(self, ctx: Context, new_pool: Pool, pods: Pods) -> Admission:
            del ctx, new_pool, pods
            return Admission(amounts=self._said)

    world = await opened(Caps("p", *caps(3, 9)), Caps("q", *caps(4, 6, message="enough")), a=cu(1))
    assert await world.wants("a", cu(8)) == (cu(3, 6), ["pool cpu", "pool memory"])
    refused = world.queue.state_of("bank").refusals
    assert [(each.resource, each.plugin, each.message) for each in refused] == [
        ("cpu", "p", "the plugin p admits only 3 CPU"),
        ("memory", "q", "enough"),
    ]


@pytest.mark.parametrize(
    "said",
    [
        [AmountCap("cpu", 1)],
        (("cpu", 1),),
        (AmountCap("disk", 1),),
        (AmountCap("cpu", -1),),
        (AmountCap("cpu", cast("Any", 1.5)),),
        (AmountCap("cpu", 1, message=cast("Any", None)),),
    ],
)
@virtually
async def test_garbage_in_caps_is_internal(said: Any) -> None:
    class Odd(Scales):
        def _judge(self, pool: Pool) -> Admission:
            del pool
            return Admission(amounts=said)

    world = await opened(Odd(ZERO), a=cu(1))
    assert await world.wants("a", cu(1.5, 1)) == (cu(1), ["pool-failed"])


@virtually
async def test_a_plugin_that_cannot_tell_whether_it_limits_amounts_is_asked_about_all_growth() -> None:
    scales = Scales(cu(2))
    scales.fault = RuntimeError("no")
    world = await opened(scales, a=cu(1, 4))
    assert await world.wants("a", cu(4, 4)) == (cu(2, 4), ["pool cpu"])
    assert not PluginManager(Doorman()).limits_amounts(Pool("p", UNIT))


# ------------------------------------------------------------ verdicts


@virtually
async def test_births_while_a_plugin_is_waited_for_count_against_the_total() -> None:
    world = await opened(Scales(cu(6), delay_s=0.1), a=cu(1), b=cu(1))
    growing = asyncio.create_task(world.wants("a", cu(4, 1)))
    await turns()
    world.vm("c", "bank", cu(2, 1))
    assert await growing == (cu(2, 1), ["pool cpu"])
    assert (await world.wants("b", cu(3, 1)))[0] == cu(2, 1), "five of six are held"
    assert await world.clean()


@virtually
async def test_two_pools_never_both_get_what_is_left_of_an_amount() -> None:
    """While one pool waits, another one takes CPUs of the same quota."""
    text = "{computeUnit: {cpu: 1, memory: 1Gi}, tenants: [{name: t, limits: {cpu: 10}}]}"
    world = await Quotas.of(text, one="t", two="t")
    (quota,) = (plugin for _, plugin, _ in world.manager._plugins)
    slow = Doorman(delay_s=0.2)
    world.use(quota, slow)
    world.vm("a", "one", cu(1, 8))
    world.vm("b", "two", cu(1, 8))
    both = [asyncio.create_task(world.wants(name, cu(8, 8))) for name in "ab"]
    await turns()
    assert {name: asked.amount for name, asked in world.objects.asked().items()} == {
        "one": cu(8, 8),
        "two": cu(8, 8),
    }
    got = [(await each)[0].vcpu_milli for each in both]
    assert sum(got) == 10_000


@pytest.mark.parametrize("error", [new_internal("away"), None])
@virtually
async def test_where_no_answer_comes_nothing_grows_within_its_units_either(error: Exception | None) -> None:
    class Away(Scales):
        def _judge(self, pool: Pool) -> Any:
            del pool
            if error is not None:
                raise error
            return asyncio.sleep(10_000)

    world = await opened(Away(ZERO), a=cu(1, 4))
    got, codes = await world.wants("a", cu(2, 4))
    assert (got, codes) == (cu(1, 4), ["pool-failed"])
    assert await world.clean()


# ------------------------------------------------------------ what is remembered


@virtually
async def test_a_plugin_that_must_be_waited_for_is_asked_again_a_second_after_something_was_freed() -> None:
    scales = Scales(cu(4, 9), delay_s=0.01)
    world = await opened(scales, a=cu(1), b=cu(3, 1))
    world.vm("c", "other", cu(2, 1))
    assert await world.wants("a", cu(2, 1)) == (cu(1), ["pool cpu"])
    asked, began_s = len(scales.heard), now_s()
    await world.gives_back("c", cu(1.5, 1))
    assert await world.wants("a", cu(2, 1)) == (cu(1), ["pool-saturated cpu"])
    scales.most = cu(5, 9)
    await until(began_s + WAKE_S)
    assert await world.wants("a", cu(2, 1)) == (cu(2, 1), [])
    assert len(scales.heard) == asked + 1


@virtually
async def test_a_pool_that_is_full_of_units_lets_amounts_grow_within_them() -> None:
    doorman, scales = Doorman(5), Scales(cu(99))
    world = await opened(doorman, scales, a=cu(1, 4))
    assert await world.wants("a", cu(3, 9)) == (cu(3, 5), ["pool memory"])
    assert await world.wants("a", cu(3, 9)) == (cu(3, 5), ["pool-saturated"])
    assert await world.wants("a", cu(5, 9)) == (cu(5, 5), ["pool-saturated memory"])


def growth(has: Resources, want: Resources, *, apart: bool = True) -> PoolGrowth:
    unit = ComputeUnit(cu(0.5), is_apart=apart)
    needed = AdmissionCallNeeded(1, PodName("a", "d"), "a", "bank", has, want, unit)
    return PoolGrowth(
        Waiter(needed, 1.0), Measures(has.units(UNIT), has), Measures(want.units(UNIT), want.max(has))
    )


def full(total: int, measure: str = UNITS) -> CachedRefusal:
    return CachedRefusal(total, 60.0, "full", measure=measure)


@pytest.mark.parametrize(
    ("refusals", "want", "apart", "asked"),
    [
        ([], cu(3, 6), True, Question(9, Measures(12, cu(8, 12)))),
        ([], cu(3, 4), True, Question(9, Measures(10, cu(8, 10)))),
        ([full(7000, "cpu")], cu(3, 6), True, Question(9, Measures(12, cu(7, 12)), cut=("cpu",))),
        ([full(8000, "cpu")], cu(3, 6), True, Question(9, Measures(12, cu(8, 12)))),
        (
            [full(6000, "cpu")],
            cu(3, 4),
            True,
            Question(9, Measures(10, cu(6, 10)), cut=("cpu",), is_vain=True),
        ),
        ([full(6000, "cpu")], cu(3, 6), True, Question(9, Measures(12, cu(6, 12)), cut=("cpu",))),
        (
            [full(5000, "cpu")],
            cu(3, 4),
            True,
            Question(9, Measures(10, cu(6, 10)), cut=("cpu",), is_vain=True),
        ),
        ([full(6500, "cpu")], cu(5, 5), False, Question(9, Measures(11, cu(6.5, 11)), cut=("cpu",))),
        (
            [full(6000, "cpu")],
            cu(5, 5),
            False,
            Question(9, Measures(11, cu(6, 11)), cut=("cpu",), is_vain=True),
        ),
        ([full(10)], cu(1, 6), True, Question(9, Measures(10, cu(6, 12)), cut=(UNITS,), is_vain=True)),
        ([full(10)], cu(2, 6), True, Question(9, Measures(10, cu(7, 12)), cut=(UNITS,))),
        ([full(8)], cu(1, 6), True, Question(9, Measures(10, cu(6, 12)), cut=(UNITS,), is_vain=True)),
    ],
)
def test_a_question_leaves_out_what_was_refused_and_is_vain_where_nothing_else_is_wanted(
    refusals: list[CachedRefusal], want: Resources, apart: bool, asked: Question
) -> None:
    """The pool holds 10 units, exactly 6 CPUs and 10 GiB; the VM has 1 CPU and 4 GiB of them."""
    now = Measures(10, cu(6, 10))
    state = PoolAdmissionState().with_refusals(refusals)
    found = batches.question(state, now, (growth(cu(1, 4), want, apart=apart),), UNIT)
    assert found == replace(asked, wanted=now.amount + (want - cu(1, 4)).max(ZERO))


def test_refusals_are_kept_for_units_and_for_each_resource() -> None:
    state = PoolAdmissionState(generation=1).with_refusals([full(9), full(7, "cpu"), full(5, "memory")])
    assert (state.refused(UNITS), state.refused("cpu"), len(state.refusals)) == (full(9), full(7, "cpu"), 3)
    state = state.with_refusals((*state.refusals, full(6, "cpu")))
    assert (state.refused("cpu"), state.refused("memory")) == (full(6, "cpu"), full(5, "memory"))
    assert state.at(1, 59.9) is state
    assert state.at(1, 60.0).refusals == ()
    assert [each.at for each in state.refusals] == ["9 units", "6m CPU", "5 bytes of memory"]


# ------------------------------------------------------------ unmet demand


@pytest.mark.parametrize(
    ("units", "has", "left_units", "left"),
    [
        (4, cu(1, 4), 2, cu(2, 4)),
        (4, cu(2, 4), 2, cu(1, 4)),
        (5, cu(2, 5), 1, cu(1, 3)),
        (8, cu(3, 8), 0, ZERO),
        (4, cu(0.5, 4), 2, cu(0, 4)),
        (3, cu(1, 3), 0, cu(2, 0)),
        (3, cu(0.5, 3), 0, ZERO),
    ],
)
def test_what_a_vm_gives_back_of_a_resource_it_does_not_claim(
    units: int, has: Resources, left_units: int, left: Resources
) -> None:
    """It has 4 units, 1 CPU and 4 GiB, and was refused some of 6 units, 3 CPUs and 8 GiB."""
    unmet = UnmetDemand()
    unmet.refuse("a", Measures(4, cu(1, 4)), Measures(6, cu(3, 8)), 0.0, 60.0)
    unmet.has("a", Measures(units, has))
    assert unmet.total == Measures(left_units, left)
    assert len(unmet) == (left_units > 0 or left != ZERO)
    unmet.withdraw("a")
    assert unmet.total == NOTHING
