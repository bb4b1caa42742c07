"""Which sockets have come and gone between two looks at the registry's folder, which plugins should be registered, and which are: the two
caches of seed 003, as views of the table of sockets.

Listings are copies. Paths are opaque: nobody cleans them.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

from agent.node.plugins.core.plugin_info import PluginInfo
from agent.node.plugins.core.sockets import SocketTable


@dataclass(frozen=True, slots=True)
class SocketIdentity:
    """Which file a socket is. Two files that follow each other at one path differ in this.

    The number of the inode alone does not tell: many file systems give a new file the number of the one that was just removed. The time
    of the last change tells too much: chmod, touch and a further link change that. So the time at which the file was made is part of
    the identity. File systems that do not tell that time give the time of the last modification instead: there, a touch is taken for
    a new socket, which costs one more registration; the other way round, a new socket would be missed.
    """

    device: int
    inode: int
    born_ns: int
    """When the file was made, in nanoseconds since 1970."""


Sockets = Mapping[str, SocketIdentity]
"""The sockets in the folder, by their paths."""


def is_looked_at(name: str) -> bool:
    """Whether a name in the folder counts: not hidden, and readable as text, so that it can be told in logs and over HTTP.

    That holds for sockets and for folders, whenever they were made. The published watcher enters hidden folders that are there at
    its start and no others, so that a restart changes which plugins are registered.
    """
    return not name.startswith(".") and not any("\ud800" <= each <= "\udfff" for each in name)


def changes(before: Sockets, after: Sockets) -> Iterator[tuple[str, SocketIdentity | None]]:
    """The paths that changed: first those that are gone (None), then those with a new socket, in the order in which the sockets
    were made. So the newest plugin of a name is the same one after a restart of ours. Other paths are not named.

    The kernel's events only say that something may have changed; all that the watcher does follows from two looks. So an event that was
    lost, came twice or came late can do no harm.
    """
    for path in sorted(before.keys() - after.keys()):
        yield path, None
    new = (path for path in after if before.get(path) != after[path])
    for path in sorted(new, key=lambda path: (after[path].born_ns, path)):
        yield path, after[path]


class SocketPathError(ValueError):
    """A plugin without the path of its socket; nothing was stored."""

    def __init__(self) -> None:
        super().__init__("socket path is empty")


@dataclass(slots=True)
class DesiredStateOfWorld:
    """The sockets that are there, and whose plugins should therefore be registered. The watcher of the registry's folder fills this.

    `now_ns` tells the time in nanoseconds since 1970, and `new_uuid` makes an identity. `on_change` is called after each change.
    """

    now_ns: Callable[[], int]
    new_uuid: Callable[[], str]
    on_change: Callable[[], None] = lambda: None
    table: SocketTable = field(default_factory=SocketTable)

    def add_or_update_plugin(self, socket_path: str) -> None:
        """Note that a socket was created at the path. Each call gives the path a new time and identity, so that the plugin registers
        anew. Raises `SocketPathError` for an empty path."""
        if not socket_path:
            raise SocketPathError
        self.table.made(PluginInfo(socket_path, self.now_ns(), self.new_uuid()))
        self.on_change()

    def remove_plugin(self, socket_path: str) -> None:
        """Note that the socket is gone. A path that is not known changes nothing."""
        if self.plugin_exists(socket_path):
            self.table.gone(socket_path)
            self.on_change()

    def get_plugins_to_register(self) -> list[PluginInfo]:
        """All plugins that should be registered, each with its path, time and identity; the socket that was created last comes last."""
        return [each.there for each in self.table.there() if each.there is not None]

    def plugin_exists(self, socket_path: str) -> bool:
        found = self.table.get(socket_path)
        return found is not None and found.there is not None


@dataclass(slots=True)
class ActualStateOfWorld:
    """The plugins whose handlers know of them. An entry has time and identity of the desired entry that it came from."""

    table: SocketTable = field(default_factory=SocketTable)

    def add_plugin(self, plugin: PluginInfo) -> None:
        """Store the plugin in place of any other at its path. Raises `SocketPathError` for an empty path."""
        if not plugin.socket_path:
            raise SocketPathError
        self.table.added(plugin)

    def remove_plugin(self, socket_path: str) -> None:
        """Forget the plugin at the path. A path that is not known changes nothing."""
        if self.table.get(socket_path) is not None:
            self.table.removed(socket_path)

    def get_registered_plugins(self) -> list[PluginInfo]:
        return [each.plugin for each in self.table.all() if each.is_actual]

    def plugin_exists_with_correct_timestamp(self, plugin: PluginInfo) -> bool:
        """Whether a plugin is at this path, with this time. Clocks may be coarse: the identity tells two sockets apart."""
        known = self._at(plugin.socket_path)
        return known is not None and known.timestamp == plugin.timestamp

    def plugin_exists_with_correct_uuid(self, plugin: PluginInfo) -> bool:
        """Whether a plugin is at this path, with this identity."""
        known = self._at(plugin.socket_path)
        return known is not None and known.uuid == plugin.uuid

    def _at(self, socket_path: str) -> PluginInfo | None:
        found = self.table.get(socket_path)
        return found.plugin if found is not None and found.is_actual else None


@dataclass(frozen=True, slots=True)
class Worlds:
    desired: DesiredStateOfWorld
    actual: ActualStateOfWorld

    def __post_init__(self) -> None:
        assert self.desired.table is self.actual.table

    @property
    def table(self) -> SocketTable:
        return self.desired.table


def total_plugins(worlds: Worlds) -> dict[tuple[str, str], int]:
    """The samples of the published gauge `plugin_manager_total_plugins`, by socket path and state."""
    known = [
        (plugin.socket_path, "actual_state_of_world") for plugin in worlds.actual.get_registered_plugins()
    ]
    wanted = [
        (plugin.socket_path, "desired_state_of_world") for plugin in worlds.desired.get_plugins_to_register()
    ]
    return dict.fromkeys(known + wanted, 1)
