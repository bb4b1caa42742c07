"""The size that the guest lives in by agreement, and what its machine hides of that, kept across restarts of the informant:
not of the guest, which then has another size."""

import contextlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from hosting import files
from protocol.values import Resources

BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")
_NAME: Final = "size.json"
_MOST_BYTES: Final = 4096


@dataclass(frozen=True, slots=True)
class Agreed:
    """The size that was approved or announced last; the machine never shows `hidden_bytes` of its memory.

    What is hidden can be seen only while the machine has the whole size: between an approval and the unplugging, or while memory
    is missing, a restart would take it for memory that is there.
    """

    size: Resources
    hidden_bytes: int = 0


class Approvals:
    """One file in a directory of our own."""

    def __init__(self, directory: Path, boot_id: Path = BOOT_ID) -> None:
        self._file = directory / _NAME
        self._boot_id = boot_id

    def load(self) -> Agreed | None:
        """What was kept; None where there is none of this life of the guest, or none that can be read."""
        try:
            with self._file.open("rb") as file:
                found = json.loads(file.read(_MOST_BYTES))
            size = Resources(int(found["vcpuMilli"]), int(found["memoryBytes"]))
            agreed = Agreed(size, max(0, int(found.get("hiddenBytes", 0))))
            is_ours = found["bootId"] == self._boot_id.read_text().strip()
        except (OSError, ValueError, KeyError, TypeError, OverflowError, RecursionError):
            return None
        return agreed if is_ours and size.is_positive() else None

    def keep(self, agreed: Agreed) -> None:
        """Keep what was agreed on; it is on the file system when this returns.

        Raises `OSError`; then an earlier one is forgotten, where that can be: no limit is better than an old one.
        """
        try:
            self._write(agreed)
        except OSError:
            with contextlib.suppress(OSError):
                self._file.unlink()
            raise

    def _write(self, agreed: Agreed) -> None:
        content = {
            "vcpuMilli": agreed.size.vcpu_milli,
            "memoryBytes": agreed.size.memory_bytes,
            "hiddenBytes": agreed.hidden_bytes,
            "bootId": self._boot_id.read_text().strip(),
        }
        self._file.parent.mkdir(parents=True, exist_ok=True)
        files.replace(self._file, json.dumps(content).encode())
