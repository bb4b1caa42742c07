"""The table of sockets: one record for each path, with all knowledge of the socket there and of the plugin behind it.

Methods in the past tense take in what has happened, `plan` names the operations that are due, and `begin` lets one start or says why not. One
operation at a time for each path. After a failure the path waits 500 ms, then twice as long each time, at most 2 min 2 s (the odd
seconds tell people which limit they see); a success forgets that. A socket that was created anew waits the first step at most: a
repaired plugin should not wait because of its predecessor, and a plugin that creates a new socket with each crash still cannot be
tried more than twice a second.

A handler knows one socket of each (type, name). A newer socket supersedes an older one; the end of the older one means nothing to the
handler. When the newest ends, the newest of those that are left is registered again.
"""

import enum
import heapq
from dataclasses import dataclass, field
from itertools import count
from typing import Final, TypeAlias

from agent.node.plugins.core.plugin_info import KNOWN, TABLE, PluginInfo, PluginState, RegistrationEvent
from hosting.backoff import Backoff

RETRY: Final = Backoff(base_s=0.5, cap_s=122.0, jitter=0.0)
JITTER: Final = 0.1
"""The share of a wait that chance may add, so that plugins which failed together are not tried together for ever."""
MAX_ERROR: Final = 1000
"""Characters of an error that are kept."""
STARTS: Final = 256
"""So many registrations begin in one pass at most: a folder may be full of sockets whose servers have died."""

PluginKey: TypeAlias = tuple[str, str]
"""Type and name of a plugin."""


@dataclass(slots=True)
class PluginSocket:
    """The socket at one path. Only the table writes it."""

    plugin: PluginInfo
    """The plugin of the last operation, with its own account of itself. Another socket may be there by now."""
    there: PluginInfo | None = None
    """The entry of the desired world; None if no socket is there."""
    born: int = 0
    """How new the socket is that is there: of two sockets the newer one has the larger number."""
    order: int = 0
    """The `born` of the socket that the last operation was about."""
    is_actual: bool = False
    """Whether `plugin` is an entry of the actual world."""
    is_lost: bool = False
    """Whether the server of `plugin` has gone, or nobody watches it."""
    state: PluginState | None = None
    """The state of the registration; None before the first pass that sees the socket, and after the end."""
    since_s: float = 0.0
    key: PluginKey = ("", "")
    versions: tuple[str, ...] = ()
    error: str = ""
    """The error of the last try; a success forgets it."""
    tries: int = 0
    """How often the plugin was dialled since the last time that it was registered."""
    is_busy: bool = False
    """Whether an operation is under way."""
    tried: str = ""
    """The UUID of the socket that the last operation was about."""
    failures: int = 0
    """How many operations have failed in a row."""
    failed_at_s: float = 0.0
    wait_s: float = 0.0

    @property
    def path(self) -> str:
        return self.plugin.socket_path

    def is_in_place(self) -> bool:
        """Whether the socket of `plugin` is the one that is there."""
        return self.there is not None and self.there.uuid == self.plugin.uuid

    def wait_of(self, uuid: str) -> float:
        """How long the path waits after its last failure before an operation about the socket of that UUID."""
        return self.wait_s if uuid == self.tried else min(self.wait_s, RETRY.base_s)

    def is_waiting(self, uuid: str, now_s: float) -> bool:
        return self.failures > 0 and now_s <= self.failed_at_s + self.wait_of(uuid)

    def retry_in_s(self, now_s: float) -> float | None:
        """How long the path still waits; None if it waits for nothing."""
        if self.is_busy or not self.failures:
            return None
        uuid = self.tried if self.there is None else self.there.uuid
        return max(0.0, self.failed_at_s + self.wait_of(uuid) - now_s)


@dataclass(frozen=True, slots=True)
class UnregisterPlugin:
    """End the registration of a plugin of the actual world. `is_lost`: its socket is still desired, but the server has gone."""

    plugin: PluginInfo
    is_lost: bool = False


@dataclass(frozen=True, slots=True)
class RegisterPlugin:
    """Register a plugin of the desired world."""

    plugin: PluginInfo


