"""A device plugin written with the SDK of node plugins: `python -m tests.node.device_plugin SOCKET RESOURCE COUNT`.

The plugin offers COUNT devices, and says on its standard output what happens. A container with one of them has the device's identity
in the variable `DEVICE`. The plugin ends at SIGTERM, and removes its socket.
"""

import asyncio
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from agent.node.plugins.proto import deviceplugin_v1beta1_pb2 as messages
from agent.node.plugins.proto import deviceplugin_v1beta1_pb2_grpc as services
from parley.node_plugins import RegistrationOffer, RegistrationServer


class Devices(services.DevicePluginServicer):
    """The published service of device plugins."""

    def __init__(self, count: int) -> None:
        self._devices = [messages.Device(ID=f"device-{number}", health="Healthy") for number in range(count)]

    async def GetDevicePluginOptions(self, request: object, context: object) -> Any:  # noqa: N802 - a published method
        return messages.DevicePluginOptions()

    async def ListAndWatch(self, request: object, context: object) -> AsyncIterator[Any]:  # noqa: N802 - as above
        yield messages.ListAndWatchResponse(devices=self._devices)
        await asyncio.Event().wait()

    async def Allocate(self, request: Any, context: object) -> Any:  # noqa: N802 - as above
        answers = [
            messages.ContainerAllocateResponse(envs={"DEVICE": ",".join(each.devices_ids)})
            for each in request.container_requests
        ]
        return messages.AllocateResponse(container_responses=answers)

    async def PreStartContainer(self, request: object, context: object) -> Any:  # noqa: N802 - as above
        return messages.PreStartContainerResponse()


async def main(socket: Path, resource: str, count: int) -> None:
    """Serve until told to end."""
    server = RegistrationServer(
        RegistrationOffer(plugin_type="DevicePlugin", name=resource, versions=("v1beta1",)),
        socket,
        services=[lambda server: services.add_DevicePluginServicer_to_server(Devices(count), server)],
        on_status=lambda error: print(error or "registered", flush=True),  # noqa: T201 - read by the test
    )
    serving = asyncio.ensure_future(server.run())
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, serving.cancel)
    await asyncio.wait([serving])


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])))
