"""An archive of files in the format that Linux unpacks as an initramfs (cpio "newc"), made without any rights. Pure."""

from dataclasses import dataclass
from typing import Final

_MAGIC: Final = "070701"
_TRAILER: Final = "TRAILER!!!"
_DIRECTORY: Final = 0o040755
_PROGRAM: Final = 0o100755
_CHARACTER_DEVICE: Final = 0o020600


@dataclass(frozen=True, slots=True)
class ArchiveEntry:
    """A directory, a file that may be executed, or a character device; `name` has no slash at its beginning."""

    name: str
    mode: int
    content: bytes = b""
    device: tuple[int, int] = (0, 0)


def directory(name: str) -> ArchiveEntry:
    """A directory that everybody may read."""
    return ArchiveEntry(name, _DIRECTORY)


def program(name: str, content: bytes) -> ArchiveEntry:
    """A file that everybody may read and execute."""
    return ArchiveEntry(name, _PROGRAM, content)


def character_device(name: str, major: int, minor: int) -> ArchiveEntry:
    """The node of a device, for its owner alone."""
    return ArchiveEntry(name, _CHARACTER_DEVICE, device=(major, minor))


def archive(entries: list[ArchiveEntry]) -> bytes:
    """The archive of these entries in this order: all of them of root, and without times."""
    parts = [_record(number, each) for number, each in enumerate(entries, 1)]
    return b"".join([*parts, _record(0, ArchiveEntry(_TRAILER, 0))])


def _record(inode: int, entry: ArchiveEntry) -> bytes:
    name = entry.name.encode() + b"\0"
    links, owner, group, time_s, check = 1, 0, 0, 0, 0
    fields = (
        *(inode, entry.mode, owner, group, links, time_s, len(entry.content), 0, 0),
        *(*entry.device, len(name), check),
    )
    head = _MAGIC + "".join(f"{each:08x}" for each in fields)
    return _padded(head.encode() + name) + _padded(entry.content)


def _padded(content: bytes) -> bytes:
    """Filled up with zeros to a multiple of four bytes."""
    return content + b"\0" * (-len(content) % 4)
