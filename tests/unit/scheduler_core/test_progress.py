"""Growth that waits for a pool: what is kept meanwhile, what the word makes of it, and who else may ask."""

from dataclasses import replace

import pytest

from protocol.reasons import ErrorCode, Reason, ReasonCode
from protocol.values import Bounds, Resources
from protocol.wire import AgentRequest
from scheduler.core import events, replies
from scheduler.core.ledger import Cause
from scheduler.core.rules import Rules
from scheduler.core.state import SchedulerConfig
from tests.unit.scheduler_core.core_worlds import (
    HERE,
    NEXT_AGENT,
    UNIT,
    AuditedWorld,
    codes,
    cu,
    pod,
    rules,
)

ALL = events.PoolVerdict()
NONE = events.PoolVerdict(0)
LEADER = 11


def pooled(
    use: Resources = UNIT,
    *,
    reservable: Resources | None = None,
    config: SchedulerConfig | None = None,
    most: Resources | None = None,
) -> AuditedWorld:
    """A world with one VM, `vm`, whose growth waits for the pool `blue`."""
    world = AuditedWorld(reservable, config=config)
    world.vm("vm", use, most=most)
    world.see("vm", None, at=0.0, pool="blue")
    return world


def begin(world: AuditedWorld, want: Resources, *, at: float = 0.0) -> events.AdmissionCallNeeded:
    """An agent's growth to `want` waits under the ticket `LEADER`."""
    (needed,) = world.take(world.request("vm", want), LEADER, at=at)
    assert isinstance(needed, events.AdmissionCallNeeded), needed
    return needed


def consulting(want: Resources | None = None, use: Resources = UNIT) -> AuditedWorld:
    """A world whose VM waits to grow to `want` (4 units)."""
    world = pooled(use)
    begin(world, want or cu(4))
    return world


def decided(outputs: tuple[events.Output, ...]) -> events.Decided:
    """The only output, a decision."""
    (answer,) = outputs
    assert isinstance(answer, events.Decided), answer
    return answer


def again(world: AuditedWorld, want: Resources) -> AgentRequest:
    """The last request of the VM's agent once more."""
    return world.request("vm", want, seq=world.record().gate.last)


# ------------------------------------------------------------ what waits


def test_growth_asks_the_pool_and_keeps_what_is_wanted() -> None:
    world = pooled()
    assert begin(world, cu(4)) == events.AdmissionCallNeeded(
        LEADER, pod("vm"), "uid-vm", "blue", UNIT, cu(4), UNIT
    )
    assert (world.state().current, world.floors()) == (UNIT, [(Cause.PENDING, cu(4))])


def test_what_is_pending_no_other_vm_can_take() -> None:
    world = consulting(cu(7))
    world.vm("other")
    assert world.permit(world.request("other", cu(8))) == cu(3)
    assert decided(world.told(LEADER, ALL)).permit == cu(7)
    assert world.node_reserved() == cu(10)


@pytest.mark.parametrize("want", [cu(3), cu(1), cu(3, 2)])
def test_decreases_and_renewals_never_wait(want: Resources) -> None:
    world = pooled(cu(3))
    assert decided(world.take(world.request("vm", want), 1)).permit == want
    assert world.record().admission is None


@pytest.mark.parametrize("held_back", [rules(stopped=True), rules(recommend_only=True)])
def test_growth_that_no_pool_could_permit_asks_none(held_back: Rules) -> None:
    world = pooled()
    world.configure(held_back)
    assert decided(world.take(world.request("vm", cu(4)), 1)).permit == UNIT


def test_growth_without_any_room_asks_no_pool() -> None:
    world = pooled()
    world.other_pod("filler", cu(9))
    assert codes(decided(world.take(world.request("vm", cu(4)), 1))) == [ReasonCode.NODE_HEADROOM]


