"""The pools as objects: created, updated and deleted through the hooks of the chain, described by a file or over the API.

A change is made in this order: the hooks are asked, the outcome is stored, the core is told. If the object was changed by
somebody else while the hooks were asked, they are asked again about the newer one, so a hook may see one update twice.
No lock is held while a hook runs: a plugin may write pools itself.
"""

import asyncio
import uuid
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final, Protocol, TypeVar

from hosting.logs import Logger
from scheduler.core import events
from scheduler.core.ledger import Ledger
from scheduler.core.model import PoolSpec
from scheduler.pools.chain.admission_queue import PoolAdmissionQueue
from scheduler.pools.chain.manager import PluginManager, pool_problem
from scheduler.pools.core.admission_state import Parking, PoolAdmissionState, message_of
from scheduler.pools.core.errors import AppError, bad_request, conflict, internal, not_found
from scheduler.pools.core.values import Admission, Context, Pods, Pool, Purpose

MAX_POOLS: Final = 1024
MAX_TRIES: Final = 4
MAX_AT_ONCE: Final = 64
"""Pools of the file whose hooks are asked at the same time."""
T = TypeVar("T")
_UPDATE: Final = Context(Purpose.UPDATE)


@dataclass(frozen=True, slots=True)
class Entry:
    """A pool and whose word on it counts: a *stored* one (written over the API, or to the state directory) goes before
    the file's. `parked` and `parked_vms` are filled in when it is stored."""

    pool: Pool
    is_stored: bool
    parked: Parking | None = None
    parked_vms: Mapping[str, Parking] = field(default_factory=dict)


class State(Protocol):
    """Where pools are kept across restarts."""

    async def save(self, entries: tuple[Entry, ...]) -> None:
        """Keep these and nothing else. Raises `OSError`; then what was kept before still is."""
        ...


