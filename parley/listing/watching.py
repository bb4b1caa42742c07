"""`parley watch`: decisions as they fall, asked for again and again."""

import json
import random
from collections.abc import Awaitable, Callable, Iterable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import Final

import click
import msgspec

from hosting.backoff import Backoff
from hosting.lifecycle import Stop
from parley.listing import output as outputs
from parley.listing.core.decisions import Follow, VmFilter, line, outcomes_of, wide_line
from parley.listing.program import failed
from parley.reach import asking
from parley.reach.ports import NoAnswer, Reach
from parley.top.texts import clean
from protocol.explaining import Decisions, DecisionShown

PERIOD_S: Final = 1.0
RETRY: Final = Backoff(base_s=0.5, cap_s=10.0)


@dataclass(frozen=True, slots=True)
class WatchOptions:
    """The filter and the form of the output: `output` is table, wide or json; `count` decisions are the end, None stands for no end."""

    namespace: str | None = None
    names: tuple[str, ...] = ()
    nodes: tuple[str, ...] = ()
    outcomes: tuple[str, ...] = ()
    output: str = "table"
    is_from_start: bool = False
    count: int | None = None

    def filter(self) -> VmFilter:
        return VmFilter(self.namespace, self.names, self.nodes, outcomes=outcomes_of(self.outcomes))

    def vms(self) -> VmFilter | None:
        """Whose decisions are shown; None for those of all VMs."""
        wanted = VmFilter(self.namespace, self.names, self.nodes)
        return None if wanted == VmFilter() else wanted


@dataclass(slots=True)
class DecisionWatch:
    """One run of the command. `wait` sleeps for some seconds, and is True when the end was requested."""

    options: WatchOptions
    wait: Callable[[float], Awaitable[bool]]
    rng: random.Random = field(default_factory=random.Random)
    _left: int | None = None

    async def run(self, reach: Reach) -> int:
        """Tell decisions until the end is requested; the exit code."""
        self._left = self.options.count
        follow, failures = Follow(is_from_start=self.options.is_from_start), 0
        while True:
            found = await asking.document(reach, f"/v1/decisions?{follow.query}", Decisions)
            if isinstance(found, NoAnswer):
                if follow.is_first:
                    return failed(found)
                failures += 1
                if failures == 1:
                    click.echo(f"{clean(found.fault, 500)}; asking again", err=True)
                pause_s = RETRY.delay_s(failures, self.rng.random())
            else:
                if failures:
                    click.echo("the scheduler answers again", err=True)
                failures = 0
                if follow.is_first:
                    await self._say_if_nobody(reach)
                step = follow.heard(found)
                follow = step.follow
                if step.note:
                    click.echo(step.note, err=True)
                if self._tell(step.decisions):
                    return 0
                pause_s = 0.0 if step.is_more else PERIOD_S
            if await self.wait(pause_s):
                return 0

    async def _say_if_nobody(self, reach: Reach) -> None:
        """Say that no VM is watched yet, if that is known: decisions may never come then."""
        wanted = self.options.vms()
        known = await asking.state(reach, max_pages=20) if wanted is not None else None
        if wanted is None or not isinstance(known, asking.State) or known.is_cut:
            return
        if not any(map(wanted.passes, known.vms)):
            click.echo(f"nobody to watch yet: {wanted.none_of(known.vms)}", err=True)

    def _tell(self, decisions: Iterable[DecisionShown]) -> bool:
        """Print those that pass; whether that was the last one."""
        passes = self.options.filter().passes
        for decision in filter(passes, decisions):
            click.echo(
                _told(decision, self.options.output)
            )  # flushes, so that a reader behind a pipe sees it at once
            if self._left is not None:
                self._left -= 1
                if self._left == 0:
                    return True
        return False


def _told(decision: DecisionShown, output: str) -> str:
    if output == "json":
        return json.dumps(msgspec.to_builtins(decision))
    return wide_line(decision) if output == "wide" else line(decision)


def run(reach: AbstractAsyncContextManager[Reach], options: WatchOptions) -> int:
    """DecisionWatch until Ctrl-C; the exit code."""

    async def main(stop: Stop) -> int:
        async with reach as asked:
            return await DecisionWatch(options, stop.wait_for).run(asked)

    return outputs.run(main, interrupted=0)  # Ctrl-C is its usual end
