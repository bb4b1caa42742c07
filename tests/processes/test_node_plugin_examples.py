"""The examples of node plugins as processes: each registers, answers, and removes its socket when it is told to end."""

import math
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

import pytest

from agent.core.policies.values import Load, Sizing
from agent.core.ports import FencedOffError, ResizeRefusedError
from agent.node.plugins.ports import PluginAwayError, PluginError
from agent.node.plugins.types.resizer import ResizerAnewError
from protocol.values import Observation
from tests.support.amounts import GIB, UNIT, cu
from tests.support.plugin_registry import catalogue, end, register
from tests.support.processes import Program
from tests.support.waiting import until
from tests.unit.agent.driver import VM

EXAMPLES = Path(__file__).parents[2] / "examples/node-plugins"
T = TypeVar("T")
WHENEVER_S = math.inf


@contextmanager
def example(name: str, registry: Path, *arguments: str) -> Iterator[Program]:
    """An example of node plugins for the length of a block."""
    registry.mkdir(exist_ok=True)
    code = f"import runpy, sys; sys.argv[0] = {name!r}; runpy.run_path({str(EXAMPLES / name)!r}, run_name='__main__')"
    program = Program(
        "-c", code, "--registry", str(registry), *arguments, output=registry.parent / f"{name}.log"
    )
    try:
        yield program
    finally:
        if program.process.poll() is None:
            program.process.kill()
            program.process.wait()


async def test_a_source_tells_the_load_and_ends_with_its_socket(tmp_path: Path) -> None:
    socket = tmp_path / "r/MetricsSource-wave-load.sock"
    with example("wave_load.py", tmp_path / "r") as program:
        async with catalogue() as made:
            source = made.metrics_source("wave-load")
            with pytest.raises(PluginAwayError, match="MetricsSource wave-load is not registered"):
                await source.read(VM)
            told = await register(made, socket)
            assert socket.stat().st_mode & 0o777 == 0o600
            sample = await source.read(VM)
            assert sample.load1 is not None
            assert 0 <= sample.load1 <= 8
            assert sample.memory_total == 8 * GIB
            assert sample.at_s <= time.monotonic()
            assert made.figures("MetricsSource", "wave-load").made == 1
            await until(lambda: "registered" in program.text())
            assert program.end() == 0
            assert not socket.exists()
            with pytest.raises(PluginError, match="UNAVAILABLE"):
                await source.read(VM)
            await end(made, told, socket)
            assert not made.is_registered("MetricsSource", "wave-load")


async def test_the_policy_tells_goals_and_what_is_wrong_with_its_arguments(tmp_path: Path) -> None:
    load = Load(busy_micro=2_000_000, memory_total=8 * GIB, memory_available=7 * GIB)
    sizing = Sizing(cu(2), VM.unit, VM.bounds)
    with example("headroom_policy.py", tmp_path / "r"):
        async with catalogue() as made:
            await register(made, tmp_path / "r/Policy-headroom.sock")
            policy = made.policy("headroom")
            goal = await policy.goal(VM, load, sizing, {"headroomPercent": 100})
            assert (goal.cpu.units, goal.memory.units) == (4, 2)
            assert goal.cpu.reason == "2.00 units are used, and 100 % shall be free above"
            unknown = await policy.goal(VM, Load(), sizing, {})
            assert (unknown.cpu.units, unknown.memory.units) == (None, None)
            with pytest.raises(PluginError, match=r"headroomPercent: must be a whole number .* not 'much'"):
                await policy.goal(VM, load, sizing, {"headroomPercent": "much"})


async def test_the_resizer_keeps_sizes_and_generations_when_it_is_killed(tmp_path: Path) -> None:
    socket = tmp_path / "r/Resizer-file.sock"
    arguments = ("--state", str(tmp_path / "state"))
    async with catalogue() as made:
        backend = made.resizer("file")
        with example("file_resizer.py", tmp_path / "r", *arguments) as first:
            await register(made, socket)
            earlier = await backend.fence(VM)
            fencing = await backend.fence(VM)
            await backend.resize(VM, cu(3), fencing, seen=UNIT, not_after_s=WHENEVER_S)
            with pytest.raises(FencedOffError):
                await backend.resize(VM, cu(4), earlier, seen=cu(3), not_after_s=WHENEVER_S)
            with pytest.raises(ResizeRefusedError, match="above the VM's maximum"):
                await backend.resize(VM, cu(9), fencing, seen=cu(3), not_after_s=WHENEVER_S)
            first.process.kill()
            first.process.wait()
        left = socket.lstat()
        with example("file_resizer.py", tmp_path / "r", *arguments):
            await until(lambda: socket.lstat().st_ino != left.st_ino)
            await register(made, socket)
            seen = await backend.observe(VM)
            assert isinstance(seen, Observation)
            assert (seen.size, seen.target) == (cu(3), cu(3))
            with pytest.raises(ResizerAnewError):
                await backend.resize(VM, cu(4), fencing, seen=cu(3), not_after_s=WHENEVER_S)
            again = await backend.fence(VM)
            assert again.generation > fencing.generation
            await backend.resize(VM, cu(4), again, seen=cu(3), not_after_s=WHENEVER_S)
            with pytest.raises(FencedOffError):
                await backend.resize(VM, cu(5), fencing, seen=cu(4), not_after_s=WHENEVER_S)
