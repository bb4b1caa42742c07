"""The pool plugin `elastic-quota`: pools share CPU and memory in a tree of quotas that lend each other what they do not use.

It keeps the growth of VMs within the rule by which the scheduling plugin `ElasticQuota` places pods (`scheduler.quotas`); the tree
comes from its args. A pool belongs to the quota of its name. It uses what its VMs hold, or its warm minimum where that is more, and asks for
that and what they were refused. If that leaves another pool more than its runtime, the VMs of that one are asked to shrink (`excesses`).

Growth is admitted as a cap of each resource: as far as the quota's runtime, and no further than the quotas above it, and all of them
together, have room beside what others use, because what is borrowed is given back only as VMs shrink. A pool may always have what it has.
The plugin computes only: it waits for nothing, and a probe changes nothing.
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Final

from pydantic import Field

from hosting.amounts import Cpu, Memory
from hosting.settings import Settings, check
from protocol.values import RESOURCE_NAMES, ZERO, Resources
from scheduler.pools.chain.plugin import Args, BasePlugin, Handle, ProviderSet
from scheduler.pools.core.errors import AppError, new_insufficient_resources, new_invalid_spec
from scheduler.pools.core.values import (
    ADMITTED,
    NOTHING,
    Admission,
    AmountCap,
    Context,
    Excess,
    Measures,
    Pods,
    Pool,
    Purpose,
    measure_text,
)
from scheduler.quotas.admission import QuotaAccount, QuotaRules
from scheduler.quotas.books import CountedPod, QuotaBooks
from scheduler.quotas.faults import quota_faults
from scheduler.quotas.tree import QuotaTree
from scheduler.quotas.values import BUILT_IN, ROOT, Amounts, QuotaPod, QuotaSpec, added

NAME: Final = "elastic-quota"
REASON: Final = "QuotaExhausted"
MAX_QUOTAS: Final = 4096


class QuotaAmounts(Settings):
    """CPU and memory; what is left out is 0 of `min` and `sharedWeight`, and not limited by `max`."""

    cpu: Annotated[int, Cpu] | None = None
    """CPUs."""
    memory: Annotated[int, Memory] | None = None
    """Memory."""

    def amounts(self) -> Amounts:
        return {name: getattr(self, name) for name in RESOURCE_NAMES if getattr(self, name) is not None}


class QuotaEntry(Settings):
    """A quota, with the fields of an ElasticQuota."""

    name: Annotated[str, Field(min_length=1, max_length=253)]
    """The name of the pool that the quota is for, or of one above others."""
    parent: Annotated[str, Field(min_length=1, max_length=253)] = ROOT
    """The quota above; left out, all quotas without one share `total`."""
    min: QuotaAmounts = QuotaAmounts()
    """The amounts that the quota is assured of."""
    max: QuotaAmounts = QuotaAmounts()
    """The most that it may use."""
    shared_weight: QuotaAmounts = QuotaAmounts()
    """Its part of what is lent; left out or 0, that is `max`."""
    allow_lent_resource: bool = True
    """Whether others may use what it does not ask for of its `min`."""

    def spec(self, is_parent: bool) -> QuotaSpec:
        return QuotaSpec(
            self.name,
            self.parent,
            min=self.min.amounts(),
            max=self.max.amounts(),
            weight=self.shared_weight.amounts(),
            lends=self.allow_lent_resource,
            is_parent=is_parent,
        )


class ElasticQuotaPoolArgs(Settings):
    """The parameters. `retryAfter` (seconds) is what pools that were cut are told to wait."""

    total: QuotaAmounts
    """The amounts that all quotas share; both are needed."""
    quotas: Annotated[list[QuotaEntry], Field(min_length=1, max_length=MAX_QUOTAS)]
    unknown_pool: Annotated[str, Field(pattern="^(refuse|admit)$")] = "refuse"
    """Whether pools without a quota of their name grow (`admit`); they count nowhere then."""
    retry_after_s: Annotated[float, Field(ge=0, allow_inf_nan=False)] | None = Field(None, alias="retryAfter")
    """Seconds that a pool which was cut is told to wait; left out, it is told none."""

    @classmethod
    def rules(cls, found: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
        """Both totals, names that are used once and not built in, and the rules between quotas (`scheduler.quotas.faults`)."""
        total: QuotaAmounts | None = found.get("total")
        for name in RESOURCE_NAMES:
            if total is not None and getattr(total, name) is None:
                yield f"total.{name}", "must be given"
        entries: list[QuotaEntry] = found.get("quotas", [])
        times = Counter(entry.name for entry in entries)
        faults = quota_faults(specs_of(entries), {}, frozenset())
        for index, entry in enumerate(entries):
            if entry.name in BUILT_IN:
                yield f"quotas.{index}.name", f"{entry.name} is built in"
            elif times[entry.name] > 1:
                yield f"quotas.{index}.name", f"{entry.name} is the name of {times[entry.name]} quotas"
            for fault in faults.get(("", entry.name), ()):
                yield f"quotas.{index}", fault.text


def specs_of(entries: list[QuotaEntry]) -> list[QuotaSpec]:
    """The quotas as the rule sees them: one with others below it is a parent."""
    parents = {entry.parent for entry in entries}
    return [entry.spec(entry.name in parents) for entry in entries]


class ElasticQuotaPools(BasePlugin):
    """The plugin. Pools are counted between calls; a call looks only at those that are other objects than before."""

    def __init__(self, handle: Handle, args: ElasticQuotaPoolArgs) -> None:
        self._handle, self._args = handle, args
        tree = QuotaTree(specs_of(args.quotas))
        self._names = frozenset(entry.name for entry in args.quotas if not tree.children(entry.name))
        self._total = args.total.amounts()
        self._books: QuotaBooks[Amounts] = QuotaBooks(QuotaRules(), lambda _: (), lambda total: total)
        self._books.use(tree)
        self._books.see({"total": self._total})
        self._seen: dict[str, tuple[Pool, Measures]] = {}

    def name(self) -> str:
        return NAME

    def limits_amounts(self, pool: Pool) -> bool:
        """Whether the pool has a quota."""
        return pool.name in self._names

    def pre_create_pool(self, ctx: Context, pool: Pool) -> Admission:
        """Refuses a pool without a quota, and a warm minimum that does not fit."""
        return self._judged(ctx, pool)

    def pre_update_pool(self, ctx: Context, new_pool: Pool, pods: Pods) -> Admission:
        """As `pre_create_pool`; growth is admitted as far as the rule allows."""
        return self._judged(ctx, new_pool)

    def excesses(self) -> list[Excess]:
        """Quotas that hold more than their runtime: others want back what these borrowed. One before those above it."""
        self._count()
        account, found = self._books.account(), []
        for name in reversed(account.tree.from_above):
            pools = tuple(pool for pool in self._seen if name in account.tree.path(pool))
            held = sum((self._seen[pool][0].amount for pool in pools), ZERO)
            limit = account.limit(name) if name not in BUILT_IN else {}
            over = {each: max(amount - limit.get(each, amount), 0) for each, amount in held.named()}
            excess = Resources(over["cpu"], over["memory"])
            if excess != ZERO:
                found.append(Excess(name, excess, pools))
        return found

    def status(self) -> list[dict[str, Any]]:
        """Every quota as it is now."""
        self._count()
        account = self._books.account()
        return [account.shown(name) for name in account.tree.from_above if name not in BUILT_IN]

    def _judged(self, ctx: Context, pool: Pool) -> Admission:
        if pool.name not in self._names:
            return ADMITTED if self._args.unknown_pool == "admit" else Admission(error=_no_quota(pool))
        is_probe = ctx.purpose is Purpose.PROBE
        wanted = _held(pool if is_probe else pool.with_replicas(0))
        held, account = self._with_request(pool.name, wanted)
        caps = tuple(self._caps(account, pool.name, held, wanted))
        if not caps:
            return ADMITTED
        if not is_probe:
            message = f"its warm minimum does not fit: {caps[0].message}"
            return Admission(error=new_insufficient_resources(message, reason=REASON))
        return Admission(retry_after_s=self._args.retry_after_s, amounts=caps)

    def _caps(self, account: QuotaAccount, name: str, held: Amounts, wanted: Amounts) -> Iterator[AmountCap]:
        """The resources of which the pool may not have all that is wanted, with the tightest quota on its path."""
        top = added(*(account.used[child] for child in account.tree.children(ROOT)))
        bounds: list[tuple[str, Amounts, Amounts]] = [
            (f"quota {at}", account.limit(at), account.used[at]) for at in account.tree.path(name)
        ]
        bounds.append(("all quotas together", self._total, top))
        for resource, amount in wanted.items():
            own = held.get(resource, 0)
            rooms = [
                (limit[resource] - used.get(resource, 0) + own, at, limit[resource], used.get(resource, 0))
                for at, limit, used in bounds
                if resource in limit
            ]
            room, at, most, used = min(rooms, key=lambda each: each[0])
            if amount > max(room, own):
                message = (
                    f"{at} may use {measure_text(resource, most)} now and {measure_text(resource, used)} is used; "
                    f"pool {name} may have {measure_text(resource, max(room, own))}"
                )
                yield AmountCap(resource, max(room, own), message, REASON)

    def _with_request(self, name: str, wanted: Amounts) -> tuple[Amounts, QuotaAccount]:
        """The amounts that the pool holds, and the account as if it asked for these and for nothing else."""
        self._count()
        pool, refused = self._seen.get(name, (None, NOTHING))
        held = _held(pool) if pool is not None else {}
        self._set(name, held, wanted)
        account = self._books.account()
        self._set(name, held, added(held, _amounts(refused.amount)))
        return held, account

    def _count(self) -> None:
        """Bring the books to what the cache holds now."""
        cache = self._handle.cache
        unmet, here = cache.unmet_demand(), dict[str, tuple[Pool, Measures]]()
        for pool in cache.pools():
            if pool.name in self._names:
                here[pool.name] = pool, unmet.get(pool.name, NOTHING)
        for name in self._seen.keys() - here.keys():
            self._books.reserve(name, None)
        for name, (pool, refused) in here.items():
            before = self._seen.get(name)
            if before is None or before[0] is not pool or before[1] != refused:
                held = _held(pool)
                self._set(name, held, added(held, _amounts(refused.amount)))
        self._seen = here

    def _set(self, name: str, held: Amounts, request: Amounts) -> None:
        counts = CountedPod(QuotaPod(name, name, held), name, "", request, held)
        self._books.reserve(name, counts)


def _held(pool: Pool) -> dict[str, int]:
    """What the pool's VMs hold, or its warm minimum where that is more."""
    return _amounts(pool.amount.max(pool.compute_unit * pool.limits.min_units))


def _amounts(amount: Resources) -> dict[str, int]:
    return dict(amount.named())


def _no_quota(pool: Pool) -> AppError:
    return new_invalid_spec(f"pool {pool.name} has no quota of its name, or one with others below it")


def factory(handle: Handle, providers: ProviderSet, args: Args) -> ElasticQuotaPools:
    """Make the plugin. Raises `FaultsError` with every fault of the args."""
    return ElasticQuotaPools(handle, check(args, ElasticQuotaPoolArgs))
