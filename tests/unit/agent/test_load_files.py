"""The memory of a VM's load survives a restart of the agent, and a file that cannot be used does no harm."""

import asyncio
import dataclasses
import functools
import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from agent.core.policies.combined import Combined
from agent.core.policies.remembered import NOTHING, Remembered, remember
from agent.core.policies.saved import MAX_AGE_S, MAX_BYTES, KnownLoad, decoded, encoded
from agent.core.policies.values import Load, Sizing
from agent.daemon.load_files import Clocks, LoadFiles
from hosting.logs import Logger
from protocol.values import Bounds, ComputeUnit, Units
from protocol.wire import PodName
from tests.support.amounts import GIB, UNIT, cu
from tests.unit.agent.driver import APART as VM
from tests.unit.hosting.raw_peers import recorded

POLICY = Combined()
HOW = POLICY.remembering
UNIX_S = 1.7e9
SIZING = Sizing(cu(8), ComputeUnit(UNIT, is_apart=True), Bounds(UNIT, cu(64)))


@dataclass
class Watched:
    """A VM under the default policy, a sample every 5 s."""

    known: Remembered = NOTHING
    now_s: float = 5000.0

    def see(self, cpus: float, used: int, seconds: int) -> list[Units]:
        """The goals while the load is so for so long."""
        goals = []
        for _ in range(seconds // 5):
            self.now_s += 5
            load = Load(
                busy_micro=int(cpus * 1e6), memory_total=64 * GIB, memory_available=64 * GIB - used * GIB
            )
            known = remember(self.known, load, self.now_s, HOW)
            goal = POLICY.goal(known.fill(load, self.now_s, HOW), SIZING)
            self.known = known.with_goal(goal, SIZING.unit, self.now_s, 300.0)
            highest = self.known.goals.highest(SIZING.unit)
            assert highest is not None
            goals.append(highest.units())
        return goals

    def saved(self) -> bytes:
        return encoded(KnownLoad(VM, self.known, HOW), self.now_s, UNIX_S)


@functools.cache
def _busy_once() -> Watched:
    """A VM that was busy, and is not any more."""
    watched = Watched()
    watched.see(6.0, 20, 600)
    watched.see(0.5, 3, 100)
    return watched


def busy_once() -> Watched:
    """That VM, to go on with."""
    return dataclasses.replace(_busy_once())


@pytest.mark.parametrize(("began_s", "set_by_s"), [(0.0, 0.0), (1e6, 0.0), (10.0, -7200.0)])
def test_a_restart_changes_no_goal(began_s: float, set_by_s: float) -> None:
    """`began_s` is the monotonic clock of the new process; `set_by_s` how far the clock was set meanwhile."""
    before = busy_once()
    after = Watched(decoded(before.saved(), VM, HOW, began_s, UNIX_S + set_by_s), began_s)
    goals = before.see(0.5, 3, 1500)
    assert goals[0].cpu > goals[-1].cpu
    found = after.see(0.5, 3, 1500)
    for index, goal in enumerate(goals):
        assert goal in found[max(0, index - 12) : index + 13], "as without it, to the minute"
    assert found[0] == goals[0]


def test_what_lapsed_while_nobody_looked_does_not_come_back() -> None:
    before = busy_once()
    after = Watched(decoded(before.saved(), VM, HOW, 0.0, UNIX_S + 1200.0), 0.0)
    assert after.see(0.5, 3, 5)[0].cpu == 1
    assert decoded(before.saved(), VM, HOW, 0.0, UNIX_S + MAX_AGE_S).memory_surge.highest.values


def test_the_longest_content_is_small() -> None:
    watched = Watched()
    for number in range(1000):
        watched.see(8.0 - number % 7, 20 + number % 9, 5)
    assert len(watched.saved()) < 8192 < MAX_BYTES


def _changed(**fields: Any) -> bytes:
    return json.dumps({**json.loads(busy_once().saved()), **fields}).encode()


GARBAGE = {
    "empty": b"",
    "cut": busy_once().saved()[:-20],
    "no JSON": b"\xff\x00",
    "a list": b"[]",
    "of a later format": _changed(format=2),
    "of another VM": _changed(vm="default/else"),
    "of an earlier pod of that name": _changed(uid="else"),
    "with an unknown field": _changed(colour="red"),
    "negative": _changed(cpu_peaks={"began_s": 0.0, "values": [-1]}),
    "not a number": _changed(saved_at_s="now"),
    "too many peaks": _changed(cpu_peaks={"began_s": 0.0, "values": [1] * 61}),
    "goals that are not in order": _changed(
        cpu_goals=[{"at_s": 1.0, "amount": amount, "reason": ""} for amount in (1, 2)]
    ),
    "a day old": _changed(saved_at_s=UNIX_S - MAX_AGE_S - 1),
    "too long": busy_once().saved() + b" " * MAX_BYTES,
}


@pytest.mark.parametrize("content", GARBAGE.values(), ids=GARBAGE.keys())
def test_what_cannot_be_used_is_ignored_and_named_once(tmp_path: Path, content: bytes) -> None:
    log, lines = recorded()
    made = _files(tmp_path, log)
    asyncio.run(made.save([KnownLoad(VM, busy_once().known, HOW)]))
    (path,) = tmp_path.glob("load/*.json")
    path.write_bytes(content)
    assert made.read(VM, HOW) == NOTHING
    assert [line["event"] for line in lines] == ["what was known of the load is ignored"]


@pytest.mark.parametrize("at_s", [-1e308, -1.0, 0.0, 1e308])
def test_times_that_cannot_be_do_no_harm(at_s: float) -> None:
    peaks = {"began_s": at_s, "values": [10**7]}
    goals = [{"at_s": at_s, "amount": 4000, "reason": ""}]
    found = decoded(_changed(cpu_peaks=peaks, cpu_goals=goals, saved_at_s=UNIX_S), VM, HOW, 0.0, UNIX_S)
    assert Watched(found, 0.0).see(0.5, 3, 1500)[-1].cpu == 1


# ------------------------------------------------------------ the files


def _files(directory: Path, log: Logger | None = None) -> LoadFiles:
    return LoadFiles(directory / "load", log or recorded()[0], Clocks(lambda: 5700.0, lambda: UNIX_S))


def test_what_was_saved_is_read_and_files_of_vms_that_went_are_removed(tmp_path: Path) -> None:
    other = replace(VM, pod=PodName("b" * 253, "default"))
    known, made = busy_once().known, _files(tmp_path)
    assert made.read(VM, HOW) == NOTHING, "there is no file yet"
    asyncio.run(made.save([KnownLoad(vm, known, HOW) for vm in (VM, other)]))
    for vm in (VM, other):
        found = _files(tmp_path).read(vm, HOW)
        assert (found.means, found.cpu_peaks) == (known.means, known.cpu_peaks)
        assert found.goals == replace(known.goals, latest=None)
    asyncio.run(made.save([KnownLoad(VM, known, HOW)]))
    assert made.read(other, HOW) == NOTHING
    assert made.read(VM, HOW) != NOTHING


def test_a_file_of_an_earlier_process_stays_until_it_is_too_old(tmp_path: Path) -> None:
    asyncio.run(_files(tmp_path).save([KnownLoad(VM, busy_once().known, HOW)]))
    (path,) = tmp_path.glob("load/*.json")
    for written_s, is_there in ((UNIX_S - MAX_AGE_S + 1, True), (UNIX_S - MAX_AGE_S - 1, False)):
        os.utime(path, (written_s, written_s))
        asyncio.run(_files(tmp_path).save([]))
        assert path.exists() is is_there, "its VM may not be read from its source yet"


def test_a_directory_that_cannot_be_written_is_told_once(tmp_path: Path) -> None:
    (tmp_path / "load").write_text("in the way")
    log, lines = recorded()
    made = _files(tmp_path, log)
    for _ in range(2):
        asyncio.run(made.save([KnownLoad(VM, NOTHING, HOW)]))
    assert [line["event"] for line in lines] == ["what is known of the load cannot be saved"]
    assert made.read(VM, HOW) == NOTHING
