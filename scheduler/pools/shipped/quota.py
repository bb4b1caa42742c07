"""The pool plugin `quota`: compute units per tenant, in a tree of tenants with limits, guarantees and lending.

A pool belongs to the tenant that its label (`tenantLabel`) names, and uses as many units (`computeUnit`) as cover its
replicas: the larger number of the two resources, rounded up for each pool. How much a tenant may use is the rule of
`scheduler.pools.core.fair_split`. The plugin computes only: it waits for nothing, and a probe changes nothing.

- Growth is admitted as far as it fits, as a cap in the pool's own units with the reason `QuotaExhausted`. A pool may always
  have the units that it has.
- Only tenants without others below them own pools. The name of another one is refused, and so is (unless `unknownTenant`
  says `admit`) a name that is not configured, or none: InvalidSpec, for the pool. Pools that are let in so count nowhere.
- A pool's warm minimum (`minUnits`) counts as used from the moment the pool is there, so it is the pool's at any time.
- A change of a pool's description is refused for its tenant and for a warm minimum that does not fit, never for its size.
"""

from collections.abc import Mapping
from itertools import compress, count
from operator import is_not
from typing import Annotated, Final, Literal, NamedTuple

from pydantic import Field

from hosting.amounts import PositiveResources
from hosting.settings import Settings, check, listed
from protocol import values
from scheduler.pools.chain.plugin import Args, BasePlugin, Handle
from scheduler.pools.core.errors import AppError, new_insufficient_resources, new_invalid_spec
from scheduler.pools.core.fair_split import (
    Accounts,
    Allowance,
    BindingLimit,
    Tenant,
    TenantStatus,
    Tree,
    tree_faults,
)
from scheduler.pools.core.providers import Providers
from scheduler.pools.core.values import ADMITTED, Admission, Context, Pods, Pool, Purpose

NAME: Final = "quota"
REASON: Final = "QuotaExhausted"
TENANT_LABEL: Final = "parley.dev/tenant"

# ------------------------------------------------------------ the args


class TenantArgs(Settings):
    """A tenant; amounts in units of the quota. See `fair_split.Tenant`."""

    name: Annotated[str, Field(min_length=1)]
    parent: Annotated[str, Field(min_length=1)] | None = None
    guaranteed_units: Annotated[int, Field(ge=0)] | None = Field(None, alias="guaranteed")
    limit_units: Annotated[int, Field(ge=0)] | None = Field(None, alias="limit")
    weight: Annotated[int, Field(ge=1)] = 1


class QuotaArgs(Settings):
    """The parameters. `retryAfter` (seconds) is what pools that were cut are told to wait."""

    compute_unit: PositiveResources
    tenant_label: Annotated[str, Field(min_length=1)] = TENANT_LABEL
    tenants: Annotated[list[TenantArgs], Field(min_length=1)]
    unknown_tenant: Literal["refuse", "admit"] = "refuse"
    retry_after_s: Annotated[float, Field(ge=0, allow_inf_nan=False)] | None = Field(None, alias="retryAfter")
    reserve_fair_shares: bool = True
    """False: whoever comes first borrows what is there, fair shares are only shown, and claims count for nothing, so a
    share may starve. True costs up to as many idle units as are claimed, until the claimants come back or their claims end."""

    @classmethod
    def cross_faults(cls, data: object) -> list[str]:
        """Names and parents that make no tree, and guarantees that cannot be kept (`fair_split.tree_faults`)."""
        tenants = [_as_written(entry) for entry in listed(data, "tenants")]
        return [f"tenants[{each.index}].{each.field}: {each.text}" for each in tree_faults(tenants)]


def _as_written(entry: object) -> Tenant:
    """A tenant of the raw args, without the parts that are no names or amounts: they are faults of their own."""
    found: Mapping[str, object] = entry if isinstance(entry, Mapping) else {}
    name, parent = found.get("name"), found.get("parent")
    return Tenant(
        name if isinstance(name, str) else "",
        parent if isinstance(parent, str) else "",
        _amount(found.get("guaranteed")),
        _amount(found.get("limit")),
    )


def _amount(value: object) -> int | None:
    return value if type(value) is int and value >= 0 else None


def tree_of(args: QuotaArgs) -> Tree:
    return Tree(
        [
            Tenant(each.name, each.parent or "", each.guaranteed_units, each.limit_units, each.weight)
            for each in args.tenants
        ]
    )


# ------------------------------------------------------------ the plugin


class _Counted(NamedTuple):
    """How a pool is counted: its tenant's place, None for nobody's, the units that it uses, and those that its refused VMs
    claim beyond that."""

    place: int | None
    units: int
    claimed_units: int


