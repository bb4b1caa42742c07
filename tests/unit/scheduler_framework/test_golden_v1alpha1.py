"""The early scheduling framework as it was recorded from the published package (1.15.0-beta.0 and 1.15.0), case by case.

Where ours differs, `early_deviations.py` says what ours does and why; an entry that is not needed any more fails the test.
"""

from collections.abc import Awaitable, Callable
from typing import Any, Final

import pytest

from tests.support.virtual_time import virtually
from tests.unit.scheduler_framework import early_runs, early_snapshots, early_values
from tests.unit.scheduler_framework.early_deviations import DEVIATIONS
from tests.unit.scheduler_framework.scripted import Case, Script, recorded

CASES: Final = recorded("framework-v1alpha1.jsonl")
PLAYERS: Final[dict[str, Callable[[Script], Awaitable[dict[str, Any]]]]] = {
    "registry": early_values.play_registry,
    "new_framework_all": early_runs.play_new_framework_all,
    "new_framework_configured": early_runs.play_new_framework_configured,
    "status": early_values.play_status,
    "status_null": early_values.play_status_null,
    "constants": early_values.play_constants,
    "identity": early_values.play_identity,
    "context": early_values.play_context,
    "context_reference": early_values.play_context_reference,
    "context_locks": early_values.play_context_locks,
    "context_lock_misuse": early_values.play_context_lock_misuse,
    "run_reserve": early_runs.one_run("reserve"),
    "run_unreserve": early_runs.one_run("unreserve"),
    "run_permit": early_runs.one_run("permit"),
    "run_prebind": early_runs.one_run("prebind"),
    "chain": early_runs.play_chain,
    "permit_wait": early_runs.play_permit_wait,
    "snapshot": early_snapshots.play_snapshot,
}
FREE_TEXTS: Final = {"panic", "panic_one_of"}


def differences(kind: str, seen: dict[str, Any], expected: Script) -> dict[str, tuple[object, object]]:
    """The values seen and expected, for keys that must be equal and are not (`golden/framework.md`)."""
    found = {}
    for key, wanted in expected.items():
        value = seen.get(key.removesuffix("_one_of"))
        if key in FREE_TEXTS or (kind, key) == ("context_lock_misuse", "text"):
            ok = isinstance(value, str)
        elif key == "factories_run_sorted" and expected.get("error") is not None:
            ok = set(value or ()) <= set(wanted)  # which factories run before a failure is open
        elif key == "call_orders_one_of":
            ok = all((value or {}).get(point) in orders for point, orders in wanted.items())
        elif key.endswith("_one_of"):
            ok = value in wanted
        else:
            ok = _without_free_texts(value) == _without_free_texts(wanted)
        if not ok:
            found[key] = (value, wanted)
    return found


def _without_free_texts(value: object) -> object:
    if isinstance(value, list):
        return [_without_free_texts(each) for each in value]
    return {"panic": ...} if isinstance(value, dict) and "panic" in value else value


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
@virtually
async def test_a_recorded_case(case: Case) -> None:
    kind, expected = case["kind"], case["expect"]
    seen = await PLAYERS[kind]({**case["input"], "statement": int(case["id"].rpartition("-")[2])})
    deviation = DEVIATIONS.get(case["id"])
    if deviation is not None:
        assert differences(kind, seen, expected), "ours does as was recorded: the deviation is not needed"
        expected = deviation.ours
    assert differences(kind, seen, expected) == {}, case.get("note", case["input"])


def test_every_deviation_is_of_a_recorded_case() -> None:
    assert DEVIATIONS.keys() <= CASES.keys()
