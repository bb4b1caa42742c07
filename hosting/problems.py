"""Errors of our HTTP pages as problem details (RFC 9457), each with a code that scripts can rely on."""

import functools
import http
from collections.abc import Iterable
from itertools import islice
from typing import Annotated, Any, Final

import msgspec

from protocol.reasons import ErrorCode
from protocol.texts import clean

CONTENT_TYPE: Final = "application/problem+json"
MAX_DETAIL: Final = 4096
"""A longer detail is cut: parts of it may be the caller's own words."""
MAX_FAULTS: Final = 100
"""So many faults are told: a large body can have one in each of its parts."""


class Problem(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """What went wrong. `code` never changes its meaning; `detail` is for people; `faults` has all faults of a body at once, each with its path.

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
    """A text that JSON can carry: callers may send halves of characters, and errors quote what they sent."""
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
    """What the body of an error says to people: the detail of a problem document, else the body itself."""
    found = decode(body)
    return body.decode(errors="replace") if found is None else found.detail


def decode(body: bytes) -> Problem | None:
    """Read a problem document, or None where it is none. Members that are not known are left out."""
    try:
        return msgspec.json.decode(body, type=Problem)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None
