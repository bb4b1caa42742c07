"""Debian's packages by Debian's own tools: fetched into a folder without root, installed with it.

Nothing but the standard library is needed, because this runs before anything of the project is installed.
"""

import contextlib
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

DEADLINE_S: Final = 1800.0
"""How long one command of the package manager may take; a slow line has time for 100 MB."""


class DebianError(Exception):
    """A package cannot be had. The text is for a person."""


def say(line: str) -> None:
    """Tell how far the work is."""
    print(line, flush=True)


def run(command: list[str], place: Path | None = None) -> str:
    """The output of a command. Raises `DebianError` if it fails, or takes too long."""
    try:
        done = subprocess.run(
            command,
            cwd=place,
            env=dict(os.environ, DEBIAN_FRONTEND="noninteractive"),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
            timeout=DEADLINE_S,
        )
    except subprocess.TimeoutExpired:
        raise DebianError(f"{' '.join(command)} did not end within {DEADLINE_S:g} s") from None
    if done.returncode:
        tail = "\n".join(done.stdout.splitlines()[-5:])
        raise DebianError(f"{' '.join(command)} ended with code {done.returncode}:\n{tail}")
    return done.stdout


def update_lists() -> None:
    """Fetch the lists of packages, as root. Raises `DebianError`."""
    say("updating the lists of packages")
    run(["apt-get", "update", "-q"])


def install(packages: Iterable[str], missing: Iterable[str]) -> None:
    """Install packages as root. `missing` says what for. Raises `DebianError`, which says what to do by hand."""
    names, why = sorted(packages), "; ".join(missing)
    if shutil.which("apt-get") is None:
        raise DebianError(f"{why}. Install them; there is no apt-get here")
    if os.geteuid() != 0:
        raise DebianError(f"{why}. As root: apt-get install --no-install-recommends {' '.join(names)}")
    update_lists()
    say(f"installing {', '.join(names)}")
    run(["apt-get", "install", "-y", "-q", "--no-install-recommends", *names])


def unpack(packages: list[str], place: Path) -> tuple[Path, dict[str, str]]:
    """Download packages, and unpack them together: the folder with their files, and the version of each. Raises `DebianError`."""
    place.chmod(0o755)  # apt's own user writes there if we are root
    download = ["apt-get", "download", "-q", *packages]
    try:
        run(download, place)
    except DebianError as fault:
        if os.geteuid() != 0:
            raise
        try:
            update_lists()  # there are none, or they name a package that has been replaced
        except DebianError:
            raise fault from None
        run(download, place)
    versions = {}
    for package in sorted(place.glob("*.deb")):
        shown = run(
            ["dpkg-deb", "--show", "--showformat", "${Package}\\n${Version}\\n", package.name], place
        ).splitlines()
        versions[shown[0]] = shown[1]
        run(["dpkg-deb", "-x", package.name, "unpacked"], place)
    return place / "unpacked", versions


@contextlib.contextmanager
def making(cache: Path, prefix: str) -> Iterator[Path]:
    """A folder in the cache in which something is made. The leftovers of a killed run under that prefix are removed."""
    cache.mkdir(parents=True, exist_ok=True)
    for each in cache.glob(f"{prefix}*"):
        if time.time() - each.stat().st_mtime > DEADLINE_S:  # a run that goes on just now is younger
            shutil.rmtree(each, ignore_errors=True)
    with tempfile.TemporaryDirectory(dir=cache, prefix=prefix) as made:
        yield Path(made)


def keep(folder: Path, target: Path) -> None:
    """Move the result to its place, whole. Somebody else may have made the same just now."""
    try:
        folder.rename(target)
    except OSError:
        if not target.is_dir():
            raise
