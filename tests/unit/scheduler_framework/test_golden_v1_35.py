"""The modern scheduling framework, as it was recorded from the published package (1.35.4), case by case.

Where ours differs, `DEVIATIONS` says why and what ours does; an entry that is not needed any more fails the test.
"""

from typing import Any, Final

import pytest

from tests.support.virtual_time import virtually
from tests.unit.scheduler_framework.deviations_v1_35 import DEVIATIONS
from tests.unit.scheduler_framework.players_v1_35 import PANIC, PLAYERS, Outcome
from tests.unit.scheduler_framework.scripted import Case, recorded

CASES: Final = recorded("framework-v1.35.jsonl")


def compared(outcome: Outcome) -> dict[str, Any]:
    """An outcome without the texts of panics, which are free."""
    is_panic = {key for key, value in outcome.items() if key == "panic" or str(value).startswith(PANIC)}
    return {key: PANIC if key in is_panic else value for key, value in outcome.items()}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
@virtually
async def test_the_recorded_case(case: Case) -> None:
    seen = compared(await PLAYERS[case["kind"]](case["input"]))
    expected = compared(case["expect"])
    if case["id"] in DEVIATIONS:
        assert seen != expected, "ours does as was recorded: the deviation is not needed"
        expected = DEVIATIONS[case["id"]].ours(expected)
    assert seen == expected, case.get("note")


def test_every_deviation_is_of_a_recorded_case() -> None:
    assert DEVIATIONS.keys() <= CASES.keys()
