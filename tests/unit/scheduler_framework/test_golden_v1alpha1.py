"""The early scheduling framework, as it was recorded from the published package (1.15.0-beta.0 and 1.15.0), case by case.

Where ours differs, `DEVIATIONS` says why and what ours does; an entry that is not needed any more fails the test.
"""

import pytest

from tests.support.virtual_time import virtually
from tests.unit.scheduler_framework.deviations_v1alpha1 import DEVIATIONS
from tests.unit.scheduler_framework.players_v1alpha1 import PLAYERS, Outcome
from tests.unit.scheduler_framework.scripted import Case, recorded

CASES = recorded("framework-v1alpha1.jsonl")


def differences(seen: Outcome, expected: Outcome) -> dict[str, tuple[object, object]]:
    """What was seen and what was expected, where they differ; as `golden/framework.md` says what must be equal."""
    found = {}
    for key, wanted in expected.items():
        value = seen.get(key.removesuffix("_one_of"))
        match key:
            case "panic" | "panic_one_of" | "text":
                ok = value is not None  # the text is free
            case "factories_run_sorted" if expected.get("error") is not None:
                ok = True  # which factories ran before a failure is open
            case _ if key.endswith("_one_of"):
                ok = value in wanted
            case _:
                ok = value == wanted
        if not ok:
            found[key] = (value, wanted)
    return found


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
@virtually
async def test_the_recorded_case(case: Case) -> None:
    seen = await PLAYERS[case["kind"]](case["input"])
    expected = case["expect"]
    deviation = DEVIATIONS.get(case["id"])
    if deviation is not None:
        assert differences(seen, expected), "ours does as was recorded: the deviation is not needed"
        expected = deviation.ours
    assert differences(seen, expected) == {}, case["note"] if "note" in case else case["input"]


def test_every_deviation_is_of_a_recorded_case() -> None:
    assert DEVIATIONS.keys() <= CASES.keys()
