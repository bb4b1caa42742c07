"""The cost of asking a metrics source and a policy over gRPC, beside the page of an informant: 100 VMs, each once a second.

`python -m benchmarks.node_plugins_parts.calls DIRECTORY INFORMANT_PORT SECONDS`: starts the plugins of `examples/node-plugins`, which
register as they do with an agent, asks them and the informant with the agent's own clients, and prints one JSON line.
"""

import asyncio
import contextlib
import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, Final

import psutil
import uvloop

from agent.core import events
from agent.core.model import Vm
from agent.core.policies.values import Load, Sizing
from agent.node.plugins.manager import NodePluginManager
from agent.node.plugins.ports import PluginError
from agent.node.plugins.types.calls import PluginLimits
from agent.node.plugins.types.catalogue import METRICS_SOURCE, POLICY, Catalogue
from agent.peers.informant import ExporterLink
from benchmarks.load.figures import in_ms
from hosting import logs
from hosting.client import HttpClient
from protocol.values import Bounds, ComputeUnit, Resources
from protocol.wire import PodName
from tests.support.plugin_registry import NoSizeLog

VMS: Final = 100
GIB: Final = 2**30
DEADLINE_S: Final = 1.0
PATIENCE_S: Final = 120.0
LOOK_S: Final = 0.05
EXAMPLES: Final = Path(__file__).resolve().parents[2] / "examples/node-plugins"
PLUGINS: Final = ((METRICS_SOURCE, "wave-load", "wave_load.py"), (POLICY, "headroom", "headroom_policy.py"))


def _vm(number: int) -> Vm:
    step = Resources(1000, GIB)
    return Vm(
        PodName("bench", f"vm-{number}"),
        f"uid-{number}",
        Bounds(step, Resources(8000, 8 * GIB)),
        ComputeUnit(step),
        GIB,
    )


@contextlib.contextmanager
def plugins(registry: Path, cores: Iterable[int]) -> Iterator[dict[str, psutil.Process]]:
    """The processes of the plugins by type, on these cores, for the length of a `with` block."""
    registry.mkdir()
    running = {}
    try:
        for plugin_type, _, file in PLUGINS:
            command = [sys.executable, str(EXAMPLES / file), "--registry", str(registry)]
            running[plugin_type] = subprocess.Popen(
                command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
            )
            os.sched_setaffinity(running[plugin_type].pid, cores)
        yield {plugin_type: psutil.Process(each.pid) for plugin_type, each in running.items()}
    finally:
        for each in running.values():
            each.kill()
            each.wait()


class Rounds:
    """Asks for each VM once a second, spread evenly over the second."""

    def __init__(self, ask: Callable[[Vm], Awaitable[bool]]) -> None:
        self._ask = ask
        self.took_s: list[float] = []
        self.failures = 0

    async def run(self, seconds: float) -> None:
        """Ask for so long."""
        until_s = time.monotonic() + seconds
        async with asyncio.TaskGroup() as tasks:
            for number in range(VMS):
                tasks.create_task(self._one(_vm(number), number / VMS, until_s))

    async def _one(self, vm: Vm, offset_s: float, until_s: float) -> None:
        await asyncio.sleep(offset_s)
        next_s = time.monotonic()
        while next_s < until_s:
            began_s = time.monotonic()
            is_answered = await self._ask(vm)
            if is_answered:
                self.took_s.append(time.monotonic() - began_s)
            else:
                self.failures += 1
            next_s += 1.0
            await asyncio.sleep(next_s - time.monotonic())


def _cpu_s(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


async def _measured(
    ask: Callable[[Vm], Awaitable[bool]], server: psutil.Process, seconds: float
) -> dict[str, Any]:
    await Rounds(ask).run(1.5)  # connections are open, code is warm
    rounds, own = Rounds(ask), psutil.Process()
    before = _cpu_s(own), _cpu_s(server)
    began_s = time.monotonic()
    await rounds.run(seconds)
    span_s = time.monotonic() - began_s
    return {
        **in_ms(rounds.took_s),
        "agent_cpu_percent": round((_cpu_s(own) - before[0]) / span_s * 100, 2),
        "server_cpu_percent": round((_cpu_s(server) - before[1]) / span_s * 100, 2),
        "calls": len(rounds.took_s),
        "failures": rounds.failures,
    }


async def _registered(catalogue: Catalogue) -> None:
    """Wait until every plugin is registered. Raises `SystemExit` if one never is."""
    for _ in range(round(PATIENCE_S / LOOK_S)):
        if all(catalogue.is_registered(plugin_type, name) for plugin_type, name, _ in PLUGINS):
            return
        await asyncio.sleep(LOOK_S)
    raise SystemExit("a plugin has not registered")


async def _nothing(_: Vm) -> bool:
    return True


async def measure(directory: Path, port: int, informant: psutil.Process, seconds: float) -> dict[str, Any]:
    """One entry for each way of asking."""
    log, rng = logs.logger("calls"), random.Random(1)
    load = Load(busy_micro=1_500_000, memory_total=4 * GIB, memory_available=2 * GIB)
    with plugins(directory / "registry", os.sched_getaffinity(informant.pid)) as running:
        async with HttpClient() as client, asyncio.timeout(PATIENCE_S + 8 * seconds):
            catalogue = Catalogue(PluginLimits(call_deadline_s=DEADLINE_S), sizes=NoSizeLog())
            manager = NodePluginManager(
                directory / "registry", catalogue.handlers(), log=log, rng=rng, clock=time.monotonic
            )
            managing = asyncio.create_task(manager.run())
            link = ExporterLink(client, "127.0.0.1", "node_", DEADLINE_S, rng)
            source, policy = catalogue.metrics_source("wave-load"), catalogue.policy("headroom")

            async def page(vm: Vm) -> bool:
                return isinstance(await link.read(vm, port), events.MetricsRead)

            async def sample(vm: Vm) -> bool:
                with contextlib.suppress(PluginError):
                    await source.read(vm)
                    return True
                return False

            async def goal(vm: Vm) -> bool:
                with contextlib.suppress(PluginError):
                    await policy.goal(vm, load, Sizing(vm.bounds.min, vm.unit, vm.bounds), {})
                    return True
                return False

            try:
                await _registered(catalogue)
                return {
                    "nothing": await _measured(_nothing, informant, seconds),
                    "exporter": await _measured(page, informant, seconds),
                    "metrics_source": await _measured(sample, running[METRICS_SOURCE], seconds),
                    "policy": await _measured(goal, running[POLICY], seconds),
                }
            finally:
                managing.cancel()
                await asyncio.wait([managing])
                await catalogue.close()


def main() -> None:
    """Measure and print."""
    logs.configure("error")
    directory, port, pid, seconds = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4])
    print(json.dumps(uvloop.run(measure(directory, port, psutil.Process(pid), seconds))))


if __name__ == "__main__":
    main()
