"""A host of the plugin `quota` with pools that tests put there."""

from typing import Any

from hosting import logs
from protocol.values import Resources
from scheduler.pools.chain.plugin import PoolClient
from scheduler.pools.core.values import Pods, Pool


class QuotaHost:
    """A host with pools that tests put there."""

    def __init__(self, *pools: Pool) -> None:
        self.held = pools
        self.claimed: dict[str, int] = {}
        self.amounts: dict[str, Resources] = {}
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

    def asked(self) -> dict[str, int]:
        return {}

    def asked_amounts(self) -> dict[str, Resources]:
        return {}

    def claims(self) -> dict[str, int]:
        return self.claimed

    def claimed_amounts(self) -> dict[str, Resources]:
        return self.amounts

    def members(self, name: str) -> Pods:
        del name
        return ()

    def put(self, pool: Pool) -> None:
        """Add a pool, or let it take the place of the one of its name."""
        if self.pool(pool.name) is None:
            self.held = (*self.held, pool)
        else:
            self.held = tuple(pool if each.name == pool.name else each for each in self.held)
