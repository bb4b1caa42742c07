"""The demo's programs: started again when they end, with their last line, which is shown for a while."""

import asyncio
import errno
import os
import signal
import tempfile
from pathlib import Path

import pytest

from hosting import logs
from hosting.backoff import Backoff
from parley import children as module
from parley.children import Children, ProgramSpec
from tests.support.waiting import until

FAILING = """
import json, sys
print("an old line", flush=True)
print(json.dumps({"event": "cannot go on", "error": "no " + chr(27) + "[2Jdisk"}), file=sys.stderr)
sys.exit(3)
"""


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[tuple[str, str]]:
    """The lines that a person reads; restarts come at once."""
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setattr(module, "RESTART", Backoff(base_s=0.01, cap_s=0.02, jitter=0))
    return []


async def run(directory: Path, said: list[tuple[str, str]], code: str, enough: int) -> Children:
    """Keep a program of this code running until so much was said."""
    (directory / "short_lived.py").write_text(code)
    children = Children(directory / "logs", lambda name, text: said.append((name, text)), logs.logger("test"))
    children.start(ProgramSpec("a", "short_lived", ()))
    try:
        await until(lambda: len(said) >= enough)
    finally:
        await children.stop()
    return children


async def test_a_program_that_ends_is_told_with_its_last_line_and_again_when_it_runs(
    tmp_path: Path, said: list[tuple[str, str]]
) -> None:
    await run(tmp_path, said, FAILING, 3)
    name = "a ended with code 3 (cannot go on: no disk)"
    assert said[:2] == [("a", f"{name}; it starts again in 0.0 s"), ("a", f"{name}; it runs again")]


async def test_of_a_full_disk_no_program_can_tell_so_the_demo_does(
    tmp_path: Path, said: list[tuple[str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(**_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(tempfile, "TemporaryFile", full)
    children = await run(tmp_path, said, "raise SystemExit(1)", 1)
    fault = f"nothing can be written to {tmp_path}/logs: No space left on device"
    assert said[0] == ("a", f"a ended with code 1 ({fault}); it starts again in 0.0 s")
    assert children.write_fault() == fault


async def test_a_program_that_is_killed_has_no_last_line(tmp_path: Path, said: list[tuple[str, str]]) -> None:
    code = f"import os\nprint('fine', flush=True)\nos.kill(os.getpid(), {int(signal.SIGKILL)})"
    await run(tmp_path, said, code, 1)
    assert said[0] == ("a", "a was killed by signal 9; it starts again in 0.0 s")


async def test_last_line_are_those_of_the_last_life(tmp_path: Path, said: list[tuple[str, str]]) -> None:
    """A program that fails without a word is not given those of the life before; a log that is gone is no fault."""
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "a.log").write_text("what was before\n")
    children = await run(tmp_path, said, "raise SystemExit(5)", 1)
    assert said[0][1].startswith("a ended with code 5; it starts again")
    await asyncio.sleep(0)
    assert children.last_line("nobody") == ""
