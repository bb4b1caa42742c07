"""Part A of the recordings: the worlds, the messages and the metric of the published plugin manager."""

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final

import pytest

from agent.node.plugins.core.plugin_info import PluginInfo
from agent.node.plugins.core.worlds import (
    ActualStateOfWorld,
    DesiredStateOfWorld,
    SocketPathError,
    Worlds,
)
from agent.node.plugins.manager import plugins_families
from tests.unit.agent_plugins.go_texts import message
from tests.unit.agent_plugins.recorded_plugins import Case, LabelledHandler, recorded

CASES: Final = recorded(("asw", "dsw", "worlds", "metrics"))
MESSAGES: Final = recorded(("message",))
EPOCH_NS: Final = 1_704_067_200_000_000_000
"""2024-01-01, from which the recordings count."""

ONE_INSTANT: Final = "a time is an instant here, whatever the zone in which somebody writes it; the published one compares zones too"

# By case: the step and the key of a result, what ours answers there, and why.
ZONES: Final = {
    "asw-013": (1, "result", True, ONE_INSTANT),
    "asw-015": (1, "result", True, ONE_INSTANT),
}
UTC: Final = {
    "message-110": (
        "2023-12-31 22:30:00.000000005 -0130 X",
        "2024-01-01 00:00:00.000000005 +0000 UTC",
        "times are told in UTC, whatever the zone of the machine",
    ),
}


def timestamp(told: Any) -> int | None:
    """The time of a recording in nanoseconds since 1970."""
    nanoseconds = told["ns"] if isinstance(told, dict) else told
    return None if nanoseconds is None else EPOCH_NS + nanoseconds


def info(told: dict[str, Any]) -> PluginInfo:
    label = told.get("handler")
    return PluginInfo(
        told["socket_path"],
        timestamp(told["timestamp"]),
        told["uuid"],
        LabelledHandler(label) if label else None,
        told["name"],
        told["endpoint"],
    )


class Replay:
    """A pair of worlds, to which the operations of a case happen. The n-th success has time n and identity Un."""

    def __init__(self) -> None:
        self._successes = 0
        desired = DesiredStateOfWorld(lambda: EPOCH_NS + self._successes, lambda: f"U{self._successes}")
        self.worlds = Worlds(desired, ActualStateOfWorld(desired.table))

    def done(self, op: Case) -> Case:
        """Perform the operation. Returns it with our results."""
        seen = dict(op)
        call: Callable[[Case], Any] = getattr(self, op["op"])
        try:
            answer = call(op)
        except SocketPathError as error:
            seen["error"] = str(error)
        else:
            seen |= {key: answer for key in ("result",) if key in op} | {
                key: None for key in ("error",) if key in op
            }
        if "listing" in op:
            seen["listing"] = self._listing(op["world"])
        if "metric" in op:
            seen["metric"] = self._metric()
        return seen

    def add_or_update_plugin(self, op: Case) -> None:
        self._successes += bool(op["socket_path"])
        self.worlds.desired.add_or_update_plugin(op["socket_path"])

    def remove_plugin(self, op: Case) -> None:
        world = self.worlds.desired if op["world"] == "desired" else self.worlds.actual
        world.remove_plugin(op["socket_path"])

    def plugin_exists(self, op: Case) -> bool:
        return self.worlds.desired.plugin_exists(op["socket_path"])

    def add_plugin(self, op: Case) -> None:
        self.worlds.actual.add_plugin(self._plugin(op["plugin"]))

    def plugin_exists_with_correct_timestamp(self, op: Case) -> bool:
        return self.worlds.actual.plugin_exists_with_correct_timestamp(self._plugin(op["plugin"]))

    def plugin_exists_with_correct_uuid(self, op: Case) -> bool:
        return self.worlds.actual.plugin_exists_with_correct_uuid(self._plugin(op["plugin"]))

    def mutate_listing(self, op: Case) -> None:
        listing = self._plugins(op["world"])
        listing[:] = [PluginInfo("/another"), *listing]

    def _plugin(self, told: Case) -> PluginInfo:
        if "from_desired" not in told:
            return info(told)
        path = told["from_desired"]
        entry = next(each for each in self._plugins("desired") if each.socket_path == path)
        filled: dict[str, Any] = {key: told[key] for key in ("name", "endpoint") if key in told}
        if told.get("handler"):
            filled["handler"] = LabelledHandler(told["handler"])
        if told.get("zero_timestamp"):
            filled["timestamp"] = None
        return replace(entry, **filled)

    def _plugins(self, world: str) -> list[PluginInfo]:
        if world == "desired":
            return self.worlds.desired.get_plugins_to_register()
        return self.worlds.actual.get_registered_plugins()

    def _listing(self, world: str) -> list[Case]:
        return [
            {
                "socket_path": plugin.socket_path,
                "timestamp": None if plugin.timestamp is None else plugin.timestamp - EPOCH_NS,
                "uuid": plugin.uuid,
                "handler": None if plugin.handler is None else str(plugin.handler),
                "name": plugin.name,
                "endpoint": plugin.endpoint,
            }
            for plugin in sorted(self._plugins(world), key=lambda each: each.socket_path.encode())
        ]

    def _metric(self) -> Case | None:
        for family in plugins_families(self.worlds):
            samples = [
                {"labels": dict(zip(family.labels, labels, strict=True)), "value": value}
                for labels, value in sorted(family.samples)
            ]
            return {"name": family.name, "type": family.kind.upper(), "help": family.help, "samples": samples}
        return None


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_the_recorded_worlds(case: Case) -> None:
    replay = Replay()
    seen = [replay.done(op) for op in case["ops"]]
    expected = case["ops"]
    if case["id"] in ZONES:
        assert seen != expected, "ours does as was recorded: the exception is not needed"
        step, key, ours, _why = ZONES[case["id"]]
        expected[step] |= {key: ours}
    assert seen == expected


@pytest.mark.parametrize("case", MESSAGES.values(), ids=MESSAGES)
def test_the_recorded_message(case: Case) -> None:
    plugin = info(case["plugin"])
    prefix, suffix = case["prefix"], case["suffix"]
    error = None if case["error"] is None else Exception(case["error"])
    seen = {
        "generate_msg": [message(each, plugin) for each in plugin.generate_msg(prefix, suffix)],
        "generate_msg_detailed": message(plugin.generate_msg_detailed(prefix, suffix), plugin),
        "generate_error": [message(str(each), plugin) for each in plugin.generate_error(prefix, error)],
        "generate_error_detailed": message(str(plugin.generate_error_detailed(prefix, error)), plugin),
    }
    expected = {key: case[key] for key in seen}
    if case["id"] in UTC:
        assert seen != expected, "ours does as was recorded: the exception is not needed"
        recorded_text, ours, _why = UTC[case["id"]]
        expected = json.loads(json.dumps(expected).replace(recorded_text, ours))
    assert seen == expected


def test_every_exception_is_of_a_recorded_case() -> None:
    assert ZONES.keys() <= CASES.keys()
    assert UTC.keys() <= MESSAGES.keys()