def test_the_pool_is_asked_for_what_every_other_limit_allows() -> None:
    world = pooled(most=cu(6))
    world.other_pod("filler", cu(5))
    assert begin(world, cu(9)).wanted == cu(5)
    answer = decided(world.told(LEADER, ALL))
    assert (answer.permit, codes(answer)) == (cu(5), [ReasonCode.NODE_HEADROOM, ReasonCode.VM_BOUNDS])


def test_the_decrease_in_a_mixed_request_counts_at_once() -> None:
    """The agent gave the CPUs back already; only the memory waits."""
    world = pooled(cu(4, 2))
    world.read("vm", cu(2), at=0.0)
    needed = begin(world, cu(2, 5))
    assert (needed.current, needed.wanted) == (cu(2), cu(2, 5))
    assert (world.state().current, world.state().reserved) == (cu(2), cu(2, 5))
    world.vm("other")
    assert world.permit(world.request("other", cu(8, 1))) == cu(8, 1)


@pytest.mark.parametrize(
    ("word", "permit"), [(ALL, cu(2, 5)), (events.PoolVerdict(4), cu(2, 4)), (NONE, cu(2))]
)
def test_a_mixed_request_is_told_as_the_change_that_it_is(
    word: events.PoolVerdict, permit: Resources
) -> None:
    world = pooled(cu(4, 2))
    begin(world, cu(2, 5))
    answer = decided(world.told(LEADER, word))
    assert (answer.before, answer.permit, answer.changed) == (cu(4, 2), permit, True)


# ------------------------------------------------------------ the word


@pytest.mark.parametrize(
    ("word", "permit"),
    [
        (ALL, cu(4)),
        (events.PoolVerdict(4), cu(4)),
        (events.PoolVerdict(9), cu(4)),
        (events.PoolVerdict(3), cu(3)),
        (events.PoolVerdict(1), UNIT),
        (NONE, UNIT),
    ],
)
def test_the_word_is_the_last_limit(word: events.PoolVerdict, permit: Resources) -> None:
    world = consulting()
    answer = decided(world.told(LEADER, word))
    assert (answer.ticket, answer.permit, answer.changed) == (LEADER, permit, permit != UNIT)
    assert codes(answer) == ([] if permit == cu(4) else [ReasonCode.POOL])
    assert (world.state().current, world.floors()) == (permit, [])
    assert world.core.state.admission_calls == {}


def test_the_pools_own_reason_is_told() -> None:
    why = Reason(ReasonCode.POOL, "quota of blue is used up", retry_after_s=7.5)
    answer = decided(consulting().told(LEADER, events.PoolVerdict(2, why)))
    assert (answer.permit, answer.reasons) == (cu(2), (why,))


def test_a_reason_without_a_cut_is_not_told() -> None:
    why = Reason(ReasonCode.POOL, "nearly full")
    assert decided(consulting().told(LEADER, events.PoolVerdict(4, why))).reasons == ()


def test_a_refusal_of_the_pool_is_no_pressure_on_the_node() -> None:
    world = pooled()
    world.other_pod("filler", cu(5))
    begin(world, cu(8))
    assert world.account().pressure == cu(3)
    decided(world.told(LEADER, events.PoolVerdict(3)))
    assert world.account().pressure == cu(0)


def test_a_word_for_nobody_changes_nothing() -> None:
    world = consulting()
    assert world.told(99, ALL) == ()
    decided(world.told(LEADER, events.PoolVerdict(2)))
    assert world.told(LEADER, ALL) == ()
    assert world.state().current == cu(2)


def test_the_answer_is_remembered_for_retries() -> None:
    world = consulting()
    decided(world.told(LEADER, events.PoolVerdict(2)))
    answer = decided(world.take(again(world, cu(4)), 12))
    assert (answer.permit, codes(answer), answer.changed) == (cu(2), [ReasonCode.POOL], False)


# ------------------------------------------------------------ undecided


def test_a_pool_that_could_not_be_asked_is_500_and_grants_nothing() -> None:
    world = consulting()
    world.take(again(world, cu(4)), 12)
    refused = world.told(LEADER, None)
    assert [
        (each.ticket, each.status, each.code) for each in refused if isinstance(each, events.Refused)
    ] == [
        (LEADER, 500, ErrorCode.INTERNAL),
        (12, 500, ErrorCode.INTERNAL),
    ]
    assert len(refused) == 2
    assert (world.state().current, world.floors()) == (UNIT, [])


