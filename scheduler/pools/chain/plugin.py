"""The API of pool plugins: the hooks, the no-op base, and what a factory gets. Source: seed 000.

Every hook may be a plain function or a coroutine. One that only computes should be plain: it then costs a call and no
task. A hook that is a coroutine is cancelled when its time is over.
"""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Protocol, TypeAlias, TypeVar

from hosting.logs import Logger
from scheduler.pools.core.values import (
    ADMITTED,
    POD_ADMITTED,
    Admission,
    Context,
    Measures,
    PodAdmission,
    PodManifest,
    Pods,
    Pool,
)

_T = TypeVar("_T")
MaybeAwaitable: TypeAlias = _T | Awaitable[_T]
"""The answer of a hook: itself, or something that is awaited for it."""


class PoolClient(Protocol):
    """Reads and writes pools, through their hooks. Every method raises `AppError` for what is refused."""

    async def get(self, name: str) -> Pool:
        """The pool, with `replicas` as they are now."""

    async def list(self) -> tuple[Pool, ...]:
        """All pools, by name."""

    async def update(self, pool: Pool) -> Pool:
        """Write labels, annotations, finalizers, compute unit and limits; refused (409) when `generation` is not the latest."""

    async def delete(self, name: str) -> None:
        """Delete a pool, or mark it for that while it has finalizers."""


class Cache(Protocol):
    """The present state, without waiting. Cheap enough for every probe."""

    def pool(self, name: str) -> Pool | None:
        """One pool, with `replicas` as they are now."""

    def pools(self) -> tuple[Pool, ...]:
        """All pools by name, with `replicas` as they are now. One that is as before is the same object as before.

        Units that another pool is just being asked for are not among its replicas (`asked`). If they are granted before this call
        has come to its end, plain hooks are asked again.
        """

    def asked(self) -> Mapping[str, Measures]:
        """The most that each pool which is being asked about now may be given: replicas, and an amount where a plugin limits amounts.

        For a hook that waits and counts over several pools: what it admits for one may meet what another one is given.
        """

    def unmet_demand(self) -> Mapping[str, Measures]:
        """The demand of each pool that was refused a short while ago, if its VMs may still come back for it; zero of what
        nobody was refused. The same object as before while nothing has changed.

        For a hook that splits: what is free now may be somebody's who has asked before.
        """

    def members(self, name: str) -> Pods:
        """The VMs of a pool as they are now."""


class Handle(Protocol):
    """The host as a plugin may use it. Kept small on purpose. Source: seed 000, `framework.Handle`."""

    @property
    def client(self) -> PoolClient:
        """Reads and writes pools."""

    @property
    def cache(self) -> Cache:
        """The present state."""

    @property
    def log(self) -> Logger:
        """The log. Nothing secret belongs there."""


@dataclass(frozen=True, slots=True)
class PoolHandle:
    """The handle that the scheduler gives, and that a test makes of whatever its plugin uses. It is a `Handle`."""

    client: PoolClient
    cache: Cache
    log: Logger


class PoolPlugin(Protocol):
    """The hooks. Source: seed 000, `Plugin`; another seed has a parent type of that name. Embed `BasePlugin` and override what is needed.

    A hook admits, caps (`Admission.admitted`), changes the pool (`Admission.pool`) or refuses: it returns an `Admission`
    with an error or raises `AppError`; anything else that it raises counts as Internal.
    """

    def name(self) -> str:
        """The plugin's name in logs, metrics and reasons."""

    def start(self, handle: Handle) -> MaybeAwaitable[None]:
        """Called once, after every plugin was built and before anything is asked. An error ends the start-up."""

    def stop(self) -> MaybeAwaitable[None]:
        """Called once at the end, or when another configuration replaces the chain. An addition to seed 000."""

    def pre_create_pool(self, ctx: Context, pool: Pool) -> MaybeAwaitable[Admission]:
        """Before a pool is stored for the first time."""

    def pre_update_pool(self, ctx: Context, new_pool: Pool, pods: Pods) -> MaybeAwaitable[Admission]:
        """Before a changed pool is stored, and, as a probe, before VMs grow: may the pool have `new_pool.replicas`?

        As a probe it is called several times with different numbers and must change nothing outside. If it admits n
        it should admit every smaller number that is not below what the pool has: the search relies on it.
        """

    def pre_delete_pool(self, ctx: Context, pool: Pool) -> MaybeAwaitable[Admission]:
        """Before a pool is deleted. May refuse, or add a finalizer, which holds the pool until it is taken off."""

    def pre_create_pod(self, ctx: Context, pod: PodManifest, pool: Pool) -> MaybeAwaitable[PodAdmission]:
        """Before a pod of the pool is bound. Nothing calls it yet (docs/guides/pools.md)."""


Plugin: TypeAlias = PoolPlugin
"""The name that seed 000 has for it."""

HOOKS: Final = (
    "name",
    "start",
    "stop",
    "pre_create_pool",
    "pre_update_pool",
    "pre_delete_pool",
    "pre_create_pod",
)
"""The methods of every plugin, derived from `BasePlugin` or its own."""


class BasePlugin:
    """Every hook as one that does nothing. Override `name`, or logs will say `base`. Source: seed 000."""

    def name(self) -> str:
        """`base`: the plugin was not named."""
        return "base"

    def start(self, handle: Handle) -> MaybeAwaitable[None]:
        return None

    def stop(self) -> MaybeAwaitable[None]:
        return None

    def pre_create_pool(self, ctx: Context, pool: Pool) -> MaybeAwaitable[Admission]:
        return ADMITTED

    def pre_update_pool(self, ctx: Context, new_pool: Pool, pods: Pods) -> MaybeAwaitable[Admission]:
        return ADMITTED

    def pre_delete_pool(self, ctx: Context, pool: Pool) -> MaybeAwaitable[Admission]:
        return ADMITTED

    def pre_create_pod(self, ctx: Context, pod: PodManifest, pool: Pool) -> MaybeAwaitable[PodAdmission]:
        return POD_ADMITTED


Args: TypeAlias = Any
"""The parameters of one plugin, as its entry in the configuration has them; None without any. The factory checks them."""


class ProviderSet:
    """The argument of a factory between its handle and its args. Source: seed 000, `providerset.Set`. Nothing is in it: a plugin opens
    what it asks of the operator's world by itself, as its args say."""

    __slots__ = ()


Factory: TypeAlias = Callable[[Handle, ProviderSet, Args], Plugin]
"""Makes a plugin. Raises `ValueError` (pydantic's `ValidationError` is one) for args that it cannot use. Source: seed 000."""
