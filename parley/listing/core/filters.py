"""Which nodes and pools are listed. Pure."""

from dataclasses import dataclass

from parley.listing.core.columns import pool_state, worth
from parley.listing.core.tables import matches
from protocol.explaining import NodeShown
from protocol.pages import PoolShown


@dataclass(frozen=True, slots=True)
class NodeFilter:
    """Which nodes are listed; all parts must hold. `names` are globs; with `is_over_full` and `has_pressure` only nodes that have any."""

    names: tuple[str, ...] = ()
    is_over_full: bool = False
    has_pressure: bool = False

    def passes(self, node: NodeShown) -> bool:
        return (
            matches(self.names, node.node)
            and (not self.is_over_full or bool(node.over_full_because_of))
            and (not self.has_pressure or any(part > 0 for part in worth(node.pressure) or ()))
        )


@dataclass(frozen=True, slots=True)
class PoolFilter:
    """Which pools are listed; both parts must hold. `names` and `states` are globs, of `states` in any case of letters."""

    names: tuple[str, ...] = ()
    states: tuple[str, ...] = ()

    def passes(self, pool: PoolShown) -> bool:
        states = tuple(each.casefold() for each in self.states)
        return matches(self.names, pool.name) and matches(states, (pool_state(pool) or "").casefold())
