"""Registers and unregisters plugins: the steps of the published operations, and our repairs of them.

Each socket has one task: it performs the operation that was begun, and once that has registered the plugin, it keeps the connection and
notices at once when the plugin's server has gone. A step that fails undoes those before it. Handlers are called one after the other
for each (type, name), also when the plugins of that name sit at several sockets.
"""

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final
from weakref import WeakValueDictionary

from agent.node.plugins.core.plugin_info import (
    PluginHandler,
    PluginInfo,
    PluginState,
    RegistrationError,
    RegistrationEvent,
)
from agent.node.plugins.core.sockets import (
    MAX_ERROR,
    Operation,
    PluginKey,
    PluginSocket,
    Refusal,
    RegisterPlugin,
    UnregisterPlugin,
)
from agent.node.plugins.core.worlds import Worlds
from agent.node.plugins.plugin_connection import Dialler, PluginConnection, PluginTold
from agent.node.plugins.ports import AnswerError
from protocol.texts import clean

HANDLED: Final = frozenset(
    {PluginState.VALIDATING, PluginState.REGISTERING, PluginState.NOTIFYING, PluginState.DEREGISTERING}
)
"""In these states a handler is at work."""


@dataclass(frozen=True, slots=True)
class RegistrationLimits:
    """How long each step may take, in seconds. The first three are published; there, handlers have no limit."""

    dial_s: float = 10.0
    get_info_s: float = 1.0
    notify_s: float = 5.0
    handler_s: float = 30.0
    turn_s: float = 120.0
    """The wait for other sockets: for those of the same type and name, and for a turn to be dialled."""


