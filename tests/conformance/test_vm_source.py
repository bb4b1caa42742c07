"""One suite for every `VmSource`: what the agent relies on, wherever it learns of its VMs. And proof that it can fail.

Another adapter needs a plant only: a way to change its VMs, and to make it unusable for a while.
"""

import asyncio
import json
from collections.abc import Callable, Coroutine
from contextlib import suppress
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from agent.core.ports import VmChange, VmRemoved, VmSource, VmSourceError
from agent.sources.file import FileSource, VmList
from hosting import logs, threads, watched_file
from tests.support.virtual_time import VirtualLoop

PATIENCE_S = 30.0
"""In virtual time: what has changed is told within it."""


class Plant:
    """A settings file. It becomes unusable by what `spoiled` says, or goes where that is None."""

    def __init__(self, path: Path, spoiled: str | None, kind: type[FileSource[VmList]]) -> None:
        self._path = path
        self._spoiled = spoiled
        first = VmList.model_validate(self._document({"a": ("1", 4)}))
        self.source: VmSource = kind(path, first, logs.logger("test"))
        self.show({"a": ("1", 4)})

    def _document(self, vms: dict[str, tuple[str, int]]) -> dict[str, Any]:
        unit = {"cpu": 1, "memory": "1Gi"}
        same = {"namespace": "default", "informant": "http://127.0.0.1:1", "min": unit, "computeUnit": unit}
        largest = {name: {"cpu": most, "memory": f"{most}Gi"} for name, (_, most) in vms.items()}
        return {"vms": [same | {"name": name, "uid": vms[name][0], "max": largest[name]} for name in vms]}

    def show(self, vms: dict[str, tuple[str, int]]) -> None:
        self._path.write_text(json.dumps(self._document(vms)))

    def fail(self) -> None:
        if self._spoiled is None:
            self._path.unlink()
        else:
            self._path.write_text(self._spoiled)


Clause = Callable[[Plant], Coroutine[Any, Any, None]]
Tell = Callable[[tuple[VmChange, ...]], tuple[VmChange, ...]]


def told(changes: tuple[VmChange, ...]) -> list[tuple[str, ...]]:
    """Changes as names, UIDs and maxima."""
    return [
        (change.name,)
        if isinstance(change, VmRemoved)
        else (change.spec.vm.name, change.spec.vm.pod_uid, str(change.spec.vm.bounds.max.vcpu_milli))
        for change in changes
    ]


A4, A8, B4 = ("default/a", "1", "4000"), ("default/a", "1", "8000"), ("default/b", "2", "4000")


async def next_of(plant: Plant) -> list[tuple[str, ...]]:
    async with asyncio.timeout(PATIENCE_S):
        return told(await plant.source.changes())


async def nothing_more(plant: Plant) -> None:
    with pytest.raises(TimeoutError):
        await next_of(plant)


async def the_first_call_tells_every_vm_and_the_next_one_waits(plant: Plant) -> None:
    assert await next_of(plant) == [A4]
    await nothing_more(plant)


async def a_change_is_told_once(plant: Plant) -> None:
    await next_of(plant)
    plant.show({"a": ("1", 8), "b": ("2", 4)})
    assert await next_of(plant) == [A8, B4]
    await nothing_more(plant)


async def a_vm_that_goes_is_removed(plant: Plant) -> None:
    await next_of(plant)
    plant.show({"b": ("2", 4)})
    assert await next_of(plant) == [("default/a",), B4]


async def the_end_of_a_vm_is_told_before_the_one_made_anew(plant: Plant) -> None:
    await next_of(plant)
    plant.show({"a": ("9", 4)})
    assert await next_of(plant) == [("default/a",), ("default/a", "9", "4000")]


async def a_cancelled_call_takes_no_change_with_it(plant: Plant) -> None:
    await next_of(plant)
    call = asyncio.create_task(plant.source.changes())
    await asyncio.sleep(0.5)
    plant.show({"a": ("1", 8)})
    call.cancel()
    with suppress(asyncio.CancelledError):
        await call
    assert await next_of(plant) == [A8]


async def what_was_told_stays_while_the_source_is_unusable(plant: Plant) -> None:
    await next_of(plant)
    plant.fail()
    for _ in range(2):  # again and again, each after a while
        with pytest.raises(VmSourceError, match=r"\w"):
            await next_of(plant)
    plant.show({"a": ("1", 4)})
    assert await next_of(plant) == [], "usable again, which is told at once"
    plant.fail()
    with pytest.raises(VmSourceError):
        await next_of(plant)
    plant.show({"b": ("2", 4)})
    assert await next_of(plant) == [("default/a",), B4]


CLAUSES = (
    the_first_call_tells_every_vm_and_the_next_one_waits,
    a_change_is_told_once,
    a_vm_that_goes_is_removed,
    the_end_of_a_vm_is_told_before_the_one_made_anew,
    a_cancelled_call_takes_no_change_with_it,
    what_was_told_stays_while_the_source_is_unusable,
)


def broken(tell: Tell) -> type[FileSource[VmList]]:
    """A source that tells its changes otherwise."""

    class Broken(FileSource[VmList]):
        def _news(self, read: VmList) -> tuple[VmChange, ...]:
            return tell(super()._news(read))

    return Broken


MUTANTS: tuple[tuple[Clause, Tell], ...] = (
    (a_vm_that_goes_is_removed, lambda news: tuple(each for each in news if not isinstance(each, VmRemoved))),
    (the_end_of_a_vm_is_told_before_the_one_made_anew, lambda news: news[::-1]),
    (a_change_is_told_once, lambda news: news + news),
    (what_was_told_stays_while_the_source_is_unusable, lambda _: ()),
)


def run(clause: Clause, path: Path, spoiled: str | None, kind: type[FileSource[VmList]] = FileSource) -> None:
    def at_once(call: Callable[[], Any]) -> asyncio.Future[Any]:
        done = asyncio.get_running_loop().create_future()
        try:
            done.set_result(call())
        except Exception as error:  # noqa: BLE001 - raised where the outcome is awaited
            done.set_exception(error)
        return done

    # A thread would know nothing of the virtual clock.
    with (
        mock.patch.object(watched_file, "in_own_thread", at_once),
        mock.patch.object(threads, "in_own_thread", at_once),
        asyncio.Runner(loop_factory=VirtualLoop) as runner,
    ):
        runner.run(clause(Plant(path / "agent.yaml", spoiled, kind)))


@pytest.mark.parametrize("clause", CLAUSES, ids=lambda clause: clause.__name__)
@pytest.mark.parametrize("spoiled", [None, "colour: red"], ids=["gone", "faulty"])
def test_the_file_keeps(clause: Clause, spoiled: str | None, tmp_path: Path) -> None:
    run(clause, tmp_path, spoiled)


@pytest.mark.parametrize(("clause", "tell"), MUTANTS, ids=lambda each: each.__name__)
def test_the_suite_catches(clause: Clause, tell: Tell, tmp_path: Path) -> None:
    with pytest.raises(AssertionError):
        run(clause, tmp_path, None, broken(tell))