def test_the_same_number_is_processed_anew_after_that() -> None:
    world = consulting()
    world.told(LEADER, None)
    (needed,) = world.take(again(world, cu(4)), 12)
    assert isinstance(needed, events.AdmissionCallNeeded)
    assert world.told(LEADER, ALL) == ()  # the old question is over
    assert decided(world.told(12, ALL)).permit == cu(4)


def test_undecided_is_no_licence_for_another_body() -> None:
    world = consulting()
    world.told(LEADER, None)
    (refused,) = world.take(again(world, cu(5)), 12)
    assert isinstance(refused, events.Refused)
    assert refused.code is ErrorCode.SEQUENCE_REUSED


@pytest.mark.parametrize("at", [5.0, 400.0])
def test_the_core_gives_a_silent_pool_up_by_itself(at: float) -> None:
    world = consulting()
    world.take(again(world, cu(4)), 12, at=1.0)
    assert world.ticked(4.999) == ()
    *refused, cancelled = [out for out in world.ticked(at) if not isinstance(out, events.ReadNeeded)]
    assert [out.ticket for out in refused if isinstance(out, events.Refused)] == [LEADER, 12]
    assert cancelled == events.AdmissionCallCancelled(LEADER)
    assert world.floors() == []
    assert world.told(LEADER, ALL, at=at) == ()
    assert isinstance(world.take(again(world, cu(4)), 13, at=at)[0], events.AdmissionCallNeeded)


def test_the_time_of_the_core_is_a_term() -> None:
    world = pooled(config=SchedulerConfig(HERE, is_first_start=True, admission_call_s=1.5))
    begin(world, cu(4), at=10.0)
    assert world.ticked(11.4) == ()
    assert len(world.ticked(11.5)) == 2


# ------------------------------------------------------------ duplicates, higher numbers, later lives


def test_duplicates_join_and_get_the_same_answer_with_their_own_tickets() -> None:
    world = consulting()
    duplicate = again(world, cu(4))
    assert world.take(duplicate, 12) == (events.Joined(12, LEADER),)
    assert world.take(duplicate, 13) == (events.Joined(13, LEADER),)
    first, *others = world.told(LEADER, events.PoolVerdict(3))
    assert isinstance(first, events.Decided)
    assert [out.ticket for out in others if isinstance(out, events.Decided)] == [12, 13]
    for other in others:
        assert isinstance(other, events.Decided)
        assert replies.message(other) == replies.message(first)


def test_for_a_duplicate_the_permit_has_not_moved() -> None:
    world = consulting()
    world.take(again(world, cu(4)), 12, at=0.0)
    leader, joined = world.told(LEADER, ALL, at=1.0)
    assert isinstance(leader, events.Decided)
    assert isinstance(joined, events.Decided)
    assert (leader.before, leader.changed) == (UNIT, True)
    assert (joined.permit, joined.before, joined.changed) == (cu(4), cu(4), False)


@pytest.mark.parametrize(("seq", "want", "code"), [(3, cu(4), "stale"), (5, cu(5), "reused")])
def test_neither_a_lower_number_nor_another_body_disturbs(seq: int, want: Resources, code: str) -> None:
    world = pooled()
    world.take(world.request("vm", cu(4), seq=5), LEADER)
    (refused,) = world.take(world.request("vm", want, seq=seq), 12)
    assert isinstance(refused, events.Refused)
    assert refused.code == f"sequence-{code}"
    assert decided(world.told(LEADER, ALL)).permit == cu(4)


