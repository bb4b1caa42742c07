"""deploy/image/requirements.txt and build-requirements.txt fit pyproject.toml and constraints.txt: what the image gets is what is tested."""

import importlib.metadata
import re
from collections.abc import Iterator

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.support.image_requirements import IMAGE, wanted
from tests.tidy.repository import ROOT, repository_files

_PINNED = re.compile(r"([a-z0-9.-]+)==(\S+)((?: \\\n    --hash=sha256:[0-9a-f]{64})+)")


def pinned(file: str) -> dict[str, tuple[str, int]]:
    """The version, and the number of hashes, by name. Fails for a line of another form."""
    text = "".join(line for line in (IMAGE / file).read_text().splitlines(keepends=True) if line[0] != "#")
    found = {}
    for block in re.split(r"\n(?! )", text.strip()):
        match = _PINNED.fullmatch(block)
        assert match is not None, block
        found[str(canonicalize_name(match[1]))] = (match[2], match[3].count("sha256"))
    return found


def needed(requirements: list[str]) -> Iterator[str]:
    """The names that are needed, by what is installed beside the tests."""
    todo, seen = [Requirement(each) for each in requirements], set[str]()
    while todo:
        each = todo.pop()
        name = canonicalize_name(each.name)
        if name in seen or (each.marker is not None and not each.marker.evaluate({"extra": ""})):
            continue
        seen.add(name)
        yield name
        todo += [Requirement(text) for text in importlib.metadata.requires(name) or ()]


@pytest.mark.parametrize("file", wanted())
def test_everything_that_is_needed_is_pinned_at_the_tested_version_and_nothing_else(file: str) -> None:
    versions = dict(
        line.split("==") for line in (ROOT / "constraints.txt").read_text().splitlines() if "==" in line
    )
    tested = {canonicalize_name(name): version for name, version in versions.items()}
    found = pinned(file)
    assert found.keys() == set(needed(wanted()[file][1])), "run `make image-requirements`"
    assert {name: version for name, (version, _) in found.items()} == {
        name: tested[canonicalize_name(name)] for name in found
    }, "run `make image-requirements`"
    assert {hashes for _, hashes in found.values()} <= {1, 2}


def test_the_files_are_of_the_image_and_name_no_place_to_get_packages_from() -> None:
    files = [name for name in repository_files() if name.startswith("deploy/image/")]
    assert {f"deploy/image/{file}" for file in wanted()} <= set(files)
    for name in files:
        text = (ROOT / name).read_text()
        assert not re.search(r"--(extra-)?index-url|--trusted-host|--find-links|https?://", text), name
