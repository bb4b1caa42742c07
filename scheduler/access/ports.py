"""The ports of a scheduler and who may call them: what `--access` and its neighbours on the command line say, while the program runs."""

import asyncio
import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypedDict, TypeVar

import click

from hosting.access import (
    AccessRefused,
    AccessScope,
    Admission,
    Caller,
    Gate,
    LocalGate,
    Refusals,
    RequestHead,
)
from hosting.addresses import endpoint, is_own
from hosting.fault_log import FaultLog
from hosting.logs import Logger
from hosting.peers import DEFAULT_PEER_LIMITS, PeerLimits
from hosting.server import Route, Server, ServerLimits
from hosting.settings import SettingsError, load
from hosting.supervisor import Supervisor
from hosting.tls import Tls, TlsError
from hosting.tokens import FileToken
from hosting.watched_file import FileUnreachableError, WatchedFile
from scheduler.access.callers import Callers, by_file, within
from scheduler.access.gate import AccessGate, KnownCallers, TokenCache, TokenReviewer
from scheduler.access.settings import AccessSettings, CallerSettings, PublishedPeer

LOOK_AT_FILES_S: Final = 2.0
"""How often the access file, the certificates and the files of tokens are looked at."""
MAX_PUBLISHED_CONNECTIONS: Final = 4096
_BY_NETWORK: Final = frozenset((AccessScope.PERMITS, AccessScope.PAGES, AccessScope.METRICS))
_HANDSHAKE: Final = "a connection was refused in its TLS handshake: "

F = TypeVar("F", bound=Callable[..., Any])


class ListenError(Exception):
    """A port cannot be opened; the message names its address."""


class AccessOptions(TypedDict):
    """The options of `access_options`."""

    access: Path | None
    plain_http: bool
    pool_writes_from_anywhere: bool


def access_options(command: F) -> F:
    for option in reversed(
        (
            click.option(
                "--access",
                type=click.Path(path_type=Path, dir_okay=False),
                help="YAML file: certificates of the ports, and who may call them. It is read again when it changes.",
            ),
            click.option(
                "--plain-http",
                is_flag=True,
                help="Listen in the clear beyond this machine. Without --access every caller there may act as any agent.",
            ),
            click.option(
                "--pool-writes-from-anywhere",
                is_flag=True,
                help="Without --access: take changes of pools (/v1/pools) from other machines, too.",
            ),
        )
    ):
        command = option(command)
    return command


@dataclass(frozen=True, slots=True)
class PublishedGate:
    """Lets published agents in by their addresses."""

    peers: tuple[PublishedPeer, ...]
    refusals: Refusals

    def admit(self, head: RequestHead, scope: AccessScope) -> Admission:
        nodes = {node for peer in self.peers if within(head.peer, peer.addresses) for node in peer.nodes}
        if not nodes or scope is not AccessScope.PERMITS:
            message = (
                f"{head.peer} is no address of published agents, or asks for something else than permits"
            )
            return AccessRefused(403, "address", message)
        return Caller(head.peer, frozenset((AccessScope.PERMITS,)), tuple(sorted(nodes)), is_published=True)


