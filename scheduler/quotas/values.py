"""Quotas and amounts. Names and defaults are those of the published plugin. Source: reference/koordinator.md 2.4."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final, TypeAlias

from protocol import quantities

ROOT: Final = "koordinator-root-quota"
SYSTEM: Final = "koordinator-system-quota"
DEFAULT: Final = "koordinator-default-quota"
BUILT_IN: Final = (ROOT, SYSTEM, DEFAULT)
"""The quotas that are there although no object describes them. System and default quota have no share: they may use their max."""

Amounts: TypeAlias = Mapping[str, int]
"""By resource: `cpu` in milli-CPU, all else in whole units (memory in bytes). A resource that is left out is 0."""
NONE: Final[Amounts] = MappingProxyType({})
_UNBOUNDED: Final = (2**63 - 1) // 5
UNBOUNDED_AMOUNTS: Final[Amounts] = MappingProxyType({"cpu": _UNBOUNDED * 1000, "memory": _UNBOUNDED})
"""The max of system and default quota, unless settings say otherwise."""


@dataclass(frozen=True, slots=True)
class QuotaSpec:
    """A quota as it is described. It limits only the resources that `max` names.

    `weight` is the part of what is lent, per resource; where it is 0 or left out, `max` is the weight. A quota that does not lend
    keeps its `min`, used or not. `guarantee` is kept whatever becomes of the minimums (published as the annotation `guaranteed`).
    `scales_min` says whether `min` shrinks where the minimums of all siblings exceed what there is for them. `total` is what a tree
    of its own has, for its topmost quota (`is_tree_root`); None elsewhere.
    """

    name: str
    parent: str = ROOT
    min: Amounts = field(default_factory=lambda: NONE)
    max: Amounts = field(default_factory=lambda: NONE)
    weight: Amounts = field(default_factory=lambda: NONE)
    guarantee: Amounts = field(default_factory=lambda: NONE)
    lends: bool = True
    scales_min: bool = True
    is_parent: bool = False
    tree_id: str = ""
    is_tree_root: bool = False
    total: Amounts | None = None
    ignores_default_tree: bool = False
    """Of a tree root: `total` is not taken from what the default tree has."""
    namespace: str = ""
    namespaces: tuple[str, ...] = ()
    """The namespaces whose pods belong to the quota unless they name another one."""
    strict_check: tuple[str, ...] = ()
    """Resources of which `max` must not be below what is used."""

    def weight_of(self, resource: str) -> int:
        return self.weight.get(resource, 0) or self.max.get(resource, 0)


@dataclass(frozen=True, slots=True)
class QuotaDemand:
    """The demand of the pods that belong to a quota itself, not to one below it.

    `request` is of all pods, `used` of those that have a node; of one that grows, `used` is its permit, and `request` that and what it was denied.
    """

    request: Amounts = field(default_factory=lambda: NONE)
    used: Amounts = field(default_factory=lambda: NONE)
    non_preemptible_used: Amounts = field(default_factory=lambda: NONE)


NO_DEMAND: Final = QuotaDemand()


@dataclass(frozen=True, slots=True)
class QuotaShare:
    """The share of a quota now.

    `child_request` is the request of its own pods and of the quotas below it as far as their max lets it be had; `request` is that,
    or `min` where that is more and the quota does not lend; `limit_request` is the part of it within max. `scaled_min` is its min as
    far as there is enough for those of all siblings. `runtime` is what it may use.
    """

    spec: QuotaSpec
    child_request: Amounts = field(default_factory=lambda: NONE)
    request: Amounts = field(default_factory=lambda: NONE)
    limit_request: Amounts = field(default_factory=lambda: NONE)
    scaled_min: Amounts = field(default_factory=lambda: NONE)
    runtime: Amounts = field(default_factory=lambda: NONE)


@dataclass(frozen=True, slots=True)
class QuotaFault:
    """A rule between quotas that one of them breaks. `reason` is CamelCase, `text` for people."""

    reason: str
    text: str


@dataclass(frozen=True, slots=True)
class QuotaPod:
    """A pod of a quota that has a node. `since` is when it was created, as a text that sorts."""

    name: str
    uid: str
    amount: Amounts = field(default_factory=lambda: NONE)
    priority: int = 0
    since: str = ""
    is_preemptible: bool = True
    is_leaving: bool = False
    """Whether it is being deleted."""

    @property
    def importance(self) -> tuple[int, tuple[int, ...], str]:
        """The larger, the more important: by priority, then the older one."""
        return self.priority, tuple(-ord(letter) for letter in self.since), self.uid


def added(*all_amounts: Amounts) -> dict[str, int]:
    found: dict[str, int] = {}
    for amounts in all_amounts:
        for resource, amount in amounts.items():
            found[resource] = found.get(resource, 0) + amount
    return found


def subtracted(amounts: Amounts, less: Amounts) -> dict[str, int]:
    """May be negative."""
    return {name: amounts.get(name, 0) - less.get(name, 0) for name in {**amounts, **less}}


def largest(amounts: Amounts, others: Amounts) -> dict[str, int]:
    return {name: max(amounts.get(name, 0), others.get(name, 0)) for name in {**amounts, **others}}


def within(amounts: Amounts, most: Amounts) -> dict[str, int]:
    """The amounts, capped where `most` names the resource."""
    return {name: min(amount, most.get(name, amount)) for name, amount in amounts.items()}


def masked(amounts: Amounts, names: Iterable[str]) -> dict[str, int]:
    """The amounts of these resources alone; 0 where there is none."""
    return {name: amounts.get(name, 0) for name in names}


def exceeding(wanted: Amounts, most: Amounts) -> list[str]:
    """The resources that `most` names and of which more is wanted, sorted."""
    return sorted(name for name, limit in most.items() if wanted.get(name, 0) > limit)


def amount_text(resource: str, amount: int) -> str:
    """As a quantity of Kubernetes."""
    if resource == "cpu":
        return quantities.from_milli(amount).canonical()
    return quantities.from_value(amount, binary=resource == "memory").canonical()


def read_amounts(found: object) -> dict[str, int]:
    """The amounts of a resource list of Kubernetes. Raises `ValueError`."""
    if not isinstance(found, Mapping):
        raise ValueError("must be quantities by resource, such as {cpu: 4, memory: 8Gi}")
    amounts = {}
    for name, text in found.items():
        quantity = quantities.parse(str(text))
        amounts[str(name)] = quantity.milli_value() if name == "cpu" else quantity.value()
    return amounts


def written(amounts: Amounts) -> dict[str, str]:
    """As a resource list of Kubernetes."""
    return {name: amount_text(name, amounts[name]) for name in sorted(amounts)}


def list_text(amounts: Amounts) -> str:
    """`cpu:10,memory:20Gi`, as the published messages have it."""
    return ",".join(f"{name}:{text}" for name, text in written(amounts).items())
