"""The status of our objects: conditions as the API has them, written only if something has changed, and not too often."""

import math
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from hosting.fault_log import FaultLog
from hosting.kubernetes import objects
from hosting.kubernetes.api import KubernetesApi, KubernetesError
from hosting.kubernetes.core.known import Key, key_of
from hosting.kubernetes.resources import Manifest, ResourceType
from hosting.logs import Logger
from protocol.texts import clean

INTERVAL_S: Final = 5.0
"""Between two writes to one object."""
MAX_WRITES: Final = 20
"""At one time, for all objects of a type."""
MAX_MESSAGE: Final = 1024


@dataclass(frozen=True, slots=True)
class StatusCondition:
    """A condition of an object, without when it came to be."""

    type: str
    is_true: bool | None
    """None if it is not known."""
    reason: str
    message: str


def conditions_of(
    manifest: Manifest, wanted: Iterable[StatusCondition], wall: datetime
) -> list[dict[str, Any]]:
    """The conditions as they are written. One whose status is as before keeps the time of its transition."""
    found = []
    for each in wanted:
        status = "Unknown" if each.is_true is None else str(each.is_true)
        before = objects.condition(manifest, each.type) or {}
        is_same = before.get("status") == status and before.get("lastTransitionTime")
        since = before["lastTransitionTime"] if is_same else objects.time_written(wall)
        found.append(
            {
                "type": each.type,
                "status": status,
                "reason": each.reason,
                "message": clean(each.message, MAX_MESSAGE),
                "observedGeneration": manifest["metadata"].get("generation", 0),
                "lastTransitionTime": since,
            }
        )
    return found


class StatusWriter:
    """Writes the status of objects of one type. `clock` is monotonic."""

    def __init__(
        self, api: KubernetesApi, type_: ResourceType, clock: Callable[[], float], log: Logger
    ) -> None:
        self._api = api
        self._type = type_
        self._clock = clock
        self._written_s: dict[Key, float] = {}
        self._faults = FaultLog(
            log, f"status of {type_.plural} not written", f"status of {type_.plural} written"
        )

    async def write(self, wanted: Collection[tuple[Manifest, Mapping[str, Any]]]) -> None:
        """Bring objects' status in line: those that differ and were not written just now. The rest waits for the next call."""
        now_s, writes = self._clock(), 0
        here = {key_of(manifest) for manifest, _ in wanted}
        self._written_s = {key: at_s for key, at_s in self._written_s.items() if key in here}
        for manifest, status in wanted:
            key = key_of(manifest)
            last_s = self._written_s.get(key, -math.inf)
            if (manifest.get("status") or {}) == status or now_s < last_s + INTERVAL_S:
                continue
            if writes == MAX_WRITES:
                return
            writes += 1
            self._written_s[key] = now_s
            over = dict.fromkeys((manifest.get("status") or {}).keys() - status.keys())
            await self._write_one(key, {**over, **status})

    async def _write_one(self, key: Key, status: Mapping[str, Any]) -> None:
        """Merge into the status; a field that is None goes."""
        about = "/".join(part for part in key if part)
        try:
            await self._api.patch(
                self._type, key[0] or None, key[1], {"status": status}, subresource="status"
            )
        except KubernetesError as error:
            self._faults.failed(error, about, object=about)
        else:
            self._faults.worked(about, object=about)
