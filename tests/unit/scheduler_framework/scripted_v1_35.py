"""Plugins of the modern framework that answer as a script says, and what they were asked.

`golden/framework.md` in the folder of the recordings says what a script means; the scripts of seed 001's package are in `scripted`.
"""

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Final

from protocol.wire import PodName
from scheduler.placing.core.handle import PluginFactory
from scheduler.placing.core.objects import NodeInfo, PodInfo, QueuedPod
from scheduler.placing.core.plugin import CycleContext, Plugin, points_of
from scheduler.placing.core.profile import EnabledPlugin, PluginSet, Profile
from scheduler.placing.core.values import (
    Code,
    ExtensionPoint,
    NominatingMode,
    PostFilterResult,
    PreFilterResult,
    Status,
)
from scheduler.placing.cycle.assembly import of_profile
from scheduler.placing.cycle.framework import SchedulingFramework
from scheduler.placing.plugins.registry import Registry
from tests.support.early_framework import unshared
from tests.support.virtual_time import now_s
from tests.unit.scheduler_framework.scripted import NS_PER_S, KaputtError, Script

CODES: Final = (
    Code.SUCCESS,
    Code.ERROR,
    Code.UNSCHEDULABLE,
    Code.UNSCHEDULABLE_AND_UNRESOLVABLE,
    Code.WAIT,
    Code.SKIP,
    Code.PENDING,
)
"""The codes by the numbers of version 1.35."""

NO_WEIGHTS: Final[Mapping[str, int]] = MappingProxyType({})


def pod_of(name: str, uid: str = "") -> PodInfo:
    return PodInfo(PodName(namespace="default", name=name), uid or f"uid-of-{name}")


def node_of(name: str) -> NodeInfo:
    return NodeInfo(name)


def status_of(script: Script | None) -> Status | None:
    if script is None:
        return None
    number, error = script["code"], script.get("error")
    code = CODES[number] if number < len(CODES) else 100 + number
    return Status(code, tuple(script["reasons"]), ValueError(error) if error else None)


def told(status: Status | None) -> Script | None:
    if status is None:
        return None
    error = status.as_error()
    return {
        "as_error": None if error is None else str(error),
        "code": str(status.code),
        "message": status.message,
        "plugin": status.plugin,
        "reasons": list(status.reasons),
    }


