"""Which lines of the logs are faults: every warning and error, and every line that no program of ours has written, except for those on a list. Pure."""

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, Literal

Source = Literal["agent", "scheduler", "guest", "qemu"]
GOOD_LEVELS: Final = frozenset({"debug", "info"})


@dataclass(frozen=True, slots=True)
class ExpectedLine:
    """Lines of a source that are no fault, and why."""

    source: Source
    pattern: str
    why: str


EXPECTED: Final = (
    ExpectedLine(
        "scheduler",
        '"event":"--first-start: ',
        "the house starts its scheduler so, and the scheduler reminds of what that means",
    ),
    ExpectedLine(
        "agent",
        '"action":"(informant|metrics)","error":"no answer within [0-9.]+ s","event":"trouble"',
        "several emulated guests have more busy vCPUs than this machine has cores: an informant may be late, and is asked again",
    ),
)


@dataclass(frozen=True, slots=True)
class JudgedLog:
    """The lines of a log that are faults, and how many more would be, were they not expected."""

    faults: tuple[str, ...]
    expected: int


def judged(source: Source, lines: Iterable[str], expected: Iterable[ExpectedLine] = EXPECTED) -> JudgedLog:
    patterns = [re.compile(each.pattern) for each in expected if each.source == source]
    bad = [line.strip() for line in lines if line.strip() and not _is_good(line)]
    faults = tuple(line for line in bad if not any(pattern.search(line) for pattern in patterns))
    return JudgedLog(faults, len(bad) - len(faults))


def _is_good(line: str) -> bool:
    try:
        content = json.loads(line)
    except ValueError:
        return False
    return isinstance(content, dict) and content.get("level") in GOOD_LEVELS and "exception" not in content
