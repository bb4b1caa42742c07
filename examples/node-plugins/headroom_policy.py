"""A policy: so many units more than are busy, `{"headroomPercent": 50}` in the agent's settings.

python examples/node-plugins/headroom_policy.py --registry /var/lib/parley/plugins_registry
"""

import argparse
from collections.abc import Mapping
from typing import Any

from parley.node_plugins import PluginVm, PolicyPlugin, UnitGoal, VmGoal, VmLoad, VmSizing, serve


class Headroom(PolicyPlugin):
    """Keeps a share above the use free."""

    name = "headroom"
    software_version = "1.0"

    async def goal(self, vm: PluginVm, load: VmLoad, sizing: VmSizing, args: Mapping[str, Any]) -> VmGoal:
        percent = args.get("headroomPercent", 50)
        if not isinstance(percent, int) or not 0 <= percent <= 1000:
            raise ValueError(f"headroomPercent: must be a whole number from 0 to 1000, not {percent!r}")
        used = None
        if load.memory_total_bytes is not None and load.memory_available_bytes is not None:
            used = load.memory_total_bytes - load.memory_available_bytes
        busy_milli = None if load.cpu_busy_micro is None else load.cpu_busy_micro / 1000
        return VmGoal(
            _units(busy_milli, sizing.unit.cpu_milli, percent),
            _units(used, sizing.unit.memory_bytes, percent),
        )


def _units(used: float | None, unit: int, percent: int) -> UnitGoal:
    if used is None:
        return UnitGoal(None, "the use is not known")
    units = max(1, -int(-used * (100 + percent) // (100 * unit)))
    return UnitGoal(units, f"{used / unit:.2f} units are used, and {percent} % shall be free above")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--registry", required=True, help="the folder `plugins.directory` of the agent's settings"
    )
    serve(Headroom(), registry=parser.parse_args().registry)
