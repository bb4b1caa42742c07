"""Claims: what was refused and may be come back for, as an account and as queues keep them."""

from scheduler.pools.chain.admission_queue import WAKE_S
from scheduler.pools.core.admission_state import COOLDOWN_S
from scheduler.pools.core.errors import new_internal
from scheduler.pools.core.queues import MAX_UNMET_S, STAY_AWAY_S, UnmetDemand
from scheduler.pools.core.values import Admission, Measures
from tests.support.virtual_time import now_s, virtually
from tests.unit.scheduler_permits.service_worlds import permit
from tests.unit.scheduler_pools.pool_worlds import Doorman, PoolWorld, raises, until

# ------------------------------------------------------------ the account


def refused(*vms: tuple[str, int, int], wait_s: float = 60.0) -> UnmetDemand:
    unmet = UnmetDemand()
    for uid, units, wanted in vms:
        unmet.refuse(uid, Measures(units), Measures(wanted), 100.0, wait_s)
    return unmet


def test_claims_add_up_and_each_vm_has_one() -> None:
    unmet = refused(("a", 4, 7), ("b", 0, 2), ("a", 4, 9))
    assert (len(unmet), unmet.total.units) == (2, 7)


def test_who_got_everything_claims_nothing() -> None:
    assert len(refused(("a", 4, 7), ("a", 7, 7))) == 0


def test_a_claim_is_what_is_still_missing() -> None:
    unmet = refused(("a", 4, 7))
    unmet.has("a", Measures(6))
    assert unmet.total.units == 1
    unmet.has("a", Measures(8))
    assert (len(unmet), unmet.ended) == (0, 0), "met, not given up"


def test_who_gives_something_back_wants_no_more() -> None:
    unmet = refused(("a", 4, 7))
    unmet.has("a", Measures(3))
    assert (len(unmet), unmet.total.units) == (0, 0)


def test_claims_end_a_while_after_the_time_at_which_the_vm_was_told_to_come_back() -> None:
    unmet = refused(("a", 4, 7))
    unmet.refuse("b", Measures(0), Measures(1), 130.0, 60.0)
    assert (unmet.next_s, unmet.until_s) == (100 + 60 + STAY_AWAY_S, 130 + 60 + STAY_AWAY_S)
    unmet.expire(unmet.next_s - 0.1)
    assert (len(unmet), unmet.ended) == (2, 0)
    unmet.expire(unmet.next_s)
    assert (len(unmet), unmet.total.units, unmet.ended) == (1, 1, 1)


def test_however_long_a_plugin_lets_it_wait_a_claim_is_bounded() -> None:
    assert refused(("a", 4, 7), wait_s=86_400).until_s == 100 + MAX_UNMET_S


def test_what_is_withdrawn_was_given_up_once() -> None:
    unmet = refused(("a", 4, 7), ("b", 1, 2))
    unmet.withdraw("a")
    unmet.withdraw("a")
    unmet.clear()
    assert (len(unmet), unmet.total.units, unmet.ended) == (0, 0, 2)


# ------------------------------------------------------------ in queues


@virtually
async def test_refused_growth_is_claimed_until_it_is_granted() -> None:
    doorman = Doorman(10)
    world = await PoolWorld(doorman).open()
    world.born("a", "b")
    assert await world.grow("a", 20) == (9, ["pool"])
    assert (world.queue.unmet_until_s("bank"), world.objects.unmet_demand()) == (
        COOLDOWN_S + STAY_AWAY_S,
        {"bank": Measures(11)},
    )
    assert await world.grow("b", 3) == (1, ["pool-saturated"])
    assert world.objects.unmet_demand() == {"bank": Measures(13)}
    assert world.objects.unmet_demand() is world.objects.unmet_demand()
    assert await world.grow("a", 2) == (2, [])
    assert world.objects.unmet_demand() == {"bank": Measures(2)}
    assert await world.grow("b", 3) == (3, [])
    assert world.objects.unmet_demand() == {}


