"""Polls agents for the state of their VMs: a loop for each agent, over any way to them."""

import asyncio
import random
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Final, Generic, Protocol, Self, TypeAlias, TypeVar

import msgspec

from hosting.backoff import Backoff
from parley.reach.asking import decoded
from parley.reach.ports import Got, NoAnswer, Reach
from parley.reach.ways import path_of
from protocol.agent_pages import AgentVms, VmInFull, read
from protocol.explaining import Document, Nodes

PERIOD_S: Final = 2.0
RETRY: Final = Backoff(base_s=1.0, cap_s=20.0)
MAX_AGENTS: Final = 64
"""One screen can follow as many, and an API server does not notice."""

D = TypeVar("D", bound=Document)


@dataclass(frozen=True, slots=True)
class Heard(Generic[D]):
    """A usable answer."""

    document: D


@dataclass(frozen=True, slots=True)
class Missed:
    """No usable answer: the reason, the number of failures in a row, and the wait before the next try (None: there is none)."""

    fault: str
    failures: int
    retry_s: float | None


News: TypeAlias = Heard[D] | Missed
Pause: TypeAlias = Callable[[float], Awaitable[None]]


class DocumentSource(Protocol):
    """The source of the view's documents. Both calls go on until they are cancelled."""

    @property
    def agents(self) -> tuple[str, ...]:
        """The agents' addresses."""

    async def watch(self, show: Callable[[str, News[AgentVms]], None]) -> None:
        """Show the documents of all agents, again and again."""

    async def follow(self, agent: str, vm: str, show: Callable[[News[VmInFull]], None]) -> None:
        """Show the document of one VM of `agent`, again and again."""

    async def nodes(self, show: Callable[[News[Nodes]], None]) -> None:
        """Show the document of `/v1/nodes` of the scheduler that leads, again and again."""


class NoAgentsError(Exception):
    """There is nothing to show; the message is for people."""


def chosen(agents: tuple[str, ...], globs: tuple[str, ...]) -> tuple[str, ...]:
    """The agents whose names match one of `globs`; all if there are none. Raises `NoAgentsError` if none matches."""
    found = tuple(each for each in agents if not globs or any(fnmatchcase(each, glob) for glob in globs))
    if not found:
        raise NoAgentsError(f"no node with an agent matches {', '.join(globs)}")
    return found


def within(document: AgentVms, namespace: str | None) -> AgentVms:
    """An agent's document with what is in one namespace; None for all."""
    if namespace is None:
        return document
    inside = f"{namespace}/"
    return msgspec.structs.replace(
        document,
        vms=tuple(each for each in document.vms if each.vm.startswith(inside)),
        not_scaled=tuple(each for each in document.not_scaled if each.vm.startswith(inside)),
    )


async def vms_of(reach: Reach, agent: str) -> AgentVms | NoAnswer:
    answer = await reach.agent(agent, "/v1/vms")
    return decoded(answer, AgentVms, read) if isinstance(answer, Got) else answer


class ReachSource:
    """The agents of a `Reach`, within `async with`, which raises `NoAgentsError`."""

    def __init__(
        self,
        way: AbstractAsyncContextManager[Reach],
        globs: tuple[str, ...] = (),
        namespace: str | None = None,
        *,
        period_s: float = PERIOD_S,
        rng: random.Random | None = None,
        pause: Pause = asyncio.sleep,
    ) -> None:
        """`globs` name the agents, all without any; `namespace` that of the VMs, None for all. An agent is asked every `period_s`, a scheduler five times less
        often. `pause` waits between two calls."""
        self.agents: tuple[str, ...] = ()
        self._way = way
        self._globs = globs
        self._namespace = namespace
        self._period_s = period_s
        self._rng = rng or random.Random()
        self._pause = pause
        self._reach: Reach | None = None
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> Self:
        async with AsyncExitStack() as stack:
            self._reach = reach = await stack.enter_async_context(self._way)
            agents = await reach.agents()
            if isinstance(agents, NoAnswer):
                raise NoAgentsError(agents.fault)
            self.agents = chosen(agents, self._globs)
            if len(self.agents) > MAX_AGENTS:
                raise NoAgentsError(
                    f"at most {MAX_AGENTS} nodes can be shown together, and there are {len(self.agents)}: choose some with --node"
                )
            self._stack = stack.pop_all()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()

    async def watch(self, show: Callable[[str, News[AgentVms]], None]) -> None:
        """Show the documents of all agents; each is asked at its own pace."""

        async def one(agent: str) -> None:
            async def ask(reach: Reach) -> AgentVms | NoAnswer:
                found = await vms_of(reach, agent)
                return found if isinstance(found, NoAnswer) else within(found, self._namespace)

            await self._poll(ask, lambda news: show(agent, news), self._period_s)

        async with asyncio.TaskGroup() as tasks:
            for agent in self.agents:
                tasks.create_task(one(agent), name=f"top {agent}")

    async def follow(self, agent: str, vm: str, show: Callable[[News[VmInFull]], None]) -> None:
        """Show the document of one VM of `agent`."""
        path = path_of(vm)
        if path is None:
            show(Missed("an agent cannot be asked for a VM of this name", 1, None))
            return

        async def ask(reach: Reach) -> VmInFull | NoAnswer:
            answer = await reach.agent(agent, f"/v1/vms/{path}")
            return decoded(answer, VmInFull, read) if isinstance(answer, Got) else answer

        await self._poll(ask, show, self._period_s)

    async def nodes(self, show: Callable[[News[Nodes]], None]) -> None:
        """Show what the scheduler that leads says of its nodes."""

        async def ask(reach: Reach) -> Nodes | NoAnswer:
            answer = await reach.scheduler("/v1/nodes")
            return decoded(answer, Nodes) if isinstance(answer, Got) else answer

        await self._poll(ask, show, 5 * self._period_s)

    async def _poll(
        self,
        ask: Callable[[Reach], Awaitable[D | NoAnswer]],
        show: Callable[[News[D]], None],
        period_s: float,
    ) -> None:
        assert self._reach is not None, "use `async with ReachSource(...)`"
        loop, failures = asyncio.get_running_loop(), 0
        while True:
            began_s = loop.time()
            answer = await ask(self._reach)
            if isinstance(answer, NoAnswer):
                failures += 1
                wait_s = period_s + RETRY.delay_s(failures, self._rng.random())
                show(Missed(answer.fault, failures, wait_s))
            else:
                failures = 0
                show(Heard(answer))
                wait_s = max(began_s + period_s - loop.time(), 0.1)
            await self._pause(wait_s)
