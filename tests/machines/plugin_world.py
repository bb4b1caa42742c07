"""Sockets, plugins and handlers that are made up, around the real reconciler on a virtual clock.

The handler checks each call: for each plugin name the calls come one after the other, nothing is registered that was not validated, and
nothing is deregistered but what is registered.
"""

import asyncio
import random
from collections.abc import Sequence
from itertools import count
from typing import Final
from unittest import mock

from structlog.testing import capture_logs

from agent.node.plugins import manager, plugin_connection
from agent.node.plugins.core.plugin_info import PluginState
from agent.node.plugins.core.worlds import ActualStateOfWorld, DesiredStateOfWorld, Worlds
from agent.node.plugins.ports import PluginStatus
from hosting import logs
from tests.support.made_up_plugins import TYPE, MadeUpConnection, MadeUpServer, behave
from tests.support.virtual_time import VirtualLoop, turns

PATHS: Final = ("/p/a.sock", "/p/b.sock", "/p/c.sock", "/p/d.sock")
NAMES: Final = ("one", "one", "one", "two")
MOODS: Final = ("fine", "fine", "fine", "slow", "fails", "hangs")
CALM_S: Final = 600.0
"""The longest back-off, a dial, and every limit of a turn are over by then."""


class LawBrokenError(AssertionError):
    """A law does not hold. The text says which."""


def law(holds: object, text: str) -> None:
    """Raises `LawBrokenError` where a law does not hold."""
    if not holds:
        raise LawBrokenError(text)


class CheckingHandler:
    """A handler with moods, that checks the order of its calls."""

    def __init__(self) -> None:
        self.moods = dict.fromkeys(("validate", "register", "deregister"), "fine")
        self.registered: dict[str, str] = {}
        """The endpoint that is used for each name."""
        self._validated: dict[str, str] = {}
        self._at_work: set[str] = set()
        self.faults: list[str] = []
        """The laws that were broken; whatever a handler raises is taken for its answer."""

    async def validate_plugin(self, plugin_name: str, endpoint: str, versions: Sequence[str]) -> None:
        await self._called("validate", plugin_name)
        self._validated[plugin_name] = endpoint

    async def register_plugin(
        self,
        plugin_name: str,
        endpoint: str,
        versions: Sequence[str],
        plugin_client_timeout_s: float | None = None,
    ) -> None:
        self._law(
            self._validated.pop(plugin_name, None) == endpoint, f"{endpoint} was registered, not validated"
        )
        await self._called("register", plugin_name)
        self.registered[plugin_name] = endpoint

    async def deregister_plugin(self, plugin_name: str, endpoint: str) -> None:
        known = self.registered.get(plugin_name)
        self._law(known == endpoint, f"{endpoint} was deregistered, while {known} is registered")
        try:
            await self._called("deregister", plugin_name)
        finally:
            self.registered.pop(plugin_name, None)

    def _law(self, holds: bool, text: str) -> None:
        if not holds:
            self.faults.append(text)

    async def _called(self, call: str, name: str) -> None:
        self._law(name not in self._at_work, f"{call} of {name} overlaps another call")
        self._at_work.add(name)
        try:
            await asyncio.sleep(0.01)
            await behave(self.moods[call])
        finally:
            self._at_work.discard(name)


