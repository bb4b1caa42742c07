"""The world of the tests of pools: a service around one core, the real queue and objects, and a plugin that does
what a test wants, in virtual time."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

from hosting.server import HangUp, Reply
from protocol.values import Observation
from protocol.wire import PodName
from scheduler.permits.core import events
from scheduler.permits.core.ledger import Cause
from scheduler.permits.core.model import POOL_LABEL
from scheduler.pools.chain.calls import PoolStats
from scheduler.pools.chain.manager import PluginManager
from scheduler.pools.chain.objects import PoolObjects, PoolStore
from scheduler.pools.chain.plugin import BasePlugin, Plugin
from scheduler.pools.core.admission_state import PoolRecord
from scheduler.pools.core.errors import new_insufficient_resources
from scheduler.pools.core.values import ADMITTED, Admission, Context, Pods, Pool, PoolLimits, Purpose
from tests.support.amounts import cu
from tests.support.virtual_time import now_s, turns
from tests.unit.scheduler_permits.service_worlds import ServiceWorld, ask, permit, seen

Says: TypeAlias = Callable[[Context, Pool], Any]
"""A plugin's word on a probe: an admission, an error to raise is raised by it, or something to await."""


@dataclass(frozen=True, slots=True)
class Question:
    """A probe as a plugin has heard it. `names` are those who ask, `members` all VMs of the pool."""

    at_s: float
    pool: str
    replicas: int
    names: tuple[str, ...]
    members: tuple[str, ...]
    ctx: Context
    pods: Pods


class Doorman(BasePlugin):
    """Admits pools up to `most` units, after `delay_s`; `says` takes its place, `writes` answers the other hooks."""

    def __init__(self, most: int = 10**6, delay_s: float = 0.0, label: str = "doorman") -> None:
        self.most = most
        self.delay_s = delay_s
        self.label = label
        self.says: Says | None = None
        self.writes: Callable[[str, Context, Pool], Any] = lambda *_: ADMITTED
        self.heard: list[Question] = []
        self.written: list[tuple[str, Pool]] = []
        self.running = 0
        self.is_stopped = False
        self.asked_in_vain = 0

    def name(self) -> str:
        return self.label

    def stop(self) -> None:
        self.is_stopped = True

    @property
    def replicas(self) -> list[int]:
        """The number of replicas in each question."""
        return [question.replicas for question in self.heard]

    def pre_create_pool(self, ctx: Context, pool: Pool) -> Any:
        self.written.append(("create", pool))
        return self.writes("create", ctx, pool)

    def pre_delete_pool(self, ctx: Context, pool: Pool) -> Any:
        self.written.append(("delete", pool))
        return self.writes("delete", ctx, pool)

    def pre_update_pool(self, ctx: Context, new_pool: Pool, pods: Pods) -> Any:
        if ctx.purpose is not Purpose.PROBE:
            self.written.append(("update", new_pool))
            return self.writes("update", ctx, new_pool)
        self.asked_in_vain += self.is_stopped
        names = tuple(each.pod.name for each in ctx.requests)
        members = tuple(sorted(each.pod.name for each in pods))
        self.heard.append(
            Question(round(now_s(), 3), new_pool.name, new_pool.replicas, names, members, ctx, pods)
        )
        if self.says is not None:
            return self.says(ctx, new_pool)
        return self._slowly(new_pool) if self.delay_s else self._judged(new_pool)

    def _judged(self, pool: Pool) -> Admission:
        if pool.replicas > self.most:
            raise new_insufficient_resources(f"no room for {pool.replicas}")
        return ADMITTED

    async def _slowly(self, pool: Pool) -> Admission:
        self.running += 1
        try:
            await asyncio.sleep(self.delay_s)
            return self._judged(pool)
        finally:
            self.running -= 1


def raises(error: BaseException) -> Says:
    def say(ctx: Context, pool: Pool) -> Admission:
        raise error

    return say


def hangs(ctx: Context, pool: Pool) -> Any:
    return asyncio.sleep(10_000)


async def _deaf(until_s: float) -> Admission:
    while now_s() < until_s:
        try:
            await asyncio.sleep(until_s - now_s())
        except asyncio.CancelledError:
            continue
    return ADMITTED


