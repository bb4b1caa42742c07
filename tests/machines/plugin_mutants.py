"""Known bugs of plugin managers, each as a small patch: the walks must find every one. The first three are published ones."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractContextManager
from typing import Any, Final
from unittest import mock

from agent.node.plugins.core.plugin_info import PluginInfo, PluginState
from agent.node.plugins.core.sockets import (
    Operation,
    PluginSocket,
    Refusal,
    SocketTable,
    UnregisterPlugin,
)
from agent.node.plugins.core.worlds import ActualStateOfWorld
from agent.node.plugins.registrar import Registrar

Patch = AbstractContextManager[object]
Private = Any
"""The private parts of the manager, which only a mutant may reach into."""


def names_not_serialised() -> Patch:
    """Two sockets of one name call the handler at the same time."""

    @contextlib.asynccontextmanager
    async def turn(_: Registrar, __: tuple[str, str]) -> AsyncIterator[None]:
        yield

    return mock.patch.object(Registrar, "_turn", turn)


def dead_server_stays() -> Patch:
    """Nobody notices that a server has gone while its file is still there."""

    async def watch(*_: object) -> None:
        await asyncio.Event().wait()

    return mock.patch.object(Registrar, "_until_lost", watch)


def failed_register_stays() -> Patch:
    """The entry of a plugin stays in the actual world when its registration fails."""

    async def registered(self: Private, socket: PluginSocket, *rest: Any) -> None:
        try:
            await original(self, socket, *rest)
        except Exception:
            ActualStateOfWorld.add_plugin(self._actual, socket.plugin)
            raise

    original: Private = Registrar._registered
    return mock.patch.object(Registrar, "_registered", registered)


def unheard_news_not_undone() -> Patch:
    """A plugin that did not take the news stays with its handler."""

    async def forgotten(self: Private, plugin: PluginInfo) -> Any:
        if self._table.at(plugin.socket_path).error.startswith("the plugin did not take the news"):
            return None
        return await original(self, plugin)

    original: Private = Registrar._deregistered
    return mock.patch.object(Registrar, "_deregistered", forgotten)


def older_socket_supersedes() -> Patch:
    """The socket that registers last counts, however old it is."""
    return mock.patch.object(SocketTable, "is_outdated", return_value=False)


def end_of_older_deregisters() -> Patch:
    async def unregister(self: Private, plugin: PluginInfo, *, is_lost: bool = False) -> None:
        if self._table.at(plugin.socket_path).state is PluginState.SUPERSEDED:
            await self._deregistered(plugin)
        await original(self, plugin, is_lost=is_lost)

    original = Registrar.unregister
    return mock.patch.object(Registrar, "unregister", unregister)


def older_never_comes_back() -> Patch:
    """After the end of the newest socket, nobody registers the older one again."""
    return mock.patch.object(SocketTable, "_revived", return_value=None)


def oldest_comes_back() -> Patch:
    """After the end of the newest socket, the oldest is registered and not the newest of those that are left."""

    def revived(self: SocketTable, socket: PluginSocket) -> PluginSocket | None:
        waiting = [
            each for each in self.all() if each.key == socket.key and each.state is PluginState.SUPERSEDED
        ]
        return min(waiting, key=lambda each: each.order, default=None)

    return mock.patch.object(SocketTable, "_revived", revived)


def order_of_tries_counts() -> Patch:
    """A socket counts as new when it is tried, and not when it is created."""

    def begin(self: Private, plugin: PluginInfo, now_s: float) -> Refusal | None:
        refusal: Refusal | None = original(self, plugin, now_s)
        if refusal is None:
            self.at(plugin.socket_path).order = next(self._births)
        return refusal

    original: Private = SocketTable.begin
    return mock.patch.object(SocketTable, "begin", begin)


def replaced_socket_stays() -> Patch:
    """A socket that was created anew at its path is taken for the one before."""

    def plan(self: SocketTable, now_s: float) -> tuple[Operation, ...]:
        def is_as_before(operation: Operation) -> bool:
            socket = self.at(operation.plugin.socket_path)
            return socket.there is not None and socket.is_actual

        return tuple(
            each
            for each in original(self, now_s)
            if not is_as_before(each) or (isinstance(each, UnregisterPlugin) and each.is_lost)
        )

    original = SocketTable.plan
    return mock.patch.object(SocketTable, "plan", plan)


def path_stays_pending() -> Patch:
    """A path whose operation failed is never free again."""

    def ended(self: SocketTable, socket: PluginSocket, error: str | None, *rest: float) -> None:
        original(self, socket, error, *rest)
        socket.is_busy = error is not None

    original: Private = SocketTable.ended
    return mock.patch.object(SocketTable, "ended", ended)


MUTANTS: Final[tuple[Callable[[], Patch], ...]] = (
    names_not_serialised,
    dead_server_stays,
    failed_register_stays,
    unheard_news_not_undone,
    older_socket_supersedes,
    end_of_older_deregisters,
    older_never_comes_back,
    oldest_comes_back,
    order_of_tries_counts,
    replaced_socket_stays,
    path_stays_pending,
)
