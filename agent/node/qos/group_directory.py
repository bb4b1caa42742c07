"""The directories of control groups, opened so that nothing outside the root is ever reached, and their files."""

import contextlib
import errno
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

_FLAGS: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_MOST_BYTES: Final = 16_384


class GroupGoneError(Exception):
    """The group is not there, or not any more."""


class NoSuchFileError(Exception):
    """The group is there, and has no such file: the kernel, its version of cgroups or the group's controllers lack it."""


def parts_of(group: str) -> tuple[str, ...]:
    """The names on the way to a group. Raises `ValueError` for a path that is absolute, leaves the root or is none."""
    if not group:
        return ()
    parts = tuple(group.split("/"))
    if "\0" in group or any(part in {"", ".", ".."} for part in parts):
        raise ValueError(
            f"{group!r} is no group: names with a slash between two of them, such as kubepods/besteffort"
        )
    return parts


@contextlib.contextmanager
def group_directory(hierarchy: Path, parts: tuple[str, ...]) -> Iterator[int]:
    """The open directory of a group below `hierarchy`, each name opened inside the one before: a symbolic link is an `OSError`.
    Raises `GroupGoneError`."""
    at = _opened(str(hierarchy), None)
    try:
        for part in parts:
            inside = _opened(part, at)
            os.close(at)
            at = inside
        yield at
    finally:
        os.close(at)


def read_file(directory: int, name: str) -> str:
    """The content of a file of the group. Raises `GroupGoneError`, `NoSuchFileError`, `OSError`."""
    with _open_file(directory, name, os.O_RDONLY) as file, _while_there():
        return os.read(file, _MOST_BYTES).decode(errors="replace").strip()


def write_file(directory: int, name: str, text: str) -> None:
    """Write a file of the group. Raises `GroupGoneError`, `NoSuchFileError`, and `OSError` if the kernel refuses the text."""
    with _open_file(directory, name, os.O_WRONLY | os.O_TRUNC) as file, _while_there():
        os.write(file, f"{text}\n".encode())


def _opened(name: str, inside: int | None) -> int:
    try:
        return os.open(name, _FLAGS if inside is not None else _FLAGS & ~os.O_NOFOLLOW, dir_fd=inside)
    except FileNotFoundError as error:
        raise GroupGoneError(name) from error


@contextlib.contextmanager
def _open_file(directory: int, name: str, flags: int) -> Iterator[int]:
    try:
        file = os.open(name, flags | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=directory)
    except FileNotFoundError as error:
        if _is_removed(directory):
            raise GroupGoneError(name) from error
        raise NoSuchFileError(name) from error
    try:
        yield file
    finally:
        os.close(file)


@contextlib.contextmanager
def _while_there() -> Iterator[None]:
    """The kernel says ENODEV if the group was removed after its file was opened."""
    try:
        yield
    except OSError as error:
        if error.errno == errno.ENODEV:
            raise GroupGoneError from error
        raise


def _is_removed(directory: int) -> bool:
    """Whether an open directory has been removed: the kernel says so of it in /proc."""
    try:
        return str(Path(f"/proc/self/fd/{directory}").readlink()).endswith(" (deleted)")
    except OSError:
        return True
