"""The life of a process: the first signal asks for the end, the second one ends it."""

import asyncio
import resource
import signal
import subprocess
import sys
from pathlib import Path
from typing import Self

import pytest

from hosting import lifecycle
from hosting.lifecycle import INTERRUPTED, Stop
from tests.unit.hosting.raw_peers import PATIENCE_S

ROOT = Path(__file__).parents[3]
HEAD = """
import asyncio, sys
from hosting import lifecycle
def say(text):
    print(text, flush=True)
"""
DRAINS = """
async def main(stop):
    say("ready")
    await stop.wait()
    say("draining")
    await asyncio.sleep(0)
    return 0
sys.exit(lifecycle.run(main))
"""
HANGS = """
async def main(stop):
    say("ready")
    await stop.wait()
    say("draining")
    try:
        await asyncio.Event().wait()
    finally:
        say("cleaned")
sys.exit(lifecycle.run(main))
"""


class Program:
    """A program of ours in a process of its own."""

    def __init__(self, text: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", HEAD + text],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=ROOT,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.communicate()

    def says(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()

    def send(self, number: signal.Signals) -> None:
        self._process.send_signal(number)

    def end(self) -> tuple[int, str, str]:
        out, err = self._process.communicate(timeout=PATIENCE_S)
        return self._process.returncode, out, err


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_lets_the_program_drain_and_exit_with_its_own_code(number: signal.Signals) -> None:
    with Program(DRAINS) as program:
        assert program.says() == "ready"
        program.send(number)
        assert program.says() == "draining"
        assert program.end() == (0, "", "")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_second_signal_ends_a_drain_that_does_not(number: signal.Signals) -> None:
    with Program(HANGS) as program:
        for said in ("ready", "draining"):
            assert program.says() == said
            program.send(number)
        assert program.says() == "cleaned"
        assert program.end() == (INTERRUPTED, "", "")


def test_a_fault_of_main_is_not_hidden() -> None:
    with Program(
        "async def main(stop):\n    raise RuntimeError('ours')\nsys.exit(lifecycle.run(main))"
    ) as program:
        code, _, err = program.end()
    assert code == 1
    assert "RuntimeError: ours" in err


def test_run_in_this_process_returns_what_main_returned() -> None:
    async def main(stop: Stop) -> int:
        return 3 if not stop.is_requested() else 4

    assert lifecycle.run(main) == 3


async def test_a_stop_is_requested_once_and_stays_so() -> None:
    stop = Stop()
    assert not await stop.wait_for(0.001)
    cancelled = asyncio.create_task(stop.wait_for(1000))
    waiting = asyncio.create_task(stop.wait())
    await asyncio.sleep(0)
    cancelled.cancel()
    with pytest.raises(asyncio.CancelledError):
        await cancelled
    assert not stop.is_requested()
    stop.request()
    stop.request()
    await waiting
    assert stop.is_requested()
    assert await stop.wait_for(1000)


@pytest.mark.parametrize(
    ("limits", "found", "after"),
    [
        ((1024, 4096), 2000, (2000, 4096)),
        ((1024, 1500), 1500, (1500, 1500)),
        ((3000, 4096), 3000, (3000, 4096)),
        ((1024, resource.RLIM_INFINITY), 2000, (2000, resource.RLIM_INFINITY)),
        ((resource.RLIM_INFINITY, resource.RLIM_INFINITY), 2000, (resource.RLIM_INFINITY,) * 2),
    ],
)
def test_the_limit_of_open_files_is_raised_as_far_as_it_may(
    monkeypatch: pytest.MonkeyPatch, limits: tuple[int, int], found: int, after: tuple[int, int]
) -> None:
    now = [limits]
    monkeypatch.setattr(resource, "getrlimit", lambda _: now[0])
    monkeypatch.setattr(resource, "setrlimit", lambda _, wanted: now.__setitem__(0, wanted))
    assert lifecycle.allow_open_files(2000) == found
    assert now == [after]
