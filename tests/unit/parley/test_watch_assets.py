"""The assets that the tests of alerts, board and page need are found, or got, or named. Debian's tools are scripts here."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support import watch_assets
from tests.support.watch_assets import WatchAssetsError

Programs = Callable[..., None]
APT_GET = 'echo "$@" >> "$0.log"; [ "$1" = download ] && touch prometheus.deb; exit 0'
DPKG_DEB = """
case "$1" in
--show) echo prometheus; echo 1:2.42.0+ds-5 ;;
-x) mkdir -p unpacked/usr/bin
    for each in prometheus promtool; do printf '#!/bin/sh\\nexit 0\\n' > unpacked/usr/bin/$each; chmod +x unpacked/usr/bin/$each; done ;;
esac
"""
BROWSER = dict.fromkeys(("chromium", "chromedriver"), "exit 0")


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "parley"


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Programs:
    """Makes these scripts the only programs that are found, besides those of the shell."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setattr(watch_assets, "program", lambda name: shutil.which(name, path=str(folder)))
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")

    def make(**scripts: str) -> None:
        for name, script in scripts.items():
            file = folder / name.replace("_", "-")
            file.write_text(f"#!/bin/sh\n{script}\n")
            file.chmod(0o755)

    return make


def test_what_is_missing_is_named_with_what_gets_it() -> None:
    with pytest.raises(WatchAssetsError, match=r"there is no Prometheus in .*`make watch-assets` gets it"):
        watch_assets.find_prometheus()


def test_every_missing_program_of_the_browser_is_named_at_once(programs: Programs) -> None:
    programs()
    with pytest.raises(WatchAssetsError) as caught:
        watch_assets.find_browser()
    assert "chromium is missing (Debian's package chromium)" in str(caught.value)
    assert "chromedriver is missing (Debian's package chromium-driver)" in str(caught.value)


def test_prometheus_comes_into_the_cache_whole_and_once(
    programs: Programs, cache: Path, tmp_path: Path
) -> None:
    programs(**BROWSER, apt_get=APT_GET, dpkg_deb=DPKG_DEB)
    found, browser = watch_assets.get()
    assert found == watch_assets.find_prometheus()
    assert found.version == "1.2.42.0+ds-5"
    assert found.promtool.is_file()
    assert found.prometheus.is_file()
    assert browser.driver == str(tmp_path / "bin/chromedriver")
    assert [each.name for each in cache.iterdir()] == ["prometheus-1.2.42.0+ds-5"]
    assert watch_assets.get() == (found, browser)
    assert (tmp_path / "bin/apt-get.log").read_text().splitlines() == ["download -q prometheus"]


def test_without_root_prometheus_is_got_all_the_same_and_the_browser_is_named(programs: Programs) -> None:
    programs(apt_get=APT_GET, dpkg_deb=DPKG_DEB)
    with pytest.raises(WatchAssetsError, match=r"As root: apt-get install .* chromium chromium-driver"):
        watch_assets.get()
    assert watch_assets.find_prometheus().promtool.is_file()


def test_a_package_without_its_programs_leaves_nothing_in_the_cache(programs: Programs, cache: Path) -> None:
    programs(**BROWSER, apt_get=APT_GET, dpkg_deb='[ "$1" = -x ] || { echo prometheus; echo 9; }')
    with pytest.raises(
        WatchAssetsError, match="prometheus 9 is not as expected: it has no /usr/bin/prometheus"
    ):
        watch_assets.get()
    assert list(cache.iterdir()) == []
