"""The NUMA topology manager: which NUMA nodes of a node a pod gets, by the hints of all who allocate something there.

A set of NUMA nodes is an `int` with a bit for each. Providers are values with two callables, so this module knows neither plugins nor
nodes. The published manager looks at the Cartesian product of all hints; here the same winner is found without it, because a machine with
eight NUMA nodes has 255 masks for each resource. Between winners that are equal in every other way the mask with the lowest NUMA nodes
counts, so that the order of providers does not matter. Source: reference/koordinator.md 1.11.
"""

import enum
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from operator import or_
from typing import Final

UNSATISFIED: Final = "Unsatisfied NUMA"
UNALIGNED: Final = "Unaligned NUMA Hint cause"
MAX_NUMA_NODES: Final = 8
"""All sets of a node's NUMA nodes are looked at, so their number is bounded, as the kubelet bounds it."""


class NumaTopologyPolicy(enum.StrEnum):
    """How strictly a pod's resources must come from the same NUMA nodes. The values are the published ones."""

    NONE = ""
    BEST_EFFORT = "BestEffort"
    RESTRICTED = "Restricted"
    SINGLE_NUMA_NODE = "SingleNUMANode"


class NumaUse(enum.Enum):
    """Whether the pods of a NUMA node have other NUMA nodes as well."""

    SINGLE = "single"
    SHARED = "shared"


@dataclass(frozen=True, slots=True)
class NumaHint:
    """A set of NUMA nodes that could serve a request; None as `mask` is any set. `is_unsatisfied` marks a resource that no set serves."""

    mask: int | None
    is_preferred: bool
    score: int = 0
    is_unsatisfied: bool = False


ANY: Final = NumaHint(None, is_preferred=True)
_NOWHERE: Final = NumaHint(None, is_preferred=False, is_unsatisfied=True)

Hints = Mapping[str, Sequence[NumaHint] | None]
"""By resource. None: the resource may come from anywhere; no hint at all: it comes from nowhere."""
_Component = tuple[str, Sequence[NumaHint]]


@dataclass(frozen=True, slots=True)
class HintProvider:
    """One who allocates. `hints` gives hints by resource, or the reasons for which the node cannot serve the pod at all; `allocate` is
    told the winner, and gives the reasons for which it cannot be, or none."""

    hints: Callable[[], Hints | tuple[str, ...]]
    allocate: Callable[[NumaHint], tuple[str, ...]]


@dataclass(frozen=True, slots=True)
class NumaAdmission:
    """The winner, and the reasons for which it does not count; without reasons the pod is admitted."""

    hint: NumaHint
    reasons: tuple[str, ...] = ()

    @property
    def is_admitted(self) -> bool:
        return not self.reasons


def mask_of(numa_nodes: Iterable[int]) -> int:
    return reduce(or_, (1 << each for each in numa_nodes), 0)


def nodes_in(mask: int) -> Iterator[int]:
    """The NUMA nodes of a mask, ascending."""
    return (bit for bit in range(mask.bit_length()) if mask >> bit & 1)


def masks(numa_nodes: Sequence[int]) -> Iterator[int]:
    """Every set of at least one of these, the smaller sets first."""
    everything = mask_of(numa_nodes)
    subset, found = everything, list[int]()
    while subset:
        found.append(subset)
        subset = (subset - 1) & everything
    return iter(sorted(found, key=lambda mask: (mask.bit_count(), mask)))


def admit(
    policy: NumaTopologyPolicy,
    numa_nodes: Sequence[int],
    providers: Sequence[HintProvider],
    uses: Mapping[int, frozenset[NumaUse]] | None = None,
) -> NumaAdmission:
    """Ask all providers, choose, and tell them. `uses` are those of the NUMA nodes that have pods, for a pod that wants NUMA nodes for itself
    (exclusive policy `Required`); None for another pod."""
    everything = mask_of(numa_nodes)
    found: list[_Component] = []
    for provider in providers:
        hints = provider.hints()
        if isinstance(hints, tuple):
            return NumaAdmission(NumaHint(None, is_preferred=False), hints)
        found += ((resource, _filled(given)) for resource, given in hints.items())
    if uses is not None:
        found = [(name, [_exclusive(hint, uses) for hint in given]) for name, given in found]
    admission = _judge(policy, everything, found)
    if not admission.is_admitted:
        return admission
    refused = _refused(providers, admission.hint)
    if refused and policy is NumaTopologyPolicy.BEST_EFFORT and admission.hint.mask is not None:
        # No NUMA nodes serve all of them, so each takes its own.
        admission = NumaAdmission(NumaHint(None, is_preferred=False))
        refused = _refused(providers, admission.hint)
    return replace(admission, reasons=refused)


def _refused(providers: Sequence[HintProvider], hint: NumaHint) -> tuple[str, ...]:
    return tuple(reason for each in providers for reason in each.allocate(hint))


