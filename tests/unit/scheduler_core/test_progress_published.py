"""Callers without the extension whose VM has a pool, and both kinds of callers around one question to a pool."""

from protocol.reasons import ReasonCode
from protocol.values import Resources
from protocol.wire import AgentRequest, SlotResources
from scheduler.core import events
from scheduler.core.ledger import Cause
from tests.unit.scheduler_core.core_worlds import (
    EVERYWHERE,
    UNIT,
    AuditedWorld,
    codes,
    cu,
    pod,
    rules,
)

ALL = events.PoolVerdict()
LEADER = 11


def pooled(use: Resources = UNIT, *, is_new: bool = True) -> AuditedWorld:
    """A VM of the pool `blue`, on a node where callers without the extension are served."""
    world = AuditedWorld(config=EVERYWHERE)
    world.vm("vm", use, is_new=is_new)
    world.see("vm", None, at=0.0, pool="blue")
    return world


def ask(
    world: AuditedWorld, want: SlotResources, ticket: int, *, at: float = 0.0, use: Resources = UNIT
) -> tuple[events.Output, ...]:
    """What comes of a request without the extension, after a fresh look that shows `use`."""
    return world.take_published("vm", want, ticket, at=at, use=use)


def consulting(want: SlotResources | None = None) -> AuditedWorld:
    """Such a caller waits for 4 units (`want`)."""
    world = pooled()
    (needed,) = ask(world, want or SlotResources(4, 4), LEADER)
    assert isinstance(needed, events.AdmissionCallNeeded)
    return world


def permit(outputs: tuple[events.Output, ...]) -> Resources:
    """The permit of the only output."""
    (answer,) = outputs
    assert isinstance(answer, events.Decided), answer
    return answer.permit


# ------------------------------------------------------------ alone


def test_its_growth_waits_and_is_kept() -> None:
    world = pooled()
    (needed,) = ask(world, SlotResources(4, 4), LEADER)
    assert needed == events.AdmissionCallNeeded(LEADER, pod("vm"), "uid-vm", "blue", UNIT, cu(4), UNIT)
    assert world.floors() == [(Cause.PENDING, cu(4))]


def test_its_decreases_and_renewals_do_not_wait() -> None:
    world = pooled(cu(3))
    assert permit(ask(world, SlotResources(3, 3), 1, use=cu(3))) == cu(3)
    assert permit(ask(world, SlotResources(2, 2), 2, use=cu(3))) == cu(2)


def test_the_pools_word_cuts_its_growth() -> None:
    world = consulting()
    (answer,) = world.told(LEADER, events.PoolVerdict(3))
    assert (permit((answer,)), codes(answer)) == (cu(3), [ReasonCode.POOL])
    assert (world.state().current, world.floors()) == (cu(3), [])
    assert world.record().owned_by_published


def test_a_refusal_leaves_it_what_it_has() -> None:
    assert permit(consulting().told(LEADER, events.PoolVerdict(0))) == UNIT


def test_the_commit_goes_by_the_latest_reading() -> None:
    """An edit from outside has raised the VM to 3 meanwhile; a permit below that would be fatal to the caller."""
    world = consulting()
    world.read("vm", cu(3), at=1.0)
    assert permit(world.told(LEADER, events.PoolVerdict(0), at=2.0)) == cu(3)


def test_rules_and_room_changed_meanwhile_hold_for_it_too() -> None:
    world = consulting()
    world.configure(rules(stopped=True))
    assert permit(world.told(LEADER, ALL)) == UNIT
    world = consulting(SlotResources(8, 8))
    world.other_pod("filler", cu(7))
    assert permit(world.told(LEADER, ALL)) == cu(3)


def test_more_room_meanwhile_is_not_the_pools_word_to_it_either() -> None:
    world = pooled()
    world.other_pod("filler", cu(6))
    ask(world, SlotResources(8, 8), LEADER)
    world.other_pod("filler", UNIT)
    assert permit(world.told(LEADER, ALL)) == cu(4)


def test_a_pool_that_could_not_be_asked_closes_its_connection_and_says_so() -> None:
    (hung_up,) = consulting().told(LEADER, None)
    assert isinstance(hung_up, events.HungUp)
    assert hung_up.ticket == LEADER
    assert "overtaken" not in hung_up.why


def test_the_core_gives_its_silent_pool_up() -> None:
    world = consulting()
    hung_up, cancelled = world.ticked(5.0)
    assert isinstance(hung_up, events.HungUp)
    assert cancelled == events.AdmissionCallCancelled(LEADER)
    assert isinstance(ask(world, SlotResources(4, 4), 12, at=6.0)[0], events.AdmissionCallNeeded)


def test_its_next_request_overtakes_it() -> None:
    world = consulting()
    cancelled, hung_up, needed = ask(world, SlotResources(5, 5), 12, at=1.0)
    assert cancelled == events.AdmissionCallCancelled(LEADER)
    assert isinstance(hung_up, events.HungUp)
    assert hung_up.ticket == LEADER
    assert isinstance(needed, events.AdmissionCallNeeded)
    assert world.floors() == [(Cause.PENDING, cu(5))]
    assert world.told(LEADER, ALL, at=2.0) == ()
    assert permit(world.told(12, ALL, at=2.0)) == cu(5)


