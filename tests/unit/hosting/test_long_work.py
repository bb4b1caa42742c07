"""Long work of the loop goes in slices: others run in between, and of all that is under way one slice in each turn."""

import asyncio
import gc
from collections.abc import Generator

import pytest

from hosting import long_work
from hosting.long_work import LongWork, without_collections

STEPS = 5


def steps(name: str, told: list[str]) -> Generator[None, None, str]:
    for number in range(STEPS):
        told.append(f"{name}{number}")
        yield
    return name


def counted(told: list[str], *, turns: int) -> asyncio.Task[None]:
    """Notes each turn of the loop."""

    async def count() -> None:
        for number in range(turns):
            told.append(f"turn {number}")
            await asyncio.sleep(0)

    return asyncio.create_task(count())


async def test_others_run_between_slices_and_the_result_is_that_of_the_work(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(long_work, "SLICE_S", 0.0)
    told: list[str] = []
    task = counted(told, turns=STEPS)
    assert await LongWork().run(steps("a", told)) == "a"
    await task
    assert told[: 2 * STEPS : 2] == [f"a{number}" for number in range(STEPS)]
    assert told[1 : 2 * STEPS : 2] == [f"turn {number}" for number in range(STEPS)]


async def test_work_that_is_short_is_done_in_one_slice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(long_work, "SLICE_S", 60.0)
    told: list[str] = []
    task = counted(told, turns=1)
    await LongWork().run(steps("a", told))
    assert told == [f"a{number}" for number in range(STEPS)]
    await task


async def test_in_a_turn_of_the_loop_there_is_one_slice_of_all_work(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(long_work, "SLICE_S", 0.0)
    told: list[str] = []
    work = LongWork()
    names = "abc"
    task = counted(told, turns=3 * STEPS * len(names))
    assert await asyncio.gather(*(work.run(steps(name, told)) for name in names)) == list(names)
    await task
    slices = [0]
    for each in told:
        slices = [*slices, 0] if each.startswith("turn") else [*slices[:-1], slices[-1] + 1]
    assert max(slices) <= 2, "the loop may run the task that counts last in one turn, and first in the next"
    assert sum(slices) == STEPS * len(names)


async def test_a_fault_of_the_work_is_raised_and_holds_nobody_up() -> None:
    def failing() -> Generator[None, None, None]:
        yield
        raise ValueError("no")

    work = LongWork()
    with pytest.raises(ValueError, match="no"):
        await work.run(failing())
    assert await work.run(steps("a", [])) == "a"


def test_the_collector_is_off_until_the_last_user_has_ended() -> None:
    assert gc.isenabled()
    with without_collections():
        with without_collections():
            assert not gc.isenabled()
        assert not gc.isenabled()
    assert gc.isenabled()
