"""The election of one leader among several processes, by a Lease: the next step, and until when this process may believe that it leads.

Three rules keep two processes from leading at one time. A leader believes itself for `renew_deadline_s` from the *sending* of the last
write that succeeded. Others take its Lease only when they themselves have seen it unchanged for the whole of its duration, which is
longer. And each write names the version that it changes, so of two writes one fails. No clock is compared with another one.

The epoch is the Lease's `leaseTransitions`; every acquisition raises it. A Lease that was deleted takes its epoch with it, so no epoch is
below a number that each process takes from the date at its start. And a process that finds no Lease makes one that nobody holds: a leader
that has not noticed keeps the time that it believes in, until that Lease may be taken as any other.
"""

import math
import random
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Self, TypeAlias

MAX_EPOCH: Final = 2**31 - 2
"""`leaseTransitions` is an int32."""
HEARD_ABOVE: Final = 2**28
"""An epoch that somebody tells of is believed up to so much above a process's first one: more than eight years of seconds. Otherwise
one wrong request could use up all epochs there are."""
ADDRESS: Final = "parley.dev/address"
"""Annotation of a Lease: the URL of who holds it."""
NOBODY: Final = "nobody: this Lease was missing"
"""Holder of a Lease that was missing."""
RELEASED_S: Final = 1
"""The duration in a Lease that was given back, as client-go writes it."""


@dataclass(frozen=True, slots=True)
class LeaseTimes:
    """How long a Lease lasts for others, how long its holder believes in it, and how often it is renewed, or looked at by others."""

    duration_s: int = 15
    renew_deadline_s: float = 10.0
    renew_s: float = 2.0
    retry_s: float = 1.0

    def __post_init__(self) -> None:
        if not (0 < self.retry_s <= self.renew_s < self.renew_deadline_s < self.duration_s):
            raise ValueError(f"not times of a Lease: {self}")

    @classmethod
    def of(cls, duration_s: float) -> Self:
        """The times in their usual ratio; `duration_s` is rounded up to whole seconds."""
        whole = math.ceil(duration_s)
        return cls(whole, whole * 2 / 3, whole * 2 / 15, whole / 15)


@dataclass(frozen=True, slots=True)
class LeaseRecord:
    """A Lease as it was read. `epoch` is None if nobody ever held it."""

    manifest: Mapping[str, Any] = field(repr=False)
    holder: str
    duration_s: float
    epoch: int | None
    address: str

    @classmethod
    def read(cls, manifest: Mapping[str, Any], times: LeaseTimes) -> Self:
        """The content of a Lease. A field that is missing or of another type is taken as nothing; without a duration, ours counts."""
        spec = manifest.get("spec") or {}
        annotations = manifest["metadata"].get("annotations") or {}
        duration, epoch = spec.get("leaseDurationSeconds"), spec.get("leaseTransitions")
        return cls(
            manifest,
            str(spec.get("holderIdentity") or ""),
            float(duration) if isinstance(duration, int) and duration > 0 else float(times.duration_s),
            epoch if isinstance(epoch, int) else None,
            str(annotations.get(ADDRESS) or ""),
        )

    @property
    def version(self) -> str:
        return str(self.manifest["metadata"]["resourceVersion"])

    @property
    def is_released(self) -> bool:
        """Whether its holder has given it back. Without that, a missing holder proves nothing: somebody may have edited the Lease."""
        return not self.holder and self.duration_s <= RELEASED_S and self.epoch is not None


@dataclass(frozen=True, slots=True)
class ReadLease:
    """Read the Lease, and call `looked`."""


@dataclass(frozen=True, slots=True)
class WriteLease:
    """Create the Lease, or, if `over` is given, replace that. Then call `written` or `refused`."""

    over: LeaseRecord | None
    holder: str
    epoch: int

    @property
    def is_renewal(self) -> bool:
        """Whether the Lease stays with its holder, and with its epoch."""
        return self.over is not None and (self.over.holder, self.over.epoch) == (self.holder, self.epoch)


@dataclass(frozen=True, slots=True)
class RestUntil:
    """There is nothing to do before `until_s`."""

    until_s: float


Step: TypeAlias = ReadLease | WriteLease | RestUntil


