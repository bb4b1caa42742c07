"""The topology spread constraints of a pod, the args of `PodTopologySpread`, and pods that no selector tells apart, counted together.

So spreading looks at some groups of a node instead of at every pod. Source: the API of core/v1.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Final, Literal, TypeAlias
from weakref import WeakValueDictionary

from pydantic import Field

from hosting.kubernetes import objects
from hosting.settings import Settings
from scheduler.placing.core.objects import PodInfo
from scheduler.placing.plugins.node_conditions import HOSTNAME, ZONE, spec_of


class AlikePods:
    """The pods of one namespace with the same labels and the same controller (`owner`, a UID; empty for none)."""

    __slots__ = ("__weakref__", "labels", "namespace", "owner")

    def __init__(self, namespace: str, labels: Mapping[str, str], owner: str) -> None:
        self.namespace = namespace
        self.labels = labels
        self.owner = owner


AlikeCounts: TypeAlias = tuple[tuple[AlikePods, int], ...]
AlikeSelector: TypeAlias = Callable[[AlikePods], bool]


class AlikePodsIndex:
    """All groups of alike pods. A group is one and the same object for as long as anybody counts it, so it can be a key."""

    def __init__(self) -> None:
        self._groups: WeakValueDictionary[tuple[str, frozenset[tuple[str, str]], str], AlikePods] = (
            WeakValueDictionary()
        )

    def of(self, pod: PodInfo) -> AlikePods:
        owner = owner_of(pod.manifest)
        key = (pod.pod.namespace, frozenset(pod.labels.items()), owner)
        group = self._groups.get(key)
        if group is None:
            group = self._groups[key] = AlikePods(pod.pod.namespace, pod.labels, owner)
        return group

    def count(self, pods: Iterable[PodInfo]) -> AlikeCounts:
        """How many pods of each group there are, without those that are being deleted."""
        return tuple(Counter(self.of(pod) for pod in pods if not is_going(pod)).items())


def matching(selects: AlikeSelector) -> Callable[[AlikeCounts], int]:
    """How many pods of some groups `selects` selects; asks about each group once."""
    known: dict[AlikePods, bool] = {}

    def count(groups: AlikeCounts) -> int:
        found = 0
        for group, number in groups:
            is_selected = known.get(group)
            if is_selected is None:
                is_selected = known[group] = selects(group)
            if is_selected:
                found += number
        return found

    return count


def owner_of(manifest: Mapping[str, Any]) -> str:
    """The UID of the controller of an object; empty where it has none."""
    for owner in (manifest.get("metadata") or {}).get("ownerReferences") or ():
        if owner.get("controller"):
            return str(owner.get("uid") or "")
    return ""


def is_going(pod: PodInfo) -> bool:
    return bool((pod.manifest.get("metadata") or {}).get("deletionTimestamp"))


REQUIRED: Final = "DoNotSchedule"


class DefaultConstraint(Settings):
    """A constraint for pods that have none of their own; it selects the pods of the same owner, else those with the same labels."""

    max_skew: Annotated[int, Field(ge=1)]
    """By how many pods two domains may differ."""
    topology_key: Annotated[str, Field(min_length=1)]
    """The label of nodes that makes the domains."""
    when_unsatisfiable: Literal["DoNotSchedule", "ScheduleAnyway"]
    """Whether a node that breaks the constraint is left out, or only scores lower."""
    min_domains: Annotated[int, Field(ge=1)] | None = None
    """With fewer domains than this the least is taken to be zero."""

    def manifest(self) -> Mapping[str, Any]:
        return {
            "maxSkew": self.max_skew,
            "topologyKey": self.topology_key,
            "whenUnsatisfiable": self.when_unsatisfiable,
            "minDomains": self.min_domains,
        }


SYSTEM_DEFAULTS: Final = (
    {"maxSkew": 3, "topologyKey": HOSTNAME, "whenUnsatisfiable": "ScheduleAnyway"},
    {"maxSkew": 5, "topologyKey": ZONE, "whenUnsatisfiable": "ScheduleAnyway"},
)
"""Those of kube-scheduler."""


class PodTopologySpreadArgs(Settings):
    """The args of `PodTopologySpread`, as published. `defaultingType` System takes the constraints of kube-scheduler for pods that
    have none, List those of `defaultConstraints`."""

    default_constraints: list[DefaultConstraint] = Field(default_factory=list)
    defaulting_type: Literal["System", "List"] = "System"
    """Whether pods without constraints get those of kube-scheduler, or the ones listed here."""

    @classmethod
    def rules(cls, found: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
        """Constraints go with List only, and each key has one of each kind."""
        constraints = found.get("default_constraints", ())
        if constraints and found.get("defaulting_type") == "System":
            yield "defaultConstraints", "must be empty where defaultingType is System; set that to List"
        kinds = [(each.topology_key, each.when_unsatisfiable) for each in constraints]
        if len(set(kinds)) < len(kinds):
            yield "defaultConstraints", "must have each topologyKey with the same whenUnsatisfiable once"

    def defaults(self) -> tuple[Mapping[str, Any], ...]:
        """The constraints of pods that have none, as pods have them."""
        if self.defaulting_type == "System":
            return SYSTEM_DEFAULTS
        return tuple(each.manifest() for each in self.default_constraints)


@dataclass(frozen=True, slots=True)
class Constraint:
    """One constraint. `self_match` is 1 where the pod is among those that are counted, else 0.

    `min_domains`: with fewer domains than that, one without pods is assumed to be there.
    """

    topology_key: str
    max_skew: int
    selects: AlikeSelector
    self_match: int
    min_domains: int = 1
    honors_affinity: bool = True
    honors_taints: bool = False


@dataclass(frozen=True, slots=True)
class Constraints:
    """The constraints of a pod. `are_own` says that they are the pod's own, and not defaults."""

    required: tuple[Constraint, ...] = ()
    preferred: tuple[Constraint, ...] = ()
    are_own: bool = False


