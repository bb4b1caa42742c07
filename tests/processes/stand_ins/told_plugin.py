"""A node plugin that says what a file tells: `{"say": N}`, or with `"lie": true` what no plugin may say.

python told_plugin.py Policy|MetricsSource FILE REGISTRY
"""

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from parley.node_plugins import (
    MetricsSourcePlugin,
    PluginVm,
    PolicyPlugin,
    UnitGoal,
    VmGoal,
    VmLoad,
    VmReading,
    VmSizing,
    serve,
)

KIND, FILE, REGISTRY = sys.argv[1:]
TOTAL = 64 * 2**30


def told() -> tuple[int, bool]:
    found = json.loads(Path(FILE).read_text())
    return found["say"], found.get("lie", False)


class ToldPolicy(PolicyPlugin):
    """The goal is the number."""

    name = "told"

    def goal(self, vm: PluginVm, load: VmLoad, sizing: VmSizing, args: Mapping[str, Any]) -> VmGoal:
        del vm, load, sizing, args
        units, is_lie = told()
        goal = UnitGoal(-units if is_lie else units, "as told")
        return VmGoal(goal, goal)


class ToldLoad(MetricsSourcePlugin):
    """The load average is the number; a lie says that more memory is free than there is."""

    name = "told"

    def read(self, vm: PluginVm) -> VmReading:
        del vm
        load, is_lie = told()
        free = 2 * TOTAL if is_lie else TOTAL - 2**28
        return VmReading(load1=load, load5=load, memory_total_bytes=TOTAL, memory_available_bytes=free)


serve(ToldPolicy() if KIND == "Policy" else ToldLoad(), registry=REGISTRY)
