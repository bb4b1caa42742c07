"""The needs of guests besides this project: QEMU, a kernel with its modules, a static busybox and some tools.

    python -m labs.vms.assets

gets the kernel and busybox from Debian's packages into the user's cache, without root, and installs QEMU if it runs as root. It needs
nothing but the standard library, because it runs before anything of the project is installed.
"""

import os
import platform
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from labs.vms import debian
from labs.vms.debian import DebianError

QEMU: Final = "qemu-system-x86_64"
PROGRAMS: Final = {QEMU: "qemu-system-x86", "mke2fs": "e2fsprogs", "setpriv": "util-linux", "ldd": "libc-bin"}
"""Programs of this machine, and Debian's packages that have them."""
KERNEL_PACKAGE: Final = "linux-image-cloud-amd64"
BUSYBOX_PACKAGE: Final = "busybox-static"
HOW: Final = "`make vm-assets` gets them, once (in a checkout; else `python -m labs.vms.assets`)"
_PREFIX: Final = "vm-kernel-"
_MAKING: Final = ".vm-assets-"


class VmAssetsError(Exception):
    """Something that guests need is missing, or cannot be had. The text is for a person."""


@dataclass(frozen=True, slots=True)
class VmAssets:
    """The kernel and busybox in one folder of the cache. `version` is that of the kernel's package."""

    folder: Path
    version: str

    @property
    def kernel(self) -> Path:
        return self.folder / "vmlinuz"

    @property
    def modules(self) -> Path:
        return self.folder / "modules"

    @property
    def busybox(self) -> Path:
        return self.folder / "busybox"


def cache_folder() -> Path:
    """The folder of everything that can be made again."""
    cache = Path(os.environ.get("XDG_CACHE_HOME", "") or Path.home() / ".cache")
    return cache / "parley"


def find() -> VmAssets:
    """The newest kernel of the cache. Raises `VmAssetsError`, which names everything that is missing."""
    faults = list(missing_programs())
    found = newest_kernel()
    if found is None:
        faults.append(f"there is no kernel in {cache_folder()}")
    if faults:
        raise VmAssetsError(f"{'; '.join(faults)}. {HOW}")
    assert found is not None, "a kernel that is missing is a fault"
    return found


def newest_kernel() -> VmAssets | None:
    """The kernel that came into the cache last; folders come there whole, or not at all."""
    folders = sorted(
        cache_folder().glob(f"{_PREFIX}*"), key=lambda each: (each.stat().st_mtime_ns, each.name)
    )
    if not folders:
        return None
    return VmAssets(folders[-1], folders[-1].name.removeprefix(_PREFIX))


def missing_programs() -> Iterator[str]:
    """The things that are missing on this machine besides the cache, each with a remedy."""
    if sys.platform != "linux" or platform.machine() != "x86_64":
        yield f"guests run on Linux on x86-64 (this is {sys.platform} on {platform.machine()})"
    for name, package in PROGRAMS.items():
        if program(name) is None:
            yield f"{name} is missing (Debian's package {package})"


def program(name: str) -> str | None:
    """The path of a program, also of one for administrators."""
    return shutil.which(name, path=f"{os.environ.get('PATH', os.defpath)}:/usr/sbin:/sbin")


def get() -> VmAssets:
    """Get what is missing. Raises `VmAssetsError`."""
    packages = {package for name, package in PROGRAMS.items() if program(name) is None}
    try:
        if packages:
            debian.install(packages, missing_programs())
        return newest_kernel() or _get_kernel()
    except DebianError as error:
        raise VmAssetsError(str(error)) from None


def _get_kernel() -> VmAssets:
    for needed in ("apt-get", "apt-cache", "dpkg-deb"):
        if shutil.which(needed) is None:
            raise VmAssetsError(
                f"{needed} is missing: the kernel comes from Debian's packages. Copy a folder {cache_folder()}/{_PREFIX}* from a"
                " machine with Debian"
            )
    if not _depends(KERNEL_PACKAGE) and os.geteuid() == 0:
        debian.update_lists()
    kernels = [each for each in _depends(KERNEL_PACKAGE) if each.startswith("linux-image-")]
    if not kernels:
        raise VmAssetsError(
            f"apt-cache knows no package {KERNEL_PACKAGE}: run `apt-get update` as root. On Ubuntu there is none: copy a folder"
            f" {cache_folder()}/{_PREFIX}* from a machine with Debian"
        )
    with debian.making(cache_folder(), _MAKING) as made:
        return _unpack(made, kernels[0])


def _unpack(place: Path, kernel: str) -> VmAssets:
    since = time.monotonic()
    debian.say(f"getting {kernel} and {BUSYBOX_PACKAGE}, 29 MB")
    unpacked, versions = debian.unpack([kernel, BUSYBOX_PACKAGE], place)
    folder = place / "folder"
    folder.mkdir()
    try:
        (image,) = unpacked.glob("boot/vmlinuz-*")
        # Newer releases of Debian have everything below `usr`.
        (modules,) = [*unpacked.glob("lib/modules/*"), *unpacked.glob("usr/lib/modules/*")]
        (busybox,) = [*unpacked.glob("bin/busybox"), *unpacked.glob("usr/bin/busybox")]
    except ValueError:
        raise VmAssetsError(
            f"{kernel} or {BUSYBOX_PACKAGE} is not as expected: a file is missing, or there twice"
        ) from None
    image.replace(folder / "vmlinuz")
    modules.replace(folder / "modules")
    busybox.replace(folder / "busybox")
    version = f"{modules.name}-{versions[kernel]}-busybox-{versions[BUSYBOX_PACKAGE]}".replace(":", ".")
    target = cache_folder() / f"{_PREFIX}{version}"
    debian.keep(folder, target)
    debian.say(f"{target}: got in {time.monotonic() - since:.0f} s")
    return VmAssets(target, version)


def _depends(package: str) -> list[str]:
    english = {**os.environ, "LC_ALL": "C"}  # the word `Depends` is translated otherwise
    done = subprocess.run(
        ["apt-cache", "depends", package], env=english, capture_output=True, text=True, check=False
    )
    lines = (line.strip() for line in done.stdout.splitlines())
    return [line.removeprefix("Depends: ") for line in lines if line.startswith("Depends: ")]


def main() -> None:
    try:
        found = get()
    except VmAssetsError as error:
        sys.exit(str(error))
    except OSError as error:
        sys.exit(f"{error.filename or cache_folder()}: {error.strerror}")
    print(f"{found.folder}: the kernel and busybox are there; QEMU is {program(QEMU)}")


if __name__ == "__main__":
    main()