def merge(everything: int, components: Sequence[Sequence[NumaHint]]) -> NumaHint:
    """The best combination of one hint of each component: a preferred one, else of the fewest NUMA nodes, else of the highest score.

    A combination is preferred if all its hints are and name the same mask. Hints score where their mask is that of the combination.
    Without a combination that has a NUMA node left, all NUMA nodes, not preferred.
    """
    agreed = [
        NumaHint(mask, is_preferred=True, score=score)
        for mask in _named(components, everything)
        if (score := _agreed_score(components, mask)) is not None
    ]
    if agreed:
        return min(agreed, key=_rank)
    reached = {everything}
    for hints in components:
        reached = {mask & _within(hint, everything) for mask in reached for hint in hints} - {0}
    if not reached:
        return NumaHint(everything, is_preferred=False, is_unsatisfied=True)
    fewest = min(mask.bit_count() for mask in reached)
    narrow = [mask for mask in reached if mask.bit_count() == fewest]
    best = min(
        (NumaHint(mask, False, _best_score(components, everything, mask)) for mask in narrow), key=_rank
    )
    widest = max((_within(hint, everything).bit_count() for hints in components for hint in hints), default=0)
    is_lacking = any(all(hint.is_unsatisfied for hint in hints) for hints in components)
    return replace(best, is_unsatisfied=fewest < widest or is_lacking)


def merge_policies(node: NumaTopologyPolicy, pod: NumaTopologyPolicy) -> NumaTopologyPolicy | None:
    """The policy for a pod on a node: the pod's wins where it has one. None where both have one and differ."""
    if node and pod and node is not pod:
        return None
    return pod or node


def _filled(given: Sequence[NumaHint] | None) -> Sequence[NumaHint]:
    return (ANY,) if given is None else tuple(given) or (_NOWHERE,)


def _judge(policy: NumaTopologyPolicy, everything: int, found: Sequence[_Component]) -> NumaAdmission:
    """The merge under the policy, and why it does not count."""
    components = [hints for _, hints in found]
    if policy is NumaTopologyPolicy.SINGLE_NUMA_NODE:
        components = [[hint for hint in hints if _is_single(hint)] or [_NOWHERE] for hints in components]
    best = merge(everything, components)
    if best.mask == everything and policy is NumaTopologyPolicy.SINGLE_NUMA_NODE:
        best = replace(best, mask=None)
    if best.is_preferred or policy in {NumaTopologyPolicy.NONE, NumaTopologyPolicy.BEST_EFFORT}:
        return NumaAdmission(best)
    lacking = [name for name, hints in found if all(each.is_unsatisfied for each in hints)]
    if lacking:
        return NumaAdmission(best, tuple(f"{UNSATISFIED} {name}" for name in lacking))
    return NumaAdmission(best, (_unaligned(found),))


def _unaligned(found: Sequence[_Component]) -> str:
    """Of each resource the sets that it prefers, among those that it could have."""
    parts = []
    for name, hints in found:
        known = [hint for hint in hints if hint.mask is not None]
        if known:
            preferred = ", ".join(_written(hint) for hint in known if hint.is_preferred)
            parts.append(f"{name} prefer [{preferred}] among [{', '.join(map(_written, known))}]")
    return f"{UNALIGNED} {' & '.join(parts)}"


def _written(hint: NumaHint) -> str:
    return "+".join(map(str, nodes_in(hint.mask or 0)))


def _exclusive(hint: NumaHint, uses: Mapping[int, frozenset[NumaUse]]) -> NumaHint:
    """A pod of several NUMA nodes must not have one with pods of one, nor a pod of one NUMA node one with pods of several."""
    if hint.mask is None:
        return hint
    shunned = NumaUse.SINGLE if hint.mask.bit_count() > 1 else NumaUse.SHARED
    is_free = all(shunned not in uses.get(each, ()) for each in nodes_in(hint.mask))
    return hint if is_free else replace(hint, is_preferred=False)


def _is_single(hint: NumaHint) -> bool:
    return hint.is_preferred and (hint.mask is None or hint.mask.bit_count() == 1)


def _rank(hint: NumaHint) -> tuple[int, int, int]:
    mask = hint.mask or 0
    return mask.bit_count(), -hint.score, mask


def _within(hint: NumaHint, everything: int) -> int:
    return everything if hint.mask is None else hint.mask & everything


def _named(components: Sequence[Sequence[NumaHint]], everything: int) -> set[int]:
    """The masks that a preferred combination can have: if every hint is for any set, it is all NUMA nodes."""
    named = {hint.mask for hints in components for hint in hints if hint.mask and hint.is_preferred}
    if all(any(hint.mask is None and hint.is_preferred for hint in hints) for hints in components):
        named.add(everything)
    return named


def _agreed_score(components: Sequence[Sequence[NumaHint]], mask: int) -> int | None:
    """The score of the preferred combination with that mask; None if some component prefers it not."""
    total = 0
    for hints in components:
        scores = [
            hint.score if hint.mask == mask else 0
            for hint in hints
            if hint.is_preferred and hint.mask in {None, mask}
        ]
        if not scores:
            return None
        total += max(scores)
    return total


def _best_score(components: Sequence[Sequence[NumaHint]], everything: int, mask: int) -> int:
    """The highest score of a combination whose mask is `mask`."""
    scores: dict[int, int] = {everything: 0}
    for hints in components:
        after: dict[int, int] = {}
        for reached, score in scores.items():
            for hint in hints:
                narrowed = reached & _within(hint, everything)
                if narrowed & mask == mask:
                    more = hint.score if hint.mask == mask else 0
                    after[narrowed] = max(after.get(narrowed, 0), score + more)
        scores = after
    return scores[mask]