def test_a_higher_number_cancels_and_the_late_word_changes_nothing() -> None:
    world = consulting()
    world.take(again(world, cu(4)), 12)
    cancelled, first, second, answer = world.take(world.request("vm", UNIT), 14)
    assert cancelled == events.AdmissionCallCancelled(LEADER)
    for refused, ticket in ((first, LEADER), (second, 12)):
        assert isinstance(refused, events.Refused)
        assert (refused.ticket, refused.status, refused.code) == (ticket, 409, ErrorCode.SEQUENCE_STALE)
        assert refused.last_sequence_number == 2
    assert isinstance(answer, events.Decided)
    assert (answer.ticket, answer.permit) == (14, UNIT)
    assert world.told(LEADER, ALL) == ()
    assert world.node_reserved() == UNIT


def test_a_higher_number_may_wait_in_turn() -> None:
    world = consulting(cu(8))
    *_, needed = world.take(world.request("vm", cu(3)), 12)
    assert isinstance(needed, events.AdmissionCallNeeded)
    assert world.floors() == [(Cause.PENDING, cu(3))]
    assert decided(world.told(12, ALL)).permit == cu(3)


def superseded() -> tuple[AuditedWorld, tuple[events.Output, ...]]:
    """An agent at 2 units, of which 1 is in use, waits for 7 when a life that started later asks for 1."""
    world = pooled(cu(2))
    world.read("vm", UNIT, at=0.0)
    begin(world, cu(7))
    later = world.request("vm", UNIT, agent=NEXT_AGENT, started=2000, seq=1)
    return world, world.take(later, 12, at=1.0)


def test_a_later_life_cancels_and_takes_over_nothing_that_was_only_pending() -> None:
    world, (cancelled, refused, answer) = superseded()
    assert cancelled == events.AdmissionCallCancelled(LEADER)
    assert isinstance(refused, events.Refused)
    assert (refused.ticket, refused.status) == (LEADER, 409)
    assert isinstance(answer, events.Decided)
    assert world.floors() == [(Cause.HANDOVER, cu(2))]
    assert world.told(LEADER, ALL) == ()
    assert world.state().reserved == cu(2)


def test_the_life_that_waited_learns_that_it_is_superseded() -> None:
    """`stale` would make it go on above the other life's number, and be refused once more."""
    _, (_, refused, _) = superseded()
    assert isinstance(refused, events.Refused)
    assert (refused.code, refused.current_started_at_ms) == (ErrorCode.AGENT_SUPERSEDED, 2000)


# ------------------------------------------------------------ the world goes on meanwhile


def test_bounds_lowered_meanwhile_hold() -> None:
    world = consulting(cu(6))
    world.see("vm", None, at=0.0, bounds=Bounds(UNIT, cu(3)))
    answer = decided(world.told(LEADER, ALL))
    assert (answer.permit, codes(answer)) == (cu(3), [ReasonCode.VM_BOUNDS])


def test_a_stop_meanwhile_holds() -> None:
    world = consulting(cu(6))
    world.configure(rules(stopped=True))
    answer = decided(world.told(LEADER, events.PoolVerdict(3)))
    assert (answer.permit, codes(answer)) == (UNIT, [ReasonCode.STOPPED, ReasonCode.POOL])


def test_a_smaller_node_meanwhile_holds() -> None:
    world = consulting(cu(6))
    world.node("n1", cu(3))
    assert decided(world.told(LEADER, ALL)).permit == cu(3)
    assert world.over() == set()


def test_what_others_took_meanwhile_without_asking_holds() -> None:
    world = consulting(cu(6))
    world.other_pod("filler", cu(8))
    answer = decided(world.told(LEADER, ALL))
    assert (answer.permit, codes(answer)) == (cu(2), [ReasonCode.NODE_HEADROOM])


def test_a_node_that_goes_meanwhile_grants_nothing() -> None:
    world = consulting(cu(6))
    world.apply(events.NodeGone("n1"))
    assert decided(world.told(LEADER, ALL)).permit == UNIT


def test_a_migration_that_starts_meanwhile_holds() -> None:
    world = consulting(cu(6))
    world.apply(events.MigrationStarted("uid-vm"))
    answer = decided(world.told(LEADER, ALL))
    assert (answer.permit, answer.migrate) == (UNIT, True)
    assert codes(answer) == [ReasonCode.MIGRATING]


