"""The agent's ports: who is served what, with and without TLS and token."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from agent.daemon.server import AgentServer, ServerSettings
from hosting import tokens
from hosting.access import AccessScope
from hosting.addresses import Advertised
from hosting.client import Answered, HttpClient
from hosting.problems import Operation
from hosting.server import Reply, Request, Route
from hosting.tls import Tls, TlsFiles
from hosting.tokens import FileToken, TokenFileError
from tests.unit.hosting.raw_peers import recorded
from tests.unit.hosting.test_tls import Authority, loaded

TOKEN = "0123456789abcdef"
NONE = loaded(TlsFiles())

ABOUT = Operation("a page", {})


async def serve(request: Request) -> Reply:
    return Reply(200, request.path.encode())


@dataclass(frozen=True, slots=True)
class Opened:
    """AgentServer that are open, as a caller sees them."""

    plain: str
    protected: str | None
    believed: Tls
    lines: list[dict[str, Any]]

    async def status(self, url: str, token: str | None = None, *, proxied: bool = False) -> int:
        shown = tokens.proxied_headers if proxied else tokens.headers
        headers = shown(token)
        async with HttpClient(tls=self.believed) as client:
            outcome = await client.call("GET", url, deadline_s=20, headers=headers)
        assert isinstance(outcome, Answered), outcome
        return outcome.status


@asynccontextmanager
async def opened(
    directory: Path, *, token: str | None = None, with_tls: bool = False, host: str = "127.0.0.1"
) -> AsyncIterator[Opened]:
    """AgentServer on free ports of `host`. The token is in a file `token` of the directory."""
    if token is not None:
        (directory / "token").write_text(token)
    viewer = FileToken(directory / "token", may_be_missing=True)
    viewer.load()
    metrics = FileToken(directory / "metrics", may_be_missing=True)
    metrics.load()
    authority = Authority(directory, "ca")
    tls = loaded(authority.issue(directory)) if with_tls else NONE
    log, lines = recorded()
    server = AgentServer(
        ServerSettings(
            host, 0, Advertised("127.0.0.1"), viewer, tls, 0 if with_tls else None, metrics, plain_http=True
        ),
        log,
        pages=[
            Route("GET", "/healthz", serve, about=ABOUT, scope=AccessScope.OPEN),
            Route("GET", "/metrics", serve, about=ABOUT, scope=AccessScope.METRICS),
            Route("GET", "/v1/vms", serve, about=ABOUT),
        ],
        callbacks=[Route("GET", "/agents/{agent_id}/id", serve, scope=AccessScope.OPEN)],
    )
    port, address = await server.open()
    protected = address.replace("0.0.0.0", "127.0.0.1") if address is not None else None
    try:
        yield Opened(f"http://127.0.0.1:{port}", protected, loaded(TlsFiles(ca=authority.ca)), lines)
    finally:
        await server.close()


async def test_this_machine_is_served_and_with_a_token_who_shows_it(tmp_path: Path) -> None:
    async with opened(tmp_path) as server:
        assert await server.status(f"{server.plain}/v1/vms") == 200
        assert server.protected is None
        port = int(server.plain.rpartition(":")[2])
        taken = ServerSettings("127.0.0.1", port, Advertised("127.0.0.1"), FileToken(), NONE)
        other = AgentServer(taken, recorded()[0], [], [])
        with pytest.raises(OSError, match=f"cannot listen on 127.0.0.1:{port}: Address already in use"):
            await other.open()
        await other.close()
    async with opened(tmp_path, token=TOKEN) as server:
        for wrong in (None, TOKEN[:-1], "\u00e4" * 16):
            assert await server.status(f"{server.plain}/v1/vms", wrong) == 401
            assert await server.status(f"{server.plain}/v1/vms", wrong, proxied=True) == 401
        assert await server.status(f"{server.plain}/v1/vms", TOKEN) == 200
        assert await server.status(f"{server.plain}/v1/vms", TOKEN, proxied=True) == 200
        assert await server.status(f"{server.plain}/healthz") == 200
        assert [(line["event"], line["reason"]) for line in server.lines] == [("refused", "token")]


async def test_with_tls_people_have_a_port_and_informants_keep_the_plain_one(tmp_path: Path) -> None:
    async with opened(tmp_path, token=TOKEN, with_tls=True) as server:
        assert await server.status(f"{server.protected}/v1/vms", TOKEN) == 200
        assert await server.status(f"{server.protected}/v1/vms") == 401
        assert await server.status(f"{server.protected}/healthz") == 200
        assert await server.status(f"{server.protected}/agents/x/id") == 404
        assert await server.status(f"{server.plain}/agents/x/id") == 200


async def test_a_token_is_taken_up_renewed_and_taken_away_while_the_agent_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hosting.access.is_loopback", lambda _: False)  # as seen from elsewhere
    monkeypatch.setattr("hosting.tokens.LOOK_S", 0.0)
    other = "fedcba9876543210"
    async with opened(tmp_path) as server:
        url = f"{server.plain}/v1/vms"
        assert await server.status(url, TOKEN) == 403
        (tmp_path / "token").write_text(TOKEN)
        assert [await server.status(url, each) for each in (TOKEN, other)] == [200, 401]
        (tmp_path / "token").write_text(f"{other}\n")
        assert [await server.status(url, each) for each in (TOKEN, other)] == [401, 200]
        (tmp_path / "token").write_text("short")
        assert await server.status(url, other) == 200, "what was read before stays in force"
        (tmp_path / "token").unlink()
        assert await server.status(url, other) == 403
    told = [(line["event"], line.get("error", "")) for line in server.lines if line["event"] != "refused"]
    assert [event for event, _ in told] == [
        "the token file cannot be used",
        "the token file can be used again",
    ]
    assert "must hold a token of 16 to 4000" in told[0][1]
    assert "short" not in told[0][1]


async def test_the_file_is_not_read_with_every_request(tmp_path: Path) -> None:
    async with opened(tmp_path, token=TOKEN) as server:
        url = f"{server.plain}/v1/vms"
        assert await server.status(url, TOKEN) == 200
        (tmp_path / "token").write_text("fedcba9876543210")
        assert await server.status(url, TOKEN) == 200


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (None, "is missing"),
        (b"short", "must hold a token of 16 to 4000"),
        (b"\xff" * 16, "bytes that are no ASCII"),
    ],
)
def test_a_token_file_that_cannot_be_used_is_told_without_what_it_holds(
    tmp_path: Path, content: bytes | None, said: str
) -> None:
    path = tmp_path / "token"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(TokenFileError, match=said):
        FileToken(path).load()


@pytest.mark.parametrize(("token", "with_tls"), [(None, False), (None, True), (TOKEN, True)])
async def test_the_plain_port_tells_other_machines_nothing_that_tls_or_a_token_should_guard(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, token: str | None, *, with_tls: bool
) -> None:
    monkeypatch.setattr("hosting.access.is_loopback", lambda _: False)  # as seen from elsewhere
    async with opened(tmp_path, token=token, with_tls=with_tls) as server:
        assert await server.status(f"{server.plain}/v1/vms", token) == 403
        assert await server.status(f"{server.plain}/agents/x/id") == 200


async def test_a_token_that_comes_later_is_warned_of_each_time_it_comes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hosting.tokens.LOOK_S", 0.0)
    async with opened(tmp_path, host="0.0.0.0") as server:
        url, told = f"{server.plain}/v1/vms", []
        for content in (TOKEN, TOKEN, None, TOKEN):
            if content is not None:
                (tmp_path / "token").write_text(content)
            else:
                (tmp_path / "token").unlink()
            await server.status(url, content)
            told.append(len(server.lines))
        assert told == [1, 1, 1, 2]
        assert all("travels unprotected" in line["event"] for line in server.lines)


async def test_a_token_that_would_travel_unprotected_is_warned_of(tmp_path: Path) -> None:
    async with opened(tmp_path, token=TOKEN, host="0.0.0.0") as server:
        assert [line["event"] for line in server.lines] == [
            "the token travels unprotected: set `tls` (certificate, key, port), or serve loopback"
        ]
    async with opened(tmp_path, token=TOKEN, host="0.0.0.0", with_tls=True) as server:
        assert server.lines == []
