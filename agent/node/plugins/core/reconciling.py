"""What is to be done so that the actual world becomes the desired one. Pure: worlds in, operations out."""

from collections.abc import Collection
from dataclasses import dataclass
from typing import TypeAlias

from agent.node.plugins.core.plugin_info import PluginInfo
from agent.node.plugins.core.worlds import Worlds


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


def plan(worlds: Worlds, lost: Collection[str]) -> tuple[Operation, ...]:
    """First every plugin that must end: not desired, created anew at its path, or without a server. Then every desired plugin
    that is not there with this very identity. `lost` are the UUIDs of the plugins whose server has gone."""
    wanted = {plugin.socket_path: plugin.uuid for plugin in worlds.desired.get_plugins_to_register()}
    ending = tuple(
        UnregisterPlugin(plugin, is_lost=wanted.get(plugin.socket_path) == plugin.uuid)
        for plugin in worlds.actual.get_registered_plugins()
        if wanted.get(plugin.socket_path) != plugin.uuid or plugin.uuid in lost
    )
    beginning = tuple(
        RegisterPlugin(plugin)
        for plugin in worlds.desired.get_plugins_to_register()
        if not worlds.actual.plugin_exists_with_correct_uuid(plugin)
    )
    return ending + beginning
