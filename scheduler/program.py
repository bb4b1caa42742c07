"""The program `parley-scheduler`."""

import os
import sys
import time
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Unpack, cast

import click

from hosting import lifecycle, logs, metrics, server
from hosting.access import AccessScope
from hosting.addresses import AddressError, advertised, endpoint
from hosting.options import Advertise, FiniteRange, daemon
from hosting.problems import HEALTHZ, METRICS, READYZ
from hosting.settings import SettingsError
from hosting.tls import TlsError
from hosting.tokens import TokenFileError
from scheduler.access.ports import Access, AccessOptions, ListenError, access_options
from scheduler.clusters.file import FileCluster
from scheduler.daemon.serving import Serving, ServingOptions, Sources, description, server_limits
from scheduler.permits.service.config_file import ConfigFile
from scheduler.placing.kube_extender.listener import ExtenderOptions, extender_options, listener_settings

if TYPE_CHECKING:
    from scheduler.daemon.term import KubernetesOptions


class Options(ServingOptions):
    """The command line of a standalone scheduler, checked."""

    cluster: Path
    config: Path | None
    host: str
    port: int
    page_routes: tuple[server.Route, ...]


class AllOptions(ServingOptions, ExtenderOptions, AccessOptions):
    """The command line, as it is written."""

    cluster: Path | None
    config: Path | None
    host: str
    port: int
    kubernetes: bool
    kubeconfig: Path | None
    context: str | None
    lease: tuple[str, str] | None
    lease_duration_s: float
    config_map: tuple[str, str] | None
    advertise: str | None
    scheduler_name: str | None
    page: bool


class Place(click.ParamType[tuple[str, str]]):
    """An object of Kubernetes."""

    name = "namespace/name"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, str]:
        """Namespace and name. Fails for anything else."""
        if isinstance(value, tuple):
            return value
        namespace, _, name = str(value).partition("/")
        if not namespace or not name or "/" in name:
            self.fail(f"{value!r} must be NAMESPACE/NAME, such as parley-system/parley-scheduler", param, ctx)
        return namespace, name


class Program:
    """A standalone scheduler: a cluster file, and one core from the beginning to the end."""

    def __init__(self, options: Options, access: Access) -> None:
        self._options = options
        self._access = access
        self._log = logs.logger("scheduler")
        cluster = FileCluster(options["cluster"], time.monotonic, time.time() - time.monotonic())
        config = options["config"]
        configuration = ConfigFile(config, migrator_present=False) if config is not None else None
        sources = Sources(cluster, configuration, lambda: cluster.pools, refusals=access.refusals)
        self._serving = Serving(options, sources)
        led, always = self._serving.routes(), self._common(options["page_routes"])
        routes = (*led, *always, description(led, always))
        self._server = server.Server(
            self._log, routes, limits=server_limits(access.peer_limits), gate=access.gate
        )

    def _common(self, page_routes: tuple[server.Route, ...]) -> tuple[server.Route, ...]:
        return (
            *page_routes,
            server.Route("GET", "/healthz", self._healthz, about=HEALTHZ, scope=AccessScope.OPEN),
            server.Route("GET", "/readyz", self._healthz, about=READYZ, scope=AccessScope.OPEN),
            server.Route(
                "GET",
                "/metrics",
                metrics.handler(lambda: self._serving.families(self._server)),
                about=METRICS,
                scope=AccessScope.METRICS,
            ),
        )

    async def run(self, stop: lifecycle.Stop) -> int:
        """Serve until the end is asked for; 2 if the cluster file cannot be used."""
        try:
            return await self._run(stop)
        finally:
            await self._serving.close()

    async def _run(self, stop: lifecycle.Stop) -> int:
        faults = await self._serving.load()
        for fault in faults:
            click.echo(fault, err=True)
        if faults:
            return 2
        host, access = self._options["host"], self._access
        try:
            port = await access.listen(self._server, host, self._options["port"])
            published = await access.open_published(self._serving.transport.routes())
        except ListenError as error:
            click.echo(str(error), err=True)
            return 1
        self._serving.greet(f"{access.scheme}://{endpoint(host, port)}")
        self._log.info("who may call", **access.who_may(host))
        access.start()
        self._serving.start()
        await stop.wait()
        self._log.info("draining")
        self._serving.drain()
        await self._server.close()
        if published is not None:
            await published.close()
        await access.close()
        await self._serving.end()
        return 0

    async def _healthz(self, _: server.Request) -> server.Reply:
        # The server listens only after the cluster was read, so alive and ready are one here.
        return server.text(200, "ok")


