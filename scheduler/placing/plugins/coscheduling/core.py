"""Which gang a pod belongs to, what its gang asks for, and the phase of a PodGroup. Source: reference/koordinator.md 2.5.

A gang is described by a PodGroup, or by annotations of its pods. Bad values fall back, as published: to the mode Strict, to the waiting time
and match policy of the args, to a group of the gang alone. Only a minimum that cannot be read leaves the gang without a description.
"""

import enum
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal, NamedTuple, TypeVar

from hosting.kubernetes.koordinator import SCHEDULING
from protocol.durations import DurationError, parse_go_duration

POD_GROUP: Final = "pod-group.scheduling.sigs.k8s.io"
"""Label of a pod: the name of its PodGroup."""
OLD_NAME: Final = "pod-group.scheduling.sigs.k8s.io/name"
OLD_MIN_AVAILABLE: Final = "pod-group.scheduling.sigs.k8s.io/min-available"
"""Deprecated labels of pods without a PodGroup."""
GANG: Final = "gang.scheduling.koordinator.sh/"
"""The prefix of annotations, of pods and PodGroups."""
BIND_GROUP: Final = "bind-gang-group-id"
BIND_COUNT: Final = "bind-gang-member-count"
BIND_PREFIXES: Final = (f"internal.{SCHEDULING}", SCHEDULING)
"""The second one is deprecated; both are written."""

E = TypeVar("E", bound=enum.StrEnum)


class GangMode(enum.StrEnum):
    """Whether members that wait are given up when another one fails."""

    STRICT = "Strict"
    NON_STRICT = "NonStrict"


class MatchPolicy(enum.StrEnum):
    """Which members count for the minimum of a gang: those that wait, also those that are bound, or nobody any more once it was met."""

    ONLY_WAITING = "only-waiting"
    WAITING_AND_RUNNING = "waiting-and-running"
    ONCE_SATISFIED = "once-satisfied"


@dataclass(frozen=True, slots=True)
class GangDefaults:
    """The args by which missing values are filled in."""

    wait_s: float = 600.0
    match_policy: MatchPolicy = MatchPolicy.ONCE_SATISFIED


@dataclass(frozen=True, slots=True)
class GangSpec:
    """A gang as it is described. `group` are the gangs that are satisfied together, itself included, sorted; all are `namespace/name`."""

    gang: str
    min_member: int
    group: tuple[str, ...]
    mode: GangMode = GangMode.STRICT
    match_policy: MatchPolicy = MatchPolicy.ONCE_SATISFIED
    wait_s: float = 600.0

    @property
    def group_id(self) -> str:
        return ",".join(self.group)


class GangRef(NamedTuple):
    """The gang that a pod names, and whether a PodGroup describes it."""

    gang: str
    has_object: bool


def gang_of(pod: Mapping[str, Any]) -> GangRef | None:
    """The gang of a pod; None for a pod of no gang."""
    labels = _texts(pod, "labels")
    name = labels.get(POD_GROUP)
    found = name or labels.get(OLD_NAME) or _texts(pod, "annotations").get(f"{GANG}name")
    return GangRef(f"{pod['metadata'].get('namespace', '')}/{found}", bool(name)) if found else None


def described_by_pod(gang: str, pod: Mapping[str, Any], defaults: GangDefaults) -> GangSpec | None:
    """The gang as one of its pods describes it; None if the minimum is missing or is no whole number from 1."""
    annotations = _texts(pod, "annotations")
    labels = _texts(pod, "labels")
    minimum = _whole(annotations.get(f"{GANG}min-available") or labels.get(OLD_MIN_AVAILABLE))
    if minimum is None:
        return None
    waiting = _duration_s(annotations.get(f"{GANG}waiting-time", ""))
    return _spec(gang, minimum, waiting, annotations, defaults)


