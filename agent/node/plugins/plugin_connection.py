"""Connections to the sockets of plugins, and the calls of the published registration API over them.

Paths are taken as they are: no character in a name means anything. gRPC reads a target as a URL, so every byte of the path that could
mean something is percent-encoded. One is left: the library splits the decoded path at commas. Such a socket is dialled through a
descriptor of the file, under a name without commas; and so is a socket whose path is longer than the kernel takes, as it may be
outside of the container where the plugin made it.
"""

import asyncio
import errno
import os
import socket
from dataclasses import dataclass
from typing import Final
from urllib.parse import quote

import grpc
import grpc.aio

from agent.node.plugins.core.plugin_info import RegistrationError
from agent.node.plugins.proto.pluginregistration_pb2 import InfoRequest, PluginInfo, RegistrationStatus
from agent.node.plugins.proto.pluginregistration_pb2_grpc import RegistrationStub
from agent.node.plugins.types.answers import AnswerCheck
from hosting.backoff import Backoff

MAX_PATH_BYTES: Final = 107
"""How many bytes the path of a socket may have on Linux."""
_OPTIONS: Final = (
    # The socket's name is no authority: plugins in other languages refuse what is no host name.
    ("grpc.default_authority", "localhost"),
    # Channels to one path share nothing: a connection that waits before it reconnects would hold up a new one.
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.initial_reconnect_backoff_ms", 200),
    ("grpc.max_reconnect_backoff_ms", 1000),
    # A server that accepts and says nothing: its connection is given up after so long, also when nobody waits for it any more.
    ("grpc.min_reconnect_backoff_ms", 2000),
    ("grpc.enable_http_proxy", 0),
    # No answer of a plugin needs more, and no plugin may fill our memory.
    ("grpc.max_receive_message_length", 2**20),
)


class UnixChannel:
    """A channel to the socket at a path. `close` must be called in the end."""

    def __init__(self, path: str) -> None:
        """Open the channel; nothing is dialled yet. Raises `OSError` where a descriptor is needed and there is no such file."""
        self._descriptor: int | None = None
        if "," in path or len(os.fsencode(path)) > MAX_PATH_BYTES:
            self._descriptor = os.open(path, os.O_PATH)
            path = f"/proc/self/fd/{self._descriptor}"
        scheme = "unix://" if path.startswith("/") else "unix:"
        self.channel = grpc.aio.insecure_channel(scheme + quote(os.fsencode(path)), options=_OPTIONS)

    async def close(self) -> None:
        """Close the connection at once; calls under way fail."""
        try:
            await self.channel.close()
        finally:
            if self._descriptor is not None:
                os.close(self._descriptor)
                self._descriptor = None


_CONFIRM_S: Final = 1.0
"""A connection that ended has this long to come back, before the server counts as gone."""

_NOBODY: Final = (errno.ECONNREFUSED, errno.ENOENT)
"""What the kernel says where nobody listens, or no file is there yet."""
MAX_LABEL: Final = 256
"""Characters of a plugin's type, and of its name."""
MAX_VERSIONS: Final = 16
MAX_VERSION: Final = 64
"""Characters of one version."""
MAX_ENDPOINT_BYTES: Final = 4096
"""The longest path of a file on Linux. That of a socket is shorter, but may be longer as the agent sees it."""
_KNOCKING: Final = Backoff(0.05, cap_s=1.0)


@dataclass(frozen=True, slots=True)
class PluginTold:
    """What a plugin says of itself."""

    plugin_type: str
    name: str
    endpoint: str
    versions: tuple[str, ...]

    def check(self) -> None:
        """What is kept of any plugin, refused or not, is bounded here. Raises `AnswerError` with every fault."""
        check = AnswerCheck()
        check.label("type", self.plugin_type, MAX_LABEL)
        check.label("name", self.name, MAX_LABEL)
        if len(self.endpoint) > MAX_ENDPOINT_BYTES:
            rule = f"must have at most {MAX_ENDPOINT_BYTES} characters and has {len(self.endpoint)}"
            check.fault("endpoint", self.endpoint, rule)
        if len(self.versions) > MAX_VERSIONS:
            check.fault(
                "supported_versions", len(self.versions), f"must have at most {MAX_VERSIONS} versions"
            )
        for index, version in enumerate(self.versions[:MAX_VERSIONS]):
            check.label(f"supported_versions[{index}]", version, MAX_VERSION)
        check.end()


