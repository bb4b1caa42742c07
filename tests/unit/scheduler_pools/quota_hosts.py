"""A host of the plugin `quota` with pools that tests put there."""

from typing import Any

from hosting import logs
from scheduler.pools.chain.plugin import PoolClient
from scheduler.pools.core.values import Measures, Pods, Pool


class QuotaHost:
    """A host with pools that tests put there."""

    def __init__(self, *pools: Pool) -> None:
        self.held = pools
        self.unmet: dict[str, Measures] = {}
        self.log: Any = logs.logger("test")

    @property
    def cache(self) -> "QuotaHost":
        return self

    @property
    def client(self) -> PoolClient:
        raise NotImplementedError

    def pool(self, name: str) -> Pool | None:
        return next((pool for pool in self.held if pool.name == name), None)

    def pools(self) -> tuple[Pool, ...]:
        return self.held

    def asked(self) -> dict[str, Measures]:
        return {}

    def unmet_demand(self) -> dict[str, Measures]:
        return self.unmet

    def members(self, name: str) -> Pods:
        del name
        return ()

    def put(self, pool: Pool) -> None:
        """Add a pool, or let it take the place of the one of its name."""
        if self.pool(pool.name) is None:
            self.held = (*self.held, pool)
        else:
            self.held = tuple(pool if each.name == pool.name else each for each in self.held)
