"""Migrations: who is asked, what becomes of it, and when it is tried again.

The world of these tests serves their neighbours, too: a service around one core, a pool and a migrator that can be told
what to do, in virtual time: when nothing is left to do, the clock jumps to the next timer.
"""

import asyncio
import json
from collections import Counter
from collections.abc import Awaitable, Callable, Collection
from dataclasses import replace
from itertools import pairwise
from typing import Any
from uuid import UUID

import pytest

from hosting.server import HangUp, Reply, Request
from protocol.reasons import Reason, ReasonCode
from protocol.values import Bounds, Observation, Resources
from protocol.wire import PodName
from scheduler.core import events
from scheduler.core.core import Core
from scheduler.core.ledger import Cause
from scheduler.core.model import Migration, NodeSpec, PoolSpec, VmSpec
from scheduler.core.rules import DEFAULT_RULES
from scheduler.core.state import SchedulerConfig
from scheduler.core.vms import VmRecord
from scheduler.ports import Journal, Migrator, MigratorError
from scheduler.service.batch import BatchService
from scheduler.service.permits import PermitService
from tests.support.virtual_time import now_s, turns, virtually
from tests.unit.hosting.raw_peers import recorded

GIB = 2**30
INSTANCE = UUID(int=5)
Word = events.PoolVerdict


def cu(count: int) -> Resources:
    """So many units."""
    return Resources(1000 * count, GIB * count)


class Bank:
    """A pool that says what `behaviour` says; at first it waits until `word` is set."""

    def __init__(self) -> None:
        self.asked: list[events.AdmissionCallNeeded] = []
        self.ended = 0
        self.at_once: Word | None = None
        """The answer within the call, as plugins that only compute give it."""
        self.tasks: dict[int, asyncio.Task[None]] = {}
        self.word: asyncio.Future[Any] | None = None
        self.behaviour: Callable[[events.AdmissionCallNeeded], Awaitable[Any]] = self._wait

    def call_admission(
        self, needed: events.AdmissionCallNeeded, deadline_s: float, answer: Callable[[Word], object]
    ) -> None:
        """The port."""
        self.asked.append(needed)
        if self.at_once is not None:
            answer(self.at_once)
            return
        task = asyncio.create_task(self._answer(needed, deadline_s, answer))
        self.tasks[needed.ticket] = task
        task.add_done_callback(lambda _: self.tasks.pop(needed.ticket, None))

    async def _answer(
        self, needed: events.AdmissionCallNeeded, deadline_s: float, answer: Callable[[Word], object]
    ) -> None:
        try:
            async with asyncio.timeout_at(deadline_s):
                word: Word = await self.behaviour(needed)
        except TimeoutError:
            word = Word(0, Reason(ReasonCode.POOL_FAILED, "the bank did not answer in time"))
        finally:
            self.ended += 1
        answer(word)

    def applied(self, ticket: int) -> None:
        """The port."""

    def cancel(self, ticket: int) -> None:
        """The port."""
        if ticket in self.tasks:
            self.tasks[ticket].cancel()

    async def close(self) -> None:
        """The port."""
        tasks = list(self.tasks.values())
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    async def _wait(self, _: events.AdmissionCallNeeded) -> Any:
        if self.word is None:
            self.word = asyncio.get_running_loop().create_future()
        return await asyncio.shield(self.word)

    def say(self, word: object) -> None:
        """Answer everybody who waits, and who will ask."""
        assert self.word is not None
        self.word.set_result(word)

    def says(self, word: object) -> None:
        """Answer at once from now on."""

        async def answer(_: events.AdmissionCallNeeded) -> Any:
            return word

        self.behaviour = answer


