"""Callers with the extension: the sequence gate, supersession, and what is wrong with a request."""

from typing import Any
from uuid import UUID

import pytest

from protocol.reasons import ErrorCode
from protocol.values import ZERO, Resources
from scheduler.permits.core import decision, events
from scheduler.permits.core.ledger import Cause
from scheduler.permits.core.state import SchedulerConfig
from tests.support.amounts import GIB, UNIT, cu
from tests.unit.scheduler_core.core_worlds import (
    AGENT,
    ELSEWHERE,
    HERE,
    NEXT_AGENT,
    THIRD_AGENT,
    World,
    pod,
    world_with_vm,
)

# ------------------------------------------------------------ the gate


@pytest.mark.parametrize(
    ("seq", "agent", "started"),
    [(6, AGENT, 1000), (2**64 - 1, AGENT, 1000), (1, NEXT_AGENT, 1001)],
    ids=["higher number", "largest number", "later life"],
)
def test_a_higher_number_or_a_later_life_is_processed_and_echoed(seq: int, agent: UUID, started: int) -> None:
    world = world_with_vm(config=SchedulerConfig(HERE, is_first_start=True, epoch=12))
    world.permit(world.request("vm", cu(2), seq=5))
    answer = world.decide(world.request("vm", cu(3), seq=seq, agent=agent, started=started))
    assert answer.echo == events.Echo(seq, HERE, 12)
    assert (answer.permit, answer.changed, answer.reasons) == (cu(3), True, ())


REFUSED: dict[str, tuple[int, UUID, int, ErrorCode]] = {
    "lower number": (3, AGENT, 1000, ErrorCode.SEQUENCE_STALE),
    "another body": (5, AGENT, 1000, ErrorCode.SEQUENCE_REUSED),
    "older life": (9, NEXT_AGENT, 999, ErrorCode.AGENT_SUPERSEDED),
    "life of the same start": (9, NEXT_AGENT, 1000, ErrorCode.AGENT_SUPERSEDED),
    "life of no start": (9, NEXT_AGENT, 0, ErrorCode.AGENT_SUPERSEDED),
}


@pytest.mark.parametrize(("seq", "agent", "started", "code"), REFUSED.values(), ids=REFUSED)
def test_what_is_not_the_latest_is_409_and_changes_nothing(
    seq: int, agent: UUID, started: int, code: ErrorCode
) -> None:
    world = world_with_vm()
    world.permit(world.request("vm", cu(4), seq=5))
    before = world.state()
    refused = world.refusal(world.request("vm", UNIT, seq=seq, claim=cu(8), agent=agent, started=started))
    assert (refused.status, refused.code, refused.last_sequence_number) == (409, code, 5)
    assert refused.current_started_at_ms == (1000 if code is ErrorCode.AGENT_SUPERSEDED else None)
    assert world.state() == before
    assert world.permit(world.request("vm", cu(3), seq=6)) == cu(3), "the next higher number is processed"


def test_a_retry_gets_the_remembered_permit_and_changes_nothing() -> None:
    world = world_with_vm()
    world.other_pod("filler", cu(7))
    request = world.request("vm", cu(5))
    assert world.permit(request) == cu(3)
    world.other_pod("filler", cu(0))  # room for all of it by now
    answer = world.decide(request)
    assert (answer.permit, answer.changed) == (cu(3), False)
    assert answer.reasons  # why it was cut is remembered too
    assert world.state().current == cu(3)


def test_a_retry_after_current_fell_gets_the_smaller() -> None:
    world = world_with_vm()
    request = world.request("vm", cu(5))
    assert world.permit(request) == cu(5)
    world.read("vm", cu(2, 5), at=60.0)  # the agent was silent, its row falls
    assert world.permit(request, at=61.0) == cu(2, 5)


def test_a_retry_counts_as_hearing_the_agent() -> None:
    """Its reply renews the agent's lease, so that the row may not fall 60 s after the first attempt."""
    world = world_with_vm()
    request = world.request("vm", cu(5))
    world.permit(request, at=0.0)
    assert world.permit(request, at=55.0) == cu(5)
    world.read("vm", cu(1), at=61.0)
    assert world.state().reserved == cu(5)
    world.read("vm", cu(1), at=115.0)
    assert world.state().reserved == cu(1)


def test_an_unsettled_answer_is_repeated_for_a_retry() -> None:
    world = world_with_vm(is_new=False)
    request = world.request("vm", cu(5), claim=cu(3), names=ELSEWHERE)
    assert [world.permit(request), world.permit(request)] == [cu(3), cu(3)]


# ------------------------------------------------------------ supersession


