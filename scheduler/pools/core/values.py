"""The values that hooks see and give: pools, their members, who asks, admissions. All of it is frozen.

A hook cannot change what it was handed; it returns an `Admission` that may carry a changed copy
(`dataclasses.replace`). So a probe changes nothing, whatever the plugin does.
"""

import enum
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from itertools import chain
from typing import Any, Final, TypeAlias

from protocol.texts import counted
from protocol.values import RESOURCE_NAMES, ZERO, Resources, Value, amount_of
from protocol.wire import PodName
from scheduler.permits.core.limits import amount_text
from scheduler.pools.core.errors import AppError

UNITS: Final = "units"
MEASURES: Final = (UNITS, *RESOURCE_NAMES)
"""The measures of pools: whole units, milli-CPU and bytes."""


class Measures(Value, frozen=True):
    """So much of everything that a pool is measured in: whole units of its own, and CPU and memory exactly."""

    units: int = 0
    amount: Resources = ZERO

    def __add__(self, other: "Measures") -> "Measures":
        return Measures(self.units + other.units, self.amount + other.amount)

    def __sub__(self, other: "Measures") -> "Measures":
        return Measures(self.units - other.units, self.amount - other.amount)

    def max(self, other: "Measures") -> "Measures":
        return Measures(max(self.units, other.units), self.amount.max(other.amount))

    def of(self, measure: str) -> int:
        return self.units if measure == UNITS else amount_of(self.amount, measure)


NOTHING: Final = Measures()


class Texts(Mapping[str, str]):
    """Names with their texts (labels, annotations), which cannot be changed; a copy is the object itself."""

    __slots__ = ("_texts",)

    def __init__(self, texts: Mapping[str, str] | None = None) -> None:
        self._texts = dict(texts) if texts else {}

    def __getitem__(self, name: str) -> str:
        return self._texts[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._texts)

    def __len__(self) -> int:
        return len(self._texts)

    def __eq__(self, other: object) -> bool:
        if isinstance(other, Texts):
            return self._texts == other._texts
        return self._texts == other if isinstance(other, Mapping) else NotImplemented

    def __hash__(self) -> int:
        return hash(frozenset(self._texts.items()))

    def __copy__(self) -> "Texts":
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> "Texts":
        return self

    def __repr__(self) -> str:
        return repr(self._texts)


NO_TEXTS: Final = Texts()


def frozen_texts(texts: Mapping[str, str]) -> Texts:
    """The same texts, as they cannot be changed."""
    return texts if isinstance(texts, Texts) else Texts(texts) if texts else NO_TEXTS


@dataclass(frozen=True, slots=True)
class PoolLimits:
    """The pool's own limits in its compute units; None is no limit."""

    max_units: int | None = None
    """All members together. 0 freezes the pool: no VM grows there."""
    max_units_per_vm: int | None = None
    """At least 1."""
    min_units: int = 0
    """A warm minimum, at most `max_units`: kept for the pool, used or not, by plugins that count over several pools."""


@dataclass(frozen=True, slots=True)
class Pool:
    """A named group of VMs that share a limit. Source: seed 000, `SandboxPool`.

    `replicas` are the units of `compute_unit` that its VMs hold together; in `pre_update_pool` the number that is asked
    about. VMs belong to it by the label `parley.dev/pool`. `generation` rises with every change of what a hook may
    change: labels, annotations, finalizers, compute unit and limits. While it has finalizers, a pool that is being
    deleted (`is_deleting`) stays.

    `amount` is what its VMs hold together exactly, each resource by itself; in `pre_update_pool` the most that they would hold,
    where a plugin of the chain limits amounts in this pool (`limits_amounts`), else zero.
    """

    name: str
    compute_unit: Resources
    limits: PoolLimits = PoolLimits()
    labels: Mapping[str, str] = field(default_factory=lambda: NO_TEXTS)
    annotations: Mapping[str, str] = field(default_factory=lambda: NO_TEXTS)
    finalizers: tuple[str, ...] = ()
    replicas: int = 0
    uid: str = ""
    generation: int = 0
    is_deleting: bool = False
    amount: Resources = ZERO

    def __post_init__(self) -> None:
        object.__setattr__(self, "labels", frozen_texts(self.labels))
        object.__setattr__(self, "annotations", frozen_texts(self.annotations))
        object.__setattr__(self, "finalizers", tuple(self.finalizers))

    @property
    def measures(self) -> Measures:
        return Measures(self.replicas, self.amount)

    def with_replicas(self, replicas: int, amount: Resources = ZERO) -> "Pool":
        """The same pool with another number of units and another amount, for a probe or as it is now. Made so often that
        nothing is checked again."""
        pool = object.__new__(Pool)
        for name in _POOL_DESCRIBED:
            object.__setattr__(pool, name, getattr(self, name))
        object.__setattr__(pool, "replicas", replicas)
        object.__setattr__(pool, "amount", amount)
        return pool


