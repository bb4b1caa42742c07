"""Plays the steps of a recorded case (part B) with the product's classes, and real gRPC servers on real sockets.

Time passes only where a case says so (`sleep`); nothing is waited for but what must happen. Limits that a case wants to see run out
are short.
"""

import asyncio
import json
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any, Final

import pytest

from agent.node.plugins.core.plugin_info import PluginInfo, RegistrationError
from agent.node.plugins.core.sockets import Refusal, RegisterPlugin, UnregisterPlugin
from agent.node.plugins.core.worlds import ActualStateOfWorld, DesiredStateOfWorld, SocketPathError, Worlds
from agent.node.plugins.manager import NodePluginManager, PluginReconciler
from agent.node.plugins.registrar import RegistrationLimits
from hosting import logs
from tests.support.servers import Certain
from tests.support.waiting import until
from tests.unit.agent_plugins.golden_words import told
from tests.unit.agent_plugins.plugin_servers import Behaviour, Event, Plugin, stale_socket
from tests.unit.agent_plugins.recorded_plugins import Case

SOON_S: Final = 0.3


class StagedHandler:
    """A handler that notes its calls and behaves as told. In the call `block` it waits for a release."""

    def __init__(self, stage: "Cast", words: Case) -> None:
        self._stage = stage
        self.label: str = words["handler"]
        self.words = {"block": "", "stops_plugin_in": "", **words}
        self.blocked_in = ""
        self.released = asyncio.Event()

    def __str__(self) -> str:
        return self.label

    async def validate_plugin(self, plugin_name: str, endpoint: str, versions: Sequence[str]) -> None:
        await self._called("validate", plugin_name, endpoint, versions=list(versions))

    async def register_plugin(
        self,
        plugin_name: str,
        endpoint: str,
        versions: Sequence[str],
        plugin_client_timeout_s: float | None = None,
    ) -> None:
        await self._called(
            "register",
            plugin_name,
            endpoint,
            versions=list(versions),
            plugin_client_timeout=plugin_client_timeout_s,
        )

    async def deregister_plugin(self, plugin_name: str, endpoint: str) -> None:
        await self._called("deregister", plugin_name, endpoint)

    async def _called(self, event: str, name: str, endpoint: str, **fields: Any) -> None:
        self._stage.note(
            self._stage.behind(endpoint),
            {"event": event, "handler": self.label, "name": name, "endpoint": endpoint, **fields},
        )
        if self.words["block"] == event:
            self.blocked_in = event
            self.released.clear()
            await self.released.wait()
            self.blocked_in = ""
        if self.words["stops_plugin_in"] == event:
            await self._stage.plugins[self._stage.behind(endpoint)].stop(keep_file=True)
        behaviour = Behaviour.told(self.words.get(event, {}))
        await behaviour.delay()
        if behaviour.panic is not None:
            raise ZeroDivisionError(behaviour.panic)
        if behaviour.error is not None:
            raise RegistrationError(behaviour.error)


class StagedWorld(ActualStateOfWorld):
    """An actual world that notes what changes, and refuses to add where told."""

    stage: "Stage"
    add_error = ""

    def add_plugin(self, plugin: PluginInfo) -> None:
        entry = {"handler": str(plugin.handler), "name": plugin.name, "endpoint": plugin.endpoint}
        error = {"error": self.add_error} if self.add_error else {}
        self.stage.note(plugin.socket_path, {"event": "actual_add", **entry, "uuid": plugin.uuid, **error})
        if self.add_error:
            raise RegistrationError(self.add_error)
        super().add_plugin(plugin)

    def remove_plugin(self, socket_path: str) -> None:
        self.stage.note(socket_path, {"event": "actual_remove"})
        super().remove_plugin(socket_path)


def limits_of(case: Case) -> RegistrationLimits:
    """Limits that are reached soon where the case is about that."""
    tags = case["tags"]
    return RegistrationLimits(
        dial_s=SOON_S if "dial_fails" in tags else 10.0,
        get_info_s=5.0,
        notify_s=SOON_S if "notify_slow" in tags else 5.0,
    )


