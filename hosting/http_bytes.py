"""The bytes of requests and answers of `hosting.server`: a body in, head and body out."""

import functools
import time
from email.utils import formatdate
from typing import TYPE_CHECKING, Final

from aiohttp import web

from hosting import problems

if TYPE_CHECKING:
    from hosting.server import Reply


async def read_body(request: web.BaseRequest, limit: int, *, cuts: bool) -> bytes | None:
    """The body; as soon as it exceeds `limit` bytes, the part that came if the route `cuts`, else None."""
    content = request.content
    if content.is_eof() and content.exception() is None:  # it came with the head, as most do
        found = content.read_nowait(-1)
        return found if cuts or len(found) <= limit else None
    if not cuts and (request.content_length or 0) > limit:
        return None
    if request.headers.get("Expect", "").lower() == "100-continue" and request.transport is not None:
        request.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")  # the peer sends nothing before
    body = bytearray()
    async for chunk in content.iter_any():
        body += chunk
        if len(body) > limit:
            return bytes(body) if cuts else None
    return bytes(body)


_WITHOUT_BODY: Final = (204, 304)
"""Statuses whose answers end with the head, even if they have a length."""


def written(reply: "Reply") -> bytes:
    """Head and body of the reply to an ordinary request."""
    has_body = reply.status not in _WITHOUT_BODY
    kind = f"Content-Type: {reply.content_type}\r\n" if has_body else ""
    length = f"Content-Length: {len(reply.body)}\r\n" if has_body else ""
    head = (
        f"HTTP/1.1 {reply.status} {problems.title_of(reply.status)}\r\n{kind}Server: parley\r\n"
        f"{length}Date: {_date(int(time.time()))}\r\n"
    )
    for name, value in reply.headers.items():
        head += f"{name}: {value}\r\n"
    return (head + "\r\n").encode() + (reply.body if has_body else b"")


@functools.lru_cache(maxsize=1)
def _date(unix_s: int) -> str:
    return formatdate(unix_s, usegmt=True)


def response(reply: "Reply", *, close: bool = False) -> web.Response:
    has_body = reply.status not in _WITHOUT_BODY
    kind = {"Content-Type": reply.content_type} if has_body else {}
    response = web.Response(
        status=reply.status,
        body=reply.body if has_body else None,
        headers={**kind, "Server": "parley", **reply.headers},
    )
    if close:
        response.force_close()
    return response
