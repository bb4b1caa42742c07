"""The way to schedulers and agents by their addresses."""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Final, Self

from hosting import tokens
from hosting.client import HttpClient, Unanswered
from hosting.tls import Tls
from parley.reach.answers import MAX_ANSWER_BYTES, leads, read
from parley.reach.ports import Answered, NoAnswer

DEADLINE_S: Final = 5.0
BY_OPTION: Final = "with --token-file"


class DirectReach:
    """Asks every program at its own address, within `async with`. Of several schedulers the one that leads answers."""

    def __init__(
        self,
        schedulers: Sequence[str],
        agents: Sequence[str],
        token: str | None = None,
        tls: Tls | None = None,
        *,
        deadline_s: float = DEADLINE_S,
    ) -> None:
        """`schedulers` and `agents` are URLs without a path. `token` is shown to agents
        only: the pages of schedulers need none."""
        self._schedulers = tuple(dict.fromkeys(schedulers))
        self._agents = tuple(dict.fromkeys(agents))
        self._token = token
        self._deadline_s = deadline_s
        self._client = HttpClient(max_answer_bytes=MAX_ANSWER_BYTES, tls=tls)

    async def __aenter__(self) -> Self:
        await self._client.__aenter__()
        return self

    async def __aexit__(self, *raised: object) -> None:
        await self._client.__aexit__(*raised)

    async def scheduler(self, path: str) -> Answered:
        """The answer of the scheduler that leads. It is asked first the next time."""
        if not self._schedulers:
            return NoAnswer("no scheduler is known")
        first, *others = self._schedulers
        answer = await self._get("the scheduler", first, path)
        if leads(answer) or not others:
            return answer
        answers = await asyncio.gather(*(self._get("the scheduler", url, path) for url in others))
        for url, found in zip(others, answers, strict=True):
            if leads(found):
                self._schedulers = (url, *(each for each in self._schedulers if each != url))
                return found
        failures = [each for each in (answer, *answers) if isinstance(each, NoAnswer)]
        followers = [each for each in failures if each.status is not None]
        fault = "; ".join(each.fault for each in failures)
        told = followers[0] if followers else failures[0]
        return NoAnswer(f"no scheduler that was asked leads: {fault}", told.status, told.code)

    async def agents(self) -> tuple[str, ...] | NoAnswer:
        """The addresses that were given."""
        return self._agents

    async def agent(self, agent: str, path: str) -> Answered:
        return await self._get("the agent", agent, path, tokens.headers(self._token))

    async def agent_of(self, _: str) -> str | None:
        """Not known: addresses do not name nodes."""
        return None

    def token_hint(self) -> str:
        return BY_OPTION

    async def _get(
        self, whom: str, url: str, path: str, headers: Mapping[str, str] | None = None
    ) -> Answered:
        peer = f"{whom} at {url}"
        outcome = await self._client.call("GET", f"{url}{path}", deadline_s=self._deadline_s, headers=headers)
        if isinstance(outcome, Unanswered):
            said = "" if outcome.kind == "too-large" else "does not answer: "
            return NoAnswer(f"{peer} {said}{outcome.message}" if said else f"{peer}: {outcome.message}")
        return read(peer, outcome.status, outcome.body, token_hint=BY_OPTION)
