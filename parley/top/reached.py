"""The view's documents through a `Reach`: agents by their names, behind an API server that others use, too."""

import asyncio
import random
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from dataclasses import replace
from fnmatch import fnmatchcase
from typing import Any, Final, Self

from hosting.backoff import Backoff
from parley.reach.ports import Answered, Got, NoAnswer, Reach
from parley.top import details
from parley.top.model import MAX_VMS
from parley.top.source import Heard, Missed, News, Pause
from parley.top.texts import items, mapping

PERIOD_S: Final = 2.0
NODES_S: Final = 10.0
RETRY: Final = Backoff(base_s=1.0, cap_s=20.0)
MAX_AGENTS: Final = 64
"""What one screen can follow, and an API server does not notice."""


class NoAgentsError(Exception):
    """There is nothing to show; the message is for people."""


def chosen(agents: tuple[str, ...], globs: tuple[str, ...]) -> tuple[str, ...]:
    """The agents whose names match one of `globs`; all where there are none. Raises `NoAgentsError` where none matches."""
    found = tuple(each for each in agents if not globs or any(fnmatchcase(each, glob) for glob in globs))
    if not found:
        raise NoAgentsError(f"no node with an agent matches {', '.join(globs)}")
    return found


def within(document: Mapping[str, Any], namespace: str | None) -> Mapping[str, Any]:
    """An agent's document with what is in one namespace; None for all. What names no VM stays, so that it is told of."""
    if namespace is None:
        return document

    def inside(key: str) -> list[Any]:
        return [
            each for each in items(document.get(key), MAX_VMS) if _is_in(mapping(each).get("vm"), namespace)
        ]

    return {**document, "vms": inside("vms"), "notScaled": inside("notScaled")}


def _is_in(vm: object, namespace: str) -> bool:
    return not isinstance(vm, str) or vm.startswith(f"{namespace}/")


def vms_of(answer: Answered) -> Answered:
    """An agent's document, which names VMs; a fault where it does not."""
    if isinstance(answer, Got) and not isinstance(answer.document.get("vms"), list):
        return NoAnswer(f"{answer.peer}: its answer names no VMs")
    return answer


class ReachSource:
    """The agents of a `Reach`, within `async with`, which raises `NoAgentsError`. See `source.DocumentSource`."""

    def __init__(
        self,
        way: AbstractAsyncContextManager[Reach],
        globs: tuple[str, ...] = (),
        namespace: str | None = None,
        *,
        rng: random.Random | None = None,
        pause: Pause = asyncio.sleep,
    ) -> None:
        """`globs` name the agents, all without any; `namespace` that of the VMs, None for all. `pause` waits between two calls."""
        self.agents: tuple[str, ...] = ()
        self._way = way
        self._globs = globs
        self._namespace = namespace
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

    async def watch(self, show: Callable[[str, News], None]) -> None:
        """Show the documents of all agents; each is asked at its own pace."""

        async def one(agent: str) -> None:
            async def ask(reach: Reach) -> Answered:
                answer = vms_of(await reach.agent(agent, "/v1/vms"))
                if isinstance(answer, NoAnswer):
                    return answer
                return replace(answer, document=within(answer.document, self._namespace))

            await self._poll(ask, lambda news: show(agent, news), PERIOD_S)

        async with asyncio.TaskGroup() as tasks:
            for agent in self.agents:
                tasks.create_task(one(agent), name=f"top {agent}")

    async def follow(self, agent: str, vm: str, show: Callable[[News], None]) -> None:
        """Show the document of one VM of `agent`."""
        path = details.path(vm)
        if path is None:
            show(Missed("an agent cannot be asked for a VM of this name", 1, None))
            return
        await self._poll(lambda reach: reach.agent(agent, path), show, PERIOD_S)

    async def nodes(self, show: Callable[[News], None]) -> None:
        """Show what the scheduler that leads says of its nodes."""
        await self._poll(lambda reach: reach.scheduler("/v1/nodes"), show, NODES_S)

    async def _poll(
        self, ask: Callable[[Reach], Awaitable[Answered]], show: Callable[[News], None], period_s: float
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
                show(Heard(answer.document))
                wait_s = max(began_s + period_s - loop.time(), 0.1)
            await self._pause(wait_s)
