"""A resizer in a process of its own keeps what every back end keeps, over real sockets.

The plugin is written with what authors import, over the simulated VMs with their faults. Its time passes when a clause says so.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import pytest

from agent.backends.change_log import FILE_NAME, LoggedSizes
from agent.backends.faults import NONE, Faults
from agent.core.ports import VmBackend
from agent.node.plugins.plugin_connection import UnixChannel
from agent.node.plugins.proto.resizer_v1_pb2 import DescribeRequest, DescribeResponse
from agent.node.plugins.proto.resizer_v1_pb2_grpc import ResizerStub
from agent.node.plugins.types.calls import PluginCalls, PluginLimits, PluginLink
from agent.node.plugins.types.resizer import ResizerClient
from hosting.settings import check
from protocol.values import Observation, Resources
from tests.conformance.vm_backend_clauses import CLAUSES, BackendPlant, Traits
from tests.conformance.vm_backend_pods import UseLog
from tests.conformance.vm_backend_simulated import PROFILES
from tests.support.processes import Program
from tests.support.short_paths import short_directory
from tests.support.waiting import PATIENCE_S, until

LIMITS: Final = PluginLimits(call_deadline_s=1.5, command_deadline_s=2.0)
WIRE_S: Final = 0.002
"""Messages under way get so long to arrive before time passes. A clause holds for every duration of a call."""
OURS: Final = {**PROFILES, "slow writes": (0.4, {"latency": {"resize": 8.0}})}
CHOSEN: Final = ("with delay", "everything")
LONG: Final = {
    "a_raise_is_logged_before_the_fact_and_a_lowering_after_it",
    "a_call_that_is_cut_off_leaves_the_vm_whole",
    "after_a_replacement_the_size_never_exceeds_the_size_and_the_new_target",
}
"""A quarter of a minute each with all faults: these are told with the first profile only."""


@dataclass(slots=True)
class Remote:
    """The plugin's process as the test steers it."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    calls: list[PluginCalls[Any]]
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    now_s: float = 0.0
    truth: Observation | None = None

    async def say(self, **command: object) -> None:
        """Tell the process something, and learn how the VM is; to its end, also where the call of a clause is killed meanwhile."""
        await asyncio.shield(asyncio.create_task(self._exchange(command)))

    async def _exchange(self, command: dict[str, object]) -> None:
        async with self.lock:
            await self._said(command)

    async def _said(self, command: dict[str, object]) -> None:
        await self._settle()
        self.writer.write(json.dumps(command).encode() + b"\n")
        told = json.loads(await self.reader.readline())
        self.now_s = told["now_s"]
        if told["truth"] is not None:
            cpu, memory, *target = told["truth"]
            self.truth = Observation(Resources(cpu, memory), Resources(*target), self.now_s)

    async def _settle(self) -> None:
        for _ in range(4):
            await asyncio.sleep(0)
        if any(each.figures().in_flight for each in self.calls):
            await asyncio.sleep(WIRE_S)

    def shown(self) -> Observation:
        assert self.truth is not None
        return self.truth


@contextmanager
def program(place: Path, profile: str, *mutant: str) -> Iterator[Path]:
    """The plugin's process for the length of a block."""
    delay_s, faults = OURS[profile]
    arguments = (str(place), str(place), str(delay_s), json.dumps(faults), *mutant)
    started = Program("tests.support.resizer_program", *arguments, output=place / "output")
    try:
        yield place
    finally:
        started.process.kill()
        started.process.wait()


@pytest.fixture(scope="module")
def process(request: pytest.FixtureRequest) -> Iterator[tuple[str, Path]]:
    """A plugin for the tests of one profile."""
    with short_directory() as directory, program(directory, request.param) as place:
        yield request.param, place


@asynccontextmanager
async def planted(place: Path, directory: Path, faults: Faults) -> AsyncIterator[BackendPlant]:
    """A plant in the plugin's process."""
    await until((place / "resizer.sock").exists)
    reader, writer = await asyncio.open_unix_connection(place / "control.sock")
    remote = Remote(reader, writer, [])
    opened = UnixChannel(str(place / "resizer.sock"))
    stub = ResizerStub(opened.channel)
    await remote.say(plant=str(directory / "vms-of-plugin"), seed=1)
    described: DescribeResponse = await stub.Describe(DescribeRequest(), timeout=PATIENCE_S)
    described.clock.reading_s = remote.now_s

    with UseLog(directory, remote.shown) as log:
        sizes = LoggedSizes(log)

        def client() -> VmBackend:
            calls: PluginCalls[Any] = PluginCalls(
                "Resizer", "simulated", LIMITS, lambda work, _: work.close()
            )
            made = ResizerClient(calls, sizes, lambda: remote.now_s)
            made.describe(described)()
            calls.use(PluginLink("", opened, stub))
            remote.calls.append(calls)
            return made

        async def look() -> Observation:
            await remote.say(wait=0)
            log.compare("at a look")
            return remote.shown()

        def spoil() -> None:
            (directory / "vms-of-plugin/vms/default.pod-a.json").write_text('{"generation": 1}')

        yield BackendPlant(
            Traits(
                keeps_targets=faults.withdrawn == 0,
                arrives=faults.movement.memory_arrives == 1,
                is_slow=faults == NONE.model_copy(update={"movement": faults.movement}),
            ),
            client,
            look,
            spoil,
            lambda: [json.loads(line) for line in (directory / FILE_NAME).read_text().splitlines()],
            lambda: log.faults,
            lambda: remote.now_s,
            lambda: remote.say(go_on=True),
            lambda seconds: remote.say(wait=seconds),
        )
    writer.close()
    await opened.close()


@pytest.mark.parametrize(
    ("process", "clause"),
    [
        (profile, clause)
        for profile in CHOSEN
        for clause in CLAUSES
        if profile == CHOSEN[0] or clause not in LONG
    ],
    indirect=["process"],
    scope="module",
)
async def test_a_resizer_keeps(clause: str, process: tuple[str, Path], tmp_path: Path) -> None:
    profile, place = process
    async with planted(place, tmp_path, check(OURS[profile][1], Faults)) as plant:
        await CLAUSES[clause](plant)


@pytest.mark.parametrize(
    ("mutant", "profile", "clause"),
    [
        ("ObeysAnyone", "with delay", "commands_of_an_earlier_life_are_refused"),
        ("NeverLate", "slow writes", "a_write_is_never_late"),
        (
            "FencesAtOnce",
            "late, fence waits",
            "when_fence_returns_no_command_of_an_earlier_life_can_take_effect_any_more",
        ),
        (
            "WritesBlindly",
            "with delay",
            "a_write_fails_where_another_target_stands_than_the_one_that_was_seen",
        ),
    ],
)
async def test_the_suite_catches_a_resizer(mutant: str, profile: str, clause: str, tmp_path: Path) -> None:
    faults = check(OURS[profile][1], Faults)
    with program(tmp_path, profile, mutant) as place:
        for seed in range(6):
            (tmp_path / str(seed)).mkdir()
            async with planted(place, tmp_path / str(seed), faults) as plant:
                try:
                    await CLAUSES[clause](plant)
                except AssertionError:
                    return
    raise AssertionError("nobody noticed")
