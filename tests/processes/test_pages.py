"""The commands of the documents, typed in their order, print what is shown."""

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.processes.pages import (
    ROOT,
    Block,
    Command,
    Reader,
    agrees,
    blocks,
    commands,
    files,
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

PAGE = """
```py
# a.py
x
```
```
# no
```
```console
$ curl -d '{
}' u
{}
$ python a 1
out
  more
$ one \\
  two
```
<!-- not run: it needs root -->
```console
$ rm -r /
```
"""


def test_the_reader_finds_files_and_commands() -> None:
    """A command may go over several lines while a quotation is open or a line ends in a backslash."""
    assert files(PAGE) == {"a.py": "# a.py\nx\n"}
    assert commands(PAGE) == [
        Command("curl -d '{\n}' u\n", "{}", 10),
        Command("python a 1\n", "out\n  more", 13),
        Command("one \\\n  two\n", "", 16),
    ]
    assert blocks(PAGE)[-1] == Block("console", "$ rm -r /\n", 20, "it needs root")


@pytest.mark.parametrize(
    ("shown", "real"),
    [
        ({"a": ["…", 1]}, {"a": ["text", 1]}),
        ({"a": 1, "…": "…"}, {"a": 1, "b": [2]}),
        ("3 passed in …", "3 passed in 0.1s"),
        ("a\n…\nb", "a\nx\ny\nb"),
    ],
)
def test_what_is_left_open_may_be_anything(shown: object, real: object) -> None:
    assert is_like(shown, real)


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


def test_json_may_be_laid_out_otherwise_and_lines_may_end_in_blanks() -> None:
    assert agrees('{"a": 1,\n  "b": 2}', '{"b":2,"a":1}')
    assert agrees("one\ntwo", "one  \ntwo\n\n")
    assert not agrees("one", "one\ntwo")


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


def test_ports_are_others_than_on_the_page_and_told_as_on_the_page(tmp_path: Path) -> None:
    page = "```console\n$ echo 10299 1102990 x:10300 >ports; cat ports; grep -c 10299 ports\n10299 1102990 x:10300\n0\n```\n"
    with Reader(tmp_path) as reader:
        reader.follow(page.replace("grep -c 10299", "grep -cE '(^| )10''299'"))
        assert "10299 1102990" not in (tmp_path / "ports").read_text()


def test_nothing_is_kept_outside_the_readers_directory(tmp_path: Path) -> None:
    """Two runs at once would meet there, and it would stay behind."""
    with Reader(tmp_path) as reader:
        reader.follow("```console\n$ echo /tmp/parley-node-1 | tee told\n/tmp/parley-node-1\n```\n")
        assert (tmp_path / "told").read_text().startswith(str(tmp_path))
        assert str(tmp_path) in (tmp_path / "examples/agent.yaml").read_text()


# ------------------------------------------------------------ the stand-in for curl
