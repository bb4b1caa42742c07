"""The pool plugin `quota`: units and amounts for each tenant, in a tree of tenants with limits, guarantees and lending.

A pool belongs to the tenant that its label (`tenantLabel`) names, and uses as many units (`computeUnit`) as cover its
replicas: the larger number of the two resources, rounded up for each pool. If a tenant's limits name CPU or memory, exact
amounts are counted beside the units. How much a tenant may use of each of these measures is the rule of
`scheduler.pools.core.tenant_accounts`. The plugin computes only: it waits for nothing, and a probe changes nothing.

- Growth is admitted as far as it fits, as a cap in the pool's own units, and one for each resource, with the reason
  `QuotaExhausted`. A pool may always have what it has.
- Only tenants without others below them own pools. The name of another one is refused, and so is (unless `unknownTenant`
  says `admit`) a name that is not configured, or none: InvalidSpec, for the pool. Pools that are let in so count nowhere.
- A pool's warm minimum (`minUnits`) counts as used from the moment the pool is there, so it is the pool's at any time.
- A change of a pool's description is refused for its tenant and for a warm minimum that does not fit, never for its size.
"""

from collections.abc import Mapping
from itertools import compress, count
from operator import is_not, sub
from typing import Final, NamedTuple

from hosting.settings import check
from protocol import texts
from protocol.values import Resources, amount_of
from scheduler.pools.chain.plugin import Args, BasePlugin, Handle, ProviderSet
from scheduler.pools.core.errors import AppError, new_insufficient_resources, new_invalid_spec
from scheduler.pools.core.tenant_accounts import Accounts, Allowance, BoundBy, TenantStatus
from scheduler.pools.core.values import (
    ADMITTED,
    NOTHING,
    UNITS,
    Admission,
    AmountCap,
    Context,
    Measures,
    Pods,
    Pool,
    Purpose,
    measure_text,
)
from scheduler.pools.shipped.quota_args import QuotaArgs, trees_of

NAME: Final = "quota"
REASON: Final = "QuotaExhausted"


class _Counted(NamedTuple):
    """How a pool is counted: its tenant's place, None for nobody's, what it uses of each measure, and what its VMs were refused
    beyond that."""

    place: int | None
    used: tuple[int, ...]
    unmet: tuple[int, ...]


