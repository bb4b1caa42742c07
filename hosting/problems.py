"""Errors of our HTTP pages as problem details (RFC 9457), each with a code that scripts can rely on."""

import functools
import http
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import islice
from typing import Annotated, Any, Final

import msgspec

from protocol.reasons import ErrorCode
from protocol.texts import clean

NO_CONTENT: Final = ""
"""The content type of an answer without a body."""


@dataclass(frozen=True, slots=True)
class DocumentedParameter:
    """A parameter of the path, of the query or of the headers. `schema` is its JSON Schema; those of the path are always required."""

    name: str
    about: str
    schema: Mapping[str, Any]
    is_required: bool = False


@dataclass(frozen=True, slots=True)
class DocumentedAnswer:
    """An answer with its model, anything that msgspec or pydantic knows a JSON Schema of; None for a body of `content_type` that has no model.

    `headers` are those that come with it, by name, with their meaning.
    """

    about: str
    model: Any = None
    content_type: str = "application/json"
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Operation:
    """One method of one path. `answers` has the answers by status; the problems of every route (400, 404, 405, 413, 500) need not be named.

    `body` is the model of the request's body, `examples` are such bodies by name. Callers that are told errors as plain text are `plain`.
    """

    summary: str
    answers: Mapping[int, DocumentedAnswer]
    tag: str = ""
    query: tuple[DocumentedParameter, ...] = ()
    path: tuple[DocumentedParameter, ...] = ()
    headers: tuple[DocumentedParameter, ...] = ()
    body: Any = None
    examples: Mapping[str, Any] = field(default_factory=dict)
    problems: Mapping[int, str] = field(default_factory=dict)
    """Errors of this route alone: their meaning by status."""
    shared: tuple[int, ...] = ()
    """Statuses of further errors that several routes of the server have, and that its document describes once."""
    plain: bool = False
    """Whether some callers get errors as plain text."""
    about: str = ""
    """More than the summary says, in Markdown."""


PROCESS: Final = "process"
"""The tag of the pages that every program serves."""
_OK: Final = DocumentedAnswer("Yes: the text `ok`.", content_type="text/plain")
HEALTHZ: Final = Operation("Whether the program serves", {200: _OK}, PROCESS)
READYZ: Final = Operation(
    "Whether the program has read what it needs",
    {200: _OK},
    PROCESS,
    problems={503: "It has not; ask again."},
)
METRICS: Final = Operation(
    "Metrics for Prometheus",
    {200: DocumentedAnswer("In the text format of Prometheus.", content_type="text/plain")},
    PROCESS,
)


CONTENT_TYPE: Final = "application/problem+json"
MAX_DETAIL: Final = 4096
"""A longer detail is cut: parts of it may be the caller's own words."""
MAX_FAULTS: Final = 100
"""So many faults are told: a large body can have one in each of its parts."""


class Problem(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """An error as a document. `code` never changes its meaning; `detail` is for people; `faults` has all faults of a body at once, each
    with its path.

    `leader` is the address of the scheduler to turn to, `biz_code` a code of the pool plugin that refused.
    """

    status: int
    title: str
    detail: str
    code: Annotated[
        str,
        msgspec.Meta(
            extra_json_schema={"enum": [each.value for each in ErrorCode if each is not ErrorCode.OTHER]}
        ),
    ]
    type: str = "about:blank"
    faults: tuple[str, ...] = ()
    leader: str | None = None
    biz_code: str = msgspec.field(name="bizCode", default="")


def problem(
    status: int,
    code: ErrorCode,
    detail: str,
    faults: Iterable[str] = (),
    *,
    leader: str | None = None,
    biz_code: str = "",
) -> Problem:
    """A problem with the title of its status. `server.problem` makes the reply of it."""
    return Problem(
        status=status,
        title=title_of(status),
        detail=_sound(detail),
        code=code.value,
        faults=tuple(map(_sound, islice(faults, MAX_FAULTS))),
        leader=leader,
        biz_code=biz_code,
    )


def _sound(text: str) -> str:
    """A text that JSON can carry: callers may send halves of characters, and errors quote their texts."""
    return clean(text[:MAX_DETAIL].encode(errors="backslashreplace").decode(), MAX_DETAIL)


@functools.cache
def title_of(status: int) -> str:
    """The phrase of a status, such as `Not Found`; a general one for a status that has none."""
    try:
        return http.HTTPStatus(status).phrase
    except ValueError:
        return "Error" if status >= 400 else "Status"


def members(status: int, detail: str) -> dict[str, Any]:
    """The members by which any reader of problem documents understands an error body that has others besides, `code` among them."""
    return {"type": "about:blank", "title": title_of(status), "status": status, "detail": detail}


def text_of(body: bytes) -> str:
    """The text of an error's body for people: the detail of a problem document, else the body itself."""
    found = decode(body)
    return body.decode(errors="replace") if found is None else found.detail


def decode(body: bytes) -> Problem | None:
    """Read a problem document, or None if it is none. Members that are not known are left out."""
    try:
        return msgspec.json.decode(body, type=Problem)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None