class Registrar:
    """Registers and unregisters the plugins of the worlds. The table says which operation may start; `drain` leaves no task behind."""

    def __init__(
        self,
        worlds: Worlds,
        limits: RegistrationLimits,
        *,
        clock: Callable[[], float],
        rng: random.Random,
        on_step: Callable[[PluginSocket], None],
        on_end: Callable[[str], None],
    ) -> None:
        """`on_step` is called after each change of a state; `on_end` with the path when an operation has ended, or a plugin's server
        has gone."""
        self._actual = worlds.actual
        self._table = worlds.table
        self._limits = limits
        self._clock = clock
        self._rng = rng
        self._on_step = on_step
        self._on_end = on_end
        self._dialler = Dialler(limits.dial_s, limits.turn_s)
        self._turns: WeakValueDictionary[PluginKey, asyncio.Lock] = WeakValueDictionary()
        self._latest: dict[str, asyncio.Task[None]] = {}
        """The task of each path."""
        self._tasks: set[asyncio.Task[None]] = set()
        """Those, and the ones before them that have not ended yet."""
        self._is_draining = False

    def start(self, operation: Operation, handlers: Mapping[str, PluginHandler]) -> Refusal | None:
        """Start the operation, or say why it must not start now. A plugin is registered with the handler of its type."""
        refusal = self._table.begin(operation.plugin, self._clock())
        if refusal is None:
            self.launch(operation, handlers)
        return refusal

    def launch(self, operation: Operation, handlers: Mapping[str, PluginHandler]) -> None:
        """Perform an operation that has begun, as the socket's task. The one before only watches a connection, and ends."""
        path = operation.plugin.socket_path
        before = self._latest.get(path)
        if before is not None:
            before.cancel()
        task = asyncio.create_task(self._perform(operation, handlers, before), name=f"plugin at {path}")
        self._latest[path] = task
        self._tasks.add(task)
        # Not in the task: one that is cancelled before its first step runs no line of it.
        task.add_done_callback(partial(self._forget, path))

    async def drain(self, within_s: float) -> None:
        """End every task and close every connection: at once if no handler is at work, else after `within_s`. The
        plugins are still there, so none is deregistered."""
        self._is_draining = True
        try:
            for path, task in self._latest.items():
                if self._table.at(path).state not in HANDLED:
                    task.cancel()
            if self._tasks:
                _, left = await asyncio.wait(set(self._tasks), timeout=within_s)
                for task in left:
                    task.cancel()
                if left:
                    await asyncio.wait(left)
        finally:
            self._is_draining = False

    def _forget(self, path: str, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if self._latest.get(path) is task:
            del self._latest[path]

    async def _perform(
        self,
        operation: Operation,
        handlers: Mapping[str, PluginHandler],
        before: asyncio.Task[None] | None,
    ) -> None:
        plugin, connection = operation.plugin, None
        failed: Exception | None = None
        try:
            try:
                if before is not None:
                    await asyncio.wait([before])
                match operation:
                    case RegisterPlugin():
                        connection = await self.register(plugin, handlers)
                    case UnregisterPlugin(is_lost=is_lost):
                        await self.unregister(plugin, is_lost=is_lost)
            except Exception as error:  # noqa: BLE001 - the error of an operation is recorded, and the next try waits
                failed = error
            except BaseException:
                failed = RegistrationError("given up at the agent's end")
                raise
            finally:
                text = None if failed is None else _plain(failed)
                self._table.ended(self._table.at(plugin.socket_path), text, self._rng.random(), self._clock())
                self._on_end(plugin.socket_path)
            if connection is not None and not self._is_draining:
                await self._until_lost(connection)
        finally:
            if connection is not None:
                self._table.lost(plugin)
                self._on_end(plugin.socket_path)
                await connection.close()

    async def _until_lost(self, connection: PluginConnection) -> None:
        # A connection that cannot be watched counts as lost.
        with suppress(Exception):
            await connection.lost()

    async def register(self, plugin: PluginInfo, handlers: Mapping[str, PluginHandler]) -> PluginConnection:
        """Register a plugin of the desired world with the handler of its type. Returns the connection, which the caller closes.

        Raises `RegistrationError`.
        """
        self._stepped(self._table.dialled(plugin, self._clock()))
        socket = self._table.at(plugin.socket_path)
        connection: PluginConnection | None = None
        try:
            connection = await self._dialler.connection(socket.path, socket.tries)
            told = await self._told(connection, socket.path)
            await self._registered(socket, told, connection, handlers)
        except BaseException as error:
            if connection is not None:
                await connection.close()
            is_ending = isinstance(error, asyncio.CancelledError)  # and nobody looks at states any more
            if socket.state is not PluginState.FAILED and not is_ending:
                self._move(socket, RegistrationEvent.FAILED, error)
            raise
        return connection

    async def unregister(self, plugin: PluginInfo, *, is_lost: bool = False) -> None:
        """End the registration of a plugin of the actual world.

        Raises `RegistrationError` if its handler fails. Raises it also if the server has gone but the socket is still desired
        (`is_lost`), so that the next try to register waits.
        """
        path = plugin.socket_path
        if plugin.handler is None:
            raise RegistrationError(f"UnregisterPlugin error -- failed to get plugin handler for {path}")
        socket = self._table.at(path)
        error = (
            RegistrationError("the plugin's server has gone, its socket is still there") if is_lost else None
        )
        async with self._turn(socket.key):
            self._actual.remove_plugin(path)
            if socket.state is PluginState.REGISTERED:
                self._move(socket, RegistrationEvent.ENDED, error)
                error = await self._deregistered(plugin) or error
                after = RegistrationEvent.FAILED if error else RegistrationEvent.DEREGISTERED
                await self._ended(socket, after, error)
            elif socket.state is PluginState.SUPERSEDED:
                after = RegistrationEvent.FAILED if error else RegistrationEvent.ENDED
                self._move(socket, after, error)
        if error is not None:
            raise error

    async def _told(self, connection: PluginConnection, path: str) -> PluginTold:
        try:
            told = await connection.get_info(self._limits.get_info_s)
        except RegistrationError as error:
            text = f"RegisterPlugin error -- failed to get plugin info using RPC GetInfo at socket {path}, err: {error}"
            raise RegistrationError(text, f"the plugin did not say what it is: {error}") from error
        return told if told.endpoint else replace(told, endpoint=path)

    async def _registered(
        self,
        socket: PluginSocket,
        told: PluginTold,
        connection: PluginConnection,
        handlers: Mapping[str, PluginHandler],
    ) -> None:
        """The steps from the plugin's answer to its acknowledgement, at the turn of the plugin's name."""
        path = socket.path
        try:
            told.check()
        except AnswerError as error:
            text = f"the plugin information cannot be used: {error}"
            raise await self._refused(connection, path, text, f"refused: {error}") from None
        handler = handlers.get(told.plugin_type)
        if handler is None:
            text = f"no handler registered for plugin type: {told.plugin_type} at socket {path}"
            plain = f"nobody here uses plugins of type {told.plugin_type!r}"
            raise await self._refused(connection, path, text, plain)
        plugin = replace(socket.plugin, handler=handler, name=told.name, endpoint=told.endpoint)
        self._table.described(plugin, (told.plugin_type, told.name), told.versions)
        async with self._turn(socket.key):
            if self._table.is_outdated(socket):
                self._move(socket, RegistrationEvent.OUTDATED)
                self._actual.add_plugin(plugin)
                return
            self._move(socket, RegistrationEvent.IDENTIFIED)
            failed = await self._called(handler.validate_plugin(told.name, told.endpoint, told.versions))
            if failed is not None:
                text = f"plugin validation failed with err: {failed}"
                raise await self._refused(connection, path, text, f"refused: {failed}")
            self._move(socket, RegistrationEvent.VALIDATED)
            self._actual.add_plugin(plugin)
            failed = await self._called(
                handler.register_plugin(told.name, told.endpoint, told.versions, None)
            )
            if failed is not None:
                self._actual.remove_plugin(path)
                text = await self._notified(connection, f"plugin registration failed with err: {failed}")
                raise RegistrationError(text, f"cannot be used: {failed}")
            self._move(socket, RegistrationEvent.TAKEN)
            await self._acknowledged(socket, plugin, connection)

    async def _acknowledged(
        self, socket: PluginSocket, plugin: PluginInfo, connection: PluginConnection
    ) -> None:
        """Tell the plugin that it is registered. If it does not take that, the handler gives it back."""
        try:
            await connection.notify(None, self._limits.notify_s)
        except RegistrationError as error:
            text = f"RegisterPlugin error -- failed to send registration status at socket {socket.path}, err: : {error}"
            plain = f"the plugin did not take the news that it is registered: {error}"
            failed = RegistrationError(text, plain)
            self._move(socket, RegistrationEvent.FAILED, failed)
            self._actual.remove_plugin(socket.path)
            await self._deregistered(plugin)
            await self._ended(socket, RegistrationEvent.FAILED)
            raise failed from error
        self._move(socket, RegistrationEvent.ACKNOWLEDGED)

    async def _deregistered(self, plugin: PluginInfo) -> RegistrationError | None:
        """Let the handler forget the plugin. Returns the handler's error."""
        assert plugin.handler is not None, plugin
        error = await self._called(plugin.handler.deregister_plugin(plugin.name, plugin.endpoint))
        if error is None:
            return None
        return RegistrationError(f"the handler did not end the registration well: {error}")

    async def _ended(
        self, socket: PluginSocket, event: RegistrationEvent, error: RegistrationError | None = None
    ) -> None:
        """The handler has forgotten the plugin. An older socket of the name has the next try, with a connection of its own."""
        for revived in self._move(socket, event, error)[1:]:
            self._actual.remove_plugin(revived.path)
            watch = self._latest.get(revived.path)
            if watch is not None and not revived.is_busy:
                watch.cancel()
                await asyncio.wait([watch])

    async def _refused(
        self, connection: PluginConnection, path: str, text: str, plain: str
    ) -> RegistrationError:
        """Tell the plugin why it is not registered; the published text names the news and not its reason."""
        told = await self._notified(connection, text)
        return RegistrationError(
            f"RegisterPlugin error -- failed to send error at socket {path}, err: {told}", plain
        )

    async def _notified(self, connection: PluginConnection, text: str) -> str:
        """Tell the plugin an error. Returns the whole text, with why the plugin did not take that."""
        text = f"RegisterPlugin error -- {text}"
        try:
            await connection.notify(text, self._limits.notify_s)
        except RegistrationError as error:
            return f"{text}: {error}"
        return text

    async def _called(self, call: Coroutine[Any, Any, None]) -> str | None:
        """Await the call of a handler. Returns its error."""
        limit = asyncio.timeout(self._limits.handler_s)
        try:
            async with limit:
                await call
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise
            return "the handler was cancelled"
        except Exception as error:  # noqa: BLE001 - any exception of a handler is its answer
            return (
                f"the handler had no end after {self._limits.handler_s:g} s"
                if limit.expired()
                else str(error)
            )
        return None

    @asynccontextmanager
    async def _turn(self, key: PluginKey) -> AsyncIterator[None]:
        """Wait until no other socket of the name is at its turn. Raises `RegistrationError` if that takes too long."""
        turn = self._turns.setdefault(key, asyncio.Lock())
        try:
            async with asyncio.timeout(self._limits.turn_s):
                await turn.acquire()
        except TimeoutError:
            raise RegistrationError(
                f"other plugins named {key[1]!r} had no end after {self._limits.turn_s:g} s"
            ) from None
        try:
            yield
        finally:
            turn.release()

    def _move(
        self, socket: PluginSocket, event: RegistrationEvent, error: BaseException | None = None
    ) -> tuple[PluginSocket, ...]:
        told = "" if error is None else _plain(error)
        return self._stepped(self._table.moved(socket, event, told, self._clock()))

    def _stepped(self, changed: tuple[PluginSocket, ...]) -> tuple[PluginSocket, ...]:
        for socket in changed:
            self._on_step(socket)
        return changed


def _plain(error: BaseException) -> str:
    """An error as people are told of it."""
    return clean(getattr(error, "plain", "") or repr(error), MAX_ERROR)
