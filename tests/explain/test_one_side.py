"""Where only one of both programs answers, or one of an earlier version, less is known, and nothing wrong is said."""

import pytest

from parley.explain.core.evidence import CauseCode
from parley.reach.ports import NoAnswer
from protocol.explaining import ProgressCode
from protocol.reasons import ErrorCode, ReasonCode
from tests.explain import plays_of_pools, plays_of_room, plays_of_two  # noqa: F401 - they enter their rows
from tests.explain.plays_of_agents import AWAY, NO_SCHEDULER
from tests.explain.situations import SITUATIONS, Situation
from tests.support.virtual_time import virtually

MAX_LINES = 12
OF_SCHEDULER = {
    *(each.value for each in ReasonCode),
    *(each.value for each in ErrorCode),
    *(each.value for each in ProgressCode),
    CauseCode.GONE.value,
    CauseCode.SUPERSEDED.value,
    CauseCode.AGENT_SILENT.value,
}
"""What the scheduler knows by itself."""
UNHEARD = {
    # The scheduler never heard of these requests, or cannot know why they end.
    "the_vms_own_maximum": {"permitted"},
    "the_scheduler_is_overloaded": {"agent-silent"},
    "a_vm_that_runs_is_taken_out_of_the_cluster": {"gone"},
}
ANSWERED_LESS = {"the_pool_is_being_asked": {"waiting"}}
"""What the agent alone cannot tell apart."""
"""What an agent of an earlier version does not tell."""


ONE_SIDED = {
    "the_vm_has_gone",
    "no_scheduler",
    "the_scheduler_does_not_lead",
    "the_scheduler_is_too_new",
    "the_scheduler_is_too_old",
    "the_agent_is_away",
    "nobody_answers",
    "a_published_agent_is_not_allowed",
    "no_compute_unit_is_known",
    "the_vm_is_not_scaled",
}
"""Rows in which somebody is silent, or does not know the VM, already."""
TWO_SIDED = {name: row for name, row in SITUATIONS.items() if name not in ONE_SIDED}


async def lines_without(row: Situation, without: str) -> tuple[str, ...]:
    """What is said while that side is silent."""
    async with row.play() as stage:
        assert (stage.told_agent, stage.told_scheduler) == (None, None)
        if without == "agent":
            stage.told_agent = NoAnswer(AWAY)
        else:
            stage.told_scheduler = NoAnswer(NO_SCHEDULER)
        return await stage.lines()


def code_of(line: str) -> str:
    """The code at the end of the first line."""
    return line.rpartition("(")[2].removesuffix(").")


def said(row: Situation, without: str) -> tuple[str, ...]:
    """The same, in virtual time."""
    told: list[str] = []

    @virtually
    async def play() -> None:
        told.extend(await lines_without(row, without))

    play()
    return tuple(told)


@pytest.mark.parametrize("row", TWO_SIDED.values(), ids=TWO_SIDED)
def test_without_the_agent_the_scheduler_tells_what_it_knows_and_claims_no_more(row: Situation) -> None:
    told = said(row, "agent")
    known = {row.code} if row.code in OF_SCHEDULER else {"permitted", "agent-silent"}
    both = {"node-headroom"} if row.name == "a_partial_permit_and_a_failing_back_end" else set()
    assert code_of(told[0]) in UNHEARD.get(row.name, known | both), "\n".join(told)
    assert len(told) <= MAX_LINES
    assert any("10.0.0.11" in line for line in told), "that the agent does not answer is said"


@pytest.mark.parametrize("row", TWO_SIDED.values(), ids=TWO_SIDED)
def test_without_the_scheduler_the_agent_tells_the_same_cause(row: Situation) -> None:
    told = said(row, "scheduler")
    assert code_of(told[0]) in ANSWERED_LESS.get(row.name, {row.code}), "\n".join(told)
    assert len(told) <= MAX_LINES
    assert any("10.0.0.1:" in line for line in told), "that the scheduler does not answer is said"
