"""How a pod is scaled, by its labels and annotations and the ScalingPolicy that selects it.

Agent and scheduler read this alike, each from its own list of objects. A ScalingPolicy is turned into the annotations that would
say the same; those of the pod itself go before it, each as a whole.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Final

from hosting.kubernetes import annotations, names, objects, pods
from hosting.kubernetes.annotations import Check, Checks, Valid, misspelt, settle
from hosting.kubernetes.resources import Manifest
from protocol.quantities import QuantityError
from protocol.values import Bounds, Resources

GIB: Final = 1024**3
MIB: Final = 1024**2
DEFAULT_MIN: Final = Resources(100, 128 * MIB)
"""The smallest size of a pod that names no minimum."""
DEFAULT_STEP: Final = DEFAULT_MIN
"""The steps of a pod that names none."""


@dataclass(frozen=True, slots=True)
class ScalingPolicy:
    """A ScalingPolicy object: the pods of its namespace that it selects, and the annotations that it gives them."""

    namespace: str
    name: str
    created: str
    selector: Mapping[str, Any]
    is_enabled: bool
    annotations: Mapping[str, str]
    pool: str | None = None

    @classmethod
    def read(cls, manifest: Manifest) -> "ScalingPolicy":
        """Read an object; annotations that are wrong become faults when they are read.

        Raises `ValueError` if spec or selector is no mapping.
        """
        spec: Any = manifest.get("spec") or {}
        if not isinstance(spec, Mapping) or not isinstance(spec.get("selector") or {}, Mapping):
            wrong = "spec" if not isinstance(spec, Mapping) else "spec.selector"
            raise ValueError(f"{wrong}: must be a mapping")
        config = {key: spec[key] for key in ("policies", "windows", "tied") if key in spec}
        found = {
            names.BOUNDS: spec.get("bounds"),
            names.UNIT: spec.get("unit"),
            names.SHARES: spec.get("shares"),
            names.CONFIG: config or None,
        }
        texts = {name: json.dumps(value) for name, value in found.items() if value is not None}
        if "restart" in spec:
            texts[names.RESTART] = "allowed" if spec["restart"] == "Allowed" else "never"
        if "evictWhenStuck" in spec:
            texts[names.EVICT] = "true" if spec["evictWhenStuck"] else "false"
        return cls(
            objects.namespace(manifest),
            objects.name(manifest),
            str(manifest["metadata"].get("creationTimestamp", "")),
            spec.get("selector") or {},
            bool(spec.get("enabled", True)),
            texts,
            spec.get("pool"),
        )

    def selects(self, pod: Manifest) -> bool:
        """Whether the policy applies to the pod."""
        return objects.namespace(pod) == self.namespace and objects.selects(
            self.selector, objects.labels(pod)
        )


@dataclass(frozen=True, slots=True)
class Share:
    """The weights of a container in its pod's CPU and memory; 0 keeps the container at its size."""

    cpu: int
    memory: int


@dataclass(frozen=True, slots=True)
class Scaling:
    """How one pod is scaled. `annotations` are the effective ones; `shares` is empty if none are declared. `informant_port` is that of
    an informant inside the pod. `faults` are texts for a person; those in `obstacles` keep the pod from being scaled. `unknown` and
    `valid` are as in `Settled`: while any is unknown, the pod keeps its size."""

    annotations: Mapping[str, str]
    bounds: Bounds
    step: Resources
    is_tied: bool | None = None
    pool: str | None = None
    shares: Mapping[str, Share] = field(default_factory=dict)
    may_restart: bool = False
    may_evict: bool = False
    informant_port: int | None = None
    policy: str | None = None
    faults: tuple[str, ...] = ()
    obstacles: tuple[str, ...] = ()
    unknown: tuple[str, ...] = ()
    valid: Valid | None = None


def scaling_of(
    pod: Manifest,
    policies: Sequence[ScalingPolicy],
    most: Resources,
    last: Valid | None = None,
    more: Checks = MappingProxyType({}),
) -> Scaling | None:
    """How `pod` is scaled; None if nobody asks for it. `most` is the maximum of a pod that names none: its node's room. A label that is
    no word leaves the pod as it was before; of an unknown pod that is an obstacle.

    `last` has the valid annotations of the look before. `more` are checks beside, or in place of, those that all readers have.
    """
    matching = _matching(pod, policies)
    policy = matching[0] if matching else None
    is_by_policy = policy is not None and policy.is_enabled
    label, wrong = _enabled(pod, last)
    if wrong and not (last is not None and (label == "true" or is_by_policy)):
        return _not_scaled(wrong, most, policy)
    if label == "false" or (label is None and not is_by_policy):
        return None
    faults = [
        f"ScalingPolicy {each.name} selects the pod too, and has no effect: {matching[0].name} is older"
        for each in matching[1:]
    ]
    faults += (*wrong, *misspelt(pod))
    base = Bounds(DEFAULT_MIN.min(most), most)
    written = {**(policy.annotations if policy is not None else {}), **objects.annotations(pod)}
    settled = settle(written, {**_checks(pod, base), **more}, last, _NARROW)
    effective, valid = settled.annotations, settled.valid
    if valid is not None and label is not None:
        valid = {**valid, names.ENABLED: label}
    faults += settled.faults
    return Scaling(
        annotations=effective,
        bounds=annotations.bounds(effective, base, []) or base,
        step=annotations.step(effective, DEFAULT_STEP, []) or DEFAULT_STEP,
        is_tied=_tied(effective, []),
        pool=pool_of(pod, policies),
        shares=_shares(effective, pod, []),
        may_restart=_word(effective, names.RESTART, []),
        may_evict=_word(effective, names.EVICT, []),
        informant_port=_port(effective, []),
        policy=policy.name if policy is not None else None,
        faults=tuple(faults),
        obstacles=tuple(_obstacles(pod)),
        unknown=settled.unknown,
        valid=valid,
    )


