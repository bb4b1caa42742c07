"""docs/guides/pools.md: its test notices a plugin that does not do what it says, and its examples run together.

That the sessions of the page print what it shows is told by `tests/processes/test_pages.py`.
"""

import json
import signal
import subprocess
import sys
from pathlib import Path

from tests.processes.pages import ROOT, files
from tests.support.processes import Program, fetch, free_port, running
from tests.support.waiting import shown_blocking


def await_health(scheduler: Program, port: int) -> None:
    """Wait until it serves; what it said where it has ended in the place of that."""

    def look() -> bytes:
        assert scheduler.process.poll() is None, scheduler.text()
        return fetch(port, "/readyz")

    shown_blocking("the scheduler's health", look)


def test_the_test_of_the_page_fails_with_a_plugin_that_admits_everything(tmp_path: Path) -> None:
    page = files((ROOT / "docs/guides/pools.md").read_text())
    for name in ("parley_licences.py", "test_licences.py"):
        (tmp_path / name).write_text(page[name].replace("admitted=left", "admitted=None"))
    command = [
        sys.executable,
        "-B",
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "--rootdir",
        str(tmp_path),
        str(tmp_path),
    ]
    failed = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)
    assert "1 failed, 2 passed" in failed.stdout, failed.stdout + failed.stderr


def test_the_examples_run_together(tmp_path: Path) -> None:
    """`examples/pools.yaml` under `examples/pool-plugins.yaml`: both pools are taken up."""
    port = free_port()
    examples = ROOT / "examples"
    arguments = (
        *("--cluster", str(examples / "pools.yaml")),
        *("--config", str(examples / "pool-plugins.yaml")),
        *("--port", str(port)),
    )
    with running("scheduler", *arguments, output=tmp_path / "scheduler.log") as scheduler:
        await_health(scheduler, port)
        pools = json.loads(fetch(port, "/v1/pools"))["pools"]
        assert [pool["name"] for pool in pools] == ["ci-runners", "dev-boxes"]
        assert '"chain":["quota"]' in scheduler.text()
        assert "not taken up" not in scheduler.text()
        assert scheduler.end(signal.SIGTERM) == 0
