"""The reconciler among made-up plugins on a virtual clock: limits of handlers, how often it looks, what is told, and its end."""

import asyncio
import random
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from itertools import count
from unittest import mock

from structlog.testing import capture_logs

from agent.node.plugins import registration
from agent.node.plugins.core.worlds import ActualStateOfWorld, DesiredStateOfWorld, Worlds
from agent.node.plugins.reconciler import PluginReconciler
from agent.node.plugins.status import PluginState, PluginStatus
from hosting import logs
from tests.support.made_up_plugins import TYPE, MadeUpConnection, MadeUpServer, behave
from tests.support.virtual_time import now_s, turns, virtually


class MoodyHandler:
    """Takes every plugin that it is not in a mood about."""

    def __init__(self) -> None:
        self.moods: dict[str, str] = {}
        self.calls: list[str] = []

    async def validate_plugin(self, plugin_name: str, endpoint: str, versions: Sequence[str]) -> None:
        await self._called("validate")

    async def register_plugin(
        self,
        plugin_name: str,
        endpoint: str,
        versions: Sequence[str],
        plugin_client_timeout_s: float | None = None,
    ) -> None:
        await self._called("register")

    async def deregister_plugin(self, plugin_name: str, endpoint: str) -> None:
        await self._called("deregister")

    async def _called(self, call: str) -> None:
        self.calls.append(call)
        await behave(self.moods.get(call, "fine"))


class Scene:
    """A reconciler that runs, with one handler."""

    def __init__(self) -> None:
        self.handler = MoodyHandler()
        self.servers: dict[str, MadeUpServer] = {}
        self.heard: list[PluginState] = []
        self.is_deaf = False
        uuids = count(1)
        self.desired = DesiredStateOfWorld(lambda: 1, lambda: f"U{next(uuids)}")
        self.reconciler = PluginReconciler(
            Worlds(self.desired, ActualStateOfWorld()),
            {TYPE: self.handler},
            log=logs.logger("test"),
            rng=random.Random(1),
            clock=now_s,
            on_change=self.changed,
        )

    def changed(self, status: PluginStatus) -> None:
        if self.is_deaf:
            raise RuntimeError("not today")
        self.heard.append(status.state)

    def come(self, path: str, **moods: str) -> MadeUpServer:
        """A plugin appears."""
        fine = {"get_info": "fine", "notify": "fine"}
        server = self.servers[path] = MadeUpServer(path, "one", len(self.servers), fine | moods)
        self.desired.add_or_update_plugin(path)
        return server

    def status(self) -> PluginStatus:
        """The only socket."""
        (status,) = self.reconciler.statuses()
        return status


@asynccontextmanager
async def scene() -> AsyncIterator[Scene]:
    made = Scene()
    MadeUpConnection.servers, MadeUpConnection.open = made.servers, 0
    with mock.patch.object(registration, "PluginConnection", MadeUpConnection):
        running = asyncio.create_task(made.reconciler.run())
        try:
            yield made
        finally:
            running.cancel()
            await asyncio.wait([running])
            await made.reconciler.drain(1.0)
            await turns()
            assert MadeUpConnection.open == 0


@virtually
async def test_a_plugin_is_registered_at_once_and_each_state_is_heard() -> None:
    async with scene() as made:
        made.come("/p/a")
        await asyncio.sleep(0.1)
        assert made.status().state is PluginState.REGISTERED
        assert made.heard == [
            "discovered",
            "connecting",
            "validating",
            "registering",
            "notifying",
            "registered",
        ]
        assert made.status().since_s > 0
        assert made.status().retry_in_s is None


@virtually
async def test_a_handler_that_hangs_ends_as_an_error_and_the_next_try_succeeds() -> None:
    async with scene() as made:
        made.handler.moods = {"register": "hangs"}
        made.come("/p/a")
        await asyncio.sleep(30.2)
        assert made.status().state is PluginState.FAILED
        assert made.status().last_error == "cannot be used: the handler had no end after 30 s"
        made.handler.moods = {}
        await asyncio.sleep(1.0)
        assert made.status().state is PluginState.REGISTERED
        assert made.status().last_error == ""
        assert made.handler.calls == ["validate", "register", "validate", "register"]


@virtually
async def test_a_fault_that_lasts_is_told_once_and_its_end_once() -> None:
    with capture_logs() as told:
        async with scene() as made:
            server = made.come("/p/a", get_info="fails")
            await asyncio.sleep(200.0)
            server.moods["get_info"] = "fine"
            await asyncio.sleep(130.0)
            assert made.status().state is PluginState.REGISTERED
    error = "the plugin did not say what it is: not in the mood"
    assert [(line["event"], line.get("error")) for line in told] == [
        ("plugin cannot be used", error),
        ("plugin can be used again", None),
    ]


@virtually
async def test_whoever_listens_cannot_stop_a_registration() -> None:
    with capture_logs() as told:
        async with scene() as made:
            made.is_deaf = True
            made.come("/p/a")
            await asyncio.sleep(0.1)
            assert made.status().state is PluginState.REGISTERED
    assert [line["event"] for line in told] == ["change of a plugin could not be told"]


@virtually
async def test_at_the_end_a_handler_may_finish_and_a_dial_is_left_at_once() -> None:
    async with scene() as made:
        made.handler.moods = {"validate": "slow"}
        made.come("/p/a")
        made.desired.add_or_update_plugin("/p/nobody")
        await asyncio.sleep(0.1)
        began_s = now_s()
    assert now_s() - began_s < 0.5
    assert made.handler.calls == ["validate", "register"]
    assert [status.state for status in made.reconciler.statuses()] == ["registered", "connecting"]


@virtually
async def test_forty_dead_sockets_do_not_keep_an_ending_plugin_waiting() -> None:
    async with scene() as made:
        made.come("/p/a")
        await asyncio.sleep(0.1)
        for number in range(40):
            made.desired.add_or_update_plugin(f"/p/dead{number:02}")
        await asyncio.sleep(0.1)
        made.desired.remove_plugin("/p/a")
        await asyncio.sleep(0.1)
        assert made.handler.calls == ["validate", "register", "deregister"]
