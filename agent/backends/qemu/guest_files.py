"""The record of a guest, in a file of the agent's state directory: who may command, and the target. It outlives the agent.

The file is read again before each write to QEMU or to the guest, and nothing is awaited in between: a higher generation in it ends the work
of an earlier life. Every write is a rename, and one daemon has the directory (the node lock).
"""

from pathlib import Path
from typing import Final

import msgspec

from agent.backends.change_log import vm_path
from agent.core.model import Vm
from agent.core.ports import BackendError, FencedOffError, Fencing
from hosting import files
from protocol.values import Resources

DIRECTORY: Final = "qemu"


class SentEject(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A device that was asked out and had not gone; `since_s` is of the monotonic clock, as of the first time."""

    id: str
    since_s: float


class GuestRecord(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The life that may command (`generation`), and the `target` of the boot that was seen last; None before the first look."""

    generation: int
    boot: str = ""
    target: Resources | None = None
    ejects: tuple[SentEject, ...] = ()


class GuestFiles:
    """The files of all guests below the state directory."""

    def __init__(self, state_directory: Path) -> None:
        self._directory = state_directory / DIRECTORY
        self._directory.mkdir(parents=True, exist_ok=True)
        self._decoder = msgspec.json.Decoder(GuestRecord)

    def read(self, vm: Vm) -> GuestRecord | None:
        """The record of `vm`; None if it was never fenced. Raises `BackendError`."""
        path = vm_path(self._directory, vm)
        try:
            return self._decoder.decode(files.kept(path))
        except FileNotFoundError:
            return None
        except OSError as error:
            raise BackendError(f"{path} cannot be read: {error.strerror}") from None
        except (ValueError, RecursionError):
            raise BackendError(
                f"{path} is no file of a guest; remove it, and the size of the guest becomes its target"
            ) from None

    def owned(self, vm: Vm, generation: int) -> GuestRecord:
        """The record, if the life with `generation` may command. Raises `FencedOffError`, and `BackendError` if it cannot be read."""
        known = self.read(vm)
        if known is None:
            raise FencedOffError(f"the file of generation {generation} was removed")
        Fencing(generation).check(known.generation)
        return known

    def write(self, vm: Vm, standing: GuestRecord) -> None:
        """Raises `BackendError`; then the earlier file is still in place."""
        path = vm_path(self._directory, vm)
        try:
            # It need not be on the disk: the guest ends with its host.
            files.replace(path, msgspec.json.encode(standing), is_durable=False)
        except OSError as error:
            raise BackendError(f"{path} cannot be written: {error.strerror}") from None
