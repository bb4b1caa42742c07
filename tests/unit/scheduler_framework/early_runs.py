"""Players of the recorded cases about frameworks: how they are built, their runs, pods that wait, the snapshot (parts A, D, E).

A player does what a case says, through the seed's own calls, and returns what was seen in the shape of the case's `expect`.
"""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, Final, cast

import pytest

from hosting.registry import RegistryError
from scheduler.placing.core.handle import PluginFactory, RawArgs, WaitingPod
from scheduler.placing.core.objects import PodInfo
from scheduler.placing.core.plugin import Plugin
from scheduler.placing.core.profile import EnabledPlugin, PluginArgs, PluginSet
from scheduler.placing.core.values import ExtensionPoint, Status
from scheduler.placing.cycle.context import PluginContext, WaitingEntry, WaitingPods
from scheduler.placing.plugins.registry import Registry
from tests.support.early_framework import (
    EarlyConfigError,
    EarlyFramework,
    EarlyPoint,
    new_framework,
    new_framework_of_all,
)
from tests.support.virtual_time import turns
from tests.unit.scheduler_framework.scripted import (
    NS_PER_S,
    KaputtError,
    Script,
    Seen,
    pod_of,
    scripted,
    told,
)

Outcome = dict[str, Any]
POINTS: Final = {point.value.replace(" ", ""): point for point in EarlyPoint}
"""The points by their names in the recordings."""
POD: Final = pod_of({"name": "pod", "namespace": "ns", "uid": "uid"})


async def run(framework: EarlyFramework, point: str, context: PluginContext, pod: PodInfo, node: str) -> Any:
    """One of the seed's four runs."""
    runs = {
        "reserve": framework.run_reserve_plugins,
        "unreserve": framework.run_unreserve_plugins,
        "permit": framework.run_permit_plugins,
        "prebind": framework.run_prebind_plugins,
    }
    return await runs[point](context, pod, node)


# ------------------------------------------------------------ A: building a framework


class Factories:
    """The factories of a case, and what they were given."""

    def __init__(self, scripts: Sequence[Script]) -> None:
        self.seen = Seen()
        self.run: list[str] = []
        self.configs: dict[str, RawArgs] = {}
        self.handles: list[object] = []
        self.registry = Registry()
        for script in scripts:
            factory = None if script.get("factory_is_null") else self._factory(script)
            self.registry.register(script["name"], cast("PluginFactory", factory))

    def _factory(self, script: Script) -> PluginFactory:
        def make(args: RawArgs, handle: object) -> Plugin:
            self.run.append(script["name"])
            self.configs[script["name"]] = args
            self.handles.append(handle)
            if "factory_error" in script:
                raise ValueError(script["factory_error"])
            if "factory_returns_null" in script:
                return cast("Plugin", None)
            return scripted(script, self.seen)

        return make

    async def calls(self, framework: EarlyFramework) -> dict[str, list[str]]:
        """The calls of each run; of a point without a run of the seed there are none."""
        found: dict[str, list[str]] = {"postbind": []}
        for point in ("reserve", "permit", "prebind", "unreserve"):
            self.seen.calls.clear()
            await run(framework, point, PluginContext(), POD, "node")
            found[point] = [*self.seen.calls]
        return found


async def play_new_framework_all(given: Script) -> Outcome:
    try:
        made = Factories(given["registry"])
    except RegistryError as error:
        return {"panic": str(error)}
    try:
        framework = new_framework_of_all(made.registry)
    except EarlyConfigError as error:
        return {"error": str(error), "factories_run": _listed(made.run)}
    calls = await made.calls(framework)
    return {
        "error": None,
        "factories_run": _listed(sorted(made.run)),
        "config_seen_by_factories": made.configs,
        "handle_given_is_the_framework": all(handle is framework for handle in made.handles),
        "call_orders": {point: _listed(each) for point, each in calls.items() if point != "postbind"},
    }


def _listed(names: Sequence[str]) -> str:
    return f"[{' '.join(names)}]"


