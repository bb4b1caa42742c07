"""docs/reference/logs.md lists exactly the keys that log lines of decisions have."""

import re

import pytest

from tests.support.log_keys import AGENT_KEYS, SCHEDULER_KEYS
from tests.tidy.repository import ROOT


def documented(program: str) -> set[str]:
    """The keys in the table that follows the paragraph on a program."""
    page = (ROOT / "docs/reference/logs.md").read_text()
    part = page.partition(f"\n**{program}** writes ")[2].partition("\n**")[0]
    cells = re.findall(r"^\| (`[^|]*`) \|", part, re.MULTILINE)
    return {key for cell in cells for key in re.findall(r"`(\w+)`", cell)}


@pytest.mark.parametrize(
    ("program", "keys"),
    [("The scheduler", SCHEDULER_KEYS), ("The agent", AGENT_KEYS)],
    ids=["scheduler", "agent"],
)
def test_the_documented_keys_are_those_of_the_lines(program: str, keys: frozenset[str]) -> None:
    assert documented(program) == keys
