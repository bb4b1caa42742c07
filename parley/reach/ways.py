"""The two ways to the programs, by addresses and through the API server of Kubernetes, with the options of each; and the names of VMs on a command line.

Loaded with every call of the program: nothing slow is imported before it is needed, and the client library of Kubernetes is an extra.
"""

import asyncio
import contextlib
import io
import logging
import os
from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias
from urllib.parse import quote

import click
from click.shell_completion import CompletionItem

from hosting.options import (
    agents_option,
    ca_option,
    certificate_option,
    key_option,
    scheduler_option,
    token_option,
    warn_of_plain_tokens,
    with_certificate,
)
from parley.reach.ports import Command, Reach, Way

TEXT_OR_JSON: Final = click.option(
    "--output",
    "-o",
    type=click.Choice(["text", "json"]),
    default="text",
    show_default=True,
    help="For people or scripts.",
)


class ByAddress:
    """The way by `--scheduler` and `--agent`."""

    def options(self, command: Command) -> Command:
        """The addresses, a token, a certificate, and the authorities that are trusted."""
        for option in (
            key_option,
            certificate_option,
            ca_option,
            token_option,
            agents_option,
            scheduler_option,
        ):
            command = option(command)
        return command

    def reach(self, options: Mapping[str, Any]) -> AbstractAsyncContextManager[Reach]:
        """The programs at the addresses. Warns of a token that would travel unprotected."""
        from parley.reach.asking import DirectReach  # noqa: PLC0415 - `--version` should not load the client

        agents, token = options["agents"], options["token"]
        warn_of_plain_tokens(agents, token)
        tls = with_certificate(options["tls"], options.get("certificate"), options.get("key"))
        return DirectReach(options["schedulers"], agents, token, tls)

    def namespace(self, _: Mapping[str, Any]) -> str:
        return "default"


if TYPE_CHECKING:
    from hosting.kubernetes.connection import ApiCredentials

SYSTEM_NAMESPACE: Final = "parley-system"
SERVICE_ACCOUNT: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount")
NO_EXTRA: Final = """\
kubectl parley needs kubernetes_asyncio, which is not installed here. In Parley's directory, the extra `kubernetes`:
  .venv/bin/pip install '.[kubernetes]'
Without it, `parley` asks programs whose addresses you know."""


class UnusableKubeconfigError(click.ClickException):
    """No cluster can be found; the message says why."""

    exit_code = 2


class ByCluster:
    """The way through the API server; a `ports.Way`."""

    def options(self, command: Any) -> Any:
        """The command with `--kubeconfig`, `--context` and `--parley-namespace`."""
        for option in (
            click.option(
                "--parley-namespace",
                default=SYSTEM_NAMESPACE,
                show_default=True,
                metavar="NAMESPACE",
                help="The namespace of Parley itself.",
            ),
            click.option(
                "--context", help="The context of the kubeconfig to use, instead of the current one."
            ),
            click.option(
                "--kubeconfig",
                type=click.Path(path_type=Path, dir_okay=False),
                metavar="FILE",
                help="The kubeconfig, instead of $KUBECONFIG or ~/.kube/config.",
            ),
        ):
            command = option(command)
        return command

    def reach(self, options: Mapping[str, Any]) -> AbstractAsyncContextManager[Reach]:
        """The installation of the context. Raises `click.ClickException`."""
        credentials, name, server, _ = _found(options)
        from hosting.kubernetes.api import KubernetesApi  # noqa: PLC0415 - see the module
        from parley.reach.installation import Installation  # noqa: PLC0415 - see the module
        from parley.reach.kubernetes import KubernetesReach  # noqa: PLC0415 - see the module

        api = KubernetesApi(credentials, user_agent="kubectl-parley")
        return KubernetesReach(api, Installation(name, server, options["parley_namespace"]))

    def namespace(self, options: Mapping[str, Any]) -> str:
        """The context's namespace, `default` if it names none. Raises `click.ClickException`."""
        return _found(options)[3] or "default"


def _found(options: Mapping[str, Any]) -> tuple["ApiCredentials", str, str, str]:
    """The credentials, the name of the context (empty in a pod), the API server's address, and the namespace (may be empty)."""
    try:
        from hosting.kubernetes import connection  # noqa: PLC0415 - see the module
        from hosting.kubernetes.errors import CredentialsError  # noqa: PLC0415 - see the module
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] != "kubernetes_asyncio":
            raise
        raise UnusableKubeconfigError(NO_EXTRA) from None
    logging.getLogger("kubernetes_asyncio").addHandler(logging.NullHandler())  # what it logs is raised, too
    files = _kubeconfigs(options["kubeconfig"], os.environ)
    if not files:
        if options["context"] is not None:
            raise UnusableKubeconfigError(
                f"--context {options['context']}: there is no kubeconfig with contexts here, only this pod's service account. "
                "Name one with --kubeconfig, or leave --context out"
            )
        server = f"https://{os.environ['KUBERNETES_SERVICE_HOST']}"
        return connection.ApiCredentials(), "", server, _own_namespace()
    first, *others = files
    credentials = connection.ApiCredentials(first, options["context"], tuple(others))
    try:
        context = connection.context_of(credentials)
    except CredentialsError as error:
        raise UnusableKubeconfigError(str(error)) from None
    return credentials, context.name, context.server, context.namespace