@dataclass(frozen=True, slots=True)
class Excess:
    """Pools of one `quota` hold `amount` more together than their share, because others want back what they lent."""

    quota: str
    amount: Resources
    pools: tuple[str, ...]


def described_as(pool: Pool, other: Pool) -> Pool:
    """The pool with the description of `other`: all that people and hooks may change."""
    return replace(
        pool,
        compute_unit=other.compute_unit,
        limits=other.limits,
        labels=other.labels,
        annotations=other.annotations,
        finalizers=other.finalizers,
    )


_POOL_DESCRIBED: Final = tuple(each.name for each in fields(Pool) if each.name not in ("replicas", "amount"))


@dataclass(frozen=True, slots=True)
class Member:
    """A VM of the pool as it was when the call began. Source: seed 000, the pods of `PreUpdatePool`.

    `current` is its permit, `reserved` what the ledger keeps for it, `units` its share of the pool in the pool's units.
    """

    pod: PodName
    uid: str
    node: str
    labels: Mapping[str, str]
    current: Resources
    reserved: Resources
    units: int

    def __post_init__(self) -> None:
        object.__setattr__(self, "labels", frozen_texts(self.labels))


@dataclass(frozen=True, slots=True)
class VmRequest:
    """A VM that wants to grow: from `current` to `wanted`, in the pool's units from `units` to `wanted_units`."""

    pod: PodName
    uid: str
    node: str
    labels: Mapping[str, str]
    current: Resources
    wanted: Resources
    units: int
    wanted_units: int

    def __post_init__(self) -> None:
        object.__setattr__(self, "labels", frozen_texts(self.labels))


class Purpose(enum.StrEnum):
    """Why a hook is called."""

    CREATE = "create"
    UPDATE = "update"
    """The pool's description changes."""
    DELETE = "delete"
    PROBE = "probe"
    """VMs want to grow; the call may come again with another number of replicas, and must change nothing outside."""
    BIND = "bind"
    """A pod is about to be bound to a node."""


@dataclass(frozen=True, slots=True)
class Context:
    """The circumstances of a call beside the pool.

    `held` is what the pool's VMs hold together before, where the pool's `amount` is what they would hold; both are zero where
    amounts are not limited. `requests` are the VMs whose growth the call would admit, in the order in which they are served, and `request` the
    first of them; both are empty unless VMs want to grow. `question` is the same for all calls of one search and tells it
    from others; empty outside of searches. `deadline_s` is when the answer is of no use any more, on the
    clock of `time.monotonic`; None is never.
    """

    purpose: Purpose
    requests: tuple[VmRequest, ...] = ()
    deadline_s: float | None = None
    question: str = ""
    held: Resources = ZERO

    @property
    def request(self) -> VmRequest | None:
        """The VM that asks, the first of several."""
        return self.requests[0] if self.requests else None


@dataclass(frozen=True, slots=True)
class ProbeEnd:
    """The end of a search: the chain was asked for up to `asked` replicas in all and admitted `admitted` of them, of
    which `committed` were given to VMs beyond what they had. The units admitted beyond are free again. `pool` is as it is now.
    """

    question: str
    pool: Pool
    asked: int
    admitted: int
    committed: int


