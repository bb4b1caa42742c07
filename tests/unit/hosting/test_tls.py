"""TLS: servers and clients speak it from files, follow the files, and say what is wrong with them."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import datetime
from pathlib import Path

import pytest
import trustme

from hosting.client import Answered, HttpClient, Unanswered
from hosting.server import Server
from hosting.tls import Tls, TlsError, TlsFiles
from tests.unit.hosting.raw_peers import HELLO, recorded


class Authority:
    """An authority, and the files that a program is given."""

    def __init__(self, directory: Path, name: str) -> None:
        self._ca = trustme.CA()
        directory.mkdir(exist_ok=True)
        self.ca = directory / f"{name}.ca"
        self._ca.cert_pem.write_to_path(str(self.ca))

    def issue(
        self, directory: Path, *names: str, since: datetime | None = None, until: datetime | None = None
    ) -> TlsFiles:
        """Write a certificate for loopback, or for these names, and its key in the place of those that are there."""
        directory.mkdir(exist_ok=True)
        issued = self._ca.issue_cert(
            *(names or ("127.0.0.1", "localhost")), not_before=since, not_after=until
        )
        files = TlsFiles(directory / "tls.crt", directory / "tls.key")
        for path, parts in (
            (files.certificate, issued.cert_chain_pems),
            (files.key, [issued.private_key_pem]),
        ):
            assert path is not None
            new = path.with_suffix(".new")
            new.write_bytes(b"".join(part.bytes() for part in parts))
            new.replace(path)
        return files


def loaded(files: TlsFiles) -> Tls:
    tls = Tls(files)
    tls.load()
    return tls


@asynccontextmanager
async def listening(tls: Tls | None = None) -> AsyncIterator[int]:
    """The port of a server."""
    server = Server(recorded()[0], (HELLO,))
    port = await server.start("127.0.0.1", 0, tls.server() if tls is not None else None)
    try:
        yield port
    finally:
        await server.close()


async def ask(port: int, tls: Tls | None) -> Answered | Unanswered:
    """Ask a server over a connection of its own."""
    async with HttpClient(tls=tls) as client:
        return await client.call("GET", f"https://127.0.0.1:{port}/hello", deadline_s=20)


async def test_a_client_that_believes_the_authority_is_served_and_others_say_why_not(tmp_path: Path) -> None:
    ours, other = Authority(tmp_path, "ours"), Authority(tmp_path, "other")
    async with listening(loaded(ours.issue(tmp_path))) as port:
        found = await ask(port, loaded(TlsFiles(ca=ours.ca)))
        assert isinstance(found, Answered)
        assert found.status == 200
        for stranger in (loaded(TlsFiles(ca=other.ca)), None):
            refused = await ask(port, stranger)
            assert isinstance(refused, Unanswered)
            assert refused.kind == "connect"
            assert "its certificate is not trusted: " in refused.message
            assert "_ssl.c" not in refused.message
        async with HttpClient() as client:
            plain = await client.call("GET", f"http://127.0.0.1:{port}/hello", deadline_s=20)
            assert isinstance(plain, Unanswered)
    async with listening() as port:
        found = await ask(port, None)
        assert isinstance(found, Unanswered)
        assert found.message.startswith("no TLS with it: ")


async def test_an_address_is_asked_by_the_name_that_its_certificate_is_for(tmp_path: Path) -> None:
    """As the endpoints of a Service are, whose certificate names the Service and no addresses."""
    ours = Authority(tmp_path, "ours")
    tls = loaded(TlsFiles(ca=ours.ca))
    async with listening(loaded(ours.issue(tmp_path, "parley-scheduler.parley-system.svc"))) as port:
        told = []
        for name in ("parley-scheduler.parley-system.svc", "other.parley-system.svc", None):
            async with HttpClient(tls=tls, server_name=name) as client:
                found = await client.call("GET", f"https://127.0.0.1:{port}/hello", deadline_s=20)
                told.append(found.status if isinstance(found, Answered) else found.message)
    assert told[0] == 200
    assert all("its certificate is not trusted: " in str(each) for each in told[1:])
    async with listening() as port, HttpClient(server_name="any") as client:
        found = await client.call("GET", f"http://127.0.0.1:{port}/hello", deadline_s=20)
        assert isinstance(found, Answered)


async def test_renewed_files_hold_for_new_connections_on_both_sides(tmp_path: Path) -> None:
    """A certificate by another authority: the server shows it without listening anew, the client believes it."""
    old, new = Authority(tmp_path, "old"), Authority(tmp_path, "new")
    files = old.issue(tmp_path)
    believed = tmp_path / "believed.ca"
    believed.write_bytes(old.ca.read_bytes())
    shown, tls = loaded(files), loaded(TlsFiles(ca=believed))
    async with listening(shown) as port, HttpClient(tls=tls) as client:

        async def status() -> int | str:
            found = await client.call("GET", f"https://127.0.0.1:{port}/hello", deadline_s=20)
            return found.status if isinstance(found, Answered) else found.message

        assert await status() == 200
        assert not await shown.refresh()
        new.issue(tmp_path)
        assert await shown.refresh()
        assert "not trusted" in str(await ask(port, tls))
        believed.write_bytes(new.ca.read_bytes() + b"\n")
        assert await tls.refresh()
        assert await status() == 200  # by a new connection: the one with the old authority is not used again
        assert isinstance(await ask(port, tls), Answered)
        assert "not trusted" in str(await ask(port, loaded(TlsFiles(ca=old.ca))))


async def test_clients_are_asked_for_a_certificate_that_the_authorities_of_now_believe(
    tmp_path: Path,
) -> None:
    """A foreign one ends the handshake, none is for the gate to judge; and a new authority holds for new connections, without listening anew."""
    server, old, new = (Authority(tmp_path / name, name) for name in ("server", "old", "new"))
    shown, believed = server.issue(tmp_path / "server"), tmp_path / "believed.ca"
    believed.write_bytes(old.ca.read_bytes())
    files = {authority: authority.issue(tmp_path / name) for authority, name in ((old, "old"), (new, "new"))}
    tls = loaded(TlsFiles(shown.certificate, shown.key, client_ca=believed))

    async def is_let_in(authority: Authority | None) -> bool:
        own = files[authority] if authority is not None else TlsFiles()
        found = await ask(port, loaded(TlsFiles(own.certificate, own.key, server.ca)))
        return isinstance(found, Answered) and found.status == 200

    async with listening(tls) as port:
        assert [await is_let_in(each) for each in (old, new, None)] == [True, False, True]
        believed.write_bytes(new.ca.read_bytes() + b"\n")
        assert await tls.refresh()
        assert [await is_let_in(each) for each in (old, new, None)] == [False, True, True]


async def test_without_files_nothing_is_read_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine that is slow to start a thread has no fault of certificates where there are none."""
    tls = loaded(TlsFiles())
    monkeypatch.setattr("hosting.tls.READ_DEADLINE_S", 0.0)
    assert not await tls.refresh()


