"""The plugin manager: plugins that put a socket into a folder are registered, as with the kubelet (seed 003).

The reconciler compares the desired world with the actual one and gives what differs to the executor, one task for each socket."""

import asyncio
import heapq
import random
import time
import uuid
from collections.abc import Callable, Collection, Coroutine, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

from agent.node.plugins.core.handler import PluginHandler
from agent.node.plugins.core.operations import BackingOff, Operations, Refusal
from agent.node.plugins.core.plugin_state import PluginState
from agent.node.plugins.core.reconciling import Operation, RegisterPlugin, UnregisterPlugin, plan
from agent.node.plugins.core.registrations import Registration, Registrations
from agent.node.plugins.core.worlds import ActualStateOfWorld, DesiredStateOfWorld, Worlds, total_plugins
from agent.node.plugins.ports import PluginStatus
from agent.node.plugins.registration import Registrar, RegistrationLimits
from agent.node.plugins.watcher import Watcher
from hosting.fault_log import FaultLog
from hosting.logs import Logger
from hosting.metrics import Family
from protocol.texts import clean


def plugins_families(worlds: Worlds) -> tuple[Family, ...]:
    """The gauge `plugin_manager_total_plugins`, with a sample for each socket in each world; nothing where there is none."""
    found = {(clean(path), state): float(count) for (path, state), count in total_plugins(worlds).items()}
    samples = tuple(found.items())
    if not samples:
        return ()
    labels = ("socket_path", "state")
    text = "[ALPHA] Number of plugins in Plugin Manager"
    return (Family("gauge", "plugin_manager_total_plugins", text, labels, samples),)


class OperationExecutor:
    """Starts operations as tasks of its own, and records how each ended. `drain` leaves none behind."""

    def __init__(
        self,
        operations: Operations,
        *,
        clock: Callable[[], float],
        on_end: Callable[[str, BaseException | None], None],
    ) -> None:
        """`on_end` is called with the path of each operation that has ended, and with its error."""
        self._operations = operations
        self._clock = clock
        self._on_end = on_end
        self._tasks: dict[str, asyncio.Task[None]] = {}

    def start(
        self,
        socket_path: str,
        identity: str,
        operation: Callable[[], Coroutine[Any, Any, None]],
    ) -> Refusal | None:
        """Start the operation, or say why it must not start now. `identity` is the UUID of the socket."""
        refusal = self._operations.begin(socket_path, identity, self._clock())
        if refusal is None:
            task = asyncio.create_task(self._run(socket_path, operation), name=f"plugin at {socket_path}")
            self._tasks[socket_path] = task
            # Not in the task: one that is cancelled before its first step runs no line of it.
            task.add_done_callback(partial(self._forget, socket_path))
        return refusal

    async def drain(self, within_s: float, idle: Collection[str] = ()) -> None:
        """End every operation: at once those at the paths in `idle`, the others when they have had `within_s` to end themselves."""
        tasks = dict(self._tasks)
        for path in tasks.keys() & idle:
            tasks[path].cancel()
        if tasks:
            _, left = await asyncio.wait(tasks.values(), timeout=within_s)
            for task in left:
                task.cancel()
            if left:
                await asyncio.wait(left)

    def _forget(self, socket_path: str, task: asyncio.Task[None]) -> None:
        if self._tasks.get(socket_path) is task:
            del self._tasks[socket_path]

    async def _run(self, socket_path: str, operation: Callable[[], Coroutine[Any, Any, None]]) -> None:
        failed: BaseException | None = None
        try:
            await operation()
        except Exception as error:  # noqa: BLE001 - the error of an operation is recorded, and the next try waits
            failed = error
        except BaseException as error:
            failed = error
            raise
        finally:
            self._operations.end(socket_path, None if failed is None else str(failed), self._clock())
            self._on_end(socket_path, failed)


PERIOD_S: Final = 1.0
"""From one pass to the next, where nothing tells of a change; as published."""
PAUSE_S: Final = 0.01
"""A pass follows the one before no sooner, however many changes there are."""
DUTY: Final = 4.0
"""A pass is followed by a pause of so many times its length: thousands of sockets cost at most a fifth of a core."""

STARTS: Final = 256
"""So many registrations begin in one pass at most: a folder may be full of sockets whose servers have died."""

HANDLED: Final = frozenset(
    {PluginState.VALIDATING, PluginState.REGISTERING, PluginState.NOTIFYING, PluginState.DEREGISTERING}
)
"""In these states a handler is at work."""


