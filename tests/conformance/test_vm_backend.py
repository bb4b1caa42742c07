"""One suite for every `VmBackend`: what a runner relies on, whatever resizes the VM."""

import asyncio
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from agent.backends.change_log import FILE_NAME, ChangeLog
from agent.backends.simulated import SimulatedBackend
from agent.core.model import Observation, Vm
from agent.core.ports import BackendError, VmBackend
from protocol.values import ZERO, Bounds, Resources
from protocol.wire import PodName
from tests.unit.agent.driver import UNIT, VM, cu

ABSENT = Vm(PodName("absent", "default"), "uid-b", Bounds(UNIT, UNIT * 8), UNIT, VM.slot_bytes)


@dataclass(frozen=True, slots=True)
class Plant:
    """A place with VMs that outlive back ends: `open` makes a new back end over it, `spoil` makes the VM unreadable."""

    open: Callable[[], VmBackend]
    spoil: Callable[[], None]
    log_lines: Callable[[], list[dict[str, Any]]]


def _simulated(delay_s: float) -> Callable[[Path], Iterator[Plant]]:
    def make(directory: Path) -> Iterator[Plant]:
        with ChangeLog(directory, "node-a") as log:

            def opened() -> VmBackend:
                backend = SimulatedBackend(directory, log, delay_s)
                backend.create(VM, cu(2))
                return backend

            def spoil() -> None:
                (path,) = (directory / "vms").glob("*.json")
                path.write_text('{"generation": 1')

            def lines() -> list[dict[str, Any]]:
                return [json.loads(line) for line in (directory / FILE_NAME).read_text().splitlines()]

            yield Plant(opened, spoil, lines)

    return make


PLANTS = {"simulated at once": _simulated(0.0), "simulated with delay": _simulated(0.02)}


@pytest.fixture(params=list(PLANTS))
def plant(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Plant]:
    yield from PLANTS[request.param](tmp_path)


async def _rest(backend: VmBackend) -> Observation:
    """The VM when it has reached its target."""
    for _ in range(500):
        seen = await backend.observe(VM)
        if seen.is_at_rest:
            return seen
        await asyncio.sleep(0.005)
    raise AssertionError("it never reaches its target")


async def test_a_fence_may_be_repeated_and_raises_the_generation(plant: Plant) -> None:
    backend = plant.open()
    first, second = await backend.fence(VM), await backend.fence(VM)
    assert second.generation > first.generation
    await backend.resize(VM, cu(3), second)


async def test_a_fence_changes_neither_size_nor_target(plant: Plant) -> None:
    backend = plant.open()
    await backend.resize(VM, cu(3), await backend.fence(VM))
    await backend.fence(VM)
    assert (await backend.observe(VM)).target == cu(3)
    assert (await _rest(backend)).size == cu(3)


async def test_a_command_of_an_earlier_life_is_refused(plant: Plant) -> None:
    old = plant.open()
    fencing = await old.fence(VM)
    new = plant.open()
    await new.fence(VM)
    for target in (cu(2), cu(3)):
        with pytest.raises(BackendError, match="fenced off"):
            await old.resize(VM, target, fencing)
    assert (await new.observe(VM)).target == cu(2)


async def test_the_target_is_visible_at_once_and_the_size_follows(plant: Plant) -> None:
    backend = plant.open()
    fencing = await backend.fence(VM)
    for target in (cu(4), cu(1), cu(3, 2), cu(2, 3)):
        await backend.resize(VM, target, fencing)
        assert (await backend.observe(VM)).target == target
        assert (await _rest(backend)).size == target


async def test_repeating_a_resize_changes_nothing(plant: Plant) -> None:
    backend = plant.open()
    fencing = await backend.fence(VM)
    await backend.resize(VM, cu(4), fencing)
    await backend.resize(VM, cu(4), fencing)
    await _rest(backend)
    before = plant.log_lines()
    await backend.resize(VM, cu(4), fencing)
    assert (await _rest(backend)).size == cu(4)
    assert plant.log_lines() == before


async def test_after_a_replacement_the_size_stays_within_the_size_and_the_new_target(plant: Plant) -> None:
    backend = plant.open()
    fencing = await backend.fence(VM)
    await backend.resize(VM, cu(8), fencing)
    await backend.resize(VM, cu(3), fencing)
    first = await backend.observe(VM)
    for _ in range(10):
        seen = await backend.observe(VM)
        assert seen.size.fits_in(first.size.max(cu(3)))
        await asyncio.sleep(0.005)
    assert (await _rest(backend)).size == cu(3)