class Election:
    """One process's part. `identity` is its own, and no other process ever has it; its epochs are above `first_epoch`.

    `step` names the next step. One step is under way at a time, and each ends with exactly one call: `looked`, `written`, `refused` or
    `failed`. All moments are this process's own monotonic clock.
    """

    def __init__(self, identity: str, times: LeaseTimes, first_epoch: int, rng: random.Random) -> None:
        self.identity: Final = identity
        self.times: Final = times
        self._rng = rng
        self._epoch = 0
        self._valid_until_s = -math.inf
        self._highest = min(first_epoch, MAX_EPOCH // 2)
        self._most_heard: Final = min(self._highest + HEARD_ABOVE, MAX_EPOCH)
        self._record: LeaseRecord | None = None
        self._seen_s = -math.inf
        """When the version of the record was first seen."""
        self._next_s = -math.inf
        self._must_look = True

    # ------------------------------------------------------------ state

    @property
    def epoch(self) -> int:
        """The epoch with which this process leads; 0 while it does not."""
        return self._epoch

    @property
    def valid_until_s(self) -> float:
        """How long it leads, if nothing else comes."""
        return self._valid_until_s

    @property
    def record(self) -> LeaseRecord | None:
        """The Lease as it was seen last; None if there was none."""
        return self._record

    def is_valid(self, now_s: float) -> bool:
        """Whether this process leads."""
        return self._epoch > 0 and now_s < self._valid_until_s

    def is_near(self, now_s: float, within_s: float) -> bool:
        """Whether this process leads, or may within so long: nobody else leads, as far as it knows, and the Lease will be free."""
        record = self._record
        if record is None or self.is_valid(now_s):
            return True
        free_s = self._free_s(record)
        # A holder that leads renews long before this; the times of all processes of one Lease are the same.
        is_given_up = now_s >= free_s - self.times.duration_s + self.times.renew_deadline_s
        return is_given_up and free_s <= now_s + within_s

    # ------------------------------------------------------------ steps

    def step(self, now_s: float) -> Step:
        if self._epoch and not self.is_valid(now_s):
            self.lose()
        if now_s < self._next_s:
            return RestUntil(min(self._next_s, self._valid_until_s) if self._epoch else self._next_s)
        if self._must_look:
            return ReadLease()
        if self._epoch:
            return WriteLease(self._record, self.identity, self._epoch)
        if self._record is None:
            return WriteLease(None, NOBODY, self._highest)
        free_s = self._free_s(self._record)
        if now_s >= free_s:
            known = self._record.epoch if self._record.epoch is not None else 0
            return WriteLease(self._record, self.identity, max(known, self._highest) + 1)
        self._next_s = min(self._later(now_s), free_s)
        self._must_look = True
        return RestUntil(self._next_s)

    def looked(self, record: LeaseRecord | None, now_s: float) -> None:
        """The Lease was read; None: there is none."""
        self._must_look = False
        if record is not None and (self._record is None or record.version != self._record.version):
            self._seen_s = now_s
        self._record = record
        if record is not None:
            self._highest = max(self._highest, record.epoch or 0)
            if record.holder != self.identity:
                self.lose()

    def written(self, write: WriteLease, record: LeaseRecord, sent_s: float, now_s: float) -> None:
        """A write that was sent at `sent_s` has succeeded, and the Lease is now as in `record`."""
        if write.over is not None and record.version == write.over.version:
            self.failed(now_s)  # nothing has changed, so that others have seen no renewal
            return
        until_s = sent_s + self.times.renew_deadline_s
        goes_on = write.epoch == self._epoch and self.is_valid(now_s)
        self.looked(record, now_s)
        begins = not self._epoch and write.over is not None and not write.is_renewal
        if write.holder != self.identity:
            return
        if goes_on or (begins and write.epoch >= self._highest and now_s < until_s):
            self._epoch, self._valid_until_s = write.epoch, until_s
            self._next_s = sent_s + self.times.renew_s
        else:
            self.lose()
            self._must_look = True

    def refused(self) -> None:
        """A write came too late: the Lease is another than it was."""
        self._must_look = True

    def failed(self, now_s: float) -> None:
        """A step came to nothing, or its outcome is unknown."""
        self._must_look = True
        self._next_s = self._later(now_s)

    def saw(self, epoch: int) -> bool:
        """Somebody has met a leader with that epoch. If it is above ours, this process leads no more, until it has acquired anew.

        Returns whether that is so. An epoch far above every possible one is not believed.
        """
        if not self._epoch < epoch <= self._most_heard:
            return False
        self._highest = max(self._highest, epoch)
        was_leading = self._epoch > 0
        self.lose()
        return was_leading

    def lose(self) -> None:
        """Lead no more."""
        if self._epoch:
            self._epoch, self._valid_until_s = 0, -math.inf
            self._must_look, self._next_s = True, -math.inf

    def release(self) -> WriteLease | None:
        """Lead no more, and give the Lease back by this write, which is the last; None if it is not known to be ours."""
        record = self._record
        is_ours = record is not None and record.holder == self.identity and not self._must_look
        epoch = self._epoch
        self.lose()
        return WriteLease(record, "", epoch) if is_ours and epoch else None

    def _free_s(self, record: LeaseRecord) -> float:
        """When the Lease may be taken. Ours may be at once: it is of an acquisition whose end was not seen, or that was lost."""
        if record.holder == self.identity or record.is_released:
            return -math.inf
        return self._seen_s + record.duration_s

    def _later(self, now_s: float) -> float:
        return now_s + self.times.retry_s * (1 + 0.2 * self._rng.random())


def manifest_of(
    write: WriteLease, namespace: str, name: str, times: LeaseTimes, address: str, written_at: str
) -> dict[str, Any]:
    """The Lease that a write makes. `written_at` (RFC 3339, microseconds) is for people: nobody compares it."""
    found = write.over.manifest if write.over is not None else {}
    metadata = found.get("metadata") or {"namespace": namespace, "name": name}
    written = {
        "holderIdentity": write.holder,
        "leaseDurationSeconds": times.duration_s if write.holder else RELEASED_S,
        "leaseTransitions": write.epoch,
        "renewTime": written_at,
    }
    begun = {} if write.is_renewal else {"acquireTime": written_at}
    told = {ADDRESS: address if write.holder not in {"", NOBODY} else ""}
    return {
        "apiVersion": "coordination.k8s.io/v1",
        "kind": "Lease",
        "metadata": metadata | {"annotations": (metadata.get("annotations") or {}) | told},
        "spec": (found.get("spec") or {}) | written | begun,
    }