class ScriptedModern:
    """A plugin that has exactly the methods of its script's points."""

    def __init__(self, script: Script, calls: list[str]) -> None:
        self._script = script
        self._calls = calls
        for point, answer in script["points"].items():
            setattr(self, _METHODS[point], getattr(self, f"_{point}"))
            if point == "reserve":
                self.unreserve = self._unreserve  # the published interface has both
            if answer.get("extensions") is not None:
                self.add_pod, self.remove_pod = self._add_pod, self._remove_pod
            if answer.get("normalized") is not None:
                self.normalize_score = self._normalize_score

    def name(self) -> str:
        return str(self._script["name"])

    def _answer(self, point: str, about: str = "", called: str = "") -> Script:
        self._calls.append(f"{self.name()}.{called or point}{about}")
        answer: Script = self._script["points"][point]
        if "panic" in answer:
            raise KaputtError(answer["panic"])
        return answer

    def _prefilter(
        self, context: CycleContext, pod: PodInfo, nodes: Sequence[NodeInfo]
    ) -> tuple[PreFilterResult | None, Status | None]:
        del context, pod, nodes
        answer = self._answer("prefilter")
        result = answer["result"]
        names = result and result["node_names"]
        merged = None if result is None else PreFilterResult(None if names is None else frozenset(names))
        return merged, status_of(answer["status"])

    def _add_pod(self, context: CycleContext, pod: PodInfo, other: PodInfo, node: NodeInfo) -> Status | None:
        return self._extension("add_pod", context, pod, other, node)

    def _remove_pod(
        self, context: CycleContext, pod: PodInfo, other: PodInfo, node: NodeInfo
    ) -> Status | None:
        return self._extension("remove_pod", context, pod, other, node)

    def _extension(
        self, which: str, context: CycleContext, pod: PodInfo, other: PodInfo, node: NodeInfo
    ) -> Status | None:
        del context, pod
        self._calls.append(f"{self.name()}.{which}:{other.pod.name} on {node.name}")
        return status_of(self._script["points"]["prefilter"]["extensions"][which])

    def _filter(self, context: CycleContext, pod: PodInfo, node: NodeInfo) -> Status | None:
        del context, pod
        return status_of(self._answer("filter", f":{node.name}")["status"])

    async def _postfilter(
        self, context: CycleContext, pod: PodInfo, statuses: Mapping[str, Status]
    ) -> tuple[PostFilterResult | None, Status | None]:
        del context, pod, statuses
        answer = self._answer("postfilter")
        result = answer["result"]
        made = result and PostFilterResult(result["nominated_node_name"], NominatingMode(result["mode"]))
        return made, status_of(answer["status"])

    def _prescore(self, context: CycleContext, pod: PodInfo, nodes: Sequence[NodeInfo]) -> Status | None:
        del context, pod, nodes
        return status_of(self._answer("prescore")["status"])

    def _score(self, context: CycleContext, pod: PodInfo, node: NodeInfo) -> tuple[int, Status | None]:
        del context, pod
        answer = self._answer("score", f":{node.name}")
        status = answer.get("status_by_node", {}).get(node.name)
        return answer["scores"].get(node.name, 0), status_of(status)

    async def _normalize_score(
        self, context: CycleContext, pod: PodInfo, scores: dict[str, int]
    ) -> Status | None:
        del context, pod
        shown = " ".join(f"{name}={score}" for name, score in scores.items())
        self._calls.append(f"{self.name()}.normalize: {shown}")
        answer = self._script["points"]["score"]
        scores.update(answer["normalized"])
        return status_of(answer["normalize_status"])

    def _of_pod(self, point: str) -> Status | None:
        return status_of(self._answer(point)["status"])

    def _reserve(self, context: CycleContext, pod: PodInfo, node_name: str) -> Status | None:
        del context, pod, node_name
        return self._of_pod("reserve")

    async def _unreserve(self, context: CycleContext, pod: PodInfo, node_name: str) -> None:
        del context, pod, node_name
        self._answer("unreserve" if "unreserve" in self._script["points"] else "reserve", called="unreserve")

    async def _permit(
        self, context: CycleContext, pod: PodInfo, node_name: str
    ) -> tuple[Status | None, float]:
        del context, pod, node_name
        answer = self._answer("permit")
        return status_of(answer["status"]), answer["wait_ns"] / NS_PER_S

    async def _prebind(self, context: CycleContext, pod: PodInfo, node_name: str) -> Status | None:
        del context, pod, node_name
        return self._of_pod("prebind")

    def _prebind_preflight(self, context: CycleContext, pod: PodInfo, node_name: str) -> Status | None:
        del context, pod, node_name
        return self._of_pod("prebind_preflight")

    async def _bind(self, context: CycleContext, pod: PodInfo, node_name: str) -> Status | None:
        del context, pod, node_name
        return self._of_pod("bind")

    def _postbind(self, context: CycleContext, pod: PodInfo, node_name: str) -> None:
        del context, pod, node_name
        self._answer("postbind")


_METHODS: Final[Mapping[str, str]] = {
    "prefilter": "pre_filter",
    "filter": "filter",
    "postfilter": "post_filter",
    "prescore": "pre_score",
    "score": "score",
    "reserve": "reserve",
    "unreserve": "unreserve",
    "permit": "permit",
    "prebind": "pre_bind",
    "prebind_preflight": "pre_bind_pre_flight",
    "bind": "bind",
    "postbind": "post_bind",
}


class Plain:
    """A plugin that takes part nowhere by itself."""

    def __init__(self, reported_name: str) -> None:
        self._reported_name = reported_name

    def name(self) -> str:
        return self._reported_name


class Sorting(Plain):
    """A plugin that orders the queue by when pods came."""

    def less(self, first: QueuedPod, second: QueuedPod) -> bool:
        return first.since_s < second.since_s


class Binding(Plain):
    """A plugin that binds, or rather does not."""

    def bind(self, context: CycleContext, pod: PodInfo, node_name: str) -> Status | None:
        raise AssertionError(f"{context} {pod} {node_name}: nobody binds here")


def framework_of(plugins: Sequence[Script], calls: list[str]) -> SchedulingFramework:
    """A framework of scripted plugins, in their order. A queue sort plugin, and a bind plugin where none is scripted, come with it."""
    weights = {script["name"]: script.get("weight", 0) for script in plugins}
    return framework_made_of(*(ScriptedModern(script, calls) for script in plugins), weights=weights)


def framework_made_of(*plugins: Plugin, weights: Mapping[str, int] = NO_WEIGHTS) -> SchedulingFramework:
    """A framework of these plugins, each at every point that it extends; completed as `framework_of` does."""
    made = [Sorting("sorting"), *plugins]
    if not any(ExtensionPoint.BIND in points_of(each) for each in plugins):
        made.append(Binding("binding"))
    registry = Registry()
    for each in made:
        registry.register(each.name(), _giving(each))
    enabled = tuple(EnabledPlugin(each.name(), weights.get(each.name(), 0)) for each in made)
    profile = Profile("test-scheduler", multi_point=PluginSet(enabled))
    return SchedulingFramework(of_profile(profile, registry), unshared(now_s))


def _giving(plugin: Plugin) -> PluginFactory:
    return lambda *_: plugin