class Sight:
    """A cluster that shows `changes` once; `before` is awaited first."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self.changes: tuple[events.Input, ...] = ()
        self.reads = 0
        self.before: Callable[[], Awaitable[None]] | None = None

    async def refresh(self) -> tuple[events.Input, ...]:
        """The port."""
        self.reads += 1
        if self.before is not None:
            await self.before()
        changes, self.changes = self.changes, ()
        return changes

    async def read(self, pods: Collection[PodName]) -> tuple[events.Input, ...]:
        """The port."""
        del pods
        return await self.refresh()

    def look(self, pod: PodName) -> events.Look:
        """The port: what the core knows by now."""
        record = self._core.vms.find(pod)
        return events.Look(record is not None, record.reading if record is not None else None)


class House:
    """A service with a node of `room` units, a pool that can be told what to say, and VMs `uid-<name>` of one unit."""

    def __init__(
        self,
        *names: str,
        pool: str | None = "bank",
        room: int = 20,
        core: type[Core] = Core,
        journal: Journal | None = None,
        migrator: Migrator | None = None,
    ) -> None:
        self.core = core(SchedulerConfig(INSTANCE, is_first_start=True, published_agents=("*",)))
        self.bank, self.sight = Bank(), Sight(self.core)
        log, self.lines = recorded()
        self.service = PermitService(self.core, self.sight, now_s, log, journal, self.bank, migrator)
        self.batches = BatchService(self.service, self.core.vms)
        self.core.apply(events.NodeSeen(NodeSpec("n1", cu(room), cu(1))))
        self.core.apply(events.PoolSeen(PoolSpec("bank", cu(1))))
        for name in names:
            self.core.apply(seen(name, pool=pool))

    @property
    def answers(self) -> Counter[tuple[str, str]]:
        """How requests were answered."""
        return self.service.stats.answers

    def record(self, name: str = "a") -> VmRecord:
        """What the core knows of a VM."""
        found = self.core.vms.find(PodName(name, "d"))
        assert found is not None
        return found

    async def post(self, body: bytes, *, header: bool = False) -> Reply | HangUp:
        """Send one request."""
        headers = {"parley-agent": str(UUID(int=1))} if header else {}
        return await self.service.serve(Request("POST", "/", body, headers))

    async def reply(self, body: bytes) -> Reply:
        """Send one request that is answered."""
        got = await self.post(body)
        assert isinstance(got, Reply)
        return got

    async def begin(self, body: bytes) -> asyncio.Task[Reply | HangUp]:
        """Send one request, and let it come as far as it can."""
        task = asyncio.create_task(self.post(body))
        await turns()
        return task

    async def is_clean(self) -> bool:
        """Nobody waits, nothing is pending, the accounts are right."""
        await turns()
        assert len(self.service._waiting) == 0
        assert self.service._effects._tasks == {}
        assert self.core.state.admission_calls == {}
        assert self.core.audit() == []
        return not any(
            floor.cause is Cause.PENDING for row in self.core.ledger.rows() for floor in row.state.floors
        )


def seen(
    name: str, *, pool: str | None = "bank", most: int = 8, is_new: bool = True, has_size: bool = True
) -> events.VmSeen:
    """The cluster shows a VM of one unit."""
    spec = VmSpec(PodName(name, "d"), f"uid-{name}", "n1", Bounds(cu(1), cu(most)), GIB, cu(1), pool=pool)
    return events.VmSeen(spec, Observation(cu(1), cu(1), 0.0) if has_size else None, 0.0, is_new=is_new)


def plain(name: str, cpus: int) -> bytes:
    """A request without the extension."""
    slots = {"vCPUs": cpus, "mem": cpus}
    pod = {"name": name, "namespace": "d"}
    return json.dumps({"protoVersion": 2, "pod": pod, "resources": slots, "metrics": None}).encode()


def ask(name: str, cpus: int, number: int = 1, claim: int = 1, **changes: Any) -> bytes:
    """A request with the extension that names this process."""
    raw = {
        "resources": {"cpu": str(cpus), "memory": f"{cpus}Gi"},
        "lastPermit": {"cpu": str(claim), "memory": f"{claim}Gi"},
        "computeUnit": {"cpu": "1", "memory": "1Gi"},
    }
    content = {
        **json.loads(plain(name, cpus)),
        "agentID": str(UUID(int=1)),
        "agentStartedAtMs": 1,
        "podUID": f"uid-{name}",
        "sequenceNumber": number,
        "seenEpoch": 0,
        "schedulerInstance": str(INSTANCE),
        "raw": raw,
    }
    return json.dumps({**content, **changes}).encode()


def permit(got: object) -> tuple[int, list[str]]:
    """The CPUs of a permit, and the codes of its reasons."""
    assert isinstance(got, Reply), got
    content = json.loads(got.body)
    assert got.status == 200, content
    return int(content["raw"]["permit"]["cpu"]), [reason["code"] for reason in content["reasons"]]


def refusal(got: object) -> tuple[int, str]:
    """The status and the code of an error."""
    assert isinstance(got, Reply), got
    return got.status, json.loads(got.body)["code"]


# ---------------------------------------------------------------- migrations


class Mover:
    """A migrator that does what `behaviour` says."""

    def __init__(self, behaviour: Callable[[events.MigrationWanted], Awaitable[None]]) -> None:
        self.wanted: list[tuple[str, float]] = []
        self.behaviour = behaviour

    async def start(self, wanted: events.MigrationWanted) -> None:
        """The port."""
        self.wanted.append((wanted.pod.name, now_s()))
        await self.behaviour(wanted)


async def _starts(_: events.MigrationWanted) -> None:
    await asyncio.sleep(0)


async def _hangs(_: events.MigrationWanted) -> None:
    await asyncio.sleep(1000)


def _fails(error: BaseException) -> Callable[[events.MigrationWanted], Awaitable[None]]:
    async def fail(_: events.MigrationWanted) -> None:
        raise error

    return fail


def crowded(mover: Mover | None, *names: str) -> House:
    """A node whose VMs `names` may leave at once, and migration switched on."""
    house = House(migrator=mover)
    for name in names:
        event = seen(name, pool=None)
        house.core.apply(replace(event, vm=replace(event.vm, migration=Migration.ALWAYS)))
        house.record(name).load1 = 0.5
    house.service.take(events.Configured(replace(DEFAULT_RULES, migration_enabled=True)))
    return house


async def ticks(house: House, count: int) -> None:
    """So many seconds pass, each with a tick of the clock."""
    for _ in range(count):
        await asyncio.sleep(1.0)
        await house.service.tick()
        await turns()


@virtually
async def test_a_migration_is_started_once_and_counted() -> None:
    mover = Mover(_starts)
    house = crowded(mover, "a")
    await ticks(house, 20)
    assert [name for name, _ in mover.wanted] == ["a"]
    assert house.record().row.state.migrating
    assert house.service.stats.migrations == {"started": 1}
    assert [line["event"] for line in house.lines] == ["migration started"]
    assert permit(await house.reply(ask("a", 4))) == (1, ["migrating"])
    assert await house.is_clean()


@virtually
async def test_one_vm_of_a_node_after_the_other_leaves() -> None:
    mover = Mover(_hangs)
    house = crowded(mover, "a", "b")
    await ticks(house, 3)
    assert [name for name, _ in mover.wanted] == ["a"], "the first one is still being started"
    mover.behaviour = _starts
    await ticks(house, 200)
    assert {name for name, _ in mover.wanted} == {"a", "b"}
    assert house.service.stats.migrations == {"failed": 1, "started": 2}
    assert await house.is_clean()


@virtually
async def test_a_migration_that_hangs_is_given_up_after_five_seconds() -> None:
    mover = Mover(_hangs)
    house = crowded(mover, "a")
    await ticks(house, 5)
    assert house.service.stats.migrations == {}
    await ticks(house, 2)
    assert house.service.stats.migrations == {"failed": 1}
    assert not house.record().is_leaving
    assert not house.record().row.state.migrating
    (line,) = house.lines
    assert (line["event"], line["error"]) == ("migration failed to start", "not started in time")
    assert await house.is_clean()


FAILURES = {
    "as the port says": (MigratorError("no other node"), "no other node"),
    "without a word": (MigratorError(), "MigratorError()"),
    "otherwise": (RuntimeError("the adapter is broken"), "the adapter is broken"),
    "with a task of its own that was cancelled": (asyncio.CancelledError(), "CancelledError()"),
}


@pytest.mark.parametrize(("error", "told"), FAILURES.values(), ids=FAILURES)
@virtually
async def test_a_migration_that_fails_is_told_and_changes_nothing(error: BaseException, told: str) -> None:
    house = crowded(Mover(_fails(error)), "a")
    before = house.record().row.state
    await ticks(house, 1)
    assert house.record().row.state == before
    assert not house.record().is_leaving
    assert [(line["event"], line["error"]) for line in house.lines] == [("migration failed to start", told)]
    assert house.service.stats.migrations == {"failed": 1}
    assert await house.is_clean()


@virtually
async def test_failures_are_tried_again_less_and_less_often() -> None:
    mover = Mover(_fails(MigratorError("no")))
    house = crowded(mover, "a")
    await ticks(house, 600)
    times = [at_s for _, at_s in mover.wanted]
    waits = [after - before for before, after in pairwise(times)]
    assert 5 <= waits[0] <= 11, "half of ten seconds to all of them, and the next tick"
    assert all(30 <= wait <= 61 for wait in waits[3:]), waits
    assert house.service.stats.migrations == {"failed": len(times)}


@virtually
async def test_after_a_success_the_next_failure_waits_as_short_as_the_first_one() -> None:
    mover = Mover(_fails(MigratorError("no")))
    house = crowded(mover, "a")
    await ticks(house, 600)
    mover.behaviour = _starts
    await ticks(house, 61)
    assert house.record().row.state.migrating
    house.service.take(events.MigrationEnded("uid-a"))
    mover.behaviour = _fails(MigratorError("no"))
    mover.wanted.clear()
    await ticks(house, 20)
    first, second, *_ = [at_s for _, at_s in mover.wanted]
    assert second - first <= 11


@virtually
async def test_without_a_migrator_it_is_a_failure_and_said() -> None:
    house = crowded(None, "a")
    await ticks(house, 1)
    assert house.service.stats.migrations == {"failed": 1}
    assert [line["error"] for line in house.lines] == ["nothing here can migrate VMs"]
    assert await house.is_clean()


@virtually
async def test_a_vm_that_goes_while_its_migration_starts_is_no_fault() -> None:
    mover = Mover(_hangs)
    house = crowded(mover, "a")
    await ticks(house, 1)
    house.service.take(events.VmGone(PodName("a", "d"), "uid-a", now_s()))
    await ticks(house, 7)
    assert house.service.stats.migrations == {"failed": 1}
    assert house.core.audit() == []
    assert await house.is_clean()


@virtually
async def test_a_vm_that_comes_back_while_its_old_migration_starts_leaves_no_task_behind() -> None:
    mover = Mover(_hangs)
    house = crowded(mover, "a")
    await ticks(house, 3)
    house.service.take(events.VmGone(PodName("a", "d"), "uid-a", now_s()))
    event = seen("a", pool=None)
    reading = Observation(cu(1), cu(1), now_s() + 120)
    house.service.take(replace(event, vm=replace(event.vm, migration=Migration.ALWAYS)))
    house.service.take(replace(event, reading=reading, vm=replace(event.vm, migration=Migration.ALWAYS)))
    house.record().settled, house.record().load1 = True, 0.5
    await ticks(house, 3)
    assert len(mover.wanted) == 2
    assert len(house.service._effects._tasks) == 1, "the second one is still known after the first one ended"
    await house.service.close()


@virtually
async def test_close_ends_a_migration_that_is_being_started() -> None:
    house = crowded(Mover(_hangs), "a")
    await ticks(house, 1)
    await house.service.close()
    assert house.service.stats.migrations == {}
    assert await house.is_clean()
