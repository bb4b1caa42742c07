"""The undocumented parts of aiohttp that `hosting.aiohttp_private` builds on are there, in the shape that it expects.

A failure here names the part of a new release that is another; what rests on it is in the table of that module.
"""

import inspect
from collections import deque
from collections.abc import Callable
from typing import Any

import aiohttp
import pytest
from aiohttp import StreamReader, http_exceptions, web

from hosting import logs
from hosting.aiohttp_private import ConnectionServer, ServedConnection
from hosting.server import Server

_NEW = f"aiohttp {aiohttp.__version__} has this in another shape: see hosting/aiohttp_private.py"


@pytest.mark.parametrize(
    ("function", "names"),
    [
        (web.RequestHandler.__init__, "self manager loop keepalive_timeout access_log lingering_time"),
        (web.RequestHandler.connection_made, "self transport"),
        (web.RequestHandler.connection_lost, "self exc"),
        (web.RequestHandler.data_received, "self data"),
        (web.RequestHandler.eof_received, "self"),
        (web.RequestHandler.finish_response, "self request resp start_time"),
        (web.RequestHandler.handle_error, "self request status exc message"),
        (web.RequestHandler.log_exception, "self args kw"),
        (web.RequestHandler.keep_alive, "self val"),
        (web.RequestHandler.close, "self"),
        (web.RequestHandler.force_close, "self"),
        (web.Server.__init__, "self handler handler_cancellation"),
        (web.Server.__call__, "self"),
        (web.StreamResponse.prepare, "self request"),
        (web.StreamResponse.write_eof, "self"),
    ],
    ids=lambda each: getattr(each, "__qualname__", "names"),
)
def test_a_function_has_the_parameters_that_are_used(function: Callable[..., Any], names: str) -> None:
    known = list(inspect.signature(function).parameters)
    assert [name for name in names.split() if name not in known] == [], f"{_NEW}: {known}"


@pytest.mark.parametrize("name", ["finish_response"])
def test_a_function_is_awaited(name: str) -> None:
    assert inspect.iscoroutinefunction(getattr(web.RequestHandler, name)), _NEW


async def test_a_connection_queues_heads_with_their_bodies() -> None:
    async def handle(_: web.BaseRequest) -> web.StreamResponse:
        raise AssertionError("no request is carried out here")

    server = Server(logs.logger("test"), ())
    connection = ServedConnection(server, ConnectionServer(server, handle))
    queue: Any = connection._messages
    assert isinstance(queue, deque), _NEW
    connection.data_received(b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\nok")
    ((head, body),) = queue
    assert head.path == "/", _NEW
    assert isinstance(body, StreamReader), _NEW
    assert body.is_eof(), _NEW
    assert connection.unanswered == 1


def test_requests_know_their_connection_and_their_writer() -> None:
    for name in ("protocol", "writer"):
        assert isinstance(getattr(web.BaseRequest, name, None), property), f"{name}: {_NEW}"
    assert inspect.iscoroutinefunction(aiohttp.abc.AbstractStreamWriter.drain), _NEW


def test_a_response_says_if_the_connection_stays() -> None:
    assert isinstance(web.StreamResponse.keep_alive, property), _NEW


def test_a_line_that_is_too_long_is_a_fault_of_http() -> None:
    """`hosting.kubernetes.api` takes it for an unusable answer."""
    assert issubclass(http_exceptions.LineTooLong, http_exceptions.HttpProcessingError), _NEW
