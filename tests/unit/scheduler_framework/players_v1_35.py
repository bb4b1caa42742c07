"""How each kind of case of `framework-v1.35.jsonl` is played. A player returns what was seen, in the shape of the recording's
`expect`. Each runs in virtual time.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

from scheduler.placing.core import runs
from scheduler.placing.core.profile import EnabledPlugin, PluginArgs, PluginSet, Profile
from scheduler.placing.core.values import (
    Code,
    ExtensionPoint,
    PostFilterResult,
    Status,
    as_error_of,
    code_of,
    is_rejected,
    is_success,
    message_of,
)
from scheduler.placing.cycle.assembly import ProfileError, of_profile
from scheduler.placing.cycle.context import CycleState
from scheduler.placing.cycle.framework import SchedulingFramework
from scheduler.placing.plugins.registry import Registry
from tests.support.early_framework import unshared
from tests.support.virtual_time import now_s, turns
from tests.unit.scheduler_framework.scripted import NS_PER_S, KaputtError, Script
from tests.unit.scheduler_framework.scripted_v1_35 import (
    Binding,
    Plain,
    Sorting,
    framework_of,
    node_of,
    pod_of,
    status_of,
    told,
)

Outcome = dict[str, Any]
POINTS: Final = {point.value.lower(): point for point in ExtensionPoint}
NODE: Final = "n1"
PANIC: Final = "runtime error"
"""How the texts of panics begin."""


def _sorted(names: frozenset[str] | None) -> list[str] | None:
    return None if names is None else sorted(names)


# ------------------------------------------------------------ statuses


async def play_status(given: Script) -> Outcome:
    status = status_of(given)
    assert status is not None
    return {
        **_getters(status),
        "plugin": status.plugin,
        "reasons": list(status.reasons),
        "string": status.message,
    }


def _getters(status: Status | None) -> Outcome:
    error = as_error_of(status)
    return {
        "as_error": None if error is None else str(error),
        "code": str(code_of(status)),
        "is_rejected": is_rejected(status),
        "is_skip": code_of(status) == Code.SKIP,
        "is_success": is_success(status),
        "is_wait": code_of(status) == Code.WAIT,
        "message": message_of(status),
    }


async def play_status_null(given: Script) -> Outcome:
    if given:
        return {"code": str(code_of(status_of({**given, "reasons": []})))}
    return {**_getters(None), "plugin": _of_null("plugin"), "reasons": _of_null("reasons")}


def _of_null(attribute: str) -> str:
    try:
        return str(getattr(None, attribute))
    except AttributeError as error:
        return f"{PANIC}: {error}"


# ------------------------------------------------------------ construction


class Filtering(Plain):
    def filter(self, context: object, pod: object, node: object) -> None:
        raise AssertionError(f"{context} {pod} {node}: nobody filters here")


class Scoring(Plain):
    def score(self, context: object, pod: object, node: object) -> tuple[int, None]:
        raise AssertionError(f"{context} {pod} {node}: nobody scores here")


_CLASSES: Final = {"queue": Sorting, "bind": Binding, "filter": Filtering, "score": Scoring, "name": Plain}


async def play_new_framework(given: Script) -> Outcome:
    registry = Registry()
    for name, kind in given["registry"].items():
        registry.register(name, _factory(kind, (given["reported_names"] or {}).get(name, name)))
    weights = given["weights"] or {}
    sets = {
        point: PluginSet(tuple(EnabledPlugin(name, weights.get(name, 0)) for name in names))
        for point, names in given["enabled"].items()
    }
    profile = Profile(
        given["scheduler_name"],
        {POINTS[point]: plugins for point, plugins in sets.items() if point != "multipoint"},
        sets.get("multipoint", PluginSet()),
        tuple(PluginArgs(name, {}) for name in given["config_for"]),
    )
    try:
        framework = SchedulingFramework(of_profile(profile, registry), unshared(now_s))
    except ProfileError as error:
        return {"error": error.found[0].rule}
    listed = {point.value.lower(): list(names) for point, names in framework.profile.points.items()}
    shown = {point: listed[point] for point in ("queuesort", "bind", "filter", "score")}
    return {"error": None, "listed": shown, "score_weights": dict(framework.profile.weights)}


def _factory(kind: str, reported_name: str) -> Callable[[object, object], Plain]:
    def made(args: object, handle: object) -> Plain:
        del args, handle
        if kind == "fails":
            raise ValueError("boom")
        return _CLASSES[kind](reported_name)

    return made


# ------------------------------------------------------------ one run


class Played:
    """A framework of a case's plugins, with one context, pod and list of nodes; its runs in the recording's words."""

    def __init__(self, given: Script) -> None:
        self.given = given
        self.calls: list[str] = []
        self.context = CycleState()
        self.pod = pod_of(given["pod"])
        self.nodes = [node_of(name) for name in given["nodes"]]
        self.framework = framework_of(given["plugins"], self.calls)
        self.context.skip_filter_plugins = self._given_set("skip_filter_plugins")
        self.context.skip_score_plugins = self._given_set("skip_score_plugins")

    def _given_set(self, key: str) -> frozenset[str] | None:
        return frozenset(self.given[key]) if key in self.given else None

    async def prefilter(self) -> Outcome:
        result, status = await self.framework.run_pre_filter_plugins(self.context, self.pod, self.nodes)
        ended = status is not None and result is None and code_of(status) != Code.UNSCHEDULABLE
        by = sorted(result.narrowed_by) if result is not None else None if ended else []
        return {
            "plugins_with_node_lists": by,
            "result": None if result is None else {"node_names": _sorted(result.node_names)},
            "skip_filter_plugins": _sorted(self.context.skip_filter_plugins),
            "status": told(status),
        }

    async def prefilter_extension(self) -> Outcome:
        row = {
            "add_pod": runs.ADD_POD,
            "remove_pod": runs.REMOVE_POD,
        }[self.given["operation"]]
        other, node = pod_of(self.given["other_pod"]), node_of(self.given["node"])
        return {"status": told(await self.framework.run(row, self.context, self.pod, other, node))}

    async def filter(self) -> Outcome:
        by_node = {
            node.name: told(await self.framework.run_filter_plugins(self.context, self.pod, node))
            for node in self.nodes
        }
        return {"status_by_node": by_node}

    async def postfilter(self) -> Outcome:
        result, status = await self.framework.run_post_filter_plugins(self.context, self.pod, {})
        return {"result": _told_result(result), "status": told(status)}

    async def prescore(self) -> Outcome:
        status = await self.framework.run(runs.PRE_SCORE, self.context, self.pod, self.nodes)
        return {"skip_score_plugins": _sorted(self.context.skip_score_plugins), "status": told(status)}

    async def score(self) -> Outcome:
        scores, status = await self.framework.run_score_plugins(self.context, self.pod, self.nodes)
        shown = [
            {
                "by_plugin": [{"plugin": plugin, "weighted_score": score} for plugin, score in each.scores],
                "node": each.name,
                "total": each.total,
            }
            for each in scores
        ]
        return {"scores": shown if status is None else None, "status": told(status)}

    async def reserve(self) -> Outcome:
        return {
            "status": told(await self.framework.run_reserve_plugins_reserve(self.context, self.pod, NODE))
        }

    async def unreserve(self) -> Outcome:
        await self.framework.run_reserve_plugins_unreserve(self.context, self.pod, NODE)
        return {}

    async def reserve_then_unreserve(self) -> Outcome:
        return {**await self.reserve(), **await self.unreserve()}

    async def prebind(self) -> Outcome:
        return {"status": told(await self.framework.run_pre_bind_plugins(self.context, self.pod, NODE))}

    async def prebind_preflight(self) -> Outcome:
        status = await self.framework.run(runs.PRE_FLIGHT, self.context, self.pod, NODE)
        return {"skip_prebind_plugins": _sorted(self.context.skip_pre_bind_plugins), "status": told(status)}

    async def prebind_after_preflight(self) -> Outcome:
        before, after = await self.prebind_preflight(), await self.prebind()
        return {
            "preflight_status": before["status"],
            "prebind_status": after["status"],
            "skip_prebind_plugins": before["skip_prebind_plugins"],
        }

    async def bind(self) -> Outcome:
        return {"status": told(await self.framework.run(runs.BIND, self.context, self.pod, NODE))}

    async def postbind(self) -> Outcome:
        await self.framework.run(runs.POST_BIND, self.context, self.pod, NODE)
        return {}


def _told_result(result: PostFilterResult | None) -> Script | None:
    if result is None:
        return None
    return {"mode": int(result.mode), "nominated_node_name": result.nominated_node_name}


def _run(which: Callable[[Played], Awaitable[Outcome]]) -> Callable[[Script], Awaitable[Outcome]]:
    async def play(given: Script) -> Outcome:
        played = Played(given)
        try:
            seen = await which(played)
        except KaputtError as error:
            seen = {"panic": str(error)}
        return {"calls": played.calls, **seen}

    return play


# ------------------------------------------------------------ waiting for the permit


class Waits:
    """Steps around the permits of several pods. After each step everything that can run has run."""

    def __init__(self, given: Script) -> None:
        self.calls: list[str] = []
        self._framework = framework_of(given["plugins"], self.calls)
        self._pods = {pod["name"]: pod_of(pod["name"], pod["uid"]) for pod in given["pods"]}
        self._node = given["node"]
        self._contexts = {name: CycleState() for name in self._pods}
        self._held: dict[str, Any] = {}
        self._tasks: dict[str, asyncio.Task[tuple[Status | None, float]]] = {}
        self._began_s: dict[str, float] = {}

    async def step(self, step: Script) -> Any:
        result = getattr(self, f"_{step['do']}")(step)
        if isinstance(result, Awaitable):
            result = await result
        await turns()
        return result

    async def end(self) -> None:
        """Nobody waits any longer."""
        for task in self._tasks.values():
            task.cancel()
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)
        for name, pod in self._pods.items():
            await self._framework.run_reserve_plugins_unreserve(self._contexts[name], pod, self._node)

    async def _permit(self, step: Script) -> Outcome:
        pod = self._pods[step["pod"]]
        context = self._contexts[step["pod"]]
        return {"status": told(await self._framework.run_permit(context, pod, self._node))}

    def _wait_on_permit(self, step: Script) -> None:
        async def wait() -> tuple[Status | None, float]:
            return await self._framework.wait_on_permit(self._pods[step["pod"]]), now_s()

        self._began_s[step["pod"]] = now_s()
        self._tasks[step["pod"]] = asyncio.create_task(wait())

    def _cancel_context_of_wait(self, step: Script) -> None:
        self._tasks[step["pod"]].cancel()

    def _result(self, step: Script) -> Outcome:
        task = self._tasks[step["pod"]]
        if not task.done():
            return {"state": "waiting"}
        if task.cancelled():
            return {"state": "cancelled"}
        status, ended_s = task.result()
        after_ns = round((ended_s - self._began_s[step["pod"]]) * NS_PER_S)
        return {"state": "returned", "after_ns": after_ns, "status": told(status)}

    def _will_wait(self, step: Script) -> bool:
        return self._framework.get_waiting_pod(self._pods[step["pod"]].uid) is not None

    def _get(self, step: Script) -> str | None:
        waiting = self._framework.get_waiting_pod(step["uid"])
        return None if waiting is None else waiting.get_pod().pod.name

    def _hold(self, step: Script) -> None:
        self._held[step["as"]] = self._framework.get_waiting_pod(step["uid"])

    def _waiting(self, step: Script) -> Any:
        return self._held[step["held"]] if "held" in step else self._framework.get_waiting_pod(step["uid"])

    def _pending(self, step: Script) -> list[str] | str:
        waiting = self._waiting(step)
        return "no such waiting pod" if waiting is None else list(waiting.pending_plugins())

    def _iterate(self, step: Script) -> list[str]:
        del step
        names: list[str] = []
        self._framework.iterate_over_waiting_pods(lambda each: names.append(each.get_pod().pod.name))
        return sorted(names)

    def _allow(self, step: Script) -> None:
        self._waiting(step).allow(step["plugin"])

    def _reject(self, step: Script) -> None:
        self._waiting(step).reject(step["message"], step["plugin"])

    def _reject_waiting_pod(self, step: Script) -> bool:
        return self._framework.reject_waiting_pod(step["uid"])

    async def _advance(self, step: Script) -> None:
        await asyncio.sleep(step["ns"] / NS_PER_S)


async def play_permit(given: Script) -> Outcome:
    waits = Waits(given)
    results = [await waits.step(step) for step in given["steps"]]
    await waits.end()
    return {"calls": waits.calls, "results": results}


PLAYERS: Final[Mapping[str, Callable[[Script], Awaitable[Outcome]]]] = {
    "status": play_status,
    "status_null": play_status_null,
    "new_framework": play_new_framework,
    "prefilter": _run(Played.prefilter),
    "prefilter_extension": _run(Played.prefilter_extension),
    "filter": _run(Played.filter),
    "postfilter": _run(Played.postfilter),
    "prescore": _run(Played.prescore),
    "score": _run(Played.score),
    "reserve": _run(Played.reserve),
    "unreserve": _run(Played.unreserve),
    "reserve_then_unreserve": _run(Played.reserve_then_unreserve),
    "prebind": _run(Played.prebind),
    "prebind_preflight": _run(Played.prebind_preflight),
    "prebind_after_preflight": _run(Played.prebind_after_preflight),
    "bind": _run(Played.bind),
    "postbind": _run(Played.postbind),
    "permit": play_permit,
}
