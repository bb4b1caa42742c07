"""Pools, put together: the queue where growth waits, the objects, their state, and the chain as it is configured. One file outlives the process."""

import asyncio
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, Literal

import msgspec
from pydantic import Field

from hosting import files, server
from hosting.logs import Logger
from hosting.metrics import AnyFamily, Family, HistogramFamily
from hosting.settings import FaultsError, Settings, SettingsError, listed, parse_json
from hosting.threads import in_own_thread
from protocol.values import Resources
from scheduler.permits.core import events
from scheduler.permits.core.core import Core
from scheduler.permits.core.ledger import Ledger, PoolAccount
from scheduler.pools.api import PoolApi
from scheduler.pools.chain.admission_queue import PoolAdmissionQueue
from scheduler.pools.chain.calls import PoolStats
from scheduler.pools.chain.config import ChainConfig, PluginRegistry, build_chain, standard
from scheduler.pools.chain.manager import PluginManager, PluginStartError
from scheduler.pools.chain.objects import PoolObjects
from scheduler.pools.chain.placement_admission import PoolPlacementAdmission
from scheduler.pools.chain.plugin import PoolHandle
from scheduler.pools.core.admission_state import Parking, PoolAdmissionState, PoolRecord
from scheduler.pools.core.values import NOTHING, UNITS, Pool
from scheduler.pools.entry import WrittenPool, shown

FORMAT: Final = 1
_FILE: Final = "pools.json"


class _Parked(Settings):
    message: str
    plugin: str = ""


class _Stored(Settings):
    pool: WrittenPool
    parked: _Parked | None = None
    parked_vms: dict[str, _Parked] = Field(default_factory=dict)


class _File(Settings):
    format: Literal[1]
    chain: str
    pools: list[_Stored] = Field(default_factory=list)

    @classmethod
    def cross_faults(cls, data: object) -> list[str]:
        found = [each.get("pool") for each in listed(data, "pools") if isinstance(each, dict)]
        counts = Counter(str(each.get("name")) for each in found if isinstance(each, dict))
        return [f"pools: {name!r} is there {count} times" for name, count in counts.items() if count > 1]


class PoolStateFile:
    """The directory's pools. Holds its lock until `close`. Raises `OSError` where another scheduler uses it."""

    def __init__(self, directory: Path) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self._path = directory / _FILE
        self._lock = files.locked(directory, "another scheduler keeps its pools there")
        self._replacing = threading.Lock()
        self.chain = ""
        """The fingerprint of the plugins' configuration; parking holds only under the same one."""

    def load(self) -> tuple[tuple[PoolRecord, ...], str]:
        """The stored pools, and the chain under which they were stored. Raises `SettingsError` with every fault."""
        try:
            content = files.kept(self._path)
        except FileNotFoundError:
            return (), ""
        except OSError as error:
            raise SettingsError(self._path, [f"cannot be read: {error.strerror}"]) from None
        read = parse_json(self._path, content, _File)
        return tuple(_record(each) for each in read.pools), read.chain

    async def save(self, stored: tuple[PoolRecord, ...]) -> None:
        """Keep these and nothing else. Raises `OSError`; then what was kept before still is."""
        content = {
            "format": FORMAT,
            "chain": self.chain,
            "pools": [_written(record) for record in stored if record.is_stored],
        }
        text = msgspec.json.format(msgspec.json.encode(content), indent=1)
        work = in_own_thread(lambda: self._replace(text))
        await asyncio.shield(work)  # the caller may go away in the middle; the file is whole all the same

    def _replace(self, text: bytes) -> None:
        with self._replacing:  # nobody may wait for the one before any more, while it still writes
            files.replace(self._path, text)

    def close(self) -> None:
        self._lock.close()


def _record(stored: _Stored) -> PoolRecord:
    written = stored.pool
    pool = replace(
        written.pool(), uid=written.uid, generation=written.generation, is_deleting=written.deleting
    )
    parked = _parking(stored.parked, pool.generation) if stored.parked is not None else None
    vms = {uid: _parking(each, pool.generation) for uid, each in stored.parked_vms.items()}
    return PoolRecord(pool, is_stored=True, parked=parked, parked_vms=vms)


def _parking(parked: _Parked, generation: int) -> Parking:
    return Parking(generation, parked.message, parked.plugin)


def _written(record: PoolRecord) -> dict[str, Any]:
    written: dict[str, Any] = {"pool": shown(record.pool)}
    if record.parked is not None:
        written["parked"] = {"message": record.parked.message, "plugin": record.parked.plugin}
    if record.parked_vms:
        written["parkedVms"] = {
            uid: {"message": each.message, "plugin": each.plugin} for uid, each in record.parked_vms.items()
        }
    return written


RETRY_S: Final = 10.0
"""How long after pools of the file could not be taken up they are tried again."""


