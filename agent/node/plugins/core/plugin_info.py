"""One plugin, its handler, its messages (`PluginInfo` and `PluginHandler` of seed 003), and the state machine of its registration, as a table."""

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Protocol


class PluginHandler(Protocol):
    """Consumes the plugins of one type.

    For each plugin name the calls come strictly one after the other: after `validate_plugin` comes `register_plugin`, and after that
    `deregister_plugin`; an error in one of the first two ends the plugin's turn. A plugin of the same name on a new socket is validated
    and registered without `deregister_plugin` in between; then the end of the new socket alone deregisters the name.
    An exception of a call is its error, and its text is told to the plugin.
    """

    async def validate_plugin(self, plugin_name: str, endpoint: str, versions: Sequence[str]) -> None:
        """Raise if the plugin cannot be used by its own account, such as a version that is not supported."""

    async def register_plugin(
        self,
        plugin_name: str,
        endpoint: str,
        versions: Sequence[str],
        plugin_client_timeout_s: float | None = None,
    ) -> None:
        """Begin to use the plugin that serves at the socket `endpoint`. `plugin_client_timeout_s` limits calls to it; None leaves
        that to the handler. Raises if the plugin cannot be used."""

    async def deregister_plugin(self, plugin_name: str, endpoint: str) -> None:
        """Stop using the plugin: the socket of the registration is gone, or the server behind it.

        `endpoint` is that of the registration that ends; the seed's signature has the name only.
        """


class RegistrationError(Exception):
    """A step of a registration failed. The text is the published one; `plain` says the same in plain words."""

    def __init__(self, text: str, plain: str = "") -> None:
        super().__init__(text)
        self.plain = plain or text


@dataclass(frozen=True, slots=True)
class PluginInfo:
    """One plugin: its socket in the registry's folder, and its own account of itself.

    An entry of the desired world has a path, a time and an identity only. `endpoint` is the socket where the plugin serves;
    plugins that name none serve at `socket_path`. Messages have the published words; texts and times in them are written as in Python.
    """

    socket_path: str
    timestamp: int | None = None
    """Nanoseconds since 1970 (UTC); None means never set."""
    uuid: str = ""
    """Made anew each time the socket is seen to be created: two sockets that followed each other at one path differ in this."""
    handler: PluginHandler | None = None
    name: str = ""
    endpoint: str = ""

    def generate_msg(self, prefix: str, suffix: str) -> tuple[str, str]:
        """A message about the plugin: for users, and with all details for the log."""
        simple = f"{prefix} for plugin at {self.socket_path!r} {suffix}"
        return simple, self.generate_msg_detailed(prefix, suffix)

    def generate_msg_detailed(self, prefix: str, suffix: str) -> str:
        return f"{prefix} for plugin at {self.socket_path!r} (plugin details: {self}) {suffix}"

    def generate_error(
        self, prefix: str, error: Exception | None
    ) -> tuple[RegistrationError, RegistrationError]:
        """An error about the plugin: for users, and with all details for the log. `error` is the cause, if there is one."""
        simple, detailed = self.generate_msg(prefix, _suffix(error))
        return RegistrationError(simple), RegistrationError(detailed)

    def generate_error_detailed(self, prefix: str, error: Exception | None) -> RegistrationError:
        return RegistrationError(self.generate_msg_detailed(prefix, _suffix(error)))


def _suffix(error: Exception | None) -> str:
    return "" if error is None else f": {error}"


class PluginState(enum.StrEnum):
    """The state of a plugin's registration. Newer than the published cache, whose actual world knows `registered` only."""

    DISCOVERED = "discovered"
    """The socket is there, and nothing was asked yet."""
    CONNECTING = "connecting"
    """The socket is dialled, the plugin asked for its name, and other sockets of its name are waited for."""
    VALIDATING = "validating"
    REGISTERING = "registering"
    NOTIFYING = "notifying"
    REGISTERED = "registered"
    SUPERSEDED = "superseded"
    """A newer socket has registered under the same name."""
    DEREGISTERING = "deregistering"
    FAILED = "failed"
    """The last try failed; the next one comes after a back-off."""


class RegistrationEvent(enum.StrEnum):
    DIALLED = "dialled"
    IDENTIFIED = "identified"
    """The plugin has described itself, and no other socket of its name is at its turn."""
    VALIDATED = "validated"
    TAKEN = "taken"
    """The handler uses the plugin from now on."""
    ACKNOWLEDGED = "acknowledged"
    """The plugin took the news that it is registered."""
    OUTDATED = "outdated"
    """The handler knows a newer socket of the same name."""
    REVIVED = "revived"
    """The newer socket of the same name has ended."""
    ENDED = "ended"
    """The socket is not desired any more, or was created anew, or its server has gone."""
    DEREGISTERED = "deregistered"
    FAILED = "failed"
    GONE = "gone"
    """The socket is not there any more, and nothing is left to be undone."""


S, E = PluginState, RegistrationEvent
TABLE: Final[Mapping[tuple[PluginState, RegistrationEvent], PluginState | None]] = {
    (S.DISCOVERED, E.DIALLED): S.CONNECTING,
    (S.DISCOVERED, E.GONE): None,
    (S.CONNECTING, E.IDENTIFIED): S.VALIDATING,
    (S.CONNECTING, E.OUTDATED): S.SUPERSEDED,
    (S.CONNECTING, E.FAILED): S.FAILED,
    (S.VALIDATING, E.VALIDATED): S.REGISTERING,
    (S.VALIDATING, E.FAILED): S.FAILED,
    (S.REGISTERING, E.TAKEN): S.NOTIFYING,
    (S.REGISTERING, E.FAILED): S.FAILED,
    (S.NOTIFYING, E.ACKNOWLEDGED): S.REGISTERED,
    # The handler has the plugin already: what it took is given back first.
    (S.NOTIFYING, E.FAILED): S.DEREGISTERING,
    (S.REGISTERED, E.OUTDATED): S.SUPERSEDED,
    (S.REGISTERED, E.ENDED): S.DEREGISTERING,
    (S.SUPERSEDED, E.REVIVED): S.DISCOVERED,
    (S.SUPERSEDED, E.ENDED): S.DISCOVERED,
    (S.SUPERSEDED, E.FAILED): S.FAILED,
    (S.DEREGISTERING, E.DEREGISTERED): S.DISCOVERED,
    (S.DEREGISTERING, E.FAILED): S.FAILED,
    (S.FAILED, E.DIALLED): S.CONNECTING,
    (S.FAILED, E.GONE): None,
}
"""The next state by state and event; None is the end. Other events cannot happen."""
KNOWN: Final = frozenset({S.NOTIFYING, S.REGISTERED, S.DEREGISTERING})
"""In these states a handler knows the plugin."""
del S, E
