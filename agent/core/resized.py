"""The news of changed sizes, with reasons: only changes that this agent has asked for, and not each step of many. Pure.

The cause of a change is the plan's reason when the resize was started. Of its urgent needs only the guest knows more,
and its informant says it with the wish.
"""

from dataclasses import dataclass, replace
from typing import Final

from agent.core import events
from agent.core.desire import URGENT, URGENT_BEFORE
from agent.core.notices import Notice, Topic
from agent.core.per_resource import PerResource, amounts
from agent.core.step import RunnerStep
from protocol.values import Resources

EVERY_S: Final = 300.0
"""Changes of one VM are told at most so often; those in between are told as one."""
_NAMES: Final = ("CPU", "memory")
_UNKNOWN: Final = PerResource("", "")


@dataclass(frozen=True, slots=True)
class AskedSizeChange:
    """The VM went from one size to another, as it was asked to; each resource with why, empty if that was not asked for."""

    before: Resources
    after: Resources
    why: PerResource[str]


@dataclass(frozen=True, slots=True)
class SizeWatch:
    """The last target that was asked for, and why; the guest's reasons for its wishes; the size at the last look."""

    size: Resources | None = None
    target: Resources | None = None
    why: PerResource[str] = _UNKNOWN
    wishes: PerResource[str] = _UNKNOWN

    def after(self, step: RunnerStep) -> tuple["SizeWatch", tuple[AskedSizeChange, ...]]:
        """The watch after a step, and the changes that the step has shown."""
        watch = self
        changes: list[AskedSizeChange] = []
        for each in step.transitions:
            match each.event:
                case events.TryUpscaleReceived(more_resources=more, why=why) if each.before is not each.after:
                    cpu, memory = watch.wishes.cpu, watch.wishes.memory
                    told = PerResource(why if more.cpu else cpu, why if more.memory else memory)
                    watch = replace(watch, wishes=told)
                case events.Started(action=events.Resize(target=target)):
                    reason, said = step.plan.reason, watch.wishes
                    causes = PerResource(_cause(reason.cpu, said.cpu), _cause(reason.memory, said.memory))
                    watch = replace(watch, target=target, why=causes)
                case events.Observed(observation=seen) if seen.size != watch.size:
                    changes += _asked_for(watch, seen.size)
                    watch = replace(watch, size=seen.size)
                case _:
                    pass
        return watch, tuple(changes)


def _asked_for(watch: SizeWatch, size: Resources) -> list[AskedSizeChange]:
    """The change to this size, if it was asked for: towards the target, and not beyond it."""
    if watch.size is None or watch.target is None:
        return []
    amounts_of = zip(amounts(watch.size), amounts(size), amounts(watch.target), watch.why, strict=True)
    whys = [
        why if before < now <= target or before > now >= target else ""
        for before, now, target, why in amounts_of
    ]
    return [AskedSizeChange(watch.size, size, PerResource(*whys))] if any(whys) else []


def _cause(reason: str, said: str) -> str:
    return f"{reason}: {said}" if said and reason in (URGENT, URGENT_BEFORE) else reason


@dataclass(frozen=True, slots=True)
class SizeNews:
    """The news of one VM that are not told yet: `change` is all changes as one, of `steps`. `told_s` is when something was told last."""

    change: AskedSizeChange | None = None
    steps: int = 0
    told_s: float | None = None

    def heard(self, change: AskedSizeChange) -> "SizeNews":
        """With another change, which is told with those before it. The latest cause of each resource counts."""
        if self.change is None:
            return replace(self, change=change, steps=1)
        why = PerResource(*(new or old for old, new in zip(self.change.why, change.why, strict=True)))
        return replace(
            self, change=AskedSizeChange(self.change.before, change.after, why), steps=self.steps + 1
        )

    def told(self, now_s: float) -> tuple["SizeNews", Notice | None]:
        is_early = self.told_s is not None and now_s - self.told_s < EVERY_S
        if self.change is None or is_early:
            return self, None
        notice = _notice(self.change, self.steps)
        return SizeNews(told_s=now_s if notice is not None else self.told_s), notice


NO_NEWS: Final = SizeNews()


def _notice(change: AskedSizeChange, steps: int) -> Notice | None:
    """The change in words; None if no part of it that was asked for is left."""
    written = zip(_NAMES, change.before.written().values(), change.after.written().values(), strict=True)
    moved = [
        (f"{name} {before} → {after}", why)
        for (name, before, after), why in zip(written, change.why, strict=True)
        if before != after and why
    ]
    if not moved:
        return None
    text = "; ".join(f"{words}: {why}" for words, why in moved)
    if len({why for _, why in moved}) == 1:
        text = f"{', '.join(words for words, _ in moved)}: {moved[0][1]}"
    is_growth = change.after.exceeds(change.before)
    times = f" ({steps} times)" if steps > 1 else ""
    return Notice(Topic.GROWN if is_growth else Topic.SHRUNK, f"{text}{times}", is_warning=False)
