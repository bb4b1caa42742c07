"""The image that guests boot: a kernel, a small initramfs, and a read-only root with the interpreter and the informant.

An image is made from what is installed here, without root, and kept in the cache by a digest of all that goes into it.
"""

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Final

from hosting.files import FileLock
from labs.vms import assets, cpio, ext4, kernel_modules
from labs.vms.contents import Contents, ContentsError, guest_contents
from labs.vms.machine import BootFiles

MODULES: Final = ("virtio_pci", "virtio_net", "virtio_blk", "virtio_mem", "qemu_fw_cfg")
KEPT: Final = 4
"""So many images are kept at least; of the others those are removed that were not used for `IN_USE_S`."""
IN_USE_S: Final = 3600.0
_LAYOUT: Final = "1"
"""Changes with this builder if the same inputs give another image."""
_OURS: Final = Path(__file__).parent / "guest"
_COMPILER: Final = Path(__file__).with_name("compiling.py")
_SLICES: Final = 4
"""The modules are compiled in so many processes, on any number of cores: it decides on the bytes."""
_EMPTY: Final = ("dev", "proc", "sys", "run", "tmp", "var", "root")
_BUSYBOX: Final = PurePosixPath("bin/busybox")
_BUILDING: Final = ".building-"
_TURN_S: Final = 300.0
_POLL_S: Final = 0.1
_FIXED: Final = {
    "etc/passwd": "root:x:0:0:root:/tmp:/bin/sh\n",
    "etc/group": "root:x:0:\n",
    "etc/hosts": "127.0.0.1 localhost guest\n10.0.2.2 host\n",
}


class ImageError(Exception):
    """The image cannot be built. The text is for a person."""


@dataclass(frozen=True, slots=True)
class VmImage:
    """An image in the cache; `digest` tells it from every image with other contents."""

    folder: Path
    digest: str

    def touch(self) -> None:
        """The image is used now. Raises `OSError` if it is not there."""
        _ = self.folder.stat()  # an error of `utime` would not name the folder
        os.utime(self.folder)

    @property
    def files(self) -> BootFiles:
        return BootFiles(self.folder / "vmlinuz", self.folder / "initramfs", self.folder / "root.ext4")


def build(say: Callable[[str], None]) -> VmImage:
    """The image of the installed software, which is made if the cache has none; `say` is told of long steps.

    Raises `ImageError`.
    """
    try:
        kernel = assets.find()
        contents = guest_contents()
        modules = kernel_modules.in_order(kernel.modules, MODULES)
        digest = digest_of(kernel, contents, modules)
        image = VmImage(images_folder() / digest, digest)
        if not _is_there(image):
            say("building the guests' image (some seconds)")
            with _alone():
                if not _is_there(image):  # another process may have built it meanwhile
                    _build(image, kernel, contents, modules)
        image.touch()
        forget_old(images_folder(), time.time())
    except (
        assets.VmAssetsError,
        ContentsError,
        kernel_modules.KernelModuleError,
        ext4.FileSystemError,
    ) as error:
        raise ImageError(str(error)) from None
    except OSError as error:
        raise ImageError(f"{error.filename or images_folder()}: {error.strerror}") from None
    return image


def images_folder() -> Path:
    return assets.cache_folder() / "vm-images"


def digest_of(kernel: assets.VmAssets, contents: Contents, modules: Sequence[Path]) -> str:
    """A digest of everything that goes into an image, in short."""
    digest = hashlib.sha256(f"{_LAYOUT} {sys.version} {kernel.version}".encode())
    inputs: list[tuple[str, Path]] = [(str(place), file) for place, file in sorted(contents.items())]
    inputs += [(f"guest/{each.name}", each) for each in sorted(_OURS.iterdir())]
    inputs += [("builder", Path(each.__file__ or "")) for each in (cpio, ext4)]
    inputs += [
        ("builder", Path(__file__)),
        ("builder", _COMPILER),
        ("kernel", kernel.kernel),
        ("busybox", kernel.busybox),
    ]
    inputs += [("module", each) for each in modules]
    for name, file in inputs:
        content = file.read_bytes()
        digest.update(f"\n{name} {_mode(file):o} {len(content)}\n".encode())
        digest.update(content)
    return digest.hexdigest()[:24]


def initramfs(busybox: bytes, modules: Sequence[Path]) -> bytes:
    """The archive that the kernel begins with. Its first program inserts the modules by the order of their names."""
    entries = [cpio.directory(name) for name in ("bin", "dev", "proc", "root", "modules")]
    entries += [cpio.character_device("dev/console", 5, 1)]
    entries += [
        cpio.program("bin/busybox", busybox),
        cpio.program("init", (_OURS / "initramfs.sh").read_bytes()),
    ]
    for number, file in enumerate(modules):
        entries.append(cpio.program(f"modules/{number:02}-{file.name}", file.read_bytes()))
    return cpio.archive(entries)


