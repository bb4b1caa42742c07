"""Pool plugins for a load: each caps the pools that its args name at a total of units, and only computes.

A benchmark offers them as entry points. The args: `name`, the plugin's own name, and `totals`, units by pool.
"""

from collections.abc import Mapping

from parley.plugins import Admission, Args, BasePlugin, Context, Handle, Pods, Pool, ProviderSet


class Cap(BasePlugin):
    """The shared part of both kinds."""

    def __init__(self, name: str, totals: Mapping[str, int]) -> None:
        self._name = name
        self._totals = totals

    def name(self) -> str:
        return self._name

    def cap(self, pool: Pool) -> Admission:
        """The pool's total, stated each time; everything if the args name none."""
        total = self._totals.get(pool.name)
        if total is None or pool.replicas <= total:
            return Admission(admitted=total)
        return Admission(admitted=total, reason="Total", message=f"{pool.replicas} are more than {total}")


class PlainCap(Cap):
    """Its hook is a plain function."""

    def pre_update_pool(self, ctx: Context, new_pool: Pool, pods: Pods) -> Admission:
        """Admits up to the total."""
        del ctx, pods
        return self.cap(new_pool)


class AsyncCap(Cap):
    """Its hook is a coroutine that waits for nothing."""

    async def pre_update_pool(self, ctx: Context, new_pool: Pool, pods: Pods) -> Admission:
        """Admits up to the total."""
        del ctx, pods
        return self.cap(new_pool)


def plain(handle: Handle, providers: ProviderSet, args: Args) -> PlainCap:
    """Make one whose hook is a plain function."""
    del handle, providers
    return PlainCap(**args)


def coroutine(handle: Handle, providers: ProviderSet, args: Args) -> AsyncCap:
    del handle, providers
    return AsyncCap(**args)