def superseded_world() -> World:
    """An agent got 6 units; a later life asked for 2 of them at 10 s."""
    world = world_with_vm(cu(2))
    world.permit(world.request("vm", cu(6)), at=0.0)
    world.permit(world.request("vm", cu(2), agent=NEXT_AGENT, started=2000, claim=cu(2)), at=10.0)
    return world


def test_what_the_old_life_had_stays_reserved_for_the_hand_over() -> None:
    world = superseded_world()
    assert world.state().current == cu(2)
    assert world.floors() == [(Cause.HANDOVER, cu(6))]
    assert world.node_reserved() == cu(6)


def test_the_hand_over_is_ended_by_the_clock_only() -> None:
    world = superseded_world()
    world.read("vm", cu(2), at=40.0)
    world.permit(world.request("vm", cu(2), agent=NEXT_AGENT, started=2000), at=50.0)
    world.tick(69.9)
    assert world.state().reserved == cu(6)
    world.tick(70.0)
    assert world.floors() == []
    assert world.node_reserved() == cu(2)


def test_a_hand_over_gives_no_growth_beyond_the_room() -> None:
    """The new life may use the amount that is reserved for the old one, and nothing more."""
    world = superseded_world()
    world.other_pod("filler", cu(4))
    assert world.permit(world.request("vm", cu(8), agent=NEXT_AGENT, started=2000), at=11.0) == cu(6)
    assert world.node_reserved() == cu(10)


def test_each_superseded_life_has_a_floor_of_its_own() -> None:
    world = superseded_world()
    world.permit(world.request("vm", cu(3), agent=NEXT_AGENT, started=2000), at=30.0)
    world.permit(world.request("vm", cu(1), agent=THIRD_AGENT, started=3000), at=50.0)
    assert [floor.until_s for floor in world.state().floors if floor.cause is Cause.HANDOVER] == [70.0, 110.0]


def test_a_life_hands_over_what_it_had_and_not_what_it_took_over() -> None:
    """Else an agent that restarts every 50 s would keep the largest amount of all time."""
    world = superseded_world()
    world.permit(world.request("vm", cu(1), agent=THIRD_AGENT, started=3000), at=60.0)
    world.tick(70.0)
    assert world.state().reserved == cu(2)


def test_a_late_packet_of_the_old_life_is_refused() -> None:
    world = superseded_world()
    refused = world.refusal(world.request("vm", cu(7), seq=99), at=11.0)
    assert (refused.code, refused.current_started_at_ms) == (ErrorCode.AGENT_SUPERSEDED, 2000)
    assert world.state().reserved == cu(6)


def test_a_late_packet_of_a_dead_later_started_agent_takes_nothing_away() -> None:
    """It supersedes the living agent, whose amount stays reserved until that one came back as a newer life."""
    world = world_with_vm(cu(4))
    world.permit(world.request("vm", cu(6)), at=0.0)
    dead = world.request("vm", cu(1), agent=NEXT_AGENT, started=5000, names=None)
    assert world.permit(dead, at=5.0) == cu(1)
    assert world.state().reserved == cu(6)
    refused = world.refusal(world.request("vm", cu(6)), at=6.0)
    assert refused.current_started_at_ms == 5000
    reborn = world.request("vm", cu(6), agent=THIRD_AGENT, started=5001, claim=cu(4))
    assert world.permit(reborn, at=12.0) == cu(6)


# ------------------------------------------------------------ which pod


@pytest.mark.parametrize(
    ("name", "uid", "is_found", "code"),
    [
        ("nobody", "uid-nobody", False, ErrorCode.UNKNOWN_POD),
        ("vm", "uid-of-another-life", True, ErrorCode.WRONG_POD_UID),
    ],
)
def test_an_unknown_pod_or_uid_is_looked_for_once_and_then_404_which_moves_no_gate(
    name: str, uid: str, is_found: bool, code: ErrorCode
) -> None:
    world = world_with_vm()
    world.permit(world.request("vm", UNIT, seq=1))
    request = world.request(name, UNIT, uid=uid, seq=9, agent=NEXT_AGENT, started=9000)
    assert world.send(request) == events.LookNeeded(7, pod(name))
    answer = world.send(request, look=events.Look(found=is_found))
    assert isinstance(answer, events.Refused)
    assert (answer.status, answer.code) == (404, code)
    assert world.permit(world.request("vm", cu(3), seq=2)) == cu(3)


def test_a_request_that_was_looked_for_is_answered_when_the_look_brought_its_pod() -> None:
    world = World()
    request = world.request("vm", cu(2))
    assert isinstance(world.send(request), events.LookNeeded)
    world.vm("vm")
    answer = world.send(request, look=events.Look(found=True))
    assert isinstance(answer, events.Decided)


# ------------------------------------------------------------ what is wrong with a request


