"""Before a pod of a pool is placed: what its pool says, what room is kept then, and that asking changes nothing."""

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from protocol.reasons import Reason, ReasonCode
from protocol.values import Resources
from scheduler.permits.core.model import Holder, Kind
from scheduler.permits.service.inputs import CorePlacements
from scheduler.pools.chain.placement_admission import PoolPlacementAdmission
from scheduler.pools.core.errors import AppError, new_insufficient_resources, new_internal, new_invalid_spec
from scheduler.pools.core.values import (
    POD_ADMITTED,
    Admission,
    AmountCap,
    Context,
    PodAdmission,
    Pool,
    PoolLimits,
    Purpose,
)
from tests.support.amounts import UNIT, cu
from tests.support.virtual_time import now_s, turns, virtually
from tests.unit.scheduler_permits.service_worlds import permit
from tests.unit.scheduler_pools.pool_worlds import Doorman, PoolWorld, raises, until

POD: Mapping[str, Any] = {
    "metadata": {"name": "new", "namespace": "d", "uid": "uid-new", "labels": {"tier": "gold"}},
    "spec": {"containers": [{"name": "main"}]},
}
NEW = Holder(Kind.VM, "uid-new")
NEW_POD = Holder(Kind.POD, "uid-new")
DEADLINE_S = 2.0
Answers = Callable[[dict[str, Any], Pool], Any]


class PodDoorman(Doorman):
    """A plugin that has a say about pods as well; `pods` answers, `seen` is what it was shown."""

    def __init__(self, pods: Answers | None = None, **options: Any) -> None:
        super().__init__(**options)
        self.pods = pods
        self.seen: list[tuple[Context, Mapping[str, Any], int]] = []

    def pre_create_pod(self, ctx: Context, pod: Any, pool: Pool) -> Any:
        self.seen.append((ctx, pod, pool.replicas))
        return self.pods(pod, pool) if self.pods is not None else POD_ADMITTED


class AmountDoorman(PodDoorman):
    """A plugin that limits memory to 4 GiB."""

    def limits_amounts(self, pool: Pool) -> bool:
        return True

    def pre_update_pool(self, ctx: Context, new_pool: Pool, pods: Any) -> Any:
        super().pre_update_pool(ctx, new_pool, pods)
        return Admission(amounts=(AmountCap("memory", 4 * 2**30, "no more memory"),))


class BirthWorld(PoolWorld):
    """A pool `bank` that holds 2 units, and whoever binds pods."""

    def __init__(self, *plugins: Doorman) -> None:
        super().__init__(*plugins)
        self.placement_admission = PoolPlacementAdmission(
            self.core.ledger, self.objects, lambda: self.manager, now_s
        )
        self.placements = CorePlacements(
            self.core, self.service.take, now_s, self.placement_admission.still_admits
        )

    @classmethod
    async def opened(cls, *plugins: Doorman, **limits: Any) -> "BirthWorld":
        """The world, once its pool is there."""
        world = cls(*plugins)
        await world.objects.create(Pool("bank", UNIT, PoolLimits(**limits)))
        world.born("old", units=2)
        return world

    async def admit(self, amount: Resources = UNIT, pool: str = "bank") -> Reason | None:
        """The pool's answer to a pod of that amount."""
        return await self.placement_admission.admit(POD, pool, amount, now_s() + DEADLINE_S)

    def assume(self, units: int = 1, holder: Holder = NEW) -> Reason | None:
        return self.placements.assume(holder, "d/new", "n1", cu(units), until_s=now_s() + 60, pool="bank")


def never(pod: dict[str, Any], pool: Pool) -> Any:
    return asyncio.sleep(10_000)


def changed(pod: dict[str, Any], pool: Pool) -> PodAdmission:
    pod["metadata"]["annotations"] = {"by": pool.name}
    return PodAdmission(pod)


