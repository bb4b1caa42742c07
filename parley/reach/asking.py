"""Asking programs of Parley over HTTP: the meaning of an answer, its document or a fault for people, for every way to them; and the way by
addresses. Pages are followed, with a bound."""

import asyncio
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Self, TypeVar
from urllib.parse import quote, urlsplit

import msgspec

from hosting import tokens
from hosting.addresses import is_own
from hosting.client import HttpClient, Unanswered
from hosting.tls import Tls
from parley.reach.ports import Answered, Got, NoAnswer, Reach
from parley.top.texts import clean
from protocol.explaining import Document, NodeShown, PodShown, StatePage, VmShown
from protocol.pages import PoolsShown
from protocol.reasons import ErrorCode

D = TypeVar("D", bound=Document)

MAX_ANSWER_BYTES: Final = 8 * 2**20
NOT_LEADER: Final = ErrorCode.NOT_LEADER.value
_MAX_FAULT: Final = 400


def read(peer: str, status: int, body: bytes, *, token_hint: str) -> Answered:
    """The answer of `peer` (a name for people). `token_hint` says how a token is shown, as a part of a sentence."""
    if status == 200:
        found = _object(body)
        if found is None:
            return NoAnswer(f"{peer}: this is no program of Parley: its answer is no JSON object")
        return Got(found, peer)
    said, code = _problem(body)
    if status == 401:
        wants = "the token that it was started with" if "agent" in peer else "to know who calls"
        return NoAnswer(f"{peer} wants {wants} ({token_hint}): {said}", status, code)
    if status == 404 and not code:
        why = "it answered with status 404, and not in Parley's words"
        return NoAnswer(f"{peer}: this is no program of Parley, or one of an earlier version: {why}", status)
    if status == 404 and code == ErrorCode.NOT_FOUND:
        return NoAnswer(
            f"{peer} has no such page: it is another program of Parley, or of an earlier version",
            status,
            code,
        )
    detail = f": {said}" if said else ""
    return NoAnswer(clean(f"{peer} answered with status {status}{detail}", _MAX_FAULT), status, code)


def decoded(
    answer: Got, kind: type[D], convert: Callable[[Any, type[D]], D] = msgspec.convert
) -> D | NoAnswer:
    """The typed document of an answer; a fault for another document. Those of agents are converted by `agent_pages.read`."""
    try:
        return convert(answer.document, kind)
    except msgspec.ValidationError as error:
        said = f"{answer.peer}: its answer cannot be read, it may be of another version: {error}"
        return NoAnswer(clean(said, _MAX_FAULT))


def leads(answer: Answered) -> bool:
    """Whether this is the word of a scheduler that leads: neither that of a follower nor silence."""
    return isinstance(answer, Got) or (answer.status is not None and answer.code != NOT_LEADER)


def _object(body: bytes) -> dict[str, Any] | None:
    """The JSON object that an answer holds, or None."""
    try:
        found = json.loads(body)
    except (ValueError, RecursionError):  # not JSON or not UTF-8; or nested without end
        return None
    return found if isinstance(found, dict) else None


def _problem(body: bytes) -> tuple[str, str]:
    """The text for people and the code of an error's body: problem details, an error of the protocol, or plain text."""
    found = _object(body)
    if found is None:
        try:
            json.loads(body)
        except (ValueError, RecursionError):
            return clean(body.decode(errors="replace")), ""
        return "", ""
    leader = clean(found.get("leader"))
    faults = found.get("faults")
    listed = (
        "; ".join(text for each in faults[:4] if (text := clean(each))) if isinstance(faults, list) else ""
    )
    said = clean(found.get("detail")) or clean(found.get("error")) or clean(found.get("title"))
    words = (
        said,
        f"({listed})" if listed and listed not in said else "",
        f"(the leader is {leader})" if leader and leader not in said else "",
    )
    return " ".join(word for word in words if word), clean(found.get("code"))


PAGE: Final = 500
MAX_PAGES: Final = 100
"""Of `/v1/state`: 50,000 nodes, VMs and others."""
MAX_CONTINUE: Final = 1024


