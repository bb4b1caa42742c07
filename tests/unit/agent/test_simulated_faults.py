"""Simulated VMs suffer the faults of their settings, beyond the demands of the conformance suite on every back end."""

import asyncio
import json
import math
import random
from collections.abc import Callable, Coroutine, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from agent.backends import faults as faults_module
from agent.backends.change_log import ChangeLog
from agent.backends.faults import NONE, Faults, Movement, Refusing, ways
from agent.backends.simulated import SentCommand, SimulatedBackend
from agent.core.ports import BackendError, Fencing
from hosting.settings import FaultsError, SettingsError, check, load
from protocol.values import Resources
from tests.conformance.vm_backend_simulated import Virtual
from tests.support.amounts import cu
from tests.unit.agent.driver import VM

FINE = Resources(10, 1000)


class Place:
    """A directory with VMs, on a clock that a test moves."""

    def __init__(self, directory: Path, log: ChangeLog) -> None:
        self.path = directory / "vms" / "default.pod-a.json"
        self.virtual = Virtual()
        self._directory, self._log = directory, log

    def open(self, faults: dict[str, Any] | None = None, seed: int = 0) -> SimulatedBackend:
        read, rng = check(faults or {}, Faults), random.Random(seed)
        backend = SimulatedBackend(self._directory, self._log, 1.0, read, rng, self.virtual.clock())
        backend.create(VM, cu(2))
        return backend


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    with ChangeLog(tmp_path, "node-a") as log:
        yield Place(tmp_path, log)


async def resized(backend: SimulatedBackend, target: Resources, fencing: Fencing) -> None:
    """Command a target with what stands there as the one that was seen."""
    stands = backend._settle(VM).target
    await backend.resize(VM, target, fencing, seen=stands, not_after_s=math.inf)


# ---------------------------------------------------------------- settings


def test_there_are_no_faults_by_default() -> None:
    assert check({}, Faults) == NONE == Faults()
    rng = random.Random(1)
    before = rng.getstate()
    assert ways(NONE.latency.resize, rng) == (0, 0)
    assert rng.getstate() == before


def test_the_file_of_the_description_is_read(tmp_path: Path) -> None:
    described = faults_module.__doc__ or ""
    file = tmp_path / "faults.yaml"
    file.write_text("\n".join(line[4:] for line in described.splitlines() if line.startswith("    ")))
    faults = load(file, Faults)
    assert faults.latency.observe == (0.01, 0.2)
    assert faults.latency.fence == (0.1, 0.1)
    assert (faults.command_deadline, faults.late, faults.withdrawn) == (5, 0.2, 0.1)


def test_every_fault_of_a_file_is_named(tmp_path: Path) -> None:
    file = tmp_path / "faults.yaml"
    file.write_text(
        "latency: {observe: [0.5, 0.1], fence: -1}\nfailBefore: {resize: 2}\nlate: '0.5'\n"
        "movement: {steps: 0}\nfence: perhaps\nsurprise: 1\n"
    )
    with pytest.raises(SettingsError) as caught:
        load(file, Faults)
    paths = {fault.split(":")[0] for fault in caught.value.faults}
    assert {"latency.observe", "failBefore.resize", "late", "movement.steps", "fence", "surprise"} <= paths
    assert any(path.startswith("latency.fence") for path in paths)


@pytest.mark.parametrize(
    ("data", "words"),
    [
        ({"late": 0.5}, "commandDeadline"),
        ({"fence": "wait"}, "nothing to wait for"),
        ({"commandDeadline": 1, "latency": {"resize": 2}}, "must not exceed commandDeadline"),
        ({"refusing": {"every": 2, "lasts": 2}}, "nothing is ever resized"),
        ({"latency": {"resize": float("nan")}}, "latency.resize"),
        ({"late": True, "commandDeadline": 1}, "late"),
    ],
)
def test_faults_that_contradict_each_other_are_refused(data: dict[str, Any], words: str) -> None:
    with pytest.raises(FaultsError, match=words):
        check(data, Faults)


# ---------------------------------------------------------------- movement


def test_cpu_arrives_first_and_memory_in_slower_steps() -> None:
    movement = Movement.model_validate({"steps": 2, "memorySlower": 3.0})
    path = movement.path(100.0, FINE, Resources(30, 2000), 1.0)
    assert path == (
        (100.5, Resources(20, 1000)),
        (101.0, Resources(30, 1000)),
        (101.5, Resources(30, 1500)),
        (103.0, Resources(30, 2000)),
    )