async def test_vms_and_targets_outlive_the_back_end(plant: Plant) -> None:
    backend = plant.open()
    await backend.resize(VM, cu(5), await backend.fence(VM))
    del backend
    again = plant.open()
    assert (await again.observe(VM)).target == cu(5)
    assert (await _rest(again)).size == cu(5)


async def test_a_generation_outlives_the_back_end(plant: Plant) -> None:
    first = await plant.open().fence(VM)
    assert (await plant.open().fence(VM)).generation > first.generation


async def test_an_unknown_vm_is_an_error_of_the_back_end(plant: Plant) -> None:
    backend = plant.open()
    fencing = await backend.fence(VM)
    with pytest.raises(BackendError):
        await backend.fence(ABSENT)
    with pytest.raises(BackendError):
        await backend.observe(ABSENT)
    with pytest.raises(BackendError):
        await backend.resize(ABSENT, cu(2), fencing)


async def test_a_vm_that_cannot_be_read_is_an_error_of_the_back_end(plant: Plant) -> None:
    backend = plant.open()
    fencing = await backend.fence(VM)
    plant.spoil()
    with pytest.raises(BackendError):
        await backend.observe(VM)
    with pytest.raises(BackendError):
        await backend.resize(VM, cu(3), fencing)


@pytest.mark.parametrize("target", [ZERO, Resources(0, 1), Resources(1, 0), Resources(-1, 1)], ids=str)
async def test_a_target_of_nothing_is_refused(plant: Plant, target: Resources) -> None:
    backend = plant.open()
    fencing = await backend.fence(VM)
    with pytest.raises(BackendError):
        await backend.resize(VM, target, fencing)
    assert (await backend.observe(VM)).target == cu(2)


async def test_observations_carry_the_moment_at_which_the_look_began(plant: Plant) -> None:
    backend = plant.open()
    first, second = await backend.observe(VM), await backend.observe(VM)
    assert second.begun_s >= first.begun_s > 0


def test_capabilities_never_change(plant: Plant) -> None:
    backend = plant.open()
    assert backend.capabilities == plant.open().capabilities
    assert backend.capabilities.command_deadline_s >= 0


async def test_the_log_never_shows_less_than_the_vm_may_have(plant: Plant) -> None:
    """Folded line by line, the log is at or above the truth after every command and every look."""
    backend = plant.open()
    fencing = await backend.fence(VM)
    for target in (cu(4), cu(2), cu(3, 1), cu(1, 3), cu(8), cu(5)):
        await backend.resize(VM, target, fencing)
        for _ in range(3):
            seen = await backend.observe(VM)
            logged = {line["kind"]: Resources(line["cpu"], line["memory"]) for line in plant.log_lines()}
            assert seen.size.fits_in(logged["size"])
            assert seen.target.fits_in(logged.get("target", cu(2)))
            await asyncio.sleep(0.01)
        seen = await _rest(backend)
        logged = {line["kind"]: Resources(line["cpu"], line["memory"]) for line in plant.log_lines()}
        assert (logged["size"], logged["target"]) == (seen.size, seen.target)


async def test_a_raise_is_logged_before_the_fact_and_a_lowering_after_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    order: list[str] = []
    with ChangeLog(tmp_path, "node-a") as log:
        backend = SimulatedBackend(tmp_path, log, 0.0)
        backend.create(VM, cu(2))
        fencing = await backend.fence(VM)
        write, target, size = backend._write, log.target, log.size

        def recorded(name: str, inner: Callable[..., None]) -> Callable[..., None]:
            def call(*arguments: object) -> None:
                order.append(name)
                inner(*arguments)

            return call

        monkeypatch.setattr(backend, "_write", recorded("fact", write))
        monkeypatch.setattr(log, "target", recorded("target", target))
        monkeypatch.setattr(log, "size", recorded("size", size))
        await backend.resize(VM, cu(3), fencing)
        await backend.observe(VM)
        assert order == ["target", "fact", "size", "fact"]
        order.clear()
        await backend.resize(VM, cu(2), fencing)
        await backend.observe(VM)
        assert order == ["fact", "target", "fact", "size"]
        order.clear()
        await backend.resize(VM, cu(3, 1), fencing)
        await backend.observe(VM)
        assert order == ["target", "fact", "target", "size", "fact", "size"]
