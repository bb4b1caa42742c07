"""The runners follow the file: who comes, who is told of a change, who goes."""

import asyncio
import random
from collections.abc import AsyncIterator
from typing import Any, cast

import pytest

from agent.core.model import Vm
from agent.daemon.fleet import Fleet
from agent.daemon.settings import VmEntry
from agent.runner.runner import Runner
from hosting import logs
from hosting.supervisor import Supervisor


def entry(name: str, **changes: Any) -> VmEntry:
    fields: dict[str, Any] = {
        "namespace": "default",
        "name": name,
        "uid": f"uid-{name}",
        "informant": "http://127.0.0.1:10301",
        "min": {"cpu": 1, "memory": "1Gi"},
        "max": {"cpu": 4, "memory": "4Gi"},
        "computeUnit": {"cpu": 1, "memory": "1Gi"},
    }
    return VmEntry.model_validate(fields | changes)


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

    def change(self, vm: Vm) -> None:
        self.vm = vm
        self.notes.append(f"max {vm.bounds.max}")


class World:
    def __init__(self) -> None:
        rng = random.Random(1)
        self.prepared: list[str] = []
        self.puppets: list[Puppet] = []
        log = logs.logger("test")
        self.fleet = Fleet(
            self._make, lambda each: self.prepared.append(each.name), Supervisor(log, rng), log, rng
        )

    def _make(self, made: VmEntry) -> Runner:
        self.puppets.append(Puppet(made.vm()))
        return cast("Runner", self.puppets[-1])

    async def follow(self, *entries: VmEntry) -> None:
        await self.fleet.follow(entries)
        for _ in range(20):
            await asyncio.sleep(0.005)

    def notes(self) -> list[list[str]]:
        return [puppet.notes for puppet in self.puppets]


@pytest.fixture
async def world() -> AsyncIterator[World]:
    made = World()
    yield made
    await made.fleet.close()


async def test_each_vm_of_the_file_is_prepared_and_run_once(world: World) -> None:
    await world.follow(entry("a"), entry("b"))
    await world.follow(entry("a"), entry("b"))
    assert (world.prepared, world.notes()) == (["a", "b"], [["run"], ["run"]])
    assert [runner.vm.name for runner in world.fleet.runners()] == ["default/a", "default/b"]


async def test_one_that_goes_is_ended_and_says_good_bye(world: World) -> None:
    await world.follow(entry("a"), entry("b"))
    await world.follow(entry("b"))
    assert world.notes() == [["run", "ended", "goodbye"], ["run"]]
    assert world.fleet.find("default/a") is None


async def test_other_bounds_are_told_to_the_runner_that_lives(world: World) -> None:
    await world.follow(entry("a"))
    await world.follow(entry("a", max={"cpu": 8, "memory": "8Gi"}))
    assert world.notes() == [["run", "max 8 CPU / 8Gi"]]


@pytest.mark.parametrize("change", [{"uid": "uid-new"}, {"informant": "http://127.0.0.1:10302"}])
async def test_another_uid_or_informant_is_another_runner(world: World, change: dict[str, str]) -> None:
    await world.follow(entry("a"))
    await world.follow(entry("a", **change))
    assert world.notes() == [["run", "ended", "goodbye"], ["run"]]


async def test_one_that_was_never_started_is_ended_as_well(world: World) -> None:
    await world.fleet.follow([entry(f"vm-{number}") for number in range(200)])
    await world.fleet.follow([])
    assert world.fleet.runners() == []
    assert all("goodbye" in notes for notes in world.notes())


async def test_closing_ends_all(world: World) -> None:
    await world.follow(entry("a"), entry("b"))
    await world.fleet.close()
    assert world.notes() == [["run", "ended", "goodbye"]] * 2