CASES: list[tuple[list[Doorman], dict[str, Any], str, Resources, ReasonCode | None, str]] = [
    # plugins, limits of the pool, pool, amount; the code and a part of the message
    ([], {}, "bank", cu(5), None, ""),
    ([], {}, "none", UNIT, ReasonCode.POOL, "there is no pool none"),
    ([], {"max_units": 6}, "bank", cu(4), None, ""),
    ([], {"max_units": 6}, "bank", cu(5), ReasonCode.POOL, "pool bank holds 2 of at most 6 units"),
    ([PodDoorman()], {"max_units_per_vm": 2}, "bank", cu(3), ReasonCode.POOL, "allows a VM 2 units"),
    ([PodDoorman()], {}, "none", UNIT, ReasonCode.POOL, "there is no pool none"),
    ([PodDoorman(most=5)], {}, "bank", cu(3), None, ""),
    ([PodDoorman(most=5)], {}, "bank", cu(4), ReasonCode.POOL, "pool bank: no room for 6"),
    ([PodDoorman(most=5, delay_s=0.2)], {}, "bank", cu(4), ReasonCode.POOL, "pool bank: no room for 6"),
    ([AmountDoorman()], {}, "bank", cu(2), None, ""),
    ([AmountDoorman()], {}, "bank", cu(0.5, 3), ReasonCode.POOL, "pool bank: no more memory"),
    ([PodDoorman(lambda *_: PodAdmission(error=AppError(429, "later")))], {}, "bank", UNIT, ReasonCode.POOL, "later"),
    ([PodDoorman(lambda *_: 1 / 0)], {}, "bank", UNIT, ReasonCode.POOL_FAILED, "doorman failed"),
    ([PodDoorman(lambda *_: "yes")], {}, "bank", UNIT, ReasonCode.POOL_FAILED, "doorman failed"),
    ([PodDoorman(never)], {}, "bank", UNIT, ReasonCode.POOL_FAILED, "did not answer within 0.5 s"),
    ([PodDoorman(changed)], {}, "bank", UNIT, ReasonCode.POOL_FAILED, "change pods where they are made"),
    ([PodDoorman(lambda pod, _: PodAdmission(pod))], {}, "bank", UNIT, None, ""),
]  # fmt: skip


@pytest.mark.parametrize(("plugins", "limits", "pool", "amount", "code", "message"), CASES)
@virtually
async def test_a_pod_is_placed_where_its_pool_agrees_and_asking_changes_nothing(
    plugins: list[Doorman],
    limits: dict[str, Any],
    pool: str,
    amount: Resources,
    code: ReasonCode | None,
    message: str,
) -> None:
    world = await BirthWorld.opened(*plugins, **limits)
    world.queue.members("bank")
    before = world.queue.state_of("bank"), world.core.ledger.generation, world.core.ledger.pool_moves
    refused = await world.admit(amount, pool)
    assert (refused.code if refused is not None else None) is code
    assert message in (refused.message if refused is not None else "")
    after = world.queue.state_of("bank"), world.core.ledger.generation, world.core.ledger.pool_moves
    assert (after, world.queue.unmet_demand()) == (before, {})
    await turns()


@pytest.mark.parametrize(
    ("error", "code", "wait_s"),
    [
        (new_insufficient_resources("full"), ReasonCode.POOL, None),
        (new_insufficient_resources("full", retry_after_s=30.0), ReasonCode.POOL, 30.0),
        (new_invalid_spec("wrong"), ReasonCode.POOL_PARKED, None),
        (new_internal("away"), ReasonCode.POOL_FAILED, 1.0),
        (new_internal("away", retry_after_s=7.0), ReasonCode.POOL_FAILED, 7.0),
    ],
)
@pytest.mark.parametrize("hook", ["pre_update_pool", "pre_create_pod"])
@virtually
async def test_a_refusal_has_the_code_of_its_kind(
    error: AppError, code: ReasonCode, wait_s: float | None, hook: str
) -> None:
    plugin = PodDoorman()
    if hook == "pre_update_pool":
        plugin.says = raises(error)
    else:
        plugin.pods = lambda *_: PodAdmission(error=error)
    refused = await (await BirthWorld.opened(plugin)).admit()
    assert refused == Reason(code, f"pool bank: {error.message}", retry_after_s=wait_s)


@virtually
async def test_hooks_are_shown_the_pool_with_the_pod_in_it_and_the_pod_as_it_is() -> None:
    plugin = PodDoorman()
    world = await BirthWorld.opened(plugin)
    assert await world.admit(cu(3)) is None
    (probe,) = plugin.heard
    assert (probe.replicas, probe.names, probe.members) == (5, ("new",), ("old",))
    assert (probe.ctx.purpose, probe.ctx.deadline_s) == (Purpose.PROBE, DEADLINE_S)
    ((ctx, pod, replicas),) = plugin.seen
    assert (ctx.purpose, pod, replicas) == (Purpose.BIND, POD, 2)
    assert ctx.request is not None
    assert (ctx.request.wanted, ctx.request.wanted_units, ctx.request.labels) == (cu(3), 3, {"tier": "gold"})


@virtually
async def test_nobody_waits_longer_than_the_deadline() -> None:
    slow = [PodDoorman(never, label=f"slow{at}") for at in range(6)]
    for each in slow:
        each.pods = lambda *_: asyncio.sleep(0.45, POD_ADMITTED)
    refused = await (await BirthWorld.opened(*slow)).admit()
    assert refused == Reason(
        ReasonCode.POOL_FAILED, "pool bank: its plugins did not answer in time", retry_after_s=1.0
    )
    assert now_s() == DEADLINE_S


