"""How a command ends when its own output fails, and with Ctrl-C."""

import asyncio
import errno
import signal
from typing import Any

import pytest
from click.testing import CliRunner

from hosting.lifecycle import INTERRUPTED, Stop
from parley import status
from parley.agent_commands import status_command
from parley.listing import output
from parley.reach.ports import Answered, NoAnswer
from tests.unit.parley.fake_reach import FakeReach, FakeWay, called


@pytest.mark.parametrize(
    ("error", "code", "words"),
    [
        (BrokenPipeError(errno.EPIPE, "Broken pipe"), output.GONE, ""),
        (OSError(errno.ENOSPC, "No space left on device"), output.NOBODY, "cannot be written: No space left"),
    ],
)
def test_output_that_fails_is_an_exit_code_and_no_traceback(
    error: OSError, code: int, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    async def main(_: Stop) -> int:
        raise error

    assert output.run(main) == code
    assert words in capsys.readouterr().err


def test_the_exit_code_of_a_command_is_its_own() -> None:
    async def main(_: Stop) -> int:
        return output.NOBODY

    assert output.run(main) == output.NOBODY


async def interrupted() -> Any:
    """A call that is interrupted by Ctrl-C, and would never end by itself."""
    signal.raise_signal(signal.SIGINT)
    await asyncio.Event().wait()


@pytest.mark.parametrize("code", [INTERRUPTED, 0])
def test_the_first_ctrl_c_cancels_a_command(code: int) -> None:
    cleaned = []

    async def main(_: Stop) -> int:
        try:
            await interrupted()
        finally:
            await asyncio.sleep(0)
            cleaned.append(True)
        return 7

    assert output.run(main, interrupted=code) == code
    assert cleaned


class SilentReach(FakeReach):
    """Programs that do not answer; whoever waits for them presses Ctrl-C."""

    async def scheduler(self, path: str) -> Answered:
        raise AssertionError(f"{path} was answered: {await interrupted()}")

    async def agents(self) -> tuple[str, ...] | NoAnswer:
        raise AssertionError(f"was answered: {await interrupted()}")


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["explain", "d/a"], INTERRUPTED),
        (["history", "d/a"], INTERRUPTED),
        (["nodes"], INTERRUPTED),
        (["pools"], INTERRUPTED),
        (["vms"], INTERRUPTED),
        (["watch"], 0),
    ],
)
def test_ctrl_c_ends_a_command_whose_programs_are_silent(words: list[str], code: int) -> None:
    done = called(SilentReach(), *words)
    assert (done.exit_code, done.output) == (code, "")


def test_ctrl_c_ends_both_ways_to_ask_for_the_status(monkeypatch: pytest.MonkeyPatch) -> None:
    done = CliRunner().invoke(status_command(FakeWay(SilentReach())), [])
    assert (done.exit_code, done.output) == (INTERRUPTED, "")
    monkeypatch.setattr("hosting.client.HttpClient.call", lambda *_, **__: interrupted())
    assert status.show("http://127.0.0.1:9", None, None, "text") == INTERRUPTED
