"""What the scheduler tells of its pools and their plugins on `/metrics`. The names are listed in docs/reference/metrics.md."""

from collections import Counter
from collections.abc import Iterator, Mapping

from hosting.metrics import AnyFamily, Family, HistogramFamily
from scheduler.permits.core.ledger import Ledger, PoolAccount
from scheduler.pools.chain.admission_queue import PoolAdmissionQueue
from scheduler.pools.chain.stats import PoolStats
from scheduler.pools.core.admission_state import PoolAdmissionState
from scheduler.pools.core.values import NOTHING, UNITS


def pool_families(ledger: Ledger, queue: PoolAdmissionQueue, stats: PoolStats) -> Iterator[AnyFamily]:
    pools = [(account, queue.state_of(account.name)) for account in ledger.pools()]
    yield Family(
        "gauge",
        "parley_scheduler_pool_units",
        "Units of each pool: held by its VMs, its limit, beyond that, where its plugins have refused more, claimed",
        ("pool", "field"),
        tuple(
            ((account.name, field), units)
            for account, state in pools
            for field, units in _units(account, state, queue).items()
        ),
    )
    yield Family(
        "gauge",
        "parley_scheduler_pool_members",
        "VMs and pods that belong to the pool",
        ("pool",),
        tuple(((account.name,), len(account.rows)) for account, _ in pools),
    )
    yield Family(
        "gauge",
        "parley_scheduler_pool_state",
        "Pools that are named and not there, saturated, parked, or have parked VMs",
        ("pool", "state"),
        tuple(((account.name, flag), 1.0) for account, state in pools for flag in _flags(account, state)),
    )
    yield Family(
        "counter",
        "parley_scheduler_pool_came_beyond",
        "VMs that were born into the pool, or came by their label, beyond its limit",
        ("pool",),
        tuple(((account.name,), account.came_beyond) for account, _ in pools),
    )
    yield from _plugins(stats)


def _units(account: PoolAccount, state: PoolAdmissionState, queue: PoolAdmissionQueue) -> Mapping[str, int]:
    found = {"held": account.units}
    if account.spec is not None and account.spec.max_units is not None:
        found |= {"limit": account.spec.max_units, "beyond": account.excess_units}
    refusal, unmet = state.refused(UNITS), queue.unmet_demand().get(account.name, NOTHING)
    if refusal is not None:
        found["saturated"] = refusal.total
    return {**found, "claimed": unmet.units} if unmet.units else found


def _flags(account: PoolAccount, state: PoolAdmissionState) -> list[str]:
    flags = {
        "unknown": account.spec is None,
        "saturated": state.refused(UNITS) is not None,
        "parked": state.parked is not None,
        "vm-parked": bool(state.parked_vms),
    }
    return [flag for flag, holds in flags.items() if holds]


def _plugins(stats: PoolStats) -> Iterator[AnyFamily]:
    yield Family(
        "counter",
        "parley_scheduler_pool_probes",
        "Searches for what a pool's plugins admit, by outcome",
        ("pool", "outcome"),
        tuple(stats.probes.items()),
    )
    yield _by_pool(
        "parley_scheduler_pool_probe_calls", "Questions to the whole chain of plugins", stats.probe_calls
    )
    yield _by_pool("parley_scheduler_pool_partial", "Searches that admitted a part", stats.partial)
    yield Family(
        "counter",
        "parley_scheduler_plugin_calls",
        "Hooks of pool plugins by outcome",
        ("plugin", "hook", "outcome"),
        tuple(stats.calls.items()),
    )
    yield HistogramFamily(
        "parley_scheduler_plugin_seconds",
        "How long hooks of pool plugins took",
        tuple(((plugin,), durations.now()) for plugin, durations in stats.seconds.items()),
        ("plugin",),
    )


def _by_pool(name: str, text: str, counts: Counter[str]) -> Family:
    return Family("counter", name, text, ("pool",), tuple(((pool,), count) for pool, count in counts.items()))