def check_options(options: AllOptions) -> None:
    """Raises `click.UsageError` if options do not go together."""
    is_standalone = options["cluster"] is not None
    if is_standalone == options["kubernetes"]:
        raise click.UsageError("exactly one of --cluster and --kubernetes is needed")
    only_there = {
        "--kubeconfig": options["kubeconfig"],
        "--context": options["context"],
        "--lease": options["lease"],
        "--config-map": options["config_map"],
        "--advertise": options["advertise"],
        "--scheduler-name": options["scheduler_name"],
        "--extender-port": options["extender_port"],
        "--mode full": options["mode"] if options["mode"] == "full" else None,
    }
    given = [name for name, value in only_there.items() if value is not None]
    if is_standalone and given:
        raise click.UsageError(f"{', '.join(given)}: only with --kubernetes")
    if is_standalone:
        return
    if options["lease"] is None:
        raise click.UsageError("--kubernetes needs --lease")
    if options["state"] is not None:
        raise click.UsageError("--state: not with --kubernetes, where Pool objects keep the pools")
    if options["config"] is not None and options["config_map"] is not None:
        raise click.UsageError("only one of --config and --config-map")


UNUSABLE: Final = (SettingsError, TlsError, TokenFileError)
"""The errors of access files and of what they name."""


async def _on_kubernetes(options: "KubernetesOptions", access: Access, stop: lifecycle.Stop) -> int:
    # The client library is an extra, and takes a while to load.
    from hosting.kubernetes.api import ApiCredentials, CredentialsError, KubernetesApi  # noqa: PLC0415 - see above
    from scheduler.access.token_reviewer import ApiTokenReviewer  # noqa: PLC0415 - see above
    from scheduler.daemon.leader import KubernetesProgram  # noqa: PLC0415 - see above

    credentials = ApiCredentials(options["kubeconfig"], options["context"])
    try:
        async with KubernetesApi(credentials, user_agent="parley-scheduler") as api:
            access.review_by(partial(ApiTokenReviewer, api))
            return await KubernetesProgram(options, api, access).run(stop)
    except CredentialsError as error:
        click.echo(str(error), err=True)
        return 2
    except OSError as error:
        click.echo(_unusable(options, error), err=True)
        return 1


