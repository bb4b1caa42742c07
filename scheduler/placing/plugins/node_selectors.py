"""What pods say of nodes: selectors of labels and names, taints and tolerations. Computes only; sources: the API of core/v1."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, TypeAlias

from hosting.kubernetes.objects import expression_holds
from scheduler.placing.core.objects import NodeInfo

Taint: TypeAlias = Mapping[str, Any]
Toleration: TypeAlias = Mapping[str, Any]

HOSTNAME: Final = "kubernetes.io/hostname"
ZONE: Final = "topology.kubernetes.io/zone"
NO_SCHEDULE: Final = frozenset({"NoSchedule", "NoExecute"})
"""The effects of taints that keep pods away."""
PREFER_NO_SCHEDULE: Final = frozenset({"PreferNoSchedule"})
_NAME: Final = "metadata.name"


def node_labels(node: NodeInfo) -> Mapping[str, str]:
    return (node.manifest.get("metadata") or {}).get("labels") or {}


def taints(node: NodeInfo) -> Sequence[Taint]:
    return (node.manifest.get("spec") or {}).get("taints") or ()


def spec_of(manifest: Mapping[str, Any]) -> Mapping[str, Any]:
    """The spec of an object; empty where there is none."""
    return manifest.get("spec") or {}


# ------------------------------------------------------------ node affinity


def required_terms(spec: Mapping[str, Any]) -> Sequence[Mapping[str, Any]] | None:
    """The terms of a pod's required node affinity, one of which must match; None where it has none."""
    affinity = (spec.get("affinity") or {}).get("nodeAffinity") or {}
    required = affinity.get("requiredDuringSchedulingIgnoredDuringExecution")
    return None if required is None else required.get("nodeSelectorTerms") or ()


def preferred_terms(spec: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
    """The terms of a pod's preferred node affinity, with their weights."""
    affinity = (spec.get("affinity") or {}).get("nodeAffinity") or {}
    return affinity.get("preferredDuringSchedulingIgnoredDuringExecution") or ()


def names_selected(terms: Iterable[Mapping[str, Any]]) -> frozenset[str] | None:
    """The names of all nodes that the terms can match; None where a term does not go by names."""
    found: set[str] = set()
    for term in terms:
        names = [
            set(each.get("values") or ())
            for each in term.get("matchFields") or ()
            if each.get("key") == _NAME and each.get("operator") == "In"
        ]
        if not names:
            return None
        found |= set.intersection(*names)
    return frozenset(found)


def is_selected(spec: Mapping[str, Any], node: NodeInfo) -> bool:
    """Whether a pod's nodeSelector and required node affinity let the pod be on the node."""
    labels = node_labels(node)
    if any(labels.get(key) != value for key, value in (spec.get("nodeSelector") or {}).items()):
        return False
    terms = required_terms(spec)
    return terms is None or any(term_matches(term, node.name, labels) for term in terms)


def term_matches(term: Mapping[str, Any], node_name: str, labels: Mapping[str, str]) -> bool:
    """Whether all expressions of a term hold; a term without any matches nothing."""
    expressions, fields = term.get("matchExpressions") or (), term.get("matchFields") or ()
    if not expressions and not fields:
        return False
    name = {_NAME: node_name}
    return all(_holds(each, labels) for each in expressions) and all(_holds(each, name) for each in fields)


def _holds(expression: Mapping[str, Any], found: Mapping[str, str]) -> bool:
    """As an expression of a label selector, with two operators more."""
    operator = expression.get("operator")
    if operator not in {"Gt", "Lt"}:
        return expression_holds(expression, found)
    value, bound = found.get(str(expression.get("key"))), next(iter(expression.get("values") or ()), None)
    return _is_above(value, bound) if operator == "Gt" else _is_above(bound, value)


def _is_above(first: str | None, second: str | None) -> bool:
    """Whether both are whole numbers, and the first one is larger."""
    try:
        return first is not None and second is not None and int(first) > int(second)
    except ValueError:
        return False


# ------------------------------------------------------------ taints


def untolerated(node: NodeInfo, tolerations: Sequence[Toleration], effects: frozenset[str]) -> list[Taint]:
    return [
        taint
        for taint in taints(node)
        if taint.get("effect") in effects and not any(tolerates(each, taint) for each in tolerations)
    ]


def tolerates(toleration: Toleration, taint: Taint) -> bool:
    """Whether a toleration is for that taint. One without a key is for all keys, one without an effect for all effects."""
    if toleration.get("effect") and toleration["effect"] != taint.get("effect"):
        return False
    if toleration.get("key") and toleration["key"] != taint.get("key"):
        return False
    match toleration.get("operator") or "Equal":
        case "Exists":
            return True
        case "Equal":
            return bool(toleration.get("key")) and (toleration.get("value") or "") == (
                taint.get("value") or ""
            )
        case "Gt":
            return _is_above(taint.get("value"), toleration.get("value"))
        case "Lt":
            return _is_above(toleration.get("value"), taint.get("value"))
        case _:
            return False


def taint_text(taint: Taint) -> str:
    """A taint as kubectl writes it, `key=value:effect`."""
    value = f"={taint['value']}" if taint.get("value") else ""
    return f"{taint.get('key')}{value}:{taint.get('effect')}"
