"""The guest's root gets these contents."""

import importlib.metadata
import sys
from collections.abc import Iterable
from pathlib import Path, PurePosixPath

import pytest

from labs.vms import contents
from labs.vms.contents import DISTRIBUTION, INTERPRETER, LIBRARIES, PACKAGES, ContentsError, guest_contents


@pytest.fixture(scope="module")
def found() -> contents.Contents:
    return guest_contents()


def test_the_interpreter_comes_with_its_loader_and_the_standard_library(found: contents.Contents) -> None:
    assert found[INTERPRETER] == Path(sys.executable).resolve()
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    assert PurePosixPath("usr/lib", version, "asyncio/__init__.py") in found
    assert any(place.parent == LIBRARIES and place.name.startswith("ld-linux") for place in found)
    assert LIBRARIES / "libc.so.6" in found


def test_packages_are_whole_and_ours_come_from_where_they_are_imported_from(found: contents.Contents) -> None:
    assert PACKAGES / "pydantic/_internal/_validators.py" in found  # imported at the first request
    assert found[PACKAGES / "informant/program.py"].samefile(
        sys.modules["parley"].__path__[0] + "/../informant/program.py"
    )
    assert PACKAGES / "labs/vms/guest/init.sh" in found
    assert not any(
        place.parts[2] in {"agent", "scheduler", "textual"} for place in found if len(place.parts) > 2
    )


def test_nothing_is_there_that_belongs_to_this_machine(found: contents.Contents) -> None:
    assert not [place for place in found if "__pycache__" in place.parts or place.suffix in {".pyc", ".pth"}]
    assert not [place for place in found if ".." in place.parts or place.is_absolute()]
    assert not [place for place in found if place.name.startswith(("_tkinter", "libX11"))]


def test_what_an_installer_noted_is_left_out(found: contents.Contents) -> None:
    """The digest of a program in `bin`, whose first line is the environment's path, would make an image of each environment another one."""
    notes = {"RECORD", "INSTALLER", "REQUESTED", "direct_url.json"}
    assert [place for place in found if place.name in notes and ".dist-info" in str(place)] == []
    assert any(place.match("pydantic-*.dist-info/METADATA") for place in found)


def test_every_file_is_there(found: contents.Contents) -> None:
    assert [str(file) for file in found.values() if not file.is_file()] == []


def test_requirements_of_other_platforms_and_of_extras_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    known = {
        "ours": ["first>=1", "winonly; sys_platform == 'win32'", "heavy; extra == 'all'"],
        "first": ["Second_Part[x]<3"],
        "second-part": ["first"],
    }

    def requires(name: str) -> list[str]:
        if name not in known:
            raise importlib.metadata.PackageNotFoundError(name)
        return known[name]

    monkeypatch.setattr(importlib.metadata, "requires", requires)
    assert contents.distributions("ours") == {"first", "second-part"}
    known["second-part"] += ["gone", "lost>2"]
    with pytest.raises(ContentsError, match="gone is not installed") as caught:
        contents.distributions("ours")
    assert "lost is not installed" in str(caught.value)
    with pytest.raises(ContentsError, match="theirs is not installed"):
        contents.distributions("theirs")


def test_a_library_that_is_missing_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "module.so"
    program.write_bytes(b"\x7fELF")

    def linked(_: Iterable[Path]) -> list[str]:
        return ["module.so:", "\tlibthere.so => /bin/sh (0x1)", "\tlibgone.so.3 => not found"]

    monkeypatch.setattr(contents, "_linked", linked)
    with pytest.raises(ContentsError, match=r"missing: libgone.so.3"):
        contents.shared_libraries({PurePosixPath("x"): program})


def test_the_distribution_is_the_one_that_is_installed() -> None:
    assert importlib.metadata.version(DISTRIBUTION)
