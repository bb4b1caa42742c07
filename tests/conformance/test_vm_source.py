"""One suite for every `VmSource`: what the agent relies on, wherever it learns of its VMs. And proof that it can fail.

Another adapter needs a plant only: a way to change its VMs, and to make it unusable for a while.
"""

import asyncio
import json
from collections.abc import Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol
from unittest import mock

import pytest

from agent.core.ports import VmChange, VmRemoved, VmSource, VmSourceError
from agent.sources.file import FileSource, VmList
from agent.sources.kubernetes import KubernetesSource, Stores
from hosting import logs, threads, watched_file
from hosting.kubernetes.resources import Manifest
from tests.support.manifests import node_manifest, pod_manifest
from tests.support.virtual_time import VirtualLoop

PATIENCE_S = 30.0
"""In virtual time: what has changed is told within it."""


Vms = dict[str, tuple[str, int]]
"""The UID and the CPUs of each VM's maximum, by name; in GiB of memory, too."""


class Plant(Protocol):
    """A source, and a way to change its VMs. It begins with the VM `a`, its UID `1` and its maximum 4."""

    @property
    def source(self) -> VmSource:
        """The source under test."""

    def show(self, vms: Vms) -> None:
        """The VMs are these from now on; the source is usable."""

    def fail(self) -> None:
        """The source is unusable from now on."""


class FilePlant:
    """A settings file. It becomes unusable by what `spoiled` says, or goes where that is None."""

    def __init__(self, path: Path, spoiled: str | None, kind: type[FileSource[VmList]]) -> None:
        self._path = path
        self._spoiled = spoiled
        first = VmList.model_validate(self._document({"a": ("1", 4)}))
        self.source: VmSource = kind(path, first, logs.logger("test"))
        self.show({"a": ("1", 4)})

    def _document(self, vms: Vms) -> dict[str, Any]:
        unit = {"cpu": 1, "memory": "1Gi"}
        same = {"namespace": "default", "informant": "http://127.0.0.1:1", "min": unit, "computeUnit": unit}
        largest = {name: {"cpu": most, "memory": f"{most}Gi"} for name, (_, most) in vms.items()}
        return {"vms": [same | {"name": name, "uid": vms[name][0], "max": largest[name]} for name in vms]}

    def show(self, vms: Vms) -> None:
        self._path.write_text(json.dumps(self._document(vms)))

    def fail(self) -> None:
        if self._spoiled is None:
            self._path.unlink()
        else:
            self._path.write_text(self._spoiled)


@dataclass
class MemoryStore:
    """A store as a reflector keeps it."""

    kept: dict[tuple[str, str], Manifest]
    fault: str = ""

    def objects(self) -> dict[tuple[str, str], Manifest]:
        return self.kept

    async def synced(self) -> None:
        """It is full from the start."""


class KubernetesPlant:
    """Pods of a node, in stores. What a real reflector does with faults is told by its own tests."""

    def __init__(self) -> None:
        self._pods = MemoryStore({})
        node = MemoryStore({("", "node-1"): node_manifest("node-1", "16", "64Gi")})
        stores = Stores(self._pods, node, MemoryStore({}))
        self.source = KubernetesSource("node-1", stores, "http://127.0.0.1:10302", lambda *_: {})
        self.show({"a": ("1", 4)})

    def show(self, vms: Vms) -> None:
        self._pods.fault = ""
        self._pods.kept = {
            ("default", name): pod_manifest(
                name,
                uid=uid,
                annotations={"parley.dev/bounds": json.dumps({"max": {"cpu": most, "memory": f"{most}Gi"}})},
            )
            for name, (uid, most) in vms.items()
        }
        self.source.note_change()

    def fail(self) -> None:
        self._pods.fault = "the API server does not answer"
        self.source.note_change()


Clause = Callable[[Plant], Coroutine[Any, Any, None]]
Tell = Callable[[tuple[VmChange, ...]], tuple[VmChange, ...]]


def told(changes: tuple[VmChange, ...]) -> list[tuple[str, ...]]:
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


def run(clause: Clause, plant: Callable[[], Plant]) -> None:
    def at_once(call: Callable[[], Any]) -> asyncio.Future[Any]:
        done = asyncio.get_running_loop().create_future()
        try:
            done.set_result(call())
        except Exception as error:  # noqa: BLE001 - raised where the outcome is awaited
            done.set_exception(error)
        return done

    async def planted() -> None:
        await clause(plant())

    # A thread would know nothing of the virtual clock.
    with (
        mock.patch.object(watched_file, "in_own_thread", at_once),
        mock.patch.object(threads, "in_own_thread", at_once),
        asyncio.Runner(loop_factory=VirtualLoop) as runner,
    ):
        runner.run(planted())


@pytest.mark.parametrize("clause", CLAUSES, ids=lambda clause: clause.__name__)
@pytest.mark.parametrize("spoiled", [None, "colour: red"], ids=["gone", "faulty"])
def test_the_file_keeps(clause: Clause, spoiled: str | None, tmp_path: Path) -> None:
    run(clause, lambda: FilePlant(tmp_path / "agent.yaml", spoiled, FileSource))


@pytest.mark.parametrize("clause", CLAUSES, ids=lambda clause: clause.__name__)
def test_the_pods_of_a_node_keep(clause: Clause) -> None:
    run(clause, KubernetesPlant)


@pytest.mark.parametrize(("clause", "tell"), MUTANTS, ids=lambda each: each.__name__)
def test_the_suite_catches(clause: Clause, tell: Tell, tmp_path: Path) -> None:
    with pytest.raises(AssertionError):
        run(clause, lambda: FilePlant(tmp_path / "agent.yaml", None, broken(tell)))
