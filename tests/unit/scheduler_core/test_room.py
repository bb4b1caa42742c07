"""A full node negotiates: who is told of room and for how long, who is asked to give some back, and what comes of it.

Laws for every course of events are those of tests/machines/negotiation_laws.py.
"""

import dataclasses
from typing import Any

from protocol.values import ZERO, Observation, Resources
from protocol.wire import AgentRequest
from scheduler.permits.core import events, snapshots
from scheduler.permits.core.core import Core
from scheduler.permits.core.ledger import Cause
from scheduler.permits.core.model import Holder, Kind
from scheduler.permits.service.inputs import CorePlacements
from scheduler.ports import NotLeadingError
from tests.support.amounts import UNIT, cu
from tests.unit.scheduler_core.core_worlds import NEXT_AGENT, World, pod


def full(*names: str, of: Resources | None = None) -> World:
    """A node that is full of VMs of two units, or of that size, each of which has asked for what it has."""
    size = of or cu(2)
    world = World(size * len(names))
    for name in names:
        world.vm(name, size)
        says(world, name, size)
    return world


def says(
    world: World,
    name: str,
    want: Resources,
    *,
    at: float = 0.0,
    request: AgentRequest | None = None,
    **means: Any,
) -> tuple[events.Output, ...]:
    """What comes of a request beside its answer; it claims what the VM has by the ledger."""
    claim = current(world, name)
    asked = request or world.request(name, want, claim=claim, apart=True, **means)
    _, *notices = world.take(asked, 1, at=at)
    return tuple(notices)


def gives(world: World, name: str, down_to: Resources, *, at: float = 1.0) -> tuple[events.Output, ...]:
    """What comes of it when a VM shrinks, and the cluster shows that, beside the read that somebody waits for."""
    told = says(world, name, down_to, at=at) + world.apply(seen(world, name, down_to, at=at))
    return tuple(each for each in told if not isinstance(each, events.ReadNeeded))


def seen(world: World, name: str, size: Resources, *, at: float = 1.0) -> events.VmSeen:
    return events.VmSeen(world.record(name).spec, Observation(size, size, at), at)


def current(world: World, name: str) -> Resources:
    return world.record(name).row.state.current


def offered(name: str, amount: Resources) -> events.RoomOffered:
    return events.RoomOffered(pod(name), f"uid-{name}", "n1", amount)


def kept(core: Core, name: str) -> Resources:
    """The amount that is kept for a VM that was told of it."""
    record = core.vms.find(pod(name))
    assert record is not None
    found = [each.amount for each in record.row.state.floors if each.cause is Cause.OFFERED]
    return found[0] if found else ZERO


def asked(outputs: tuple[events.Output, ...]) -> dict[str, Resources]:
    """Who is asked for how much."""
    return {each.pod.name: each.amount for each in outputs if isinstance(each, events.YieldAsked)}


def ended(outputs: tuple[events.Output, ...]) -> list[tuple[str, Resources, str]]:
    return [(each.pod.name, each.amount, each.why) for each in outputs if isinstance(each, events.YieldEnded)]


def test_freed_room_is_kept_for_the_one_who_waits_until_it_asks() -> None:
    world = full("a", "b")
    assert says(world, "b", cu(3)) == ()
    assert gives(world, "a", UNIT) == (offered("b", cu(3)),)
    assert kept(world.core, "b") == cu(3)
    assert world.permit(world.request("a", cu(2), claim=UNIT)) == UNIT
    says(world, "b", cu(3), at=1.0)
    assert (current(world, "b"), kept(world.core, "b")) == (cu(3), ZERO)


def test_room_that_nobody_comes_for_is_free_again_and_offered_to_others() -> None:
    world = full("a", "b", "c")
    says(world, "b", cu(3), priority=7)
    says(world, "c", cu(3))
    assert gives(world, "a", UNIT) == (offered("b", cu(3)),)
    assert world.ticked(10.9) == ()
    lapsed = events.OfferLapsed(pod("b"), "uid-b", "n1", UNIT)
    assert world.ticked(11.0) == (lapsed, offered("c", cu(3)))
    says(world, "c", cu(3), at=12.0)
    assert current(world, "c") == cu(3)
    gives(world, "c", cu(2), at=13.0)
    assert kept(world.core, "b") == ZERO, "it waits no more, until it asks again"
    assert world.record("b").waiting is None


def test_a_vm_that_has_given_something_is_read_at_once_if_somebody_waits_for_it() -> None:
    world = full("a", "b")
    assert says(world, "a", UNIT) == ()
    world = full("a", "b")
    says(world, "b", cu(3))
    assert says(world, "a", UNIT, at=1.0) == (events.ReadNeeded(pod("a")),)
    assert says(world, "a", UNIT, at=1.5) == ()


