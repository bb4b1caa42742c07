"""The extender answers this machine, and callers with a certificate that has the right to it; nobody else, and no
web page."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from hosting.access import AccessScope
from hosting.client import Answered, HttpClient, Unanswered
from hosting.server import Reply, Request, Route
from hosting.tls import Tls, TlsFiles
from scheduler.access.ports import Access
from scheduler.placing.kube_extender.listener import ExtenderListener, ListenerSettings
from scheduler.placing.kube_extender.service import PREFIX
from tests.support.access import access_by, local_access
from tests.unit.hosting.raw_peers import recorded
from tests.unit.hosting.test_tls import Authority, loaded
from tests.unit.scheduler_extender.bodies import BY_NAMES
from tests.unit.scheduler_extender.extender_worlds import World


async def _binds(_: Request) -> Reply:
    return Reply(200, b'{"Error":""}')


BIND = (Route("POST", f"{PREFIX}/bind", _binds, scope=AccessScope.EXTENDER),)


@asynccontextmanager
async def listening(access: Access, routes: tuple[Route, ...] | None = BIND) -> AsyncIterator[int]:
    listener = ExtenderListener(ListenerSettings(0), access, recorded()[0])
    port = await listener.open()
    listener.answer_from(routes)
    try:
        yield port
    finally:
        await listener.close()


async def ask(
    url: str, tls: Tls | None = None, *, verb: str = "bind", body: bytes = b"{}", **headers: str
) -> Answered | Unanswered:
    async with HttpClient(tls=tls) as client:
        return await client.call("POST", f"{url}{PREFIX}/{verb}", body=body, deadline_s=20, headers=headers)


def status(found: Answered | Unanswered) -> int | str:
    return found.status if isinstance(found, Answered) else found.kind


ACCESS = """
tls: {{certificate: {0.certificate}, key: {0.key}, clientCa: {1}}}
callers:
- {{certificate: kube-scheduler.parley, scopes: [extender]}}
- {{certificate: "{{node}}.agents.parley", scopes: [permits]}}
"""


async def test_with_an_access_file_only_a_certificate_with_that_right_binds(tmp_path: Path) -> None:
    """Not one of another name or another authority, none at all, nor plain HTTP, on this machine either."""
    log, entries = recorded()
    server, clients, other = (Authority(tmp_path / name, name) for name in ("server", "clients", "other"))
    text = ACCESS.format(server.issue(tmp_path / "server"), clients.ca)
    access = access_by(tmp_path / "access.yaml", text, log)
    async with listening(access) as port:

        async def called_with(client: TlsFiles) -> int | str:
            tls = loaded(TlsFiles(client.certificate, client.key, server.ca))
            return status(await ask(f"https://127.0.0.1:{port}", tls))

        name = "kube-scheduler.parley"
        assert await called_with(clients.issue(tmp_path / "right", name)) == 200
        assert await called_with(clients.issue(tmp_path / "agent", "n1.agents.parley")) == 403
        assert await called_with(clients.issue(tmp_path / "stranger", "else.parley")) == 403
        assert await called_with(other.issue(tmp_path / "other", name)) != 200
        assert await called_with(TlsFiles()) == 401
        assert status(await ask(f"http://127.0.0.1:{port}")) == "cut"
    told = [(each["reason"], each["right"]) for each in entries if each["event"] == "refused"]
    assert told == [
        ("scope", "extender"),
        ("unknown-certificate", "extender"),
        ("handshake", "known"),
        ("no-credential", "extender"),
    ]
    assert access.refusals.counts["extender", "scope"] == 1
    assert access.refusals.counts["known", "handshake"] == 2


async def test_kube_scheduler_makes_a_connection_for_each_bind_and_none_waits(tmp_path: Path) -> None:
    """Twenty binds a second for a minute, by the clock of its handshakes."""
    authority = Authority(tmp_path, "server")
    text = ACCESS.format(authority.issue(tmp_path / "server"), authority.ca)
    listener = ExtenderListener(
        ListenerSettings(0), access_by(tmp_path / "access.yaml", text, recorded()[0]), recorded()[0]
    )
    peers = listener.server._limits.peers
    assert peers is not None
    clock = peers.handshakes()
    assert {clock.turn("kube-scheduler", 1.0, number / 20) for number in range(1200)} == {0.0}


async def test_web_pages_are_refused_and_without_a_core_nobody_is_answered() -> None:
    """A browser on this machine shows pages of anybody. A process that does not lead leaves it to kube-scheduler what follows."""
    async with listening(local_access()) as port:
        url = f"http://127.0.0.1:{port}"
        assert status(await ask(url)) == 200
        assert status(await ask(url, Origin="http://evil.example")) == 403
        assert status(await ask(url, verb="other")) == 404
    async with listening(local_access(), None) as port:
        for verb in ("filter", "prioritize", "preempt", "bind"):
            assert status(await ask(f"http://127.0.0.1:{port}", verb=verb, body=b"x" * (1 << 20))) == 503


@pytest.mark.filterwarnings("ignore:Sending a large body:ResourceWarning")
async def test_bodies_are_taken_up_to_their_limit() -> None:
    """Full node lists are large, and what is larger is refused before it is read as a whole."""
    world = World()
    body = BY_NAMES.encode()
    async with listening(local_access(), world.service.routes()) as port:
        url = f"http://127.0.0.1:{port}"
        full = await ask(url, verb="filter", body=body + b" " * ((32 << 20) - len(body)))
        assert isinstance(full, Answered)
        assert json.loads(full.body)["NodeNames"] == ["a", "b"]
        assert status(await ask(url, verb="filter", body=body + b" " * (32 << 20))) == 413
        assert status(await ask(url, verb="bind", body=b" " * (17 << 10))) == 413
