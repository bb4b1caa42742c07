"""Which modules are inserted, and in which order."""

from pathlib import Path

import pytest

from labs.vms.kernel_modules import KernelModuleError, in_order, needed_by


def make(folder: Path, **needs: str) -> Path:
    for name, needed in needs.items():
        content = b"\x7fELF\0license=GPL\0depends=" + needed.encode() + b"\0name=x\0"
        (folder / f"{name.replace('_', '-')}.ko").write_bytes(content)
    return folder


def test_what_a_module_needs_comes_before_it_and_once(tmp_path: Path) -> None:
    make(tmp_path, virtio="ring", ring="", virtio_net="virtio,failover", failover="", other="virtio")
    names = [each.stem for each in in_order(tmp_path, ["virtio_net", "other", "virtio"])]
    assert names == ["ring", "virtio", "failover", "virtio-net", "other"]


def test_what_is_built_into_the_kernel_needs_no_file(tmp_path: Path) -> None:
    make(tmp_path, virtio_blk="virtio")
    (tmp_path / "modules.builtin").write_text("kernel/drivers/virtio/virtio.ko\n")
    assert [each.stem for each in in_order(tmp_path, ["virtio_blk"])] == ["virtio-blk"]


def test_a_module_that_is_missing_is_named_with_whoever_needs_it(tmp_path: Path) -> None:
    make(tmp_path, virtio_net="failover")
    with pytest.raises(KernelModuleError, match="no module failover, which virtio_net needs"):
        in_order(tmp_path, ["virtio_net"])


def test_a_module_without_needs_has_none() -> None:
    assert needed_by(b"\0depends=\0") == []
    assert needed_by(b"no such text") == []