async def test_files_that_cannot_be_used_are_named_and_the_old_ones_stay(tmp_path: Path) -> None:
    authority = Authority(tmp_path, "ca")
    files = authority.issue(tmp_path)
    assert files.certificate is not None
    assert files.key is not None
    tls = loaded(files)
    before = tls.client()
    files.certificate.write_text("half a cert")
    with pytest.raises(TlsError, match=r"tls\.crt and .*tls\.key are no certificate in PEM with its key"):
        await tls.refresh()
    files.key.unlink()
    with pytest.raises(TlsError, match=r"tls\.key cannot be read: No such file"):
        await tls.refresh()
    assert tls.client() is before
    authority.issue(tmp_path)
    assert await tls.refresh()


@pytest.mark.parametrize(
    ("content", "words"), [(b"", "holds no certificates"), (b"\xff\x00", "holds no certificates")]
)
def test_an_authority_that_is_none_is_named(tmp_path: Path, content: bytes, words: str) -> None:
    (tmp_path / "ca").write_bytes(content)
    with pytest.raises(TlsError, match=words):
        Tls(TlsFiles(ca=tmp_path / "ca")).load()


def test_a_key_with_a_password_is_refused_without_asking(tmp_path: Path) -> None:
    from cryptography.hazmat.primitives import serialization  # noqa: PLC0415 - comes with trustme

    files = Authority(tmp_path, "ca").issue(tmp_path)
    assert files.key is not None
    key = serialization.load_pem_private_key(files.key.read_bytes(), None)
    locked = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.BestAvailableEncryption(b"secret"),
    )
    files.key.write_bytes(locked)
    with pytest.raises(TlsError, match="without a password"):
        Tls(files).load()


async def test_a_peer_that_never_shakes_hands_holds_up_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hosting.server.HANDSHAKE_S", 0.05)
    authority = Authority(tmp_path, "ca")
    async with listening(loaded(authority.issue(tmp_path))) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        async with asyncio.timeout(20):
            assert await reader.read() == b""
        writer.close()
        assert isinstance(await ask(port, loaded(TlsFiles(ca=authority.ca))), Answered)
