"""The meaning of an HTTP answer of a program: its document, or a fault for people; for every way to the programs. Pages are followed, with a bound."""

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar
from urllib.parse import quote

import msgspec

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
        return NoAnswer(f"{peer} wants the token that it was started with ({token_hint})", status, code)
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
