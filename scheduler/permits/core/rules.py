"""The operator's configuration: the rules of each node, and the growth that is held back.

Rules are one value and one input of the core: a change of the configuration replaces all of them.
"""

import fnmatch
import functools
from dataclasses import dataclass
from typing import Final

from protocol.values import ZERO, Resources

PPM: Final = 1_000_000
"""Parts per million that make a whole."""

_WILDCARDS: Final = "*?["
_CACHED_NAMES: Final = 32_768
"""Enough for the namespaces and names of 10,000 VMs, so that no glob is matched twice with the same name."""


@dataclass(frozen=True, slots=True)
class Watermark:
    """The share of a node's reservable amount above which VMs should leave it, in exact parts per million.

    Both are 1 to 1,000,000 (all of it). Raises `ValueError` for anything else.
    """

    cpu_ppm: int
    memory_ppm: int

    def __post_init__(self) -> None:
        for name, ppm in (("cpu", self.cpu_ppm), ("memory", self.memory_ppm)):
            if not 1 <= ppm <= PPM:
                raise ValueError(f"watermark: {name} must be 1 to {PPM} parts per million, not {ppm}")

    def of(self, reservable: Resources) -> Resources:
        """This share of `reservable`, rounded down to whole milli-CPU and bytes."""
        return Resources(
            reservable.vcpu_milli * self.cpu_ppm // PPM, reservable.memory_bytes * self.memory_ppm // PPM
        )


@dataclass(frozen=True, slots=True)
class NodeRules:
    """The rules of one node.

    `system` is what the node keeps for itself out of its allocatable amount; it is not negative. `compute_unit` is
    the step of growth of VMs that bring none; it is positive, or None if the configuration gives none.
    """

    system: Resources
    watermark: Watermark
    compute_unit: Resources | None


@dataclass(frozen=True, slots=True)
class NodeOverride:
    """Values for some nodes; None leaves a value to later overrides and to the default.

    `nodes` are names, or globs in the sense of `fnmatch.fnmatchcase`.
    """

    nodes: tuple[str, ...]
    system: Resources | None = None
    watermark: Watermark | None = None
    compute_unit: Resources | None = None


@dataclass(frozen=True, slots=True)
class GrowthSwitches:
    """Switches that hold growth back; decreases always pass.

    `stopped` refuses every growth. Recommend-only refuses it too, as what is recommended and not granted: for all VMs
    with `recommend_only`, else for those whose namespace matches one of `recommend_only_namespaces`, or whose
    `namespace/name` matches one of `recommend_only_vms`. Both are names or globs; `*` matches the slash too.
    """

    stopped: bool = False
    recommend_only: bool = False
    recommend_only_namespaces: tuple[str, ...] = ()
    recommend_only_vms: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class DefaultPool:
    """The pool of VMs that name none themselves: those whose namespace matches one of `namespaces` (names or globs; none
    stand for every namespace) and that have all of `labels`.
    """

    pool: str
    namespaces: tuple[str, ...] = ()
    labels: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class Rules:
    """The whole configuration: defaults of all nodes, overrides of some, the switches of growth and migration, and the
    pools of VMs that name none.
    """

    node: NodeRules
    overrides: tuple[NodeOverride, ...] = ()
    growth: GrowthSwitches = GrowthSwitches()
    migration_enabled: bool = False
    default_pools: tuple[DefaultPool, ...] = ()

    def default_pool(self, namespace: str, labels: tuple[tuple[str, str], ...]) -> str | None:
        """The pool of a VM that names none itself: that of the first entry which it matches."""
        for entry in self.default_pools:
            is_named = not entry.namespaces or is_listed(entry.namespaces, namespace)
            if is_named and all(label in labels for label in entry.labels):
                return entry.pool
        return None

    def for_node(self, name: str) -> NodeRules:
        """The rules of the node `name`: of each value the first override that names the node and sets it."""
        system = watermark = compute_unit = None
        for override in self.overrides:
            if is_listed(override.nodes, name):
                system = override.system if system is None else system
                watermark = override.watermark if watermark is None else watermark
                compute_unit = override.compute_unit if compute_unit is None else compute_unit
        return NodeRules(
            self.node.system if system is None else system,
            self.node.watermark if watermark is None else watermark,
            self.node.compute_unit if compute_unit is None else compute_unit,
        )

    def is_recommend_only(self, namespace: str, name: str) -> bool:
        """Whether growth of the VM `namespace/name` is only recommended. Cheap enough for every request."""
        growth = self.growth
        if growth.recommend_only:
            return True
        # An empty tuple is false, so if there are no globs nothing is matched and no name is put together.
        if growth.recommend_only_namespaces and is_listed(growth.recommend_only_namespaces, namespace):
            return True
        return bool(growth.recommend_only_vms) and is_listed(growth.recommend_only_vms, f"{namespace}/{name}")


def is_glob(name: str) -> bool:
    """Whether `name` stands for every name that it matches, rather than for itself alone."""
    return any(mark in name for mark in _WILDCARDS)


@functools.lru_cache(maxsize=_CACHED_NAMES)
def is_listed(names: tuple[str, ...], name: str) -> bool:
    """Whether `name` is one of the names, or matches one of the globs among them."""
    exact, globs = _split(names)
    return name in exact or any(fnmatch.fnmatchcase(name, glob) for glob in globs)


@functools.lru_cache(maxsize=256)
def _split(names: tuple[str, ...]) -> tuple[frozenset[str], tuple[str, ...]]:
    """Names apart from globs: looking a name up costs nothing, matching a glob does."""
    return (
        frozenset(name for name in names if not is_glob(name)),
        tuple(name for name in names if is_glob(name)),
    )


DEFAULT_RULES: Final = Rules(NodeRules(ZERO, Watermark(900_000, 900_000), None))
"""The rules if nothing is configured: no system share, a watermark of 0.9, no compute unit, nothing held back."""
