"""The reconciler among made-up plugins on a virtual clock: limits of handlers, how often it looks, what is told, and its end."""

import asyncio
import random
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from itertools import count
from unittest import mock

from structlog.testing import capture_logs

from agent.node.plugins import plugin_connection
from agent.node.plugins.core.plugin_info import PluginState
from agent.node.plugins.core.sockets import MAX_ERROR, STARTS, RegisterPlugin
from agent.node.plugins.core.worlds import ActualStateOfWorld, DesiredStateOfWorld, Worlds
from agent.node.plugins.manager import PluginReconciler
from agent.node.plugins.plugin_connection import PluginTold
from agent.node.plugins.ports import PluginStatus
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
        self.why: dict[PluginState, str] = {}
        self.is_deaf = False
        uuids = count(1)
        self.desired = DesiredStateOfWorld(lambda: 1, lambda: f"U{next(uuids)}")
        self.reconciler = PluginReconciler(
            Worlds(self.desired, ActualStateOfWorld(self.desired.table)),
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
        self.why[status.state] = status.last_error

    def come(
        self, path: str, *, is_silent: bool = False, told: PluginTold | None = None, **moods: str
    ) -> MadeUpServer:
        """A plugin appears."""
        fine = {"get_info": "fine", "notify": "fine"}
        server = self.servers[path] = MadeUpServer(
            path, "one", len(self.servers), fine | moods, told=told, is_silent=is_silent
        )
        self.desired.add_or_update_plugin(path)
        return server

    def leave(self, number: int) -> None:
        """So many sockets appear whose servers have died."""
        for each in range(number):
            self.desired.add_or_update_plugin(f"/p/dead{each:04}")

    def state(self, path: str) -> PluginState:
        return next(each.state for each in self.reconciler.statuses() if each.socket_path == path)

    def status(self) -> PluginStatus:
        """The only socket."""
        (status,) = self.reconciler.statuses()
        return status


@asynccontextmanager
async def scene() -> AsyncIterator[Scene]:
    made = Scene()
    MadeUpConnection.servers, MadeUpConnection.open, MadeUpConnection.looks = made.servers, 0, 0
    with mock.patch.object(plugin_connection, "PluginConnection", MadeUpConnection):
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
async def test_why_a_plugin_is_deregistered_is_heard_before_its_handler_is_asked() -> None:
    async with scene() as made:
        server = made.come("/p/a")
        await asyncio.sleep(0.1)
        server.is_dead.set()
        await asyncio.sleep(0.1)
        assert made.heard[-2:] == ["deregistering", "failed"]
        gone = "the plugin's server has gone, its socket is still there"
        assert made.why[PluginState.DEREGISTERING] == made.why[PluginState.FAILED] == gone
        made.desired.remove_plugin("/p/a")
        made.come("/p/a")
        await asyncio.sleep(1.0)
        assert made.status().state is PluginState.REGISTERED
        made.desired.remove_plugin("/p/a")
        await asyncio.sleep(0.1)
        assert made.why[PluginState.DEREGISTERING] == ""
        assert made.reconciler.statuses() == ()


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


@virtually
async def test_hundreds_of_sockets_that_say_nothing_hold_up_nobody_who_is_new() -> None:
    async with scene() as made:
        for number in range(400):
            made.come(f"/p/silent{number:03}", is_silent=True)
        made.come("/p/late")
        await asyncio.sleep(5.0)
        assert made.state("/p/late") is PluginState.REGISTERED
        await asyncio.sleep(120.0)
        made.come("/p/later").name = "two"
        await asyncio.sleep(3.0)
        assert made.state("/p/later") is PluginState.REGISTERED


@virtually
async def test_a_server_that_takes_long_to_answer_has_the_published_time() -> None:
    async with scene() as made:
        server = made.come("/p/slow", is_silent=True)
        await asyncio.sleep(9.0)
        assert made.status().state is PluginState.CONNECTING
        server.is_silent = False
        await asyncio.sleep(2.0)
        assert made.status().state is PluginState.REGISTERED


@virtually
async def test_sockets_that_were_left_behind_are_looked_at_less_and_less_often() -> None:
    async with scene() as made:
        made.leave(50)
        looks = []
        for _ in range(4):
            before = MadeUpConnection.looks
            await asyncio.sleep(150.0)
            looks.append(MadeUpConnection.looks - before)
        assert looks == sorted(looks, reverse=True)
        assert looks[-1] <= 2 * 50
        made.come("/p/dead0007")
        await asyncio.sleep(1.0)
        assert made.state("/p/dead0007") is PluginState.REGISTERED


@virtually
async def test_of_hundreds_of_dead_sockets_a_bounded_number_is_tried_at_once_and_the_new_ones_first() -> None:
    async with scene() as made:
        made.leave(600)
        asked = [each.operation for each in made.reconciler.reconcile()]
        assert len(asked) == STARTS
        assert asked[-1].plugin.socket_path == "/p/dead0599"
        made.come("/p/new")
        again = [each.operation.plugin.socket_path for each in made.reconciler.reconcile()]
        assert "/p/new" in again
        assert all(isinstance(each, RegisterPlugin) for each in asked)
        await asyncio.sleep(1.0)
        assert made.state("/p/new") is PluginState.REGISTERED
        await asyncio.sleep(30.0)
        left = {each.state for each in made.reconciler.statuses() if "dead" in each.socket_path}
        assert left <= {PluginState.FAILED, PluginState.CONNECTING}


@virtually
async def test_hundreds_of_dead_sockets_are_some_lines_in_the_log() -> None:
    with capture_logs() as told:
        async with scene() as made:
            made.leave(600)
            await asyncio.sleep(300.0)
    assert [line.get("objects") for line in told] == [*[None] * 10, 100]


@virtually
async def test_what_a_refused_plugin_says_of_itself_is_not_kept_beyond_its_bounds() -> None:
    much = PluginTold(TYPE * 9**5, "one", "/p/a" * 2000, ("v\x1b[2J",) * 9**5)
    async with scene() as made:
        made.come("/p/a", told=much)
        await asyncio.sleep(1.0)
        status = made.status()
        assert (status.state, status.plugin_type, status.name, status.versions) == (
            PluginState.FAILED,
            "",
            "",
            (),
        )
        assert status.last_error.startswith(
            "refused: type: must be at most 256 characters that can be printed, not 'MetricsSource"
        )
        assert "; endpoint: must have at most 4096 characters and has 8000, not '/p/a" in status.last_error
        assert "; supported_versions: must have at most 16 versions, not 59049; " in status.last_error
        assert status.last_error.isprintable()
        assert len(status.last_error) <= MAX_ERROR
        assert not made.handler.calls
