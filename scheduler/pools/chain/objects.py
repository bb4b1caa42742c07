"""The pools as objects: created, updated and deleted through the hooks of the chain, described by a file or over the API.

A change is made in this order: the hooks are asked, the outcome is stored, the core is told. If the object was changed by
somebody else while the hooks were asked, they are asked again about the newer one, so a hook may see one update twice.
No lock is held while a hook runs: a plugin may write pools itself.
"""

import asyncio
import uuid
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import replace
from typing import Any, Final, Protocol, TypeAlias, TypeVar

from hosting.logs import Logger
from protocol.values import ZERO
from scheduler.permits.core import events
from scheduler.permits.core.core import Core
from scheduler.permits.core.model import PoolSpec
from scheduler.pools.chain.admission_queue import PoolAdmissionQueue
from scheduler.pools.chain.calls import PoolStats
from scheduler.pools.chain.manager import PluginManager
from scheduler.pools.core import admission_state
from scheduler.pools.core.admission_state import Parking, PoolRecord, message_of
from scheduler.pools.core.errors import AppError, bad_request, conflict, internal, not_found
from scheduler.pools.core.values import Context, Pool, Purpose, described_as

MAX_POOLS: Final = 1024
MAX_TRIES: Final = 4
MAX_AT_ONCE: Final = 64
"""Pools of the file whose hooks are asked at the same time."""
T = TypeVar("T")
_ParkedByName: TypeAlias = dict[str, tuple[Parking | None, Mapping[str, Parking]]]


class PoolStore(Protocol):
    """The store of pools across restarts."""

    async def save(self, stored: tuple[PoolRecord, ...]) -> None:
        """Keep these and nothing else. Raises `OSError`; then what was kept before still is."""