_ABSENT: Final = _Counted(None, 0, 0)


class QuotaPlugin(BasePlugin):
    """The plugin. What the pools use is kept between calls; a call looks only at pools that are other objects than before."""

    def __init__(self, handle: Handle, args: QuotaArgs) -> None:
        self._handle = handle
        self._args = args
        self._label = args.tenant_label
        self._unit = args.compute_unit
        self._tree = tree_of(args)
        self._accounts = self._new_accounts()
        self._pools: tuple[Pool, ...] = ()
        self._claims: Mapping[str, int] = {}
        self._counted: dict[str, _Counted] = {}

    def name(self) -> str:
        return NAME

    def start(self, handle: Handle) -> None:
        """Says in the log what is in force."""
        leaves = sum(node.is_leaf for node in self._tree.nodes)
        handle.log.info(
            "quotas in force",
            tenants=leaves,
            parents=len(self._tree.nodes) - leaves,
            compute_unit=str(self._unit),
            tenant_label=self._label,
            unknown_tenant=self._args.unknown_tenant,
            reserve_fair_shares=self._args.reserve_fair_shares,
        )

    def pre_create_pool(self, ctx: Context, pool: Pool) -> Admission:
        """Refuses a pool that is nobody's."""
        del ctx
        place = self._place(pool)
        if place is None:
            return self._of_nobody(pool)
        self._count()
        return self._warm(pool, place, self._accounts.allowance(place))

    def pre_update_pool(self, ctx: Context, new_pool: Pool, pods: Pods) -> Admission:
        """Refuses a pool that is nobody's, and admits growth as far as the rule allows."""
        del pods
        place = self._place(new_pool)
        if place is None:
            return self._of_nobody(new_pool)
        self._count()
        allowance = self._accounts.allowance(place)
        counted = self._counted.get(new_pool.name, _ABSENT)
        if counted.place is not None and counted.place != place:
            allowance = self._allowance_without(counted, place)
        if ctx.purpose is Purpose.UPDATE:
            return self._warm(new_pool, place, allowance)
        own = counted.units if counted.place == place else 0
        if allowance.units is None:
            return ADMITTED
        others = self._accounts.used(place) - own
        cap = _replicas_within(
            max(allowance.units - others, counted.units), new_pool.compute_unit, self._unit
        )
        if new_pool.replicas <= cap:
            return ADMITTED
        return Admission(
            admitted=cap,
            retry_after_s=self._args.retry_after_s,
            reason=REASON,
            message=self._why(new_pool, place, allowance, cap),
        )

    def _warm(self, pool: Pool, place: int, allowance: Allowance) -> Admission:
        """Whether the tenant can keep what the pool's warm minimum takes beyond what counts for the pool already."""
        counted = self._counted.get(pool.name, _ABSENT)
        own = counted.units if counted.place == place else 0
        units = (pool.compute_unit * pool.limits.min_units).units(self._unit)
        if allowance.units is None or units <= max(
            allowance.units - self._accounts.used(place) + own, counted.units
        ):
            return ADMITTED
        tenant = self._tree.nodes[place].tenant.name
        left = max(0, allowance.units - self._accounts.used(place) + own)
        message = f"tenant {tenant} cannot keep the {units} units of pool {pool.name}'s minUnits: it has {left} for the pool"
        return Admission(error=new_insufficient_resources(message, reason=REASON))

    def status(self) -> tuple[TenantStatus, ...]:
        """What every tenant has, uses, borrows and lends now, in the order of the configuration."""
        self._count()
        return self._accounts.status()

    # ------------------------------------------------------------ whose a pool is

    def _place(self, pool: Pool) -> int | None:
        """The place of the tenant that may own the pool."""
        place = self._named(pool)
        return place if place is not None and self._tree.nodes[place].is_leaf else None

    def _named(self, pool: Pool) -> int | None:
        """The place of the tenant that the pool names, whether it may own pools or not."""
        return self._tree.places.get(pool.labels.get(self._label, ""))

    def _of_nobody(self, pool: Pool) -> Admission:
        """What is said of a pool without a tenant that may own it."""
        if self._args.unknown_tenant == "admit" and self._named(pool) is None:
            return ADMITTED
        return Admission(error=self._no_owner(pool))

    def _no_owner(self, pool: Pool) -> AppError:
        name = pool.labels.get(self._label)
        if name is None:
            return new_invalid_spec(f"pool {pool.name} has no label {self._label}, which names its tenant")
        if name in self._tree.places:
            return new_invalid_spec(
                f"pool {pool.name} cannot belong to tenant {name}: it has tenants below it, name one of those"
            )
        return new_invalid_spec(
            f"pool {pool.name} belongs to tenant {name} ({self._label}), which has no quota"
        )

    # ------------------------------------------------------------ what is used

    def _new_accounts(self) -> Accounts:
        return Accounts(self._tree, reserves_shares=self._args.reserve_fair_shares)

    def _count(self) -> None:
        """Bring the accounts to what the cache holds now."""
        cache = self._handle.cache
        pools, before = cache.pools(), self._pools
        claims, claimed_before = cache.claims(), self._claims
        self._pools, self._claims = pools, claims
        if pools is not before and not self._follow(before, pools):
            self._accounts, self._counted = self._new_accounts(), {}
            for pool in pools:
                self._set(pool)
        if claims is not claimed_before:
            for pool in pools:
                if claims.get(pool.name, 0) != claimed_before.get(pool.name, 0):
                    self._set(pool)

    def _follow(self, before: tuple[Pool, ...], pools: tuple[Pool, ...]) -> bool:
        """Count those that have changed; whether they are the same pools as before, and that was enough."""
        if len(pools) != len(before):
            return False
        changed = list(compress(count(), map(is_not, pools, before)))
        if any(pools[at].name != before[at].name for at in changed):
            return False
        for at in changed:
            self._recount(before[at], pools[at])
        return True

    def _recount(self, before: Pool, pool: Pool) -> None:
        is_same = (
            pool.replicas == before.replicas
            and pool.limits.min_units == before.limits.min_units
            and pool.compute_unit == before.compute_unit
            and pool.labels == before.labels
        )
        if not is_same:
            self._set(pool)

    def _set(self, pool: Pool) -> None:
        """Count a pool as it is now. A tenant that may own none is charged as well for those that it has."""
        before = self._counted.get(pool.name, _ABSENT)
        units = self._units(pool, pool.replicas)
        claimed = self._claims.get(pool.name, 0)
        wanted = self._units(pool, pool.replicas + claimed) if claimed else units
        now = _Counted(self._named(pool), units, wanted - units)
        self._counted[pool.name] = now
        if before.place is not None and before.place == now.place:
            self._accounts.add(before.place, units - before.units, now.claimed_units - before.claimed_units)
            return
        if before.place is not None:
            self._accounts.add(before.place, -before.units, -before.claimed_units)
        if now.place is not None:
            self._accounts.add(now.place, units, now.claimed_units)

    def _units(self, pool: Pool, replicas: int) -> int:
        """What cover so many replicas of a pool, or its warm minimum where that is more, in units of the quota."""
        return (pool.compute_unit * max(replicas, pool.limits.min_units)).units(self._unit)

    def _allowance_without(self, counted: _Counted, place: int) -> Allowance:
        """The allowance of a tenant when a pool that still counts as another one's is gone from there."""
        assert counted.place is not None
        self._accounts.add(counted.place, -counted.units, -counted.claimed_units)
        try:
            return self._accounts.allowance(place)
        finally:
            self._accounts.add(counted.place, counted.units, counted.claimed_units)

    # ------------------------------------------------------------ what is said

    def _why(self, pool: Pool, place: int, allowance: Allowance, cap: int) -> str:
        """Why fewer are admitted, for people."""
        assert allowance.units is not None
        tenant = self._tree.nodes[place].tenant.name
        units = max(0, allowance.units - self._accounts.used(place))
        left = "1 unit" if units == 1 else f"{units} units"
        bound, bounding = allowance.bound_units, self._tree.nodes[allowance.place].tenant.name
        match allowance.binding, allowance.place == place:
            case BindingLimit.LIMIT, True:
                why = f"has {units} of its {bound} units left"
            case BindingLimit.LIMIT, False:
                why = f"has {left} left of the {bound} that {bounding} may use"
            case BindingLimit.FAIR_SHARE, True:
                why = f"has {left} left of the {bound} that are its guarantee and fair share"
            case BindingLimit.FAIR_SHARE, False:
                why = f"has {left} left of the {bound} that are {bounding}'s guarantee and fair share"
            case _:
                why = f"has {left} left: others use the {bound} of {bounding}, or are guaranteed them"
        return f"tenant {tenant} {why}; {cap} of {pool.replicas} replicas fit"


def _replicas_within(units: int, own: values.Resources, unit: values.Resources) -> int:
    """The largest number of a pool's units `own` that so many units of the quota cover."""
    return min(units * unit.vcpu_milli // own.vcpu_milli, units * unit.memory_bytes // own.memory_bytes)


def factory(handle: Handle, providers: Providers, args: Args) -> QuotaPlugin:
    """Make the plugin. Raises `FaultsError` with every fault of the args."""
    del providers
    return QuotaPlugin(handle, check(args, QuotaArgs))
