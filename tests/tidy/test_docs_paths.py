"""Every path that a document names exists, so that a reader is never sent to a file that is not there.

A future file is named without the form of a path ("a kustomize base"), which keeps the documents honest as well.
"""

import posixpath
import re
from collections.abc import Collection

import pytest

from tests.tidy.repository import ROOT, repository_files

ALWAYS = ("README.md", "CONTRIBUTING.md", "VERSIONING.md", "CHANGELOG.md", "deploy/README.md")

_FENCE = re.compile(r"^(?P<fence>```+|~~~+).*?^(?P=fence)[^\n]*$", re.MULTILINE | re.DOTALL)
_CODE = re.compile(r"(?P<ticks>`+)(?P<text>.+?)(?P=ticks)", re.DOTALL)
_LINK = re.compile(
    r"\]\((?P<target>[^()\s]+)(?:\s+\"[^\"]*\")?\)|^\[[^\]]+\]:\s+(?P<reference>\S+)", re.MULTILINE
)
_ELSEWHERE = re.compile(r"[a-zA-Z][a-zA-Z0-9+.-]*:|#|/")
_LINE_NUMBER = re.compile(r":\d+(?:-\d+)?$")
_NO_PATH = re.compile(r"[\s<>{}*$?~=:;,|\"'()\[\]\\…@%&!+]")
_FILE_ENDS = (".md", ".py", ".toml")


def documents() -> list[str]:
    below_docs = {name for name in repository_files() if name.startswith("docs/") and name.endswith(".md")}
    return sorted(below_docs | set(ALWAYS))


def known_paths(files: Collection[str]) -> set[str]:
    """All files and the directories that hold one."""
    known = {"."} | set(files)
    for name in files:
        while name := posixpath.dirname(name):
            known.add(name)
    return known


def is_path(text: str, tops: Collection[str]) -> bool:
    """Whether inline code looks like a path of this repository, rather than a route, a module or a unit."""
    if _NO_PATH.search(text) or text.startswith(("/", "-")) or "://" in text:
        return False
    if text.endswith(_FILE_ENDS) and not text.startswith("."):
        return True
    return "/" in text and text.removeprefix("./").split("/")[0] in {*tops, ".."}


def missing_paths(document: str, text: str, files: Collection[str]) -> list[str]:
    """The paths that `text` names, in inline code or as the target of a link, and that are not there.

    Links start at the document's directory; inline code may also start at the root.
    """
    known = known_paths(files)
    tops = {name.split("/")[0] for name in files if "/" in name}
    here = posixpath.dirname(document)
    prose = _FENCE.sub("", text)
    missing = []
    for found in _CODE.finditer(prose):
        name = _LINE_NUMBER.sub("", found["text"].strip())
        if is_path(name, tops) and not {posixpath.normpath(name), _from(here, name)} & known:
            missing.append(name)
    for found in _LINK.finditer(_CODE.sub("", prose)):
        target = found["target"] or found["reference"]
        if not _ELSEWHERE.match(target) and _from(here, target.split("#")[0]) not in known:
            missing.append(target)
    return missing


def _from(directory: str, name: str) -> str:
    return posixpath.normpath(posixpath.join(directory, name))


@pytest.mark.parametrize("document", documents())
def test_every_path_that_a_document_names_exists(document: str) -> None:
    assert missing_paths(document, (ROOT / document).read_text(), repository_files()) == []


FILES = ("README.md", "Makefile", ".ci/run", "agent/core/goal.py", "docs/plan.md", "docs/notes/a.md")


@pytest.mark.parametrize(
    "text",
    [
        "see `agent/core/gaol.py`",
        "see `goal.py`, which lies in a directory",
        "see `agent/cores/`",
        "see `docs/missing.md`",
        "see `.ci/walk`",
        "see `agent/core/gaol.py:12`",
        "see [the plan](plans.md)",
        "see [the plan](docs/plan.md)",
        "see [the plan][1]\n\n[1]: gone.md",
        "a code fence\n\n```\nx\n```\n\nand then `agent/nothing`",
    ],
)
def test_the_extractor_catches_a_wrong_path(text: str) -> None:
    assert len(missing_paths("docs/page.md", text, FILES)) == 1


@pytest.mark.parametrize(
    "text",
    [
        "see `agent/core/goal.py`, `agent/core/`, `agent/core`, `README.md`, `.ci/run` and `agent/core/goal.py:12`",
        "see [the plan](plan.md#part), [notes](notes/), [top](../README.md), [web](https://example.org/x.md), [up](#up)",
        "`notes/a.md` and `plan.md` lie beside the page",
        "routes `/register`, `/v1/explain`, `POST /batch`",
        "modules `agent.core.goal`, `protocol.values`; entry `agent.program:main`",
        "patterns `docs/*.md`, `docs/decisions/<name>.md`, `agent/{core,runner}/x.py`, `$HOME/x.py`, `docs/…`",
        "neither `n/a`, `application/json`, `parley.dev/role` nor `I/O` is a path; `make test` is a command",
        "```\ncat agent/none.py `agent/none.py`\n```",
    ],
)
def test_the_extractor_leaves_alone_what_is_right_or_no_path(text: str) -> None:
    assert missing_paths("docs/page.md", text, FILES) == []