def _kubeconfigs(given: Path | None, environment: Mapping[str, str]) -> list[Path]:
    """The kubeconfigs in kubectl's order of preference; none in a pod of the cluster."""
    if given is not None:
        return [given]
    named = [Path(each).expanduser() for each in environment.get("KUBECONFIG", "").split(os.pathsep) if each]
    if named:
        return named
    usual = Path.home() / ".kube" / "config"
    if not usual.is_file() and "KUBERNETES_SERVICE_HOST" in environment:
        return []
    return [usual]


def _own_namespace() -> str:
    try:
        return (SERVICE_ACCOUNT / "namespace").read_text().strip()
    except OSError:
        return ""


def namespace_options(command: Command) -> Command:
    """The command with `--namespace` and `--all-namespaces`; `chosen_namespace` reads them."""
    every = click.option("--all-namespaces", "-A", is_flag=True, help="In all namespaces.")
    one = click.option("--namespace", "-n", help="In this namespace.")
    return one(every(command))


def chosen_namespace(way: Way, options: dict[str, Any]) -> str | None:
    """The namespace that is meant, None for all; takes its options out of those of the way. Raises `click.UsageError` if both are given."""
    namespace, is_every = options.pop("namespace"), options.pop("all_namespaces")
    if is_every and namespace is not None:
        raise click.UsageError("--namespace and --all-namespaces exclude each other")
    return None if is_every else namespace or way.namespace(options)


def full_name(way: Way, vm: str, namespace: str | None, options: dict[str, Any]) -> str:
    """`NAMESPACE/NAME` of the VM on a command line, whose `--namespace` is `namespace`. Raises `click.UsageError` if the two contradict
    each other."""
    if "/" not in vm:
        return f"{namespace or way.namespace(options)}/{vm}"
    if namespace is not None and namespace != vm.partition("/")[0]:
        raise click.UsageError(f"{vm} names a namespace, and --namespace another one: {namespace}")
    return vm


def path_of(vm: str) -> str | None:
    """`NAMESPACE/NAME` as a part of a path; None for a name that no path can carry."""
    namespace, _, name = vm.partition("/")
    if {namespace, name} & {"", ".", ".."} or "/" in name:
        return None
    return "/".join(quote(part, safe="", errors="replace") for part in (namespace, name))


DEADLINE_S: Final = 1.0
"""A person waits for it, with a finger on the key."""
MAX_NAMES: Final = 500
MAX_NAME: Final = 400
"""Characters: Kubernetes allows a namespace of 63 and a name of 253. A name that is cut would be completed wrong."""

Complete: TypeAlias = Callable[[click.Context, click.Parameter, str], list[CompletionItem]]


def complete(way: Way, kind: Literal["vms", "nodes", "pools"]) -> Complete:
    """VMs by `NAMESPACE/NAME`, or by name if the namespace is given or the usual one; nodes and pools by name."""

    def answer_to(ctx: click.Context, _: click.Parameter, incomplete: str) -> list[CompletionItem]:
        return items(way, kind, dict(ctx.params), incomplete)

    return answer_to


def items(way: Way, kind: str, options: Mapping[str, Any], incomplete: str) -> list[CompletionItem]:
    """The names of `kind` that begin so. `options` are those of the command line so far. After any fault there is nothing to complete."""
    from hosting import lifecycle  # noqa: PLC0415 - `--version` should not load the client
    from parley.reach.asking import names  # noqa: PLC0415 - as above
    from parley.top.texts import clean  # noqa: PLC0415 - as above

    found: list[str] = []

    async def main(_: lifecycle.Stop) -> int:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(DEADLINE_S), way.reach(options) as reach:
                found.extend(await names(reach, kind))
        return 0

    # A shell shows any text that is written here in the middle of the line that is being typed.
    with contextlib.redirect_stderr(io.StringIO()), contextlib.suppress(Exception):
        lifecycle.run(main)
        if kind == "vms":
            usual = options.get("namespace") or way.namespace(options)
            found += [name.removeprefix(f"{usual}/") for name in found if name.startswith(f"{usual}/")]
    fit = {clean(name, MAX_NAME) for name in found if name.startswith(incomplete) and name.isprintable()}
    return [CompletionItem(name) for name in sorted(fit)[:MAX_NAMES]]
