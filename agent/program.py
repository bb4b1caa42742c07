"""The program `parley-agent`: the agent of a node, and the pages of a running agent about its plugins and strategies."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from hosting import logs
from hosting.options import (
    DEFAULT_AGENT,
    Address,
    Advertise,
    ca_option,
    daemon,
    token_option,
    warn_of_plain_tokens,
)
from hosting.tokens import RULE

if TYPE_CHECKING:
    from hosting.tls import Tls

_CONTEXT: Final = {"help_option_names": ["-h", "--help"], "max_content_width": 100}


@daemon(10300, is_group=True)
@click.option(
    "--config",
    type=click.Path(path_type=Path, dir_okay=False),
    help="YAML file with the node, the scheduler, the state directory, and the VMs or where they are found. Required, but for "
    "the commands below.",
)
@click.option(
    "--token-file",
    type=click.Path(path_type=Path, dir_okay=False),
    help=f"Serve /v1/vms to callers that show the token in this file ({RULE}), instead of to this machine only. It is read again.",
)
@click.option(
    "--token-may-be-missing",
    is_flag=True,
    help="The files of --token-file and --metrics-token-file may be made later, or never: until then only this machine is served.",
)
@click.option(
    "--metrics-token-file",
    type=click.Path(path_type=Path, dir_okay=False),
    help=f"Serve /metrics to callers that show the token in this file ({RULE}), or that of --token-file; else to this machine only.",
)
@click.option(
    "--plain-http",
    is_flag=True,
    help="Let informants of guests call in the clear on --host. Without it the plain port is for this machine only.",
)
@click.option(
    "--advertise",
    type=Advertise(),
    metavar="ADDRESS",
    help="The address that informants call back: an address or a network interface of this machine, with :PORT if that "
    "differs (overrides `advertise` of the settings file). Needed if --host is a wildcard.",
)
@click.option(
    "--qos-extension-plugins",
    metavar="NAME=true,…",
    default="",
    help="Switch strategies on and off, beside qos.featureGates of the settings file; `parley-agent qos --known` lists them.",
)
@click.pass_context
def main(
    context: click.Context, /, config: Path | None, log_level: str, log_format: logs.Style, **options: Any
) -> None:
    """Parley's agent: watches the VMs of a node, works out what each needs, and asks before anything grows.

    Exit codes: 0 after a signal, 1 when the address is taken, or the state directory or the credentials for Kubernetes
    cannot be used, or an extra is missing, 2 for a wrong command line or settings file.
    """
    if context.invoked_subcommand is not None:
        return
    if config is None:
        parameter = next(each for each in context.command.params if each.name == "config")
        raise click.MissingParameter(ctx=context, param=parameter)
    if options["token_may_be_missing"] and not (options["token_file"] or options["metrics_token_file"]):
        raise click.UsageError("--token-may-be-missing speaks of the file of --token-file: give both")
    from agent.daemon.serving import CommandLine, run  # noqa: PLC0415 - the other commands need no daemon

    logs.configure(log_level, log_format)
    options["extension_plugins"] = options.pop("qos_extension_plugins")
    sys.exit(run(CommandLine(config, **options)))


_OUTPUT = click.option(
    "--output",
    "-o",
    type=click.Choice(["text", "json"]),
    default="text",
    show_default=True,
    help="For people or scripts.",
)
_ADDRESS = click.option(
    "--address",
    type=Address(),
    default=DEFAULT_AGENT,
    show_default=True,
    help="The agent that is asked.",
)


@main.command(context_settings=_CONTEXT)
@_ADDRESS
@token_option
@ca_option
@_OUTPUT
def plugins(address: str, token: str | None, tls: "Tls | None", output: str) -> None:
    """List the node plugins of a running agent. They are metrics sources, policies and resizers in processes of their own.

    Each with its state, its socket, its last error, and how many calls were made and failed.

    Exit codes: 0; 1 when the agent does not answer; 2 for a wrong command line.
    """
    from agent.daemon import inspecting  # noqa: PLC0415 - `--help` should not load the client

    warn_of_plain_tokens([address], token)
    sys.exit(inspecting.show_plugins(address, token, tls, output))


@main.command(context_settings=_CONTEXT)
@_ADDRESS
@token_option
@ca_option
@_OUTPUT
@click.option(
    "--known",
    is_flag=True,
    help="Ask no agent: list the strategies that are installed here, and their args, with the defaults.",
)
def qos(address: str, token: str | None, tls: "Tls | None", output: str, known: bool) -> None:
    """List the strategies of a running agent. It says which are on, what they decided last, and why.

    Exit codes: 0; 1 when the agent does not answer; 2 for a wrong command line.
    """
    from agent.daemon import inspecting  # noqa: PLC0415 - `--help` should not load the client

    if known:
        sys.exit(inspecting.show_known(output))
    warn_of_plain_tokens([address], token)
    sys.exit(inspecting.show_strategies(address, token, tls, output))


@main.command(context_settings=_CONTEXT)
@click.option(
    "--inventory",
    type=click.Path(path_type=Path, dir_okay=False),
    required=True,
    help="The file that describes the devices of the node, as for qos.deviceInventory. It is read again.",
)
@click.option(
    "--resource",
    "resources",
    multiple=True,
    required=True,
    metavar="NAME",
    help="A resource of devices that the kubelet is to know, such as koordinator.sh/gpu-core; may be given several times. A container "
    "has the devices of one kind if it asks for any of these; nobody else may offer the same to the kubelet.",
)
@click.option(
    "--registry",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path("/var/lib/kubelet/plugins_registry"),
    show_default=True,
    help="The folder where the kubelet looks for plugins.",
)
@click.option(
    "--pod-resources",
    type=click.Path(path_type=Path, dir_okay=False),
    default=Path("/var/lib/kubelet/pod-resources/kubelet.sock"),
    show_default=True,
    help="The socket where the kubelet says which pod has what.",
)
@click.option(
    "--cdi",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path("/var/run/cdi"),
    show_default=True,
    help="The folder where the container runtime looks for devices (Container Device Interface).",
)
@click.option(
    "--kubeconfig",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Credentials for the API server, where pods are read; by default the pod's service account.",
)
def device_plugin(kubeconfig: Path | None, resources: tuple[str, ...], **places: Path) -> None:
    """Give containers the devices that their pod was told of.

    It serves a device plugin of the kubelet for each resource.

    Exit codes: 0 after a signal, 1 when a socket or the credentials for Kubernetes cannot be used, or an extra is missing, 2 for a
    wrong command line or inventory.
    """
    try:
        from agent.daemon.device_plugin import run  # noqa: PLC0415 - its libraries are extras
        from agent.node.plugins.device_plugin import DevicePlaces  # noqa: PLC0415 - so with this
    except ImportError as error:
        raise click.ClickException(
            f"needs the extras `plugins` and `kubernetes`: pip install '.[plugins,kubernetes]' ({error})"
        ) from None
    logs.configure()
    sys.exit(run(resources, DevicePlaces(**places), kubeconfig))
