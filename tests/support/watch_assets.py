"""The needs of the tests of alert rules, of the board and of the live page: Debian's Prometheus with its promtool, and Chromium with
its driver.

    python3 -m tests.support.watch_assets

gets Prometheus from Debian's package into the user's cache, without root, and installs Chromium if it runs as root and Chromium is
missing. It needs nothing but the standard library, because it runs before anything of the project is installed.
"""

import contextlib
import shutil
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from labs.vms import debian
from labs.vms.assets import cache_folder, program
from labs.vms.debian import DebianError

PACKAGE: Final = "prometheus"
BROWSER: Final = {"chromium": "chromium", "chromedriver": "chromium-driver"}
"""Programs of this machine, and Debian's packages that have them."""
HOW: Final = "`make watch-assets` gets it, once"
_PREFIX: Final = "prometheus-"
_MAKING: Final = ".watch-assets-"


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
    for get_one in (_get_prometheus, _get_browser):
        try:
            get_one()
        except (WatchAssetsError, DebianError) as error:
            faults.append(str(error))
    if faults:
        raise WatchAssetsError("\n".join(faults))
    return find_prometheus(), find_browser()


def _get_browser() -> None:
    if missing := list(_missing_of_browser()):
        debian.install(BROWSER.values(), missing)


def _get_prometheus() -> None:
    with contextlib.suppress(WatchAssetsError):
        find_prometheus()
        return
    for needed in ("apt-get", "dpkg-deb"):
        if shutil.which(needed) is None:
            raise WatchAssetsError(
                f"{needed} is missing: Prometheus comes from Debian's package. Copy a folder {cache_folder()}/{_PREFIX}* from a"
                " machine with Debian"
            )
    with debian.making(cache_folder(), _MAKING) as made:
        _unpack(made)


def _unpack(place: Path) -> None:
    since = time.monotonic()
    debian.say(f"getting {PACKAGE}, 19 MB")
    unpacked, versions = debian.unpack([PACKAGE], place)
    version = versions[PACKAGE]
    folder = place / "folder"
    folder.mkdir()
    for name in ("prometheus", "promtool"):
        made = unpacked / "usr/bin" / name
        if not made.is_file():
            raise WatchAssetsError(f"{PACKAGE} {version} is not as expected: it has no /usr/bin/{name}")
        debian.run([str(made), "--version"])  # its libraries are there
        made.replace(folder / name)
    target = cache_folder() / f"{_PREFIX}{version.replace(':', '.')}"
    debian.keep(folder, target)
    debian.say(f"{target}: got in {time.monotonic() - since:.0f} s")


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
