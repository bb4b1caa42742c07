"""`parley history`: the decisions about a VM and the notes of its agent, in one order."""

import functools
import json
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final

import click
import msgspec

from hosting.lifecycle import Stop
from parley.explain.core.evidence import CauseCode
from parley.explain.core.lines import answer
from parley.explain.program import Gathered, alike, gather
from parley.listing import output as outputs
from parley.listing.core.decisions import HISTORY_COLUMNS, of_decision, of_events
from parley.listing.core.tables import shown, table
from parley.reach.ports import NoAnswer, Reach
from parley.top.texts import clean
from protocol.explaining import DecisionShown, Explanation

MOST: Final = 16
"""The scheduler remembers no more of one VM."""


@dataclass(frozen=True, slots=True)
class HistoryOptions:
    """Of which VM (`NAMESPACE/NAME`), and how it is printed; with `outcomes` decisions only."""

    vm: str
    outcomes: tuple[str, ...] = ()
    output: str = "table"
    has_heads: bool = True


def run(reach: AbstractAsyncContextManager[Reach], wanted: HistoryOptions) -> int:
    """Print the history of a VM; the exit code."""

    async def main(_: Stop) -> int:
        async with reach as asked:
            found = await gather(asked, wanted.vm, MOST)
            told = answer(found.evidence)
            is_unknown = not told.is_known
            names = await alike(asked, wanted.vm) if told.cause.code == CauseCode.UNKNOWN_VM else []
        if is_unknown:
            for each in told.lines:
                click.echo(each, err=True)
            if names:
                click.echo(f"did you mean {' or '.join(names)}?", err=True)
            return outputs.NOBODY
        return _print(found, wanted)

    return outputs.run(main)


def _print(found: Gathered, wanted: HistoryOptions) -> int:
    """The exit code: decisions alone are told by the scheduler alone."""
    scheduler, agent_fault = found.evidence.scheduler, _fault(found.evidence.agent)
    decisions: tuple[DecisionShown, ...] = ()
    if isinstance(scheduler, Explanation):
        decisions = tuple(
            each
            for each in reversed(scheduler.decisions)
            if not wanted.outcomes or each.outcome.value in wanted.outcomes
        )
    agent, moment = found.evidence.agent, functools.partial(ago, datetime.now(UTC))
    events = []
    if not isinstance(agent, NoAnswer) and not wanted.outcomes:
        events = of_events(agent.journal, moment, is_whole=wanted.output == "wide")
    for fault in (_fault(scheduler), agent_fault if not wanted.outcomes else None):
        if fault is not None:
            click.echo(clean(fault, 500), err=True)
    code = outputs.NOBODY if wanted.outcomes and isinstance(scheduler, NoAnswer) else 0
    if wanted.output == "json":
        noted = [{"at": each.at, "event": each.what, "fields": each.fields} for each in events]
        document = {
            "vm": wanted.vm,
            "decisions": [msgspec.to_builtins(each) for each in decisions],
            "schedulerFault": _fault(scheduler),
            "events": noted,
            "agentFault": agent_fault,
        }
        click.echo(json.dumps(document))
        return code
    rows = sorted((*map(of_decision, decisions), *events), key=lambda row: instant(row.at))
    if not rows:
        if isinstance(scheduler, Explanation):
            click.echo(_nothing(scheduler, wanted), err=True)
        return code
    columns = shown(HISTORY_COLUMNS, is_wide=wanted.output == "wide")
    for line in table(columns, rows, has_heads=wanted.has_heads):
        click.echo(line)
    return code


def _nothing(explained: Explanation, wanted: HistoryOptions) -> str:
    if explained.decisions:
        return f"no decision on it that is remembered is {' or '.join(wanted.outcomes)}"
    return "nothing has been decided of it yet"


def _fault(answer: object) -> str | None:
    """The reason why a program told nothing; None if it told something."""
    return answer.fault if isinstance(answer, NoAnswer) else None


def ago(now: datetime, seconds: float) -> str:
    """The moment so many seconds before `now`, to the millisecond."""
    at = (now - timedelta(seconds=seconds)).astimezone(UTC)
    return at.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def instant(text: str) -> datetime:
    """A moment for sorting; one that cannot be read is the oldest of all."""
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        return datetime.min.replace(tzinfo=UTC)
    return found if found.tzinfo is not None else found.replace(tzinfo=UTC)
