"""Log lines of a process: JSON with the known keys, levels, and no colour where nobody looks."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from hosting import logs

ROOT = Path(__file__).parents[3]


def stderr_of(program: str) -> list[str]:
    """What a process writes to standard error that sets up its own logging; nothing goes to standard output."""
    head = "import logging\nfrom hosting import logs\n"
    done = subprocess.run(
        [sys.executable, "-c", head + program], capture_output=True, text=True, check=True, cwd=ROOT
    )
    assert done.stdout == ""
    return done.stderr.splitlines()


def json_of(program: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in stderr_of(program)]


def test_a_line_is_one_json_object_with_event_level_component_and_time() -> None:
    (line,) = json_of("logs.configure()\nlogs.logger('agent').info('permit', vm='a', seq=3)")
    time = line.pop("timestamp")
    assert line == {"event": "permit", "level": "info", "component": "agent", "vm": "a", "seq": 3}
    assert time.endswith("Z")


def test_text_with_line_breaks_stays_on_one_line() -> None:
    (line,) = json_of("logs.configure()\nlogs.logger('x').info('e', error='a\\nb')")
    assert line["error"] == "a\nb"


def test_an_error_is_told_with_its_frames_and_without_their_variables() -> None:
    (line,) = json_of(
        "logs.configure()\nsecret = 'hunter2'\n"
        "try:\n    1 / 0\n"
        "except ZeroDivisionError as error:\n    logs.logger('x').error('failed', exc_info=error)"
    )
    (exception,) = line["exception"]
    assert exception["exc_type"] == "ZeroDivisionError"
    assert exception["frames"] != []
    assert "hunter2" not in json.dumps(line)


def test_values_that_json_does_not_know_are_shown_as_text() -> None:
    (line,) = json_of("logs.configure()\nlogs.logger('x').info('e', vm=object, pod=b'a')")
    assert isinstance(line["vm"], str)
    assert isinstance(line["pod"], str)


SPOKEN = {
    "debug": ["debug", "info", "warning", "error"],
    "info": ["info", "warning", "error"],
    "warning": ["warning", "error"],
    "error": ["error"],
}


@pytest.mark.parametrize("level", SPOKEN)
def test_lines_below_the_level_are_left_out(level: str) -> None:
    calls = "".join(f"log.{each}('e')\n" for each in SPOKEN)
    lines = json_of(f"logs.configure({level!r})\nlog = logs.logger('x')\n{calls}")
    assert [line["level"] for line in lines] == SPOKEN[level]


def test_the_levels_offered_are_those_that_work() -> None:
    assert list(logs.LEVELS) == list(SPOKEN)


def test_a_line_for_people_has_no_colour_without_a_terminal() -> None:
    (line,) = stderr_of("logs.configure(style='console')\nlogs.logger('x').info('permit', vm='a')")
    assert "\x1b" not in line
    assert "permit" in line
    assert "vm=a" in line


def test_libraries_are_heard_from_warning_on_in_lines_like_ours() -> None:
    program = (
        "logs.configure()\nlog = logging.getLogger('lib')\nlog.info('chatter')\nlog.warning('hear %s', 'me')"
    )
    (line,) = json_of(program)
    assert (line["component"], line["event"], line["level"]) == ("lib", "hear me", "warning")


@pytest.mark.parametrize(
    ("call", "event"),
    [
        ("log.warning('%d per cent', 'no number')", "%d per cent"),
        ("log.warning('100 %')", "100 %"),
        ("log.log(35, 'between two levels')", "between two levels"),
        ("log.critical('a\\nb')", "a\nb"),
        ("import warnings; warnings.warn('old', DeprecationWarning)", "old"),
    ],
)
def test_whatever_a_library_logs_is_one_line(call: str, event: str) -> None:
    (line,) = json_of(f"logs.configure()\nlog = logging.getLogger('lib')\n{call}")
    assert event in line["event"]


def test_a_librarys_traceback_is_a_part_of_its_line() -> None:
    (line,) = json_of(
        "logs.configure()\n"
        "try:\n    1 / 0\n"
        "except ZeroDivisionError:\n    logging.getLogger('lib').exception('Unhandled exception')"
    )
    (exception,) = line["exception"]
    assert (line["event"], exception["exc_type"]) == ("Unhandled exception", "ZeroDivisionError")


def test_the_last_configuration_counts() -> None:
    lines = json_of("logs.configure('error')\nlogs.configure('info')\nlogs.logger('x').info('e')")
    assert [line["event"] for line in lines] == ["e"]


def test_a_line_that_cannot_be_written_is_counted_and_stops_nobody(tmp_path: Path) -> None:
    """A full disk or a reader that has gone: the program goes on, and its metrics tell."""
    program = (
        "from hosting import logs\n"
        "logs.configure()\n"
        "for _ in range(3):\n"
        "    logs.logger('test').info('a line')\n"
        "print(logs.lost_lines())\n"
    )
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [sys.executable, "-c", program],
            stdout=subprocess.PIPE,
            stderr=full,
            text=True,
            check=False,
            cwd=ROOT,
        )
    assert done.stdout == "3\n"


def test_a_standard_error_that_is_closed_becomes_dev_null() -> None:
    """Else the program ends without a word, or its first connection gets the log."""
    program = (
        "import os\nfrom hosting import logs\nlogs.configure()\nlogs.logger('x').info('e')\n"
        "print(os.readlink('/proc/self/fd/2'), logs.lost_lines(), os.open('/', os.O_RDONLY) > 2)"
    )
    done = subprocess.run(
        ["sh", "-c", 'exec "$0" -c "$1" 2>&-', sys.executable, program],
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
    )
    assert (done.returncode, done.stdout) == (0, "/dev/null 0 True\n")