@pytest.mark.parametrize("target", [Resources(30, 2000), Resources(3, 500), Resources(11, 7)])
def test_of_memory_only_a_part_may_arrive(target: Resources) -> None:
    movement = Movement.model_validate({"steps": 3, "memoryArrives": 0.5})
    path = movement.path(0.0, FINE, target, 1.0)
    end = path[-1][1]
    assert end.vcpu_milli == target.vcpu_milli
    assert abs(end.memory_bytes - (1000 + target.memory_bytes) / 2) <= 1
    low, high = FINE.min(target), FINE.max(target)
    assert all(low.fits_in(size) and size.fits_in(high) for _, size in path)


def test_without_faults_a_size_moves_at_once_when_its_moment_has_come() -> None:
    assert Movement().path(5.0, FINE, cu(3), 0.2) == ((5.2, cu(3)),)
    assert Movement().path(5.0, FINE, FINE, 0.2) == ()


async def test_an_earlier_target_is_finished_first_and_shows_until_then(place: Place) -> None:
    backend = place.open({"replacement": "finish-first"})
    fencing = await backend.fence(VM)
    shown = []
    await resized(backend, cu(8, 2), fencing)
    await resized(backend, cu(3, 4), fencing)
    await resized(backend, cu(3, 4), fencing)
    for _ in range(3):
        seen = await backend.observe(VM)
        shown.append((seen.size, seen.target))
        place.virtual.now_s += 1.0
    assert shown == [(cu(2), cu(8, 4)), (cu(8, 2), cu(3, 4)), (cu(3, 4), cu(3, 4))]


async def test_somebody_else_takes_a_growth_back_and_never_raises(place: Place) -> None:
    backend = place.open({"withdrawn": 1, "movement": {"steps": 4}})
    fencing = await backend.fence(VM)
    await resized(backend, cu(6, 1), fencing)
    assert (await backend.observe(VM)).target == cu(6, 1)
    place.virtual.now_s += 5
    seen = await backend.observe(VM)
    assert seen.is_at_rest
    assert seen.size.vcpu_milli < 6000
    assert seen.size.memory_bytes == cu(1).memory_bytes
    await resized(backend, cu(1), fencing)
    place.virtual.now_s += 5
    assert (await backend.observe(VM)).size == cu(1)


# ---------------------------------------------------------------- commands


async def test_resizes_are_refused_for_a_while(place: Place) -> None:
    backend = place.open({"refusing": {"every": 30, "lasts": 5}})
    place.virtual.now_s = 1200.0
    fencing = await backend.fence(VM)
    with pytest.raises(BackendError, match="no resizes are taken"):
        await resized(backend, cu(3), fencing)
    assert (await backend.observe(VM)).target == cu(2)
    place.virtual.now_s += 5.0
    await resized(backend, cu(3), fencing)
    assert not Refusing().is_on(0.0)


async def test_a_late_command_arrives_after_the_death_of_its_sender(place: Place) -> None:
    old = place.open({"commandDeadline": 5, "late": 1})
    assert old.capabilities.command_deadline_s == 5
    fencing = await old.fence(VM)
    with pytest.raises(BackendError, match="may still be accepted"):
        await resized(old, cu(7), fencing)
    assert (await old.observe(VM)).target == cu(2)
    del old
    place.virtual.now_s += 5.0
    assert (await place.open().observe(VM)).target == cu(7)


async def test_a_fence_waits_for_the_whole_deadline_and_for_longer_ones_of_others(place: Place) -> None:
    old = place.open({"commandDeadline": 9, "late": 1}, seed=1)
    fencing = await old.fence(VM)
    with pytest.raises(BackendError):
        await resized(old, cu(7), fencing)
    (command,) = json.loads(place.path.read_bytes())["on_way"]
    new, began_s = place.open({"commandDeadline": 1, "fence": "wait"}), place.virtual.now_s
    for wait_s in (max(1.0, command["arrives_s"] - began_s), 1.0):
        began_s = place.virtual.now_s
        fence = asyncio.create_task(new.fence(VM))
        await place.virtual.wait(wait_s - 0.001)
        assert not fence.done()
        await place.virtual.wait(0.002)
        assert fence.done()
        await fence
    assert (await new.observe(VM)).target == cu(7)


async def test_a_fence_that_is_overtaken_by_another_says_so(place: Place) -> None:
    backend = place.open({"commandDeadline": 1, "fence": "wait"})
    first = asyncio.create_task(backend.fence(VM))
    await place.virtual.wait(0.5)
    second = asyncio.create_task(backend.fence(VM))
    await place.virtual.wait(2.0)
    with pytest.raises(BackendError, match="fenced off"):
        await first
    assert (await second).generation == 2


async def test_a_command_on_its_way_is_replaced_by_a_later_one(place: Place) -> None:
    backend = place.open({"commandDeadline": 5, "latency": {"resize": 4}}, seed=3)
    fencing = await backend.fence(VM)
    first = asyncio.create_task(resized(backend, cu(8), fencing))
    await place.virtual.wait(0.0)
    hasty = place.open({"commandDeadline": 5})
    await resized(hasty, cu(3), fencing)
    await place.virtual.wait(10.0)
    with pytest.raises(BackendError, match="there first"):
        await first
    assert (await hasty.observe(VM)).size == cu(3)