def test_a_unit_that_is_lost_meanwhile_closes_its_connection() -> None:
    world = consulting()
    world.node("n1", cu(10), None)
    (hung_up,) = world.told(LEADER, ALL)
    assert isinstance(hung_up, events.HungUp)
    assert (world.floors(), world.state().current) == ([], UNIT)


def test_a_vm_that_goes_meanwhile_closes_its_connection() -> None:
    world = consulting()
    cancelled, hung_up = world.apply(events.VmGone(pod("vm"), "uid-vm", 1.0))
    assert cancelled == events.AdmissionCallCancelled(LEADER)
    assert isinstance(hung_up, events.HungUp)


def test_an_unsettled_vm_settles_when_the_pool_has_agreed() -> None:
    world = pooled(is_new=False)
    (needed,) = ask(world, SlotResources(4, 4), LEADER)
    assert isinstance(needed, events.AdmissionCallNeeded)
    assert not world.record().settled
    assert world.causes() == {Cause.START_UP, Cause.PENDING}
    assert permit(world.told(LEADER, ALL)) == cu(4)
    assert world.record().settled
    assert world.floors() == [(Cause.TOLD, cu(8))]


def test_an_unsettled_vm_whose_pool_refuses_settles_at_what_the_look_showed() -> None:
    world = pooled(is_new=False)
    ask(world, SlotResources(4, 4), LEADER)
    assert permit(world.told(LEADER, events.PoolVerdict(0))) == UNIT
    assert world.record().settled
    assert world.floors() == [(Cause.TOLD, cu(8))]


# ------------------------------------------------------------ beside an agent with the extension


def test_a_bystander_during_a_question_never_gets_what_is_pending() -> None:
    world = pooled()
    world.take(world.request("vm", cu(6)), LEADER)
    (answer,) = ask(world, SlotResources(6, 6), 12, at=1.0)
    assert (permit((answer,)), codes(answer)) == (UNIT, [ReasonCode.BYSTANDER])
    assert world.core.state.admission_calls.keys() == {LEADER}
    assert permit(world.told(LEADER, ALL, at=2.0)) == cu(6)


def test_a_bystander_after_a_refusal_gets_no_more() -> None:
    world = pooled()
    world.take(world.request("vm", cu(6)), LEADER)
    ask(world, SlotResources(6, 6), 12, at=1.0)
    world.told(LEADER, events.PoolVerdict(0), at=2.0)
    assert permit(ask(world, SlotResources(6, 6), 13, at=3.0)) == UNIT
    assert world.state().reserved == UNIT


def test_an_agent_with_the_extension_overtakes_such_a_caller() -> None:
    world = consulting(SlotResources(6, 6))
    cancelled, hung_up, answer = world.take(world.request("vm", UNIT), 12, at=1.0)
    assert cancelled == events.AdmissionCallCancelled(LEADER)
    assert isinstance(hung_up, events.HungUp)
    assert permit((answer,)) == UNIT
    assert world.told(LEADER, ALL, at=2.0) == ()
    assert world.state().reserved == UNIT


def returning() -> tuple[AuditedWorld, AgentRequest]:
    """An agent was answered and fell silent; a caller without the extension waits for a pool; the request of old."""
    world = pooled()
    old = world.request("vm", UNIT)
    world.take(old, 1, at=0.0)
    (needed,) = ask(world, SlotResources(4, 4), LEADER, at=100.0)
    assert isinstance(needed, events.AdmissionCallNeeded)
    return world, old


def test_a_retry_does_not_join_the_question_of_another_kind_of_caller() -> None:
    """It would wait for an answer that never comes to it."""
    world, old = returning()
    outputs = world.take(old, 12, at=101.0)
    assert [out.ticket for out in outputs if isinstance(out, events.Decided)] == [12]
    assert not any(isinstance(out, events.Joined) for out in outputs)


def test_the_other_caller_is_a_bystander_once_the_agent_is_back() -> None:
    world, old = returning()
    cancelled, hung_up, _ = world.take(old, 12, at=101.0)
    assert cancelled == events.AdmissionCallCancelled(LEADER)
    assert isinstance(hung_up, events.HungUp)
    assert world.told(LEADER, ALL, at=102.0) == ()
    assert permit(ask(world, SlotResources(4, 4), 13, at=103.0)) == UNIT


def test_a_retry_of_an_answer_that_was_not_kept_hands_over_what_the_other_caller_had() -> None:
    """The agent was told to ask again (unsettled), so its retry is judged; what the other caller was told may be in use."""
    world = AuditedWorld(config=EVERYWHERE)
    world.vm("vm", UNIT, is_new=False)
    old = world.request("vm", UNIT, claim=UNIT, names=None)
    world.take(old, 1, at=0.0)
    assert permit(ask(world, SlotResources(6, 6), 2, at=100.0)) == cu(6)
    world.read("vm", UNIT, at=110.0)  # it has begun no resize yet
    world.core.apply(events.ClockTicked(200.0))
    world.take(old, 3, at=201.0)
    assert cu(6).fits_in(world.state().reserved)