@daemon(10299)
@click.option(
    "--cluster",
    type=click.Path(path_type=Path, dir_okay=False),
    help="YAML file with the nodes and VMs; it is read again when it changes.",
)
@click.option(
    "--kubernetes",
    is_flag=True,
    help="Read nodes, pods and VMs from the API server of Kubernetes instead of a file.",
)
@click.option(
    "--kubeconfig",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Credentials for the API server; those of the pod's service account, where it is left out.",
)
@click.option("--context", metavar="NAME", help="Context of the kubeconfig; its current one by default.")
@click.option(
    "--lease",
    type=Place(),
    help="Lease by which one of several schedulers leads. Those that do not lead name the leader to agents.",
)
@click.option(
    "--lease-duration",
    "lease_duration_s",
    type=FiniteRange(min=1),
    default=15.0,
    show_default=True,
    metavar="SECONDS",
    help="How long a leader that has gone silent keeps others from leading.",
)
@click.option(
    "--config-map",
    type=Place(),
    help="ConfigMap with the rules under the key config.yaml, instead of --config.",
)
@click.option(
    "--advertise",
    type=Advertise(),
    help="Address or network interface that other schedulers name to agents while this one leads. Needed where --host is a "
    "wildcard.",
)
@click.option(
    "--scheduler-name",
    metavar="NAME",
    help="Label the leader's pod name=NAME as well: agents of NeonVM look for that.",
)
@extender_options
@click.option(
    "--config",
    type=click.Path(path_type=Path, dir_okay=False),
    help="YAML file with the rules for nodes and growth; it is read again when it changes.",
)
@click.option(
    "--published-agents",
    metavar="GLOB",
    multiple=True,
    help="Nodes where agents without Parley's extension are served (may be repeated; none by default).",
)
@click.option(
    "--trust-published",
    is_flag=True,
    help="Where the cluster shows no sizes, serve agents without the extension all the same: what they were told counts "
    "as their use.",
)
@click.option(
    "--handover",
    "handover_s",
    type=FiniteRange(min=1),
    default=60.0,
    show_default=True,
    metavar="SECONDS",
    help="How long what a silent or superseded agent held stays reserved.",
)
@click.option(
    "--rest",
    "rest_s",
    type=FiniteRange(min=1),
    default=60.0,
    show_default=True,
    metavar="SECONDS",
    help="How long a VM that was asked to give back room is not asked again.",
)
@click.option(
    "--first-start",
    is_flag=True,
    help="Neither a scheduler nor an agent has run here before: keep nothing for what agents may still hold.",
)
@click.option(
    "--journal",
    type=click.Path(path_type=Path, file_okay=False),
    help="Record every input there, for `parley replay` (off by default).",
)
@click.option(
    "--state",
    type=click.Path(path_type=Path, file_okay=False),
    help="Keep pools there across restarts; what is kept goes before the cluster file (off by default).",
)
@access_options
@click.option(
    "--page",
    is_flag=True,
    help="Show nodes, VMs and decisions to people with a browser, at / (needs the extra `page`).",
)
def main(log_level: str, log_format: logs.Style, **options: Unpack[AllOptions]) -> None:
    """Parley's permit server: keeps a ledger per node and answers agents that want their VMs to grow.

    Exit codes: 0 after a signal, 1 when the address is taken or the directory of the journal or the state cannot be
    used, 2 for a wrong command line, cluster file, configuration or state, credentials, or a plugin that is not there.
    """
    check_options(options)
    logs.configure(log_level, log_format)
    try:
        run = _program(options)
    except UNUSABLE as error:
        click.echo(str(error), err=True)
        sys.exit(2)
    except OSError as error:
        click.echo(_unusable(options, error), err=True)
        sys.exit(1)
    sys.exit(lifecycle.run(run))


def _unusable(options: ServingOptions, error: OSError) -> str:
    named = [str(path) for path in (options["journal"], options["state"]) if path is not None]
    return f"cannot use the directory {' or '.join(named)}: {error.strerror}"


def _page_routes() -> tuple[server.Route, ...]:
    from scheduler.page.routes import PageUnavailableError, page_routes  # noqa: PLC0415 - most schedulers show no page

    try:
        return page_routes()
    except PageUnavailableError as error:
        raise click.UsageError(str(error)) from None


def _access(options: AllOptions) -> Access:
    """Raises `click.UsageError` if a port cannot be opened with it, and one of `UNUSABLE`."""
    access = Access.opened(options, logs.logger("access"), on_kubernetes=options["kubernetes"])
    fault = access.fault(options["host"])
    if fault is None and options["extender_port"] is not None:
        fault = access.fault_of_extender(options["extender_host"])
    if fault is not None:
        raise click.UsageError(fault)
    options["published_agents"] += access.published_nodes()
    return access


def _program(options: AllOptions) -> Callable[[lifecycle.Stop], Awaitable[int]]:
    """Raises `OSError` if the directory of the journal or the state cannot be used, one of `UNUSABLE`, and `click.UsageError`."""
    pages = {"page_routes": _page_routes() if options["page"] else ()}
    if not options["kubernetes"]:
        return Program(cast("Options", {**options, **pages}), _access(options)).run
    namespace, name = os.environ.get("POD_NAMESPACE"), os.environ.get("POD_NAME")
    pod = (namespace, name) if namespace and name else None
    try:
        address = advertised(options["advertise"], options["host"])
    except AddressError as error:
        raise click.UsageError(str(error)) from None
    more = {"pod": pod, "advertised": address, "listener": listener_settings(options), **pages}
    access = _access(options)
    return partial(_on_kubernetes, cast("KubernetesOptions", {**options, **more}), access)
