"""A process ends although its strategies hang: in their methods, callbacks, pools and threads of their own."""

from pathlib import Path

from tests.support.processes import running
from tests.support.waiting import shown_blocking


def test_no_strategy_keeps_the_process_from_ending(tmp_path: Path) -> None:
    with running("tests.processes.stand_ins.hanging_strategies", output=tmp_path / "log") as program:
        shown_blocking("the strategies that hang", lambda: "all hang" in program.text())
        assert program.end() == 7
        assert "ended" in program.text().splitlines()[-1]
