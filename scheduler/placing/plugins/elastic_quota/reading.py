"""ElasticQuota objects as they are written, and the labels of their pods. Source: reference/koordinator.md 2.4, Objects."""

import json
from collections.abc import Callable
from typing import Any, Final, TypeVar

from hosting.kubernetes import objects
from hosting.kubernetes.resources import Manifest
from scheduler.quotas.values import ROOT, QuotaFault, QuotaSpec, read_amounts

PREFIX: Final = "quota.scheduling.koordinator.sh/"
WRITTEN: Final = (f"{PREFIX}runtime", f"{PREFIX}request", f"{PREFIX}child-request")
"""The annotations that tell of runtime, request and child request."""
NAME: Final = f"{PREFIX}name"
"""The label by which a pod names its quota."""
PREEMPTIBLE: Final = f"{PREFIX}preemptible"
"""The label of a pod; `false` keeps it from being preempted."""

T = TypeVar("T")


def quota_of(manifest: Manifest, *, scales_min: bool) -> tuple[QuotaSpec, tuple[QuotaFault, ...]]:
    """The quota of an object, and what could not be read of it: that counts as if it were not there."""
    faults: list[QuotaFault] = []
    labels, annotations = objects.labels(manifest), objects.annotations(manifest)

    def read(what: str, read_it: Callable[[Any], T], written: object, otherwise: T) -> T:
        if written is None:
            return otherwise
        try:
            return read_it(written)
        except (ValueError, TypeError, RecursionError) as error:
            faults.append(QuotaFault("Unreadable", f"{what}: {error}"))
            return otherwise

    def annotated(name: str, read_it: Callable[[Any], T], otherwise: T) -> T:
        return read(name, lambda text: read_it(json.loads(text)), annotations.get(PREFIX + name), otherwise)

    spec = manifest.get("spec") or {}
    found = QuotaSpec(
        objects.name(manifest),
        labels.get(f"{PREFIX}parent") or ROOT,
        min=read("spec.min", read_amounts, spec.get("min"), {}),
        max=read("spec.max", read_amounts, spec.get("max"), {}),
        weight=annotated("shared-weight", read_amounts, {}),
        guarantee=annotated("guaranteed", read_amounts, {}),
        lends=labels.get(f"{PREFIX}allow-lent-resource") != "false",
        scales_min=scales_min,
        is_parent=labels.get(f"{PREFIX}is-parent") == "true",
        tree_id=labels.get(f"{PREFIX}tree-id") or "",
        is_tree_root=labels.get(f"{PREFIX}is-root") == "true",
        total=annotated("total-resource", read_amounts, None),
        ignores_default_tree=labels.get(f"{PREFIX}ignore-default-tree") == "true",
        namespace=objects.namespace(manifest),
        namespaces=annotated("namespaces", _names, ()),
        strict_check=annotated("max-strict-check-resource-keys", _names, ()),
    )
    return found, tuple(faults)


def _names(value: object) -> tuple[str, ...]:
    if not isinstance(value, list) or not all(isinstance(each, str) for each in value):
        raise ValueError("must be a list of names")
    return tuple(value)
