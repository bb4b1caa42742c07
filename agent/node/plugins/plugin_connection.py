"""Connections to the sockets of plugins, the calls of the published registration API over them, and the turns in which plugins are dialled.

Paths are taken as they are: no character in a name means anything. gRPC reads a target as a URL, so every byte of the path that could
mean something is percent-encoded. One is left: the library splits the decoded path at commas. Such a socket is dialled through a
descriptor of the file, under a name without commas; and so is a socket whose path is longer than the kernel takes, as it may be
outside of the container where the plugin made it.
"""

import asyncio
import errno
import heapq
import os
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from itertools import count
from typing import Final
from urllib.parse import quote

import grpc
import grpc.aio

from agent.node.plugins.core.plugin_info import RegistrationError
from agent.node.plugins.ports import AnswerCheck
from agent.node.plugins.proto.pluginregistration_pb2 import InfoRequest, PluginInfo, RegistrationStatus
from agent.node.plugins.proto.pluginregistration_pb2_grpc import RegistrationStub
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
        """Open the channel; nothing is dialled yet. Raises `OSError` if a descriptor is needed and there is no such file."""
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
"""Errors of the kernel if nobody listens, or no file is there yet."""
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
    """The answer of a plugin to `GetInfo`."""

    plugin_type: str
    name: str
    endpoint: str
    versions: tuple[str, ...]

    def check(self) -> None:
        """Bound the texts that are kept of any plugin, refused or not. Raises `AnswerError` with every fault."""
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
    """Whether a connection is taken. A Unix socket says that at once; other faults are found by dialling."""
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
        full of sockets whose servers have died. Without patience, raises `TimeoutError` if nobody listens now."""
        knocks = 0
        while not _is_listened(path):
            if not is_patient:
                raise TimeoutError
            knocks += 1
            await asyncio.sleep(_KNOCKING.delay_s(knocks, 0))

    @classmethod
    async def dial(cls, path: str, within_s: float) -> "PluginConnection":
        """Connect, and try again until the time is over. Raises `TimeoutError`, and `RegistrationError` for a path that cannot be dialled."""
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
        """Ask the plugin for its type, name, endpoint and versions. Raises `RegistrationError`."""
        try:
            told: PluginInfo | None = await self._stub.GetInfo(InfoRequest(), timeout=within_s)
        except grpc.aio.AioRpcError as error:
            raise RegistrationError(status_text(error)) from error
        if told is None:  # so the library says it
            raise RegistrationError("the answer is no message of the protocol")
        return PluginTold(told.type, told.name, told.endpoint, tuple(told.supported_versions))

    async def notify(self, error: str | None, within_s: float) -> None:
        """Tell the plugin that it is registered, or why not. Raises `RegistrationError` if the plugin did not take that."""
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
        await self._opened.close()


DIALS: Final = 32
"""How many plugins are dialled at once."""
FIRST_TURN_S: Final = 0.25
"""How long a socket is dialled in its first turn. A server that says nothing has longer turns after that, until its time is over, and
sockets that have had fewer of them go before it."""
PATIENT: Final = 256
"""For how many sockets the agent waits at once until somebody listens there."""


class FairSlots:
    """Slots of one event loop. Of those that wait, the one of the lowest rank is next, and of equals the one that came first."""

    def __init__(self, slots: int) -> None:
        self._free = slots
        self._waiting: list[tuple[int, int, asyncio.Future[None]]] = []
        self._numbers = count()

    @property
    def is_free(self) -> bool:
        return self._free > 0

    @asynccontextmanager
    async def slot(self, rank: int) -> AsyncIterator[None]:
        if self._free:
            self._free -= 1
        else:
            turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            heapq.heappush(self._waiting, (rank, next(self._numbers), turn))
            try:
                await turn
            except asyncio.CancelledError:
                if turn.done() and not turn.cancelled():
                    self._give_back()
                raise
        try:
            yield
        finally:
            self._give_back()

    def _give_back(self) -> None:
        while self._waiting:
            _, _, turn = heapq.heappop(self._waiting)
            if not turn.done():
                turn.set_result(None)
                return
        self._free += 1


class Dialler:
    """Makes connections to plugins within `dial_s`; the wait for turns takes `turn_s` at most. A bounded number is dialled at once, in turns, those
    with the fewest tries first: silence of many holds up nobody who is new."""

    def __init__(self, dial_s: float, turn_s: float) -> None:
        self._dial_s, self._turn_s = dial_s, turn_s
        self._dials, self._patience = FairSlots(DIALS), FairSlots(PATIENT)

    async def connection(self, path: str, tries: int) -> PluginConnection:
        """A connection to the plugin, which was dialled so often (1 or more, with this time). Raises `RegistrationError`.

        Only sockets where somebody listens are dialled. The wait for a turn does not count as time of dialling.
        """
        try:
            left_s, turn_s = await self._listened(path, tries), FIRST_TURN_S
            async with asyncio.timeout(self._turn_s):
                while True:
                    async with self._dials.slot(tries):
                        with suppress(TimeoutError):
                            return await PluginConnection.dial(path, min(turn_s, left_s))
                    left_s, turn_s, tries = left_s - turn_s, 2 * turn_s, tries + 1
                    if left_s <= 0:
                        raise TimeoutError
        except TimeoutError:
            error = RegistrationError(f"failed to dial socket {path}, err: context deadline exceeded")
        except RegistrationError as failed:
            error = failed
        text = f"RegisterPlugin error -- dial failed at socket {path}, err: {error}"
        raise RegistrationError(text, "nobody answers at the socket") from error

    async def _listened(self, path: str, tries: int) -> float:
        """Wait until somebody listens at the socket. Returns how long it may be dialled. Raises `TimeoutError`.

        Between the file of a new socket and its server passes a moment. A socket that was left behind is never listened at again,
        so in later tries, and if very many are new, one look is all.
        """
        if tries > 1 or not self._patience.is_free:
            await PluginConnection.listened(path, is_patient=False)
            return self._dial_s
        async with self._patience.slot(tries), asyncio.timeout(self._dial_s) as limit:
            await PluginConnection.listened(path)
            return (limit.when() or 0.0) - asyncio.get_running_loop().time()
