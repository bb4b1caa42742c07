"""The handler of a type of plugins: whoever makes use of a plugin once the plugin is registered (seed 003, `PluginHandler`)."""

from collections.abc import Sequence
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