async def document(reach: Reach, path: str, kind: type[D]) -> D | NoAnswer:
    answer = await reach.scheduler(path)
    return decoded(answer, kind) if isinstance(answer, Got) else answer


@dataclass(slots=True)
class State:
    """Everything that the pages told. `is_cut` says that there is more; `instance` is the process that told it."""

    instance: str = ""
    at: str = ""
    nodes: list[NodeShown] = field(default_factory=list)
    vms: list[VmShown] = field(default_factory=list)
    others: list[PodShown] = field(default_factory=list)
    is_cut: bool = False


async def state(reach: Reach, *, max_pages: int = MAX_PAGES) -> State | NoAnswer:
    """Follow the pages of `/v1/state`, at most `max_pages`, as far as VMs go: the entries after them are not asked for."""
    found, path = State(), f"/v1/state?limit={PAGE}"
    for _ in range(max_pages):
        page = await document(reach, path, StatePage)
        if isinstance(page, NoAnswer):
            return page
        if found.instance and page.instance != found.instance:
            return NoAnswer("the scheduler was restarted while it was asked; ask again")
        found.instance, found.at = page.instance, page.at
        found.nodes += page.nodes
        found.vms += page.vms
        found.others += page.others
        if page.continue_ is None or page.others:
            return found
        if len(page.continue_) > MAX_CONTINUE:
            return NoAnswer("the scheduler's page cannot be continued: its word for that is too long")
        path = f"/v1/state?limit={PAGE}&continue={quote(page.continue_, safe='')}"
    found.is_cut = True
    return found


async def names(reach: Reach, kind: str) -> list[str]:
    """The names of `kind` (vms, nodes, pools) that the scheduler knows; none if it does not answer."""
    if kind == "pools":
        found = await document(reach, "/v1/pools", PoolsShown)
        return [] if isinstance(found, NoAnswer) else [each.name for each in found.pools]
    known = await state(reach, max_pages=4)
    if isinstance(known, NoAnswer):
        return []
    return [each.vm for each in known.vms] if kind == "vms" else [each.node for each in known.nodes]


DEADLINE_S: Final = 5.0
BY_OPTION: Final = "with --token-file"
TO_SCHEDULER: Final = "with --certificate and --key, or --token-file"


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
        """`schedulers` and `agents` are URLs without a path. `token` is shown to agents,
        and to schedulers where nobody can read it on the way."""
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
        answer = await self._get_of_scheduler(first, path)
        if leads(answer) or not others:
            return answer
        answers = await asyncio.gather(*(self._get_of_scheduler(url, path) for url in others))
        for url, found in zip(others, answers, strict=True):
            if leads(found):
                self._schedulers = (url, *(each for each in self._schedulers if each != url))
                return found
        failures = [each for each in (answer, *answers) if isinstance(each, NoAnswer)]
        followers = [each for each in failures if each.status is not None]
        fault = "; ".join(each.fault for each in failures)
        told = followers[0] if followers else failures[0]
        return NoAnswer(f"no scheduler that was asked leads: {fault}", told.status, told.code)

    async def _get_of_scheduler(self, url: str, path: str) -> Answered:
        is_hidden = url.startswith("https://") or is_own(urlsplit(url).hostname or "")
        shown = tokens.headers(self._token if is_hidden else None)
        return await self._get("the scheduler", url, path, shown, TO_SCHEDULER)

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
        self, whom: str, url: str, path: str, headers: Mapping[str, str], hint: str = BY_OPTION
    ) -> Answered:
        peer = f"{whom} at {url}"
        outcome = await self._client.call("GET", f"{url}{path}", deadline_s=self._deadline_s, headers=headers)
        if isinstance(outcome, Unanswered):
            said = "" if outcome.kind == "too-large" else "does not answer: "
            return NoAnswer(f"{peer} {said}{outcome.message}" if said else f"{peer}: {outcome.message}")
        return read(peer, outcome.status, outcome.body, token_hint=hint)