class PoolObjects:
    """All pools of one process. `tell` takes inputs to the core. The `Client` and the `Cache` that plugins get."""

    def __init__(
        self,
        ledger: Ledger,
        tell: Callable[[events.Input], object],
        log: Logger,
        state: State | None = None,
    ) -> None:
        self._ledger = ledger
        self._tell = tell
        self._log = log
        self._state = state
        self._entries: dict[str, Entry] = {}
        self._writing = asyncio.Lock()
        self._described: dict[str, Pool] = {}
        """What the file said of the pools that follow it, as far as it was taken up."""
        self._ignored: dict[str, Pool] = {}
        """What the file says of pools that do not follow it."""
        self._file: Mapping[str, Pool] = {}
        """All that the file says."""
        self._manager = PluginManager()
        self._room: PoolAdmissionQueue | None = None
        self._unsaved = False
        self._by_name: dict[str, Pool] = {}
        """The pools with their replicas, as far as the ledger has not changed them since."""
        self._all: tuple[Pool, ...] | None = None

    def attach(self, room: PoolAdmissionQueue) -> None:
        """The room whose parking is stored with the pools."""
        self._room = room
        room.on_parking = self._parking_changed

    def use(self, manager: PluginManager) -> None:
        """The chain whose hooks are asked from now on."""
        self._manager = manager

    def plugin_statuses(self) -> list[tuple[str, object]]:
        """What each plugin of the chain shows of itself."""
        return self._manager.statuses()

    # ------------------------------------------------------------ reading

    def entry(self, name: str) -> Entry | None:
        """One pool as it is described."""
        return self._entries.get(name)

    def find(self, name: str) -> Pool | None:
        """One pool as it is described; its `replicas` are of no account."""
        entry = self._entries.get(name)
        return entry.pool if entry is not None else None

    def names(self) -> tuple[str, ...]:
        """Every name, sorted."""
        return tuple(sorted(self._entries))

    def pool(self, name: str) -> Pool | None:
        """One pool with its replicas as they are now."""
        entry = self._entries.get(name)
        return self._now(entry.pool) if entry is not None else None

    def pools(self) -> tuple[Pool, ...]:
        """All pools with their replicas as they are now, by name; one that is as before is the same object as before."""
        changed = self._ledger.take_changed_pools()
        if self._by_name.keys() != self._entries.keys():
            self._by_name = {name: self._now(self._entries[name].pool) for name in self.names()}
        else:
            for name in changed & self._by_name.keys():
                self._by_name[name] = self._now(self._entries[name].pool)
        if changed or self._all is None:
            self._all = tuple(self._by_name.values())
        return self._all

    def asked(self) -> Mapping[str, int]:
        """The most that each pool which is being asked about now may be given."""
        return self._room.asked() if self._room is not None else {}

    def claims(self) -> Mapping[str, int]:
        """What each pool was refused a short while ago beyond what it has."""
        return self._room.claiming.units() if self._room is not None else {}

    def members(self, name: str) -> Pods:
        """The VMs of a pool as they are now."""
        return self._room.members(name) if self._room is not None else ()

    def is_ignored_in_file(self, name: str) -> bool:
        """Whether the file describes the pool otherwise, and that does not count."""
        return name in self._ignored

    def _now(self, pool: Pool) -> Pool:
        account = self._ledger.pool(pool.name)
        units = account.units if account is not None else 0
        return pool if pool.replicas == units else pool.with_replicas(units)

    # ------------------------------------------------------------ the client's words

    async def get(self, name: str) -> Pool:
        """One pool with its replicas as they are now. Raises `AppError` (404)."""
        return self._now(self._require(name).pool)

    async def list(self) -> tuple[Pool, ...]:
        """All pools, by name."""
        return self.pools()

    async def create(self, pool: Pool, *, is_stored: bool = True) -> Pool:
        """Store a new pool as its hooks want it. Raises `AppError`: 409 for a taken name, or what a hook says."""
        self._check_new(pool.name)
        _check_sound(pool)
        wanted = replace(pool, uid=str(uuid.uuid4()), generation=1, replicas=0, is_deleting=False)
        said = await self._manager.pre_create_pool(Context(Purpose.CREATE), wanted)
        created = _accepted(said, wanted)
        return await _whole(self._store_new(created, is_stored=is_stored))

    async def _store_new(self, created: Pool, *, is_stored: bool) -> Pool:
        async with self._writing:
            self._check_new(created.name)
            await self._write(created.name, Entry(created, is_stored))
        self._log.info("pool created", pool=created.name, generation=1)
        return self._now(created)

    async def update(self, pool: Pool, *, is_stored: bool = True) -> Pool:
        """Store labels, annotations, finalizers, unit and limits of `pool` as the hooks want them.

        `generation` 0 overwrites whatever is there: the last writer wins. Raises `AppError`: 404, 409 where `generation` is not the latest one,
        or what a hook says. A pool that is being deleted goes when its last finalizer does.
        """
        _check_sound(pool)
        for tries in range(1, MAX_TRIES + 1):
            before = self._require(pool.name)
            if pool.generation not in (0, before.pool.generation):
                raise conflict(
                    f"pool {pool.name} has generation {before.pool.generation} by now, not {pool.generation}",
                )
            old = self._now(before.pool)
            wanted = replace(
                pool,
                uid=old.uid,
                generation=old.generation,
                replicas=old.replicas,
                is_deleting=old.is_deleting,
            )
            said = await self._manager.pre_update_pool(_UPDATE, wanted, self.members(pool.name))
            new = _accepted(said, wanted)
            is_last = tries == MAX_TRIES and pool.generation == 0
            replaced = await _whole(self._replace(before, new, is_stored=is_stored, overwrites=is_last))
            if replaced is not None:
                return replaced
        raise conflict(f"pool {pool.name} is being changed by others; try again")

    async def delete(self, name: str) -> None:
        """Delete a pool. What its hooks change is stored first, and while it has finalizers it stays, marked.

        Raises `AppError`: 404, or what a hook says.
        """
        for _ in range(MAX_TRIES):
            before = self._require(name)
            asked = self._now(before.pool)
            said = await self._manager.pre_delete_pool(Context(Purpose.DELETE), asked)
            kept = replace(_accepted(said, asked), is_deleting=True)
            if await _whole(self._replace(before, kept, is_stored=before.is_stored)) is not None:
                return
        raise conflict(f"pool {name} is being changed by others; try again")

    # ------------------------------------------------------------ what the file says

    async def follow(self, described: Mapping[str, Pool]) -> tuple[str, ...]:
        """Bring the pools in line with the file. The faults, one for each pool that could not be.

        A pool that is stored is governed by its stored description; where the file says otherwise that is logged once.
        """
        self._file = dict(described)
        self._ignored = {name: pool for name, pool in self._ignored.items() if name in described}
        # One that is being deleted is made anew once it has gone.
        kept = {name for name, entry in self._entries.items() if entry.pool.is_deleting}
        wanted = [(name, pool) for name, pool in described.items() if name not in kept]
        # A plugin that hangs holds many up at the same time, not one after the other.
        limit = asyncio.Semaphore(MAX_AT_ONCE)
        made = await asyncio.gather(
            *(_fault(limit, self._follow(name, pool), f"pool {name}") for name, pool in wanted)
        )
        over = [
            name
            for name, entry in self._entries.items()
            if not entry.is_stored and name not in described and not entry.pool.is_deleting
        ]
        gone = await asyncio.gather(
            *(_fault(limit, self.delete(name), f"pool {name} is no longer in the file") for name in over)
        )
        return tuple(fault for fault in (*made, *gone) if fault)

    async def _follow(self, name: str, pool: Pool) -> None:
        entry = self._entries.get(name)
        if entry is None:
            await self.create(pool, is_stored=self._state is not None)
            self._described[name] = pool
        elif not entry.is_stored:
            if self._described.get(name) != pool:
                await self.update(pool, is_stored=False)
                self._described[name] = pool
        else:
            self._compare(name)

    # ------------------------------------------------------------ storing

    def restore(self, entries: tuple[Entry, ...], *, keep_parking: bool) -> None:
        """What a former process stored. Its parking holds only where the chain is configured as it was."""
        for entry in entries:
            self._all = None
            self._entries[entry.pool.name] = replace(entry, is_stored=True, parked=None, parked_vms={})
            if not keep_parking and (entry.parked is not None or entry.parked_vms):
                self._unsaved = True
            self._tell(events.PoolSeen(_terms(entry.pool)))
            if keep_parking and self._room is not None:
                self._room.restore(entry.pool.name, entry.pool.generation, entry.parked, entry.parked_vms)

    async def flush(self) -> None:
        """Store what is parked, where that has changed. What fails is tried again the next time."""
        if self._unsaved and self._state is not None:
            await _whole(self._flush(self._state))

    async def _flush(self, state: State) -> None:
        async with self._writing:
            self._unsaved = False
            try:
                await state.save(self._snapshot(self._entries))
            except OSError as error:
                self._unsaved = True
                self._log.warning("pools not stored", error=error.strerror)

    def _parking_changed(self, name: str) -> None:
        del name
        self._unsaved = True

    async def _replace(
        self, before: Entry, new: Pool, *, is_stored: bool, overwrites: bool = False
    ) -> Pool | None:
        """Put `new` in the place of `before`; it goes where nothing holds its deletion any more. None where another one
        is in that place by now, unless that is the same pool with another description and `new` overwrites it."""
        async with self._writing:
            now = self._entries.get(new.name)
            if now is None:
                return None
            if now is not before:
                is_same = (now.pool.uid, now.pool.is_deleting) == (before.pool.uid, before.pool.is_deleting)
                if not (overwrites and is_same):
                    return None
                new = replace(new, generation=now.pool.generation)
            return await self._put(now, new, is_stored=is_stored)

    async def _put(self, before: Entry, new: Pool, *, is_stored: bool) -> Pool:
        name, stored = new.name, is_stored or before.is_stored
        if new.is_deleting and not new.finalizers:
            asked = replace(before.pool, replicas=new.replicas, is_deleting=True)
            if not before.pool.is_deleting and new != asked:
                # What the hooks of the deletion have changed counts, should the pool not go after all.
                marked = replace(new, generation=before.pool.generation + 1)
                await self._write(name, Entry(marked, stored))
            await self._write(name, None)
            self._log.info("pool deleted", pool=name)
            return self._now(new)
        if new != replace(before.pool, replicas=new.replicas):
            new = replace(new, generation=before.pool.generation + 1)
            self._log.info("pool updated", pool=name, generation=new.generation, deleting=new.is_deleting)
        await self._write(name, Entry(new, stored))
        if is_stored:
            self._described.pop(name, None)  # it does not follow the file any more
        self._compare(name)
        return self._now(new)

    def _compare(self, name: str) -> None:
        """Whether the file describes a stored pool otherwise; that is logged once."""
        entry, wanted = self._entries.get(name), self._file.get(name)
        if (
            entry is None
            or not entry.is_stored
            or wanted is None
            or self._described.get(name) == wanted
            or _same(entry.pool, wanted)
        ):
            self._ignored.pop(name, None)
        elif self._ignored.get(name) != wanted:
            self._ignored[name] = wanted
            self._log.warning(
                "pool is described otherwise in the file; the stored description counts",
                pool=name,
                stored_generation=entry.pool.generation,
            )

    async def _write(self, name: str, entry: Entry | None) -> None:
        """Keep, then apply, then tell the core. Where keeping fails nothing has happened."""
        entries = {other: kept for other, kept in self._entries.items() if other != name}
        if entry is not None:
            entries[name] = entry
        if self._state is not None:
            try:
                await self._state.save(self._snapshot(entries))
            except OSError as error:
                self._log.warning("pool not stored", pool=name, error=error.strerror or str(error))
                raise internal(f"pool {name} cannot be stored now", error) from error
        self._entries = entries
        self._all = None
        if entry is None:
            self._ignored.pop(name, None)
            self._described.pop(name, None)
            self._tell(events.PoolGone(name))
            if self._room is not None:
                self._room.forget(name)
        else:
            self._tell(events.PoolSeen(_terms(entry.pool)))
            if self._room is not None:
                self._room.claiming.wake()

    def _snapshot(self, entries: Mapping[str, Entry]) -> tuple[Entry, ...]:
        room = self._room
        if room is None:
            return tuple(entries.values())
        kept = []
        for name, entry in entries.items():
            now = room.standing_of(name)
            if now.generation != entry.pool.generation:  # an update that is just being stored ends it
                now = PoolAdmissionState()
            kept.append(replace(entry, parked=now.parked, parked_vms=dict(now.parked_vms)))
        return tuple(kept)

    def _require(self, name: str) -> Entry:
        entry = self._entries.get(name)
        if entry is None:
            raise not_found(f"there is no pool {name[:253]!r}")
        return entry

    def _check_new(self, name: str) -> None:
        if name in self._entries:
            raise conflict(f"pool {name} exists already")
        if len(self._entries) >= MAX_POOLS:
            raise bad_request(f"there are {MAX_POOLS} pools already, and no more are served")


