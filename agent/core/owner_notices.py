"""The notices to the owner of a VM about its scaling: troubles that last, and not the same one again and again. Pure.

Each look names the present troubles, by topic. A topic is told when it has lasted; again if its text changes, or after a long time,
because Events are kept for an hour; and when it is over. Changed sizes are news, if this agent has asked for them; not each step of many.
"""

import enum
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final, TypeAlias

from agent.core import events
from agent.core.condition import VM, Condition, Health
from agent.core.desire import URGENT, URGENT_BEFORE
from agent.core.model import PerResource, amounts
from agent.core.step import RunnerStep
from protocol.values import Resources

AGAIN_S: Final = 1800.0
"""A trouble that lasts is told again after so long."""
CHANGED_S: Final = 300.0
"""A changed text is told again at the earliest after so long."""


@dataclass(frozen=True, slots=True)
class Wording:
    """How a topic is told: `reason` and `action` as in an Event of Kubernetes, `over` the reason when it is over; empty if that is not
    told. `patience_s` is how long it must have lasted."""

    reason: str
    action: str
    patience_s: float = 0.0
    over: str = ""


class Topic(enum.Enum):
    UNSCALABLE = Wording("NotScalable", "Scale")
    ANNOTATIONS = Wording("AnnotationIgnored", "ReadAnnotations")
    OTHERS = Wording("OtherController", "Scale")
    DENIED = Wording("GrowthDenied", "Grow", patience_s=30.0, over="GrowthPermitted")
    STUCK = Wording("ResizeStuck", "Resize", over="ResizeWorks")
    MISMATCH = Wording("CgroupMismatch", "Resize", patience_s=5.0, over="CgroupsMatch")
    SILENT = Wording("PeerSilent", "Scale", patience_s=60.0, over="PeersAnswer")
    EVICTION = Wording("Evicting", "Evict")
    NO_EVICTION = Wording("EvictionRefused", "Evict")
    GROWN = Wording("", "Resize", over="Grown")
    SHRUNK = Wording("", "Resize", over="Shrunk")
    """These two are never the matter, only news (`SizeNews`)."""


@dataclass(frozen=True, slots=True)
class OwnerNotice:
    """One thing to tell. `is_warning` is false if it is over."""

    topic: Topic
    text: str
    is_warning: bool = True

    @property
    def reason(self) -> str:
        """The machine's word for it."""
        return self.topic.value.reason if self.is_warning else self.topic.value.over


@dataclass(frozen=True, slots=True)
class Standing:
    """A trouble: its beginning, the text that was told of it, and when; None if nothing was told yet."""

    since_s: float
    told: str = ""
    told_s: float | None = None


@dataclass(frozen=True, slots=True)
class Matters:
    """The troubles of a VM beside the condition of its runner, as texts for a person: why it cannot be scaled, the ignored parts of its
    annotations, and the other controllers at work on it."""

    obstacles: tuple[str, ...] = ()
    faults: tuple[str, ...] = ()
    others: tuple[str, ...] = ()


def present(condition: Condition | None, matters: Matters) -> dict[Topic, str]:
    """The present troubles, in words; `condition` is None if no runner is at work."""
    found = {
        Topic.UNSCALABLE: "; ".join(matters.obstacles),
        Topic.ANNOTATIONS: "; ".join(matters.faults),
        Topic.OTHERS: "; ".join(matters.others),
    }
    if condition is not None and condition.mismatch:
        is_all = condition.health is Health.DENIED
        found[Topic.MISMATCH] = "; ".join(condition.reasons) if is_all else condition.mismatch
    elif condition is not None and condition.health is Health.DENIED:
        why = "; ".join(condition.reasons)
        found[Topic.DENIED] = f"{condition.growth}: {why}" if condition.growth is not None else why
    if condition is not None and condition.health is Health.STUCK:
        found[Topic.STUCK if VM in condition.peers else Topic.SILENT] = "; ".join(condition.reasons)
    return {topic: text for topic, text in found.items() if text}


Standings: TypeAlias = Mapping[Topic, Standing]


def look(
    before: Standings,
    present: Mapping[Topic, str],
    now_s: float,
    denied_after_s: float = Topic.DENIED.value.patience_s,
) -> tuple[Standings, list[OwnerNotice]]:
    """The troubles that stand after this look, and the notices to give now. `present` has the present troubles, in words. A denial is told
    after `denied_after_s`."""
    # Whether more is denied is not known while one of these is the matter: a denial stands as it was.
    is_hidden = any(topic in present for topic in (Topic.MISMATCH, Topic.STUCK, Topic.SILENT))
    hidden = {Topic.DENIED} if is_hidden else set()
    notices = [
        OwnerNotice(topic, f"{topic.value.reason} is over", is_warning=False)
        for topic, standing in before.items()
        if topic not in (present.keys() | hidden) and standing.told_s is not None and topic.value.over
    ]
    after = {topic: standing for topic, standing in before.items() if topic in hidden}
    for topic, text in present.items():
        standing = before.get(topic, Standing(now_s))
        patience_s = denied_after_s if topic is Topic.DENIED else topic.value.patience_s
        if _is_due(standing, text, now_s, patience_s):
            standing = Standing(standing.since_s, text, now_s)
            notices.append(OwnerNotice(topic, text))
        after[topic] = standing
    return after, notices


def _is_due(standing: Standing, text: str, now_s: float, patience_s: float) -> bool:
    if standing.told_s is None:
        return now_s - standing.since_s >= patience_s
    wait_s = AGAIN_S if text == standing.told else CHANGED_S
    return now_s - standing.told_s >= wait_s


PREDICTED_EVERY_S: Final = 30.0
"""A predicted size changes at most so often."""


@dataclass(frozen=True, slots=True)
class Prediction:
    """The size that a pod would have where there is room for it, as it was told last, and when; None if nothing is to be told."""

    size: Resources | None = None
    told_s: float = 0.0

    def after(self, standings: Standings, condition: Condition | None, now_s: float) -> "Prediction":
        """The prediction after a look: there is one while a denial for want of room stands that was told. It stays as it is while nobody
        knows whether more is denied."""
        standing = standings.get(Topic.DENIED)
        if standing is None or standing.told_s is None:
            return NO_PREDICTION
        if condition is None or condition.health is not Health.DENIED or condition.mismatch:
            return self
        growth = condition.growth
        if growth is None or not growth.lacks_room:
            return NO_PREDICTION
        is_early = self.size is not None and now_s - self.told_s < PREDICTED_EVERY_S
        return self if is_early or growth.wanted == self.size else Prediction(growth.wanted, now_s)


NO_PREDICTION: Final = Prediction()

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
    """The last target that was asked for, and why; the guest's reasons for its wishes; the size at the last look.

    The cause of a change is the plan's reason when the resize was started. Of its urgent needs only the guest knows more, and its informant
    says it with the wish.
    """

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

    def told(self, now_s: float) -> tuple["SizeNews", OwnerNotice | None]:
        is_early = self.told_s is not None and now_s - self.told_s < EVERY_S
        if self.change is None or is_early:
            return self, None
        notice = _notice(self.change, self.steps)
        return SizeNews(told_s=now_s if notice is not None else self.told_s), notice


NO_NEWS: Final = SizeNews()


def _notice(change: AskedSizeChange, steps: int) -> OwnerNotice | None:
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
    return OwnerNotice(Topic.GROWN if is_growth else Topic.SHRUNK, f"{text}{times}", is_warning=False)
