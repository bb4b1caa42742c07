"""The rules between quotas, which no object can keep by itself. Source: reference/koordinator.md 2.4, admission webhook rules.

The published webhook refuses the write that breaks a rule; here objects are judged as they are, so what depends on a write (a
tree id that changes, a quota with pods that is deleted) is not among these rules.
"""

from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import TypeAlias

from scheduler.quotas.values import (
    BUILT_IN,
    NONE,
    ROOT,
    Amounts,
    QuotaFault,
    QuotaSpec,
    added,
    exceeding,
    list_text,
)

QuotaKey: TypeAlias = tuple[str, str]
"""Namespace and name."""


def quota_faults(
    specs: Sequence[QuotaSpec], used: Mapping[str, Amounts], with_pods: AbstractSet[str]
) -> dict[QuotaKey, tuple[QuotaFault, ...]]:
    """The faults of each quota that has any. `used` is by name, `with_pods` are the quotas that have pods of their own."""
    by_name: dict[str, QuotaSpec] = {}
    for spec in specs:
        by_name.setdefault(spec.name, spec)
    children: dict[str, list[QuotaSpec]] = {}
    for spec in by_name.values():
        if spec.name not in BUILT_IN:
            children.setdefault(spec.parent, []).append(spec)
    found: dict[QuotaKey, tuple[QuotaFault, ...]] = {}
    for spec in specs:
        faults = [*_of_amounts(spec, used.get(spec.name, NONE)), *_of_names(spec, by_name, specs)]
        if by_name[spec.name] is spec and spec.name not in BUILT_IN:
            faults += _of_parent(spec, by_name)
            faults += _of_children(spec, children.get(spec.name, []), is_used=spec.name in with_pods)
        if faults:
            found[spec.namespace, spec.name] = tuple(faults)
    return found


def _of_amounts(spec: QuotaSpec, used: Amounts) -> Iterator[QuotaFault]:
    for where, amounts in (("min", spec.min), ("max", spec.max), ("shared-weight", spec.weight)):
        negative = sorted(name for name, amount in amounts.items() if amount < 0)
        if negative:
            yield QuotaFault("NegativeAmount", f"{where} must not be negative: {', '.join(negative)}")
    unlimited = sorted(spec.min.keys() - spec.max.keys())
    if unlimited:
        yield QuotaFault("MinWithoutMax", f"min names what max does not: {', '.join(unlimited)}")
    over = exceeding(spec.min, spec.max)
    if over:
        yield QuotaFault("MinAboveMax", f"min exceeds max in {', '.join(over)}")
    strict = {name: spec.max[name] for name in spec.strict_check if name in spec.max}
    over = exceeding(used, strict)
    if over:
        yield QuotaFault("MaxBelowUsed", f"max is below what is used in {', '.join(over)}")


def _of_names(
    spec: QuotaSpec, by_name: Mapping[str, QuotaSpec], specs: Sequence[QuotaSpec]
) -> Iterator[QuotaFault]:
    first = by_name[spec.name]
    if first is not spec:
        yield QuotaFault("NameTaken", f"the quota of that name in namespace {first.namespace} counts")
    for namespace in spec.namespaces:
        others = sorted(other.name for other in specs if other is not spec and namespace in other.namespaces)
        if others:
            yield QuotaFault("NamespaceTaken", f"namespace {namespace} is listed by {', '.join(others)} too")


def _of_parent(spec: QuotaSpec, by_name: Mapping[str, QuotaSpec]) -> Iterator[QuotaFault]:
    if spec.parent == ROOT:
        return
    parent = by_name.get(spec.parent)
    if parent is None:
        yield QuotaFault("NoParent", f"there is no quota {spec.parent}")
        return
    if _goes_round(spec, by_name):
        yield QuotaFault("ParentCircle", f"{spec.parent} is below {spec.name} itself")
    if not parent.is_parent:
        yield QuotaFault("ParentIsLeaf", f"{parent.name} is no parent (label is-parent)")
    if parent.tree_id != spec.tree_id:
        yield QuotaFault(
            "OtherTree", f"tree-id is {spec.tree_id!r}, that of {parent.name} {parent.tree_id!r}"
        )
    if parent.max.keys() != spec.max.keys():
        yield QuotaFault("MaxKeysDiffer", f"max must name the resources that {parent.name}'s max names")
    if spec.min.keys() - parent.min.keys():
        yield QuotaFault("MinKeysDiffer", f"min must name no more resources than {parent.name}'s min names")


def _goes_round(spec: QuotaSpec, by_name: Mapping[str, QuotaSpec]) -> bool:
    seen, at = set[str](), spec.parent
    while at in by_name and at not in seen and at != ROOT:
        if at == spec.name:
            return True
        seen.add(at)
        at = by_name[at].parent
    return False


def _of_children(spec: QuotaSpec, children: Sequence[QuotaSpec], *, is_used: bool) -> Iterator[QuotaFault]:
    if children and not spec.is_parent:
        names = ", ".join(sorted(child.name for child in children))
        yield QuotaFault("HasChildren", f"it is no parent (label is-parent) and has quotas below it: {names}")
    if spec.is_parent and is_used:
        yield QuotaFault("ParentHasPods", "a parent has no pods of its own: name a quota below it")
    together = added(*(child.min for child in children))
    over = sorted(name for name, amount in together.items() if amount > spec.min.get(name, 0))
    if over:
        text = f"the quotas below it have min {list_text(together)} together, it has {list_text(spec.min)}"
        yield QuotaFault("ChildrenMinAboveMin", text)
