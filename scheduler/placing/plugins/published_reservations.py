"""What a published Reservation (`scheduling.koordinator.sh`) says of itself, what a pod says of those that it may use, and which match.

Sources: seed 002, reference/koordinator.md 2.6. The ledger keeps the room of a published Reservation like that of our own
([decision 49](../../../docs/decisions/0049-one-holder-for-two-reservations.md)); only who may use it is told here.
"""

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Annotated, Any, Final, Literal

from pydantic import Field

from hosting.kubernetes import objects
from hosting.kubernetes.koordinator import SCHEDULING
from hosting.kubernetes.resources import Manifest
from hosting.settings import Settings, check
from protocol.durations import DurationError, parse_go_duration
from protocol.values import Resources
from protocol.wire import PodName
from scheduler.placing.core.objects import NodeInfo, PodInfo, Reservation, without_pods
from scheduler.placing.plugins.base import annotation_of
from scheduler.placing.plugins.node_conditions import tolerates
from scheduler.placing.plugins.node_resources import requests, total

AFFINITY: Final = f"{SCHEDULING}reservation-affinity"
"""Annotation of a pod, JSON: `ReservationAffinityEntry`. The pod goes only where a reservation that matches it has room."""
IGNORED: Final = f"{SCHEDULING}reservation-ignored"
"""Label of a pod: "true" has it use no reservation."""
EXACT: Final = f"{SCHEDULING}exact-match-reservation"
"""Annotation of a pod, JSON: the resources whose amounts must be those of the reservation."""
RESTRICTED: Final = f"{SCHEDULING}reservation-restricted-options"
"""Annotation of a Reservation, JSON: the resources that a policy `Restricted` is about; all if left out."""
ORDER: Final = f"{SCHEDULING}reservation-order"
"""Label of a Reservation: those with the lowest number above 0 are used first."""
ALLOCATED: Final = f"{SCHEDULING}reservation-allocated"
"""Annotation that the scheduler writes to a pod, JSON: `name` and `uid` of the reservation whose room it uses."""
DEFAULT_TTL_S: Final = 24 * 3600.0
_KEEPS_AWAY: Final = frozenset({"NoSchedule", "NoExecute"})


class ObjectReferenceEntry(Settings):
    """A pod by what is known of it; what is left out may be anything."""

    api_version: str = ""
    kind: str = ""
    namespace: str = ""
    name: str = ""
    uid: str = ""
    resource_version: str = ""
    field_path: str = ""


class ControllerReferenceEntry(Settings):
    """The controller of a pod; what is left out may be anything."""

    api_version: str = ""
    kind: str = ""
    namespace: str = ""
    name: str = ""
    uid: str = ""
    controller: bool | None = None
    block_owner_deletion: bool | None = None


class SelectorExpressionEntry(Settings):
    """One condition on a label."""

    key: str
    operator: str
    values: list[str] = Field(default_factory=list)


class LabelSelectorEntry(Settings):
    """Labels that must be there; all of it must hold."""

    match_labels: dict[str, str] = Field(default_factory=dict)
    match_expressions: list[SelectorExpressionEntry] = Field(default_factory=list)

    def selects(self, labels: Mapping[str, str]) -> bool:
        return objects.selects(self.model_dump(by_alias=True), labels)


class RequiredSelectorEntry(Settings):
    """One of the terms must hold; without any, all hold."""

    reservation_selector_terms: list[LabelSelectorEntry] = Field(default_factory=list)


class PublishedOwnerEntry(Settings):
    """Pods that may use the room: all that is given must hold."""

    object: ObjectReferenceEntry | None = None
    controller: ControllerReferenceEntry | None = None
    label_selector: LabelSelectorEntry | None = None

    def matches(self, pod: PodInfo) -> bool:
        parts = (
            self.object is None or _is_object(self.object, pod),
            self.controller is None or _is_controlled(self.controller, pod),
            self.label_selector is None or self.label_selector.selects(pod.labels),
        )
        return all(parts)


