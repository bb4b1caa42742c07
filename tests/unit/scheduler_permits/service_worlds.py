"""The world of the tests of the permit service: a service around one core, whose pools and cluster do what a test wants.

Tests run in virtual time: when nothing is left to do, the clock jumps to the next timer.
"""

import asyncio
import json
from collections import Counter
from collections.abc import Awaitable, Callable, Collection
from typing import Any
from uuid import UUID

from hosting.routes import answered
from hosting.server import HangUp, Reply, Request
from protocol.reasons import Reason, ReasonCode
from protocol.values import Bounds, Observation
from protocol.wire import PodName
from scheduler.permits.core import events
from scheduler.permits.core.core import Core
from scheduler.permits.core.events import PoolVerdict
from scheduler.permits.core.ledger import Cause
from scheduler.permits.core.model import NodeSpec, PoolSpec, VmSpec
from scheduler.permits.core.state import SchedulerConfig, VmRecord
from scheduler.permits.service.service import PermitService
from scheduler.permits.service.transport import BatchService, PermitTransport
from scheduler.ports import Journal, LeadershipGuard, Migrator, NotLeadingError
from tests.support.amounts import GIB, UNIT, cu
from tests.support.virtual_time import now_s, turns
from tests.unit.hosting.raw_peers import recorded

INSTANCE = UUID(int=5)


class FakePools:
    """A pool that says what `behaviour` says; at first it waits until `verdict` is set."""

    def __init__(self) -> None:
        self.asked: list[events.AdmissionCallNeeded] = []
        self.ended = 0
        self.at_once: PoolVerdict | None = None
        """The answer within the call, as plugins that only compute give it."""
        self.tasks: dict[int, asyncio.Task[None]] = {}
        self.verdict: asyncio.Future[Any] | None = None
        self.behaviour: Callable[[events.AdmissionCallNeeded], Awaitable[Any]] = self._wait

    def call_admission(
        self, needed: events.AdmissionCallNeeded, deadline_s: float, answer: Callable[[PoolVerdict], object]
    ) -> None:
        self.asked.append(needed)
        if self.at_once is not None:
            answer(self.at_once)
            return
        task = asyncio.create_task(self._answer(needed, deadline_s, answer))
        self.tasks[needed.ticket] = task
        task.add_done_callback(lambda _: self.tasks.pop(needed.ticket, None))

    async def _answer(
        self, needed: events.AdmissionCallNeeded, deadline_s: float, answer: Callable[[PoolVerdict], object]
    ) -> None:
        try:
            async with asyncio.timeout_at(deadline_s):
                verdict: PoolVerdict = await self.behaviour(needed)
        except TimeoutError:
            verdict = PoolVerdict(0, Reason(ReasonCode.POOL_FAILED, "the pool did not answer in time"))
        finally:
            self.ended += 1
        answer(verdict)

    def applied(self, ticket: int) -> None:
        """The port."""

    def cancel(self, ticket: int) -> None:
        if ticket in self.tasks:
            self.tasks[ticket].cancel()

    async def close(self) -> None:
        tasks = list(self.tasks.values())
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    async def _wait(self, _: events.AdmissionCallNeeded) -> Any:
        if self.verdict is None:
            self.verdict = asyncio.get_running_loop().create_future()
        return await asyncio.shield(self.verdict)

    def answer_all(self, verdict: object) -> None:
        """Answer everybody who waits, and who will ask."""
        assert self.verdict is not None
        self.verdict.set_result(verdict)

    def answer_with(self, verdict: object) -> None:
        """Answer at once from now on."""

        async def answer(_: events.AdmissionCallNeeded) -> Any:
            return verdict

        self.behaviour = answer


class FakeCluster:
    """A cluster that shows `changes` once; `before` is awaited first."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self.changes: tuple[events.Input, ...] = ()
        self.reads = 0
        self.is_watched = False
        self.before: Callable[[], Awaitable[None]] | None = None

    def fails(self, fault: Exception | None) -> None:
        """From now on reads fail like this; None ends that."""

        async def fail() -> None:
            if fault is not None:
                raise fault

        self.before = fail

    async def refresh(self) -> tuple[events.Input, ...]:
        self.reads += 1
        if self.before is not None:
            await self.before()
        changes, self.changes = self.changes, ()
        return changes

    async def read(self, pods: Collection[PodName]) -> tuple[events.Input, ...]:
        del pods
        return await self.refresh()

    def look(self, pod: PodName) -> events.Look:
        """The port: what the core knows by now."""
        record = self._core.vms.find(pod)
        reading = record.reading if record is not None else None
        return events.Look(record is not None, reading, is_watched=self.is_watched)


LEADER = "http://10.0.0.9:10299"


class Guard:
    """Lets decisions be made until it is told otherwise."""

    def __init__(self) -> None:
        self.leads = True
        self.seen: list[int] = []

    def check(self, seen_epoch: int, witness: tuple[str, ...] | None = None) -> None:
        self.seen.append(seen_epoch)
        if not self.leads:
            raise NotLeadingError(LEADER)


class ServiceWorld:
    """A service with a node of `room` units, a pool that can be told what to say, and VMs `uid-<name>` of one unit."""

    def __init__(
        self,
        *names: str,
        pool: str | None = "bank",
        room: int = 20,
        core: type[Core] = Core,
        journal: Journal | None = None,
        migrator: Migrator | None = None,
        guard: LeadershipGuard | None = None,
    ) -> None:
        self.core = core(SchedulerConfig(INSTANCE, is_first_start=True, published_agents=("*",)))
        self.pools, self.cluster = FakePools(), FakeCluster(self.core)
        log, self.lines = recorded()
        self.service = PermitService(
            self.core, self.cluster, now_s, log, journal, self.pools, migrator, guard=guard
        )
        self.transport = PermitTransport(self.service)
        self.batches = BatchService(self.service, self.core.vms)
        self.core.apply(events.NodeSeen(NodeSpec("n1", cu(room), UNIT)))
        self.core.apply(events.PoolSeen(PoolSpec("bank", UNIT)))
        for name in names:
            self.core.apply(seen(name, pool=pool))

    @property
    def answers(self) -> Counter[tuple[str, str]]:
        return self.service.stats.answers

    def record(self, name: str = "a") -> VmRecord:
        found = self.core.vms.find(PodName(name, "d"))
        assert found is not None
        return found

    async def post(self, body: bytes, *, header: bool = False) -> Reply | HangUp:
        headers = {"parley-agent": str(UUID(int=1))} if header else {}
        return await answered(self.transport.serve(Request("POST", "/", body, headers)))

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
        assert self.service._effects._tasks == set()
        assert self.core.state.admission_calls == {}
        assert self.core.audit() == []
        return not any(
            floor.cause is Cause.PENDING for row in self.core.ledger.rows() for floor in row.state.floors
        )


def seen(
    name: str, *, pool: str | None = "bank", most: int = 8, is_new: bool = True, has_size: bool = True
) -> events.VmSeen:
    spec = VmSpec(PodName(name, "d"), f"uid-{name}", "n1", Bounds(UNIT, cu(most)), GIB, UNIT, pool=pool)
    return events.VmSeen(spec, Observation(UNIT, UNIT, 0.0) if has_size else None, 0.0, is_new=is_new)


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
    assert isinstance(got, Reply), got
    return got.status, json.loads(got.body)["code"]
