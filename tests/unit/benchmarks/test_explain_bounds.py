"""The benchmark of explanations holds the programs to its bounds, and its reader asks at the pace of the live page."""

import asyncio
import importlib.resources
import itertools
from typing import Any

import pytest

from benchmarks.explain import (
    GAP_S,
    MOST_SLOWDOWN_IN_SHORT_PERCENT,
    MOST_SLOWDOWN_PERCENT,
    NODES_S,
    PAGE,
    ROUND_S,
    PageReader,
    are_bounds_kept,
)
from tests.support.virtual_time import now_s, virtually

CASES = [
    (6.0, 9.9, True, True),
    (6.0, 10.0, False, True),
    (6.0, 29.9, False, True),
    (6.0, 30.0, False, False),
    (6.0, -3.0, True, True),
    (49.9, 0.0, True, True),
    (50.0, 0.0, False, False),
    (None, 0.0, False, False),
]


@pytest.mark.parametrize(("p99_ms", "slowdown_percent", "in_full", "in_short"), CASES)
def test_a_short_run_judges_both_bounds_and_the_slowdown_more_mildly(
    p99_ms: float | None, slowdown_percent: float, in_full: bool, in_short: bool
) -> None:
    assert are_bounds_kept(p99_ms, slowdown_percent, MOST_SLOWDOWN_PERCENT) is in_full
    assert are_bounds_kept(p99_ms, slowdown_percent, MOST_SLOWDOWN_IN_SHORT_PERCENT) is in_short


PAGES = 4


class Scheduler:
    """Answers a page at once; the state has four pages, which are named by their numbers. `asked` is when which page was asked for."""

    def __init__(self) -> None:
        self.asked: list[tuple[float, str]] = []

    async def read(self, path: str) -> Any:
        self.asked.append((now_s(), path))
        number = int(path.partition("continue=")[2] or 1)
        return {"next": 7, "continue": str(number + 1) if number < PAGES else None}

    def states(self) -> list[tuple[float, int]]:
        return [
            (round(at_s, 3), int(path.partition("continue=")[2] or 1))
            for at_s, path in self.asked
            if path.startswith("/v1/state?")
        ]


async def _asking(reader: PageReader, seconds: float) -> None:
    task = asyncio.create_task(reader.run())
    await asyncio.sleep(seconds)
    task.cancel()


@virtually
async def test_a_page_of_the_state_is_read_every_second_and_the_next_one_in_the_next_round() -> None:
    scheduler = Scheduler()
    reader, began_s = PageReader(scheduler.read), now_s()
    await _asking(reader, 1.5)
    await _asking(reader, 1.5)
    assert scheduler.states() == [
        (began_s + at_s, page) for at_s, page in ((0, 1), (1, 2), (1.5, 3), (2.5, 4))
    ]
    assert [path for at_s, path in scheduler.asked if at_s == began_s] == [
        f"/v1/decisions?after=0&limit={PAGE}",
        f"/v1/state?kind=vm&limit={PAGE}",
        "/v1/nodes",
    ]


@virtually
async def test_a_page_that_is_loaded_reads_the_whole_state_without_rest() -> None:
    scheduler = Scheduler()
    reader = PageReader(scheduler.read)
    await _asking(reader, 1.5)
    reader.load()
    scheduler.asked.clear()
    await _asking(reader, 1.9)
    moments, pages = zip(*scheduler.states(), strict=True)
    assert pages == (1, 2, 3, 4, 1)
    rests = [after - before for before, after in itertools.pairwise(moments)]
    assert rests == pytest.approx([GAP_S, GAP_S, GAP_S, ROUND_S])
    assert (reader.is_loaded, reader.pages_of_load) == (True, PAGES)


def test_its_reader_has_the_pace_of_the_live_page() -> None:
    page = importlib.resources.files("scheduler.page").joinpath("page.html").read_text()
    for name, seconds in (("ROUND_MS", ROUND_S), ("GAP_MS", GAP_S), ("NODES_MS", NODES_S)):
        assert f"{name} = {seconds * 1000:g}" in page
    assert f"PAGE = {PAGE};" in page
