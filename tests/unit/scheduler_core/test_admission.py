"""Growth that waits for the verdict of its VM's pool: what is kept meanwhile, what becomes of it, and who else may ask."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from protocol.reasons import ErrorCode, Reason, ReasonCode
from protocol.values import Bounds, ComputeUnit, Resources
from protocol.wire import AgentRequest, SlotResources
from scheduler.permits.core import decision, events
from scheduler.permits.core.events import PoolVerdict
from scheduler.permits.core.ledger import Cause
from scheduler.permits.core.rules import Rules
from scheduler.permits.core.state import SchedulerConfig
from tests.support.amounts import UNIT, cu
from tests.unit.scheduler_core.core_worlds import (
    EVERYWHERE,
    HERE,
    NEXT_AGENT,
    World,
    codes,
    decided,
    pod,
    rules,
)

ALL, NONE = PoolVerdict(), PoolVerdict(0)
FIRST = 11
"""The ticket of the request that waits."""
POOL, ROOM, BOUNDS = ReasonCode.POOL, ReasonCode.NODE_HEADROOM, ReasonCode.VM_BOUNDS
Ask = Callable[[World, int, int], tuple[events.Output, ...]]


def extended(world: World, units: int, ticket: int) -> tuple[events.Output, ...]:
    """An agent with the extension asks for so many units."""
    return world.take(world.request("vm", cu(units)), ticket)


def published(world: World, units: int, ticket: int, at: float = 0.0) -> tuple[events.Output, ...]:
    """A caller without the extension asks for so many units, after a look that shows one in use."""
    return world.take_published("vm", SlotResources(units, units), ticket, at=at)


BOTH = pytest.mark.parametrize("ask", [extended, published])


def pooled(use: Resources = UNIT, *, most: Resources | None = None, is_new: bool = True) -> World:
    """A world with one VM, `vm`, whose growth waits for the pool `blue`, and which either kind of caller may serve."""
    world = World(config=EVERYWHERE)
    world.vm("vm", use, most=most, is_new=is_new, pool="blue")
    return world


def waiting(want: Resources | None = None, *, world: World | None = None) -> World:
    """An agent waits to grow to `want` (4 units)."""
    world = world or pooled()
    (needed,) = world.take(world.request("vm", want or cu(4)), FIRST)
    assert isinstance(needed, events.AdmissionCallNeeded), needed
    return world


def again(world: World, want: Resources | None = None) -> AgentRequest:
    """The last request of the VM's agent once more, or another one (`want`) under its number."""
    return world.request("vm", want or cu(4), seq=world.record().gate.last)


def refused(outputs: tuple[events.Output, ...]) -> list[tuple[int, int, ErrorCode]]:
    return [(out.ticket, out.status, out.code) for out in outputs if isinstance(out, events.Refused)]


# ------------------------------------------------------------ what waits


@BOTH
def test_growth_asks_the_pool_and_keeps_what_is_wanted(ask: Ask) -> None:
    world = pooled()
    call = events.AdmissionCallNeeded(FIRST, pod("vm"), "uid-vm", "blue", UNIT, cu(7), ComputeUnit(UNIT))
    assert ask(world, 7, FIRST) == (call,)
    assert (world.state().current, world.floors()) == (UNIT, [(Cause.PENDING, cu(7))])
    world.vm("other")
    assert world.permit(world.request("other", cu(8))) == cu(3), "what is pending no other VM can take"
    assert decided(world.pool_says(FIRST, ALL)).permit == cu(7)
    assert world.node_reserved() == cu(10)


