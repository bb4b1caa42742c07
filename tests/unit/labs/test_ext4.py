"""The root's file system: the same bytes from the same files, whoever made them, when and in which order."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from labs.vms import assets, ext4

NAMES = ["b/two", "a/one", "B/upper", "a/ä", "c/deep/er/file", "a/zero"]

pytestmark = pytest.mark.skipif(
    assets.program("mke2fs") is None, reason="mke2fs is missing: apt-get install e2fsprogs, as root"
)


def tree(folder: Path, names: list[str], time_s: float) -> Path:
    """The same files, made in the order of `names` and at another time."""
    for name in names:
        file = folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(name * 3000)
        file.chmod(0o755 if name == "a/one" else 0o644)
    (folder / "link").symlink_to("a/one")
    for each in folder.rglob("*"):
        os.utime(each, (time_s, time_s), follow_symlinks=False)
    return folder


def shown(image: Path, command: str) -> str:
    """The output of debugfs on a file system."""
    debugfs = assets.program("debugfs")
    assert debugfs is not None
    return subprocess.run(
        [debugfs, "-R", command, str(image)], capture_output=True, text=True, check=True
    ).stdout


def test_order_and_times_of_the_files_leave_no_trace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one, other = tree(tmp_path / "one", NAMES, 1e9), tree(tmp_path / "other", NAMES[::-1], 1.5e9)
    ext4.make(one, tmp_path / "one.ext4")
    monkeypatch.setenv("LANG", "C.UTF-8")
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    ext4.make(other, tmp_path / "other.ext4")
    assert (tmp_path / "one.ext4").read_bytes() == (tmp_path / "other.ext4").read_bytes()


def test_everything_is_there_and_belongs_to_root(tmp_path: Path) -> None:
    made = tree(tmp_path / "tree", NAMES, 1e9)
    if os.geteuid() == 0:
        for each in (made, *made.rglob("*")):
            shutil.chown(each, 1234, 70_000)  # as if a user had made them
    ext4.make(made, tmp_path / "root.ext4")
    listed = shown(tmp_path / "root.ext4", "ls -l /a")
    rows = [line.split() for line in listed.splitlines() if line.strip()]
    assert {(row[-1], row[1]) for row in rows if len(row) > 6} >= {("one", "100755"), ("zero", "100644")}
    about = shown(tmp_path / "root.ext4", "stat /a/one")
    assert "User:     0   Group:     0" in about
    assert about.count("0x5f5e1000") == 4  # read, changed, written, made
    assert 'Fast link dest: "a/one"' in shown(tmp_path / "root.ext4", "stat /link")
    shown(tmp_path / "root.ext4", f"dump /c/deep/er/file {tmp_path}/back")
    assert (tmp_path / "back").read_text() == "c/deep/er/file" * 3000
    e2fsck = assets.program("e2fsck")
    assert e2fsck is not None
    checked = subprocess.run(
        [e2fsck, "-f", "-n", str(tmp_path / "root.ext4")], capture_output=True, text=True, check=False
    )
    assert checked.returncode == 0, checked.stdout


def test_a_tree_that_cannot_be_read_is_told(tmp_path: Path) -> None:
    (tmp_path / "tree").mkdir()
    with pytest.raises(ext4.FileSystemError, match="mke2fs ended with code"):
        ext4.make(tmp_path / "tree", tmp_path / "nowhere" / "root.ext4")
