"""Which placeholders there should be: pending pods that make an ordinary cluster autoscaler add a node for growth that is denied. Pure.

There is one for each pool of nodes, as the autoscaler knows pools: by a label. It requests the sum of what is denied on the pool's nodes for want
of room. One that got a node has done its work, because there was room after all; its pool has no other for a while. The next leader takes
over what stands: it hears of denials only when agents have asked again, so that at first nothing is deleted for want of a reason.
"""

import hashlib
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Final, TypeAlias

from protocol.values import ZERO, Resources
from scheduler.permits.core.state import CoreState

EVERY_S: Final = 30.0
"""A pool's placeholder is made, or made anew, once in this time."""
PLACED_REST_S: Final = 300.0
"""The rest of a pool whose placeholder got a node while growth is still denied there."""
SETTLING_S: Final = 60.0
"""How long a new leader may take to hear of the denials that there are, beside the time for which they must last."""
NODE_SHARE: Final = 0.75
"""A placeholder requests at most this share of the largest node of its pool: a new node has daemons, too."""

Taint: TypeAlias = tuple[str, str, str]
"""Key, value and effect."""


@dataclass(frozen=True, slots=True)
class PlaceholderRules:
    """The settings. A denial counts after `after_s`. `labels` name the pool of a node, the first one that it has. Amounts are
    whole steps, and `most` at most. `template` is merged into each pod."""

    after_s: float
    labels: tuple[str, ...]
    priority_class: str
    most_pods: int
    most: Resources
    step: Resources
    template: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))


@dataclass(frozen=True, order=True, slots=True)
class NodePool:
    """The nodes with a value of a label; those with none of the labels, if both are empty."""

    label: str = ""
    value: str = ""

    def __str__(self) -> str:
        return f"{self.label}={self.value}" if self.label else ""


@dataclass(frozen=True, slots=True)
class PoolNode:
    """A node as placeholders need it; `taints` are those that do not pass."""

    pool: NodePool
    allocatable: Resources
    taints: frozenset[Taint] = frozenset()


@dataclass(frozen=True, slots=True)
class DeniedVm:
    uid: str
    node: str
    amount: Resources


def denied_vms(core: CoreState) -> Iterator[DeniedVm]:
    """The VMs that are denied growth that they need for want of room, and how much of each resource. Callers without the extension do not tell
    comfort apart."""
    for record in core.vms:
        lacks = record.row.state.pressure
        if lacks == ZERO or record.row.state.migrating:
            continue
        if record.waiting is not None:
            lacks = (record.waiting.needed - record.row.state.current).max(ZERO).min(lacks)
        if lacks != ZERO:
            yield DeniedVm(record.spec.uid, record.spec.node, lacks)


@dataclass(frozen=True, slots=True)
class Placeholder:
    """A placeholder as it should be; `taints` are tolerated."""

    pool: NodePool
    amount: Resources
    taints: tuple[Taint, ...]
    rules: PlaceholderRules

    @property
    def name(self) -> str:
        """One name for each pool, so that two leaders cannot make two of them."""
        return f"parley-placeholder-{_digest(str(self.pool))}"

    @property
    def fingerprint(self) -> str:
        """Differs if anything of it does."""
        rules = self.rules
        return _digest(repr((self.pool, self.amount, self.taints, rules.priority_class, rules.template)))


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:12]


@dataclass(frozen=True, slots=True)
class StandingPlaceholder:
    """A placeholder as the cluster shows it. `is_placed` says that it got a node, `is_going` that it is being deleted."""

    name: str
    uid: str
    fingerprint: str
    is_placed: bool = False
    is_going: bool = False


@dataclass(frozen=True, slots=True)
class PlaceholderState:
    """What is remembered between two looks: since when each VM is denied, by its UID; before when no placeholder is made, by name; and which
    ones this leader has wanted once."""

    began_s: float
    since_s: Mapping[str, float] = field(default_factory=lambda: MappingProxyType({}))
    not_before_s: Mapping[str, float] = field(default_factory=lambda: MappingProxyType({}))
    wanted_once: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class PlaceholderPlan:
    """Deletions come first: one that is made anew keeps its name."""

    state: PlaceholderState
    delete: tuple[StandingPlaceholder, ...]
    create: tuple[Placeholder, ...]


def plan(
    state: PlaceholderState,
    denied: Collection[DeniedVm],
    nodes: Mapping[str, PoolNode],
    rules: PlaceholderRules | None,
    standing: Collection[StandingPlaceholder],
    now_s: float,
) -> PlaceholderPlan:
    """The deletions and creations after a look. Without `rules` there are to be no placeholders."""
    since_s = {each.uid: state.since_s.get(each.uid, now_s) for each in denied}
    rests = {name: until_s for name, until_s in state.not_before_s.items() if now_s < until_s}
    wanted: dict[str, Placeholder] = {}
    if rules is not None:
        lasting = [each for each in denied if now_s - since_s[each.uid] >= rules.after_s]
        wanted = {each.name: each for each in _wanted(lasting, nodes, rules)}
    is_settling = rules is not None and now_s - state.began_s < rules.after_s + SETTLING_S
    known = state.wanted_once | wanted.keys()
    there, delete = set[str](), list[StandingPlaceholder]()
    for each in standing:
        one = wanted.get(each.name)
        if each.is_placed and one is not None:
            rests[each.name] = now_s + PLACED_REST_S
        if one is None:
            is_right = is_settling and each.name not in known
        else:
            is_right = one.fingerprint == each.fingerprint or each.name in rests
        if each.is_going or (is_right and not each.is_placed):
            there.add(each.name)
        else:
            delete.append(each)
    create = [one for name, one in wanted.items() if name not in there and name not in rests]
    rests |= {one.name: now_s + EVERY_S for one in create}
    return PlaceholderPlan(
        PlaceholderState(state.began_s, since_s, rests, known), tuple(delete), tuple(create)
    )


def _wanted(
    lasting: Iterable[DeniedVm], nodes: Mapping[str, PoolNode], rules: PlaceholderRules
) -> list[Placeholder]:
    """The placeholders of the pools with the largest sums."""
    sums: dict[NodePool, Resources] = {}
    taints: dict[NodePool, frozenset[Taint]] = {}
    for each in lasting:
        node = nodes.get(each.node)
        if node is not None:
            sums[node.pool] = sums.get(node.pool, ZERO) + each.amount
            taints[node.pool] = taints.get(node.pool, node.taints) & node.taints
    largest = sorted(sums, key=lambda pool: (-sums[pool].vcpu_milli, -sums[pool].memory_bytes, pool))
    found = []
    for pool in largest[: rules.most_pods]:
        amount = _bounded(sums[pool], [each for each in nodes.values() if each.pool == pool], rules)
        if amount != ZERO:
            found.append(Placeholder(pool, amount, tuple(sorted(taints[pool])), rules))
    return found


def _bounded(amount: Resources, nodes: Iterable[PoolNode], rules: PlaceholderRules) -> Resources:
    """The amount in whole steps, within the settings' bound and what a node of the pool can have."""
    sizes = [each.allocatable for each in nodes]
    cpu = max(int(each.vcpu_milli * NODE_SHARE) for each in sizes)
    memory = max(int(each.memory_bytes * NODE_SHARE) for each in sizes)
    step = rules.step
    whole = Resources(
        -(-amount.vcpu_milli // step.vcpu_milli) * step.vcpu_milli,
        -(-amount.memory_bytes // step.memory_bytes) * step.memory_bytes,
    )
    return whole.min(rules.most).min(Resources(cpu, memory))
