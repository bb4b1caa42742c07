"""Plugins that answer as a script says, and what they were asked: the scripts of the recordings of seed 001's package.

`golden/framework.md` in the folder of the recordings says what a script means.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import pytest

from protocol.wire import PodName
from scheduler.placing.core.objects import PodInfo
from scheduler.placing.core.plugin import CycleContext, Plugin
from scheduler.placing.core.values import Status, new_status
from scheduler.placing.cycle.context import NotFoundError

GOLDEN: Final = Path(__file__).resolve().parents[4] / "shared" / "golden"
NS_PER_S: Final = 10**9
Script = Mapping[str, Any]
Case = dict[str, Any]


def recorded(name: str) -> dict[str, Case]:
    """The cases of a recording, by their IDs. Without the recordings the module that asks is skipped."""
    if not (GOLDEN / name).exists():
        pytest.skip(f"{GOLDEN / name} is not there: no case of it is run", allow_module_level=True)
    cases = map(json.loads, (GOLDEN / name).read_text().splitlines())
    return {case["id"]: case for case in cases}


class KaputtError(Exception):
    """A plugin panics."""


def pod_of(script: Script) -> PodInfo:
    return PodInfo(PodName(namespace=script["namespace"], name=script["name"]), script["uid"])


def status_of(script: Script | None) -> Status | None:
    return None if script is None else new_status(script["code"], script["message"])


def told(status: Status | None) -> Script | None:
    return None if status is None else {"code": int(status.code), "message": status.message}


@dataclass
class Seen:
    """The record of plugins: the calls in their order, the reads, and the arguments of the calls."""

    calls: list[str] = field(default_factory=list)
    reads: list[str] = field(default_factory=list)
    arguments: list[tuple[object, ...]] = field(default_factory=list)


class Scripted:
    """A plugin without any extension point; `scripted` makes those that have some."""

    def __init__(self, script: Script, seen: Seen) -> None:
        self._script = script
        self._seen = seen

    def name(self) -> str:
        return str(self._script.get("reported_name", self._script["name"]))

    def _answer(self, point: str, context: CycleContext, pod: PodInfo, node_name: str) -> Script:
        called = f"{self.name()}.{point}"
        self._seen.calls.append(called)
        self._seen.arguments.append((context, pod, node_name))
        answer: Script = self._script["points"][point]
        if point == "permit" and pod is not None:
            answer = self._script.get("permit_by_pod", {}).get(pod.pod.name, answer)
        for key in answer.get("read", ()):
            try:
                self._seen.reads.append(f"{called} {key} = {context.read(key)}")
            except NotFoundError as error:
                self._seen.reads.append(f"{called} {key} error {error}")
        for key, value in answer.get("write", {}).items():
            context.write(key, value)
        for key in answer.get("delete", ()):
            context.delete(key)
        if "panic" in answer:
            raise KaputtError(answer["panic"])
        return answer


class _Reserving(Scripted):
    def reserve(self, context: CycleContext, pod: PodInfo, node_name: str) -> Status | None:
        return status_of(self._answer("reserve", context, pod, node_name)["status"])


class _Unreserving(Scripted):
    def unreserve(self, context: CycleContext, pod: PodInfo, node_name: str) -> None:
        self._answer("unreserve", context, pod, node_name)


class _Permitting(Scripted):
    async def permit(
        self, context: CycleContext, pod: PodInfo, node_name: str
    ) -> tuple[Status | None, float]:
        answer = self._answer("permit", context, pod, node_name)
        return status_of(answer["status"]), answer["wait_ns"] / NS_PER_S


class _Prebinding(Scripted):
    async def prebind(self, context: CycleContext, pod: PodInfo, node_name: str) -> Status | None:
        return status_of(self._answer("prebind", context, pod, node_name)["status"])


class _Sorting(Scripted):
    def less(self, first: object, second: object) -> bool:
        raise NotImplementedError


_POINTS: Final[Mapping[str, type[Scripted]]] = {
    "reserve": _Reserving,
    "unreserve": _Unreserving,
    "permit": _Permitting,
    "prebind": _Prebinding,
    "queuesort": _Sorting,
}


def scripted(script: Script, seen: Seen) -> Plugin:
    """A plugin that takes part in exactly the points that its script has."""
    parents = tuple(_POINTS[point] for point in script["points"]) or (Scripted,)
    made: Plugin = type("ScriptedPlugin", parents, {})(script, seen)
    return made
