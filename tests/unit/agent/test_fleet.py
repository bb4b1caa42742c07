"""The runners follow the source: who comes, who is told of a change, who goes."""

import asyncio
import dataclasses
import random
from typing import Any, cast

import pytest
from msgspec.structs import replace

from agent.backends.factories import InstalledBackend, Machines
from agent.core.model import Vm
from agent.core.ports import BackendError, VmBackend, VmDescribed, VmDescription, VmRemoved
from agent.daemon.fleet import Fleet
from agent.runner.runner import Runner
from hosting import logs
from hosting.supervisor import Supervisor
from protocol.values import Bounds, ComputeUnit
from protocol.wire import PodName
from tests.support.amounts import GIB, UNIT, cu
from tests.support.virtual_time import virtually


def spec(name: str, most: int = 4, **changes: Any) -> VmDescription:
    uid = changes.pop("uid", f"uid-{name}")
    vm = Vm(PodName(name, "default"), uid, Bounds(UNIT, cu(most)), ComputeUnit(UNIT), GIB)
    return dataclasses.replace(VmDescription(vm, "http://127.0.0.1:10301"), **changes)


class Puppet:
    """A runner that notes what becomes of it."""

    def __init__(self, vm: Vm) -> None:
        self.vm = vm
        self.notes: list[str] = []

    async def run(self) -> None:
        self.notes.append("run")
        try:
            await asyncio.Event().wait()
        finally:
            self.notes.append("ended")

    async def goodbye(self, _deadline_s: float) -> None:
        self.notes.append("goodbye")

    def look_now(self) -> None:
        self.notes.append("look")

    def change(self, vm: Vm) -> None:
        self.vm = vm
        self.notes.append(f"max {vm.bounds.max}")


class World:
    def __init__(self) -> None:
        rng = random.Random(1)
        self.prepared: list[str] = []
        self.forgotten: list[str] = []
        self.fails: set[str] = set()
        self.puppets: list[Puppet] = []
        log = logs.logger("test")
        installed = InstalledBackend(cast("VmBackend", None), self._prepare, cast("Machines", self))
        self.fleet = Fleet(self._make, self._vm_of, installed, Supervisor(log, rng), log, rng)

    def _make(self, made: VmDescription) -> Runner:
        self.puppets.append(Puppet(made.vm))
        return cast("Runner", self.puppets[-1])

    @staticmethod
    def _vm_of(made: VmDescription) -> Vm:
        """The VM with its annotations, which lower its maximum to 6."""
        return replace(made.vm, bounds=Bounds(UNIT, made.vm.bounds.max.min(cu(6))))

    def _prepare(self, made: VmDescription) -> None:
        if made.vm.pod.name in self.fails:
            raise BackendError("cannot be read")
        self.prepared.append(made.vm.pod.name)

    async def tell(self, *changes: VmDescription | str) -> None:
        """A source tells of VMs, and of names that are gone."""
        await self.fleet.apply(
            VmRemoved(f"default/{each}") if isinstance(each, str) else VmDescribed(each) for each in changes
        )
        await asyncio.sleep(1.0)

    async def forget(self, name: str) -> None:
        """As the back end's `Machines`."""
        self.forgotten.append(name)

    def notes(self) -> list[list[str]]:
        return [puppet.notes for puppet in self.puppets]


@virtually
async def test_each_vm_is_prepared_and_run_once_told_of_other_bounds_and_ended_when_it_goes() -> None:
    world = World()
    await world.tell(spec("a"), spec("b"))
    await world.tell(spec("a"))
    assert (world.prepared, world.notes()) == (["a", "b"], [["run"], ["run"]])
    assert [runner.vm.name for runner in world.fleet.runners()] == ["default/a", "default/b"]
    await world.tell(spec("b", most=8))
    await world.tell("a", "never-seen")
    assert world.notes() == [["run", "ended", "goodbye"], ["run", "max 6 CPU / 6Gi"]]
    assert world.fleet.find("default/a") is None
    await world.fleet.close()
    assert world.notes()[1][2:] == ["ended", "goodbye"]


@pytest.mark.parametrize(
    "change",
    [
        {"uid": "uid-new"},
        {"informant_url": "http://h:1"},
        {"annotations": {"a": "b"}},
        {"qmp": "/a"},
        {"secret_file": "/a"},
    ],
)
@virtually
async def test_another_uid_way_or_annotation_gets_another_runner(
    change: dict[str, Any],
) -> None:
    world = World()
    await world.tell(spec("a"))
    await world.tell(spec("a", **change))
    assert world.notes() == [["run", "ended", "goodbye"], ["run"]]
    assert world.forgotten == ["default/a"], "the back end begins anew as well"
    await world.fleet.close()


@virtually
async def test_a_vm_that_cannot_be_prepared_is_tried_again_with_the_next_change() -> None:
    world = World()
    world.fails = {"a"}
    with pytest.raises(BackendError):
        await world.tell(spec("a"))
    assert world.fleet.runners() == []
    world.fails = set()
    await world.tell()
    assert world.notes() == [["run"]]
    await world.fleet.close()


@virtually
async def test_a_runner_that_was_never_started_is_ended_as_well() -> None:
    world = World()
    names = [f"vm-{number}" for number in range(200)]
    await world.fleet.apply(VmDescribed(spec(name)) for name in names)
    await world.tell(*names)
    assert world.fleet.runners() == []
    assert all("goodbye" in notes for notes in world.notes())
    await world.fleet.close()


@virtually
async def test_the_runner_of_a_vm_that_has_moved_looks_and_nobody_minds_a_vm_that_has_gone() -> None:
    world = World()
    await world.tell(spec("a"), spec("b"))
    world.fleet.moved("default/b")
    world.fleet.moved("default/gone")
    assert world.notes() == [["run"], ["run", "look"]]
    await world.fleet.close()


@virtually
async def test_a_container_that_ends_or_starts_is_a_reason_to_look_and_makes_no_other_vm() -> None:
    world = World()
    await world.fleet.apply((VmDescribed(spec("a", containers=("main 1 running",))),))
    await asyncio.sleep(0.1)
    (puppet,) = world.puppets
    await world.fleet.apply((VmDescribed(spec("a", containers=("main 1 terminated",))),))
    assert puppet.notes == ["run", "look"]
    await world.fleet.close()
