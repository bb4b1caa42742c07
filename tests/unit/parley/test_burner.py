"""The demo's load: when it starts, how growth is found, and what is said where there was none."""

from collections.abc import Sequence
from typing import Any

import pytest

from parley.children import CALM_S, PATIENCE_S, Burner, Maximum
from parley.observer import SizeChange
from protocol.values import Resources
from tests.unit.parley.top_documents import in_short, vm

GIB = 2**30


class Core:
    """A process that keeps a core busy."""

    def __init__(self) -> None:
        self.returncode: int | None = None

    def kill(self) -> None:
        self.returncode = -9

    async def wait(self) -> int:
        self.returncode = self.returncode or 0
        return self.returncode


class Stage:
    """A burner of ten seconds on a machine of two cores, and what it did."""

    def __init__(self) -> None:
        self.cores: list[Core] = []
        self.raises = 0
        self.sizes: list[SizeChange] = []
        self.burner = Burner(10, Maximum(2, 4), self._start, self._raise)

    async def _start(self) -> Sequence[Core]:
        self.cores = [Core(), Core()]
        return self.cores

    def _raise(self) -> None:
        self.raises += 1

    def has(self, at_s: float, cpus: int) -> None:
        """`this-machine` has a new size."""
        self.sizes.append(SizeChange(at_s, "demo/this-machine", Resources(cpus * 1000, cpus * GIB)))

    async def at(self, *times_s: float) -> None:
        for now_s in times_s:
            await self.burner.step(self.sizes, now_s)

    def figures(self, seen: dict[str, Any] | None = None) -> dict[str, Any]:
        return self.burner.figures(self.sizes, None if seen is None else in_short(seen))


async def test_a_calm_vm_grows_with_the_load_and_comes_back() -> None:
    stage = Stage()
    await stage.at(100)
    stage.has(100, 1)
    await stage.at(101, 100 + CALM_S)
    assert len(stage.cores) == 2
    stage.has(105.5, 2)
    await stage.at(108, 114)
    stage.has(120, 1)
    assert stage.figures() == {"growth_s": 1.5, "shrink_s": 6.0, "raised_to_cpu": None, "notes": []}
    assert stage.raises == 0


async def test_a_vm_at_its_maximum_is_given_room_and_that_is_said() -> None:
    stage = Stage()
    stage.has(100, 2)
    await stage.at(100, 110, 100 + PATIENCE_S - 1)
    assert (stage.cores, stage.burner.state(119)) == (
        [],
        "the load starts when this-machine is calm, or in 1 s",
    )
    await stage.at(100 + PATIENCE_S)
    assert stage.raises == 1
    stage.has(123, 4)
    await stage.at(125, 130)
    found = stage.figures(
        vm("this-machine", size={"cpu": "4", "memory": "4Gi"}, faults=[], reason="4.00 CPUs busy")
    )
    assert (found["growth_s"], found["shrink_s"], found["raised_to_cpu"]) == (3.0, None, 4)
    assert "had its maximum of 2 CPUs before the load began; its maximum was raised to 4" in found["notes"][0]
    assert found["notes"][1] == (
        "this-machine did not come back to its size before: it has 4/4Gi, and its last reason is: 4.00 CPUs busy"
    )


@pytest.mark.parametrize(
    ("until_s", "note"),
    [
        (3, "the demo ended before the load began"),
        (10, "this-machine did not grow: it has 1/1Gi, and its last reason is: node-headroom: full"),
        (30, "this-machine did not grow: it has 1/1Gi, and its last reason is: node-headroom: full"),
    ],
)
async def test_where_nothing_grew_it_says_why(until_s: float, note: str) -> None:
    stage = Stage()
    stage.has(0, 1)
    await stage.at(*range(int(until_s) + 1))
    seen = vm("this-machine", size={"cpu": "1", "memory": "1Gi"}, faults=[], reason="node-headroom: full")
    found = stage.figures(seen)
    assert found["growth_s"] is None
    assert [each.partition(":")[0] for each in found["notes"]] == [note.partition(":")[0]]
    assert found["notes"][0].startswith(note)


async def test_a_demo_that_ends_within_the_load_ends_it_and_says_so() -> None:
    stage = Stage()
    stage.has(0, 1)
    await stage.at(1, 5)
    stage.has(6, 2)
    await stage.burner.stop()
    assert [core.returncode for core in stage.cores] == [-9, -9]
    assert stage.figures()["notes"] == ["the demo ended before the load did"]
