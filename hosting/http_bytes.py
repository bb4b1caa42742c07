"""The bytes of requests and answers of `hosting.server`: the target of a request, and answers with their heads."""

import functools
import time
from email.utils import formatdate
from typing import Final
from urllib.parse import unquote, urlsplit

from hosting import problems
from hosting.routes import Reply

CONTINUE: Final = b"HTTP/1.1 100 Continue\r\n\r\n"
_WITHOUT_BODY: Final = (204, 304)
"""Statuses whose answers end with the head, even if they have a length."""


@functools.lru_cache(maxsize=1024)
def target(raw: bytes) -> tuple[str, str]:
    """Path and query of a request's target, the path without its percent signs. Raises `ValueError` for one that is no target."""
    text = raw.decode("ascii")
    if not text.startswith("/") and text != "*":  # as a proxy is asked
        parts = urlsplit(text)
        path, query = parts.path or "/", parts.query
    else:
        path, _, query = text.partition("#")[0].partition("?")
    return unquote(path) if "%" in path else path, query


def written(reply: Reply, *, closes: bool = False, is_http_1_0: bool = False, has_body: bool = True) -> bytes:
    """Head and body of the reply. `closes`: the connection ends with it. Without a body (`HEAD`) its length is told all the same."""
    body = reply.body
    if reply.status in _WITHOUT_BODY:
        body = b""
        head = f"{_begin(reply.status, '')}Date: {_date(int(time.time()))}\r\n"
    else:
        begin = _begin(reply.status, reply.content_type)
        head = f"{begin}Content-Length: {len(body)}\r\nDate: {_date(int(time.time()))}\r\n"
    for name, value in reply.headers.items():
        head += f"{name}: {value}\r\n"
    if closes:
        head += "Connection: close\r\n"
    elif is_http_1_0:
        head += "Connection: keep-alive\r\n"
    if is_http_1_0:
        head = head.replace("HTTP/1.1", "HTTP/1.0", 1)
    return (head + "\r\n").encode() + (body if has_body else b"")


@functools.lru_cache(maxsize=256)
def _begin(status: int, content_type: str) -> str:
    kind = f"Content-Type: {content_type}\r\n" if content_type else ""
    return f"HTTP/1.1 {status} {problems.title_of(status)}\r\n{kind}Server: parley\r\n"


@functools.lru_cache(maxsize=1)
def _date(unix_s: int) -> str:
    return formatdate(unix_s, usegmt=True)
