"""A file system for the guest's root, made by `mke2fs` from a directory, without rights and with the same bytes each time."""

import os
import struct
import subprocess
from pathlib import Path
from typing import Final

_BLOCK_BYTES: Final = 4096
_INODE_BYTES: Final = 256
_FEATURES: Final = "none,filetype,extent,dir_index,sparse_super,large_file,huge_file,dir_nlink,extra_isize"
"""Named one by one, so that a host's `mke2fs.conf` decides nothing. No journal: nobody writes. No checksums: see `_level`."""
_ID: Final = "7061726c-6579-4e21-8000-726f6f746673"
_MKE2FS_S: Final = 300.0
_TIME_S: Final = 1_600_000_000
"""When every file was made, by what the file system says."""


class FileSystemError(Exception):
    """`mke2fs` did not make the file system. The text is for a person."""


def make(tree: Path, image: Path) -> None:
    """Put everything below `tree` into a new file system in the file `image`; all of it belongs to root there.

    Raises `FileSystemError`, and `OSError` if files cannot be read or written.
    """
    blocks, inodes = _room(tree)
    image.unlink(missing_ok=True)
    command = [
        *("mke2fs", "-q", "-F", "-t", "ext4", "-O", _FEATURES, "-I", str(_INODE_BYTES)),
        *("-b", str(_BLOCK_BYTES), "-N", str(inodes), "-m", "0", "-U", _ID),
        *("-E", f"hash_seed={_ID},root_owner=0:0,lazy_itable_init=0,nodiscard"),
        *("-d", str(tree), str(image), str(blocks)),
    ]
    # It sorts the names of a directory by the locale, and takes the present time unless it is told another one.
    fixed = {"LC_ALL": "C", "E2FSPROGS_FAKE_TIME": str(_TIME_S), "MKE2FS_CONFIG": os.devnull}
    path = f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"
    try:
        done = subprocess.run(
            command,
            env={"PATH": path, **fixed},
            capture_output=True,
            text=True,
            check=False,
            timeout=_MKE2FS_S,
        )
    except FileNotFoundError:
        raise FileSystemError("mke2fs is missing: the package e2fsprogs has it") from None
    except subprocess.TimeoutExpired:
        raise FileSystemError(
            f"mke2fs did not end within {_MKE2FS_S:g} s; is {image.parent} on a slow disk?"
        ) from None
    if done.returncode:
        raise FileSystemError(f"mke2fs ended with code {done.returncode}: {done.stderr.strip()}")
    with image.open("r+b") as file:
        _level(file.fileno())


def _room(tree: Path) -> tuple[int, int]:
    """How many blocks and inodes the files need, with some room for what the file system needs itself."""
    blocks = inodes = 0
    for folder, folders, files in os.walk(tree):
        inodes += 1 + len(files) + sum(os.path.islink(os.path.join(folder, each)) for each in folders)  # noqa: PTH114, PTH118 - thousands of files
        names = sum(len(os.fsencode(each)) + 12 for each in (*folders, *files))
        blocks += 1 + names // (_BLOCK_BYTES // 2)
        for each in files:
            blocks += -(-os.lstat(os.path.join(folder, each)).st_size // _BLOCK_BYTES)  # noqa: PTH118 - as above
    inodes += 64
    tables = -(-inodes * _INODE_BYTES // _BLOCK_BYTES)
    return blocks + blocks // 50 + tables + 1024, inodes


def _level(file: int) -> None:
    """Give every inode the same owner and times: `mke2fs` takes them from the files, for which a user cannot choose them all.

    There are no checksums over inodes (feature `metadata_csum`), so that this is a matter of some bytes.
    """
    head = os.pread(file, 1024, 1024)
    inodes, per_group = struct.unpack_from("<I", head, 0x00)[0], struct.unpack_from("<I", head, 0x28)[0]
    groups = -(-inodes // per_group)
    descriptors = os.pread(file, groups * 32, _BLOCK_BYTES)
    for group in range(groups):
        table = struct.unpack_from("<I", descriptors, group * 32 + 8)[0] * _BLOCK_BYTES
        content = bytearray(os.pread(file, per_group * _INODE_BYTES, table))
        for start in range(0, len(content), _INODE_BYTES):
            if struct.unpack_from("<H", content, start)[0]:  # its mode: 0 if there is no file
                _level_inode(content, start)
        os.pwrite(file, content, table)


def _level_inode(table: bytearray, start: int) -> None:
    struct.pack_into("<H", table, start + 0x02, 0)  # owner
    struct.pack_into("<III", table, start + 0x08, _TIME_S, _TIME_S, _TIME_S)  # read, changed, written
    struct.pack_into("<H", table, start + 0x18, 0)  # group
    struct.pack_into("<HH", table, start + 0x78, 0, 0)  # the upper halves of owner and group
    # Nanoseconds of changed, written, read; made; its nanoseconds.
    struct.pack_into("<IIIII", table, start + 0x84, 0, 0, 0, _TIME_S, 0)
