"""The program `parley-agent device-plugin`. Imported by that command only: the libraries of plugins and of Kubernetes are extras."""

import asyncio
from collections.abc import Sequence
from pathlib import Path

import click

from agent.node.device_inventory import DeviceInventory
from agent.node.plugins.device_plugin import DevicePlaces, serve_devices
from agent.node.plugins.sdk.serving import SocketTakenError
from hosting import lifecycle
from hosting.kubernetes.api import ApiCredentials, KubernetesApi
from hosting.kubernetes.errors import KubernetesError
from hosting.logs import logger
from hosting.settings import SettingsError, load


def run(resources: Sequence[str], places: DevicePlaces, kubeconfig: Path | None) -> int:
    """Serve until a signal; the exit code. Faults are told on standard error."""
    try:
        inventory = load(places.inventory, DeviceInventory)
        for resource in resources:
            if resources.count(resource) > 1:
                raise ValueError(f"--resource {resource}: is given twice")
            inventory.offered(resource)
    except (SettingsError, ValueError) as error:
        click.echo(str(error), err=True)
        return 2
    try:
        return lifecycle.run(lambda stop: _main(stop, resources, places, kubeconfig))
    except* (KubernetesError, SocketTakenError, OSError, RuntimeError) as errors:
        _tell(errors)
        code = 1
    except* ValueError as errors:  # the path of a socket
        _tell(errors)
        code = 2
    return code


def _tell(errors: BaseExceptionGroup[Exception]) -> None:
    for each in errors.exceptions:
        if isinstance(each, BaseExceptionGroup):
            _tell(each)
        else:
            click.echo(str(each), err=True)


async def _main(
    stop: lifecycle.Stop, resources: Sequence[str], places: DevicePlaces, kubeconfig: Path | None
) -> int:
    async with KubernetesApi(ApiCredentials(kubeconfig), user_agent="parley-device-plugin") as api:
        serving = asyncio.ensure_future(serve_devices(resources, api, places, logger("device-plugin")))
        stopping = asyncio.ensure_future(stop.wait())
        try:
            await asyncio.wait([serving, stopping], return_when=asyncio.FIRST_COMPLETED)
        finally:
            stopping.cancel()
            is_failed = serving.done()
            serving.cancel()
            await asyncio.wait([serving])
        if is_failed:
            serving.result()
    return 0
