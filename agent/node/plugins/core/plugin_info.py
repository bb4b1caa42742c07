"""What is known of one plugin, and how messages tell it (seed 003, `PluginInfo`)."""

from dataclasses import dataclass

from agent.node.plugins.core.handler import PluginHandler
from agent.node.plugins.core.quoting import instant, quoted


class RegistrationError(Exception):
    """A step of a registration failed. The text is the published one; `plain` says the same in plain words."""

    def __init__(self, text: str, plain: str = "") -> None:
        super().__init__(text)
        self.plain = plain or text


@dataclass(frozen=True, slots=True)
class PluginInfo:
    """One plugin: its socket in the registry's folder, and what the plugin said of itself.

    An entry of the desired world has a path, a time and an identity only. `endpoint` is the socket where the plugin serves;
    plugins that name none serve at `socket_path`.
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
        return f"{prefix} for plugin at {quoted(self.socket_path)} {suffix}", self.generate_msg_detailed(
            prefix, suffix
        )

    def generate_msg_detailed(self, prefix: str, suffix: str) -> str:
        """A message about the plugin with all details, for the log."""
        return (
            f"{prefix} for plugin at {quoted(self.socket_path)} (plugin details: {self._details()}) {suffix}"
        )

    def generate_error(
        self, prefix: str, error: Exception | None
    ) -> tuple[RegistrationError, RegistrationError]:
        """An error about the plugin: for users, and with all details for the log. `error` is the cause, where there is one."""
        simple, detailed = self.generate_msg(prefix, _suffix(error))
        return RegistrationError(simple), RegistrationError(detailed)

    def generate_error_detailed(self, prefix: str, error: Exception | None) -> RegistrationError:
        """An error about the plugin with all details, for the log."""
        return RegistrationError(self.generate_msg_detailed(prefix, _suffix(error)))

    def _details(self) -> str:
        """The fields, as Go prints a structure."""
        handler = "<nil>" if self.handler is None else str(self.handler)
        fields = (self.socket_path, instant(self.timestamp), self.uuid, handler, self.name, self.endpoint)
        return "&{" + " ".join(fields) + "}"


def _suffix(error: Exception | None) -> str:
    return "" if error is None else f": {error}"
