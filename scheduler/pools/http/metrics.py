"""What the scheduler tells of its pools and their plugins on `/metrics`. The names are listed in docs/operations.md."""

from collections.abc import Iterator

from hosting.metrics import AnyFamily, Family, HistogramFamily
from scheduler.core.ledger import Ledger
from scheduler.pools.chain.admission_queue import PoolAdmissionQueue
from scheduler.pools.chain.stats import PoolStats


def pool_families(ledger: Ledger, room: PoolAdmissionQueue, counts: PoolStats) -> Iterator[AnyFamily]:
    """Every metric of pools with its samples now."""
    units: list[tuple[tuple[str, ...], float]] = []
    members: list[tuple[tuple[str, ...], float]] = []
    beyond: list[tuple[tuple[str, ...], float]] = []
    states: list[tuple[tuple[str, ...], float]] = []
    for account in ledger.pools():
        name, standing = account.name, room.standing_of(account.name)
        units.append(((name, "held"), account.units))
        if account.spec is not None and account.spec.max_units is not None:
            units.append(((name, "limit"), account.spec.max_units))
            units.append(((name, "beyond"), account.excess_units))
        beyond.append(((name,), account.came_beyond))
        if standing.ceiling is not None:
            units.append(((name, "ceiling"), standing.ceiling.total))
        claimed = room.claiming.units().get(name)
        if claimed:
            units.append(((name, "claimed"), claimed))
        members.append(((name,), len(account.rows)))
        flags = {
            "unknown": account.spec is None,
            "saturated": standing.ceiling is not None,
            "parked": standing.parked is not None,
            "vm-parked": bool(standing.parked_vms),
        }
        states += [((name, state), 1.0) for state, holds in flags.items() if holds]
    yield Family(
        "gauge",
        "parley_scheduler_pool_units",
        "Units of each pool: held by its VMs, its limit, beyond that, above what its plugins refuse, claimed",
        ("pool", "field"),
        tuple(units),
    )
    yield Family(
        "gauge", "parley_scheduler_pool_members", "VMs that name the pool", ("pool",), tuple(members)
    )
    yield Family(
        "gauge",
        "parley_scheduler_pool_state",
        "Pools that are named and not there, saturated, parked, or have parked VMs",
        ("pool", "state"),
        tuple(states),
    )
    yield Family(
        "counter",
        "parley_scheduler_pool_came_beyond",
        "VMs that were born into the pool, or came by their label, beyond its limit",
        ("pool",),
        tuple(beyond),
    )
    yield from _plugins(counts)


def _plugins(counts: PoolStats) -> Iterator[AnyFamily]:
    yield Family(
        "counter",
        "parley_scheduler_pool_probes",
        "Searches for what a pool's plugins admit, by outcome",
        ("pool", "outcome"),
        tuple((key, float(value)) for key, value in counts.probes.items()),
    )
    yield Family(
        "counter",
        "parley_scheduler_pool_probe_calls",
        "Questions to the whole chain of plugins",
        ("pool",),
        tuple(((key,), float(value)) for key, value in counts.probe_calls.items()),
    )
    yield Family(
        "counter",
        "parley_scheduler_pool_partial",
        "Searches that admitted a part",
        ("pool",),
        tuple(((key,), float(value)) for key, value in counts.partial.items()),
    )
    yield Family(
        "counter",
        "parley_scheduler_plugin_calls",
        "Hooks of pool plugins by outcome",
        ("plugin", "hook", "outcome"),
        tuple((key, float(value)) for key, value in counts.calls.items()),
    )
    yield HistogramFamily(
        "parley_scheduler_plugin_seconds",
        "How long hooks of pool plugins took",
        tuple(((plugin,), durations.now()) for plugin, durations in counts.seconds.items()),
        ("plugin",),
    )
