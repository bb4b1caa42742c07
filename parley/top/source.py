"""Polls agents for the state of their VMs: a loop for each agent, with a deadline for each call and bounded answers."""

import asyncio
import random
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Protocol, Self, TypeAlias

from hosting import problems, tokens
from hosting.backoff import Backoff
from hosting.client import Answered, HttpClient, Outcome, Unanswered
from hosting.tls import Tls
from parley.top import details, texts

PERIOD_S: Final = 1.0
NODES_S: Final = 5.0
"""How often a scheduler is asked for its nodes."""
DEADLINE_S: Final = 5.0
MAX_ANSWER_BYTES: Final = 8 * 2**20
RETRY: Final = Backoff(base_s=0.5, cap_s=10.0)


@dataclass(frozen=True, slots=True)
class Heard:
    """A usable answer."""

    document: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Missed:
    """No usable answer: the reason, the number of failures in a row, and the wait before the next try (None: there is none)."""

    fault: str
    failures: int
    retry_s: float | None


News: TypeAlias = Heard | Missed
Pause: TypeAlias = Callable[[float], Awaitable[None]]


class DocumentSource(Protocol):
    """The source of the view's documents. Both calls go on until they are cancelled."""

    @property
    def agents(self) -> tuple[str, ...]:
        """The agents' addresses."""

    async def watch(self, show: Callable[[str, News], None]) -> None:
        """Show the documents of all agents, again and again."""

    async def follow(self, agent: str, vm: str, show: Callable[[News], None]) -> None:
        """Show the document of one VM of `agent`, again and again."""

    async def nodes(self, show: Callable[[News], None]) -> None:
        """Show the document of `/v1/nodes` of the scheduler that leads, again and again. Returns at once where no scheduler is known."""


class AgentPoller:
    """Polls agents, and schedulers for their nodes, over HTTP, within `async with`. Agents alone are shown the token. `pause` waits between
    two calls."""

    def __init__(
        self,
        agents: tuple[str, ...],
        token: str | None = None,
        tls: Tls | None = None,
        *,
        schedulers: tuple[str, ...] = (),
        rng: random.Random | None = None,
        pause: Pause = asyncio.sleep,
    ) -> None:
        self.agents = agents
        self._schedulers = schedulers
        self._headers = tokens.headers(token)
        self._rng = rng or random.Random()
        self._pause = pause
        self._client = HttpClient(max_answer_bytes=MAX_ANSWER_BYTES, tls=tls)

    async def __aenter__(self) -> Self:
        await self._client.__aenter__()
        return self

    async def __aexit__(self, *raised: object) -> None:
        await self._client.__aexit__(*raised)

    async def watch(self, show: Callable[[str, News], None]) -> None:
        """Show the documents of all agents; each is polled at its own pace."""

        async def one(agent: str) -> None:
            await self._poll(f"{agent}/v1/vms", vms_of, lambda news: show(agent, news))

        async with asyncio.TaskGroup() as tasks:
            for agent in self.agents:
                tasks.create_task(one(agent), name=f"top {agent}")

    async def follow(self, agent: str, vm: str, show: Callable[[News], None]) -> None:
        """Show the document of one VM of `agent`."""
        path = details.path(vm)
        if path is None:
            show(Missed("an agent cannot be asked for a VM of this name", 1, None))
            return
        await self._poll(f"{agent}{path}", _one_vm, show)

    async def nodes(self, show: Callable[[News], None]) -> None:
        """Show the sums of the first scheduler that tells them; the one that did is asked first the next time."""
        schedulers, failures = list(self._schedulers), 0
        while schedulers:
            found = await self._sums(schedulers)
            if found is None:
                failures += 1
                wait_s = NODES_S + RETRY.delay_s(failures, self._rng.random())
                show(Missed("no scheduler tells of its nodes", failures, wait_s))
            else:
                failures, wait_s = 0, NODES_S
                show(Heard(found))
            await self._pause(wait_s)

    async def _sums(self, schedulers: list[str]) -> Mapping[str, Any] | None:
        for url in tuple(schedulers):
            # Without the token, which is the agents': a scheduler wants none, and its address may be anybody's.
            outcome = await self._client.call("GET", f"{url}/v1/nodes", deadline_s=DEADLINE_S)
            if isinstance(outcome, Answered) and outcome.status == 200:
                found = texts.document(outcome.body)
                if found is not None:
                    schedulers.remove(url)
                    schedulers.insert(0, url)
                    return found
        return None

    async def _poll(
        self, url: str, read: Callable[[Outcome], Mapping[str, Any] | str], show: Callable[[News], None]
    ) -> None:
        loop, failures = asyncio.get_running_loop(), 0
        while True:
            began_s = loop.time()
            outcome = await self._client.call("GET", url, deadline_s=DEADLINE_S, headers=self._headers)
            found = read(outcome)
            if isinstance(found, str):
                failures += 1
                wait_s = RETRY.delay_s(failures, self._rng.random())
                show(Missed(found, failures, wait_s))
            else:
                failures = 0
                show(Heard(found))
                wait_s = max(began_s + PERIOD_S - loop.time(), 0.1)
            await self._pause(wait_s)


def vms_of(outcome: Outcome) -> Mapping[str, Any] | str:
    """The document of `/v1/vms`, or what went wrong."""
    found = _document(outcome)
    if isinstance(found, str) or isinstance(found.get("vms"), list):
        return found
    return "this is no agent: its answer names no VMs"


def _one_vm(outcome: Outcome) -> Mapping[str, Any] | str:
    if isinstance(outcome, Answered) and outcome.status == 404:
        return "the agent has no such VM"
    return _document(outcome)


def _document(outcome: Outcome) -> Mapping[str, Any] | str:
    match outcome:
        case Unanswered("too-large", message):
            return message
        case Unanswered(_, message):
            return f"no agent answers: {message}"
        case Answered(200, body, _):
            found = texts.document(body)
            return found if found is not None else "this is no agent: its answer is no JSON object"
        case Answered(401, _, _):
            return "the agent wants the token that it was started with (--token-file)"
        case Answered(403, body, _):
            said = texts.clean(problems.text_of(body))
            return f"the agent tells this to its own machine only: {said}"
        case Answered(status, _, _):
            return f"this is no agent: it answered with status {status}"
