"""The contents of the guest's root: the running interpreter, the packages that the informant and the workload use, libraries, our files.

Each entry maps a place in the guest to a file of the host. Nothing is copied here.
"""

import importlib.metadata
import importlib.util
import os
import re
import subprocess
import sys
import sysconfig
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import Final

DISTRIBUTION: Final = "parley-autoscaler"
OUR_PACKAGES: Final = ("protocol", "hosting", "informant", "labs")
"""The packages of ours that run in a guest: the informant, and the workload of `labs.vms`, with their imports."""
INTERPRETER: Final = PurePosixPath("usr/bin/python3")
LIBRARIES: Final = PurePosixPath("lib/x86_64-linux-gnu")
PACKAGES: Final = PurePosixPath("opt/parley")
_UNUSED: Final = frozenset(
    {"test", "tests", "idlelib", "tkinter", "turtledemo", "ensurepip", "lib2to3", "site-packages"}
)
"""Parts of the standard library that no program here imports; they would be more than half of it."""
_UNUSED_MODULES: Final = ("_tkinter.", "_test", "_ctypes_test.", "_xxtest", "xxlimited")
"""How the names of extension modules begin that are only for desktops, with all the libraries of one, or for tests."""
_NOTES: Final = frozenset({"RECORD", "INSTALLER", "REQUESTED", "direct_url.json"})
"""Notes of installers beside a package, such as digests of programs that name the environment: equal packages differ in them."""
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_RESOLVED: Final = re.compile(r"^\s*(?P<name>\S+) => (?P<path>/\S+)|^\s*(?P<loader>/\S+) \(0x")
_LDD_S: Final = 120.0
_AT_ONCE: Final = 200
"""So many files one call of `ldd` looks at."""

Contents = dict[PurePosixPath, Path]
"""Files of the guest, and their contents on the host."""


class ContentsError(Exception):
    """Something that the guest needs is missing on this host. The text names every fault, for a person."""


def guest_contents() -> Contents:
    """Everything that is copied from the host. Raises `ContentsError`."""
    found: Contents = {INTERPRETER: Path(sys.executable).resolve()}
    for kind in ("stdlib", "platstdlib"):
        found |= standard_library(Path(_base_path(kind)))
    for name in sorted(distributions(DISTRIBUTION)):
        found |= files_of(name)
    for name in OUR_PACKAGES:
        found |= package(name)
    return found | shared_libraries(found)


def standard_library(folder: Path) -> Contents:
    """The modules below `folder`, without those that are only for tests and desktops."""
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    place = PurePosixPath("usr", sys.platlibdir if "lib64" in folder.parts else "lib", version)
    unused = {
        name
        for name in (each.name for each in folder.iterdir())
        if name in _UNUSED or name.startswith("config-")
    }
    return {
        place / PurePosixPath(name): folder / name
        for name in _below(folder, unused)
        if not name.rpartition("/")[2].startswith(_UNUSED_MODULES)
    }


def distributions(name: str) -> set[str]:
    """The distributions that one needs to run, by name, and those that these need; without extras. Raises `ContentsError`.

    A requirement that holds elsewhere alone is known by this: it is not installed here.
    """
    found: set[str] = set()
    faults: list[str] = []
    try:
        waiting = _requirements(name)
    except importlib.metadata.PackageNotFoundError:
        raise ContentsError(f"{name} is not installed: install the checkout by pip") from None
    while waiting:
        wanted, is_conditional = waiting.pop()
        if wanted in found:
            continue
        try:
            waiting += _requirements(wanted)
        except importlib.metadata.PackageNotFoundError:
            if not is_conditional:
                faults.append(f"{wanted} is not installed")
            continue
        found.add(wanted)
    if faults:
        raise ContentsError("; ".join(faults))
    return found


