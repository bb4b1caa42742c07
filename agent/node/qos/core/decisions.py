"""The memory of a strategy's decisions: the last ones, each with how many rounds it has stood."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

from agent.node.qos.core.actions import StrategyDecision

MAX_DECISIONS: Final = 16
REPEAT_S: Final = 60.0
"""A recommendation that stands is logged again after so long."""
MAX_REASONS: Final = 32
OTHER: Final = "other"
"""The reason that further reasons are counted as: a strategy of anybody's must not fill the memory with reasons."""


@dataclass(frozen=True, slots=True)
class DecisionRecord:
    """A decision, as it was at `at_s`, and the `rounds` since `first_s` in which the same was decided."""

    decision: StrategyDecision
    first_s: float
    at_s: float
    rounds: int = 1
    logged_s: float | None = None


def noted(
    records: tuple[DecisionRecord, ...], decision: StrategyDecision, now_s: float, *, is_done: bool
) -> tuple[tuple[DecisionRecord, ...], bool]:
    """The records with a decision, and whether the decision is worth a line in the log.

    A decision that is done (`is_done`: not only recommended) is a record and a line of its own each time. Rounds in which nothing is due,
    or the same is recommended again, are one record while their reason is the same.
    """
    last = records[-1] if records else None
    is_act = decision.is_action and is_done
    is_same = last is not None and (last.decision.reason, last.decision.is_action) == (
        decision.reason,
        decision.is_action,
    )
    if last is None or not is_same or is_act:
        is_logged = decision.is_action
        record = DecisionRecord(decision, now_s, now_s, logged_s=now_s if is_logged else None)
        return _bounded((*records, record)), is_logged
    is_logged = decision.is_action and (last.logged_s is None or now_s - last.logged_s >= REPEAT_S)
    logged_s = now_s if is_logged else last.logged_s
    record = replace(last, decision=decision, at_s=now_s, rounds=last.rounds + 1, logged_s=logged_s)
    return (*records[:-1], record), is_logged


def _bounded(records: tuple[DecisionRecord, ...]) -> tuple[DecisionRecord, ...]:
    """The newest records. The last action stays among them, however many rounds without one came after it."""
    if len(records) <= MAX_DECISIONS:
        return records
    acts = [index for index, each in enumerate(records) if each.decision.is_action]
    dropped = 1 if acts[-1:] == [0] else 0
    return (*records[:dropped], *records[dropped + 1 :])


def counted_as(reason: str, known: Mapping[tuple[str, str], int], action: str) -> str:
    """The result under which a decision's reason is counted: the reason, or `other` once there are many."""
    if (action, reason) in known:
        return reason
    return reason if sum(key[0] == action for key in known) < MAX_REASONS else OTHER