@virtually
async def test_a_pool_claims_no_more_than_its_own_limit_leaves() -> None:
    world = await PoolWorld(Doorman(4)).open(most=6)
    world.born("a", "b")
    assert (await world.grow("a", 5))[0] == 3
    assert (await world.grow("b", 3))[0] == 1
    assert world.objects.unmet_demand() == {"bank": Measures(2)}


@virtually
async def test_failures_leave_no_claim_and_take_none_away() -> None:
    doorman = Doorman(10)
    world = await PoolWorld(doorman).open()
    world.born("a", "b")
    doorman.says = raises(new_internal("no"))
    await world.grow("b", 5)
    assert world.objects.unmet_demand() == {}
    doorman.says = None
    await world.grow("a", 20)
    await until(COOLDOWN_S + 1)
    doorman.says = raises(new_internal("no"))
    await world.grow("a", 20)
    assert world.objects.unmet_demand() == {"bank": Measures(11)}


@virtually
async def test_who_gives_back_at_once_what_was_granted_claims_nothing() -> None:
    world = await PoolWorld(Doorman(10)).open()
    world.born("a")
    assert permit(world.transport.decide(world.body("a", 20))) == (10, ["pool"])
    assert permit(world.transport.decide(world.body("a", 1))) == (1, [])
    world.shows("a", 1)
    assert world.objects.unmet_demand() == {}


@virtually
async def test_claims_end_with_the_vm_the_label_the_chain_and_the_pool() -> None:
    for end in ("gone", "label", "chain", "deleted"):
        world = await PoolWorld(Doorman(10)).open()
        world.born("a")
        await world.grow("a", 20)
        assert world.objects.unmet_demand() == {"bank": Measures(10)}
        if end == "gone":
            world.gone("a")
        elif end == "label":
            world.relabelled("a", None)
        elif end == "chain":
            world.use(Doorman())
        else:
            await world.objects.delete("bank")
        assert world.objects.unmet_demand() == {}, end


@virtually
async def test_a_full_pool_whose_plugin_computes_is_asked_at_once_when_others_have_given_something_back() -> (
    None
):
    """The plugin counts over both pools, as a quota does."""
    doorman = Doorman()
    world = PoolWorld(doorman)
    doorman.says = lambda _, pool: Admission(
        admitted=10 - world.units("other" if pool.name == "bank" else "bank")
    )
    await world.open("bank", "other")
    world.born("a")
    world.born("b", pool="other")
    assert await world.grow("b", 8) == (8, [])
    assert await world.grow("a", 5) == (2, ["pool"])
    doorman.heard.clear()
    assert await world.grow("a", 5) == (2, ["pool-saturated"])
    assert doorman.heard == [], "nothing was freed"
    await world.grow("b", 6)
    assert await world.grow("a", 5) == (4, ["pool"])
    assert now_s() == 0.0


@virtually
async def test_a_plugin_that_must_be_waited_for_is_not_asked_about_a_full_pool_more_than_once_a_second() -> (
    None
):
    doorman = Doorman(10, 0.01)
    world = await PoolWorld(doorman).open("bank", "other")
    world.born("a")
    world.born("b", pool="other")
    await world.grow("b", 9)
    assert await world.grow("a", 20) == (10, ["pool"])
    doorman.heard.clear()
    began_s = now_s()
    for units in (8, 7, 6):
        await world.grow("b", units)
        assert await world.grow("a", 20) == (10, ["pool-saturated"])
    assert doorman.heard == []
    doorman.most = 12
    await until(began_s + WAKE_S)
    assert await world.grow("a", 20) == (12, ["pool"])


@virtually
async def test_another_pool_that_is_changed_wakes_who_waits() -> None:
    """It may have gone to another tenant."""
    doorman = Doorman(10)
    world = await PoolWorld(doorman).open("bank", "other")
    world.born("a")
    await world.grow("a", 20)
    doorman.most = 12
    assert await world.grow("a", 20) == (10, ["pool-saturated"])
    await world.change("other")
    assert await world.grow("a", 20) == (12, ["pool"])