async def play_new_framework_configured(given: Script) -> Outcome:
    try:
        made = Factories(given["registry"])
    except RegistryError as error:
        return {"panic": str(error)}
    args = [PluginArgs(entry["name"], entry["args"]) for entry in given["plugin_config"]]
    try:
        framework = new_framework(made.registry, _plugin_sets(given["plugins"]), args)
    except EarlyConfigError as error:
        return {"error": str(error), "factories_run_sorted": sorted(made.run)}
    return {
        "error": None,
        "factories_run_sorted": sorted(made.run),
        "config_seen_by_factories": made.configs,
        "has_queue_sort_function": bool(framework.calls.plugins_at(ExtensionPoint.QUEUE_SORT)),
        "calls": await made.calls(framework),
    }


def _plugin_sets(plugins: Script | None) -> dict[EarlyPoint, PluginSet] | None:
    if plugins is None:
        return None
    enabled, disabled = plugins["enabled"], plugins["disabled"]
    return {
        POINTS[name]: PluginSet(
            tuple(map(EnabledPlugin, enabled.get(name, ()))), tuple(disabled.get(name, ()))
        )
        for name in {*enabled, *disabled}
    }


# ------------------------------------------------------------ D: runs


def framework_of(scripts: Sequence[Script], seen: Seen) -> EarlyFramework:
    """A framework of these plugins, in their order at every point."""
    registry = Registry()
    for script in scripts:
        registry.register(script["name"], _makes(script, seen))
    plugins = {
        POINTS[point]: PluginSet(
            tuple(EnabledPlugin(script["name"]) for script in scripts if point in script["points"])
        )
        for point in ("reserve", "unreserve", "permit", "prebind")
    }
    return new_framework(registry, plugins)


def _makes(script: Script, seen: Seen) -> PluginFactory:
    return lambda _args, _handle: scripted(script, seen)


def waiting_names(framework: EarlyFramework) -> list[str]:
    """The pods that wait, sorted."""
    names: list[str] = []
    framework.iterate_over_waiting_pods(lambda waiting: names.append(waiting.get_pod().pod.name))
    return sorted(names)


def one_run(point: str) -> Callable[[Script], Any]:
    async def play(given: Script) -> Outcome:
        seen, context = Seen(), PluginContext()
        framework = framework_of(given["plugins"], seen)
        pod = cast("PodInfo", None if given["pod"] is None else pod_of(given["pod"]))
        found: Outcome = {}
        try:
            found["status"] = told(await run(framework, point, context, pod, given["node"]))
        except (KaputtError, AttributeError) as error:
            found["panic"] = str(error)
        same = all(each == (context, pod, given["node"]) for each in seen.arguments)
        return {
            **found,
            "calls": seen.calls,
            "plugins_got_same_context_pod_and_node": same,
            "waiting_pods_afterwards": waiting_names(framework),
        }

    return play


async def play_chain(given: Script) -> Outcome:
    seen, context, pod = Seen(), PluginContext(), pod_of(given["pod"])
    framework = framework_of(given["plugins"], seen)
    statuses = [told(await run(framework, point, context, pod, given["node"])) for point in given["run"]]
    return {"statuses": statuses, "calls": seen.calls, "context_reads": seen.reads}


# ------------------------------------------------------------ D: pods that wait