def _enabled(pod: Manifest, last: Valid | None) -> tuple[str | None, list[str]]:
    """The word of the pod's label that counts, None where there is none, and what is wrong with it."""
    label = objects.labels(pod).get(names.ENABLED)
    if label in (None, "true", "false"):
        return label, []
    wrong = f"{names.ENABLED}: must be true or false (found {annotations.short(label)})"
    return (last or {}).get(names.ENABLED), [wrong]


def _not_scaled(wrong: Sequence[str], most: Resources, policy: ScalingPolicy | None) -> Scaling:
    """Of a pod of which it is not known whether it is to be scaled."""
    bounds, name = Bounds(DEFAULT_MIN.min(most), most), policy.name if policy is not None else None
    return Scaling({}, bounds, DEFAULT_STEP, policy=name, obstacles=tuple(wrong))


_WORDS: Final = {
    names.RESTART: {"allowed": True, "never": False},
    names.EVICT: {"true": True, "false": False},
}
_NARROW: Final = frozenset(_WORDS)
"""Annotations that allow more than is allowed without them."""


def pool_of(pod: Manifest, policies: Sequence[ScalingPolicy]) -> str | None:
    """The pool that a pod belongs to, whether it is scaled or not: its label's, else that of its policy, unless that one is off."""
    found = objects.labels(pod)
    is_on = found.get(names.ENABLED, "false") != "false"
    of_policy = [each.pool for each in _matching(pod, policies)[:1] if each.is_enabled or is_on]
    return found.get(names.POOL) or (of_policy[0] if of_policy else None)


def _matching(pod: Manifest, policies: Sequence[ScalingPolicy]) -> list[ScalingPolicy]:
    """Those that select the pod; the first one counts."""
    found = (policy for policy in policies if policy.selects(pod))
    return sorted(found, key=lambda each: (each.created, each.name))


def _checks(pod: Manifest, base: Bounds) -> dict[str, Check]:
    """The checks of agent and scheduler. The agent reads the rest of `parley.dev/config`, and tells its faults."""
    return {
        names.BOUNDS: lambda found, faults: annotations.bounds(found, base, faults),
        names.UNIT: lambda found, faults: annotations.step(found, DEFAULT_STEP, faults),
        names.CONFIG: _tied,
        names.SHARES: lambda found, faults: _shares(found, pod, faults),
        names.RESTART: lambda found, faults: _word(found, names.RESTART, faults),
        names.EVICT: lambda found, faults: _word(found, names.EVICT, faults),
        names.INFORMANT: _port,
    }


def _tied(effective: Mapping[str, str], faults: list[str]) -> bool | None:
    return annotations.tied(annotations.mapping(effective, names.CONFIG, faults), faults)


def _obstacles(pod: Manifest) -> list[str]:
    """Why the API would refuse every resize of the pod."""
    try:
        found = [each for each in pods.containers(pod) if not each.is_sidecar]
    except QuantityError as error:
        return [f"its resources cannot be read: {error}"]
    missing = [
        resource
        for resource in objects.RESOURCE_NAMES
        if not any(each.requests.get(resource, 0) > 0 for each in found)
    ]
    obstacles = [
        f"none of its containers requests {resource}: give at least one a request, because a request cannot be added to a pod "
        "that runs"
        for resource in missing
    ]
    if "kubernetes.io/config.mirror" in objects.annotations(pod):
        obstacles.append("a static pod cannot be resized")
    if (pod["spec"].get("os") or {}).get("name") == "windows":
        obstacles.append("a Windows pod cannot be resized")
    return obstacles


def _shares(effective: Mapping[str, str], pod: Manifest, faults: list[str]) -> dict[str, Share]:
    known = {str(each.get("name")) for each in pod["spec"].get("containers") or ()}
    found: dict[str, Share] = {}
    for container, written in annotations.mapping(effective, names.SHARES, faults).items():
        path = f"{names.SHARES}: {annotations.short(container)}"
        if container not in known:
            faults.append(f"{path}: the pod has no such container")
            continue
        weights = written if isinstance(written, dict) else {"cpu": written, "memory": written}
        wrong = [
            key
            for key, value in weights.items()
            if key not in objects.RESOURCE_NAMES or type(value) is not int or not 0 <= value <= 1000
        ]
        if wrong or not weights:
            faults.append(f"{path}: must be weights from 0 to 1000 as {{cpu, memory}}, or one for both")
            continue
        found[container] = Share(weights.get("cpu", 0), weights.get("memory", 0))
    for resource in objects.RESOURCE_NAMES:
        if found and not any(getattr(share, resource) for share in found.values()):
            faults.append(
                f"{names.SHARES}: no container has a weight for {resource}, so the shares have no effect"
            )
            return {}
    return found


def _word(effective: Mapping[str, str], name: str, faults: list[str]) -> bool:
    text, words = effective.get(name), _WORDS[name]
    if text is None:
        return False
    if text not in words:
        faults.append(f"{name}: must be one of {', '.join(words)} (found {annotations.short(text)})")
    return words.get(text, False)


def _port(effective: Mapping[str, str], faults: list[str]) -> int | None:
    text = effective.get(names.INFORMANT)
    if text is None:
        return None
    if not text.isdecimal() or len(text) > 5 or not 1 <= int(text) <= 65535:
        faults.append(f"{names.INFORMANT}: must be a port from 1 to 65535 (found {annotations.short(text)})")
        return None
    return int(text)
