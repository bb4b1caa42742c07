"""The agreed size of the guest, and the part that its machine hides, kept across restarts of the informant. A restarted guest has another size."""

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

    The hidden part can be seen only while the machine has the whole size. Between an approval and the unplugging, or while memory
    is missing, a restarted informant would take that part for memory of the guest.
    """

    size: Resources
    hidden_bytes: int = 0


class Approvals:
    """The file with the agreed size, in a directory of the informant's own."""

    def __init__(self, directory: Path, boot_id: Path = BOOT_ID) -> None:
        self._file = directory / _NAME
        self._boot_id = boot_id

    def load(self) -> Agreed | None:
        """The size that was kept; None if there is none of this life of the guest, or none that can be read."""
        try:
            found = json.loads(files.kept(self._file, _MOST_BYTES))
            size = Resources(int(found["vcpuMilli"]), int(found["memoryBytes"]))
            agreed = Agreed(size, max(0, int(found.get("hiddenBytes", 0))))
            is_ours = found["bootId"] == self._boot_id.read_text().strip()
        except (OSError, ValueError, KeyError, TypeError, OverflowError, RecursionError):
            return None
        return agreed if is_ours and size.is_positive() else None

    def keep(self, agreed: Agreed) -> None:
        """Keep the agreed size; when this returns, the file system has it.

        Raises `OSError`, and forgets an earlier size if that is possible: no limit is better than an old one.
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