@pytest.mark.parametrize("what", ["the pool is changed", "the pool goes", "the chain is another one"])
@virtually
async def test_what_changes_while_it_is_asked_is_asked_again(what: str) -> None:
    world = await BirthWorld.opened(PodDoorman(delay_s=0.2))
    asking = asyncio.create_task(world.admit())
    await turns()
    match what:
        case "the pool is changed":
            await world.change()
        case "the pool goes":
            await world.objects.delete("bank")
        case _:
            world.use(PodDoorman())
    refused = await asking
    assert refused is not None
    assert (refused.code, refused.retry_after_s) == (ReasonCode.POOL_FAILED, 0.0)


@pytest.mark.parametrize("is_slow", [False, True])
@virtually
async def test_a_pool_that_was_found_full_is_asked_again_only_where_that_costs_nothing(is_slow: bool) -> None:
    plugin = PodDoorman(most=3, delay_s=0.1 if is_slow else 0.0)
    world = await BirthWorld.opened(plugin)
    assert await world.grow("old", 5) == (3, ["pool"])
    asked = len(plugin.heard)
    refused = await world.admit()
    assert refused is not None
    assert refused.code is (ReasonCode.POOL_SATURATED if is_slow else ReasonCode.POOL)
    assert (len(plugin.heard) > asked) is not is_slow
    plugin.most = 10
    refused = await world.admit()
    assert (refused is not None) is is_slow
    await asyncio.sleep(60.0)
    assert await world.admit() is None


@virtually
async def test_a_parked_pool_takes_no_pods() -> None:
    plugin = PodDoorman()
    world = await BirthWorld.opened(plugin)
    plugin.says = raises(new_invalid_spec("wrong"))
    await world.grow("old", 5)
    plugin.says = None
    refused = await world.admit()
    assert refused is not None
    assert (refused.code, "parked until it is changed" in refused.message) == (ReasonCode.POOL_PARKED, True)


# ------------------------------------------------------------ room is kept


@virtually
async def test_two_that_were_admitted_do_not_both_get_what_is_left() -> None:
    world = await BirthWorld.opened(PodDoorman(most=4))
    assert [await world.admit(cu(2)) for _ in range(2)] == [None, None]
    assert world.assume(2) is None
    refused = world.assume(2, Holder(Kind.VM, "uid-other"))
    assert refused is not None
    assert (refused.code, refused.retry_after_s) == (ReasonCode.POOL, 0.0)
    assert world.assume(2) is None, "a repeat asks for nothing"
    assert world.units() == 4
    assert await world.grow("old", 3) == (2, ["pool"])
    world.placements.forget(NEW)
    assert world.assume(2, Holder(Kind.VM, "uid-other")) is None


@pytest.mark.parametrize("growth_at_s", [0.0, 0.1])
@virtually
async def test_a_placement_and_a_growth_elsewhere_never_both_get_what_is_left_of_one_quota(
    growth_at_s: float,
) -> None:
    """A plain hook counts over both pools, a later one is waited for: a placement counts like a grant."""
    quota, slow = PodDoorman(label="quota"), PodDoorman(delay_s=0.2, label="slow")
    world = await BirthWorld.opened(quota, slow)
    await world.objects.create(Pool("other", UNIT))
    world.born("there", pool="other")
    quota.says = lambda _, pool: Admission(
        admitted=4 - world.units("other" if pool.name == "bank" else "bank")
    )
    admitting = asyncio.create_task(world.admit())
    await until(growth_at_s)
    growing = await world.growing("there", 2)
    assert await admitting is None
    placed = world.assume()
    granted = permit(await growing)[0]
    assert world.units("bank") + world.units("other") == 4
    assert (placed is None) is (granted == 1)


@pytest.mark.parametrize("holder", [NEW, NEW_POD], ids=["scaled", "not scaled"])
@pytest.mark.parametrize("plugins", [(), (PodDoorman(most=4),)], ids=["without plugins", "with plugins"])
@virtually
async def test_a_pod_that_is_tried_again_does_not_stand_in_its_own_way(
    plugins: tuple[Doorman, ...], holder: Holder
) -> None:
    """Its first binding is in doubt, so its room is still kept."""
    world = await BirthWorld.opened(*plugins, max_units=4)
    assert await world.admit(cu(2)) is None
    assert world.assume(2, holder) is None
    assert await world.admit(cu(2)) is None
    assert await world.admit(cu(3)) is not None


@virtually
async def test_the_core_has_the_last_word() -> None:
    world = await BirthWorld.opened(max_units=5)
    assert await world.admit(cu(3)) is None
    world.born("more", units=2)
    refused = world.assume(3)
    assert refused is not None
    assert refused.message == "pool bank holds 4 of at most 5 units"
    assert world.placements.headroom("n1", NEW) == cu(996)
    assert world.assume(1) is None
    assert world.placements.headroom("n1", Holder(Kind.POD, "uid-x")) == cu(995)