class Cast:
    """The plugins and handlers of one case, and what happened to them. Each step is a method that returns the step's results."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self.plugins: dict[str, Plugin] = {}
        self._handlers: dict[str, StagedHandler] = {}
        self._types: dict[str, StagedHandler] = {}
        self._trace: dict[str, list[Event]] = {}

    async def play(self, steps: list[Case]) -> list[Case]:
        """The steps with our results in place of the recorded ones."""
        seen = []
        try:
            for step in steps:
                name: str = step["do"]
                call: Callable[[Case], Awaitable[Case] | Case | None]
                call = getattr(self, "reconcile" if name == "pass" else name)
                results = call(step)
                if results is not None and not isinstance(results, dict):
                    results = await results
                seen.append({"do": name, **(results or {})})
        finally:
            await self._end()
        return seen

    def note(self, path: str, event: Event) -> None:
        self._trace.setdefault(path, []).append(event)

    def behind(self, endpoint: str) -> str:
        """The socket of the latest plugin that announced the endpoint."""
        for path, plugin in reversed(self.plugins.items()):
            if endpoint in {plugin.endpoint, path if not plugin.endpoint else None}:
                return path
        return endpoint

    async def start_plugin(self, step: Case) -> None:
        path = self._directory / step["socket"]
        words = {"plugin_type": "type", "name": "name", "versions": "versions", "server": "server"}
        given = {ours: step[theirs] for ours, theirs in words.items() if theirs in step}
        endpoint = step.get("endpoint", "").replace("$DIR", str(self._directory))
        told = Behaviour.told
        plugin = Plugin(
            path,
            **given,
            endpoint=endpoint,
            get_info=told(step.get("get_info", {})),
            notify=told(step.get("notify", {})),
            told=lambda event: self.note(str(path), event),
        )
        self.plugins.pop(str(path), None)
        self.plugins[str(path)] = plugin
        await plugin.start()

    def configure_plugin(self, step: Case) -> None:
        plugin = self.plugins[self._path(step)]
        for key, value in step["set"].items():
            if key in {"get_info", "notify"}:
                setattr(plugin, key, Behaviour.told(value))
            else:
                setattr(plugin, {"type": "plugin_type"}.get(key, key), value)

    async def stop_plugin(self, step: Case) -> None:
        await self.plugins[self._path(step)].stop(keep_file=step.get("keep_file", False))

    def write_file(self, step: Case) -> None:
        Path(self._path(step)).touch()

    def stale_socket(self, step: Case) -> None:
        stale_socket(Path(self._path(step)))

    def mkdir(self, step: Case) -> None:
        Path(self._path(step)).mkdir()

    def add_handler(self, step: Case) -> None:
        handler = self._handlers.setdefault(step["handler"], StagedHandler(self, step))
        self._types[step["type"]] = handler

    def configure_handler(self, step: Case) -> None:
        self._handlers[step["handler"]].words |= step["set"]

    def _path(self, step: Case) -> str:
        name = step["socket"]
        return str(self._directory / name) if name else ""

    async def _end(self) -> None:
        for plugin in self.plugins.values():
            await plugin.stop()


class Stage(Cast):
    """The operations, the reconciler and the worlds of one case."""

    def __init__(self, case: Case, directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        super().__init__(directory)
        self._desires = self._pending = self._running = 0
        self._clock_s = 1000.0
        self._gate = asyncio.Event()
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._now: set[str] = set()
        """The paths of the operations that were called directly, and have not ended."""
        StagedWorld.stage = self
        desired = DesiredStateOfWorld(lambda: 1, lambda: f"U{self._desires}")
        self._world = StagedWorld(desired.table)
        self._worlds = Worlds(desired, self._world)
        self._reconciler = PluginReconciler(
            self._worlds,
            {},
            log=logs.logger("test"),
            rng=Certain(),
            clock=lambda: self._clock_s,
            limits=limits_of(case),
        )
        self._registrar = self._reconciler.registrar
        self._register, self._unregister = self._registrar.register, self._registrar.unregister
        monkeypatch.setattr(self._registrar, "register", self._noted_register)
        monkeypatch.setattr(self._registrar, "unregister", self._noted_unregister)

    async def stop_plugin(self, step: Case) -> None:
        path = self._path(step)
        await super().stop_plugin(step)
        socket = self._worlds.table.at(path)
        await until(lambda: socket.is_lost or not socket.is_actual)

    def add_handler(self, step: Case) -> None:
        super().add_handler(step)
        self._reconciler.add_handler(step["type"], self._types[step["type"]])

    def set_actual_add_error(self, step: Case) -> None:
        self._world.add_error = step["error"]

    # Operations that are called directly.

    async def register_now(self, step: Case) -> Case:
        self.start_register_now(step)
        return await self.finish_now(step)

    def start_register_now(self, step: Case) -> None:
        plugin = PluginInfo(self._path(step), uuid=step["uuid"])
        self._gate.set()
        self._now.add(plugin.socket_path)
        self._registrar.launch(RegisterPlugin(plugin), dict(self._types))

    async def finish_now(self, step: Case) -> Case:
        await until(lambda: self._path(step) not in self._now)
        return self._results()

    async def unregister_now(self, step: Case) -> Case:
        handler = self._handlers[step["handler"]] if "handler" in step else None
        plugin = PluginInfo(self._path(step), handler=handler, name=step["name"], endpoint=step["endpoint"])
        self._gate.set()
        self._now.add(plugin.socket_path)
        self._registrar.launch(UnregisterPlugin(plugin), {})
        return await self.finish_now(step)

    # The reconciler.

    def desire(self, step: Case) -> Case:
        self._desires += bool(step["socket"])
        try:
            self._worlds.desired.add_or_update_plugin(self._path(step))
        except SocketPathError as error:
            self._desires -= 1
            return {"error": str(error)}
        return {"error": None}

    def undesire(self, step: Case) -> None:
        self._worlds.desired.remove_plugin(self._path(step))

    def actual_add(self, step: Case) -> Case:
        handler = self._handlers[step["handler"]]
        plugin = PluginInfo(self._path(step), None, step["uuid"], handler, step["name"], step["endpoint"])
        ActualStateOfWorld.add_plugin(self._world, plugin)
        return self._results()

    def reconcile(self, _: Case) -> Case:
        calls = [
            {
                "call": "unregister" if isinstance(call.operation, UnregisterPlugin) else "register",
                "socket": self._shown(call.operation.plugin.socket_path),
                "result": _result(call.refusal),
            }
            for call in self._reconciler.reconcile()
        ]
        self._pending += sum(call["result"] == "started" for call in calls)
        return {"calls": sorted(calls, key=lambda call: (call["call"] == "register", call["socket"]))}

    async def finish(self, _: Case) -> Case:
        self._gate.set()
        await until(lambda: not self._pending)
        self._gate.clear()
        return self._results()

    async def await_block(self, step: Case) -> Case:
        handler = self._handlers[step["handler"]]
        self._gate.set()
        await until(lambda: handler.blocked_in or not self._pending)
        self._gate.clear()
        return {"blocked_in": handler.blocked_in, **self._results()}

    async def release(self, step: Case) -> None:
        self._gate.set()
        self._handlers[step["handler"]].released.set()

    async def sleep(self, step: Case) -> None:
        self._clock_s += step["ms"] / 1000
        self._gate.set()
        await asyncio.sleep(0)
        self._gate.clear()

    def run_loop(self, _: Case) -> None:
        self._gate.set()
        self._tasks["loop"] = asyncio.create_task(self._reconciler.run())

    async def settle(self, _: Case) -> Case:
        def is_settled() -> bool:
            paths = {each.plugin.socket_path for each in self._worlds.table.plan(self._clock_s)}
            waiting = {
                each.socket_path for each in self._reconciler.statuses() if each.retry_in_s is not None
            }
            return not self._running and paths <= waiting

        await until(is_settled)
        return self._results()

    async def _noted_register(self, plugin: PluginInfo, handlers: Any) -> Any:
        return await self._noted("register", plugin, self._register(plugin, handlers))

    async def _noted_unregister(self, plugin: PluginInfo, *, is_lost: bool = False) -> None:
        await self._noted("unregister", plugin, self._unregister(plugin, is_lost=is_lost))

    async def _noted(self, operation: str, plugin: PluginInfo, call: Any) -> Any:
        self._running += 1
        await self._gate.wait()
        self.note(plugin.socket_path, {"event": "begin", "operation": operation})
        error: str | None = None
        try:
            return await call
        except Exception as failed:
            error = str(failed)
            raise
        finally:
            self.note(plugin.socket_path, {"event": "end", "operation": operation, "error": error})
            self._running -= 1
            self._pending -= 1
            self._now.discard(plugin.socket_path)

    def _shown(self, text: str) -> str:
        return text.replace(str(self._directory), "$DIR")

    def _results(self) -> Case:
        trace, self._trace = self._trace, {}
        return {
            "trace": trace,
            "actual": [
                {
                    "socket": plugin.socket_path,
                    "uuid": plugin.uuid,
                    "handler": str(plugin.handler),
                    "name": plugin.name,
                    "endpoint": plugin.endpoint,
                }
                for plugin in self._world.get_registered_plugins()
            ],
            "desired": [
                {"socket": plugin.socket_path, "uuid": plugin.uuid}
                for plugin in self._worlds.desired.get_plugins_to_register()
            ],
        }

    async def _end(self) -> None:
        for task in self._tasks.values():
            task.cancel()
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)
        await self._reconciler.drain(0)
        await super()._end()


class ManagerStage(Cast):
    """The plugin manager on the folder of the case. `expected` are the words of each step: what has to happen is waited for."""

    def __init__(self, directory: Path, expected: list[list[str]]) -> None:
        super().__init__(directory)
        self._expected = iter(expected)
        self._running: asyncio.Task[None] | None = None

    def run_manager(self, _: Case) -> None:
        manager = NodePluginManager(
            self._directory,
            {**self._types, "Marker": StagedHandler(self, {"handler": "marker"})},
            log=logs.logger("test"),
            rng=Certain(),
            clock=asyncio.get_running_loop().time,
        )
        self._running = asyncio.create_task(manager.run())

    async def watch_ms(self, step: Case) -> Case:
        """Wait for what has to happen, and then until a plugin that came last is registered: nothing else has happened before."""
        expected = next(self._expected)
        await until(lambda: told(self._shown(step)) == expected, beside=self._running)
        marker = Plugin(self._directory / "marker.sock", "Marker", "marker", told=self._marked)
        self._marked_events: list[Event] = []
        await marker.start()
        await until(lambda: self._marked_events[-1:] and self._marked_events[-1]["event"] == "notify")
        await marker.stop()
        shown, self._trace = self._shown(step), {}
        return shown

    def _marked(self, event: Event) -> None:
        self._marked_events.append(event)

    def _shown(self, step: Case) -> Case:
        prefix = str(self._directory)
        events = {path: events for path, events in self._trace.items() if not path.endswith("marker.sock")}
        trace: Case = json.loads(json.dumps(events).replace(prefix, "$DIR"))
        return {"do": step["do"], "trace": trace}

    async def _end(self) -> None:
        assert self._running is not None
        self._running.cancel()
        await asyncio.gather(self._running, return_exceptions=True)
        await super()._end()


def _result(refusal: Refusal | None) -> str:
    if refusal is None:
        return "started"
    return "already_exists" if refusal is Refusal.ALREADY_EXECUTING else "backoff"