@dataclass(frozen=True, slots=True)
class AskedOperation:
    """What a pass asked of the executor. `refusal` is None where the operation was started."""

    operation: Operation
    refusal: Refusal | None


def _unheard(_: PluginStatus) -> None:
    pass


class PluginReconciler:
    """The worlds of plugins and the loop that brings them together. Everything runs in one event loop."""

    def __init__(
        self,
        worlds: Worlds,
        handlers: Mapping[str, PluginHandler],
        *,
        log: Logger,
        rng: random.Random,
        clock: Callable[[], float],
        limits: RegistrationLimits | None = None,
        on_change: Callable[[PluginStatus], None] = _unheard,
    ) -> None:
        """Changes of the desired world wake the loop. `handlers` by type of plugin; `clock` gives monotonic seconds; `on_change` is called after each change of a plugin's state."""
        self._worlds = worlds
        worlds.desired.on_change = self.wake
        self._handlers = dict(handlers)
        self._clock = clock
        self._on_change = on_change
        self._registrations = Registrations()
        self._operations = Operations(rng)
        self.registrar = Registrar(
            worlds.actual,
            self._registrations,
            limits or RegistrationLimits(),
            clock=clock,
            on_step=self._stepped,
            on_lost=self.wake,
        )
        self._executor = OperationExecutor(self._operations, clock=clock, on_end=self._ended)
        self._due = asyncio.Event()
        self._faults = FaultLog(log, "plugin cannot be used", "plugin can be used again")
        self._on_change_faults = FaultLog(
            log, "change of a plugin could not be told", "changes of plugins are told again", is_ours=True
        )

    def add_handler(self, plugin_type: str, handler: PluginHandler) -> None:
        """Use the handler for plugins of that type, in place of another one; registrations under way keep theirs."""
        self._handlers[plugin_type] = handler
        self.wake()

    def wake(self) -> None:
        """Let the next pass begin at once."""
        self._due.set()

    async def run(self) -> None:
        """Reconcile until cancelled. Operations go on then, until `drain`."""
        while True:
            self._due.clear()
            began_s = self._clock()
            calls = self.reconcile()
            took_s = self._clock() - began_s
            with suppress(TimeoutError):
                async with asyncio.timeout(self._wait_s(calls)):
                    await self._due.wait()
            await asyncio.sleep(max(PAUSE_S, DUTY * took_s))

    def reconcile(self) -> tuple[AskedOperation, ...]:
        """One pass: what is to be done now is started. Returns what was asked of the executor."""
        now_s = self._clock()
        desired = self._worlds.desired.get_plugins_to_register()
        for entered in self._registrations.follow(desired, now_s):
            self._stepped(entered)
        self._faults.forget_all_but([each.plugin.socket_path for each in self._registrations.all()])
        self._operations.forget({plugin.socket_path for plugin in desired}, now_s)
        asked = self._chosen(plan(self._worlds, self.registrar.lost), now_s)
        return tuple(AskedOperation(operation, self._start(operation)) for operation in asked)

    async def drain(self, within_s: float) -> None:
        """End what is under way, and close every connection; what a handler does has `within_s` to end itself. The plugins are
        still there, so none is deregistered."""
        idle = {each.plugin.socket_path for each in self._registrations.all() if each.state not in HANDLED}
        await self._executor.drain(within_s, idle)
        await self.registrar.close()

    def statuses(self) -> tuple[PluginStatus, ...]:
        found = (self._status(registration) for registration in self._registrations.all())
        return tuple(sorted(found, key=lambda status: status.socket_path))

    def _chosen(self, planned: Sequence[Operation], now_s: float) -> Sequence[Operation]:
        """What is asked for in this pass. Of very many registrations those that are due, first the sockets that were tried least
        often, and of these the newest: those that were left behind are looked at when there is time."""
        if len(planned) <= STARTS:
            return planned
        is_due, tries = self._operations.is_due, self._registrations.tries
        ending = [each for each in planned if isinstance(each, UnregisterPlugin)]
        due = [
            each
            for each in planned[len(ending) :]
            if is_due(each.plugin.socket_path, each.plugin.uuid, now_s)
        ]
        chosen = heapq.nsmallest(
            STARTS,
            range(len(due)),
            key=lambda place: (tries(due[place].plugin), -place),
        )
        return [*ending, *(due[place] for place in sorted(chosen))]

    def _start(self, operation: Operation) -> Refusal | None:
        plugin = operation.plugin
        start = partial(self._executor.start, plugin.socket_path, plugin.uuid)
        match operation:
            case RegisterPlugin():
                return start(partial(self.registrar.register, plugin, dict(self._handlers)))
            case UnregisterPlugin(is_lost=is_lost):
                return start(partial(self.registrar.unregister, plugin, is_lost=is_lost))

    def _wait_s(self, calls: Sequence[AskedOperation]) -> float:
        """Until the next pass: the back-off of what the last one asked for may end sooner than the period."""
        now_s = self._clock()
        refused = (
            call.operation.plugin.socket_path for call in calls if isinstance(call.refusal, BackingOff)
        )
        waits = (self._operations.retry_in_s(path, now_s) for path in refused)
        return min([PERIOD_S, *(wait_s + PAUSE_S for wait_s in waits if wait_s is not None)])

    def _status(self, registration: Registration) -> PluginStatus:
        plugin, now_s = registration.plugin, self._clock()
        return PluginStatus(
            socket_path=plugin.socket_path,
            state=registration.state,
            since_s=now_s - registration.since_s,
            plugin_type=registration.key[0],
            name=registration.key[1],
            endpoint=plugin.endpoint,
            versions=registration.versions,
            last_error=registration.last_error,
            retry_in_s=self._operations.retry_in_s(plugin.socket_path, now_s),
        )

    def _stepped(self, registration: Registration) -> None:
        path = registration.plugin.socket_path
        if registration.state is PluginState.FAILED:
            self._faults.failed(registration.last_error, about=path, path=path, name=registration.key[1])
        elif registration.state is PluginState.REGISTERED:
            self._faults.worked(about=path, path=path, name=registration.key[1])
        try:
            self._on_change(self._status(registration))
        except Exception as error:  # noqa: BLE001 - whoever listens must not end a registration
            self._on_change_faults.failed(repr(error))
        else:
            self._on_change_faults.worked()

    def _ended(self, path: str, _error: BaseException | None) -> None:
        retry_in_s = self._operations.retry_in_s(path, self._clock())
        if retry_in_s is None or retry_in_s < PERIOD_S:
            self.wake()


