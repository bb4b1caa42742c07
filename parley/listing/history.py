"""`parley history`: what was decided of a VM, and what its agent noted, in one order."""

import functools
import json
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

import click
import msgspec

from hosting.lifecycle import Stop
from parley.explain.core.evidence import CauseCode
from parley.explain.core.lines import answer
from parley.explain.gathering import Gathered, alike, gather, path_of
from parley.listing import output as outputs
from parley.listing.core.decisions import HISTORY_COLUMNS, of_decision, of_events
from parley.listing.core.tables import shown, table
from parley.listing.moments import ago, instant
from parley.reach.ports import NoAnswer, Reach
from parley.top.texts import clean
from protocol.explaining import DecisionShown, Explanation

MOST: Final = 16
"""The scheduler remembers no more of one VM."""
__all__ = ["MOST", "HistoryOptions", "path_of", "run"]


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
        _print(found, wanted)
        return 0

    return outputs.run(main)


def _print(found: Gathered, wanted: HistoryOptions) -> None:
    scheduler = found.evidence.scheduler
    decisions: tuple[DecisionShown, ...] = ()
    if isinstance(scheduler, Explanation):
        decisions = tuple(
            each
            for each in reversed(scheduler.decisions)
            if not wanted.outcomes or each.outcome.value in wanted.outcomes
        )
    agent = found.agent if not wanted.outcomes else None
    moment = functools.partial(ago, datetime.now(UTC))
    events = of_events(agent, moment, is_whole=wanted.output == "wide") if agent is not None else []
    for program in (scheduler, found.evidence.agent):
        if isinstance(program, NoAnswer) and not (program is found.evidence.agent and wanted.outcomes):
            click.echo(clean(program.fault, 500), err=True)
    if wanted.output == "json":
        noted = [{"at": each.at, "event": each.what, "fields": each.fields} for each in events]
        document = {
            "vm": wanted.vm,
            "decisions": [msgspec.to_builtins(each) for each in decisions],
            "events": noted,
        }
        click.echo(json.dumps(document))
        return
    rows = sorted((*map(of_decision, decisions), *events), key=lambda row: instant(row.at))
    if not rows:
        click.echo("nothing has been decided of it yet", err=True)
        return
    columns = shown(HISTORY_COLUMNS, is_wide=wanted.output == "wide")
    for line in table(columns, rows, has_heads=wanted.has_heads):
        click.echo(line)