@dataclass(frozen=True, slots=True)
class AmountCap:
    """The most that a hook admits of one resource: the pool's VMs may hold `most` milli-CPU (`cpu`) or bytes (`memory`)
    together.

    `message` and `reason` (CamelCase) say why not more. `plugin` is the name of the one that cut; the manager fills it in.
    """

    resource: str
    most: int
    message: str = ""
    reason: str = ""
    plugin: str = ""


@dataclass(frozen=True, slots=True)
class Admission:
    """The answer of a hook about a pool. `Admission()` admits everything and changes nothing.

    `pool` is the pool with what the hook changed. `admitted` is the largest number of replicas that it admits now, from
    0; None is no limit. A hook that knows the number says it here, and is not asked again and again. `amounts` caps resources
    beside that, each by itself; it counts only where the plugin says that it limits amounts. `retry_after_s` tells
    when asking again may help, `reason` (CamelCase) and `message` why less was admitted; `error` refuses. `plugin` is
    the name of the one that cut or refused; the manager fills it in. Source: seed 000's `(updated, error)`, and the
    `PoolAdmission` of later versions.
    """

    pool: Pool | None = None
    admitted: int | None = None
    retry_after_s: float | None = None
    reason: str = ""
    message: str = ""
    error: AppError | None = None
    plugin: str = ""
    amounts: tuple[AmountCap, ...] = ()

    @property
    def updated(self) -> bool:
        return self.pool is not None

    def admits(self, pool: Pool) -> bool:
        """Whether the pool may be as it is asked about, as far as the caps say."""
        return self.admitted_or(pool.replicas) >= pool.replicas and all(
            cap.most >= amount_of(pool.amount, cap.resource) for cap in self.amounts
        )

    def admitted_or(self, replicas: int) -> int:
        """The stated number, or `replicas`."""
        return replicas if self.admitted is None else self.admitted


def measure_text(measure: str, amount: int) -> str:
    if measure == UNITS:
        return counted(amount, "unit")
    return amount_text(measure, amount) + (" of memory" if measure == "memory" else "")


ADMITTED: Final = Admission()
"""Everything, unchanged."""

PodManifest: TypeAlias = Mapping[str, Any]
"""A Kubernetes pod as the API of Kubernetes writes pods, in JSON's types."""


@dataclass(frozen=True, slots=True)
class PodAdmission:
    """The answer of a hook about a pod that is about to be bound. `pod` is the changed manifest, a copy."""

    pod: PodManifest | None = None
    error: AppError | None = None
    plugin: str = ""

    @property
    def updated(self) -> bool:
        return self.pod is not None


POD_ADMITTED: Final = PodAdmission()
Pods: TypeAlias = Sequence[Member]


def merged(so_far: Admission, own: Admission, plugin: str) -> Admission:
    """The answer of a chain once one more plugin has spoken. Pure; the order is that of the chain.

    The smallest cap wins and brings its reason, message and plugin (ties keep the earlier one's), of each resource too; the longest
    `retry_after_s` wins whosever it is; the latest changed pool stays, also beside an error.
    """
    capped = so_far
    if own.admitted is not None and (so_far.admitted is None or own.admitted < so_far.admitted):
        capped = own
    wait_s = own.retry_after_s
    if wait_s is None or (so_far.retry_after_s is not None and so_far.retry_after_s > wait_s):
        wait_s = so_far.retry_after_s
    # Made anew rather than with `replace`, which takes five times as long: this is done for every plugin of a probe.
    return Admission(
        own.pool if own.pool is not None else so_far.pool,
        capped.admitted,
        wait_s,
        capped.reason,
        capped.message,
        own.error,
        plugin if own.error is not None or capped is own else so_far.plugin,
        tightest(so_far.amounts, tuple(replace(cap, plugin=plugin) for cap in own.amounts))
        if own.amounts
        else so_far.amounts,
    )


def tightest(*caps: tuple[AmountCap, ...]) -> tuple[AmountCap, ...]:
    """The smallest cap of each resource, of equal ones the earlier."""
    found: dict[str, AmountCap] = {}
    for cap in chain.from_iterable(caps):
        if cap.resource not in found or cap.most < found[cap.resource].most:
            found[cap.resource] = cap
    return tuple(found.values())