class Waits:
    """The steps of one case."""

    def __init__(self, given: Script) -> None:
        self.seen = Seen()
        self._framework = framework_of(given["plugins"], self.seen)
        self._node = given["node"]
        self._pods = {script["name"]: pod_of(script) for script in given["pods"]}
        self._runs: dict[str, asyncio.Task[tuple[Status | None, int]]] = {}
        self._held: dict[str, WaitingPod] = {}
        self._hooks: list[Outcome] = []
        self._patches = pytest.MonkeyPatch()
        self._now_ns = 0

    async def results(self, steps: Sequence[Script]) -> list[Any]:
        """The result of each step. Pods that still wait at the end are cancelled, and leave nothing behind."""
        found = []
        try:
            for step in steps:
                found.append(await self._step(step))
                await turns()
        finally:
            self._patches.undo()
        for task in self._runs.values():
            task.cancel()
        await asyncio.gather(*self._runs.values(), return_exceptions=True)
        assert waiting_names(self._framework) == []
        return found

    async def _step(self, step: Script) -> Any:
        name = step["do"]
        if name.startswith("when_"):
            return getattr(self, f"_{name}")(step)
        if name == "advance":
            return await self._advance(step["ns"])
        if name.endswith("_by_n_threads"):
            action = name.removesuffix("_by_n_threads")
            return sum(self._signal({**step, "do": action}) is True for _ in range(step["n"]))
        return getattr(self, f"_{name}")(step)

    async def _advance(self, ns: int) -> None:
        self._now_ns += ns
        loop, came = asyncio.get_running_loop(), asyncio.Event()
        loop.call_at(self._now_ns / NS_PER_S, came.set)
        await came.wait()

    def _start(self, step: Script) -> None:
        pod = self._pods[step["pod"]]

        async def wait(started_ns: int) -> tuple[Status | None, int]:
            status = await self._framework.run_permit_plugins(PluginContext(), pod, self._node)
            return status, self._now_ns - started_ns

        self._runs[step["pod"]] = asyncio.create_task(wait(self._now_ns))

    def _result(self, step: Script) -> Outcome:
        task = self._runs[step["pod"]]
        if not task.done():
            return {"state": "waiting"}
        status, after_ns = task.result()
        return {"state": "returned", "status": told(status), "after_ns": after_ns}

    def _get(self, step: Script) -> str | None:
        found = self._framework.get_waiting_pod(step["uid"])
        return None if found is None else found.get_pod().pod.name

    def _iterate(self, _: Script) -> list[str]:
        return waiting_names(self._framework)

    def _hold(self, step: Script) -> str | None:
        found = self._framework.get_waiting_pod(step["uid"])
        assert found is not None
        self._held[step["as"]] = found
        return found.get_pod().pod.name

    def _signal(self, step: Script) -> bool | str:
        """Allow or reject a pod that waits, or one that is held."""
        found = self._held[step["held"]] if "held" in step else self._framework.get_waiting_pod(step["uid"])
        if found is None:
            return "no such waiting pod"
        return found.allow() if step["do"] == "allow" else found.reject(step["message"])

    _allow = _reject = _signal

    def _iterate_and_reject(self, step: Script) -> int:
        changed: list[bool] = []
        self._framework.iterate_over_waiting_pods(
            lambda waiting: changed.append(waiting.reject(step["message"]))
        )
        return sum(changed)

    def _same_pod_object(self, step: Script) -> bool:
        found = self._framework.get_waiting_pod(step["uid"])
        return found is not None and found.get_pod() is self._pods[step["pod"]]

    def _when_added_but_not_yet_waiting_allow(self, step: Script) -> None:
        """Ours has no such window: nothing else runs between the two. So it is opened here."""
        add = WaitingPods.add

        def added(pods: WaitingPods, *arguments: Any) -> WaitingEntry:
            entry = add(pods, *arguments)
            self._hook(step["uid"])
            return entry

        self._patches.setattr(WaitingPods, "add", added)

    def _when_timed_out_but_not_yet_removed_allow(self, step: Script) -> None:
        discard = WaitingPods.discard

        def discarded(pods: WaitingPods, entry: WaitingEntry) -> None:
            self._hook(step["uid"])
            discard(pods, entry)

        self._patches.setattr(WaitingPods, "discard", discarded)

    def _hook(self, uid: str) -> None:
        found = self._get({"uid": uid})
        delivered = self._signal({"do": "allow", "uid": uid})
        self._hooks.append({"in_the_map": found, "delivered": delivered})

    def _hook_results(self, _: Script) -> list[Outcome]:
        return self._hooks


async def play_permit_wait(given: Script) -> Outcome:
    waits = Waits(given)
    return {"results": await waits.results(given["steps"]), "calls": waits.seen.calls}
