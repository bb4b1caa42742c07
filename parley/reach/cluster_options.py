"""How `kubectl parley` finds an installation: options as kubectl has them. The client library is an extra and slow to load: nothing here imports it
before it is needed."""

import logging
import os
from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from parley.reach.ports import Reach

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
                help="Where Parley itself runs.",
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
        from parley.reach.api_faults import Installation  # noqa: PLC0415 - see the module
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