@dataclass
class MemoryStore:
    """A store in memory. `fault` is raised, and while `gate` is closed a save waits."""

    saved: list[tuple[PoolRecord, ...]] = field(default_factory=list)
    fault: OSError | None = None
    gate: asyncio.Event | None = None
    saving: int = 0
    most_saving: int = 0

    @property
    def pools(self) -> dict[str, Pool]:
        """The pools that are kept now."""
        return {entry.pool.name: entry.pool for entry in self.saved[-1]} if self.saved else {}

    async def save(self, entries: tuple[PoolRecord, ...]) -> None:
        work = asyncio.create_task(self._save(entries), name="save")
        await asyncio.shield(work)  # as the directory does it: a write that has begun is done

    async def _save(self, entries: tuple[PoolRecord, ...]) -> None:
        self.saving += 1
        self.most_saving = max(self.most_saving, self.saving)
        try:
            if self.gate is not None:
                await self.gate.wait()
            if self.fault is not None:
                raise self.fault
            self.saved.append(entries)
        finally:
            self.saving -= 1


class PoolWorld(ServiceWorld):
    """A service with the real queue and objects around one node of `room` units."""

    def __init__(self, *plugins: Plugin, room: int = 1000, store: PoolStore | None = None) -> None:
        super().__init__(room=room)
        self.core.apply(events.PoolGone("bank"))
        self.stats = PoolStats()
        self.objects = PoolObjects(self.core, self.service.take, now_s, self.service._log, self.stats, store)
        self.queue = self.objects.admission_queue
        self.service._effects._pools = self.queue
        self.use(*plugins)

    def use(self, *plugins: Plugin) -> None:
        """Another chain from now on."""
        self.manager = PluginManager(*plugins, log=self.service._log, watch=self.stats)
        self.objects.use(self.manager)

    async def open(self, *names: str, most: int | None = None, units: int = 1) -> "PoolWorld":
        for name in names or ("bank",):
            await self.objects.create(Pool(name, cu(units), PoolLimits(most)))
        return self

    async def change(self, name: str = "bank", **changes: Any) -> Pool:
        """Update a pool: another generation."""
        pool = await self.objects.get(name)
        return await self.objects.update(replace(pool, **changes) if changes else _touched(pool))

    def born(self, *names: str, units: int = 1, pool: str | None = "bank", most: int = 100) -> None:
        for name in names:
            event = seen(name, pool=pool, most=most)
            labels = ((POOL_LABEL, pool),) if pool is not None else ()
            vm = replace(event.vm, labels=labels)
            self.service.take(replace(event, vm=vm, reading=Observation(cu(units), cu(units), 0.0)))

    def shows(self, name: str, units: int) -> None:
        reading = Observation(cu(units), cu(units), now_s())
        self.service.take(events.VmSeen(self.record(name).spec, reading, now_s()))

    def relabelled(self, name: str, pool: str | None) -> None:
        spec = self.record(name).spec
        self.service.take(events.VmSeen(replace(spec, pool=pool), self.record(name).reading, now_s()))

    def gone(self, name: str) -> None:
        self.service.take(events.VmGone(PodName(name, "d"), f"uid-{name}", now_s()))

    def held(self, name: str) -> int:
        """The units of a VM's permit."""
        return self.record(name).row.state.current.vcpu_milli // 1000

    def units(self, pool: str = "bank") -> int:
        account = self.core.ledger.pool(pool)
        return account.units if account is not None else 0

    def body(self, name: str, cpus: int, number: int | None = None) -> bytes:
        """The next request of a VM, or the one of that number."""
        gate = self.record(name).gate
        following = gate.last + 1 if number is None else number
        return ask(name, cpus, following, claim=min(self.held(name), cpus))

    async def grow(self, name: str, cpus: int) -> tuple[int, list[str]]:
        """Ask, and wait for the permit and the codes of its reasons."""
        return permit(await self.reply(self.body(name, cpus)))

    async def growing(self, name: str, cpus: int) -> asyncio.Task[Reply | HangUp]:
        """Ask, and let it come as far as it can."""
        return await self.begin(self.body(name, cpus))

    def is_pending(self) -> bool:
        """Whether anything is kept for somebody who waits."""
        rows = self.core.ledger.rows()
        return any(floor.cause is Cause.PENDING for row in rows for floor in row.state.floors)

    async def clean(self) -> bool:
        """Nobody waits, nothing runs on behalf of a pool, the accounts are right."""
        found = await self.is_clean()
        assert (self.queue._pending, self.queue._busy, self.queue._runs) == ({}, set(), {})
        assert [queue.name for queue in self.queue._queues.values() if queue or queue.alone] == []
        return found


def _touched(pool: Pool) -> Pool:
    return replace(pool, annotations={**pool.annotations, "touched": str(pool.generation)})


async def until(at_s: float) -> None:
    """Let the time pass to `at_s` since the loop's beginning."""
    await asyncio.sleep(max(at_s - now_s(), 0.0))
    await turns()