class PoolObjects:
    """All pools of one process, and the queue where their growth waits. `tell` takes inputs to the core.

    Plugins get the pools as their `PoolClient` and their `Cache`. Without a `store` nothing is kept across restarts.
    """

    def __init__(
        self,
        core: Core,
        tell: Callable[[events.Input], object],
        clock: Callable[[], float],
        log: Logger,
        stats: PoolStats,
        store: PoolStore | None = None,
    ) -> None:
        self._ledger = core.ledger
        self._tell = tell
        self._log = log
        self._store = store
        queue = self.admission_queue = PoolAdmissionQueue(core.ledger, core.vms, self, clock, log, stats)
        self.asked, self.unmet_demand, self.members = queue.asked, queue.unmet_demand, queue.members
        self._manager = PluginManager()
        self._records: dict[str, PoolRecord] = {}
        self._writing = asyncio.Lock()
        self._file: Mapping[str, Pool] = {}
        """The pools as the file describes them."""
        self._described: dict[str, Pool] = {}
        """The file's description of the pools that follow it, as far as that was taken up."""
        self._ignored: dict[str, Pool] = {}
        """The file's description of pools that do not follow it."""
        self._saved_parking: _ParkedByName = {}
        """The parking as it was stored last."""
        self._by_name: dict[str, Pool] = {}
        """The pools with their replicas, as far as the ledger has not changed them since."""
        self._all: tuple[Pool, ...] | None = None

    def use(self, manager: PluginManager) -> None:
        """Another chain from now on. The core hears first where that limits amounts, so that nothing grows unasked."""
        self._manager = manager
        for record in self._records.values():
            account, spec = self._ledger.pool(record.pool.name), self._spec_of(record.pool)
            if account is None or account.spec != spec:
                self._tell(events.PoolSeen(spec))
        self.admission_queue.use(manager)

    def _spec_of(self, pool: Pool) -> PoolSpec:
        return admission_state.spec_of(pool, limits_amounts=self._manager.limits_amounts(pool))

    def plugin_statuses(self) -> list[tuple[str, object]]:
        return self._manager.statuses()

    # ------------------------------------------------------------ reading

    def find(self, name: str) -> Pool | None:
        """One pool as it is described; its `replicas` are of no account."""
        record = self._records.get(name)
        return record.pool if record is not None else None

    def names(self) -> tuple[str, ...]:
        return tuple(sorted(self._records))

    def pool(self, name: str) -> Pool | None:
        found = self.find(name)
        return self._now(found) if found is not None else None

    def pools(self) -> tuple[Pool, ...]:
        """All pools with their replicas as they are now, by name; one that is as before is the same object as before."""
        changed = self._ledger.take_changed_pools()
        if self._by_name.keys() != self._records.keys():
            self._by_name = {name: self._now(self._records[name].pool) for name in self.names()}
        else:
            for name in changed & self._by_name.keys():
                self._by_name[name] = self._now(self._records[name].pool)
        if changed or self._all is None:
            self._all = tuple(self._by_name.values())
        return self._all

    def is_ignored_in_file(self, name: str) -> bool:
        """Whether the file describes the pool otherwise, and that does not count."""
        return name in self._ignored

    def _now(self, pool: Pool) -> Pool:
        account = self._ledger.pool(pool.name)
        units, amount = (account.units, account.amount) if account is not None else (0, ZERO)
        is_same = pool.replicas == units and pool.amount == amount
        return pool if is_same else pool.with_replicas(units, amount)

    # ------------------------------------------------------------ what clients ask for

    async def get(self, name: str) -> Pool:
        return self._now(self._require(name).pool)

    async def list(self) -> tuple[Pool, ...]:
        return self.pools()

    async def create(self, pool: Pool, *, is_stored: bool = True) -> Pool:
        """Store a new pool as its hooks want it. Raises `AppError`: 409 for a taken name, or what a hook says."""
        self._check_new(pool.name)
        admission_state.check_sound(pool)
        wanted = replace(
            pool, uid=str(uuid.uuid4()), generation=1, replicas=0, amount=ZERO, is_deleting=False
        )
        said = await self._manager.pre_create_pool(Context(Purpose.CREATE), wanted)
        return await _whole(self._store_new(admission_state.accepted(said, wanted), is_stored=is_stored))

    async def _store_new(self, created: Pool, *, is_stored: bool) -> Pool:
        async with self._writing:
            self._check_new(created.name)
            await self._write(created.name, PoolRecord(created, is_stored))
        self._log.info("pool created", pool=created.name, generation=1)
        return self._now(created)

    async def update(self, pool: Pool, *, is_stored: bool = True) -> Pool:
        """Store labels, annotations, finalizers, unit and limits of `pool` as the hooks want them.

        `generation` 0 overwrites whatever is there: the last writer wins. Raises `AppError`: 404, 409 where `generation` is not the latest one,
        or what a hook says. A pool that is being deleted goes when its last finalizer does.
        """
        admission_state.check_sound(pool)
        for tries in range(1, MAX_TRIES + 1):
            before = self._require(pool.name)
            old = self._now(before.pool)
            if pool.generation not in (0, old.generation):
                message = f"pool {pool.name} has generation {old.generation} by now, not {pool.generation}"
                raise conflict(message)
            wanted = described_as(old, pool)
            said = await self._manager.pre_update_pool(
                Context(Purpose.UPDATE), wanted, self.members(pool.name)
            )
            new = admission_state.accepted(said, wanted)
            is_last = tries == MAX_TRIES and pool.generation == 0
            replaced = await _whole(self._replace(before, new, is_stored=is_stored, overwrites=is_last))
            if replaced is not None:
                return replaced
        raise conflict(f"pool {pool.name} is being changed by others; try again")

    async def delete(self, name: str) -> None:
        """Delete a pool. Changes by its hooks are stored first, and while it has finalizers it stays, marked.

        Raises `AppError`: 404, or what a hook says.
        """
        for _ in range(MAX_TRIES):
            before = self._require(name)
            asked = self._now(before.pool)
            said = await self._manager.pre_delete_pool(Context(Purpose.DELETE), asked)
            kept = replace(admission_state.accepted(said, asked), is_deleting=True)
            if await _whole(self._replace(before, kept, is_stored=before.is_stored)) is not None:
                return
        raise conflict(f"pool {name} is being changed by others; try again")

    # ------------------------------------------------------------ what the file says

    async def follow(self, described: Mapping[str, Pool]) -> dict[str, str]:
        """Bring the pools in line with the file. The faults by name, one for each pool that could not be.

        A pool that is stored is governed by its stored description; where the file says otherwise that is logged once.
        """
        self._file = dict(described)
        self._ignored = {name: pool for name, pool in self._ignored.items() if name in described}
        # One that is being deleted is made anew once it has gone.
        deleting = {name for name, record in self._records.items() if record.pool.is_deleting}
        wanted = [(name, pool) for name, pool in described.items() if name not in deleting]
        # A plugin that hangs holds many up at the same time, not one after the other.
        turns = asyncio.Semaphore(MAX_AT_ONCE)
        made = await asyncio.gather(
            *(_fault(turns, self._follow(name, pool), f"pool {name}") for name, pool in wanted)
        )
        over = [
            name
            for name, record in self._records.items()
            if not record.is_stored and name not in described and not record.pool.is_deleting
        ]
        gone = await asyncio.gather(
            *(_fault(turns, self.delete(name), f"pool {name} is no longer in the file") for name in over)
        )
        names = (*(name for name, _ in wanted), *over)
        return {name: fault for name, fault in zip(names, (*made, *gone), strict=True) if fault}

    async def _follow(self, name: str, pool: Pool) -> None:
        record = self._records.get(name)
        if record is not None and record.is_stored:
            self._compare(name)
            return
        if record is None:
            await self.create(pool, is_stored=self._store is not None)
        elif self._described.get(name) != pool:
            await self.update(pool, is_stored=False)
        self._described[name] = pool

    def _compare(self, name: str) -> None:
        """Whether the file describes a stored pool otherwise; that is logged once."""
        record, wanted = self._records.get(name), self._file.get(name)
        if (
            record is None
            or not record.is_stored
            or wanted is None
            or self._described.get(name) == wanted
            or described_as(record.pool, wanted) == record.pool
        ):
            self._ignored.pop(name, None)
        elif self._ignored.get(name) != wanted:
            self._ignored[name] = wanted
            self._log.warning(
                "pool is described otherwise in the file; the stored description counts",
                pool=name,
                stored_generation=record.pool.generation,
            )

    # ------------------------------------------------------------ storing

    def restore(self, stored: tuple[PoolRecord, ...], *, keep_parking: bool) -> None:
        """Take up what a former process stored. Its parking holds only where the chain is configured as it was."""
        self._all = None
        for record in stored:
            pool = record.pool
            if record.parked is not None or record.parked_vms:
                self._saved_parking[pool.name] = record.parked, record.parked_vms
            self._records[pool.name] = PoolRecord(pool, is_stored=True)
            self._tell(events.PoolSeen(self._spec_of(pool)))
            if keep_parking:
                self.admission_queue.restore(pool.name, pool.generation, record.parked, record.parked_vms)

    async def flush(self) -> None:
        """Store what is parked, where that has changed. A failed write is tried again the next time."""
        if self._store is not None and self._parking(self._records) != self._saved_parking:
            await _whole(self._flush(self._store))

    async def _flush(self, store: PoolStore) -> None:
        async with self._writing:
            try:
                await self._save(store, self._records)
            except OSError as error:
                self._log.warning("pools not stored", error=error.strerror)

    async def _replace(
        self, before: PoolRecord, new: Pool, *, is_stored: bool, overwrites: bool = False
    ) -> Pool | None:
        """Put `new` in the place of `before`. None where another one is there by now (`admission_state.rebased`)."""
        async with self._writing:
            now = self._records.get(new.name)
            rebased = admission_state.rebased(now, before, new, overwrites=overwrites)
            if now is None or rebased is None:
                return None
            for record in admission_state.writes(now, rebased, is_stored=is_stored):
                await self._write(new.name, record)
                if record is None:
                    self._log.info("pool deleted", pool=new.name)
                    return self._now(rebased)
                rebased = record.pool
            if rebased.generation != now.pool.generation:
                generation, deleting = rebased.generation, rebased.is_deleting
                self._log.info("pool updated", pool=new.name, generation=generation, deleting=deleting)
            if is_stored:
                self._described.pop(new.name, None)  # it does not follow the file any more
            self._compare(new.name)
            return self._now(rebased)

    async def _write(self, name: str, record: PoolRecord | None) -> None:
        """Keep, then apply, then tell the core. If keeping fails nothing has happened."""
        kept = {other: each for other, each in self._records.items() if other != name}
        if record is not None:
            kept[name] = record
        if self._store is not None:
            try:
                await self._save(self._store, kept)
            except OSError as error:
                self._log.warning("pool not stored", pool=name, error=error.strerror or str(error))
                raise internal(f"pool {name} cannot be stored now", error) from error
        self._records = kept
        self._all = None
        if record is None:
            self._ignored.pop(name, None)
            self._described.pop(name, None)
            self._tell(events.PoolGone(name))
            self.admission_queue.forget(name)
        else:
            self._tell(events.PoolSeen(self._spec_of(record.pool)))
            self.admission_queue.wake()

    async def _save(self, store: PoolStore, kept: Mapping[str, PoolRecord]) -> None:
        parking = self._parking(kept)
        nothing: tuple[Parking | None, Mapping[str, Parking]] = (None, {})
        snapshot = []
        for name, record in kept.items():
            parked, parked_vms = parking.get(name, nothing)
            snapshot.append(replace(record, parked=parked, parked_vms=parked_vms))
        await store.save(tuple(snapshot))
        self._saved_parking = parking

    def _parking(self, kept: Mapping[str, PoolRecord]) -> _ParkedByName:
        """The parking of these pools now. An update that is just being stored ends it."""
        states = ((record.pool, self.admission_queue.state_of(name)) for name, record in kept.items())
        return {
            pool.name: (state.parked, dict(state.parked_vms))
            for pool, state in states
            if state.is_parked and state.generation == pool.generation
        }

    def _require(self, name: str) -> PoolRecord:
        record = self._records.get(name)
        if record is None:
            raise not_found(f"there is no pool {name[:253]!r}")
        return record

    def _check_new(self, name: str) -> None:
        if name in self._records:
            raise conflict(f"pool {name} exists already")
        if len(self._records) >= MAX_POOLS:
            raise bad_request(f"there are {MAX_POOLS} pools already, and no more are served")


async def _whole(work: Coroutine[Any, Any, T]) -> T:
    """Do what must not end in the middle, although its caller may go away."""
    task = asyncio.create_task(work, name="pools written")
    task.add_done_callback(lambda done: done.cancelled() or done.exception())
    return await asyncio.shield(task)


async def _fault(turns: asyncio.Semaphore, work: Coroutine[Any, Any, object], about: str) -> str:
    """The fault of one of many; empty if there is none."""
    async with turns:
        try:
            await work
        except AppError as error:
            return f"{about}: {message_of(error)}"
    return ""
