"""The image's parts and its cache."""

import os
import sys
from collections.abc import Callable
from pathlib import Path, PurePosixPath

import pytest

from labs.vms import assets
from labs.vms import image as images
from labs.vms.assets import VmAssets
from labs.vms.image import ImageError, compile_modules, digest_of, forget_old, initramfs, stage
from tests.unit.labs.test_cpio import read


@pytest.fixture
def kernel(tmp_path: Path) -> VmAssets:
    folder = tmp_path / "kernel"
    (folder / "modules").mkdir(parents=True)
    (folder / "vmlinuz").write_bytes(b"kernel")
    (folder / "busybox").write_text("#!/bin/sh\necho sh\necho busybox\necho mount\n")
    (folder / "busybox").chmod(0o700)
    return VmAssets(folder, "6.1")


@pytest.fixture
def contents(tmp_path: Path) -> dict[PurePosixPath, Path]:
    """A module, another one, and a program."""
    made = tmp_path / "made"
    made.mkdir()
    (made / "m.py").write_text("NAMES = {'x', 'y', 'z'}\n")
    (made / "bad.py").write_text("this is a template of {{ something }}\n")
    (made / "python").write_bytes(b"\x7fELF")
    (made / "python").chmod(0o700)
    return {
        PurePosixPath("opt/parley/m.py"): made / "m.py",
        PurePosixPath("opt/parley/bad.py"): made / "bad.py",
        PurePosixPath("usr/bin/python3"): made / "python",
    }


def test_the_initramfs_has_its_modules_in_the_order_of_their_names(tmp_path: Path) -> None:
    modules = [tmp_path / f"{name}.ko" for name in ("virtio", "virtio_net", "failover")]
    for each in modules:
        each.write_bytes(each.stem.encode())
    found = read(initramfs(b"busybox", modules))
    inside = [name for name in found if name.startswith("modules/")]
    assert (
        inside
        == sorted(inside)
        == ["modules/00-virtio.ko", "modules/01-virtio_net.ko", "modules/02-failover.ko"]
    )
    assert found["bin/busybox"] == (0o100755, b"busybox")
    assert found["init"][1].startswith(b"#!/bin/busybox sh")
    assert found["dev/console"][0] == 0o020600


def test_the_root_has_what_the_guest_begins_with(
    tmp_path: Path, kernel: VmAssets, contents: dict[PurePosixPath, Path]
) -> None:
    tree = tmp_path / "tree"
    tree.mkdir()
    before = os.umask(0o077)
    try:
        stage(tree, contents, kernel.busybox)
    finally:
        os.umask(before)
    modes = {
        each.relative_to(tree).as_posix(): each.stat().st_mode & 0o777
        for each in tree.rglob("*")
        if not each.is_symlink()
    }
    assert modes["sbin/init"] == modes["bin/busybox"] == modes["usr/bin/python3"] == 0o755
    assert modes["etc/parley/informant.yaml"] == modes["opt/parley/m.py"] == 0o644
    assert {modes[name] for name in ("proc", "tmp", "opt/parley/__pycache__")} == {0o755}
    assert (tree / "bin/mount").readlink() == Path("busybox")
    compiled = f"opt/parley/__pycache__/m.{sys.implementation.cache_tag}.pyc"
    assert modes[compiled] == 0o644
    assert (tree / compiled).read_bytes()[4:8] == b"\x01\0\0\0"  # by hash, and not compared with the source
    assert not (tree / compiled.replace("/m.", "/bad.")).exists()


def test_bytecode_is_the_same_each_time_and_names_the_path_in_the_guest(tmp_path: Path) -> None:
    source = "\n".join(
        f"NAMES_{number} = {{'a{number}', 'b', 'c'}}\ndef f(x): return x in {{'b', 'c'}}"
        for number in range(20)
    )
    found = []
    for name in ("one", "other"):
        for number in range(6):
            module = tmp_path / name / "p" / f"m{number}.py"
            module.parent.mkdir(parents=True, exist_ok=True)
            module.write_text(source)
        compile_modules(tmp_path / name, [f"p/m{number}.py" for number in range(6)])
        found.append(
            {each.name: each.read_bytes() for each in sorted((tmp_path / name / "p/__pycache__").iterdir())}
        )
    assert len(found[0]) == 6
    assert found[0] == found[1]
    assert all(b"/p/m" in each and str(tmp_path).encode() not in each for each in found[0].values())


