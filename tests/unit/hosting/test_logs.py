"""Log lines: valid JSON whatever is in them, with the known keys, levels, and no colour where nobody looks."""

import errno
import io
import json
import logging
import subprocess
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import structlog

from hosting import logs

ROOT = Path(__file__).parents[3]


@pytest.fixture(autouse=True)
def _logging_as_it_was() -> Iterator[None]:
    root, config = logging.getLogger(), structlog.get_config()
    handlers, level = list(root.handlers), root.level
    yield
    structlog.configure(**config)
    logging.captureWarnings(False)
    root.handlers, root.level = handlers, level


class Written:
    """The lines on standard error since the last call. Nothing goes to standard output."""

    def __init__(self, capture: pytest.CaptureFixture[str]) -> None:
        self._capture = capture

    def lines(self) -> list[str]:
        got = self._capture.readouterr()
        assert got.out == ""
        return got.err.splitlines()

    def json(self) -> list[dict[str, Any]]:
        def refuse(constant: str) -> None:
            raise AssertionError(f"{constant} is no JSON")

        lines = self.lines()
        assert all(line.isascii() for line in lines), "so that they are the same in every encoding"
        return [json.loads(line, parse_constant=refuse) for line in lines]


@pytest.fixture
def written(capsys: pytest.CaptureFixture[str]) -> Written:
    logs.configure()
    return Written(capsys)


def test_a_line_is_one_json_object_with_event_level_component_and_time(written: Written) -> None:
    logs.logger("agent").info("permit", vm="a", seq=3)
    (line,) = written.json()
    assert line.pop("timestamp").endswith("Z")
    assert line == {"event": "permit", "level": "info", "component": "agent", "vm": "a", "seq": 3}


SPOKEN = {
    "debug": ["debug", "info", "warning", "error"],
    "info": ["info", "warning", "error"],
    "warning": ["warning", "error"],
    "error": ["error"],
}


@pytest.mark.parametrize("level", SPOKEN)
def test_lines_below_the_level_are_left_out(written: Written, level: str) -> None:
    assert list(logs.LEVELS) == list(SPOKEN)
    logs.configure(level)  # the last configuration counts
    log = logs.logger("x")
    for each in SPOKEN:
        getattr(log, each)("e")
    assert [line["level"] for line in written.json()] == SPOKEN[level]


def test_a_line_for_people_has_no_colour_without_a_terminal(written: Written) -> None:
    logs.configure(style="console")
    logs.logger("x").info("permit", vm="a")
    (line,) = written.lines()
    assert ("\x1b" in line, "permit" in line, "vm=a" in line) == (False, True, True)


def test_a_terminal_obeys_nothing_that_is_in_a_line_for_people(written: Written) -> None:
    logs.configure(style="console")
    logs.logger("agent").info("plugin\x1b[2J", path="/p/a\x1b]0;owned\x07.sock", count=3)
    (line,) = written.lines()
    assert line.isprintable()
    assert "path=/p/a.sock" in line


# ---------------------------------------------------------------- whatever is in it


class Broken:
    """A value that cannot be shown."""

    def __repr__(self) -> str:
        raise RuntimeError("no")


class BrokenError(Exception):
    """An exception that cannot be shown."""

    def __str__(self) -> str:
        raise RuntimeError("no")

    __repr__ = __str__


def _itself() -> list[Any]:
    made: list[Any] = []
    made.append(made)
    return made


def _deep() -> list[Any]:
    made: list[Any] = []
    for _ in range(100_000):
        made = [made]
    return made


VALUES = {
    "an unpaired surrogate": "\ud800",
    "NaN": float("nan"),
    "infinity": [float("inf")],
    "both at once": ["\ud800", float("nan")],
    "a surrogate as a key": {"\ud800": float("-inf")},
    "bytes": b"\xff\x00",
    "a huge number": 2**400,
    "minus a huge number": -(2**64),
    "keys of all kinds": {1: 1, None: 2, (1, 2): 3, b"x": 4},
    "an exception": ValueError("no"),
    "a class": ValueError,
    "line breaks": "a\nb\r\u2028\x00\x1b[31m",
    "more than ASCII": "ä → 😀",
    "itself": _itself(),
    "deep": _deep(),
    "what cannot be shown": Broken(),
    "what cannot be shown, within": [Broken(), {"a": Broken()}],
    "an exception that cannot be shown": BrokenError(),
    "a generator": (each for each in "a"),
}


