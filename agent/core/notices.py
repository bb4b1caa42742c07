"""The notices to the owner of a VM about its scaling: troubles that last, and not the same one again and again. Pure.

Each look names the present troubles, by topic. A topic is told when it has lasted; again if its text changes, or after a long time,
because Events are kept for an hour; and when it is over.
"""

import enum
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, TypeAlias

from agent.core.condition import VM, Condition, Health

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
    """The kinds of trouble of a VM."""

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
    """These two are never the matter, only news (`agent.core.resized`)."""


@dataclass(frozen=True, slots=True)
class Notice:
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
        found[Topic.DENIED] = "; ".join(condition.reasons)
    if condition is not None and condition.health is Health.STUCK:
        found[Topic.STUCK if VM in condition.peers else Topic.SILENT] = "; ".join(condition.reasons)
    return {topic: text for topic, text in found.items() if text}


Standings: TypeAlias = Mapping[Topic, Standing]


def look(before: Standings, present: Mapping[Topic, str], now_s: float) -> tuple[Standings, list[Notice]]:
    """The troubles that stand after this look, and the notices to give now. `present` has the present troubles, in words."""
    # Whether more is denied is not known while one of these is the matter: a denial stands as it was.
    is_hidden = any(topic in present for topic in (Topic.MISMATCH, Topic.STUCK, Topic.SILENT))
    hidden = {Topic.DENIED} if is_hidden else set()
    notices = [
        Notice(topic, f"{topic.value.reason} is over", is_warning=False)
        for topic, standing in before.items()
        if topic not in (present.keys() | hidden) and standing.told_s is not None and topic.value.over
    ]
    after = {topic: standing for topic, standing in before.items() if topic in hidden}
    for topic, text in present.items():
        standing = before.get(topic, Standing(now_s))
        if _is_due(topic, standing, text, now_s):
            standing = Standing(standing.since_s, text, now_s)
            notices.append(Notice(topic, text))
        after[topic] = standing
    return after, notices


def _is_due(topic: Topic, standing: Standing, text: str, now_s: float) -> bool:
    if standing.told_s is None:
        return now_s - standing.since_s >= topic.value.patience_s
    wait_s = AGAIN_S if text == standing.told else CHANGED_S
    return now_s - standing.told_s >= wait_s
