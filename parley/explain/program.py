"""`parley explain`: asks, puts the answer together, and prints it."""

import json
from contextlib import AbstractAsyncContextManager
from typing import Any

import click

from hosting.lifecycle import Stop
from parley.explain.core.evidence import CauseCode
from parley.explain.core.lines import SizeExplanation, answer
from parley.explain.gathering import Gathered, alike, gather
from parley.listing import output as outputs
from parley.listing.core.decisions import line
from parley.reach.ports import NoAnswer, Reach
from parley.top.texts import clean
from protocol.explaining import Explanation


def run(reach: AbstractAsyncContextManager[Reach], vm: str, decisions: int, output: str) -> int:
    """Print why `NAMESPACE/NAME` has its size; the exit code."""

    async def main(_: Stop) -> int:
        async with reach as asked:
            found = await gather(asked, vm, decisions or None)
            told = answer(found.evidence)
            names = await alike(asked, vm) if told.cause.code == CauseCode.UNKNOWN_VM else []
        if output == "json":
            click.echo(json.dumps(document(found, told, names)))
        else:
            _print(found, told, names, decisions)
        return 0 if told.is_known else outputs.NOBODY

    return outputs.run(main)


def _print(found: Gathered, told: SizeExplanation, names: list[str], decisions: int) -> None:
    is_error = not told.is_known
    for each in told.lines:
        click.echo(each, err=is_error)
    if names:
        click.echo(f"did you mean {' or '.join(names)}?", err=True)
    scheduler = found.evidence.scheduler
    if not decisions or is_error:
        return
    if isinstance(scheduler, NoAnswer):
        click.echo(f"no decisions: {clean(scheduler.fault, 500)}", err=True)
        return
    for decision in scheduler.decisions[:decisions]:
        click.echo(line(decision))


def document(found: Gathered, told: SizeExplanation, names: list[str]) -> dict[str, Any]:
    """The answer for scripts: the cause, the lines, and both documents as they came."""
    evidence = found.evidence
    return {
        "vm": evidence.vm,
        "cause": {
            "code": told.cause.code,
            "meaning": told.cause.meaning,
            "remedy": told.cause.advice.remedy,
            "detail": clean(told.cause.detail, 500),
        },
        "lines": list(told.lines),
        "didYouMean": names,
        "scheduler": found.scheduler if isinstance(evidence.scheduler, Explanation) else None,
        "schedulerFault": evidence.scheduler.fault if isinstance(evidence.scheduler, NoAnswer) else None,
        "agent": found.agent,
        "agentFault": evidence.agent.fault if isinstance(evidence.agent, NoAnswer) else None,
    }