class Access:
    """Owns the gate, the certificates and the files that they come from. Make it with `opened`."""

    def __init__(
        self,
        options: AccessOptions,
        settings: AccessSettings | None,
        log: Logger,
    ) -> None:
        self._options = options
        self._settings = settings
        self._log = log
        self.refusals = Refusals(log)
        self._supervisor = Supervisor(log, random.Random())
        self._cache: TokenCache | None = None
        self.tls: Tls | None = None
        self._gate: AccessGate | None = None
        self._file: WatchedFile[AccessSettings, AccessSettings] | None = None
        if settings is None:
            elsewhere = _BY_NETWORK if options["plain_http"] else frozenset[AccessScope]()
            if options["pool_writes_from_anywhere"]:
                elsewhere |= {AccessScope.WRITE}
            self.gate: Gate = LocalGate(self.refusals, elsewhere, " (--access says who else may call)")
            return
        if settings.tls is not None:
            self.tls = Tls(settings.tls.files(), self._tell_handshake)
        self.gate = self._gate = AccessGate(_known(settings, ()), self.refusals)
        assert options["access"] is not None
        self._file = WatchedFile(options["access"], AccessSettings, lambda read: read)

    @classmethod
    def opened(cls, options: AccessOptions, log: Logger, *, on_kubernetes: bool = False) -> "Access":
        """Read everything. Raises `SettingsError`, `TlsError` and `TokenFileError`."""
        path = options["access"]
        if path is None:
            return cls(options, None, log)
        if options["pool_writes_from_anywhere"]:
            raise SettingsError(
                path, ["--pool-writes-from-anywhere: give the right `write` to callers instead"]
            )
        settings = load(path, AccessSettings)
        if settings.needs_reviews and not on_kubernetes:
            faults = [
                f"callers[{index}].serviceAccount: only with --kubernetes, where the API server checks its tokens"
                for index, each in enumerate(settings.callers)
                if each.service_account is not None
            ]
            raise SettingsError(path, faults)
        access = cls(options, settings, log)
        if access.tls is not None:
            access.tls.load()
        if access._gate is not None:
            for token, _ in access._gate.known.files:
                token.load()
        return access

    def review_by(self, reviewer_for: Callable[[str], TokenReviewer]) -> None:
        """Have tokens of service accounts checked: by what is made for their audience."""
        if self._gate is not None:
            self._cache = self._gate.cache = TokenCache(reviewer_for(self._gate.known.audience))

    def _tell_handshake(self, why: str) -> None:
        """A client is told of its own certificate as the end of the connection, and asyncio tells nobody else."""
        self.refusals.add("handshake", AccessScope.KNOWN, AccessRefused(401, "handshake", _HANDSHAKE + why))

    # ------------------------------------------------------------ ports

    @property
    def scheme(self) -> str:
        return "https" if self.tls is not None else "http"

    @property
    def peer_limits(self) -> PeerLimits | None:
        """The limits of each peer; without an access file there are none, as for benchmarks and tools on this machine."""
        return DEFAULT_PEER_LIMITS if self._settings is not None else None

    def fault(self, host: str) -> str | None:
        """Why the port of agents cannot be opened on `host`; None if it can."""
        if is_own(host) or self.tls is not None or self._options["plain_http"]:
            return None
        return f"--host {host}: other machines would call in the clear. Give certificates with --access (`tls`), or say --plain-http"

    def fault_of_extender(self, host: str) -> str | None:
        """Why the port of kube-scheduler cannot be opened on `host`: its callers bind pods, so that no network is trusted with it."""
        if is_own(host) or self.tls is not None:
            return None
        return f"--extender-host {host}: other machines are let in with certificates only: give --access with `tls`"

    async def listen(self, server: Server, host: str, port: int) -> int:
        """Have `server` listen; the port. Raises `ListenError`."""
        try:
            return await server.start(host, port, self.tls.server() if self.tls is not None else None)
        except OSError as error:
            raise ListenError(f"cannot listen on {endpoint(host, port)}: {error.strerror}") from None

    async def open_published(self, routes: Iterable[Route], fallback: Route | None = None) -> Server | None:
        """Listen for published agents, if they are served, and answer by these routes. Raises `ListenError`."""
        published = self._settings.published if self._settings is not None else None
        if published is None:
            return None
        gate = PublishedGate(tuple(published.peers), self.refusals)
        limits = ServerLimits(connections=MAX_PUBLISHED_CONNECTIONS, peers=DEFAULT_PEER_LIMITS)
        server = Server(self._log, tuple(routes), fallback=fallback, limits=limits, gate=gate)
        try:
            port = await server.start(published.host, published.port)
        except OSError as error:
            where = endpoint(published.host, published.port)
            raise ListenError(f"cannot listen for published agents on {where}: {error.strerror}") from None
        peers = [
            f"{', '.join(map(str, peer.addresses))} for nodes {', '.join(peer.nodes)}"
            for peer in published.peers
        ]
        self._log.warning(
            "published agents are served in the clear, by their addresses",
            address=f"http://{endpoint(published.host, port)}",
            peers=peers,
        )
        return server

    def published_nodes(self) -> tuple[str, ...]:
        """The nodes on which callers without the extension are served, by the access file."""
        published = self._settings.published if self._settings is not None else None
        return tuple(node for peer in published.peers for node in peer.nodes) if published is not None else ()

    def who_may(self, host: str) -> dict[str, str]:
        """Who may do what at the port on `host`, in words for the log."""
        if self._settings is not None:
            told = {scope.value: "nobody" for scope in sorted(_TOLD)}
            for scope in _TOLD:
                named = [_named(each) for each in self._settings.callers if scope in each.scopes]
                if named:
                    told[scope.value] = ", ".join(named)
            return {**told, "health": "everybody who reaches it"}
        if is_own(host):
            return {"everything": "every process on this machine"}
        writes = self._options["pool_writes_from_anywhere"]
        return {
            "permits, pages, metrics": "everybody who reaches it",
            "write": "everybody who reaches it" if writes else "this machine",
        }

    # ------------------------------------------------------------ files

    def start(self) -> None:
        """Follow the files."""
        if self._file is not None:
            self._supervisor.start("access", self._follow)

    async def close(self) -> None:
        await self._supervisor.stop()
        if self._cache is not None:
            await self._cache.close()

    async def _follow(self) -> None:
        begun, over = "{} not usable, the old one stays in force", "{} usable again"
        faults = {
            what: FaultLog(self._log, begun.format(what), over.format(what))
            for what in ("certificates", "access file")
        }
        steps = {
            "certificates": self._refresh_tls,
            "access file": self._refresh_file,
        }
        while True:
            await asyncio.sleep(LOOK_AT_FILES_S)
            for what, step in steps.items():
                try:
                    await step()
                except (TlsError, SettingsError, FileUnreachableError) as error:
                    faults[what].failed(error)
                else:
                    faults[what].worked()

    async def _refresh_tls(self) -> None:
        if self.tls is not None and await self.tls.refresh():
            self._log.info("certificates read again")

    async def _refresh_file(self) -> None:
        assert self._file is not None
        assert self._gate is not None
        read = await self._file.refresh()
        if read is None or read == self._settings:
            return
        before = self._settings
        assert before is not None
        if read.needs_reviews and self._cache is None:
            self._log.warning("access file: serviceAccount needs --kubernetes; such callers are not known")
        if (read.tls, read.tokens, read.published) != (before.tls, before.tokens, before.published):
            self._log.warning("access file: tls, tokens and published are taken up with the next start only")
        self._settings = read.model_copy(
            update={"tls": before.tls, "tokens": before.tokens, "published": before.published}
        )
        self._gate.known = _known(self._settings, [token for token, _ in self._gate.known.files])
        self._log.info("access file read again", callers=len(read.callers))


_TOLD: Final = (
    AccessScope.PERMITS,
    AccessScope.PAGES,
    AccessScope.WRITE,
    AccessScope.EXTENDER,
    AccessScope.METRICS,
)


def _known(settings: AccessSettings, tokens: Iterable[FileToken]) -> KnownCallers:
    """The callers of these settings. `tokens` are those of files that were known before: they stay as they are."""
    before = {token.path: token for token in tokens}
    files = tuple(
        (
            before.get(entry.token_file) or FileToken(entry.token_file, may_be_missing=True),
            by_file(entry, str(entry.token_file)),
        )
        for entry in settings.callers
        if entry.token_file is not None
    )
    return KnownCallers(Callers(settings.callers), settings.tokens.audience, files)


def _named(entry: CallerSettings) -> str:
    if entry.addresses is not None:
        return ", ".join(map(str, entry.addresses))
    return str(entry.certificate or entry.service_account or f"token of {entry.token_file}")