class PreAllocationPolicyEntry(Settings):
    """Whose room a pre-allocated reservation waits for: that of one of its owners on the node, or of all of them."""

    mode: Literal["", "Default", "Cluster"] = ""
    enable_multiple: bool = False

    @classmethod
    def rules(cls, found: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
        """Nothing that is not done here."""
        if found.get("mode") == "Cluster":
            yield (
                "mode",
                "Cluster is not done by this scheduler: only pods that match the owners are waited for",
            )


class ReservationTaintEntry(Settings):
    """Keeps pods away that do not tolerate it."""

    key: str
    value: str = ""
    effect: Literal["NoSchedule", "PreferNoSchedule", "NoExecute"]
    time_added: str | None = None


class PublishedReservationEntry(Settings):
    """The spec of a published Reservation."""

    template: dict[str, Any] = Field(default_factory=dict)
    owners: Annotated[list[PublishedOwnerEntry], Field(max_length=64)] = Field(default_factory=list)
    ttl: str | None = None
    expires: str | None = None
    pre_allocation: bool = False
    pre_allocation_policy: PreAllocationPolicyEntry | None = None
    allocate_once: bool | None = None
    allocate_policy: Literal["", "Default", "Aligned", "Restricted"] = ""
    unschedulable: bool = False
    taints: Annotated[list[ReservationTaintEntry], Field(max_length=64)] = Field(default_factory=list)

    @classmethod
    def rules(cls, found: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
        """Moments and durations that can be read."""
        if found.get("ttl"):
            try:
                parse_go_duration(found["ttl"])
            except DurationError as error:
                yield "ttl", str(error)
        if found.get("expires"):
            try:
                datetime.fromisoformat(found["expires"])
            except ValueError:
                yield "expires", f"must be a time such as 2026-01-31T12:00:00Z, not {found['expires']!r}"

    @property
    def ttl_s(self) -> float | None:
        """Seconds from its creation until it ends; None for never."""
        return (parse_go_duration(self.ttl) if self.ttl is not None else DEFAULT_TTL_S) or None


class ReservationAffinityEntry(Settings):
    """Which reservations a pod wants."""

    name: str = ""
    required_during_scheduling_ignored_during_execution: RequiredSelectorEntry | None = None
    reservation_selector: dict[str, str] | None = None
    tolerations: Annotated[list[dict[str, Any]], Field(max_length=64)] = Field(default_factory=list)


class ResourceNamesEntry(Settings):
    """Names of resources."""

    resource_names: list[str] = Field(default_factory=list)


class RestrictedOptionsEntry(Settings):
    """Names of resources."""

    resources: list[str] = Field(default_factory=list)


def spec_of_reservation(manifest: Manifest) -> PublishedReservationEntry:
    """The spec of an object. Raises `FaultsError` with every fault."""
    return check(manifest.get("spec") or {}, PublishedReservationEntry)


@dataclass(frozen=True, slots=True)
class WantedReservations:
    """What a pod says of reservations. `affinity` is None for a pod that may also go where none is."""

    affinity: ReservationAffinityEntry | None = None
    exact: tuple[str, ...] = ()
    is_ignoring: bool = False

    @property
    def tolerations(self) -> list[dict[str, Any]]:
        return self.affinity.tolerations if self.affinity is not None else []


NOTHING_WANTED: Final = WantedReservations()


def wanted_by(pod: PodInfo) -> WantedReservations:
    """Raises `ValueError`, with every fault, for annotations that cannot be read."""
    annotations = annotations_of(pod)
    affinity, exact = annotations.get(AFFINITY), annotations.get(EXACT)
    is_ignoring = pod.labels.get(IGNORED) == "true"
    if affinity is None and exact is None and not is_ignoring:
        return NOTHING_WANTED
    return WantedReservations(
        annotation_of(AFFINITY, affinity, ReservationAffinityEntry) if affinity is not None else None,
        tuple(annotation_of(EXACT, exact, ResourceNamesEntry).resource_names) if exact is not None else (),
        is_ignoring,
    )


@dataclass(frozen=True, slots=True)
class PublishedTerms:
    """Who may use a published reservation, and for how much."""

    name: str
    owners: tuple[PublishedOwnerEntry, ...] = ()
    labels: Mapping[str, str] = field(default_factory=dict)
    taints: tuple[ReservationTaintEntry, ...] = ()
    is_unschedulable: bool = False
    restricted: frozenset[str] | None = None
    """The resources that a pod must find in the reservation, never in the free room of the node; None for none."""
    is_default: bool = True
    """Of the policy `Default`, which is not on one node with the others."""
    others: Mapping[str, int] = field(default_factory=dict)
    """The amounts that it keeps beside CPU and memory, which the ledger does not count."""
    pre_allocation: PreAllocationPolicyEntry | None = None
    """None for one that needs its room at once."""

    @classmethod
    def of(cls, manifest: Manifest, is_ignored: Callable[[str], bool] = lambda _: False) -> "PublishedTerms":
        """Raises `ValueError`, with every fault. Resources that are ignored are not kept."""
        spec = spec_of_reservation(manifest)
        written = objects.annotations(manifest).get(RESTRICTED)
        pod = PodInfo(PodName(objects.name(manifest), ""), objects.uid(manifest), manifest=spec.template)
        try:
            others = {name: amount for name, amount in requests(pod).items() if not is_ignored(name)}
        except (TypeError, AttributeError) as error:  # the template is no pod's
            raise ValueError(f"spec.template: {error}") from None
        restricted = None
        if spec.allocate_policy == "Restricted":
            named = annotation_of(RESTRICTED, written, RestrictedOptionsEntry).resources if written else []
            restricted = frozenset(named or ("cpu", "memory", *others))
        return cls(
            objects.name(manifest),
            tuple(spec.owners),
            objects.labels(manifest),
            tuple(spec.taints),
            spec.unschedulable,
            restricted,
            spec.allocate_policy in {"", "Default"},
            others,
            (spec.pre_allocation_policy or PreAllocationPolicyEntry()) if spec.pre_allocation else None,
        )

    def matches(
        self,
        pod: PodInfo,
        wanted: WantedReservations,
        reservation: Reservation,
        node_labels: Mapping[str, str],
    ) -> bool:
        """Whether the pod may use it: one of the owners, and what the pod wants, in the published order."""
        if wanted.is_ignoring or not any(owner.matches(pod) for owner in self.owners):
            return False
        exact = _is_exact(wanted.exact, pod.amount, reservation.allocatable)
        affinity = wanted.affinity
        if affinity is not None and affinity.name:
            return affinity.name == self.name and exact
        if self.is_unschedulable and not _tolerates_all(wanted.tolerations, [_UNSCHEDULABLE]):
            return False
        if affinity is None:
            return exact
        taints = [{"key": each.key, "value": each.value, "effect": each.effect} for each in self.taints]
        if not _tolerates_all(
            affinity.tolerations, [each for each in taints if each["effect"] in _KEEPS_AWAY]
        ):
            return False
        return _is_wanted(affinity, {**node_labels, **self.labels}) and exact

    def holds(self, amount: Resources, reservation: Reservation) -> bool:
        """Whether what is left of it is enough for a pod, of the resources that it is `restricted` to."""
        if self.restricted is None:
            return True
        pairs = zip(amount.named(), reservation.available.named(), strict=True)
        return all(
            needed <= left or resource not in self.restricted for (resource, needed), (_, left) in pairs
        )

    def taken_over(self, node: NodeInfo, amount: Resources) -> NodeInfo | None:
        """The node as a pre-allocated reservation sees it: without the owners that run there, or the one whose leaving makes `amount` fit.
        None if that changes nothing."""
        if self.pre_allocation is None or amount.fits_in(node.free):
            return None
        owners = [
            each
            for each in node.pods
            if _is_ready(each) and any(owner.matches(each) for owner in self.owners)
        ]
        if self.pre_allocation.enable_multiple:
            return without_pods(node, owners)
        views = (without_pods(node, [each]) for each in owners)
        return next((view for view in views if amount.fits_in(view.free)), None)

    def left(self, pods: Iterable[PodInfo], uid: str) -> dict[str, int]:
        """What its users among `pods`, those of its node, leave of `others`."""
        used = total(each for each in pods if allocated_uid(annotations_of(each).get(ALLOCATED)) == uid)
        return {name: max(amount - used.get(name, 0), 0) for name, amount in self.others.items()}


def lacking(
    wanted: Mapping[str, int], free: Mapping[str, int], kept: Iterable[Mapping[str, int]]
) -> list[str]:
    """The resources of which reservations (`kept`) leave less than is wanted of what is free. One that no reservation keeps, or
    that the node does not have, is not judged."""
    sums = Counter[str]()
    for each in kept:
        sums.update(each)
    return [
        name
        for name, amount in wanted.items()
        if sums[name] and name in free and amount > free[name] - sums[name]
    ]


_UNSCHEDULABLE: Final = {"key": "node.kubernetes.io/unschedulable", "value": "", "effect": "NoSchedule"}


def _tolerates_all(tolerations: list[dict[str, Any]], taints: list[dict[str, str]]) -> bool:
    return all(any(tolerates(each, taint) for each in tolerations) for taint in taints)


def _is_wanted(affinity: ReservationAffinityEntry, labels: Mapping[str, str]) -> bool:
    selector = affinity.reservation_selector or {}
    if any(labels.get(key) != value for key, value in selector.items()):
        return False
    required = affinity.required_during_scheduling_ignored_during_execution
    terms = required.reservation_selector_terms if required is not None else ()
    return not terms or any(term.selects(labels) for term in terms)


def _is_exact(names: tuple[str, ...], amount: Resources, reserved: Resources) -> bool:
    """Resources that the ledger does not count are equal: neither has any of them here."""
    found = zip(amount.named(), reserved.named(), strict=True)
    return all(wanted == there or resource not in names for (resource, wanted), (_, there) in found)


def _is_object(wanted: ObjectReferenceEntry, pod: PodInfo) -> bool:
    return all(
        (
            wanted.kind in {"", "Pod"},
            wanted.namespace in {"", pod.pod.namespace},
            wanted.name in {"", pod.pod.name},
            wanted.uid in {"", pod.uid},
        )
    )


def _is_controlled(wanted: ControllerReferenceEntry, pod: PodInfo) -> bool:
    if wanted.namespace not in {"", pod.pod.namespace}:
        return False
    owners = (pod.manifest.get("metadata") or {}).get("ownerReferences") or ()
    return any(
        each.get("controller") is True
        and wanted.kind in {"", each.get("kind")}
        and wanted.name in {"", each.get("name")}
        and wanted.uid in {"", each.get("uid")}
        and wanted.api_version in {"", each.get("apiVersion")}
        for each in owners
    )


def _is_ready(pod: PodInfo) -> bool:
    status = pod.manifest.get("status") or {}
    ready = (each for each in status.get("conditions") or () if each.get("type") == "Ready")
    return status.get("phase") == "Running" and any(each.get("status") == "True" for each in ready)


def annotations_of(pod: PodInfo) -> Mapping[str, str]:
    found: Mapping[str, str] = (pod.manifest.get("metadata") or {}).get("annotations") or {}
    return found


def allocated_text(name: str, uid: str) -> str:
    """The value of `ALLOCATED`."""
    return json.dumps({"name": name, "uid": uid})


def allocated_uid(written: str | None) -> str | None:
    """The UID in a value of `ALLOCATED`; None if there is none that can be read."""
    try:
        found = json.loads(written or "null")
    except (ValueError, RecursionError):
        return None
    uid = found.get("uid") if isinstance(found, dict) else None
    return uid if isinstance(uid, str) and uid else None


def is_garbage(manifest: Manifest, wall: datetime, kept_s: float) -> bool:
    """Whether it ended so long ago that nobody looks for it any more."""
    status = manifest.get("status") or {}
    since = (objects.condition(manifest, "Ready") or {}).get("lastTransitionTime")
    if status.get("phase") not in {"Succeeded", "Failed"} or since is None:
        return False
    try:
        return wall >= datetime.fromisoformat(since) + timedelta(seconds=kept_s)
    except (ValueError, TypeError, OverflowError):  # somebody else has written it
        return False
