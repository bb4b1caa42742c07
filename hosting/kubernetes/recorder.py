"""Events about objects, for people: `kubectl describe` shows them. Source: events.k8s.io/v1."""

import asyncio
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final, Literal

from hosting.backoff import Backoff
from hosting.fault_log import FaultLog
from hosting.kubernetes import objects
from hosting.kubernetes.api import KubernetesApi, KubernetesError, RefusedError
from hosting.kubernetes.core.event_budget import EventBudget
from hosting.kubernetes.resources import EVENTS, Manifest
from hosting.logs import Logger
from protocol.texts import clean

MAX_WAITING: Final = 256
"""Events that wait to be written."""
TRIES: Final = 3
MAX_NAMES: Final = 2_000
"""Events whose count may still rise; the oldest are forgotten first."""
MAX_NOTE_BYTES: Final = 1024
"""The longest note that the API takes."""
_BACKOFF: Final = Backoff(base_s=1.0, cap_s=10.0)


@dataclass(frozen=True, slots=True)
class _What:
    type_: Literal["Normal", "Warning"]
    reason: str
    action: str
    note: str


@dataclass(frozen=True, slots=True)
class _Entry:
    """An Event to be written; `count` above 1 is how often it has happened by now."""

    name: str
    uid: str
    what: _What
    regarding: Manifest
    count: int
    at: str


class EventRecorder:
    """Writes Events as `reporter` (`parley.dev/agent`) while `run` runs. `instance` tells several processes apart."""

    def __init__(
        self,
        api: KubernetesApi,
        reporter: str,
        *,
        instance: str = "",
        clock: Callable[[], float],
        date: Callable[[], datetime] = lambda: datetime.now(UTC),
        rng: random.Random,
        log: Logger,
    ) -> None:
        self._api = api
        self._reporter = reporter
        self._instance = (instance or reporter)[:128]
        self._clock, self._date, self._rng = clock, date, rng
        self._faults = FaultLog(log, "Events cannot be written", "Events can be written again")
        self._budget = EventBudget()
        self._waiting: asyncio.Queue[_Entry] = asyncio.Queue(MAX_WAITING)
        self._names: dict[tuple[str, _What], str] = {}
        """Of the Events whose count may rise."""
        self.dropped_total: Final[Counter[str]] = Counter()
        """Events that were not written, by cause: `rate`, `queue` or `api`."""

    def record(
        self, regarding: Manifest, type_: Literal["Normal", "Warning"], reason: str, action: str, note: str
    ) -> None:
        """Something happened to an object. Never waits and never fails; the same again is counted in the Event that there is."""
        metadata = regarding["metadata"]
        text = clean(note, MAX_NOTE_BYTES).encode()[:MAX_NOTE_BYTES].decode(errors="ignore")
        uid = str(metadata["uid"])
        what = _What(type_, clean(reason, 128) or "Unknown", clean(action, 128) or "Unknown", text)
        verdict, count = self._budget.happened(uid, what, self._clock())
        if verdict == "drop":
            self.dropped_total["rate"] += 1
        if verdict not in {"create", "count"}:
            return
        reference: Manifest = {name: regarding[name] for name in ("apiVersion", "kind") if name in regarding}
        reference |= {name: metadata[name] for name in ("namespace", "name", "uid") if name in metadata}
        if verdict == "create" or (uid, what) not in self._names:
            self._names[uid, what] = f"{metadata['name'][:230]}.{self._rng.getrandbits(64):016x}"
            if len(self._names) > MAX_NAMES:
                del self._names[next(iter(self._names))]
        entry = _Entry(
            self._names[uid, what], uid, what, reference, count, objects.micro_time_written(self._date())
        )
        try:
            self._waiting.put_nowait(entry)
        except asyncio.QueueFull:
            self._dropped(entry, "queue")

    async def run(self) -> None:
        while True:
            entry = await self._waiting.get()
            for failures in range(1, TRIES + 1):
                try:
                    await self._write(entry)
                except KubernetesError as error:
                    self._faults.failed(error)
                    if failures == TRIES or not _may_work_later(error):
                        self._dropped(entry, "api")
                        break
                    await asyncio.sleep(_BACKOFF.delay_s(failures, self._rng.random()))
                else:
                    self._faults.worked()
                    break

    def _dropped(self, entry: _Entry, why: str) -> None:
        self.dropped_total[why] += 1
        if entry.count == 1:
            self._budget.forget(entry.uid, entry.what)

    async def _write(self, entry: _Entry) -> None:
        namespace = entry.regarding.get("namespace") or "default"
        try:
            if entry.count > 1:
                series = {"series": {"count": entry.count, "lastObservedTime": entry.at}}
                await self._api.patch(EVENTS, namespace, entry.name, series)
            else:
                await self._api.create(EVENTS, namespace, self._event(entry, namespace))
        except RefusedError as error:
            if entry.count > 1 and error.is_not_found:  # Events live for an hour
                await self._api.create(EVENTS, namespace, self._event(entry, namespace))
            elif not error.is_conflict:  # a try before has made it
                raise

    def _event(self, entry: _Entry, namespace: str) -> Manifest:
        return {
            "apiVersion": EVENTS.api_version,
            "kind": EVENTS.kind,
            "metadata": {"namespace": namespace, "name": entry.name},
            "eventTime": entry.at,
            "reportingController": self._reporter,
            "reportingInstance": self._instance,
            "type": entry.what.type_,
            "reason": entry.what.reason,
            "action": entry.what.action,
            "note": entry.what.note,
            "regarding": entry.regarding,
        }


def _may_work_later(error: KubernetesError) -> bool:
    return not isinstance(error, RefusedError) or error.is_overloaded or error.status >= 500
