"""Election by a Lease against a fake API server, in virtual time: what the calls come to. Its laws: test_election_over_time.py."""

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from hosting.kubernetes.lease import Leadership, LeaseElector, LeaseTimes
from hosting.kubernetes.resources import LEASES
from tests.support.kube_api import FakeApiServer, writes
from tests.support.servers import QUIET
from tests.support.virtual_time import now_s, turns, virtually

DATE = datetime(2026, 1, 1, tzinfo=UTC)
FIRST_EPOCH = int((DATE - datetime(2020, 1, 1, tzinfo=UTC)).total_seconds())


class Election:
    """A server and the processes that have leaderships of it."""

    def __init__(self) -> None:
        self.server = FakeApiServer()
        self.leaderships: list[Leadership] = []

    def elector(self, identity: str, **options: Any) -> LeaseElector:
        """A process, which may have its own way to the server."""
        api = options.pop("server", self.server).api()
        return LeaseElector(
            api,
            "ns",
            "lease",
            identity=identity,
            address=f"http://{identity}",
            clock=now_s,
            date=options.pop("date", lambda: DATE + timedelta(seconds=now_s())),
            rng=random.Random(identity),
            log=QUIET,
            **options,
        )

    async def acquire(self, elector: LeaseElector) -> Leadership:
        """Wait until it leads."""
        self.leaderships.append(await elector.acquire())
        return self.leaderships[-1]

    @property
    def lease(self) -> dict[str, Any]:
        found: dict[str, Any] = self.server.get(LEASES, "ns", "lease")["spec"]
        return found


@asynccontextmanager
async def election() -> AsyncIterator[Election]:
    it = Election()
    try:
        yield it
    finally:
        it.server.heal()
        for each in it.leaderships:
            await each.release()


class WayTo(FakeApiServer):
    """A process's own way to a server, with faults of its own."""

    def __init__(self, server: FakeApiServer) -> None:
        super().__init__()
        self.store = server.store


@virtually
async def test_the_first_leader_waits_for_one_whom_nobody_knows_and_then_renews() -> None:
    async with election() as it:
        leadership = await it.acquire(it.elector("a"))
        assert 15 <= now_s() < 17
        assert leadership.epoch == FIRST_EPOCH + 1
        assert (it.lease["holderIdentity"], it.lease["leaseTransitions"]) == ("a", leadership.epoch)
        assert it.lease["acquireTime"] == "2026-01-01T00:00:15.000000Z"
        it.server.calls.clear()
        await asyncio.sleep(600)
        assert leadership.is_valid(now_s())
        assert 290 <= len(it.server.calls) <= 310, "one call for each renewal, every 2 s"
        assert it.lease["acquireTime"] < it.lease["renewTime"]


@virtually
async def test_a_lease_that_is_given_back_is_taken_at_once_and_the_epoch_rises() -> None:
    async with election() as it:
        first = await it.acquire(it.elector("a"))
        other = it.elector("b")
        waiting = asyncio.create_task(it.acquire(other))
        await asyncio.sleep(60)
        assert (waiting.done(), other.leader) == (False, "http://a")
        await first.release()
        assert (first.is_valid(now_s()), first.lost.is_set()) == (False, True)
        began_s = now_s()
        second = await waiting
        assert now_s() - began_s < 1.5
        assert (second.epoch > first.epoch, other.leader) == (True, "http://b")


@pytest.mark.parametrize("fault", ["hang", "cut", "status", "gone"])
@virtually
async def test_a_leader_that_cannot_renew_ends_before_another_begins(fault: str) -> None:
    async with election() as it:
        way = WayTo(it.server)
        first = await it.acquire(it.elector("a", server=way))
        waiting = asyncio.create_task(it.acquire(it.elector("b")))
        await asyncio.sleep(30)
        began_s = now_s()
        if fault == "gone":
            way.is_down = True
        else:
            way.fail(fault, times=10_000, text="oh no")  # type: ignore[arg-type] # one of them
        await first.lost.wait()
        assert 7.9 < now_s() - began_s <= 10.0
        assert not waiting.done()
        second = await waiting
        assert 13 <= now_s() - began_s < 18, "15 s after the last renewal was seen"
        assert second.epoch > first.epoch


@virtually
async def test_a_renewal_whose_answer_was_lost_costs_a_look_and_nothing_else() -> None:
    async with election() as it:
        leadership = await it.acquire(it.elector("a"))
        for _ in range(20):
            it.server.fail("cut", writes, after=True)
            await asyncio.sleep(5)
        assert leadership.is_valid(now_s())
        assert it.lease["leaseTransitions"] == leadership.epoch


@virtually
async def test_an_acquisition_whose_answer_was_lost_is_made_anew_with_a_higher_epoch() -> None:
    async with election() as it:
        it.server.fail("hang", lambda call: call.method == "PUT", after=True)
        leadership = await it.acquire(it.elector("a"))
        assert leadership.epoch == FIRST_EPOCH + 2