async def _whole(work: Coroutine[Any, Any, T]) -> T:
    """Do what must not end in the middle, although whoever waits for it may go away."""
    task = asyncio.create_task(work, name="pools written")
    task.add_done_callback(lambda done: done.cancelled() or done.exception())
    return await asyncio.shield(task)


async def _fault(limit: asyncio.Semaphore, work: Coroutine[Any, Any, object], about: str) -> str:
    """What came of one of many; empty where nothing is wrong."""
    async with limit:
        try:
            await work
        except AppError as error:
            return f"{about}: {message_of(error)}"
    return ""


def _check_sound(pool: Pool) -> None:
    """Raises `AppError` for what the ledger cannot count by, or what could not be read again. Plugins write pools, too."""
    problem = pool_problem(pool)
    if problem:
        raise bad_request(f"pool {pool.name} cannot be stored: {problem}")


def _accepted(said: Admission, asked: Pool) -> Pool:
    """The pool as the hooks want it. Raises their refusal."""
    if said.error is not None:
        raise said.error
    return said.pool if said.pool is not None else asked


def _terms(pool: Pool) -> PoolSpec:
    return PoolSpec(
        pool.name,
        pool.compute_unit,
        pool.generation,
        pool.limits.max_units,
        pool.limits.max_units_per_vm,
        pool.is_deleting,
    )


def _same(one: Pool, other: Pool) -> bool:
    """Whether two descriptions say the same."""
    return (one.compute_unit, one.limits, one.labels, one.annotations, one.finalizers) == (
        other.compute_unit,
        other.limits,
        other.labels,
        other.annotations,
        other.finalizers,
    )
