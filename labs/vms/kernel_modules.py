"""The files of a kernel's modules, and which of them others need: from the modules themselves, without `depmod`."""

from collections.abc import Iterable
from pathlib import Path


class KernelModuleError(Exception):
    """A module is missing. The text is for a person."""


def in_order(folder: Path, names: Iterable[str]) -> list[Path]:
    """The files of these modules and of all that they need, in an order in which they can be inserted.

    `folder` is the kernel's below `lib/modules`. A module that is built into the kernel has no file, and is left out.
    Raises `KernelModuleError`.
    """
    files = {_name(file): file for file in sorted(folder.rglob("*.ko"))}
    built_in = {_name(Path(line)) for line in _lines(folder / "modules.builtin")}
    found: dict[str, Path] = {}

    def add(name: str, wanted_by: str) -> None:
        if name in found or name in built_in:
            return
        if name not in files:
            raise KernelModuleError(f"{folder} has no module {name}, which {wanted_by} needs")
        for each in needed_by(files[name].read_bytes()):
            add(each, name)
        found[name] = files[name]

    for name in names:
        add(name, "the guest")
    return list(found.values())


def needed_by(module: bytes) -> list[str]:
    """The names of the modules that a module needs: the text `depends=` inside its file."""
    for part in module.split(b"\0"):
        if part.startswith(b"depends="):
            return [_plain(name) for name in part.removeprefix(b"depends=").decode().split(",") if name]
    return []


def _name(file: Path) -> str:
    return _plain(file.name.removesuffix(".ko"))


def _plain(name: str) -> str:
    """A module's name as the kernel has it; files may have hyphens."""
    return name.replace("-", "_")


def _lines(file: Path) -> list[str]:
    return file.read_text().splitlines() if file.exists() else []
