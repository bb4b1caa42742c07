"""What is known of one plugin, who makes use of it, and how messages tell it: `PluginInfo` and `PluginHandler` of seed 003."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol


class PluginHandler(Protocol):
    """Consumes the plugins of one type.

    For each plugin name the calls come strictly one after the other: after `validate_plugin` comes `register_plugin`, and after that
    `deregister_plugin`; an error in one of the first two ends the plugin's turn. A plugin of the same name on a new socket is validated
    and registered without `deregister_plugin` in between; then the end of the new socket alone deregisters the name.
    Whatever a call raises is its error, and its text is told to the plugin.
    """

    async def validate_plugin(self, plugin_name: str, endpoint: str, versions: Sequence[str]) -> None:
        """Raise where what the plugin says of itself cannot be used, such as a version that is not supported."""

    async def register_plugin(
        self,
        plugin_name: str,
        endpoint: str,
        versions: Sequence[str],
        plugin_client_timeout_s: float | None = None,
    ) -> None:
        """Begin to use the plugin that serves at the socket `endpoint`. `plugin_client_timeout_s` limits calls to it; None leaves
        that to the handler. Raises where the plugin cannot be used."""

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
    """One plugin: its socket in the registry's folder, and what the plugin said of itself.

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
        """A message about the plugin with all details, for the log."""
        return f"{prefix} for plugin at {self.socket_path!r} (plugin details: {self}) {suffix}"

    def generate_error(
        self, prefix: str, error: Exception | None
    ) -> tuple[RegistrationError, RegistrationError]:
        """An error about the plugin: for users, and with all details for the log. `error` is the cause, where there is one."""
        simple, detailed = self.generate_msg(prefix, _suffix(error))
        return RegistrationError(simple), RegistrationError(detailed)

    def generate_error_detailed(self, prefix: str, error: Exception | None) -> RegistrationError:
        """An error about the plugin with all details, for the log."""
        return RegistrationError(self.generate_msg_detailed(prefix, _suffix(error)))


def _suffix(error: Exception | None) -> str:
    return "" if error is None else f": {error}"
