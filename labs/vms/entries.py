"""The record of a guest in its directory, written as soon as its QEMU runs: so anybody finds the guest again."""

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from hosting import files
from labs.vms.machine import INFORMANT_PORT, GuestWords, MachineSpec
from labs.vms.processes import ProcessIdentity

_FILE: Final = "guest.json"


@dataclass(frozen=True, slots=True)
class GuestEntry:
    """Which process a guest is, at which address, and what it was started with."""

    process: ProcessIdentity
    address: str
    spec: MachineSpec
    words: GuestWords
    image_digest: str

    @property
    def informant_url(self) -> str:
        return f"http://{self.address}:{INFORMANT_PORT}"


def write(directory: Path, entry: GuestEntry) -> None:
    """Write down a guest, in place of an earlier one of the directory. Raises `OSError`."""
    files.replace(directory / _FILE, json.dumps(asdict(entry), indent=1).encode(), is_durable=False)


class UnreadableEntryError(Exception):
    """A guest is written down in a way that this release does not understand. The text is for a person."""


def read(directory: Path) -> GuestEntry | None:
    """The guest of a directory; None if there is none. Raises `UnreadableEntryError` and `OSError`: its QEMU may run."""
    path = directory / _FILE
    try:
        found = json.loads(path.read_bytes())
        return GuestEntry(
            ProcessIdentity(**found["process"]),
            found["address"],
            MachineSpec(**found["spec"]),
            GuestWords(**found["words"]),
            found["image_digest"],
        )
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError) as error:
        raise UnreadableEntryError(
            f"{path} cannot be read ({error!r}): end its process by hand, which may run, and remove {directory}"
        ) from None
