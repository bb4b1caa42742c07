"""A plugin process that registers with whoever looks at its socket, and fails where it is told to.

python -m tests.processes.stand_ins.moody_plugin SOCKET NAME VERSION [CALL MOOD]

CALL is `get_info` or `notify`; MOOD is `fails` or `lies` (the first time only), or `hangs`. Each call is a line of the output.
"""

import asyncio
import sys
from pathlib import Path
from typing import Any
from urllib.parse import quote

import grpc
import grpc.aio

from agent.node.plugins.proto.pluginregistration_pb2 import PluginInfo, RegistrationStatus

TYPE = "DevicePlugin"
SERVICE = "pluginregistration.Registration"


def _tell(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


class Moods:
    """Plain bytes in and out, so that a lie can be no message at all."""

    def __init__(self, name: str, version: str, call: str = "", mood: str = "") -> None:
        self._info = PluginInfo(type=TYPE, name=name, supported_versions=[version]).SerializeToString()
        self._moods = {call: mood}

    async def get_info(self, _: bytes, context: Any) -> bytes:
        _tell("get_info")
        return await self._answer("get_info", self._info, context)

    async def notify(self, request: bytes, context: Any) -> bytes:
        status = RegistrationStatus.FromString(request)
        _tell(f"notify {status.plugin_registered} {status.error}".rstrip())
        return await self._answer("notify", b"", context)

    async def _answer(self, call: str, answer: bytes, context: Any) -> bytes:
        mood = self._moods.get(call)
        if mood == "hangs":
            await asyncio.Event().wait()
        self._moods.pop(call, None)
        if mood == "fails":
            await context.abort(grpc.StatusCode.INTERNAL, "not now")
        return b"\xff\xff\xff" if mood == "lies" else answer


async def main(socket: str, *words: str) -> None:
    """Serve until killed."""
    moods = Moods(*words)
    server = grpc.aio.server()
    calls = {"GetInfo": moods.get_info, "NotifyRegistrationStatus": moods.notify}
    handlers: dict[str, Any] = {
        name: grpc.unary_unary_rpc_method_handler(call) for name, call in calls.items()
    }
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, handlers),))
    server.add_insecure_port(f"unix://{quote(socket)}")
    await server.start()
    await server.wait_for_termination()


if __name__ == "__main__":
    Path(sys.argv[1]).unlink(missing_ok=True)
    asyncio.run(main(*sys.argv[1:]))
