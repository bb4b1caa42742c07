"""The commands of the documents, typed in their order, print what is shown."""

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.processes.pages import (
    ROOT,
    Reader,
    is_like,
)

PAGES = (
    "docs/guides/informant.md",
    "docs/guides/operating.md",
    "docs/guides/plugins.md",
    "docs/guides/pools.md",
    "docs/guides/quick-start.md",
    "docs/reference/api.md",
    "docs/reference/protocol.md",
)
"""Every document with a session that is run; `tests/tidy/test_docs_blocks.py` finds one that is missing."""


@pytest.fixture
def place() -> Iterator[Path]:
    """A directory with a short path: that of a socket must fit into 107 bytes."""
    with tempfile.TemporaryDirectory(prefix="page-") as directory:
        yield Path(directory)


@pytest.mark.timeout(240)  # above the reader's own deadline, so that a failure names the command
@pytest.mark.parametrize("page", PAGES)
def test_the_commands_of_a_page_print_what_it_shows(page: str, place: Path) -> None:
    with Reader(place) as reader:
        reader.follow((ROOT / page).read_text())
        logs = "".join(log.read_text() for log in place.glob("*.log"))
        assert "Traceback" not in logs


# ------------------------------------------------------------ the reader


@pytest.mark.parametrize(
    ("shown", "real"),
    [
        ({"a": "…"}, {"a": 1}),
        ({"a": 1}, {"a": 1, "b": 2}),
        ({"a": 1, "…": "…"}, {"b": 1}),
        ([1], [1, 1]),
        (1, True),
        ("a", "b"),
        ("3 passed in …", "1 failed, 3 passed in 0.1s"),
        ("ok", "ok no"),
    ],
)
def test_everything_else_must_be_the_same(shown: object, real: object) -> None:
    assert not is_like(shown, real)


@pytest.mark.parametrize(
    ("session", "said"),
    [
        ("$ echo one\ntwo\n", "line 2: echo one\nprinted, with exit code 0:\none"),
        ("$ true\n$ false\n", "line 3: false\nprinted, with exit code 1"),
        ("$ exit 3\n", "line 2: exit 3\ndid not end"),
    ],
)
def test_a_page_that_does_not_tell_the_truth_fails(session: str, said: str, tmp_path: Path) -> None:
    with Reader(tmp_path) as reader, pytest.raises(AssertionError) as failed:
        reader.follow(f"```console\n{session}```\n")
    assert said in str(failed.value)


# ------------------------------------------------------------ the stand-in for curl
