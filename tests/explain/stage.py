"""Both sides of a situation on one virtual clock, and what each of them tells of the VM `shop/web`."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from agent.daemon import vm_pages
from hosting.server import Reply, Request
from parley.explain.core.lines import answer
from parley.explain.program import gather
from parley.reach.asking import read
from parley.reach.ports import Answered, NoAnswer
from tests.explain.agent_side import AgentSide
from tests.explain.scheduler_side import SchedulerSide
from tests.support.virtual_time import now_s
from tests.unit.scheduler_permits.service_worlds import plain

AGENT = "http://10.0.0.11:10300"
SCHEDULER = "http://10.0.0.1:10299"
HEARTBEAT_S = 10.0
READ_S = 2.0


class Stage:
    """A scheduler and the agent of `shop/web`. `told_agent` and `told_scheduler` are what answers in their place."""

    def __init__(self, scheduler: SchedulerSide, agent: AgentSide) -> None:
        self.scheduler = scheduler
        self.agent = agent
        self.told_agent: Answered | None = None
        self.told_scheduler: Answered | None = None
        self.runner: asyncio.Task[None]

    async def wait(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    async def until(self, is_so: Callable[[], bool], within_s: float = 400.0, step_s: float = 0.1) -> None:
        end_s = now_s() + within_s
        while not is_so():
            assert now_s() < end_s, f"not so after {within_s:g} s: {self.agent.document()}"
            await asyncio.sleep(step_s)

    async def settled(self) -> None:
        """The agent has a permit, its guest and its metrics, and nothing to do."""
        await self.until(lambda: self.agent.runner.state.scheduler.has_succeeded)
        await self.wait(12.0)

    async def grows_in_vain(self, cpus: int) -> None:
        """The load needs so many CPUs, and for some time they do not come."""
        await self.settled()
        self.agent.load(cpus)
        await self.wait(30.0)
        document = self.agent.document()
        assert document["state"] == "denied", document

    async def agent_ends(self, fault: str = "") -> None:
        """The agent's process ends; `fault` is what whoever calls it is told, empty where another one of its node answers."""
        self.runner.cancel()
        await asyncio.wait([self.runner])
        self.told_agent = NoAnswer(fault) if fault else told(vm_pages.not_here("shop/web"))

    async def published_agent_asks(self, units: int) -> None:
        """An agent without the extension asks for so many units of web, again and again."""
        for _ in range(3):
            body = json.loads(plain("web", units)) | {"pod": {"name": "web", "namespace": "shop"}}
            await self.scheduler.serve(Request("POST", "/", json.dumps(body).encode(), {}))
            await self.wait(5.0)

    async def _pass(self) -> None:
        """The clock of the scheduler, its reads of the cluster and the calls of the informant go on by themselves."""
        seconds = 0
        while True:
            await asyncio.sleep(1.0)
            seconds += 1
            await self.scheduler.tick()
            if seconds % READ_S == 0:
                self.scheduler.shows("web", self.agent.machine.seen())
            if seconds % HEARTBEAT_S == 0:
                self.agent.beat()

    async def lines(self) -> tuple[str, ...]:
        """The answer of `parley explain shop/web` now."""
        found = await gather(StageReach(self), "shop/web")
        return answer(found.evidence).lines


def told(reply: Reply) -> Answered:
    """An answer of the agent as the command has it."""
    return read(f"the agent at {AGENT}", reply.status, reply.body, token_hint="")


class StageReach:
    """The way to both sides of a stage, for the command: what they tell comes as bytes and statuses."""

    def __init__(self, stage: Stage) -> None:
        self._stage = stage

    async def scheduler(self, path: str) -> Answered:
        if self._stage.told_scheduler is not None:
            return self._stage.told_scheduler
        reply = await self._stage.scheduler.page(path)
        return read(f"the scheduler at {SCHEDULER}", reply.status, reply.body, token_hint=self.token_hint())

    async def agents(self) -> tuple[str, ...] | NoAnswer:
        """The one agent that there is."""
        return (AGENT,)

    async def agent(self, agent: str, path: str) -> Answered:
        assert (agent, path) == (AGENT, "/v1/vms/shop/web")
        if self._stage.told_agent is not None:
            return self._stage.told_agent
        page = json.dumps(self._stage.agent.document()).encode()
        return read(f"the agent at {AGENT}", 200, page, token_hint=self.token_hint())

    async def agent_of(self, node: str) -> str | None:
        """Not known."""
        del node
        return None

    def token_hint(self) -> str:
        """As with addresses."""
        return "with --token-file"


@asynccontextmanager
async def staged(
    scheduler: SchedulerSide,
    *,
    pool: str | None = None,
    shown: int = 2,
    shown_most: int | None = None,
    is_known: bool = True,
    is_new: bool = True,
    **agent: Any,
) -> AsyncIterator[Stage]:
    """Both sides at work, until the end of the block: the VM has `shown` units, and is in `pool`.

    The scheduler is told of a maximum of `shown_most` units, by default the agent's.
    """
    made = Stage(scheduler, AgentSide(scheduler.serve, size=shown, **agent))
    if is_known:
        most = made.agent.vm.bounds.max.vcpu_milli // 1000 if shown_most is None else shown_most
        scheduler.vm("web", shown, most=most, pool=pool, is_new=is_new)
    made.runner = runner = asyncio.create_task(made.agent.runner.run(), name="runner")
    clock = asyncio.create_task(made._pass(), name="clock of the stage")
    try:
        yield made
    finally:
        for task in (runner, clock):
            task.cancel()
        await asyncio.wait([runner, clock])
        await scheduler.close()