class PoolService:
    """One for each core. `tell` takes inputs to the core; `state_directory` None keeps nothing across restarts.
    Pools that `are_objects` of Kubernetes are kept there.

    Raises `OSError` where the directory cannot be used, or another scheduler uses it.
    """

    def __init__(
        self,
        core: Core,
        tell: Callable[[events.Input], object],
        clock: Callable[[], float],
        log: Logger,
        *,
        state_directory: Path | None = None,
        are_objects: bool = False,
        registry: Callable[[], PluginRegistry] = standard,
    ) -> None:
        self._ledger = core.ledger
        self._clock = clock
        self._log = log
        self._registry = registry
        self.stats = PoolStats()
        self._state = PoolStateFile(state_directory) if state_directory is not None else None
        self.objects = PoolObjects(core, tell, clock, log, self.stats, self._state)
        self.admission_queue = self.objects.admission_queue
        self._api = PoolApi(self.objects, core, clock, are_objects=are_objects)
        self._handle = PoolHandle(self.objects, self.objects, log.bind(part="pool plugin"))
        self._config = ChainConfig()
        self._manager = PluginManager()
        self.placement_admission = PoolPlacementAdmission(
            self._ledger, self.objects, lambda: self._manager, clock
        )
        self._ending: set[asyncio.Task[None]] = set()
        self._described: Mapping[str, Pool] | None = None
        self._faults: Mapping[str, str] = {}
        self._tried_s = 0.0
        self._beyond: dict[str, int] = {}

    def routes(self) -> tuple[server.Route, ...]:
        return self._api.routes()

    def view(self, name: str) -> Mapping[str, Any] | None:
        """A pool with its status, as `/v1/pools` shows it; None where there is none."""
        pool = self.objects.pool(name)
        return self._api.view(pool) if pool is not None else None

    @property
    def has_plugins(self) -> bool:
        """Whether hooks are asked about changes of pools."""
        return bool(self._manager.names)

    @property
    def faults(self) -> Mapping[str, str]:
        """Why pools were not taken up as they are described, by name."""
        return self._faults

    # ------------------------------------------------------------ the chain

    async def configure(self, config: ChainConfig, path: Path) -> None:
        """Build and start the chain that the file at `path` describes; it is in force when this returns.

        Raises `SettingsError` with every fault; then the chain before is still in force.
        """
        if config.fingerprint != self._config.fingerprint:
            try:
                manager = build_chain(config, self._registry(), self._handle, self._handle.log, self.stats)
            except FaultsError as error:
                raise SettingsError(path, error.faults) from error
            except ValueError as error:
                raise SettingsError(path, [f"pools.plugins: {error}"]) from error
            try:
                await manager.start(self._handle)
            except PluginStartError as error:
                await manager.stop_started()
                raise SettingsError(path, [f"pools.plugins: {error}"]) from error
            self._use(manager)
            self._log.info("pool plugins", chain=list(manager.names))
        self._config = config
        self.admission_queue.cooldown_s = config.cooldown_s
        if self._state is not None:
            self._state.chain = config.fingerprint

    def _use(self, manager: PluginManager) -> None:
        before, self._manager = self._manager, manager
        self.objects.use(manager)
        ending = asyncio.create_task(before.stop(), name="pool plugins before")
        self._ending.add(ending)
        ending.add_done_callback(self._ending.discard)

    # ------------------------------------------------------------ the pools

    def load(self, *, is_chain_known: bool = True) -> None:
        """Take up what a former process stored. Raises `SettingsError` with every fault.

        If the chain is not known, because the configuration has faults, nothing that is parked is forgotten.
        """
        if self._state is None:
            return
        stored, chain = self._state.load()
        self._state.chain = self._config.fingerprint
        self.objects.restore(stored, keep_parking=not is_chain_known or chain == self._config.fingerprint)
        if stored:
            self._log.info("pools restored", pools=len(stored))

    async def follow(self, described: Mapping[str, Pool]) -> None:
        """Bring the pools in line with the file, where it was read again; what failed is tried again after a while."""
        now_s = self._clock()
        if described is self._described and not (self._faults and now_s >= self._tried_s + RETRY_S):
            return
        self._described, self._tried_s = described, now_s
        faults = await self.objects.follow(described)
        for name, fault in faults.items():
            if self._faults.get(name) != fault:
                self._log.warning("pool not taken up as it is described", error=fault)
        self._faults = faults

    def excesses(self) -> Iterator[tuple[str, Resources, tuple[str, ...]]]:
        """Quotas whose pools hold more than their share: their names, by how much, and the UIDs of the VMs."""
        for excess in self._manager.excesses():
            accounts = [account for name in excess.pools if (account := self._ledger.pool(name)) is not None]
            uids = tuple(holder.uid for account in accounts for holder in account.rows)
            yield excess.quota, excess.amount, uids

    async def flush(self) -> None:
        """Store what is parked, where that has changed, and say which VMs came beyond a limit since the last time."""
        self._say_beyond()
        await self.objects.flush()

    def _say_beyond(self) -> None:
        """Nobody is asked about a VM that others placed, or that is labelled anew: that a limit is exceeded is only to be seen
        afterwards."""
        for account in self._ledger.pools():
            new = account.came_beyond - self._beyond.get(account.name, 0)
            if new > 0 and account.spec is not None:
                self._log.warning(
                    "VMs came into a pool beyond its limit; nothing grows there until it is at or below",
                    pool=account.name,
                    vms=new,
                    units=account.units,
                    limit=account.spec.max_units,
                )
        self._beyond = {account.name: account.came_beyond for account in self._ledger.pools()}

    async def close(self) -> None:
        """End what is under way, stop the plugins, store what is parked and free the directory."""
        await self.admission_queue.close()
        await self._manager.stop()
        if self._ending:
            await asyncio.wait(self._ending)
        await self.objects.flush()
        if self._state is not None:
            self._state.close()


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
