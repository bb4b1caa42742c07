"""The meaning of an HTTP answer of a program: its document, or a fault for people. Pure; for every way to the programs."""

import json
from collections.abc import Callable
from typing import Any, Final, TypeVar

import msgspec

from parley.reach.ports import Answered, Got, NoAnswer
from parley.top.texts import clean, document
from protocol.explaining import Document
from protocol.reasons import ErrorCode

D = TypeVar("D", bound=Document)

MAX_ANSWER_BYTES: Final = 8 * 2**20
NOT_LEADER: Final = ErrorCode.NOT_LEADER.value
_MAX_FAULT: Final = 400


def read(peer: str, status: int, body: bytes, *, token_hint: str) -> Answered:
    """The answer of `peer` (a name for people). `token_hint` says how a token is shown, as a part of a sentence."""
    if status == 200:
        found = document(body)
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


def _problem(body: bytes) -> tuple[str, str]:
    """The text for people and the code of an error's body: problem details, an error of the protocol, or plain text."""
    found: dict[str, Any] | None = document(body)
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