@pytest.mark.skipif(
    assets.program("mke2fs") is None, reason="mke2fs is missing: apt-get install e2fsprogs, as root"
)
def test_the_same_inputs_give_the_same_image_whatever_order_they_come_in(
    tmp_path: Path, kernel: VmAssets, contents: dict[PurePosixPath, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    module = tmp_path / "a.ko"
    module.write_bytes(b"module")
    images.make(tmp_path / "one", kernel, contents, [module])
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    for each in contents.values():
        os.utime(each, (1, 1))
    before = os.umask(0o077)
    try:
        images.make(tmp_path / "other", kernel, dict(reversed(contents.items())), [module])
    finally:
        os.umask(before)
    for name in ("root.ext4", "initramfs", "vmlinuz"):
        assert (tmp_path / "one/image" / name).read_bytes() == (tmp_path / "other/image" / name).read_bytes()


def test_the_digest_is_of_all_that_goes_in(
    kernel: VmAssets, contents: dict[PurePosixPath, Path], tmp_path: Path
) -> None:
    module = tmp_path / "a.ko"
    module.write_bytes(b"module")
    digests = [digest_of(kernel, contents, [module])]
    changes: list[Callable[[], object]] = [
        lambda: contents[PurePosixPath("opt/parley/m.py")].write_text("x = 1\n"),
        lambda: contents[PurePosixPath("opt/parley/m.py")].chmod(0o755),
        lambda: contents.update({PurePosixPath("opt/parley/n.py"): module}),
        lambda: module.write_bytes(b"another"),
        lambda: kernel.busybox.write_bytes(b"another"),
        lambda: kernel.kernel.write_bytes(b"another"),
    ]
    for change in changes:
        change()
        digests.append(digest_of(kernel, contents, [module]))
    assert len(set(digests)) == 1 + len(changes)
    os.utime(module, (1, 1))
    assert digest_of(kernel, contents, [module]) == digests[-1]


def test_images_that_nobody_has_used_for_long_are_removed(tmp_path: Path) -> None:
    for number in range(8):
        folder = tmp_path / f"i{number}"
        folder.mkdir()
        (folder / "root.ext4").write_bytes(b"x")
        os.utime(folder, (1000.0 * number, 1000.0 * number))
    (tmp_path / ".building-x").mkdir()
    forget_old(tmp_path, now_s=6500.0)
    # Of the four that are not among the newest, 3000 was used within the hour.
    assert sorted(each.name for each in tmp_path.iterdir()) == [".building-x", "i3", "i4", "i5", "i6", "i7"]


def test_what_a_killed_build_has_left_is_removed_by_the_next(
    tmp_path: Path, kernel: VmAssets, contents: dict[PurePosixPath, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(assets, "find", lambda: kernel)
    monkeypatch.setattr(images, "guest_contents", lambda: contents)
    monkeypatch.setattr("labs.vms.kernel_modules.in_order", lambda *_: [])

    def make(place: Path, *_: object) -> None:
        (place / "image").mkdir()

    monkeypatch.setattr(images, "make", make)
    (images.images_folder() / ".building-killed" / "tree").mkdir(parents=True)
    built = images.build(print)
    assert {each.name for each in images.images_folder().iterdir()} == {".lock", built.digest}


def test_what_is_missing_is_told_in_one_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ImageError) as caught:
        images.build(print)
    told = str(caught.value)
    assert "qemu-system-x86_64 is missing" in told
    assert "there is no kernel" in told
    assert "make vm-assets" in told