class QuotaPlugin(BasePlugin):
    """The plugin. The pools' use is kept between calls; a call looks only at pools that are other objects than before."""

    def __init__(self, handle: Handle, args: QuotaArgs) -> None:
        self._handle = handle
        self._args = args
        self._label = args.tenant_label
        self._unit = args.compute_unit
        self._trees = trees_of(args)
        self._tree = self._trees[UNITS]
        self._resources = tuple(self._trees)[1:]
        """The resources that are limited beside units."""
        self._accounts = self._new_accounts()
        nothing = (0,) * len(self._trees)
        self._absent = _Counted(None, nothing, nothing)
        self._pools: tuple[Pool, ...] = ()
        self._unmet: Mapping[str, Measures] = {}
        self._counted: dict[str, _Counted] = {}

    def name(self) -> str:
        return NAME

    def start(self, handle: Handle) -> None:
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

    def limits_amounts(self, pool: Pool) -> bool:
        """Whether the pool's tenant, or one above it, has a limit of CPU or memory."""
        place = self._place(pool)
        return place is not None and any(self._accounts.is_limited(place, name) for name in self._resources)

    def pre_create_pool(self, ctx: Context, pool: Pool) -> Admission:
        """Refuses a pool that is nobody's."""
        place = self._place(pool)
        if place is None:
            return self._of_nobody(pool)
        self._count()
        return self._warm(pool, place, self._accounts.allowances(place))

    def pre_update_pool(self, ctx: Context, new_pool: Pool, pods: Pods) -> Admission:
        """Refuses a pool that is nobody's, and admits growth as far as the rule allows."""
        place = self._place(new_pool)
        if place is None:
            return self._of_nobody(new_pool)
        self._count()
        counted = self._counted.get(new_pool.name, self._absent)
        own = counted if counted.place == place else self._absent
        wanted = None if ctx.purpose is Purpose.UPDATE else self._wanted(new_pool, place, own)
        if counted.place is not None and counted.place != place:
            allowances = self._allowances_without(counted, place, wanted)
        else:
            allowances = self._accounts.allowances(place, wanted)
        if wanted is None:
            return self._warm(new_pool, place, allowances)
        return self._admitted(new_pool, place, allowances)

    def _wanted(self, pool: Pool, place: int, own: _Counted) -> tuple[int, ...]:
        """The amounts that the tenant is after with the pool as it is asked about, in place of what the pool has wanted until now; nothing
        where units are all that is limited."""
        if not self._resources:
            return ()
        needs, before = self._uses(pool), self._accounts.wanted(place)
        counted = zip(before, own.used, own.unmet, needs, strict=True)
        return tuple(all_ - used - unmet + new for all_, used, unmet, new in counted)

    def _rooms(
        self, pool: Pool, place: int, allowances: tuple[Allowance, ...]
    ) -> list[tuple[int | None, int]]:
        """Of each measure, what a pool may use: what the tenant's others leave of the allowance, and never less than it uses (None:
        any amount); and what they leave alone."""
        counted = self._counted.get(pool.name, self._absent)
        own = counted if counted.place == place else self._absent
        rooms: list[tuple[int | None, int]] = []
        used = self._accounts.used(place)
        for allowed, all_, mine, has in zip(allowances, used, own.used, counted.used, strict=True):
            left = 0 if allowed.units is None else allowed.units - all_ + mine
            rooms.append((None if allowed.units is None else max(left, has), max(left, 0)))
        return rooms

    def _admitted(self, pool: Pool, place: int, allowances: tuple[Allowance, ...]) -> Admission:
        """The amount that a pool may have, as a cap in its own units and one of each resource that binds it as it is asked about."""
        (units, _), *rooms = self._rooms(pool, place, allowances)
        cap = None if units is None else _replicas_within(units, pool.compute_unit, self._unit)
        cap = cap if cap is not None and cap < pool.replicas else None
        amounts = tuple(
            AmountCap(name, room, self._why_amount(name, place, allowed, room), REASON)
            for name, allowed, (room, _) in zip(self._resources, allowances[1:], rooms, strict=True)
            if room is not None and room < amount_of(pool.amount, name)
        )
        if cap is None and not amounts:
            return ADMITTED
        return Admission(
            admitted=cap,
            retry_after_s=self._args.retry_after_s,
            reason=REASON if cap is not None else "",
            message=self._why(pool, place, allowances[0], cap) if cap is not None else "",
            amounts=amounts,
        )

    def _warm(self, pool: Pool, place: int, allowances: tuple[Allowance, ...]) -> Admission:
        """Whether the tenant can keep what the pool's warm minimum takes beyond what counts for the pool already."""
        tenant = self._tree.nodes[place].tenant.name
        least = self._uses(pool.with_replicas(0))
        for measure, needed, (room, left) in zip(
            self._trees, least, self._rooms(pool, place, allowances), strict=True
        ):
            if room is not None and needed > room:
                need = f"{'the ' if measure == UNITS else ''}{measure_text(measure, needed)}"
                has = str(left) if measure == UNITS else measure_text(measure, left)
                message = f"tenant {tenant} cannot keep {need} of pool {pool.name}'s minUnits: it has {has} for the pool"
                return Admission(error=new_insufficient_resources(message, reason=REASON))
        return ADMITTED

    def status(self) -> tuple[TenantStatus, ...]:
        """The account of every tenant now, in the order of the configuration."""
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
        """The answer about a pool without a tenant that may own it."""
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
        return Accounts(self._trees, reserves_shares=self._args.reserve_fair_shares)

    def _count(self) -> None:
        """Bring the accounts to what the cache holds now."""
        cache = self._handle.cache
        pools, before = cache.pools(), self._pools
        unmet, unmet_before = cache.unmet_demand(), self._unmet
        self._pools, self._unmet = pools, unmet
        if pools is not before and not self._follow(before, pools):
            self._accounts, self._counted = self._new_accounts(), {}
            for pool in pools:
                self._set(pool)
        if unmet is not unmet_before:
            for pool in pools:
                if unmet.get(pool.name) != unmet_before.get(pool.name):
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
            and (not self._resources or pool.amount == before.amount)
            and pool.limits.min_units == before.limits.min_units
            and pool.compute_unit == before.compute_unit
            and pool.labels == before.labels
        )
        if not is_same:
            self._set(pool)

    def _set(self, pool: Pool) -> None:
        """Count a pool as it is now. A tenant that may own none is charged as well for those that it has."""
        before = self._counted.get(pool.name, self._absent)
        used, refused = self._uses(pool), self._unmet.get(pool.name, NOTHING)
        wanted = self._units(pool, pool.replicas + refused.units) if refused.units else used[0]
        unmet = wanted - used[0], *(refused.of(name) for name in self._resources)
        now = self._counted[pool.name] = _Counted(self._named(pool), used, unmet)
        if before.place is not None and before.place == now.place:
            self._accounts.add(
                before.place, map(sub, now.used, before.used), map(sub, now.unmet, before.unmet)
            )
            return
        if before.place is not None:
            self._take_away(before.place, before)
        if now.place is not None:
            self._accounts.add(now.place, now.used, now.unmet)

    def _take_away(self, place: int, counted: _Counted) -> None:
        self._accounts.add(place, (-used for used in counted.used), (-unmet for unmet in counted.unmet))

    def _uses(self, pool: Pool) -> tuple[int, ...]:
        """The use of each measure by a pool with these replicas and this amount, or its warm minimum where that is more."""
        units = self._units(pool, pool.replicas)
        if not self._resources:
            return (units,)
        amount = pool.amount.max(pool.compute_unit * pool.limits.min_units)
        return units, *(amount_of(amount, name) for name in self._resources)

    def _units(self, pool: Pool, replicas: int) -> int:
        """The units of the quota that cover so many replicas of a pool, or its warm minimum if that is more."""
        return (pool.compute_unit * max(replicas, pool.limits.min_units)).units(self._unit)

    def _allowances_without(
        self, counted: _Counted, place: int, wanted: tuple[int, ...] | None
    ) -> tuple[Allowance, ...]:
        """The allowances of a tenant when a pool that still counts as another one's is gone from there."""
        assert counted.place is not None
        self._take_away(counted.place, counted)
        try:
            return self._accounts.allowances(place, wanted)
        finally:
            self._accounts.add(counted.place, counted.used, counted.unmet)

    # ------------------------------------------------------------ what is said

    def _why(self, pool: Pool, place: int, allowance: Allowance, cap: int) -> str:
        assert allowance.units is not None
        tenant = self._tree.nodes[place].tenant.name
        units = max(0, allowance.units - self._accounts.used(place)[0])
        left = texts.counted(units, "unit")
        bound, bounding = allowance.bound_units, self._tree.nodes[allowance.place].tenant.name
        match allowance.binding, allowance.place == place:
            case BoundBy.LIMIT, True:
                why = f"has {units} of its {texts.counted(bound, 'unit')} left"
            case BoundBy.LIMIT, False:
                why = f"has {left} left of the {bound} that {bounding} may use"
            case BoundBy.FAIR_SHARE, True:
                why = f"has {left} left of the {bound} that are its guarantee and fair share"
            case BoundBy.FAIR_SHARE, False:
                why = f"has {left} left of the {bound} that are {bounding}'s guarantee and fair share"
            case _:
                why = f"has {left} left: others use the {bound} of {bounding}, or are guaranteed them"
        return f"tenant {tenant} {why}; {cap} of {texts.counted(pool.replicas, 'replica')} {'fits' if cap == 1 else 'fit'}"

    def _why_amount(self, resource: str, place: int, allowance: Allowance, room: int) -> str:
        """Why no more of a resource is admitted, for people."""
        assert allowance.units is not None
        used = self._accounts.used(place)[self._accounts.measures.index(resource)]
        tenant, bounding = self._tree.nodes[place].tenant.name, self._tree.nodes[allowance.place].tenant.name
        left = measure_text(resource, max(0, allowance.units - used))
        bound = measure_text(resource, allowance.bound_units)
        match allowance.binding:
            case BoundBy.LIMIT:
                of = f"left of the {bound} that {bounding} may use"
            case BoundBy.FAIR_SHARE:
                of = f"left of the {bound} that are the guarantee and fair share of {bounding}"
            case _:
                of = f"left: others use the {bound} of {bounding}, or are guaranteed them"
        return f"tenant {tenant} has {left} {of}; the pool may have {measure_text(resource, room)}"


def _replicas_within(units: int, own: Resources, unit: Resources) -> int:
    """The largest number of a pool's units `own` that so many units of the quota cover."""
    return min(units * unit.vcpu_milli // own.vcpu_milli, units * unit.memory_bytes // own.memory_bytes)


def factory(handle: Handle, providers: ProviderSet, args: Args) -> QuotaPlugin:
    """Make the plugin. Raises `FaultsError` with every fault of the args."""
    return QuotaPlugin(handle, check(args, QuotaArgs))
