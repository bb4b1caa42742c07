"""TLS for servers and clients, from files that are read again when they change.

Certificates are renewed while a program runs. Files that are read anew hold for new connections; files that cannot be used are reported,
and the content that was read before stays in force.
"""

import asyncio
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from hosting.access import ClientCertificate
from hosting.threads import SingleCall

READ_DEADLINE_S: Final = 2.0
"""How long reading the files may take; a network's file system may hang."""

_Stamp = tuple[tuple[int, int, int], ...]
"""Time of the last change (ns), size in bytes and inode of each file."""


class TlsError(Exception):
    """The files cannot be used; the message names the file and its fault."""


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """PEM files: our certificate (with its chain) and its key, and the authorities that we trust.

    Without `ca` the authorities of the system are trusted. With `client_ca` a server asks its clients for a certificate: one that is not of
    these authorities, or not valid now, ends the handshake. A client may show none: what it may do is up to the gate (`hosting.access`).
    """

    certificate: Path | None = None
    key: Path | None = None
    ca: Path | None = None
    client_ca: Path | None = None

    def paths(self) -> tuple[Path, ...]:
        named = (self.certificate, self.key, self.ca, self.client_ca)
        return tuple(path for path in named if path is not None)


@dataclass(frozen=True, slots=True)
class _Contexts:
    """The contexts of one state of the files."""

    client: ssl.SSLContext
    server: ssl.SSLContext | None


class Tls:
    """The contexts of servers and clients. Call `load` once before anything else, and `refresh` from time to time."""

    def __init__(self, files: TlsFiles, tell_refused: Callable[[str], None] | None = None) -> None:
        """`tell_refused` is told why a handshake with a client of the server failed, which asyncio keeps to itself."""
        self._files = files
        self._tell_refused = tell_refused
        self._stamp: _Stamp | None = None
        self._now: _Contexts | None = None
        self._listening: ssl.SSLContext | None = None
        self._look = SingleCall()

    @property
    def files(self) -> TlsFiles:
        return self._files

    def load(self) -> None:
        """Read the files. Raises `TlsError`."""
        self._stamp, self._now = _read(self._files)
        if self._now.server is not None:
            # A listening socket keeps its context: this one gives every new connection the context that was read last.
            self._listening = _server(self._files)
            self._listening.sni_callback = self._hand_on
            if self._tell_refused is not None:
                self._listening.sslobject_class = _telling(self._tell_refused)

    def _hand_on(self, connection: ssl.SSLObject, name: str | None, context: ssl.SSLContext) -> None:
        del name, context
        if self._now is not None and self._now.server is not None:
            connection.context = self._now.server

    def client(self) -> ssl.SSLContext:
        assert self._now is not None, "load first"
        return self._now.client

    def server(self) -> ssl.SSLContext:
        """The context that a server listens with. It follows the files by itself."""
        assert self._listening is not None, "load first, with a certificate"
        return self._listening

    async def refresh(self) -> bool:
        """Read the files again if they have changed; whether they had. Raises `TlsError`: then nothing changes."""
        known = self._stamp
        if known == ():
            return False  # no files are named
        try:
            found = await self._look.run(
                lambda: None if _stamp_of(self._files) == known else _read(self._files), READ_DEADLINE_S
            )
        except TimeoutError:
            raise TlsError("the certificate files could not be read in time") from None
        if found is None:
            return False
        self._stamp, self._now = found
        return True


def _stamp_of(files: TlsFiles) -> _Stamp:
    """Differs between two states of the files. Raises `TlsError`."""
    stamps = []
    for path in files.paths():
        try:
            status = path.stat()
        except OSError as error:
            raise TlsError(f"{path} cannot be read: {error.strerror}") from None
        stamps.append((status.st_mtime_ns, status.st_size, status.st_ino))
    return tuple(stamps)


def _read(files: TlsFiles) -> tuple[_Stamp, _Contexts]:
    """The contexts, and a stamp that is no younger than they are. Raises `TlsError`."""
    stamp = _stamp_of(files)
    return stamp, _Contexts(_client(files), None if files.certificate is None else _server(files))


def _client(files: TlsFiles) -> ssl.SSLContext:
    context = ssl.create_default_context(ssl.Purpose.SERVER_AUTH)
    if files.ca is not None:
        # Only these authorities are trusted then, not those of the system beside them.
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        _trust(context, files.ca)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    _show(context, files)
    return context


def _server(files: TlsFiles) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.num_tickets = 0  # a third of a handshake's price, and no client of ours resumes a session
    if files.client_ca is not None:
        context.verify_mode = ssl.CERT_OPTIONAL
        _trust(context, files.client_ca)
    _show(context, files)
    return context


def _telling(tell: Callable[[str], None]) -> type[ssl.SSLObject]:
    class TellingConnection(ssl.SSLObject):
        def do_handshake(self) -> None:
            try:
                super().do_handshake()
            except (
                ssl.SSLWantReadError,
                ssl.SSLWantWriteError,
            ):  # no failures: more is to be read or written
                raise
            except ssl.SSLError as error:
                tell(_why(error))
                raise

    return TellingConnection


def certificate_of(transport: asyncio.BaseTransport) -> ClientCertificate | None:
    """The certificate that the other side of a connection has shown; None if it has shown none."""
    shown = transport.get_extra_info("peercert")
    if not shown:
        return None
    names = tuple(str(value) for kind, value in shown.get("subjectAltName", ()) if kind in ("URI", "DNS"))
    return ClientCertificate(names, float(ssl.cert_time_to_seconds(shown["notAfter"])))


def _trust(context: ssl.SSLContext, authorities: Path) -> None:
    try:
        context.load_verify_locations(authorities)
    except (OSError, ValueError) as error:
        raise TlsError(
            f"{authorities} holds no certificates in PEM that can be used: {_why(error)}"
        ) from None


def _show(context: ssl.SSLContext, files: TlsFiles) -> None:
    """Make `context` show our certificate, if there is one."""
    if files.certificate is None:
        return
    try:
        context.load_cert_chain(files.certificate, files.key, password=_no_password)
    except (OSError, ValueError) as error:
        named = " and ".join(str(path) for path in (files.certificate, files.key) if path is not None)
        raise TlsError(
            f"{named} are no certificate in PEM with its key, without a password: {_why(error)}"
        ) from None


def _no_password() -> str:
    """An empty password; OpenSSL would ask for one on the terminal otherwise."""
    return ""


def _why(error: OSError | ValueError) -> str:
    if isinstance(error, ssl.SSLError):
        return (error.reason or "it cannot be parsed").lower().replace("_", " ")
    return (error.strerror if isinstance(error, OSError) else None) or str(error)