def test_a_line_is_ascii_and_valid_json_whatever_is_in_it(written: Written) -> None:
    for name, value in VALUES.items():
        logs.logger("x").info(name, value=value, pod="d/a")
    found = written.json()
    assert [line["event"] for line in found] == list(VALUES)
    assert all((line["level"], line["pod"]) == ("info", "d/a") for line in found)
    shown = {line["event"]: line["value"] for line in found}
    for name in ("an unpaired surrogate", "more than ASCII", "a huge number", "line breaks"):
        assert shown[name] == VALUES[name]
    assert "Broken" in shown["what cannot be shown"]
    assert isinstance(shown["a class"], str)
    assert isinstance(shown["bytes"], str)


@pytest.mark.parametrize(
    "error", [ValueError("\ud800"), BrokenError(), ExceptionGroup("g", [ValueError(b"x")])], ids=type
)
def test_an_exception_is_one_line_with_its_frames_and_without_their_variables(
    written: Written, error: Exception
) -> None:
    secret = "hunter2"
    try:
        raise error
    except Exception as caught:  # noqa: BLE001 - the case is the kind of exception
        logs.logger("x").error("failed", exc_info=caught)
    (line,) = written.json()
    assert (line["event"], line["level"]) == ("failed", "error")
    shown = json.dumps(line["exception"])  # as a text where something in it cannot travel
    assert type(error).__name__ in shown
    assert "test_logs.py" in shown
    assert secret not in shown


# ---------------------------------------------------------------- libraries


def test_libraries_are_heard_from_warning_on_in_lines_like_ours(written: Written) -> None:
    log = logging.getLogger("lib")
    log.info("chatter")
    log.warning("hear %s", "me")
    (line,) = written.json()
    assert (line["component"], line["event"], line["level"]) == ("lib", "hear me", "warning")


def test_whatever_a_library_logs_is_one_line(written: Written) -> None:
    logs.configure()  # drops the handler by which pytest would refuse the first line
    log = logging.getLogger("lib")
    log.warning("%d per cent", "no number")
    log.warning("100 %")
    log.log(35, "between two levels")
    log.critical("a\nb")
    with warnings.catch_warnings():
        warnings.simplefilter("default")
        logging.captureWarnings(True)
        warnings.warn("old", DeprecationWarning, stacklevel=1)
    *events, warned = [line["event"] for line in written.json()]
    assert events == ["%d per cent", "100 %", "between two levels", "a\nb"]
    assert "old" in warned


def test_a_librarys_traceback_is_a_part_of_its_line(written: Written) -> None:
    try:
        raise ZeroDivisionError
    except ZeroDivisionError:
        logging.getLogger("lib").exception("Unhandled exception")
    (line,) = written.json()
    assert (line["event"], line["exception"][0]["exc_type"]) == ("Unhandled exception", "ZeroDivisionError")


# ---------------------------------------------------------------- standard error that cannot be written


def test_a_line_that_cannot_be_written_is_counted_and_stops_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """A full disk or a reader that has gone: the program goes on, and its metrics tell."""

    class Full(io.StringIO):
        def write(self, _: str) -> int:
            raise OSError(errno.ENOSPC, "No space left on device")

    before = logs.lost_lines()
    monkeypatch.setattr(sys, "stderr", Full())
    logs.configure()
    for _ in range(3):
        logs.logger("test").info("a line")
    assert logs.lost_lines() == before + 3


def test_a_standard_error_that_is_closed_becomes_dev_null() -> None:
    """Else the program ends without a line, or its first connection gets the log."""
    program = (
        "import os\nfrom hosting import logs\nlogs.configure()\nlogs.logger('x').info('e')\n"
        "print(os.readlink('/proc/self/fd/2'), logs.lost_lines(), os.open('/', os.O_RDONLY) > 2)"
    )
    command = ["sh", "-c", 'exec "$0" -c "$1" 2>&-', sys.executable, program]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
    assert (done.returncode, done.stdout) == (0, "/dev/null 0 True\n")