def constraints_of(pod: PodInfo, defaults: tuple[Mapping[str, Any], ...]) -> Constraints:
    """The pod's own constraints, else the defaults for its siblings, of which a pod without owner and labels has none."""
    written = spec_of(pod.manifest).get("topologySpreadConstraints") or ()
    if written:
        return _sorted([(each, _selector(pod, each)) for each in written], pod, are_own=True)
    siblings = _siblings(pod)
    if siblings is None:
        return Constraints()
    return _sorted([(each, siblings) for each in defaults], pod, are_own=False)


def _sorted(
    found: list[tuple[Mapping[str, Any], AlikeSelector]], pod: PodInfo, *, are_own: bool
) -> Constraints:
    own = AlikePods(pod.pod.namespace, pod.labels, owner_of(pod.manifest))
    required, preferred = list[Constraint](), list[Constraint]()
    for written, selects in found:
        kind = required if written.get("whenUnsatisfiable") == REQUIRED else preferred
        kind.append(
            Constraint(
                str(written.get("topologyKey")),
                int(written.get("maxSkew") or 1),
                selects,
                int(selects(own)),
                int(written.get("minDomains") or 1),
                written.get("nodeAffinityPolicy") != "Ignore",
                written.get("nodeTaintsPolicy") == "Honor",
            )
        )
    return Constraints(tuple(required), tuple(preferred), are_own)


def _selector(pod: PodInfo, written: Mapping[str, Any]) -> AlikeSelector:
    """Pods of the namespace by labelSelector and matchLabelKeys; no selector selects nothing."""
    namespace, selector = pod.pod.namespace, written.get("labelSelector")
    same = {key: pod.labels[key] for key in written.get("matchLabelKeys") or () if key in pod.labels}

    def selects(group: AlikePods) -> bool:
        return (
            selector is not None
            and group.namespace == namespace
            and all(group.labels.get(key) == value for key, value in same.items())
            and objects.selects(selector, group.labels)
        )

    return selects


def _siblings(pod: PodInfo) -> AlikeSelector | None:
    """Pods of the same controller; for a pod without one, those with the same labels."""
    namespace, owner, labels = pod.pod.namespace, owner_of(pod.manifest), dict(pod.labels)
    if owner:
        return lambda group: group.owner == owner and group.namespace == namespace
    if labels:
        return lambda group: group.namespace == namespace and group.labels == labels
    return None