class PluginWorld:
    """The reconciler among sockets that come and go. `step` does something at random, `calm` ends all trouble and looks."""

    def __init__(self, seed: int) -> None:
        self._rng = random.Random(seed)
        self._births = count(1)
        self._files: dict[str, MadeUpServer] = {}
        self._handler = CheckingHandler()
        MadeUpConnection.servers, MadeUpConnection.open = self._files, 0
        uuids = count(1)
        desired = DesiredStateOfWorld(lambda: 1, lambda: f"U{next(uuids)}")
        self._worlds = Worlds(desired, ActualStateOfWorld(desired.table))
        loop = asyncio.get_running_loop()
        self._reconciler = manager.PluginReconciler(
            self._worlds,
            {TYPE: self._handler},
            log=logs.logger("test"),
            rng=self._rng,
            clock=loop.time,
            on_change=self._changed,
        )
        self._running = asyncio.create_task(self._reconciler.run())
        self.states: set[PluginState] = set()

    async def walk(self, steps: int) -> None:
        """Random steps, then calm, then the end of the newest sockets, then the end. Raises `LawBrokenError`."""
        for _ in range(steps):
            self._step()
            await asyncio.sleep(self._rng.choice((0.0, 0.0, 0.005, 0.05, 0.3, 2.0, 40.0)))
            self._check_running()
        for newest in (await self._calm()).values():
            self._go(newest.path)
        await self._calm()
        await self._end()

    def _step(self) -> None:
        path = self._rng.choice(PATHS)
        move = self._rng.choice(
            (self._come, self._come, self._come, self._go, self._die, self._plugin_mood, self._handler_mood)
        )
        move(path)

    def _come(self, path: str) -> None:
        """A socket is created, in the place of the one that may be there."""
        if path in self._files:
            self._files[path].is_dead.set()
        moods = {call: self._rng.choice(MOODS) for call in ("get_info", "notify")}
        self._files[path] = MadeUpServer(path, self._rng.choice(NAMES), next(self._births), moods)
        self._worlds.desired.add_or_update_plugin(path)

    def _go(self, path: str) -> None:
        """The socket is deleted; its server may go on."""
        server = self._files.pop(path, None)
        if server is not None and self._rng.random() < 0.5:
            server.is_dead.set()
        self._worlds.desired.remove_plugin(path)

    def _die(self, path: str) -> None:
        if path in self._files:
            self._files[path].is_dead.set()

    def _plugin_mood(self, path: str) -> None:
        if path in self._files:
            call = self._rng.choice(("get_info", "notify"))
            self._files[path].moods[call] = self._rng.choice(MOODS)

    def _handler_mood(self, _: str) -> None:
        self._handler.moods[self._rng.choice(tuple(self._handler.moods))] = self._rng.choice(MOODS)

    async def _calm(self) -> dict[str, MadeUpServer]:
        """Nothing is in a mood any more: every healthy plugin that is desired becomes registered, and nothing else stays. Returns the
        newest of each name."""
        self._handler.moods = dict.fromkeys(self._handler.moods, "fine")
        for server in self._files.values():
            server.moods = dict.fromkeys(server.moods, "fine")
        await asyncio.sleep(CALM_S)
        self._check_running()
        alive = [server for server in self._files.values() if not server.is_dead.is_set()]
        newest: dict[str, MadeUpServer] = {}
        for server in sorted(alive, key=lambda each: each.born):
            newest[server.name] = server
        expected = {name: server.endpoint for name, server in newest.items()}
        law(self._handler.registered == expected, f"registered {self._handler.registered}, not {expected}")
        self._check_states(newest)
        return newest

    def _check_states(self, newest: dict[str, MadeUpServer]) -> None:
        seen = {status.socket_path: status.state for status in self._reconciler.statuses()}
        law(seen.keys() == self._files.keys(), f"known {seen}, there are {self._files.keys()}")
        for path, server in self._files.items():
            if server.is_dead.is_set():
                # A dial may be under way.
                allowed = {PluginState.FAILED, PluginState.CONNECTING}
            else:
                is_newest = newest[server.name] is server
                allowed = {PluginState.REGISTERED if is_newest else PluginState.SUPERSEDED}
                law(
                    server.is_registered or not is_newest,
                    f"{server.endpoint} was not told that it is registered",
                )
            law(
                seen[path] in allowed, f"{path} is {seen[path]}, not {allowed}: {self._reconciler.statuses()}"
            )
        actual = {plugin.socket_path for plugin in self._worlds.actual.get_registered_plugins()}
        alive = {path for path, server in self._files.items() if not server.is_dead.is_set()}
        law(actual == alive, f"the actual world is {actual}, not {alive}")

    async def _end(self) -> None:
        self._running.cancel()
        await asyncio.wait([self._running])
        await self._reconciler.drain(1.0)
        await turns()
        law(MadeUpConnection.open == 0, f"{MadeUpConnection.open} connections are left")
        left = asyncio.all_tasks() - {asyncio.current_task()}
        law(not left, f"tasks are left: {left}")

    def _changed(self, status: PluginStatus) -> None:
        self.states.add(status.state)

    def _check_running(self) -> None:
        if self._running.done():
            self._running.result()
        law(not self._handler.faults, "; ".join(self._handler.faults))


def walk(seed: int, steps: int) -> set[PluginState]:
    """One walk on a virtual clock. Returns the states that were seen; raises `LawBrokenError`."""
    loop = VirtualLoop()

    async def whole() -> set[PluginState]:
        world = PluginWorld(seed)
        await world.walk(steps)
        return world.states

    with mock.patch.object(plugin_connection, "PluginConnection", MadeUpConnection), capture_logs():
        try:
            return loop.run_until_complete(whole())
        finally:
            loop.run_until_complete(abandoned())
            loop.close()


async def abandoned() -> None:
    """End what a walk has left that broke a law."""
    left = asyncio.all_tasks() - {asyncio.current_task()}
    for task in left:
        task.cancel()
    await asyncio.gather(*left, return_exceptions=True)
