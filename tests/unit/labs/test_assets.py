"""The assets that guests need are found, or got, or named."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from labs.vms import assets
from labs.vms.assets import VmAssetsError

Programs = Callable[..., None]


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "parley"


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Programs:
    """Makes these scripts the only programs that are found."""
    folder = tmp_path / "bin"
    folder.mkdir()
    shell = shutil.which("sh")
    monkeypatch.setattr(assets, "program", lambda name: shutil.which(name, path=str(folder)))
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")

    def make(**scripts: str) -> None:
        for name, script in scripts.items():
            file = folder / name.replace("_", "-").replace("qemu-system-x86-64", assets.QEMU)
            file.write_text(f"#!{shell}\n{script}\n")
            file.chmod(0o755)

    return make


ALL = dict.fromkeys(("qemu_system_x86_64", "mke2fs", "setpriv", "ldd"), "exit 0")
APT_CACHE = 'echo "linux-image-cloud-amd64"; echo "  Depends: linux-image-6.1.0-9-cloud-amd64"'
APT_GET = """
[ "$1" = download ] || { echo "$@" >> "$0.log"; exit 0; }
touch kernel_6.deb busybox_1.deb
"""
DPKG_DEB = """
case "$1 ${4##*/}" in
*kernel*) package=linux-image-6.1.0-9-cloud-amd64 ;;
*) package=busybox-static ;;
esac
case "$1" in
--show) echo $package; echo 1:6.1.9-1 ;;
-x) mkdir -p unpacked/boot unpacked/lib/modules/6.1.0-9-cloud-amd64 unpacked/bin
    touch unpacked/boot/vmlinuz-6.1.0-9-cloud-amd64 unpacked/bin/busybox ;;
esac
"""


def test_everything_that_is_missing_is_named_at_once(programs: Programs) -> None:
    programs(mke2fs="exit 0", ldd="exit 0")
    with pytest.raises(VmAssetsError) as caught:
        assets.find()
    told = str(caught.value)
    assert "qemu-system-x86_64 is missing (Debian's package qemu-system-x86)" in told
    assert "setpriv is missing (Debian's package util-linux)" in told
    assert "there is no kernel in" in told
    assert "mke2fs" not in told
    assert "`make vm-assets` gets them" in told


def test_the_kernel_comes_into_the_cache_whole_and_once(
    programs: Programs, cache: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    programs(**ALL, apt_cache=APT_CACHE, apt_get=APT_GET, dpkg_deb=DPKG_DEB)
    found = assets.get()
    assert found == assets.find()
    assert found.version == "6.1.0-9-cloud-amd64-1.6.1.9-1-busybox-1.6.1.9-1"
    assert found.kernel.is_file()
    assert found.busybox.is_file()
    assert found.modules.is_dir()
    assert [each.name for each in cache.iterdir()] == [
        f"vm-kernel-{found.version}"
    ]  # nothing half-made beside it
    assert "getting linux-image-6.1.0-9-cloud-amd64" in capsys.readouterr().out
    programs(apt_cache="exit 1", apt_get="exit 1")
    assert assets.get() == found
    assert capsys.readouterr().out == ""


def test_the_kernel_is_found_in_any_language(programs: Programs, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LANG", "de_DE.UTF-8")
    monkeypatch.delenv("LC_ALL", raising=False)
    german = f'[ "$LC_ALL" = C ] || {{ echo "  Hängt ab von: linux-image-6.1"; exit; }}\n{APT_CACHE}'
    programs(**ALL, apt_cache=german, apt_get=APT_GET, dpkg_deb=DPKG_DEB)
    assert assets.get().kernel.is_file()


def test_what_a_killed_run_has_left_is_removed_and_a_run_that_goes_on_is_left_alone(
    programs: Programs, cache: Path
) -> None:
    for name in (".vm-assets-killed", ".vm-assets-running"):
        (cache / name / "unpacked").mkdir(parents=True)
    os.utime(cache / ".vm-assets-killed", (1, 1))
    programs(**ALL, apt_cache=APT_CACHE, apt_get=APT_GET, dpkg_deb=DPKG_DEB)
    assets.get()
    assert [each.name for each in cache.glob(".*")] == [".vm-assets-running"]


def test_a_download_that_fails_leaves_nothing_and_is_told(programs: Programs, cache: Path) -> None:
    programs(**ALL, apt_cache=APT_CACHE, apt_get='echo "E: Failed to fetch"; exit 100', dpkg_deb=DPKG_DEB)
    with pytest.raises(VmAssetsError, match=r"apt-get download .* ended with code 100:\nE: Failed to fetch"):
        assets.get()
    assert list(cache.iterdir()) == []


def test_a_package_without_a_kernel_is_told(programs: Programs, cache: Path) -> None:
    programs(**ALL, apt_cache=APT_CACHE, apt_get=APT_GET, dpkg_deb="mkdir -p unpacked; echo x; echo 1")
    with pytest.raises(VmAssetsError, match="is not as expected"):
        assets.get()
    assert list(cache.iterdir()) == []


def test_root_installs_what_is_missing_and_others_are_told_how(
    programs: Programs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    programs(
        mke2fs="exit 0",
        setpriv="exit 0",
        ldd="exit 0",
        apt_cache=APT_CACHE,
        apt_get=APT_GET,
        dpkg_deb=DPKG_DEB,
    )
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(
        VmAssetsError, match="As root: apt-get install --no-install-recommends qemu-system-x86"
    ):
        assets.get()
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    assets.get()
    called = (tmp_path / "bin" / "apt-get.log").read_text().splitlines()
    assert called == ["update -q", "install -y -q --no-install-recommends qemu-system-x86"]


def test_lists_of_packages_that_are_empty_are_fetched_by_root_alone(
    programs: Programs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = f'[ -e "{tmp_path}/bin/apt-get.log" ] || exit 0\n{APT_CACHE}'
    programs(**ALL, apt_cache=known, apt_get=APT_GET, dpkg_deb=DPKG_DEB)
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(VmAssetsError, match="run `apt-get update` as root"):
        assets.get()
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    assert assets.get().kernel.is_file()


def test_the_kernel_that_came_last_is_used(cache: Path, programs: Programs) -> None:
    programs(**ALL)
    for number, name in enumerate(("vm-kernel-6.10", "vm-kernel-6.9")):
        (cache / name).mkdir(parents=True)
        os.utime(cache / name, (number, number))
    (cache / ".vm-assets-x").mkdir()
    assert assets.find().version == "6.9"


def test_the_program_ends_with_the_fault_and_no_traceback(
    programs: Programs, monkeypatch: pytest.MonkeyPatch
) -> None:
    programs(**ALL, apt_cache="exit 0", apt_get="exit 0", dpkg_deb="exit 0")
    with pytest.raises(SystemExit, match="knows no package linux-image-cloud-amd64"):
        assets.main()