@virtually
async def test_a_process_that_was_paused_is_no_leader_when_it_goes_on() -> None:
    paused_s = 0.0

    async with election() as it:
        elector = it.elector("a")
        elector._clock = lambda: now_s() + paused_s
        first = await it.acquire(elector)
        assert first.is_valid(now_s())
        paused_s = 60.0  # the loop stood still meanwhile: no renewal, and no timer has run
        assert not first.is_valid(now_s() + paused_s)
        await asyncio.sleep(3)
        assert first.lost.is_set()
        second = await it.acquire(elector)
        assert second.epoch == first.epoch + 1, "the Lease was its own still, and this is another acquisition"


@pytest.mark.parametrize("shift", [timedelta(hours=-5), timedelta(days=400)])
@virtually
async def test_a_date_that_is_wrong_changes_nothing_for_others(shift: timedelta) -> None:
    async with election() as it:
        first = await it.acquire(it.elector("a", date=lambda: DATE + shift + timedelta(seconds=now_s())))
        waiting = asyncio.create_task(it.acquire(it.elector("b")))
        await asyncio.sleep(120)
        assert (first.is_valid(now_s()), waiting.done()) == (True, False)
        await first.release()
        assert (await waiting).epoch > first.epoch


@virtually
async def test_a_renewal_that_changes_nothing_is_none() -> None:
    async with election() as it:
        first = await it.acquire(it.elector("a", date=lambda: DATE))  # a clock that stands still
        await first.lost.wait()
        assert now_s() <= 15 + 10.5


@virtually
async def test_a_leader_writes_its_lease_anew_when_that_was_deleted() -> None:
    async with election() as it:
        leadership = await it.acquire(it.elector("a"))
        it.server.delete(LEASES, "ns", "lease")
        await asyncio.sleep(5)
        assert leadership.is_valid(now_s())
        assert (it.lease["holderIdentity"], it.lease["leaseTransitions"]) == ("a", leadership.epoch)


@virtually
async def test_a_lease_deleted_under_a_leader_that_is_cut_off_is_waited_out_and_its_epoch_does_not_come_back() -> (
    None
):
    async with election() as it:
        way = WayTo(it.server)
        first = await it.acquire(it.elector("a", server=way))
        way.is_down = True
        it.server.delete(LEASES, "ns", "lease")
        second = await it.acquire(it.elector("b"))
        assert first.lost.is_set()
        assert second.epoch > first.epoch, "b has never seen it"


@virtually
async def test_who_hears_of_a_higher_epoch_leads_no_more_until_its_own_is_higher() -> None:
    async with election() as it:
        elector = it.elector("a")
        first = await it.acquire(elector)
        first.saw(first.epoch)
        first.saw(2**31 - 2)
        assert first.is_valid(now_s()), "its own, and one after which there would be no other"
        first.saw(first.epoch + 5)
        assert (first.is_valid(now_s()), first.lost.is_set()) == (False, True)
        second = await it.acquire(elector)
        assert second.epoch == first.epoch + 6
        await turns()


@virtually
async def test_a_process_is_near_leading_once_a_leader_that_renews_no_more_has_given_up() -> None:
    async with election() as it:
        first, second = it.elector("a"), it.elector("b")
        assert first.is_near(3.0), "nothing is known of any other"
        leadership = await it.acquire(first)
        assert first.is_near(0.0)
        waiting = asyncio.create_task(second.acquire())
        for _ in range(40):
            await asyncio.sleep(0.7)
            assert not second.is_near(3.0)
        it.server.fail("hang", writes, times=100)  # the leader is cut off
        await leadership.lost.wait()
        lost_s = now_s()
        assert not second.is_near(1.0), "the Lease is not free for so long"
        it.server.heal()
        while not second.is_near(3.0):
            assert not waiting.done()
            await asyncio.sleep(0.1)
        it.leaderships.append(await waiting)
        assert now_s() - lost_s <= LeaseTimes().duration_s


@virtually
async def test_a_lease_that_somebody_edited_ends_the_leadership() -> None:
    async with election() as it:
        first = await it.acquire(it.elector("a"))
        it.server.put(LEASES, {"metadata": {"namespace": "ns", "name": "lease"}, "spec": {}})
        began_s = now_s()
        await first.lost.wait()
        assert now_s() - began_s <= 2.5
        second = await it.acquire(it.elector("b"))
        assert now_s() - began_s >= 15, "nobody has given it back"
        assert second.epoch > first.epoch


@pytest.mark.parametrize("times", [(15, 15, 2, 1), (15, 10, 11, 1), (15, 10, 2, 0), (15, 10, 2, 3)])
def test_times_that_do_not_fit_together_are_refused(times: tuple[int, float, float, float]) -> None:
    with pytest.raises(ValueError, match="not times of a Lease"):
        LeaseTimes(*times)


def test_times_in_their_usual_ratio() -> None:
    assert LeaseTimes.of(15) == LeaseTimes()
    assert LeaseTimes.of(2.5).duration_s == 3