@pytest.mark.parametrize(("seen", "comes"), [(cu(2), True), (cu(6), False), (None, True)])
async def test_a_command_on_its_way_is_taken_only_where_the_target_stands_that_was_seen(
    place: Place, seen: Resources | None, comes: bool
) -> None:
    backend = place.open()
    command = SentCommand(1, cu(7), place.virtual.now_s + 1, seen)
    backend._write(VM, replace(backend._settle(VM), sent=1, on_way=(command,)))
    place.virtual.now_s += 3
    assert (await backend.observe(VM)).size == (cu(7) if comes else cu(2))
    assert backend._settle(VM).on_way == ()


async def test_a_failure_after_the_fact_takes_effect(place: Place) -> None:
    fencing = await place.open().fence(VM)
    backend = place.open({"failAfter": {"resize": 1, "fence": 1}})
    with pytest.raises(BackendError, match="may have been accepted"):
        await resized(backend, cu(5), fencing)
    assert (await backend.observe(VM)).target == cu(5)
    with pytest.raises(BackendError, match="may have been set up"):
        await backend.fence(VM)
    with pytest.raises(BackendError, match="fenced off"):
        await resized(place.open(), cu(6), fencing)


@pytest.mark.parametrize("kind", ["fence", "observe", "resize"])
async def test_a_failure_before_the_fact_does_nothing(place: Place, kind: str) -> None:
    fencing = await place.open().fence(VM)
    before = place.path.read_bytes()
    backend = place.open({"failBefore": {kind: 1}})
    calls: dict[str, Callable[[], Coroutine[Any, Any, object]]] = {
        "fence": partial(backend.fence, VM),
        "observe": partial(backend.observe, VM),
        "resize": partial(resized, backend, cu(5), fencing),
    }
    with pytest.raises(BackendError):
        await calls[kind]()
    assert place.path.read_bytes() == before


# ---------------------------------------------------------------- files


async def test_files_of_earlier_versions_are_read(place: Place) -> None:
    place.open()
    amount = cu(2).memory_bytes
    earlier = {
        "generation": 4,
        "size_cpu": 2000,
        "size_memory": amount,
        "target_cpu": 5000,
        "target_memory": amount * 2,
        "ready_at_s": 1003.0,
    }
    place.path.write_text(json.dumps(earlier))
    backend = place.open()
    seen = await backend.observe(VM)
    assert (seen.size, seen.target) == (cu(2), cu(5, 4))
    assert (await backend.fence(VM)).generation == 5
    place.virtual.now_s = 1003.0
    assert (await backend.observe(VM)).size == cu(5, 4)


async def test_a_clock_that_began_anew_ends_what_was_under_way(place: Place) -> None:
    backend = place.open({"commandDeadline": 5, "late": 0.5})
    fencing = await backend.fence(VM)
    for amount in (cu(4), cu(6), cu(4), cu(6), cu(4)):
        try:
            await resized(backend, amount, fencing)
        except BackendError:
            break
    on_way = json.loads(place.path.read_bytes())
    assert on_way["on_way"]
    place.virtual.now_s = 3.0
    seen = await place.open().observe(VM)
    assert seen.is_at_rest
    place.virtual.now_s = 5000.0
    assert (await place.open().observe(VM)).size == seen.size


@pytest.mark.parametrize(
    "content",
    [b"", b"[]", b"{}", b'{"generation": 1', b'{"size_cpu": 1}', b"\xff\xfe", b'{"surprise": 1}',
     {"target": {"vcpu_milli": 0, "memory_bytes": 5}}, {"generation": True}],
    ids=repr,
)  # fmt: skip
async def test_what_is_no_file_of_a_vm_is_refused(place: Place, content: bytes | dict[str, object]) -> None:
    """Nor one with a change that no VM can have."""
    backend = place.open()
    if isinstance(content, dict):
        content = json.dumps({**json.loads(place.path.read_bytes()), **content}).encode()
    place.path.write_bytes(content)
    with pytest.raises(BackendError, match="remove it"):
        await backend.observe(VM)


async def test_a_file_that_was_left_half_written_is_of_no_account(place: Place) -> None:
    backend = place.open()
    place.path.with_suffix(".new").write_text('{"gener')
    await resized(backend, cu(3), await backend.fence(VM))
    assert (await place.open().observe(VM)).target == cu(3)


async def test_a_directory_that_cannot_be_written_is_an_error_of_the_back_end(place: Place) -> None:
    backend = place.open()
    place.path.with_suffix(".new").mkdir()
    with pytest.raises(BackendError, match="cannot be written"):
        await backend.fence(VM)
