"""The plugin manager: plugins that put a socket into a folder are registered, as with the kubelet (seed 003).

The reconciler compares the desired world with the actual one, pass by pass, and gives the differences to the registrar.
"""

import asyncio
import random
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from agent.node.plugins.core.plugin_info import PluginHandler, PluginState
from agent.node.plugins.core.sockets import Operation, PluginSocket, Refusal
from agent.node.plugins.core.worlds import ActualStateOfWorld, DesiredStateOfWorld, Worlds, total_plugins
from agent.node.plugins.ports import PluginStatus
from agent.node.plugins.registrar import Registrar, RegistrationLimits
from agent.node.plugins.watcher import Watcher
from hosting.fault_log import FaultLog
from hosting.logs import Logger
from hosting.metrics import Family
from protocol.texts import clean


def plugins_families(worlds: Worlds) -> tuple[Family, ...]:
    """The gauge `plugin_manager_total_plugins`, with a sample for each socket in each world; nothing if there is none."""
    found = {(clean(path), state): float(count) for (path, state), count in total_plugins(worlds).items()}
    samples = tuple(found.items())
    if not samples:
        return ()
    labels = ("socket_path", "state")
    text = "[ALPHA] Number of plugins in Plugin Manager"
    return (Family("gauge", "plugin_manager_total_plugins", text, labels, samples),)


PERIOD_S: Final = 1.0
"""From one pass to the next, if nothing tells of a change; as published."""
PAUSE_S: Final = 0.01
"""A pass follows the one before no sooner, however many changes there are."""
DUTY: Final = 4.0
"""A pass is followed by a pause of so many times its length: thousands of sockets cost at most a fifth of a core."""


@dataclass(frozen=True, slots=True)
class AskedOperation:
    """An operation that a pass asked of the registrar. `refusal` is None if it was started."""

    operation: Operation
    refusal: Refusal | None


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
        on_change: Callable[[PluginStatus], None] = lambda _: None,
    ) -> None:
        """Changes of the desired world wake the loop. `handlers` by type of plugin; `clock` gives monotonic seconds; `on_change` is called after each change of a plugin's state."""
        worlds.desired.on_change = self.wake
        self._table = worlds.table
        self._handlers = dict(handlers)
        self._clock = clock
        self._on_change = on_change
        self.registrar = Registrar(
            worlds,
            limits or RegistrationLimits(),
            clock=clock,
            rng=rng,
            on_step=self._stepped,
            on_end=self._ended,
        )
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
        """One pass: starts the operations that are due. Returns those that were asked of the registrar."""
        now_s = self._clock()
        for entered in self._table.begin_pass(now_s):
            self._stepped(entered)
        self._faults.forget_all_but([each.path for each in self._table.all() if each.state is not None])
        return tuple(
            AskedOperation(operation, self.registrar.start(operation, dict(self._handlers)))
            for operation in self._table.plan(now_s)
        )

    async def drain(self, within_s: float) -> None:
        """End all that is under way, and close every connection; the call of a handler has `within_s` to end itself. The plugins are
        still there, so none is deregistered."""
        await self.registrar.drain(within_s)

    def statuses(self) -> tuple[PluginStatus, ...]:
        now_s = self._clock()
        found = (_status(each, each.state, now_s) for each in self._table.all() if each.state is not None)
        return tuple(sorted(found, key=lambda status: status.socket_path))

    def _wait_s(self, calls: Sequence[AskedOperation]) -> float:
        """Until the next pass: the back-off of an operation that the last one asked for may end sooner than the period."""
        now_s = self._clock()
        refused = (
            self._table.at(call.operation.plugin.socket_path)
            for call in calls
            if call.refusal is Refusal.BACKING_OFF
        )
        waits = (each.retry_in_s(now_s) for each in refused)
        return min([PERIOD_S, *(wait_s + PAUSE_S for wait_s in waits if wait_s is not None)])

    def _stepped(self, socket: PluginSocket) -> None:
        if socket.state is None:
            return
        if socket.state is PluginState.FAILED:
            self._faults.failed(socket.error, about=socket.path, path=socket.path, name=socket.key[1])
        elif socket.state is PluginState.REGISTERED:
            self._faults.worked(about=socket.path, path=socket.path, name=socket.key[1])
        try:
            self._on_change(_status(socket, socket.state, self._clock()))
        except Exception as error:  # noqa: BLE001 - a listener must not end a registration
            self._on_change_faults.failed(repr(error))
        else:
            self._on_change_faults.worked()

    def _ended(self, path: str) -> None:
        socket = self._table.get(path)
        retry_in_s = None if socket is None else socket.retry_in_s(self._clock())
        if retry_in_s is None or retry_in_s < PERIOD_S:
            self.wake()


def _status(socket: PluginSocket, state: PluginState, now_s: float) -> PluginStatus:
    return PluginStatus(
        socket_path=socket.path,
        state=state,
        since_s=now_s - socket.since_s,
        plugin_type=socket.key[0],
        name=socket.key[1],
        endpoint=socket.plugin.endpoint,
        versions=socket.versions,
        last_error=socket.error,
        retry_in_s=socket.retry_in_s(now_s),
    )


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
        on_change: Callable[[PluginStatus], None] = lambda _: None,
    ) -> None:
        """`handlers` by type of plugin; `clock` gives monotonic seconds; `on_change` is called after each change of a plugin's state."""
        desired = DesiredStateOfWorld(time.time_ns, lambda: str(uuid.uuid4()))
        self._worlds = Worlds(desired, ActualStateOfWorld(desired.table))
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
            if task is not None and task.cancelling():  # also if a child failed in the same moment
                await self._reconciler.drain(DRAIN_S)

    def add_handler(self, plugin_type: str, handler: PluginHandler) -> None:
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
