"""The registrations of all sockets: their states, and which socket of a plugin name the handler knows.

A handler knows one socket of each (type, name). A newer socket supersedes an older one; the end of the older one means nothing to the
handler. When the newest ends, the newest of those that are left is registered again.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from agent.node.plugins.core.plugin_info import PluginInfo
from agent.node.plugins.core.plugin_state import TABLE, PluginState, RegistrationEvent

PluginKey: TypeAlias = tuple[str, str]
"""Type and name of a plugin."""


@dataclass(slots=True)
class Registration:
    """The registration of one socket. `order` grows with each socket that is seen; of two sockets the newer one has the larger.

    `last_error` is what the last try failed with; a success forgets that.
    """

    plugin: PluginInfo
    order: int
    since_s: float
    state: PluginState = PluginState.DISCOVERED
    key: PluginKey = ("", "")
    versions: tuple[str, ...] = ()
    last_error: str = ""
    tries: int = 0
    """How often the plugin was dialled since the last time that it was registered."""


@dataclass(slots=True)
class Registrations:
    """All sockets that are known, by path. Whoever calls has the turn of the (type, name) that the call is about."""

    _sockets: dict[str, Registration] = field(default_factory=dict)
    _known: dict[PluginKey, str] = field(default_factory=dict)
    """The socket of each plugin that its handler knows."""
    _orders: dict[str, int] = field(default_factory=dict)
    """How new each socket is, by UUID."""
    _seen: int = 0

    def all(self) -> list[Registration]:
        """Every registration, in no certain order."""
        return list(self._sockets.values())

    def get(self, socket_path: str) -> Registration | None:
        return self._sockets.get(socket_path)

    def tries(self, plugin: PluginInfo) -> int:
        """How often this very socket was dialled since it was registered last."""
        registration = self._sockets.get(plugin.socket_path)
        return 0 if registration is None or registration.plugin.uuid != plugin.uuid else registration.tries

    def follow(self, desired: Sequence[PluginInfo], now_s: float) -> list[Registration]:
        """Enter the sockets that are new, the oldest first, and drop those that are gone and for which nothing is left to be done.
        Returns what was entered."""
        for plugin in desired:
            self._order(plugin.uuid)
        entered = [
            self._enter(plugin, now_s) for plugin in desired if plugin.socket_path not in self._sockets
        ]
        there = {plugin.socket_path for plugin in desired}
        for path, registration in list(self._sockets.items()):
            if path not in there and (registration.state, RegistrationEvent.GONE) in TABLE:
                self.happened(registration, RegistrationEvent.GONE, now_s)
        known = {plugin.uuid for plugin in desired} | {each.plugin.uuid for each in self._sockets.values()}
        self._orders = {uuid: order for uuid, order in self._orders.items() if uuid in known}
        return entered

    def begin(self, plugin: PluginInfo, now_s: float) -> Registration:
        """A try to register the socket begins. A socket that was created since the last try is entered anew."""
        registration = self._sockets.get(plugin.socket_path)
        if registration is None or registration.plugin.uuid != plugin.uuid:
            registration = self._enter(plugin, now_s)
        self.happened(registration, RegistrationEvent.DIALLED, now_s)
        registration.tries += 1
        return registration

    def happened(
        self, registration: Registration, event: RegistrationEvent, now_s: float, error: str = ""
    ) -> None:
        """Move the registration as the table says. `error` is why, where something failed."""
        after = TABLE[registration.state, event]
        if error:
            registration.last_error = error
        if after is None:
            del self._sockets[registration.plugin.socket_path]
            return
        registration.state, registration.since_s = after, now_s
        if after is PluginState.REGISTERED:
            registration.last_error, registration.tries = "", 0

    def is_outdated(self, registration: Registration) -> bool:
        """Whether the handler knows a newer socket of this name."""
        known = self._of(registration.key)
        return known is not None and known.order > registration.order

    def take(self, registration: Registration, now_s: float) -> Registration | None:
        """The handler took this socket. Returns the older socket that it has known until now, and which is superseded."""
        older = self._of(registration.key)
        self.happened(registration, RegistrationEvent.TAKEN, now_s)
        self._known[registration.key] = registration.plugin.socket_path
        if older is None or older is registration:
            return None
        self.happened(older, RegistrationEvent.OUTDATED, now_s)
        return older

    def is_known(self, registration: Registration) -> bool:
        """Whether this is the socket that the handler knows under the name."""
        return self._of(registration.key) is registration

    def give_back(self, registration: Registration, now_s: float) -> Registration | None:
        """The handler has forgotten this socket. Returns the newest of the superseded ones, which is to be registered again."""
        del self._known[registration.key]
        older = [
            each
            for each in self._sockets.values()
            if each.key == registration.key and each.state is PluginState.SUPERSEDED
        ]
        if not older:
            return None
        newest = max(older, key=lambda each: each.order)
        self.happened(newest, RegistrationEvent.REVIVED, now_s)
        return newest

    def _of(self, key: PluginKey) -> Registration | None:
        path = self._known.get(key)
        return None if path is None else self._sockets.get(path)

    def _enter(self, plugin: PluginInfo, now_s: float) -> Registration:
        entered = self._sockets[plugin.socket_path] = Registration(plugin, self._order(plugin.uuid), now_s)
        return entered

    def _order(self, uuid: str) -> int:
        if uuid not in self._orders:
            self._seen += 1
            self._orders[uuid] = self._seen
        return self._orders[uuid]