def stage(tree: Path, contents: Contents, busybox: Path) -> None:
    """Put the files of the root below `tree`, and compile its modules."""
    for name in _EMPTY:
        (tree / name).mkdir(parents=True)
    for place, file in contents.items():
        _copy(file, tree / place)
    _copy(busybox, tree / _BUSYBOX)
    for name in _applets(busybox):
        if name != "busybox":
            (tree / "bin" / name).symlink_to("busybox")
    _copy(_OURS / "init.sh", tree / "sbin/init", 0o755)
    for name in ("informant.yaml", "quick.yaml"):
        _copy(_OURS / name, tree / "etc/parley" / name)
    for name, text in _FIXED.items():
        (tree / name).write_text(text)
    (tree / "lib64").symlink_to("lib/x86_64-linux-gnu")  # programs look there for their loader
    compile_modules(tree, sorted(str(place) for place in contents if place.suffix == ".py"))
    _level(tree)


def compile_modules(tree: Path, modules: Sequence[str]) -> None:
    """Write the bytecode of modules below `tree` beside them. The guest does not compare it with their sources.

    Raises `ImageError`.
    """
    tag = sys.implementation.cache_tag
    lines = [
        f"{tree / each}\t{(tree / each).parent}/__pycache__/{Path(each).stem}.{tag}.pyc\t/{each}\n"
        for each in modules
    ]
    command = [sys.executable, "-I", "-S", str(_COMPILER)]
    with ExitStack() as stack:
        running = []
        for number in range(_SLICES):
            listed = stack.enter_context(tempfile.TemporaryFile("w+"))
            listed.writelines(lines[number::_SLICES])
            listed.seek(0)
            environment = {"PYTHONHASHSEED": "0", "LC_ALL": "C.UTF-8"}
            running.append(stack.enter_context(subprocess.Popen(command, stdin=listed, env=environment)))
        codes = [process.wait() for process in running]
    if any(codes):
        raise ImageError(f"the modules of the guest cannot be compiled: the compiler ended with {codes}")


def forget_old(folder: Path, now_s: float) -> None:
    """Remove the images of a folder that nobody has used for long. A running guest has its files open, and keeps them."""
    found = [(each.stat().st_mtime, each) for each in folder.iterdir() if not each.name.startswith(".")]
    for used_s, each in sorted(found, reverse=True)[KEPT:]:
        if now_s - used_s > IN_USE_S:
            shutil.rmtree(each, ignore_errors=True)


def make(place: Path, kernel: assets.VmAssets, contents: Contents, modules: Sequence[Path]) -> None:
    """Make the files of an image in the folder `image` below `place`; the files of the root come together beside it.

    Raises `ImageError`, `FileSystemError` and `OSError`.
    """
    folder, tree = place / "image", place / "tree"
    folder.mkdir(parents=True)
    tree.mkdir()
    stage(tree, contents, kernel.busybox)
    ext4.make(tree, folder / "root.ext4")
    (folder / "initramfs").write_bytes(initramfs(kernel.busybox.read_bytes(), modules))
    shutil.copyfile(kernel.kernel, folder / "vmlinuz")


def _build(image: VmImage, kernel: assets.VmAssets, contents: Contents, modules: Sequence[Path]) -> None:
    """Make an image beside its place and move it there, so that the cache has whole images only. The caller has the lock."""
    for left in images_folder().glob(f"{_BUILDING}*"):  # of a build that was killed
        shutil.rmtree(left, ignore_errors=True)
    with tempfile.TemporaryDirectory(dir=images_folder(), prefix=_BUILDING) as made:
        make(Path(made), kernel, contents, modules)
        (Path(made) / "image").rename(image.folder)


@contextmanager
def _alone() -> Iterator[None]:
    """No other process builds an image meanwhile. Raises `ImageError` if one does so for too long."""
    images_folder().mkdir(parents=True, exist_ok=True)
    deadline_s = time.monotonic() + _TURN_S
    with FileLock(images_folder() / ".lock") as lock:
        while not lock.try_acquire():
            if time.monotonic() > deadline_s:
                raise ImageError(f"process {lock.holder()} has been building an image for {_TURN_S:g} s")
            time.sleep(_POLL_S)
        yield


def _is_there(image: VmImage) -> bool:
    return (image.folder / "root.ext4").exists()


def _copy(file: Path, target: Path, mode: int | None = None) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(file, target)
    target.chmod(_mode(file) if mode is None else mode)


def _mode(file: Path) -> int:
    """The mode that a file has in the guest, independent of the umask and the owner's habits here."""
    return 0o755 if file.stat().st_mode & 0o100 else 0o644


def _level(tree: Path) -> None:
    for folder, _, files in os.walk(tree):
        Path(folder).chmod(0o755)
        for each in files:
            file = Path(folder, each)
            if not file.is_symlink():
                file.chmod(_mode(file))


def _applets(busybox: Path) -> list[str]:
    return subprocess.run([str(busybox), "--list"], capture_output=True, text=True, check=True).stdout.split()