def test_nobody_keeps_what_was_freed_for_one_that_has_gone() -> None:
    world = full("a", "b", "c")
    says(world, "b", cu(3), priority=7)
    says(world, "c", cu(3))
    gives(world, "a", UNIT)
    gone = world.apply(events.VmGone(pod("b"), "uid-b", 1.0))
    assert gone == (offered("c", cu(3)),)


def test_a_vm_that_moves_takes_no_offer_of_its_old_node_along() -> None:
    world = full("a", "b", "c")
    says(world, "b", cu(3), priority=7)
    says(world, "c", cu(3))
    gives(world, "a", UNIT)
    world.node("n2", cu(2))
    spec = dataclasses.replace(world.record("b").spec, node="n2")
    moved = world.apply(events.VmSeen(spec, Observation(cu(2), cu(2), 2.0), 2.0))
    assert moved == (offered("c", cu(3)),)
    record = world.record("b")
    assert (record.row.reserved, record.waiting) == (cu(2), None)


def test_room_that_was_offered_is_not_the_former_agents() -> None:
    world = full("a", "b")
    says(world, "b", cu(3))
    gives(world, "a", UNIT)
    later = world.request("b", cu(2), agent=NEXT_AGENT, started=2000, claim=cu(2))
    says(world, "b", cu(2), at=1.0, request=later)
    assert world.record("b").row.reserved == cu(2)


def test_a_vm_of_a_pool_that_got_a_part_waits_for_the_rest_at_once() -> None:
    world = full("a", "b")
    world.see("b", None, at=0.0, pool="blue")
    gives(world, "a", UNIT)
    world.take(world.request("b", cu(5), claim=cu(2)), 2)
    world.pool_says(2, events.PoolVerdict())
    waiting = world.record("b").waiting
    assert (current(world, "b"), waiting.wanted if waiting else None) == (cu(3), cu(5))


def test_a_neighbour_is_asked_and_what_it_gives_is_offered() -> None:
    world = full("a", "b")
    says(world, "a", cu(2), spare=UNIT)
    assert asked(says(world, "b", cu(4))) == {"a": UNIT}
    outputs = gives(world, "a", UNIT)
    assert ended(outputs) == [("a", UNIT, "")]
    assert offered("b", cu(3)) in outputs


def test_a_refusal_is_the_next_ones_turn() -> None:
    world = full("a", "b", "c")
    says(world, "a", cu(2), spare=UNIT)
    says(world, "b", cu(2), spare=UNIT, priority=3)
    assert asked(says(world, "c", cu(3))) == {"a": UNIT}
    outputs = says(world, "a", cu(2), at=1.0)
    assert ended(outputs) == [("a", ZERO, "it has no more to spare")]
    assert asked(outputs) == {"b": UNIT}


def test_silence_is_a_refusal_after_a_while() -> None:
    world = full("a", "b", "c")
    for name, priority in (("a", 0), ("b", 3)):
        says(world, name, cu(2), spare=UNIT, priority=priority)
    says(world, "c", cu(3))
    assert ended(world.ticked(19.9)) == []
    outputs = world.ticked(20.0)
    assert [name for name, _, _ in ended(outputs)] == ["a"]
    assert asked(outputs) == {"b": UNIT}


def test_who_gave_goes_first_among_its_like() -> None:
    world = full("a", "b", "c")
    says(world, "a", cu(2), spare=UNIT)
    says(world, "b", cu(3))
    gives(world, "a", UNIT)
    says(world, "b", cu(3), at=1.0)
    world.apply(seen(world, "b", cu(3)))
    says(world, "c", cu(3), at=2.0)
    says(world, "a", cu(2), at=3.0)
    assert gives(world, "b", cu(2), at=4.0) == (offered("a", cu(2)),)


def test_who_was_asked_and_gave_nothing_does_not_go_first() -> None:
    world = full("a", "b", "c", "d")
    says(world, "a", cu(2), spare=UNIT)
    says(world, "b", cu(3))
    says(world, "a", cu(2), at=1.0)
    says(world, "b", cu(2), at=1.0)
    says(world, "c", cu(3), at=2.0)
    says(world, "a", cu(3), at=3.0)
    assert gives(world, "d", UNIT, at=4.0) == (offered("c", cu(3)),)