def status_text(error: grpc.aio.AioRpcError) -> str:
    """A failed call as the published program writes it, such as `rpc error: code = Unknown desc = not ready`."""
    code = error.code()
    details = "context deadline exceeded" if code is grpc.StatusCode.DEADLINE_EXCEEDED else error.details()
    return f"rpc error: code = {code.name.title().replace('_', '')} desc = {details}"


def _is_listened(path: str) -> bool:
    """Whether a connection is taken. A Unix socket says that at once; what else can be wrong is left to who dials."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK) as knock:
        try:
            knock.connect(path)
        except OSError as error:
            return error.errno not in _NOBODY
    return True


class PluginConnection:
    """A connection to the socket where a plugin registers. Made by `dial`; `close` must be called in the end."""

    def __init__(self, opened: UnixChannel) -> None:
        self._opened = opened
        self._stub = RegistrationStub(opened.channel)

    @staticmethod
    async def listened(path: str, *, is_patient: bool = True) -> None:
        """Return as soon as somebody listens at the socket. Costs a system call each second at most, and no channel: a folder may be
        full of sockets whose servers have died. Without patience, raises `TimeoutError` where nobody listens now."""
        knocks = 0
        while not _is_listened(path):
            if not is_patient:
                raise TimeoutError
            knocks += 1
            await asyncio.sleep(_KNOCKING.delay_s(knocks, 0))

    @classmethod
    async def dial(cls, path: str, within_s: float) -> "PluginConnection":
        """Connect, trying again until the time is over. Raises `TimeoutError`, and `RegistrationError` for a path that cannot be dialled."""
        try:
            opened = UnixChannel(path)
        except OSError as error:
            raise RegistrationError(f"failed to dial socket {path}, err: {error.strerror}") from error
        try:
            async with asyncio.timeout(within_s):
                await opened.channel.channel_ready()
        except BaseException:
            await opened.close()
            raise
        return cls(opened)

    async def get_info(self, within_s: float) -> PluginTold:
        """Ask the plugin what it is. Raises `RegistrationError`."""
        try:
            told: PluginInfo | None = await self._stub.GetInfo(InfoRequest(), timeout=within_s)
        except grpc.aio.AioRpcError as error:
            raise RegistrationError(status_text(error)) from error
        if told is None:  # so the library says it
            raise RegistrationError("the answer is no message of the protocol")
        return PluginTold(told.type, told.name, told.endpoint, tuple(told.supported_versions))

    async def notify(self, error: str | None, within_s: float) -> None:
        """Tell the plugin that it is registered, or why not. Raises `RegistrationError` where the plugin did not take that."""
        status = RegistrationStatus(plugin_registered=error is None, error=error or "")
        try:
            await self._stub.NotifyRegistrationStatus(status, timeout=within_s)
        except grpc.aio.AioRpcError as failed:
            raise RegistrationError(status_text(failed)) from failed

    async def lost(self) -> None:
        """Wait until the plugin's server has gone.

        Nothing is sent for that: the kernel ends the connection when the process dies. A server may end a connection for its own
        reasons, such as the age, and is there at once when it is dialled again.
        """
        channel, ready = self._opened.channel, grpc.ChannelConnectivity.READY
        while True:
            await channel.wait_for_state_change(ready)
            try:
                async with asyncio.timeout(_CONFIRM_S):
                    if not await self._is_back():
                        return
            except TimeoutError:
                return

    async def _is_back(self) -> bool:
        """Whether the server answers once it is dialled again."""
        channel = self._opened.channel
        while (state := channel.get_state(try_to_connect=True)) is not grpc.ChannelConnectivity.READY:
            if state in {grpc.ChannelConnectivity.TRANSIENT_FAILURE, grpc.ChannelConnectivity.SHUTDOWN}:
                return False
            await channel.wait_for_state_change(state)
        return True

    async def close(self) -> None:
        """End the connection at once."""
        await self._opened.close()
