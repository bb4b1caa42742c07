"""The service keeps a resizer's promises for its author: generations on a disk, moments, and writes that are waited for."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from agent.node.plugins.proto import nodeplugin_v1_pb2 as shared
from agent.node.plugins.proto import resizer_v1_pb2 as wire
from agent.node.plugins.sdk.resizer_service import MAX_VMS, GenerationFile, ResizerService
from hosting.logs import logger
from parley.node_plugins import (
    Amount,
    NotWrittenError,
    PluginVm,
    ResizerPlugin,
    TargetRefusedError,
    VmSize,
    WriteDeadline,
)
from tests.support.virtual_time import now_s, turns, virtually

ONE, TWO = Amount(1000, 2**30), Amount(2000, 2**31)


class Machine(ResizerPlugin):
    """One VM in memory. `before_write` is called before a write takes effect."""

    name = "machine"

    def __init__(self, before_write: Callable[[], Awaitable[None]] | None = None) -> None:
        self.size = ONE
        self._before_write = before_write

    async def observe(self, vm: PluginVm) -> VmSize:
        return VmSize(self.size, self.size)

    async def write(self, vm: PluginVm, target: Amount, deadline: WriteDeadline) -> None:
        if self._before_write is not None:
            await self._before_write()
        self.size = target


def served(plugin: ResizerPlugin, path: Path) -> ResizerService:
    generations = GenerationFile(path / "generations.json", lambda: 100.0)
    return ResizerService(plugin, generations, logger("test"), clock=now_s, sleep=asyncio.sleep)


async def clock_of(service: ResizerService) -> str:
    return (await service.Describe(wire.DescribeRequest(), None)).clock.clock_id


async def fence(service: ResizerService) -> int:
    moment = wire.Moment(clock_id=await clock_of(service), at_s=now_s() + 5)
    answer = await service.Fence(wire.FenceRequest(vm=shared.Vm(uid="u"), not_after=moment), CONTEXT)
    assert answer.vm_uid == "u"
    return answer.generation


async def resize(
    service: ResizerService,
    generation: int,
    *,
    left_s: float = 1.0,
    seen: Amount = ONE,
    clock_id: str | None = None,
) -> tuple[str | None, str]:
    """The outcome of a resize to two units, and its reason."""
    answer = await service.Resize(
        wire.ResizeRequest(
            vm=shared.Vm(uid="u"),
            target=shared.Resources(cpu_milli=TWO.cpu_milli, memory_bytes=TWO.memory_bytes),
            seen=shared.Resources(cpu_milli=seen.cpu_milli, memory_bytes=seen.memory_bytes),
            generation=generation,
            not_after=wire.Moment(clock_id=clock_id or await clock_of(service), at_s=now_s() + left_s),
        ),
        CONTEXT,
    )
    kind = answer.WhichOneof("outcome")
    return kind, getattr(getattr(answer, kind or "accepted"), "reason", "")


class Context:
    """The context that gRPC passes to a method; a call that is aborted raises."""

    async def abort(self, code: Any, details: str) -> None:
        raise RuntimeError(details)


CONTEXT: Any = Context()


def raising(error: Exception) -> Callable[[], Awaitable[None]]:
    async def before_write() -> None:
        raise error

    return before_write


@pytest.mark.parametrize(
    ("plugin", "how", "outcome"),
    [
        (Machine(), {}, ("accepted", "")),
        (Machine(), {"left_s": -0.5}, ("not_written", "it is 0.5 s too late to write")),
        (
            Machine(),
            {"clock_id": "other"},
            ("not_written", "the moment is on the clock of an earlier life of this plugin"),
        ),
        (
            Machine(),
            {"seen": Amount(7, 7)},
            (
                "not_written",
                "the target is 1000 milli-CPU / 1073741824 bytes by now, and 7 milli-CPU / 7 bytes was seen",
            ),
        ),
        (Machine(raising(NotWrittenError("busy"))), {}, ("not_written", "busy")),
        (Machine(raising(TargetRefusedError("no room"))), {}, ("refused", "no room")),
    ],
)
def test_what_a_resize_comes_to(
    plugin: Machine, how: dict[str, Any], outcome: tuple[str, str], tmp_path: Path
) -> None:
    @virtually
    async def story() -> None:
        service = served(plugin, tmp_path)
        assert await resize(service, await fence(service), **how) == outcome
        assert plugin.size == (TWO if outcome[0] == "accepted" else ONE)

    story()


def test_generations_rise_over_lives_and_earlier_ones_are_fenced_off(tmp_path: Path) -> None:
    @virtually
    async def story() -> None:
        first = served(Machine(), tmp_path)
        assert [await fence(first), await fence(first)] == [100, 101]
        again = served(Machine(), tmp_path)
        assert await resize(again, 101) == ("accepted", "")
        assert await fence(again) == 102
        assert await resize(again, 101) == ("fenced_off", "generation 101 was fenced off by 102")

    story()


def test_a_fence_waits_for_a_write_that_nobody_can_stop(tmp_path: Path) -> None:
    @virtually
    async def story() -> None:
        goes_on = asyncio.Event()

        async def wait() -> None:
            await goes_on.wait()

        plugin = Machine(wait)
        service = served(plugin, tmp_path)
        writing = asyncio.create_task(resize(service, await fence(service)))
        await turns()
        writing.cancel()  # the caller gives up
        fencing = asyncio.create_task(fence(service))
        await turns()
        assert not fencing.done()
        goes_on.set()
        assert await fencing == 101
        assert plugin.size == TWO

    story()


def test_a_fence_waits_out_what_was_handed_on_also_before_a_restart(tmp_path: Path) -> None:
    @virtually
    async def story() -> None:
        plugin = Machine()
        plugin.command_deadline_s = 3.0
        assert await fence(served(plugin, tmp_path)) == 100
        assert now_s() == 3.0
        service = served(plugin, tmp_path)  # a restart
        generation = await fence(service)
        assert now_s() == 6.0
        await resize(service, generation)
        written_s = now_s()
        await asyncio.sleep(1)
        await fence(service)
        assert now_s() == written_s + 3.0
        await fence(service)
        assert now_s() == written_s + 3.0, "there is nothing left to wait for"

    story()


def test_a_fence_whose_moment_has_passed_begins_no_generation(tmp_path: Path) -> None:
    @virtually
    async def story() -> None:
        service = served(Machine(), tmp_path)
        moment = wire.Moment(clock_id=await clock_of(service), at_s=now_s() - 1)
        answer = await service.Fence(wire.FenceRequest(vm=shared.Vm(uid="u"), not_after=moment), CONTEXT)
        assert answer.not_fenced.reason == "it is 1 s too late to write"
        assert not (tmp_path / "generations.json").exists()

    story()


@pytest.mark.parametrize("content", ["[]", '{"u": "1"}', "{"])
def test_another_file_is_no_file_of_generations(content: str, tmp_path: Path) -> None:
    (tmp_path / "g").write_text(content)
    with pytest.raises(ValueError, match="is no file of generations; remove it to begin anew"):
        GenerationFile(tmp_path / "g")


def test_generations_of_vms_that_were_forgotten_go_on_rising(tmp_path: Path) -> None:
    (tmp_path / "g").write_text(str({f"vm-{number}": 7 for number in range(MAX_VMS)}).replace("'", '"'))
    known = GenerationFile(tmp_path / "g", lambda: 1000.0)
    assert (known.next("new"), known.of("vm-0"), known.of("vm-1")) == (1000, 0, 7)
    assert known.next("vm-0") == 1000
