"""The port that kube-scheduler calls, and its options on the command line. It is apart from the port of agents: its callers bind pods.

kube-scheduler can show a client certificate and nothing else, no token. So other machines are let in with a certificate to which the access
file gives the right `extender`; without an access file the port is there for this machine only.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Final, TypedDict, TypeVar

import click

from hosting.access import AccessScope
from hosting.addresses import endpoint
from hosting.logs import Logger
from hosting.options import FiniteRange
from hosting.server import Reply, Request, Route, Server, ServerLimits, problem
from protocol.reasons import ErrorCode
from scheduler.access.ports import Access
from scheduler.placing.kube_extender.operations import VERBS
from scheduler.placing.kube_extender.service import HTTP_TIMEOUT_S, MAX_BODY_BYTES, PREFIX

LOOPBACK: Final = "127.0.0.1"
MARGIN_S: Final = 1.0
"""How much longer than kube-scheduler waits a call is let go on, while its body is sent."""
HANDSHAKES_PER_S: Final = 200.0
"""Of one address. kube-scheduler is Go, which keeps two connections: each of more calls at once makes a new one."""


@dataclass(frozen=True, slots=True)
class ListenerSettings:
    """The address to listen on (port 0: any free one). `timeout_s` is kube-scheduler's `httpTimeout`."""

    port: int
    host: str = LOOPBACK
    timeout_s: float = HTTP_TIMEOUT_S


class ExtenderListener:
    """The server of one process. It answers 503 while this process does not lead."""

    def __init__(self, settings: ListenerSettings, access: Access, log: Logger) -> None:
        self._settings = settings
        self._access = access
        self._log = log
        peers = access.peer_limits
        if peers is not None:
            peers = replace(peers, handshakes_per_s=HANDSHAKES_PER_S, handshakes_at_once=HANDSHAKES_PER_S)
        limits = ServerLimits(request_deadline_s=settings.timeout_s + MARGIN_S, peers=peers)
        self.server = Server(log, self._not_leading(), limits=limits, gate=access.gate)

    async def open(self) -> int:
        """Listen; the port. Raises `ListenError`."""
        settings, access = self._settings, self._access
        port = await access.listen(self.server, settings.host, settings.port)
        self._log.info("listening", address=f"{access.scheme}://{endpoint(settings.host, port)}{PREFIX}")
        return port

    async def close(self) -> None:
        """Let calls in progress end, and close."""
        await self.server.close()

    def answer_from(self, routes: tuple[Route, ...] | None) -> None:
        """Answer by these routes, those of an `ExtenderService`, from now on; None: this process does not lead."""
        self.server.route(routes if routes is not None else self._not_leading())

    def _not_leading(self) -> tuple[Route, ...]:
        return tuple(
            Route("POST", f"{PREFIX}/{verb}", _refuse, MAX_BODY_BYTES, scope=AccessScope.EXTENDER)
            for verb in VERBS
        )


async def _refuse(_: Request) -> Reply:
    return problem(503, ErrorCode.NOT_LEADER, "this scheduler does not lead")


F = TypeVar("F", bound=Callable[..., Any])


class ExtenderOptions(TypedDict):
    """The options of `extender_options`."""

    mode: str
    extender_port: int | None
    extender_host: str
    extender_timeout_s: float


def extender_options(command: F) -> F:
    for option in reversed(
        (
            click.option(
                "--mode",
                type=click.Choice(["permits", "extender", "full"]),
                default="extender",
                show_default=True,
                help="What is decided on Kubernetes: growth only; also where pods go, for an unmodified kube-scheduler; or that, and "
                "pods that name this scheduler are placed and bound here.",
            ),
            click.option(
                "--extender-port",
                type=click.IntRange(0, 65535),
                help="Port for the calls of kube-scheduler (0: any free); without it there are none.",
            ),
            click.option(
                "--extender-host",
                default=LOOPBACK,
                show_default=True,
                help="Address to listen on for them. Beyond this machine's own, --access with `tls` is needed.",
            ),
            click.option(
                "--extender-timeout",
                "extender_timeout_s",
                type=FiniteRange(min=1, max=60),
                default=HTTP_TIMEOUT_S,
                show_default=True,
                metavar="SECONDS",
                help="The httpTimeout of kube-scheduler's configuration; answers are given in 80 % of that.",
            ),
        )
    ):
        command = option(command)
    return command


def listener_settings(options: ExtenderOptions) -> ListenerSettings | None:
    """The extender's listener; None if it does not listen. Raises `click.UsageError` if options do not go together."""
    port, host = options["extender_port"], options["extender_host"]
    if port is None:
        if host != LOOPBACK:
            raise click.UsageError("--extender-host: only with --extender-port")
        return None
    if options["mode"] == "permits":
        raise click.UsageError("--extender-port: not with --mode permits")
    return ListenerSettings(port, host, options["extender_timeout_s"])