Operation: TypeAlias = UnregisterPlugin | RegisterPlugin


class Refusal(enum.Enum):
    ALREADY_EXECUTING = enum.auto()
    """An operation at this path is under way."""
    BACKING_OFF = enum.auto()
    """The last operation at this path failed, and the time to wait is not over."""


@dataclass(slots=True)
class SocketTable:
    """All sockets by path. Everything happens in one event loop; a caller that moves a registration has the turn of its (type, name)."""

    _sockets: dict[str, PluginSocket] = field(default_factory=dict)
    _births: "count[int]" = field(default_factory=lambda: count(1))

    def all(self) -> list[PluginSocket]:
        return list(self._sockets.values())

    def there(self) -> list[PluginSocket]:
        """The sockets that are there, the newest last."""
        return sorted(
            (each for each in self._sockets.values() if each.there is not None), key=lambda each: each.born
        )

    def at(self, path: str) -> PluginSocket:
        """The record of a path, which is made if there is none."""
        found = self._sockets.get(path)
        if found is None:
            found = self._sockets[path] = PluginSocket(PluginInfo(path))
        return found

    def get(self, path: str) -> PluginSocket | None:
        return self._sockets.get(path)

    def made(self, plugin: PluginInfo) -> None:
        """A socket was created; `plugin` has its path, time and identity."""
        socket = self.at(plugin.socket_path)
        socket.there, socket.born = plugin, next(self._births)

    def gone(self, path: str) -> None:
        """No socket is at the path any more."""
        self.at(path).there = None

    def added(self, plugin: PluginInfo) -> None:
        """The plugin is in the actual world, in place of any other at its path."""
        socket = self.at(plugin.socket_path)
        socket.plugin, socket.is_actual, socket.is_lost = plugin, True, False

    def removed(self, path: str) -> None:
        """No plugin at the path is in the actual world any more."""
        socket = self.at(path)
        socket.is_actual = socket.is_lost = False

    def lost(self, plugin: PluginInfo) -> None:
        """The server of the plugin has gone, or nobody watches it any more."""
        socket = self._sockets.get(plugin.socket_path)
        if socket is not None and socket.is_actual and socket.plugin.uuid == plugin.uuid:
            socket.is_lost = True

    def plan(self, now_s: float) -> tuple[Operation, ...]:
        """The operations that make the actual world the desired one.

        First every plugin that must end: not desired, created anew at its path, or without a server. Then every desired plugin that
        is not there with this very identity. Of very many of these, those that are due: first the sockets that were tried least often,
        and of these the newest, because those that were left behind are looked at when there is time.
        """
        ending = tuple(
            UnregisterPlugin(each.plugin, is_lost=each.is_in_place())
            for each in self._sockets.values()
            if each.is_actual and (each.is_lost or not each.is_in_place())
        )
        missing = [each for each in self.there() if not (each.is_actual and each.is_in_place())]
        if len(ending) + len(missing) > STARTS:
            # A socket in the place of another was not dialled yet.
            due = [
                each
                for each in missing
                if each.there is not None and not each.is_busy and not each.is_waiting(each.there.uuid, now_s)
            ]
            missing = heapq.nsmallest(
                STARTS, due, key=lambda each: (each.tries if each.is_in_place() else 0, -each.born)
            )
            missing.sort(key=lambda each: each.born)
        return ending + tuple(RegisterPlugin(each.there) for each in missing if each.there is not None)

    def begin(self, plugin: PluginInfo, now_s: float) -> Refusal | None:
        """Note that an operation about this socket starts, or say why it must not."""
        socket = self.at(plugin.socket_path)
        if socket.is_busy:
            return Refusal.ALREADY_EXECUTING
        if socket.is_waiting(plugin.uuid, now_s):
            return Refusal.BACKING_OFF
        if socket.tried != plugin.uuid:
            socket.tried, socket.order, socket.failures = plugin.uuid, socket.born, 0
        socket.is_busy = True
        return None

    def is_outdated(self, socket: PluginSocket) -> bool:
        """Whether the handler knows a newer socket of this name."""
        known = self._known(socket)
        return known is not None and known.order > socket.order

    def _known(self, socket: PluginSocket) -> PluginSocket | None:
        """The other socket of the name that the handler knows."""
        same = (each for each in self._sockets.values() if each.key == socket.key and each is not socket)
        return next((each for each in same if each.state in KNOWN), None)

    def begin_pass(self, now_s: float) -> tuple[PluginSocket, ...]:
        """A pass of the reconciler sees the sockets that are new, which are returned, and drops those that need nothing any more."""
        entered = []
        for path, each in list(self._sockets.items()):
            if each.there is not None:
                if each.state is None:
                    self._enter(each, each.plugin if each.is_actual else each.there, now_s)
                    entered.append(each)
                continue
            if each.state is not None and (each.state, RegistrationEvent.GONE) in TABLE:
                each.state = None
            is_idle = not (each.is_busy or each.is_actual or each.is_waiting(each.tried, now_s))
            if each.state is None and is_idle:
                del self._sockets[path]
        return tuple(sorted(entered, key=lambda each: each.born))

    def _enter(self, socket: PluginSocket, plugin: PluginInfo, now_s: float) -> None:
        socket.plugin, socket.state, socket.since_s = plugin, PluginState.DISCOVERED, now_s
        socket.key, socket.versions, socket.error, socket.tries = ("", ""), (), "", 0

    def dialled(self, plugin: PluginInfo, now_s: float) -> tuple[PluginSocket, ...]:
        """A try to register the socket begins. A socket that was created since the last try is entered anew."""
        socket = self.at(plugin.socket_path)
        if socket.state is None or socket.plugin.uuid != plugin.uuid:
            self._enter(socket, plugin, now_s)
        socket.tries += 1
        return self.moved(socket, RegistrationEvent.DIALLED, "", now_s)

    def described(self, plugin: PluginInfo, key: PluginKey, versions: tuple[str, ...]) -> None:
        """A plugin has described itself; `plugin` has its name, endpoint and handler."""
        socket = self.at(plugin.socket_path)
        socket.plugin, socket.key, socket.versions = plugin, key, versions

    def moved(
        self, socket: PluginSocket, event: RegistrationEvent, error: str, now_s: float
    ) -> tuple[PluginSocket, ...]:
        """The registration of the socket goes on as the table of states says. `error` is why, if something failed. Returns the sockets whose
        state has changed."""
        before = socket.state
        self._step(socket, event, now_s)
        socket.error = error or socket.error
        other: PluginSocket | None = None
        if event is RegistrationEvent.TAKEN:
            if (other := self._known(socket)) is not None:
                self._step(other, RegistrationEvent.OUTDATED, now_s)
        elif before is PluginState.DEREGISTERING:
            if (other := self._revived(socket)) is not None:
                self._step(other, RegistrationEvent.REVIVED, now_s)
        elif socket.state is PluginState.REGISTERED:
            socket.error, socket.tries = "", 0
        return (socket,) if other is None else (socket, other)

    def _step(self, socket: PluginSocket, event: RegistrationEvent, now_s: float) -> None:
        assert socket.state is not None, socket
        socket.state, socket.since_s = TABLE[socket.state, event], now_s

    def _revived(self, socket: PluginSocket) -> PluginSocket | None:
        """The newest of the superseded sockets of the name that the handler has just forgotten."""
        older = (
            each
            for each in self._sockets.values()
            if each.key == socket.key and each.state is PluginState.SUPERSEDED
        )
        return max(older, key=lambda each: each.order, default=None)

    def ended(self, socket: PluginSocket, error: str | None, chance: float, now_s: float) -> None:
        """The operation about the socket has ended; `error` is None if it worked. `chance` (0 to 1) draws the jitter."""
        socket.is_busy = False
        if error is None:
            socket.failures = 0
            return
        socket.failures, socket.failed_at_s, socket.error = socket.failures + 1, now_s, error[:MAX_ERROR]
        socket.wait_s = RETRY.delay_s(socket.failures, 0.0) * (1 + JITTER * chance)
