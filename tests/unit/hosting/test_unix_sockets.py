"""Servers and clients at Unix sockets."""

import asyncio
import socket
from pathlib import Path

import pytest

from hosting.client import Answered, HttpClient, Outcome, Unanswered
from hosting.server import Reply, Request, Route, Server
from tests.unit.hosting.raw_peers import recorded


async def _shown(request: Request) -> Reply:
    return Reply(200, f"{request.method} {request.path} {request.body.decode()}".encode())


def _server() -> Server:
    return Server(recorded()[0], (Route("*", "/page/{name}", _shown),))


async def _call(path: Path, page: str = "/page/1", body: bytes = b"x") -> Outcome:
    async with HttpClient() as client:
        return await client.call("POST", f"unix:{path}:{page}", body=body, deadline_s=20.0)


async def test_a_page_is_called_at_a_socket_of_this_user_alone(tmp_path: Path) -> None:
    server, path = _server(), tmp_path / "new" / "a.sock"
    assert await server.start(f"unix:{path}") == 0
    assert (path.stat().st_mode & 0o777, path.parent.stat().st_mode & 0o777) == (0o600, 0o700)
    outcome = await _call(path)
    assert isinstance(outcome, Answered)
    assert (outcome.status, outcome.body) == (200, b"POST /page/1 x")
    await server.close()
    assert isinstance(await _call(path), Unanswered)


async def test_the_socket_of_a_dead_process_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "a.sock"
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as dead:
        dead.bind(str(path))
        dead.listen()
    server = _server()
    await server.start(f"unix:{path}")
    assert isinstance(await _call(path), Answered)
    await server.close()


async def test_the_socket_of_a_process_that_serves_is_left_alone(tmp_path: Path) -> None:
    first, second, path = _server(), _server(), tmp_path / "a.sock"
    await first.start(f"unix:{path}")
    with pytest.raises(OSError, match="another process serves there"):
        await second.start(f"unix:{path}")
    assert isinstance(await _call(path), Answered)
    await first.close()
    await second.close()


@pytest.mark.parametrize("kind", ["file", "directory", "link"])
async def test_what_is_no_socket_is_not_replaced(tmp_path: Path, kind: str) -> None:
    path, precious = tmp_path / "a.sock", tmp_path / "precious"
    precious.write_text("precious")
    match kind:
        case "file":
            path.write_text("precious")
        case "directory":
            path.mkdir()
        case _:
            path.symlink_to(precious)
    server = _server()
    with pytest.raises(OSError, match="is no socket"):
        await server.start(f"unix:{path}")
    await server.close()
    assert path.is_symlink() == (kind == "link")
    assert path.is_dir() or path.read_text() == "precious"


async def test_a_socket_that_is_not_there_and_one_that_nobody_serves_are_no_connection(
    tmp_path: Path,
) -> None:
    outcome = await _call(tmp_path / "nowhere")
    assert outcome == Unanswered("connect", "no such file or directory")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as dead:
        dead.bind(str(tmp_path / "dead"))
    assert await _call(tmp_path / "dead") == Unanswered("connect", "connection refused")


async def test_a_client_has_sessions_for_few_sockets(tmp_path: Path) -> None:
    server = _server()
    await server.start(f"unix:{tmp_path}/a")
    async with HttpClient() as client:
        for number in range(20):
            await client.call("GET", f"unix:{tmp_path}/{number}:/", deadline_s=20.0)
        outcome = await client.call("GET", f"unix:{tmp_path}/a:/page/2", deadline_s=20.0)
        assert isinstance(outcome, Answered)
        assert len(client._by_socket) == 8
    await server.close()


async def test_many_calls_at_once_share_the_socket(tmp_path: Path) -> None:
    server = _server()
    await server.start(f"unix:{tmp_path}/a")
    async with HttpClient(max_connections=4) as client:
        calls = (
            client.call("GET", f"unix:{tmp_path}/a:/page/{number}", deadline_s=20.0) for number in range(50)
        )
        outcomes = await asyncio.gather(*calls)
    assert all(isinstance(each, Answered) and each.status == 200 for each in outcomes)
    await server.close()