def test_more_room_meanwhile_is_not_the_pools_word() -> None:
    """ "All of it" was said of the 4 units that were asked for, and only they were kept."""
    world = pooled()
    world.other_pod("filler", cu(6))
    assert begin(world, cu(8)).wanted == cu(4)
    world.other_pod("filler", UNIT)
    answer = decided(world.told(LEADER, ALL))
    assert (answer.permit, codes(answer)) == (cu(4), [ReasonCode.POOL])
    assert answer.reasons[0].retry_after_s == 0.0


@pytest.mark.parametrize(("bound", "permit"), [(cu(3), cu(3)), (cu(3.5), cu(3)), (cu(2, 3), cu(2))])
def test_bounds_raised_meanwhile_are_not_the_pools_word(bound: Resources, permit: Resources) -> None:
    world = pooled(most=bound)
    assert begin(world, cu(6)).wanted == bound
    world.see("vm", None, at=0.0, bounds=Bounds(UNIT, cu(8)))
    assert decided(world.told(LEADER, ALL)).permit == permit


def test_bounds_that_are_no_whole_units_may_be_reached_as_asked() -> None:
    world = pooled(most=cu(3.5))
    begin(world, cu(6))
    answer = decided(world.told(LEADER, ALL))
    assert (answer.permit, codes(answer)) == (cu(3.5), [ReasonCode.VM_BOUNDS])


@pytest.mark.parametrize(("unit", "permit"), [(cu(2), cu(2)), (cu(0.5), cu(3)), (cu(4), UNIT)])
def test_another_unit_meanwhile_makes_no_more_of_the_pools_units(unit: Resources, permit: Resources) -> None:
    """Three units of 1 CPU were admitted."""
    world = consulting(cu(8))
    world.see("vm", None, at=0.0, compute_unit=unit)
    assert decided(world.told(LEADER, events.PoolVerdict(3))).permit == permit


def test_a_unit_that_is_lost_meanwhile_grants_nothing() -> None:
    world = consulting()
    world.node("n1", cu(10), None)
    answer = decided(world.told(LEADER, ALL))
    assert (answer.permit, codes(answer)) == (UNIT, [ReasonCode.COMPUTE_UNIT])


def test_a_vm_that_leaves_its_pool_meanwhile_is_answered() -> None:
    world = consulting()
    world.see("vm", None, at=0.0, pool=None)
    answer = decided(world.told(LEADER, events.PoolVerdict(2)))
    assert (answer.permit, codes(answer), answer.reasons[0].retry_after_s) == (UNIT, [ReasonCode.POOL], 0.0)


def test_a_vm_that_moves_meanwhile_is_judged_where_it_is() -> None:
    world = consulting(cu(6))
    world.node("n2", cu(3))
    world.see("vm", None, at=0.0, node="n2")
    assert (world.node_reserved("n1"), world.node_reserved("n2")) == (cu(0), cu(6))
    assert decided(world.told(LEADER, ALL)).permit == cu(3)
    assert world.over("n2") == set()


@pytest.mark.parametrize("how", ["gone", "terminal", "replaced"])
def test_a_vm_that_goes_meanwhile_is_404_to_all_who_wait(how: str) -> None:
    world = consulting()
    world.take(again(world, cu(4)), 12)
    spec = world.record().spec
    seen = replace(spec, terminal=True) if how == "terminal" else replace(spec, uid="second")
    outputs = world.apply(
        events.VmGone(spec.pod, spec.uid, 1.0) if how == "gone" else events.VmSeen(seen, None, 1.0)
    )
    cancelled, *refused = outputs
    assert cancelled == events.AdmissionCallCancelled(LEADER)
    assert [(out.ticket, out.status) for out in refused if isinstance(out, events.Refused)] == [
        (LEADER, 404),
        (12, 404),
    ]
    assert world.told(LEADER, ALL) == ()
    assert world.core.state.admission_calls == {}