def test_one_that_soon_needs_what_it_gave_is_left_alone_for_longer() -> None:
    world = full("a", "b", of=cu(4))
    rests = []
    at = 0.0
    for _ in range(3):
        says(world, "a", cu(4), at=at, spare=UNIT)
        assert asked(says(world, "b", cu(5), at=at)) == {"a": UNIT}
        gives(world, "a", cu(3), at=at)
        says(world, "b", cu(5), at=at)
        says(world, "a", cu(4), at=at + 1)  # it needs that again
        rests.append(world.record("a").rests_until_s - at - 1)
        gives(world, "b", cu(4), at=at + 2)
        says(world, "a", cu(4), at=at + 2)
        at = world.record("a").rests_until_s
    assert rests[0] < rests[1] < rests[2]
    assert rests[1] == 2 * rests[0]


def test_what_a_node_negotiates_goes_on_after_a_snapshot() -> None:
    world = full("a", "b", "c")
    says(world, "a", cu(2), spare=UNIT)
    says(world, "b", cu(3))
    says(world, "c", cu(3))
    again = snapshots.restore(snapshots.snapshot_of(world.core))
    arrived = events.RequestArrived(5, world.request("a", UNIT, claim=cu(2), apart=True), 1.0)
    for event in (arrived, seen(world, "a", UNIT), events.ClockTicked(20.0)):
        assert again.apply(event) == world.core.apply(event)
    assert kept(again, "c") == cu(3), "the first has not come for it"


def test_room_that_a_placement_gives_back_is_offered_and_the_placer_has_its_answer() -> None:
    world = full("a", "b")
    placements = CorePlacements(world.core, world.apply, lambda: 1.0, lambda *_: None)
    world.node("n1", cu(6))
    holder = Holder(Kind.POD, "uid-new")
    assert placements.assume(holder, "d/new", "n1", cu(2), until_s=60.0) is None
    says(world, "b", cu(3))
    assert placements.assume(holder, "d/new", "n1", UNIT, until_s=60.0) is None
    assert kept(world.core, "b") == cu(3)


def exceeded(excess: Resources, *names: str, at: float = 0.0) -> events.QuotaExceeded:
    return events.QuotaExceeded("team-a", excess, tuple(f"uid-{name}" for name in names), at)


def test_a_quota_that_holds_too_much_asks_its_own_vms_for_no_more_than_that() -> None:
    world = full("a", "b", "c", of=cu(4))
    for name in ("a", "b", "c"):
        says(world, name, cu(4), spare=cu(2))
    outputs = world.apply(exceeded(cu(3), "a", "b"))
    assert asked(outputs) == {"a": cu(2), "b": cu(1)}
    assert {str(each.beneficiary) for each in outputs if isinstance(each, events.YieldAsked)} == {
        "the lenders of quota team-a"
    }
    assert world.apply(exceeded(cu(3), "a", "b", "c", at=1.0)) == (), "that much was asked for already"
    assert ended(gives(world, "a", cu(2))) == [("a", cu(2), "")]
    assert asked(world.apply(exceeded(cu(2), "a", "b", "c", at=2.0))) == {"c": cu(1)}


def test_a_quota_has_no_claim_to_more_than_its_vms_can_give() -> None:
    world = full("a", "b", of=cu(4))
    says(world, "a", cu(4), spare=cu(1))
    says(world, "b", cu(4), spare=cu(1), spare_to_higher=cu(3), priority=9)
    assert asked(world.apply(exceeded(cu(2), "a", "b"))) == {"a": cu(1), "b": cu(1)}, "comfort is enough"
    world = full("a", "b", of=cu(4))
    says(world, "a", cu(4))
    says(world, "b", cu(4), spare=cu(1), spare_to_higher=cu(3), priority=9)
    assert asked(world.apply(exceeded(cu(8), "a", "b", "gone"))) == {"b": cu(3)}


def test_the_core_is_told_of_a_quota_again_when_something_has_changed_or_vms_may_have_rested() -> None:
    times = [0.0]
    inputs: list[events.Input] = []

    def take(event: events.Input) -> tuple[events.Output, ...]:
        inputs.append(event)
        if len(inputs) == 3:
            raise NotLeadingError(None)
        return ()

    port = CorePlacements(World(cu(4)).core, take, lambda: times[0], lambda *_: None)
    for times[0], excess in ((0.0, cu(2)), (4.9, cu(2)), (4.9, cu(1)), (5.0, cu(2))):
        port.ask_back("team-a", excess, ["uid-a"])
    assert [(each.excess, each.now_s) for each in inputs if isinstance(each, events.QuotaExceeded)] == [
        (cu(2), 0.0),
        (cu(1), 4.9),
        (cu(2), 5.0),
    ]
