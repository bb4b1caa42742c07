"""What registers and unregisters one plugin: the steps of the published operations, and what we repair in them.

A step that fails undoes what was done before. Handlers are called one after the other for each (type, name), also when the plugins of
that name sit at several sockets. The connection of a registered plugin is kept, so that the end of its server is noticed at once.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, replace
from typing import Any, Final
from weakref import WeakValueDictionary

from agent.node.plugins.core.handler import PluginHandler
from agent.node.plugins.core.operations import MAX_ERROR
from agent.node.plugins.core.plugin_info import PluginInfo, RegistrationError
from agent.node.plugins.core.plugin_state import PluginState, RegistrationEvent
from agent.node.plugins.core.registrations import PluginKey, Registration, Registrations
from agent.node.plugins.core.worlds import ActualStateOfWorld
from agent.node.plugins.fair_slots import FairSlots
from agent.node.plugins.plugin_connection import PluginConnection, PluginTold
from agent.node.plugins.types.answers import AnswerError
from protocol.texts import clean

DIALS: Final = 32
"""How many plugins are dialled at once."""
FIRST_TURN_S: Final = 0.25
"""How long a socket is dialled in its first turn. A server that says nothing has longer turns after that, until its time is over, and
whoever has had fewer of them goes before it."""
PATIENT: Final = 256
"""For how many sockets the agent waits at once until somebody listens there."""


@dataclass(frozen=True, slots=True)
class RegistrationLimits:
    """How long each step may take, in seconds. The first three are published; there, handlers have no limit."""

    dial_s: float = 10.0
    get_info_s: float = 1.0
    notify_s: float = 5.0
    handler_s: float = 30.0
    turn_s: float = 120.0
    """The wait for other sockets: for those of the same type and name, and for a turn to be dialled."""


@dataclass(slots=True)
class _Held:
    """The connection of a plugin in the actual world, and the task that waits for its end."""

    plugin: PluginInfo
    connection: PluginConnection
    watch: asyncio.Task[None]


class Registrar:
    """Registers and unregisters plugins. The operations of one socket must not overlap; those of different sockets may."""

    def __init__(
        self,
        actual: ActualStateOfWorld,
        registrations: Registrations,
        limits: RegistrationLimits,
        *,
        clock: Callable[[], float],
        on_step: Callable[[Registration], None],
        on_lost: Callable[[], None],
    ) -> None:
        """`on_step` is called after each change of a state, `on_lost` when a plugin's UUID has come into `lost`."""
        self._actual = actual
        self._registrations = registrations
        self._limits = limits
        self._clock = clock
        self._on_step = on_step
        self._on_lost = on_lost
        self._turns: WeakValueDictionary[PluginKey, asyncio.Lock] = WeakValueDictionary()
        self._held: dict[str, _Held] = {}
        self._dials, self._patience = FairSlots(DIALS), FairSlots(PATIENT)
        self.lost: set[str] = set()
        """The UUIDs of the plugins in the actual world whose server has gone."""

    async def register(self, plugin: PluginInfo, handlers: Mapping[str, PluginHandler]) -> None:
        """Register a plugin of the desired world with the handler of its type. Raises `RegistrationError`."""
        path = plugin.socket_path
        await self._release(path)
        self.lost.discard(plugin.uuid)
        registration = self._registrations.begin(plugin, self._clock())
        self._on_step(registration)
        connection: PluginConnection | None = None
        try:
            connection = await self._dialled(path, registration.tries)
            told = await self._told(connection, path)
            await self._registered(registration, told, connection, handlers)
        except BaseException as error:
            if connection is not None:
                await connection.close()
            is_ending = isinstance(error, asyncio.CancelledError)  # and nobody looks at states any more
            if registration.state is not PluginState.FAILED and not is_ending:
                self._step(registration, RegistrationEvent.FAILED, error)
            raise

    async def unregister(self, plugin: PluginInfo, *, is_lost: bool = False) -> None:
        """End the registration of a plugin of the actual world.

        Raises `RegistrationError` where its handler fails. Raises it also where the server has gone but the socket is still desired
        (`is_lost`), so that the next try to register waits.
        """
        path = plugin.socket_path
        if plugin.handler is None:
            raise RegistrationError(f"UnregisterPlugin error -- failed to get plugin handler for {path}")
        await self._release(path)
        registration = self._registrations.get(path)
        if registration is None:
            self._actual.remove_plugin(path)
            return
        error = (
            RegistrationError("the plugin's server has gone, its socket is still there") if is_lost else None
        )
        async with self._turn(registration.key):
            self._actual.remove_plugin(path)
            self.lost.discard(plugin.uuid)
            if registration.state is PluginState.REGISTERED:
                self._step(registration, RegistrationEvent.ENDED, error)
                error = await self._deregistered(registration, plugin) or error
                after = RegistrationEvent.FAILED if error else RegistrationEvent.DEREGISTERED
                self._step(registration, after, error)
            elif registration.state is PluginState.SUPERSEDED:
                after = RegistrationEvent.FAILED if error else RegistrationEvent.ENDED
                self._step(registration, after, error)
        if error is not None:
            raise error

    async def close(self) -> None:
        """Close every connection. No handler is called: the plugins are still there. What is not watched any more counts as lost."""
        for path, held in list(self._held.items()):
            self.lost.add(held.plugin.uuid)
            await self._release(path)

    async def _dialled(self, path: str, tries: int) -> PluginConnection:
        """A connection to the plugin. Only sockets where somebody listens are dialled, a bounded number at once, and in turns: those
        first that have had the fewest. What waits for a turn loses no time by that."""
        try:
            left_s, turn_s = await self._listened(path, tries), FIRST_TURN_S
            async with asyncio.timeout(self._limits.turn_s):
                while True:
                    async with self._dials.slot(tries):
                        with suppress(TimeoutError):
                            return await PluginConnection.dial(path, min(turn_s, left_s))
                    left_s, turn_s, tries = left_s - turn_s, 2 * turn_s, tries + 1
                    if left_s <= 0:
                        raise TimeoutError
        except TimeoutError:
            error = RegistrationError(f"failed to dial socket {path}, err: context deadline exceeded")
        except RegistrationError as failed:
            error = failed
        text = f"RegisterPlugin error -- dial failed at socket {path}, err: {error}"
        raise RegistrationError(text, "nobody answers at the socket") from error

    async def _listened(self, path: str, tries: int) -> float:
        """Wait until somebody listens at the socket. Returns how long it may be dialled. Raises `TimeoutError`.

        Between the file of a new socket and its server passes a moment. A socket that was left behind is never listened at again,
        so in later tries, and where very many are new, one look is all.
        """
        if tries > 1 or not self._patience.is_free:
            await PluginConnection.listened(path, is_patient=False)
            return self._limits.dial_s
        async with self._patience.slot(tries), asyncio.timeout(self._limits.dial_s) as limit:
            await PluginConnection.listened(path)
            return (limit.when() or 0.0) - asyncio.get_running_loop().time()

    async def _told(self, connection: PluginConnection, path: str) -> PluginTold:
        try:
            told = await connection.get_info(self._limits.get_info_s)
        except RegistrationError as error:
            text = f"RegisterPlugin error -- failed to get plugin info using RPC GetInfo at socket {path}, err: {error}"
            raise RegistrationError(text, f"the plugin did not say what it is: {error}") from error
        return told if told.endpoint else replace(told, endpoint=path)

    async def _registered(
        self,
        registration: Registration,
        told: PluginTold,
        connection: PluginConnection,
        handlers: Mapping[str, PluginHandler],
    ) -> None:
        """The steps from the plugin's answer to its acknowledgement, at the turn of the plugin's name."""
        path = registration.plugin.socket_path
        try:
            told.check()
        except AnswerError as error:
            text = f"the plugin information cannot be used: {error}"
            raise await self._refused(connection, path, text, f"refused: {error}") from None
        handler = handlers.get(told.plugin_type)
        if handler is None:
            text = f"no handler registered for plugin type: {told.plugin_type} at socket {path}"
            raise await self._refused(
                connection, path, text, f"nobody here uses plugins of type {told.plugin_type!r}"
            )
        registration.key, registration.versions = (told.plugin_type, told.name), told.versions
        plugin = replace(registration.plugin, handler=handler, name=told.name, endpoint=told.endpoint)
        registration.plugin = plugin
        async with self._turn(registration.key):
            if self._registrations.is_outdated(registration):
                self._step(registration, RegistrationEvent.OUTDATED)
                self._actual.add_plugin(plugin)
            else:
                self._step(registration, RegistrationEvent.IDENTIFIED)
                await self._validated(registration, handler, told, connection)
                await self._taken(registration, handler, told, connection)
                await self._acknowledged(registration, connection)
            self._hold(plugin, connection)

    async def _validated(
        self,
        registration: Registration,
        handler: PluginHandler,
        told: PluginTold,
        connection: PluginConnection,
    ) -> None:
        error = await self._called(handler.validate_plugin(told.name, told.endpoint, told.versions))
        if error is not None:
            path, text = registration.plugin.socket_path, f"plugin validation failed with err: {error}"
            raise await self._refused(connection, path, text, f"refused: {error}")
        self._step(registration, RegistrationEvent.VALIDATED)

    async def _taken(
        self,
        registration: Registration,
        handler: PluginHandler,
        told: PluginTold,
        connection: PluginConnection,
    ) -> None:
        self._actual.add_plugin(registration.plugin)
        error = await self._called(handler.register_plugin(told.name, told.endpoint, told.versions, None))
        if error is not None:
            self._actual.remove_plugin(registration.plugin.socket_path)
            text = await self._notified(connection, f"plugin registration failed with err: {error}")
            raise RegistrationError(text, f"cannot be used: {error}")
        older = self._registrations.take(registration, self._clock())
        self._on_step(registration)
        if older is not None:
            self._on_step(older)

    async def _acknowledged(self, registration: Registration, connection: PluginConnection) -> None:
        """Tell the plugin that it is registered. Where it does not take that, the handler gives it back."""
        try:
            await connection.notify(None, self._limits.notify_s)
        except RegistrationError as error:
            path = registration.plugin.socket_path
            text = (
                f"RegisterPlugin error -- failed to send registration status at socket {path}, err: : {error}"
            )
            plain = f"the plugin did not take the news that it is registered: {error}"
            failed = RegistrationError(text, plain)
            self._step(registration, RegistrationEvent.FAILED, failed)
            self._actual.remove_plugin(path)
            await self._deregistered(registration, registration.plugin)
            self._step(registration, RegistrationEvent.FAILED)
            raise failed from error
        self._step(registration, RegistrationEvent.ACKNOWLEDGED)

    async def _deregistered(self, registration: Registration, plugin: PluginInfo) -> RegistrationError | None:
        """Let the handler forget the plugin, and let an older socket of its name have the next try. Returns the handler's error."""
        assert plugin.handler is not None, plugin
        error = await self._called(plugin.handler.deregister_plugin(plugin.name, plugin.endpoint))
        revived = self._registrations.give_back(registration, self._clock())
        if revived is not None:
            self._actual.remove_plugin(revived.plugin.socket_path)
            self._on_step(revived)
            await self._release(revived.plugin.socket_path)
        return (
            None
            if error is None
            else RegistrationError(f"the handler did not end the registration well: {error}")
        )

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
        """Await the call of a handler. Returns what it failed with."""
        limit = asyncio.timeout(self._limits.handler_s)
        try:
            async with limit:
                await call
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise
            return "the handler was cancelled"
        except Exception as error:  # noqa: BLE001 - whatever a handler raises is its answer
            return (
                f"the handler had no end after {self._limits.handler_s:g} s"
                if limit.expired()
                else str(error)
            )
        return None

    @asynccontextmanager
    async def _turn(self, key: PluginKey) -> AsyncIterator[None]:
        """Wait until no other socket of the name is at its turn. Raises `RegistrationError` where that takes too long."""
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

    def _step(
        self, registration: Registration, event: RegistrationEvent, error: BaseException | None = None
    ) -> None:
        told = "" if error is None else clean(getattr(error, "plain", "") or repr(error), MAX_ERROR)
        self._registrations.happened(registration, event, self._clock(), told)
        self._on_step(registration)

    def _hold(self, plugin: PluginInfo, connection: PluginConnection) -> None:
        watch = asyncio.create_task(
            self._watch(plugin, connection), name=f"connection to {plugin.socket_path}"
        )
        self._held[plugin.socket_path] = _Held(plugin, connection, watch)

    async def _watch(self, plugin: PluginInfo, connection: PluginConnection) -> None:
        # A connection that cannot be watched counts as lost.
        with suppress(Exception):
            await connection.lost()
        self.lost.add(plugin.uuid)
        self._on_lost()

    async def _release(self, path: str) -> None:
        held = self._held.pop(path, None)
        if held is not None:
            held.watch.cancel()
            try:
                await asyncio.wait([held.watch])
            finally:  # nobody else knows of the connection any more
                await held.connection.close()