def files_of(distribution: str) -> Contents:
    """The files that an installed distribution has put below `site-packages`: whole packages, since some import parts of
    themselves at the first use; without the notes of the installer. Raises `ContentsError`."""
    files = importlib.metadata.distribution(distribution).files
    if files is None:
        raise ContentsError(f"{distribution} does not say which files are its own: install it by pip")
    return {
        PACKAGES / PurePosixPath(*each.parts): Path(str(each.locate()))
        for each in files
        if ".." not in each.parts and "__pycache__" not in each.parts and not _is_note(each)
    }


def package(name: str) -> Contents:
    """The files of one of our packages, wherever it is imported from: a checkout, too. Raises `ContentsError`."""
    spec = importlib.util.find_spec(name)
    if spec is None or not spec.submodule_search_locations:
        raise ContentsError(f"the package {name} cannot be found")
    (folder,) = spec.submodule_search_locations
    return {PACKAGES / name / PurePosixPath(each): Path(folder) / each for each in _below(Path(folder))}


def shared_libraries(contents: Mapping[PurePosixPath, Path]) -> Contents:
    """The libraries that the interpreter and the extension modules load, and the loader; without those that lie in
    `contents`, whose users look for them beside themselves. Raises `ContentsError`.
    """
    programs = [file for file in contents.values() if _is_elf(file)]
    ours = {file.resolve() for file in programs}
    found: Contents = {}
    missing: set[str] = set()
    for line in _linked(programs):
        if "not found" in line:
            missing.add(line.strip())
        resolved = _RESOLVED.match(line)
        if resolved is None:
            continue
        path = Path(resolved["path"] or resolved["loader"])
        if path.resolve() not in ours:
            found[LIBRARIES / (resolved["name"] or path.name).rsplit("/", 1)[-1]] = path
    if missing:
        raise ContentsError(f"shared libraries are missing: {', '.join(sorted(missing))}")
    return found


def _is_note(file: PurePosixPath) -> bool:
    return file.name in _NOTES and file.parent.name.endswith(".dist-info")


def _base_path(kind: str) -> str:
    """A path of the interpreter itself, even if a virtual environment runs."""
    base = {"base": sys.base_prefix, "platbase": sys.base_exec_prefix, "installed_base": sys.base_prefix}
    return sysconfig.get_path(kind, vars=base | {"installed_platbase": sys.base_exec_prefix})


def _requirements(distribution: str) -> list[tuple[str, bool]]:
    """The names that a distribution requires, each with whether under a condition only; not those of extras."""
    found = []
    for text in importlib.metadata.requires(distribution) or ():
        wanted, _, condition = text.partition(";")
        name = _NAME.match(wanted)
        if name and "extra" not in condition:
            found.append((name[0].lower().replace("_", "-"), bool(condition)))
    return found


def _below(folder: Path, unused: Iterable[str] = ()) -> Iterator[str]:
    """The files below a folder, as paths from there; without compiled ones, and without the folders `unused` at the top."""
    for place, folders, files in os.walk(folder):
        top = Path(place) == folder
        folders[:] = sorted(
            each for each in folders if each != "__pycache__" and not (top and each in unused)
        )
        for each in sorted(files):
            if not each.endswith(".pyc"):
                yield os.path.relpath(os.path.join(place, each), folder)  # noqa: PTH118 - thousands of files


def _is_elf(file: Path) -> bool:
    with file.open("rb") as opened:
        return opened.read(4) == b"\x7fELF"


def _linked(programs: list[Path]) -> Iterator[str]:
    """The output of `ldd` for these files, line by line."""
    for start in range(0, len(programs), _AT_ONCE):
        some = [str(file) for file in programs[start : start + _AT_ONCE]]
        try:
            done = subprocess.run(
                ["ldd", *some],
                env={**os.environ, "LC_ALL": "C"},
                capture_output=True,
                text=True,
                check=False,
                timeout=_LDD_S,
            )
        except FileNotFoundError:
            raise ContentsError("ldd is missing: it comes with the C library") from None
        except subprocess.TimeoutExpired:
            raise ContentsError(f"ldd did not end within {_LDD_S:g} s") from None
        yield from done.stdout.splitlines()
