"""The routes of a server, its requests and its replies, as handlers know them: nothing of connections.

Handlers take a frozen `Request` and return a `Reply`, or `HangUp` to close the connection without a reply.
"""

import re
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

import msgspec

from hosting import problems
from hosting.access import AccessRefused, AccessScope, Caller
from hosting.problems import Operation
from protocol.reasons import ErrorCode
from protocol.values import Value


class Request(Value, frozen=True):
    """One request, read in full. `headers` go by their names in lower case; `parameters` are the path's named parts.

    `peer` is the address of the other side, without its port; `unix` for a Unix socket, empty if the peer was gone at once. `is_cut`: the
    body was longer than its route reads. `waited_s` is for how long it was held before its handler got it. `caller` is None for a server
    without a gate.
    """

    method: str
    path: str
    body: bytes = b""
    headers: Mapping[str, str] = {}
    parameters: Mapping[str, str] = {}
    query: Mapping[str, str] = {}
    peer: str = ""
    is_cut: bool = False
    waited_s: float = 0.0
    caller: Caller | None = None


class Reply(Value, frozen=True):
    status: int = 200
    body: bytes = b""
    content_type: str = "application/json"
    headers: Mapping[str, str] = {}


@dataclass(frozen=True, slots=True)
class HangUp:
    """Close the connection without an answer."""


Outcome: TypeAlias = Reply | HangUp
Handler: TypeAlias = Callable[[Request], Awaitable[Outcome]]
PromptHandler: TypeAlias = Callable[[Request], Outcome | Awaitable[Outcome]]
"""One that may have its answer at once, which costs no task then."""


async def answered(answer: Outcome | Awaitable[Outcome]) -> Outcome:
    return answer if isinstance(answer, Reply | HangUp) else await answer


def text(status: int, message: str) -> Reply:
    return Reply(status, message.encode() + b"\n", "text/plain; charset=utf-8")


def problem(
    status: int,
    code: ErrorCode,
    detail: str,
    faults: Iterable[str] = (),
    *,
    headers: Mapping[str, str] = {},
    leader: str | None = None,
    biz_code: str = "",
) -> Reply:
    """An error as a problem document. `detail` is for people, `code` for scripts; `faults` are all things that are wrong, each with its path."""
    content = problems.problem(status, code, detail, faults, leader=leader, biz_code=biz_code)
    return Reply(status, msgspec.json.encode(content), problems.CONTENT_TYPE, headers)


def refused(refusal: AccessRefused) -> Reply:
    """The answer to a caller that is not let in."""
    headers = {"WWW-Authenticate": "Bearer"} if refusal.status == 401 else {}
    if refusal.retry_after_s is not None:
        headers["Retry-After"] = str(refusal.retry_after_s)
    return problem(refusal.status, refusal.code, refusal.message, headers=headers)


@dataclass(frozen=True, slots=True)
class Route:
    """The handler of `method` ("*": every method without a route of its own) on `path` (parts in braces are parameters).

    A body above `max_body_bytes` is refused with 413, or, if the route `cuts`, read as far as that. `about` is the route's part of the
    OpenAPI document. `deadline_s` is how long a request may take after it was read; None: as long as any other. `scope` is the right
    that a caller needs; None: that of a page, or of a change if the method is one.
    """

    method: str
    path: str
    handler: Handler | PromptHandler
    max_body_bytes: int = 4096
    cuts: bool = False
    about: Operation | None = None
    deadline_s: float | None = None
    scope: AccessScope | None = None

    async def answer(self, request: Request) -> Outcome:
        return await answered(self.handler(request))

    @property
    def right(self) -> AccessScope:
        if self.scope is not None:
            return self.scope
        return AccessScope.PAGES if self.method in ("GET", "HEAD") else AccessScope.WRITE


class Router:
    """Finds the route of a request; the first matching one wins."""

    def __init__(self, routes: tuple[Route, ...], fallback: Route | None) -> None:
        self._exact = {
            (route.method, route.path): route for route in reversed(routes) if "{" not in route.path
        }
        self._patterns = [(route, _pattern(route.path)) for route in routes if "{" in route.path]
        self._fallback = fallback

    def find(self, method: str, path: str) -> tuple[Route, Mapping[str, str]] | Reply:
        exact = self._exact.get((method, path)) or self._exact.get(("*", path))
        if exact is not None:
            return exact, {}
        allowed = {known for known, other in self._exact if other == path}
        for route, pattern in self._patterns:
            if found := pattern.fullmatch(path):
                if route.method in (method, "*"):
                    return route, found.groupdict()
                allowed.add(route.method)
        if self._fallback is not None:
            return self._fallback, {}
        if allowed:
            methods = ", ".join(sorted(allowed))
            detail = f"{method[:20]} is not served here; use {methods}"
            return problem(405, ErrorCode.WRONG_METHOD, detail, headers={"Allow": methods})
        return problem(404, ErrorCode.NOT_FOUND, f"there is nothing at {path[:200]}")


def _pattern(path: str) -> re.Pattern[str]:
    """Matches the paths of a route; the parts in braces are named groups."""
    return re.compile(re.sub(r"\\{(\w+)\\}", r"(?P<\1>[^/]*)", re.escape(path)))