DRAIN_S: Final = 5.0
"""How long handlers may be at work when the manager ends."""


class NodePluginManager:
    """Registers the plugins whose sockets are in a folder, and ends their registration when the socket goes, or the server behind it."""

    def __init__(
        self,
        directory: Path,
        handlers: Mapping[str, PluginHandler],
        *,
        log: Logger,
        rng: random.Random,
        clock: Callable[[], float],
        limits: RegistrationLimits | None = None,
        on_change: Callable[[PluginStatus], None] = _unheard,
    ) -> None:
        """`handlers` by type of plugin; `clock` gives monotonic seconds; `on_change` is called after each change of a plugin's state."""
        desired = DesiredStateOfWorld(time.time_ns, lambda: str(uuid.uuid4()))
        self._worlds = Worlds(desired, ActualStateOfWorld())
        self._reconciler = PluginReconciler(
            self._worlds, handlers, log=log, rng=rng, clock=clock, limits=limits, on_change=on_change
        )
        self._watcher = Watcher(directory, desired, log=log, clock=clock, rng=rng)

    async def run(self) -> None:
        """Manage the plugins until cancelled. The end waits for handlers that are at work, and leaves no task and no connection.

        After a failure of ours the manager may be run again: registrations, connections and operations have gone on.
        """
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._watcher.run(), name="watcher of plugins")
                group.create_task(self._reconciler.run(), name="reconciler of plugins")
        finally:
            task = asyncio.current_task()
            if task is not None and task.cancelling():  # also where a child failed in the same moment
                await self._reconciler.drain(DRAIN_S)

    def add_handler(self, plugin_type: str, handler: PluginHandler) -> None:
        """Use the handler for plugins of that type from now on."""
        self._reconciler.add_handler(plugin_type, handler)

    def rescan(self) -> None:
        """Look at the folder soon, whether or not somebody told of a change."""
        self._watcher.rescan()

    def statuses(self) -> tuple[PluginStatus, ...]:
        """Every socket that is known, by path."""
        return self._reconciler.statuses()

    def families(self) -> tuple[Family, ...]:
        """The published metric of the plugin manager; absent without plugins."""
        return plugins_families(self._worlds)
