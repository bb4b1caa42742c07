"""`parley explain` names the cause in its first two lines, in every situation of the table (`situations.py`)."""

import re

import pytest

from parley.explain.core.evidence import CAUSE_ADVICE, advice_of
from tests.explain import plays_of_agents, plays_of_pools, plays_of_room, plays_of_two
from tests.explain.situations import SITUATIONS, Situation
from tests.support.virtual_time import virtually

MAX_LINES = 12
PLAYS = (plays_of_room, plays_of_pools, plays_of_agents, plays_of_two)
CODES = {each.code for each in SITUATIONS.values()}


def meaning_of(code: str) -> str:
    """The words of the first line for a code."""
    known = {each.value: advice for each, advice in CAUSE_ADVICE.items()}
    return (known.get(code) or advice_of(code)).meaning


@pytest.mark.parametrize("row", SITUATIONS.values(), ids=SITUATIONS)
def test_the_first_two_lines_name_the_cause(row: Situation) -> None:
    told: list[str] = []

    @virtually
    async def play() -> None:
        async with row.play() as stage:
            told.extend(await stage.lines())

    play()
    text = "\n".join(told)
    assert 2 <= len(told) <= MAX_LINES, text
    assert told[0].startswith("shop/web"), text
    assert told[0].endswith(f"({row.code})."), text
    assert row.missing(told) == [], text
    others = CODES - {row.code}
    assert [code for code in others if f"({code})" in told[0]] == []
    assert [code for code in others if meaning_of(code) in told[0]] == [], text


def test_the_table_is_no_shorter_than_what_is_promised() -> None:
    assert len(SITUATIONS) >= 50
    assert len(CODES) >= 30


def test_every_play_is_in_the_table() -> None:
    plays = [
        name
        for module in PLAYS
        for name, each in vars(module).items()
        if callable(each) and getattr(each, "__module__", "") == module.__name__ and not name.startswith("_")
    ]
    assert sorted(plays) == sorted(SITUATIONS)


def test_words_that_any_answer_has_are_no_proof() -> None:
    """The words that a row wants to read are not in the answer for a VM that lacks nothing."""
    content = SITUATIONS["it_has_what_it_wants"]
    told: list[str] = []

    @virtually
    async def play() -> None:
        async with content.play() as stage:
            told.extend(await stage.lines())

    play()
    empty = [row.name for row in SITUATIONS.values() if row is not content and not row.missing(told)]
    assert empty == []


def test_the_same_cause_by_another_name_is_told_apart() -> None:
    """Rows that share a code differ in what they want to read, where only one thing is wrong."""
    wanted = [(row.code, row.says) for row in SITUATIONS.values() if not hasattr(plays_of_two, row.name)]
    assert [each for each in wanted if wanted.count(each) > 1] == []


def test_expressions_are_well_formed() -> None:
    assert all(re.compile(each) for row in SITUATIONS.values() for each in row.says)
