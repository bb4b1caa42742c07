"""Other controllers at work on a pod that is scaled: their work is reported, and stays theirs. Computes only."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from hosting.kubernetes import objects
from hosting.kubernetes.resources import Manifest
from protocol.quantities import QuantityError
from protocol.values import Bounds

HASH_LABEL: Final = "pod-template-hash"
BOUNDED: Final = frozenset(
    {
        "cpu",
        "memory",
        *(f"{kind}.{each}" for kind in ("requests", "limits") for each in objects.RESOURCE_NAMES),
    }
)
"""The entries of a ResourceQuota that bound the growth of a pod."""


@dataclass(frozen=True, slots=True)
class OfNamespace:
    """The objects of one namespace that may bound or change pods."""

    autoscalers: tuple[Manifest, ...] = ()
    quotas: tuple[Manifest, ...] = ()
    ranges: tuple[Manifest, ...] = ()


def others_of(pod: Manifest, bounds: Bounds, found: OfNamespace) -> tuple[str, ...]:
    """The other objects that bound or change the pod, as texts for a person."""
    return (
        *_autoscalers(pod, found.autoscalers),
        *_quotas(found.quotas),
        *_ranges(bounds, found.ranges),
    )


def editors_of(pod: Manifest, ours: str) -> tuple[str, ...]:
    """The field managers, other than `ours`, that have resized the pod, as texts. `ours` is the field manager of our own resizes.

    Source: managedFields of an object's metadata, which name the subresource and the manager of each field's last change.
    """
    return tuple(
        f"{each.get('manager')} has resized the pod at {each.get('time')}"
        for each in pod["metadata"].get("managedFields") or ()
        if each.get("subresource") == "resize" and each.get("manager") != ours
    )


def owners(pod: Manifest) -> Iterator[tuple[str, str]]:
    """Kind and name of the pod's controller, and of the Deployment above a ReplicaSet."""
    for each in pod["metadata"].get("ownerReferences") or ():
        if not each.get("controller"):
            continue
        kind, name = str(each.get("kind")), str(each.get("name"))
        yield kind, name
        suffix = f"-{objects.labels(pod).get(HASH_LABEL)}"
        if kind == "ReplicaSet" and name.endswith(suffix):
            yield "Deployment", name.removesuffix(suffix)


def _autoscalers(pod: Manifest, autoscalers: Iterable[Manifest]) -> Iterator[str]:
    known = set(owners(pod))
    for each in autoscalers:
        spec: Mapping[str, Any] = each.get("spec") or {}
        target = spec.get("targetRef") or {}
        mode = (spec.get("updatePolicy") or {}).get("updateMode") or "Auto"
        if (target.get("kind"), target.get("name")) in known and mode != "Off":
            yield (
                f"VerticalPodAutoscaler {objects.name(each)} (updateMode {mode}) sizes {target['kind']} {target['name']} too: "
                'set its updateMode to "Off", or the label parley.dev/enabled to "false"'
            )


def _quotas(quotas: Iterable[Manifest]) -> Iterator[str]:
    for each in quotas:
        hard: Mapping[str, Any] = (each.get("spec") or {}).get("hard") or {}
        bound = [f"{name} {hard[name]}" for name in sorted(hard) if name in BOUNDED]
        if bound:
            yield f"ResourceQuota {objects.name(each)} bounds what the namespace may have: {', '.join(bound)}"


def _ranges(bounds: Bounds, ranges: Iterable[Manifest]) -> Iterator[str]:
    """The ranges that forbid a part of the pod's bounds."""
    most = dict(zip(objects.RESOURCE_NAMES, (bounds.max.vcpu_milli, bounds.max.memory_bytes), strict=True))
    least = dict(zip(objects.RESOURCE_NAMES, (bounds.min.vcpu_milli, bounds.min.memory_bytes), strict=True))
    for each in ranges:
        for limit in (each.get("spec") or {}).get("limits") or ():
            if limit.get("type") not in {"Container", "Pod"}:
                continue
            try:
                upper, lower = objects.amounts(limit.get("max")), objects.amounts(limit.get("min"))
            except QuantityError:
                continue  # another server's matter: this one accepts none such
            cut = [f"max {key} {limit['max'][key]}" for key, value in upper.items() if value < most[key]]
            cut += [f"min {key} {limit['min'][key]}" for key, value in lower.items() if value > least[key]]
            if cut:
                yield (
                    f"LimitRange {objects.name(each)} forbids a part of the bounds, for each {limit['type']}: {', '.join(cut)}"
                )
