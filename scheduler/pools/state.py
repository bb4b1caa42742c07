"""Pools across restarts: `--state DIR`. One JSON file, replaced as a whole, so that no half of it is ever read."""

import asyncio
import threading
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, Literal

import msgspec
from pydantic import Field

from hosting import files
from hosting.settings import Settings, SettingsError, listed, parse_json
from hosting.threads import in_own_thread
from scheduler.pools.core.admission_state import Parking
from scheduler.pools.core.records import PoolRecord
from scheduler.pools.entry import WrittenPool, shown

FORMAT: Final = 1
_FILE: Final = "pools.json"


class _Parked(Settings):
    message: str
    plugin: str = ""


class _Stored(Settings):
    pool: WrittenPool
    parked: _Parked | None = None
    parked_vms: dict[str, _Parked] = Field(default_factory=dict)


class _File(Settings):
    format: Literal[1]
    chain: str
    pools: list[_Stored] = Field(default_factory=list)

    @classmethod
    def cross_faults(cls, data: object) -> list[str]:
        found = [each.get("pool") for each in listed(data, "pools") if isinstance(each, dict)]
        counts = Counter(str(each.get("name")) for each in found if isinstance(each, dict))
        return [f"pools: {name!r} is there {count} times" for name, count in counts.items() if count > 1]


class PoolStateFile:
    """The directory's pools. Holds its lock until `close`. Raises `OSError` where another scheduler uses it."""

    def __init__(self, directory: Path) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self._path = directory / _FILE
        self._lock = files.locked(directory, "another scheduler keeps its pools there")
        self._replacing = threading.Lock()
        self.chain = ""
        """What tells one configuration of the plugins from another; parking holds only under the same one."""

    def load(self) -> tuple[tuple[PoolRecord, ...], str]:
        """What is stored, and the chain under which it was. Raises `SettingsError` with every fault."""
        try:
            content = self._path.read_bytes()
        except FileNotFoundError:
            return (), ""
        except OSError as error:
            raise SettingsError(self._path, [f"cannot be read: {error.strerror}"]) from None
        read = parse_json(self._path, content, _File)
        return tuple(_record(each) for each in read.pools), read.chain

    async def save(self, stored: tuple[PoolRecord, ...]) -> None:
        """Keep these and nothing else. Raises `OSError`; then what was kept before still is."""
        content = {
            "format": FORMAT,
            "chain": self.chain,
            "pools": [_written(record) for record in stored if record.is_stored],
        }
        text = msgspec.json.format(msgspec.json.encode(content), indent=1)
        work = in_own_thread(lambda: self._replace(text))
        await asyncio.shield(work)  # whoever waits may go away in the middle; the file is whole all the same

    def _replace(self, text: bytes) -> None:
        with self._replacing:  # nobody may wait for the one before any more, while it still writes
            files.replace(self._path, text)

    def close(self) -> None:
        """Free the directory."""
        self._lock.close()


def _record(stored: _Stored) -> PoolRecord:
    written = stored.pool
    pool = replace(
        written.pool(), uid=written.uid, generation=written.generation, is_deleting=written.deleting
    )
    parked = _parking(stored.parked, pool.generation) if stored.parked is not None else None
    vms = {uid: _parking(each, pool.generation) for uid, each in stored.parked_vms.items()}
    return PoolRecord(pool, is_stored=True, parked=parked, parked_vms=vms)


def _parking(parked: _Parked, generation: int) -> Parking:
    return Parking(generation, parked.message, parked.plugin)


def _written(record: PoolRecord) -> dict[str, Any]:
    written: dict[str, Any] = {"pool": shown(record.pool)}
    if record.parked is not None:
        written["parked"] = {"message": record.parked.message, "plugin": record.parked.plugin}
    if record.parked_vms:
        written["parkedVms"] = {
            uid: {"message": each.message, "plugin": each.plugin} for uid, each in record.parked_vms.items()
        }
    return written
