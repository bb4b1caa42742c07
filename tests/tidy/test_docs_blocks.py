"""Every fenced block of the documents is something: a session that is run, a file, data that can be read, or a drawing."""

import json
import re
import tomllib
from collections.abc import Callable
from typing import Any

import pytest
import yaml

from tests.kube.test_cluster_pages import PAGES_ON_A_CLUSTER
from tests.monitoring.test_runbook import PAGES_IN_TROUBLE
from tests.processes.pages import Block, blocks, commands
from tests.processes.test_pages import PAGES
from tests.tidy.repository import ROOT
from tests.tidy.test_docs_paths import documents

READERS: dict[str, Callable[[str], Any]] = {
    "yaml": yaml.safe_load,
    "json": json.loads,
    "toml": tomllib.loads,
    "python": lambda text: compile(text, "block", "exec"),
    "ini": lambda text: re.fullmatch(r"(?:\[\w+\]\n|[A-Z]\w+=.+\n|\n|#.*\n)+", text) or 1 / 0,
}
DRAWINGS = {"text", "mermaid"}


def all_blocks() -> list[tuple[str, Block]]:
    return [
        (f"{name}:{block.line}", block) for name in documents() for block in blocks((ROOT / name).read_text())
    ]


def is_of_commands(text: str) -> bool:
    """Whether a text looks like something to type."""
    return (
        re.search(
            r"^(?:\$ |parley(?:-\w+)? [-\w]|\.venv/|make |curl |kubectl |systemctl |sudo |git |pip |pytest)",
            text,
            re.MULTILINE,
        )
        is not None
    )


@pytest.mark.parametrize(
    ("place", "block"), all_blocks(), ids=lambda value: value if isinstance(value, str) else ""
)
def test_a_block_says_what_it_is(place: str, block: Block) -> None:
    assert block.language in {"console", *READERS, *DRAWINGS}, f"{place}: what is {block.language!r}?"
    if block.language == "console":
        assert all(line for line in block.text.split("$ ")[1:]), place
        assert block.text.startswith("$ "), f"{place}: a session begins with a command"
    else:
        assert not is_of_commands(block.text), (
            f"{place}: commands belong into a block `console`, which is run"
        )
        if block.language in READERS:
            READERS[block.language](block.text)


def test_every_page_with_a_session_is_run() -> None:
    assert {name for name in documents() if commands((ROOT / name).read_text())} == {
        *PAGES,
        *PAGES_ON_A_CLUSTER,
        *PAGES_IN_TROUBLE,
    }


def test_what_is_not_run_says_why() -> None:
    exempt = {place: block.exempt for place, block in all_blocks() if block.exempt is not None}
    assert [place for place, why in exempt.items() if len(why.split()) < 4] == []
    marks = sum((ROOT / name).read_text().count("<!-- not run") for name in documents())
    assert marks == len(exempt), "a mark stands right before its block, as <!-- not run: WHY -->"
    assert all(block.language == "console" for _, block in all_blocks() if block.exempt is not None)


@pytest.mark.parametrize(
    "text", ["$ x\n", "parley-agent --config a\n", "a\ncurl -s localhost\n", "systemctl start x\n"]
)
def test_commands_are_noticed(text: str) -> None:
    assert is_of_commands(text)


def test_what_the_commands_leave_in_the_project_is_ignored_and_removed_at_the_end() -> None:
    names: set[str] = set()
    for name in PAGES:
        page = (ROOT / name).read_text()
        if "export PATH" in page:  # typed in the project's directory
            typed = "\n".join(command.typed for command in commands(page))
            names |= set(re.findall(r"(?:2>|--journal) (\S+)", typed))
    assert {"scheduler.log", "agent.log", "journal"} <= names
    ignored = {line.strip("/") for line in (ROOT / ".gitignore").read_text().splitlines()}
    assert names <= ignored
    removal = blocks((ROOT / "docs/guides/operating.md").read_text())[-1].text
    assert names <= set(removal.split())