MALFORMED, VERSION = ErrorCode.MALFORMED, ErrorCode.UNSUPPORTED_VERSION
FAULTS: dict[str, tuple[dict[str, Any], ErrorCode | None]] = {
    **{f"version {version}": ({"version": version}, VERSION) for version in (0, 3, 7, 2**32 - 1)},
    "v1.0": ({"version": 1}, None),
    "null metrics in v1.0": ({"version": 1, "metrics": None}, ErrorCode.METRICS_REQUIRED),
    "null metrics in v1.1": ({"version": 2, "metrics": None}, None),
    "nothing": ({"want": ZERO}, MALFORMED),
    "no CPU": ({"want": Resources(0, GIB)}, MALFORMED),
    "no memory": ({"want": Resources(1000, 0)}, MALFORMED),
    "a unit of nothing": ({"unit": ZERO}, MALFORMED),
    "a unit without CPU": ({"unit": Resources(0, GIB)}, MALFORMED),
    "a unit without memory": ({"unit": Resources(1000, 0)}, MALFORMED),
}


@pytest.mark.parametrize(("changes", "code"), FAULTS.values(), ids=FAULTS)
@pytest.mark.parametrize("name", ["vm", "nobody"])
def test_a_faulty_request_is_400_before_anything_else_and_moves_no_gate(
    name: str, changes: dict[str, Any], code: ErrorCode | None
) -> None:
    world = world_with_vm()
    request = world.request(name, **{"want": cu(2), "seq": 9, **changes})
    if code is not None:
        refused = world.refusal(request)
        assert (refused.status, refused.code) == (400, code)
        assert world.permit(world.request("vm", cu(3), seq=1)) == cu(3)
    elif name == "vm":
        assert world.permit(request) == cu(2)


# ------------------------------------------------------------ the unit


@pytest.mark.parametrize(
    ("of_vm", "of_request", "of_node", "unit", "permit"),
    [
        (cu(2), cu(3), cu(0.5), cu(2), cu(4)),
        (None, cu(3), cu(0.5), cu(3), cu(3)),
        (None, None, cu(0.5), cu(0.5), cu(5.5)),
        (None, None, None, ZERO, cu(1)),
    ],
)
def test_the_unit_is_the_vms_else_the_requests_else_the_nodes(
    of_vm: Resources | None,
    of_request: Resources | None,
    of_node: Resources | None,
    unit: Resources,
    permit: Resources,
) -> None:
    world = World(cu(5.5), unit=of_node)
    world.vm("vm", unit=of_vm)
    answer = world.decide(world.request("vm", cu(7), unit=of_request))
    assert (answer.permit, answer.unit.step) == (permit, unit)


def test_the_integers_of_a_permit_are_rounded_down() -> None:
    world = World(Resources(3_600, 9 * GIB), unit=Resources(200, GIB))
    world.vm("vm", Resources(200, GIB))
    answer = world.decide(world.request("vm", cu(8)))
    assert answer.permit == Resources(3_600, 8 * GIB)
    assert (decision.message(answer).permit.vcpu, decision.message(answer).permit.mem) == (3, 8)


@pytest.mark.parametrize(("own", "unit", "slots"), [(GIB, cu(1, 4), 8), (None, cu(1, 4), 2), (None, None, 4)])
def test_a_slot_is_the_vms_own_else_its_units_memory_else_the_nodes(
    own: int | None, unit: Resources | None, slots: int
) -> None:
    world = World(cu(20, 40), unit=cu(1, 2))
    world.vm(most=cu(8, 8), slot=own, unit=unit)
    assert decision.message(world.decide(world.request("vm", cu(2, 8)))).permit.mem == slots


def test_what_the_last_read_showed_stays_until_a_later_one_shows_less() -> None:
    """The agent does not know yet of an edit that the cluster has shown already."""
    world = world_with_vm(cu(2))
    assert world.permit(world.request("vm", cu(3), claim=cu(2)), at=1.0) == cu(3)
    world.read("vm", cu(2), target=cu(3), at=2.0)
    assert world.permit(world.request("vm", cu(2), claim=cu(2)), at=3.0) == cu(2)
    assert world.floors() == [(Cause.OBSERVED, cu(3))]
    world.permit(world.request("vm", cu(2), claim=cu(2)), at=3.5)
    assert world.tick(3.9) == []
    assert world.tick(4.0) == ["vm"]  # nothing tells of it by itself: it is read again
    world.read("vm", cu(2), at=4.0)
    assert world.floors() == []


def test_an_edit_that_a_read_confirms_is_not_read_again_and_again() -> None:
    world = world_with_vm(cu(2))
    world.permit(world.request("vm", cu(1), claim=cu(2)), at=1.0)
    world.read("vm", cu(2), at=2.0)
    assert world.floors() == [(Cause.OBSERVED, cu(2))]
    assert world.tick(30.0) == []
