"""The extender answers this machine, and callers with a certificate of the authority that was named; nobody else, and no
web page."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from hosting.client import Answered, HttpClient, Unanswered
from hosting.logs import Logger
from hosting.server import Reply, Request, Route
from hosting.tls import Tls, TlsError, TlsFiles
from scheduler.placing.kube_extender.listener import ExtenderListener, ListenerSettings
from scheduler.placing.kube_extender.service import PREFIX
from tests.unit.hosting.raw_peers import recorded
from tests.unit.hosting.test_tls import Authority, loaded
from tests.unit.scheduler_extender.bodies import BY_NAMES
from tests.unit.scheduler_extender.extender_worlds import World


async def _binds(_: Request) -> Reply:
    return Reply(200, b'{"Error":""}')


BIND = (Route("POST", f"{PREFIX}/bind", _binds),)


@asynccontextmanager
async def listening(
    settings: ListenerSettings, routes: tuple[Route, ...] | None = BIND, log: Logger | None = None
) -> AsyncIterator[int]:
    listener = ExtenderListener(settings, log or recorded()[0])
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


async def test_other_machines_need_a_certificate_of_the_authority(tmp_path: Path) -> None:
    """Also one of another authority is refused, and none at all, and plain HTTP. The log says why, and not for each call."""
    log, entries = recorded()
    server, clients, other = (Authority(tmp_path / name, name) for name in ("server", "clients", "other"))
    shown = server.issue(tmp_path / "server")
    files = TlsFiles(shown.certificate, shown.key, client_ca=clients.ca)
    async with listening(ListenerSettings(0, "127.0.0.1", files), log=log) as port:

        async def called_with(client: TlsFiles) -> int | str:
            tls = loaded(TlsFiles(client.certificate, client.key, server.ca))
            return status(await ask(f"https://127.0.0.1:{port}", tls))

        assert await called_with(clients.issue(tmp_path / "clients")) == 200
        assert await called_with(other.issue(tmp_path / "other")) != 200
        assert await called_with(shown) != 200
        assert await called_with(TlsFiles()) != 200
        assert status(await ask(f"http://127.0.0.1:{port}")) != 200
    refused = [each for each in entries if each["event"] == "connections refused"]
    assert [(each["why"], each["count"]) for each in refused] == [("certificate verify failed", 1)]


async def test_web_pages_are_refused_and_without_a_core_nobody_is_answered() -> None:
    """A browser on this machine shows pages of anybody. A process that does not lead leaves it to kube-scheduler what follows."""
    async with listening(ListenerSettings(0)) as port:
        url = f"http://127.0.0.1:{port}"
        assert status(await ask(url)) == 200
        assert status(await ask(url, Origin="http://evil.example")) == 403
        assert status(await ask(url, verb="other")) == 404
    async with listening(ListenerSettings(0), None) as port:
        for verb in ("filter", "prioritize", "preempt", "bind"):
            assert status(await ask(f"http://127.0.0.1:{port}", verb=verb, body=b"x" * (1 << 20))) == 503


@pytest.mark.filterwarnings("ignore:Sending a large body:ResourceWarning")
async def test_bodies_are_taken_up_to_their_limit() -> None:
    """Full node lists are large, and what is larger is refused before it is read as a whole."""
    world = World()
    body = BY_NAMES.encode()
    async with listening(ListenerSettings(0), world.service.routes()) as port:
        url = f"http://127.0.0.1:{port}"
        full = await ask(url, verb="filter", body=body + b" " * ((32 << 20) - len(body)))
        assert isinstance(full, Answered)
        assert json.loads(full.body)["NodeNames"] == ["a", "b"]
        assert status(await ask(url, verb="filter", body=body + b" " * (32 << 20))) == 413
        assert status(await ask(url, verb="bind", body=b" " * (17 << 10))) == 413


HALF = TlsFiles(Path("tls.crt"), Path("tls.key"))


@pytest.mark.parametrize(
    ("host", "files"), [("0.0.0.0", None), ("10.0.0.7", None), ("10.0.0.7", HALF), ("127.0.0.1", HALF)]
)
def test_a_port_for_everybody_is_refused(host: str, files: TlsFiles | None) -> None:
    """No listener without certificates but on this machine, and none that asks nobody for a certificate."""
    with pytest.raises(ValueError, match="the authority of clients"):
        ListenerSettings(0, host, files)
    ListenerSettings(0, "localhost")


async def test_certificates_that_cannot_be_used_are_named(tmp_path: Path) -> None:
    files = TlsFiles(tmp_path / "tls.crt", tmp_path / "tls.key", client_ca=tmp_path / "ca.crt")
    with pytest.raises(TlsError, match=r"tls\.crt cannot be read"):
        await ExtenderListener(ListenerSettings(0, "0.0.0.0", files), recorded()[0]).open()