@pytest.mark.parametrize("want", [cu(3), cu(1), cu(3, 2)], ids=str)
def test_decreases_and_renewals_never_wait(want: Resources) -> None:
    world = pooled(cu(3))
    assert decided(world.take(world.request("vm", want), 1)).permit == want
    slots = SlotResources(want.vcpu_milli // 1000, want.memory_bytes // 2**30)
    world = pooled(cu(3))
    assert decided(world.take_published("vm", slots, 1, use=cu(3))).permit == want


@pytest.mark.parametrize(
    ("held_back", "others", "code"),
    [
        (rules(stopped=True), cu(0), ReasonCode.STOPPED),
        (rules(recommend_only=True), cu(0), ReasonCode.RECOMMEND_ONLY),
        (rules(), cu(9), ROOM),
    ],
    ids=["stopped", "recommend-only", "no room"],
)
@BOTH
def test_growth_that_no_pool_could_permit_asks_none(
    ask: Ask, held_back: Rules, others: Resources, code: ReasonCode
) -> None:
    world = pooled()
    world.other_pod("filler", others)
    world.configure(held_back)
    answer = decided(ask(world, 4, 1))
    assert (answer.permit, codes(answer)) == (UNIT, [code])


def test_the_pool_is_asked_for_what_every_other_limit_allows() -> None:
    world = pooled(most=cu(6))
    world.other_pod("filler", cu(5))
    (needed,) = extended(world, 9, FIRST)
    assert isinstance(needed, events.AdmissionCallNeeded)
    assert needed.wanted == cu(5)
    answer = decided(world.pool_says(FIRST, ALL))
    assert (answer.permit, codes(answer)) == (cu(5), [ROOM, BOUNDS])


def test_the_decrease_in_a_mixed_request_counts_at_once() -> None:
    """The agent gave the CPUs back already; only the memory waits."""
    world = pooled(cu(4, 2))
    world.read("vm", cu(2), at=0.0)
    waiting(cu(2, 5), world=world)
    assert (world.state().current, world.state().reserved) == (cu(2), cu(2, 5))
    world.vm("other")
    assert world.permit(world.request("other", cu(8, 1))) == cu(8, 1)


@pytest.mark.parametrize(("total", "permit"), [(None, cu(2, 5)), (4, cu(2, 4)), (0, cu(2))])
def test_a_mixed_request_is_told_as_the_change_that_it_is(total: int | None, permit: Resources) -> None:
    world = waiting(cu(2, 5), world=pooled(cu(4, 2)))
    answer = decided(world.pool_says(FIRST, PoolVerdict(total)))
    assert (answer.before, answer.permit, answer.changed) == (cu(4, 2), permit, True)


# ------------------------------------------------------------ the verdict


@pytest.mark.parametrize(("total", "permit"), [(None, 4), (4, 4), (9, 4), (3, 3), (1, 1), (0, 1)])
@BOTH
def test_the_verdict_is_the_last_limit(ask: Ask, total: int | None, permit: int) -> None:
    world = pooled()
    ask(world, 4, FIRST)
    assert world.pool_says(99, ALL) == (), "a verdict for nobody"
    answer = decided(world.pool_says(FIRST, PoolVerdict(total)))
    assert (answer.ticket, answer.permit, answer.changed) == (FIRST, cu(permit), permit != 1)
    assert codes(answer) == ([] if permit == 4 else [POOL])
    assert (world.state().current, world.floors()) == (cu(permit), [])
    assert world.core.state.admission_calls == {}
    assert world.record().owned_by_published is (ask is published)
    assert world.pool_says(FIRST, ALL) == ()


def test_the_pools_own_reason_is_told_where_it_cuts_and_remembered_for_retries() -> None:
    why = Reason(POOL, "quota of blue is used up", retry_after_s=7.5)
    world = waiting()
    answer = decided(world.pool_says(FIRST, PoolVerdict(2, why)))
    assert (answer.permit, answer.reasons) == (cu(2), (why,))
    repeated = decided(world.take(again(world), 12))
    assert (repeated.permit, repeated.reasons, repeated.changed) == (cu(2), (why,), False)
    assert decided(waiting().pool_says(FIRST, PoolVerdict(4, why))).reasons == ()


def test_a_refusal_of_the_pool_is_no_pressure_on_the_node() -> None:
    world = pooled()
    world.other_pod("filler", cu(5))
    waiting(cu(8), world=world)
    assert world.account().pressure == cu(3)
    decided(world.pool_says(FIRST, PoolVerdict(3)))
    assert world.account().pressure == cu(0)


def test_a_callers_use_of_now_is_never_cut() -> None:
    """An edit from outside has raised the VM to 3 meanwhile; a permit below that would be fatal to a published caller."""
    world = pooled()
    published(world, 4, FIRST)
    world.read("vm", cu(3), at=1.0)
    assert decided(world.pool_says(FIRST, NONE, at=2.0)).permit == cu(3)


@pytest.mark.parametrize(("verdict", "permit"), [(ALL, cu(4)), (NONE, UNIT)], ids=["all", "nothing"])
def test_an_unsettled_vm_of_a_published_caller_settles_with_the_verdict(
    verdict: PoolVerdict, permit: Resources
) -> None:
    world = pooled(is_new=False)
    published(world, 4, FIRST)
    assert (world.record().settled, world.causes()) == (False, {Cause.START_UP, Cause.PENDING})
    assert decided(world.pool_says(FIRST, verdict)).permit == permit
    assert (world.record().settled, world.floors()) == (True, [(Cause.TOLD, cu(8))])


# ------------------------------------------------------------ undecided


def test_a_pool_that_could_not_be_asked_is_our_fault_and_the_number_may_come_again() -> None:
    world = waiting()
    world.take(again(world), 12)
    outputs = world.pool_says(FIRST, None)
    assert refused(outputs) == [(FIRST, 500, ErrorCode.INTERNAL), (12, 500, ErrorCode.INTERNAL)]
    assert (len(outputs), world.state().current, world.floors()) == (2, UNIT, [])
    ((_, _, code),) = refused(world.take(again(world, cu(5)), 13))
    assert code is ErrorCode.SEQUENCE_REUSED, "undecided is no licence for another body"
    (needed,) = world.take(again(world), 14)
    assert isinstance(needed, events.AdmissionCallNeeded)
    assert world.pool_says(FIRST, ALL) == (), "the old call is over"
    assert decided(world.pool_says(14, ALL)).permit == cu(4)


@pytest.mark.parametrize("at", [5.0, 400.0])
def test_the_core_gives_a_silent_pool_up_by_itself(at: float) -> None:
    world = waiting()
    world.take(again(world), 12, at=1.0)
    assert world.ticked(4.999) == ()
    *outputs, cancelled = [out for out in world.ticked(at) if not isinstance(out, events.ReadNeeded)]
    assert [ticket for ticket, *_ in refused(tuple(outputs))] == [FIRST, 12]
    assert (cancelled, world.floors()) == (events.AdmissionCallCancelled(FIRST), [])
    assert world.pool_says(FIRST, ALL, at=at) == ()
    assert isinstance(world.take(again(world), 13, at=at)[0], events.AdmissionCallNeeded)


def test_how_long_a_pool_may_take_is_configured() -> None:
    world = World(config=SchedulerConfig(HERE, is_first_start=True, admission_call_s=1.5))
    world.vm(pool="blue")
    world.take(world.request("vm", cu(4)), FIRST, at=10.0)
    assert world.ticked(11.4) == ()
    assert len(world.ticked(11.5)) == 2


Act = Callable[[World], tuple[events.Output, ...]]
ENDS: dict[str, tuple[Act, bool, str]] = {
    "the pool cannot be asked": (lambda world: world.pool_says(FIRST, None), False, "could not be asked"),
    "the pool is silent": (lambda world: world.ticked(5.0), True, "could not be asked"),
    "the VM goes": (lambda world: world.apply(events.VmGone(pod("vm"), "uid-vm", 1.0)), True, "overtaken"),
    "the caller asks anew": (lambda world: published(world, 5, 12, at=1.0), True, "overtaken"),
    "an agent asks": (lambda world: world.take(world.request("vm", UNIT), 12, at=1.0), True, "overtaken"),
}


@pytest.mark.parametrize(("end", "is_cancelled", "why"), ENDS.values(), ids=ENDS)
def test_a_published_caller_that_gets_no_verdict_is_hung_up(end: Act, is_cancelled: bool, why: str) -> None:
    world = pooled()
    published(world, 6, FIRST)
    outputs = end(world)
    (hung_up,) = [out for out in outputs if isinstance(out, events.HungUp)]
    assert (hung_up.ticket, why in hung_up.why) == (FIRST, True)
    assert (events.AdmissionCallCancelled(FIRST) in outputs) is is_cancelled
    assert world.pool_says(FIRST, ALL, at=2.0) == ()


# ------------------------------------------------------------ duplicates, higher numbers, later lives


def test_duplicates_join_and_get_the_same_answer_for_which_the_permit_has_not_moved() -> None:
    world = waiting()
    for ticket in (12, 13):
        assert world.take(again(world), ticket) == (events.Joined(ticket, FIRST),)
    first, *others = world.pool_says(FIRST, PoolVerdict(3), at=1.0)
    assert isinstance(first, events.Decided)
    assert (first.before, first.permit, first.changed) == (UNIT, cu(3), True)
    for ticket, other in zip((12, 13), others, strict=True):
        assert isinstance(other, events.Decided)
        assert (other.ticket, other.before, other.changed) == (ticket, cu(3), False)
        assert decision.message(other) == decision.message(first)


@pytest.mark.parametrize(
    ("seq", "want", "code"),
    [(3, cu(4), ErrorCode.SEQUENCE_STALE), (5, cu(5), ErrorCode.SEQUENCE_REUSED)],
    ids=["lower number", "another body"],
)
def test_neither_a_lower_number_nor_another_body_disturbs(seq: int, want: Resources, code: ErrorCode) -> None:
    world = pooled()
    world.take(world.request("vm", cu(4), seq=5), FIRST)
    assert refused(world.take(world.request("vm", want, seq=seq), 12)) == [(12, 409, code)]
    assert decided(world.pool_says(FIRST, ALL)).permit == cu(4)


def test_a_higher_number_cancels_and_the_late_verdict_changes_nothing() -> None:
    world = waiting()
    world.take(again(world), 12)
    cancelled, first, second, answer = world.take(world.request("vm", UNIT), 14)
    assert cancelled == events.AdmissionCallCancelled(FIRST)
    for refusal, ticket in ((first, FIRST), (second, 12)):
        assert isinstance(refusal, events.Refused)
        assert (refusal.ticket, refusal.status, refusal.code) == (ticket, 409, ErrorCode.SEQUENCE_STALE)
        assert refusal.last_sequence_number == 2
    assert decided((answer,)).permit == UNIT
    assert world.pool_says(FIRST, ALL) == ()
    assert world.node_reserved() == UNIT


@BOTH
def test_the_next_request_may_wait_in_turn(ask: Ask) -> None:
    world = pooled()
    ask(world, 8, FIRST)
    cancelled, _, needed = ask(world, 3, 12)
    assert cancelled == events.AdmissionCallCancelled(FIRST)
    assert isinstance(needed, events.AdmissionCallNeeded)
    assert world.floors() == [(Cause.PENDING, cu(3))]
    assert world.pool_says(FIRST, ALL) == ()
    assert decided(world.pool_says(12, ALL)).permit == cu(3)


def test_a_later_life_cancels_and_takes_over_nothing_that_was_only_pending() -> None:
    """The life that waited learns that it is superseded: `stale` would make it go on above the other life's number."""
    world = pooled(cu(2))
    world.read("vm", UNIT, at=0.0)
    waiting(cu(7), world=world)
    later = world.request("vm", UNIT, agent=NEXT_AGENT, started=2000, seq=1)
    cancelled, refusal, answer = world.take(later, 12, at=1.0)
    assert cancelled == events.AdmissionCallCancelled(FIRST)
    assert isinstance(refusal, events.Refused)
    assert (refusal.ticket, refusal.status, refusal.code) == (FIRST, 409, ErrorCode.AGENT_SUPERSEDED)
    assert refusal.current_started_at_ms == 2000
    assert isinstance(answer, events.Decided)
    assert world.floors() == [(Cause.HANDOVER, cu(2))]
    assert world.pool_says(FIRST, ALL) == ()
    assert world.state().reserved == cu(2)


# ------------------------------------------------------------ the world goes on meanwhile


def moves(world: World) -> None:
    """The VM moves to a smaller node, and what is pending goes along."""
    world.node("n2", cu(3))
    world.see("vm", None, at=0.0, node="n2")
    assert (world.node_reserved("n1"), world.node_reserved("n2")) == (cu(0), cu(6))


Change = Callable[[World], object]
MEANWHILE: dict[str, tuple[Change, int | None, Resources, list[ReasonCode]]] = {
    "its bounds fall": (
        lambda world: world.see("vm", None, at=0.0, bounds=Bounds(UNIT, cu(3))),
        None,
        cu(3),
        [BOUNDS],
    ),
    "growth is stopped": (
        lambda world: world.configure(rules(stopped=True)),
        3,
        UNIT,
        [ReasonCode.STOPPED, POOL],
    ),
    "its node shrinks": (lambda world: world.node("n1", cu(3)), None, cu(3), [ROOM]),
    "a pod comes without asking": (lambda world: world.other_pod("filler", cu(8)), None, cu(2), [ROOM]),
    "it begins to migrate": (
        lambda world: world.apply(events.MigrationStarted("uid-vm")),
        None,
        UNIT,
        [ReasonCode.MIGRATING],
    ),
    "it moves": (moves, None, cu(3), [ROOM]),
    "it leaves its pool": (lambda world: world.see("vm", None, at=0.0, pool=None), 2, UNIT, [POOL]),
    "its unit doubles": (lambda world: world.see("vm", None, at=0.0, compute_unit=cu(2)), 3, cu(2), [POOL]),
    "its unit is larger than the verdict": (
        lambda world: world.see("vm", None, at=0.0, compute_unit=cu(4)),
        3,
        UNIT,
        [POOL],
    ),
    "its unit is halved": (
        lambda world: world.see("vm", None, at=0.0, compute_unit=cu(0.5)),
        3,
        cu(3),
        [POOL],
    ),
}


@pytest.mark.parametrize(("change", "total", "permit", "why"), MEANWHILE.values(), ids=MEANWHILE)
@BOTH
def test_what_changes_meanwhile_holds(
    ask: Ask, change: Change, total: int | None, permit: Resources, why: list[ReasonCode]
) -> None:
    world = pooled()
    ask(world, 6, FIRST)
    change(world)
    answer = decided(world.pool_says(FIRST, PoolVerdict(total)))
    assert (answer.permit, codes(answer)) == (permit, why)
    assert answer.migrate is (ask is extended and why == [ReasonCode.MIGRATING])
    assert not any(account.over for account in world.core.ledger.nodes())
    assert world.core.ledger.row(world.record().spec.holder) is not None
    assert Cause.PENDING not in world.causes()


@pytest.mark.parametrize("is_gone", [True, False], ids=["node gone", "node without a unit"])
def test_without_a_unit_nothing_is_granted_and_a_published_caller_is_hung_up(is_gone: bool) -> None:
    for ask in (extended, published):
        world = pooled()
        ask(world, 6, FIRST)
        if is_gone:
            world.apply(events.NodeGone("n1"))
        else:
            world.node("n1", cu(10), None)
        (answer,) = world.pool_says(FIRST, ALL)
        if ask is published:
            assert isinstance(answer, events.HungUp)
        else:
            assert decided((answer,)).permit == UNIT
            assert codes(answer) == [ReasonCode.COMPUTE_UNIT]
        assert (world.floors(), world.state().current) == ([], UNIT)


@BOTH
def test_more_room_meanwhile_is_not_the_pools_verdict(ask: Ask) -> None:
    """ "All of it" was said of the 4 units that were asked for, and only they were kept."""
    world = pooled()
    world.other_pod("filler", cu(6))
    ask(world, 8, FIRST)
    world.other_pod("filler", UNIT)
    answer = decided(world.pool_says(FIRST, ALL))
    assert (answer.permit, codes(answer), answer.reasons[0].retry_after_s) == (cu(4), [POOL], 0.0)


@pytest.mark.parametrize(("bound", "reached"), [(cu(3), cu(3)), (cu(3.5), cu(3)), (cu(2, 3), cu(2))], ids=str)
def test_raised_bounds_are_not_the_pools_verdict_and_those_of_before_may_be_reached(
    bound: Resources, reached: Resources
) -> None:
    for most, permit in ((cu(8), reached), (bound, bound)):
        world = waiting(cu(6), world=pooled(most=bound))
        world.see("vm", None, at=0.0, bounds=Bounds(UNIT, most))
        answer = decided(world.pool_says(FIRST, ALL))
        assert (answer.permit, codes(answer)) == (permit, [POOL if most == cu(8) else BOUNDS])


@pytest.mark.parametrize("how", ["gone", "terminal", "replaced"])
def test_a_vm_that_goes_meanwhile_is_404_to_all_who_wait(how: str) -> None:
    world = waiting()
    world.take(again(world), 12)
    spec = world.record().spec
    seen = replace(spec, terminal=True) if how == "terminal" else replace(spec, uid="second")
    cancelled, *outputs = world.apply(
        events.VmGone(spec.pod, spec.uid, 1.0) if how == "gone" else events.VmSeen(seen, None, 1.0)
    )
    assert cancelled == events.AdmissionCallCancelled(FIRST)
    unknown = ErrorCode.UNKNOWN_POD
    assert refused(tuple(outputs)) == [(FIRST, 404, unknown), (12, 404, unknown)]
    assert world.pool_says(FIRST, ALL) == ()
    assert world.core.state.admission_calls == {}


# ------------------------------------------------------------ both kinds of callers on one VM


@pytest.mark.parametrize(("total", "permit"), [(None, cu(6)), (0, UNIT)], ids=["all", "nothing"])
def test_a_bystander_gets_neither_what_is_pending_nor_more_later(
    total: int | None, permit: Resources
) -> None:
    world = waiting(cu(6))
    answer = decided(published(world, 6, 12, at=1.0))
    assert (answer.permit, codes(answer)) == (UNIT, [ReasonCode.BYSTANDER])
    assert world.core.state.admission_calls.keys() == {FIRST}
    assert decided(world.pool_says(FIRST, PoolVerdict(total), at=2.0)).permit == permit
    assert decided(published(world, 6, 13, at=3.0)).permit == permit
    assert world.state().reserved == permit


def test_a_retry_does_not_join_the_call_of_another_kind_of_caller_but_ends_it() -> None:
    """It would wait for an answer that never comes to it. The other caller is a bystander once the agent is back."""
    world = pooled()
    old = world.request("vm", UNIT)
    world.take(old, 1, at=0.0)
    (needed,) = published(world, 4, FIRST, at=100.0)  # the agent has been silent for a hand-over
    assert isinstance(needed, events.AdmissionCallNeeded)
    cancelled, hung_up, answer = world.take(old, 12, at=101.0)
    assert cancelled == events.AdmissionCallCancelled(FIRST)
    assert isinstance(hung_up, events.HungUp)
    assert (decided((answer,)).ticket, world.pool_says(FIRST, ALL, at=102.0)) == (12, ())
    assert decided(published(world, 4, 13, at=103.0)).permit == UNIT


def test_a_retry_of_an_answer_that_was_not_kept_hands_over_what_the_other_caller_had() -> None:
    """The agent was told to ask again (unsettled), so its retry is judged; what the other caller was told may be in use."""
    world = World(config=EVERYWHERE)
    world.vm("vm", UNIT, is_new=False)
    old = world.request("vm", UNIT, claim=UNIT, names=None)
    world.take(old, 1, at=0.0)
    assert decided(published(world, 6, 2, at=100.0)).permit == cu(6)
    world.read("vm", UNIT, at=110.0)  # it has begun no resize yet
    world.ticked(200.0)
    world.take(old, 3, at=201.0)
    assert cu(6).fits_in(world.state().reserved)
