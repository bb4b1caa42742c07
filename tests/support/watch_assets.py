"""What the tests of alert rules, of the board and of the live page need: Debian's Prometheus with its promtool, and Chromium with its driver.

    python3 -m tests.support.watch_assets

gets Prometheus from Debian's package into the user's cache, without root, and installs Chromium where it runs as root and Chromium is missing. It needs
nothing but the standard library, because it runs before anything of the project is installed.
"""

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from parley.vms.assets import cache_folder, program

PACKAGE: Final = "prometheus"
BROWSER: Final = {"chromium": "chromium", "chromedriver": "chromium-driver"}
"""Programs of this machine, and Debian's packages that have them."""
HOW: Final = "`make watch-assets` gets it, once"
_PREFIX: Final = "prometheus-"
_MAKING: Final = ".watch-assets-"
_DEADLINE_S: Final = 1800.0
"""How long one command of the package manager may take; a slow line has time for Chromium's 100 MB."""


class WatchAssetsError(Exception):
    """Something that these tests need is missing, or cannot be had. The text is for a person."""


@dataclass(frozen=True, slots=True)
class PrometheusPrograms:
    """Prometheus and promtool in one folder of the cache. `version` is that of Debian's package."""

    folder: Path
    version: str

    @property
    def prometheus(self) -> Path:
        return self.folder / "prometheus"

    @property
    def promtool(self) -> Path:
        return self.folder / "promtool"


@dataclass(frozen=True, slots=True)
class Browser:
    """The paths of Chromium and of its driver."""

    chromium: str
    driver: str


def find_prometheus() -> PrometheusPrograms:
    """The Prometheus that came into the cache last. Raises `WatchAssetsError`."""
    # A folder comes there whole, or not at all.
    folders = sorted(
        cache_folder().glob(f"{_PREFIX}*"), key=lambda each: (each.stat().st_mtime_ns, each.name)
    )
    if not folders:
        raise WatchAssetsError(f"there is no Prometheus in {cache_folder()}. {HOW}")
    return PrometheusPrograms(folders[-1], folders[-1].name.removeprefix(_PREFIX))


def find_browser() -> Browser:
    """Chromium of this machine. Raises `WatchAssetsError`, which names everything that is missing."""
    chromium, driver = (program(name) for name in BROWSER)
    if chromium is None or driver is None:
        raise WatchAssetsError(f"{'; '.join(_missing_of_browser())}. As root {HOW}")
    return Browser(chromium, driver)


def _missing_of_browser() -> Iterator[str]:
    for name, package in BROWSER.items():
        if program(name) is None:
            yield f"{name} is missing (Debian's package {package})"


def get() -> tuple[PrometheusPrograms, Browser]:
    """Get what is missing. Raises `WatchAssetsError`, when everything that can be had is there."""
    faults = []
    try:
        find_prometheus()
    except WatchAssetsError:
        try:
            _get_prometheus()
        except WatchAssetsError as error:
            faults.append(str(error))
    if any(_missing_of_browser()):
        try:
            _install_browser()
        except WatchAssetsError as error:
            faults.append(str(error))
    if faults:
        raise WatchAssetsError("\n".join(faults))
    return find_prometheus(), find_browser()


def _install_browser() -> None:
    missing, packages = "; ".join(_missing_of_browser()), " ".join(sorted(BROWSER.values()))
    if shutil.which("apt-get") is None:
        raise WatchAssetsError(f"{missing}. Install them; there is no apt-get here")
    if os.geteuid() != 0:
        raise WatchAssetsError(
            f"{missing}. As root: apt-get install --no-install-recommends {packages}. Without them the tests of the live page are skipped"
        )
    _update_lists()
    _say(f"installing {packages}")
    _run(["apt-get", "install", "-y", "-q", "--no-install-recommends", *sorted(BROWSER.values())])


def _get_prometheus() -> None:
    for needed in ("apt-get", "dpkg-deb"):
        if shutil.which(needed) is None:
            raise WatchAssetsError(
                f"{needed} is missing: Prometheus comes from Debian's package. Copy a folder {cache_folder()}/{_PREFIX}* from a"
                " machine with Debian"
            )
    cache_folder().mkdir(parents=True, exist_ok=True)
    _remove_left_overs()
    with tempfile.TemporaryDirectory(dir=cache_folder(), prefix=_MAKING) as made:
        _unpack(Path(made))


def _unpack(place: Path) -> None:
    since = time.monotonic()
    place.chmod(0o755)  # apt's own user writes there where we are root
    _say(f"getting {PACKAGE}, 19 MB")
    try:
        _run(["apt-get", "download", "-q", PACKAGE], place)
    except WatchAssetsError:
        if os.geteuid() != 0:
            raise
        _update_lists()  # there are none, or they name a package that has been replaced
        _run(["apt-get", "download", "-q", PACKAGE], place)
    (package,) = place.glob("*.deb")
    version = _run(["dpkg-deb", "--show", "--showformat", "${Version}", package.name], place).strip()
    _run(["dpkg-deb", "-x", package.name, "unpacked"], place)
    folder = place / "folder"
    folder.mkdir()
    for name in ("prometheus", "promtool"):
        unpacked = place / "unpacked/usr/bin" / name
        if not unpacked.is_file():
            raise WatchAssetsError(f"{PACKAGE} {version} is not as expected: it has no /usr/bin/{name}")
        _run([str(unpacked), "--version"])  # its libraries are there
        unpacked.replace(folder / name)
    target = cache_folder() / f"{_PREFIX}{version.replace(':', '.')}"
    try:
        folder.rename(target)
    except OSError:
        if not target.is_dir():  # else somebody else has got the same just now
            raise
    _say(f"{target}: got in {time.monotonic() - since:.0f} s")


def _remove_left_overs() -> None:
    """Remove what a run has left that was killed. A run that goes on just now is younger."""
    for each in cache_folder().glob(f"{_MAKING}*"):
        if time.time() - each.stat().st_mtime > _DEADLINE_S:
            shutil.rmtree(each, ignore_errors=True)


def _update_lists() -> None:
    _say("updating the lists of packages")
    _run(["apt-get", "update", "-q"])


def _run(command: list[str], place: Path | None = None) -> str:
    """What a command has printed. Raises `WatchAssetsError`."""
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
            timeout=_DEADLINE_S,
        )
    except subprocess.TimeoutExpired:
        raise WatchAssetsError(f"{' '.join(command)} did not end within {_DEADLINE_S:g} s") from None
    if done.returncode:
        tail = "\n".join(done.stdout.splitlines()[-5:])
        raise WatchAssetsError(f"{' '.join(command)} ended with code {done.returncode}:\n{tail}")
    return done.stdout


def _say(line: str) -> None:
    print(line, flush=True)


def main() -> None:
    try:
        programs, browser = get()
    except WatchAssetsError as error:
        sys.exit(str(error))
    except OSError as error:
        sys.exit(f"{error.filename or cache_folder()}: {error.strerror}")
    print(f"{programs.folder}: Prometheus and promtool are there; Chromium is {browser.chromium}")


if __name__ == "__main__":
    main()
