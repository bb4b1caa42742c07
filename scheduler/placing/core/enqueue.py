"""Which events may make a rejected pod schedulable. Source: reference/kubernetes.md 1.9, EnqueueExtensions."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Final, TypeAlias

from scheduler.placing.core.objects import PodInfo
from scheduler.placing.core.plugin import EnqueueExtensions, Plugin
from scheduler.placing.core.profile import ResolvedProfile
from scheduler.placing.core.values import (
    ActionType,
    EventResource,
    EventWithHint,
    ExtensionPoint,
    QueueingHint,
    SchedulingEvent,
)

REJECTING_POINTS: Final = (
    ExtensionPoint.PRE_ENQUEUE,
    ExtensionPoint.PRE_FILTER,
    ExtensionPoint.FILTER,
    ExtensionPoint.RESERVE,
    ExtensionPoint.PERMIT,
)
"""Where a plugin can reject a pod so that an event may help."""
ALL_EVENTS: Final = (EventWithHint(EventResource.ANY, ActionType.ALL),)

RegisteredEvents: TypeAlias = Mapping[str, tuple[EventWithHint, ...]]
"""The events that each plugin waits for, by its name."""


@dataclass(frozen=True, slots=True)
class HintVerdict:
    """Whether a pod is to be queued after an event; and which plugins' hints failed, which counts as `QUEUE`."""

    hint: QueueingHint
    failures: tuple[tuple[str, Exception], ...] = ()


def plugins_with_events(profile: ResolvedProfile) -> tuple[str, ...]:
    """The plugins that can reject a pod: those whose events count."""
    return tuple(dict.fromkeys(name for point in REJECTING_POINTS for name in profile.points[point]))


def events_of(plugin: Plugin) -> tuple[EventWithHint, ...]:
    """Ask a plugin for its events: all of them for a plugin that does not say. Raises what the plugin raises."""
    return tuple(plugin.events_to_register()) if isinstance(plugin, EnqueueExtensions) else ALL_EVENTS


def hint_of(
    registered: RegisteredEvents, pod: PodInfo, event: SchedulingEvent, rejected_by: Collection[str]
) -> HintVerdict:
    """Whether `event` may help a pod that these plugins rejected: where one of them waits for it and its hint does not say Skip.

    A pod that no plugin rejected, or one that is not registered, is queued after every event.
    """
    if not rejected_by or any(name not in registered for name in rejected_by):
        return HintVerdict(QueueingHint.QUEUE)
    failures = []
    for name in sorted(rejected_by):
        for waited in registered[name]:
            if not _is_meant(waited, event):
                continue
            try:
                hint = waited.hint(pod, event) if waited.hint is not None else QueueingHint.QUEUE
                if not isinstance(hint, QueueingHint):
                    raise TypeError(f"a hint must be a QueueingHint, not {hint!r}")
            except Exception as error:  # noqa: BLE001 - a hint is anybody's code
                failures.append((name, error))
                hint = QueueingHint.QUEUE
            if hint is QueueingHint.QUEUE:
                return HintVerdict(hint, tuple(failures))
    return HintVerdict(QueueingHint.SKIP, tuple(failures))


def is_waited_for(registered: RegisteredEvents, event: SchedulingEvent, rejected_by: Collection[str]) -> bool:
    """Whether `hint_of` may say `QUEUE` of some pod that these plugins rejected."""
    return (
        not rejected_by
        or any(name not in registered for name in rejected_by)
        or any(_is_meant(waited, event) for name in rejected_by for waited in registered[name])
    )


def _is_meant(waited: EventWithHint, event: SchedulingEvent) -> bool:
    is_same = waited.resource is event.resource or EventResource.ANY in (waited.resource, event.resource)
    return is_same and bool(waited.action.value & event.action.value)