def described_by_object(pod_group: Mapping[str, Any], defaults: GangDefaults) -> GangSpec | None:
    """The gang of a PodGroup; None if its `minMember` is missing or no number from 1."""
    spec = pod_group.get("spec") or {}
    minimum, seconds = spec.get("minMember"), spec.get("scheduleTimeoutSeconds")
    if not isinstance(minimum, int) or minimum < 1:
        return None
    metadata = pod_group["metadata"]
    gang = f"{metadata.get('namespace', '')}/{metadata['name']}"
    waiting = float(seconds) if isinstance(seconds, int) else None
    return _spec(gang, minimum, waiting, _texts(pod_group, "annotations"), defaults)


def _spec(
    gang: str, minimum: int, wait_s: float | None, annotations: Mapping[str, str], defaults: GangDefaults
) -> GangSpec:
    return GangSpec(
        gang,
        minimum,
        _group(gang, annotations.get(f"{GANG}groups", "")),
        _named(GangMode, annotations.get(f"{GANG}mode"), GangMode.STRICT),
        _named(MatchPolicy, annotations.get(f"{GANG}match-policy"), defaults.match_policy),
        wait_s if wait_s is not None and wait_s > 0 else defaults.wait_s,
    )


def _texts(manifest: Mapping[str, Any], part: Literal["labels", "annotations"]) -> Mapping[str, str]:
    return (manifest.get("metadata") or {}).get(part) or {}


def _whole(text: str | None) -> int | None:
    """A number from 1; of more than 18 digits it is none: the published plugin takes 64 bits."""
    return int(text) if text and re.fullmatch("[0-9]{1,18}", text) and int(text) > 0 else None


def _named(kind: type[E], text: str | None, default: E) -> E:
    return kind(text) if text in frozenset(kind) else default


def _group(gang: str, text: str) -> tuple[str, ...]:
    try:
        named = json.loads(text) if text else []
    except (ValueError, RecursionError):
        named = []
    is_list = isinstance(named, list) and all(
        isinstance(each, str) and each.count("/") == 1 for each in named
    )
    return tuple(sorted({gang, *(named if is_list else ())}))


def _duration_s(text: str) -> float | None:
    try:
        return parse_go_duration(text)
    except DurationError:
        return None


class GroupPhase(enum.StrEnum):
    """The phase of a PodGroup. The last two are final."""

    PENDING = "Pending"
    PRE_SCHEDULING = "PreScheduling"
    SCHEDULING = "Scheduling"
    SCHEDULED = "Scheduled"
    RUNNING = "Running"
    FINISHED = "Finished"
    FAILED = "Failed"


_FINAL: Final = frozenset({GroupPhase.FINISHED, GroupPhase.FAILED})


def group_status(pod_group: Mapping[str, Any], pods: Iterable[Mapping[str, Any]], now: str) -> dict[str, Any]:
    """The status of a PodGroup with these pods. `now`, as the API writes times, becomes the beginning of its scheduling."""
    before = pod_group.get("status") or {}
    if before.get("phase") in _FINAL:
        return dict(before)
    minimum = int((pod_group.get("spec") or {}).get("minMember") or 1)
    members = list(pods)
    phases = [str((pod.get("status") or {}).get("phase", "")) for pod in members]
    scheduled = sum(bool((pod.get("spec") or {}).get("nodeName")) for pod in members)
    running, succeeded, failed = (phases.count(each) for each in ("Running", "Succeeded", "Failed"))
    if succeeded >= minimum:
        phase = GroupPhase.FINISHED
    elif failed and failed + running + succeeded >= minimum:
        phase = GroupPhase.FAILED
    elif running + succeeded >= minimum:
        phase = GroupPhase.RUNNING
    elif scheduled >= minimum:
        phase = GroupPhase.SCHEDULED
    elif scheduled:
        phase = GroupPhase.SCHEDULING
    else:
        phase = GroupPhase.PRE_SCHEDULING if len(members) >= minimum else GroupPhase.PENDING
    status = {
        "phase": str(phase),
        "scheduled": scheduled,
        "running": running,
        "succeeded": succeeded,
        "failed": failed,
    }
    if scheduled:
        status["scheduleStartTime"] = before.get("scheduleStartTime") or now
    return status
