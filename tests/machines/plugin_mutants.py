"""Known bugs of plugin managers, each as a small patch: the walks must find every one. The first three are published ones."""

import contextlib
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractContextManager
from typing import Any, Final
from unittest import mock

from agent.node.plugins import manager as node_manager
from agent.node.plugins.core import reconciling
from agent.node.plugins.core.operations import Operations
from agent.node.plugins.core.plugin_info import PluginInfo
from agent.node.plugins.core.plugin_state import PluginState
from agent.node.plugins.core.reconciling import Operation, UnregisterPlugin
from agent.node.plugins.core.registrations import Registration, Registrations
from agent.node.plugins.core.worlds import ActualStateOfWorld, Worlds
from agent.node.plugins.registration import Registrar

Patch = AbstractContextManager[object]
Private = Any
"""What only a mutant may reach into."""


def names_not_serialised() -> Patch:
    """Two sockets of one name call the handler at the same time."""

    @contextlib.asynccontextmanager
    async def turn(_: Registrar, __: tuple[str, str]) -> AsyncIterator[None]:
        yield

    return mock.patch.object(Registrar, "_turn", turn)


def dead_server_stays() -> Patch:
    """Nobody notices that a server has gone while its file is still there."""

    async def watch(*_: object) -> None:
        pass

    return mock.patch.object(Registrar, "_watch", watch)


def failed_register_stays() -> Patch:
    """The entry of a plugin stays in the actual world when its registration fails."""

    async def registered(self: Private, registration: Registration, *rest: Any) -> None:
        try:
            await original(self, registration, *rest)
        except Exception:
            ActualStateOfWorld.add_plugin(self._actual, registration.plugin)
            raise

    original: Private = Registrar._registered
    return mock.patch.object(Registrar, "_registered", registered)


def unheard_news_not_undone() -> Patch:
    """A plugin that did not take the news stays with its handler."""

    async def forgotten(self: Private, registration: Registration, _: PluginInfo) -> Any:
        if registration.last_error.startswith("the plugin did not take the news"):
            self._registrations.give_back(registration, self._clock())
            return None
        return await original(self, registration, _)

    original: Private = Registrar._deregistered
    return mock.patch.object(Registrar, "_deregistered", forgotten)


def older_socket_supersedes() -> Patch:
    """Whoever registers last counts, however old the socket."""
    return mock.patch.object(Registrations, "is_outdated", return_value=False)


def end_of_older_deregisters() -> Patch:
    async def unregister(self: Private, plugin: PluginInfo, *, is_lost: bool = False) -> None:
        registration = self._registrations.get(plugin.socket_path)
        if registration is not None and registration.state is PluginState.SUPERSEDED:
            assert plugin.handler is not None
            await self._called(plugin.handler.deregister_plugin(plugin.name, plugin.endpoint))
        await original(self, plugin, is_lost=is_lost)

    original = Registrar.unregister
    return mock.patch.object(Registrar, "unregister", unregister)


def older_never_comes_back() -> Patch:
    """After the end of the newest socket, nobody registers the older one again."""

    def give_back(self: Private, registration: Registration, _: float) -> None:
        del self._known[registration.key]

    return mock.patch.object(Registrations, "give_back", give_back)


def oldest_comes_back() -> Patch:
    """After the end of the newest socket, the oldest is registered and not the newest of those that are left."""

    def give_back(self: Private, registration: Registration, now_s: float) -> Registration | None:
        waiting = [
            each
            for each in self.all()
            if each.key == registration.key and each.state is PluginState.SUPERSEDED
        ]
        oldest = min(waiting, key=lambda each: each.order, default=None)
        for each in waiting:
            each.order = -each.order
        revived = original(self, registration, now_s)
        for each in waiting:
            each.order = -each.order
        assert revived is oldest
        return revived

    original = Registrations.give_back
    return mock.patch.object(Registrations, "give_back", give_back)


def order_of_tries_counts() -> Patch:
    """A socket counts as new when it is tried, and not when it is created."""

    def order(self: Private, _: str) -> int:
        self._seen += 1
        return int(self._seen)

    return mock.patch.object(Registrations, "_order", order)


def replaced_socket_stays() -> Patch:
    """A socket that was created anew at its path is taken for the one before."""

    def plan(worlds: Worlds, lost: set[str]) -> tuple[Operation, ...]:
        def is_as_before(operation: Operation) -> bool:
            path = operation.plugin.socket_path
            return worlds.desired.plugin_exists(path) and any(
                each.socket_path == path for each in worlds.actual.get_registered_plugins()
            )

        return tuple(
            each
            for each in original(worlds, lost)
            if not is_as_before(each) or (isinstance(each, UnregisterPlugin) and each.is_lost)
        )

    original = reconciling.plan
    return mock.patch.object(node_manager, "plan", plan)


def path_stays_pending() -> Patch:
    """A path whose operation failed is never free again."""

    def end(self: Private, socket_path: str, error: str | None, now_s: float) -> None:
        original(self, socket_path, error, now_s)
        if error is not None:
            self._records[socket_path].is_pending = True

    original = Operations.end
    return mock.patch.object(Operations, "end", end)


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
