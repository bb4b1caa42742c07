"""Part B of the recordings: operations, passes of the reconciler, and its loop, with real gRPC servers on real sockets.

Where ours differs, `REPAIRS` says what ours does and why; an entry that is not needed any more fails the test.
"""

import json
from pathlib import Path
from typing import Final

import pytest

from tests.unit.agent_plugins.golden_repairs import REPAIRS
from tests.unit.agent_plugins.golden_stage import ManagerStage, Stage
from tests.unit.agent_plugins.golden_words import told
from tests.unit.agent_plugins.recorded_plugins import Case, recorded

CASES: Final = recorded(("operation", "reconcile", "loop"))
WHOLE: Final = recorded(("manager",))


def expected_of(case: Case) -> list[list[str]]:
    """The results of each step: those of the recording, but for the repairs."""
    expected = [told(step) for step in case["steps"]]
    if case["id"] in REPAIRS:
        for step, ours in REPAIRS[case["id"]].ours.items():
            assert expected[step] != ours, f"the repair of step {step} is not needed"
            expected[step] = ours
    return expected


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
async def test_the_recorded_case(case: Case, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = expected_of(case)
    played = await Stage(case, tmp_path, monkeypatch).play(case["steps"])
    seen = [told(step) for step in json.loads(json.dumps(played).replace(str(tmp_path), "$DIR"))]
    assert seen == expected


@pytest.mark.parametrize("case", WHOLE.values(), ids=WHOLE)
async def test_the_recorded_case_of_the_whole_manager(case: Case, tmp_path: Path) -> None:
    expected = expected_of(case)
    watched = [words for words, step in zip(expected, case["steps"], strict=True) if step["do"] == "watch_ms"]
    played = await ManagerStage(tmp_path, watched).play(case["steps"])
    assert [told(step) for step in played] == expected


def test_every_repair_is_of_a_recorded_case() -> None:
    assert REPAIRS.keys() <= CASES.keys() | WHOLE.keys()
