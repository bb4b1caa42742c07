"""Three processes and one Lease: paused, with clocks that run at different rates, over a network that loses and delays.

At no moment do two of them believe that they lead, and each leadership has a higher epoch than all before.
"""

import random
from dataclasses import dataclass, field
from typing import Any

import pytest

from hosting.kubernetes.core.election import (
    Election,
    LeaseRecord,
    LeaseTimes,
    ReadLease,
    RestUntil,
    WriteLease,
    manifest_of,
)

TIMES = LeaseTimes()
WALKS, STEPS = 20, 10_000


@dataclass
class Call:
    """A call under way: its effect happens at most once, perhaps long after nobody waits for it any more."""

    step: ReadLease | WriteLease
    sent_s: float
    has_landed: bool = False
    answer: Any = None


@dataclass
class Process:
    """An elector whose clock has an offset and a rate of its own."""

    election: Election
    offset_s: float
    rate: float
    call: Call | None = None
    late: list[Call] = field(default_factory=list)


@dataclass
class Lease:
    """The API server's part: versions, and refusal of what names another one."""

    manifest: dict[str, Any] | None = None
    version: int = 0

    def write(self, write: WriteLease) -> dict[str, Any] | None:
        """The Lease afterwards; None where the write is refused."""
        here = self.manifest["metadata"]["resourceVersion"] if self.manifest is not None else None
        if here != (write.over.version if write.over is not None else None):
            return None
        self.version += 1
        self.manifest = manifest_of(write, "ns", "lease", TIMES, "", "2026-01-01T00:00:00.000000Z")
        self.manifest["metadata"]["resourceVersion"] = str(self.version)
        return self.manifest


class Electors:
    """Three processes, one of them with a clock that is slow, and one with a fast one."""

    def __init__(self) -> None:
        self.now_s, self.born, self.lease = 100.0, 0, Lease()
        self.was_deleted = False
        self.epochs: list[int] = []
        self.led: set[tuple[str, int]] = set()
        self.ended: set[tuple[str, int]] = set()
        self.heard: dict[str, int] = {}
        self.processes = [self.process(offset, rate) for offset, rate in ((0, 1.0), (5000, 0.9), (-90, 1.1))]

    def process(self, offset_s: float, rate: float) -> Process:
        self.born += 1
        election = Election(f"process {self.born}", TIMES, 10 * self.born, random.Random(self.born))
        return Process(election, offset_s, rate)

    def clock(self, process: Process) -> float:
        return self.now_s * process.rate + process.offset_s

    def act(self, who: int) -> None:
        process = self.processes[who]
        if process.call is None:
            step = process.election.step(self.clock(process))
            if not isinstance(step, RestUntil):
                process.call = Call(step, self.clock(process))

    def land(self, who: int) -> None:
        call = self.processes[who].call
        if call is not None and not call.has_landed:
            self.effect(call)

    def effect(self, call: Call) -> None:
        call.has_landed = True
        call.answer = self.lease.manifest if isinstance(call.step, ReadLease) else self.lease.write(call.step)

    def arrive(self, who: int) -> None:
        """The answer to a call that has landed arrives."""
        process = self.processes[who]
        call, now_s = process.call, self.clock(process)
        if call is None or not call.has_landed:
            return
        process.call = None
        record = LeaseRecord.read(call.answer, TIMES) if call.answer is not None else None
        if isinstance(call.step, ReadLease):
            process.election.looked(record, now_s)
        elif record is None:
            process.election.refused()
        else:
            process.election.written(call.step, record, call.sent_s, now_s)

    def go_on(self, who: int) -> None:
        """As it mostly is: a step, and its answer at once."""
        self.act(who)
        self.land(who)
        self.arrive(who)

    def give_up(self, who: int) -> None:
        """Nobody waits for the answer any more; the call may still have its effect."""
        process = self.processes[who]
        if process.call is not None:
            if not process.call.has_landed:
                process.late.append(process.call)
            process.call = None
            process.election.failed(self.clock(process))

    def land_late(self, who: int) -> None:
        if self.processes[who].late:
            self.effect(self.processes[who].late.pop(0))

    def release(self, who: int) -> None:
        process = self.processes[who]
        if process.call is None and (write := process.election.release()) is not None:
            process.call = Call(write, self.clock(process))

    def hear_of_an_epoch(self, who: int, above: int) -> None:
        """An agent tells of an epoch, of one that was lost with a Lease as well."""
        election, epoch = self.processes[who].election, max([0, *self.epochs]) + above
        self.heard[election.identity] = max(epoch, self.heard.get(election.identity, 0))
        election.saw(epoch)

    def restart(self, who: int) -> None:
        old = self.processes[who]
        self.processes[who] = self.process(old.offset_s, old.rate)
        self.processes[who].late = old.late + ([old.call] if old.call and not old.call.has_landed else [])

    def delete(self) -> None:
        self.was_deleted, self.lease.manifest = True, None

    def edit(self, holder: str) -> None:
        if self.lease.manifest is not None:
            record = LeaseRecord.read(self.lease.manifest, TIMES)
            self.lease.write(WriteLease(record, holder or "x", record.epoch or 0))
            self.lease.manifest["spec"]["holderIdentity"] = holder

    def check(self) -> None:
        """At most one leads, with an epoch above all before; where a Lease was deleted, agents that have met those see to that."""
        leading = [each.election for each in self.processes if each.election.is_valid(self.clock(each))]
        assert len(leading) <= 1
        lead = {(each.identity, each.epoch) for each in leading}
        self.led |= lead
        self.ended |= self.led - lead
        assert not lead & self.ended, "what has ended does not come back"
        for election in leading:
            assert election.epoch >= self.heard.get(election.identity, 0)
            if not self.epochs or election.epoch != self.epochs[-1]:
                assert self.was_deleted or election.epoch > max(self.epochs, default=0)
                self.epochs.append(election.epoch)

    def one_leads_before_long(self) -> None:
        """With a network that works, one leads, and goes on."""
        for process in self.processes:
            while process.late:
                self.effect(process.late.pop())
        for _ in range(400):
            self.now_s += 0.1
            for who in range(3):
                self.go_on(who)
            self.check()
        assert [each.election.is_valid(self.clock(each)) for each in self.processes].count(True) == 1


def happening(it: Electors, rng: random.Random, awake: list[int], *, may_delete: bool) -> None:
    """Something, mostly that a process that is not paused goes on, and that time passes."""
    who, any_of_all = rng.choice(awake), rng.randrange(3)
    match rng.choices(range(10), (60, 30, 6, 4, 2, 2, 1, 1, 0.5, 0.5))[0]:
        case 0:
            it.go_on(who)
        case 1:
            it.now_s += rng.choice([0.2, 0.5, 1.0, 1.0, 2.0, 5.0])
        case 2:
            rng.choice([it.act, it.land, it.arrive])(who)
        case 3:
            it.give_up(who)
        case 4:
            it.land_late(any_of_all)
        case 5:
            fall_asleep(it, rng, awake)
        case 6:
            it.release(who)
        case 7:
            it.hear_of_an_epoch(who, rng.randrange(3))
        case 8:
            it.restart(any_of_all)
        case _:
            if may_delete and rng.random() < 0.3:
                it.delete()
            else:
                it.edit(rng.choice(["", "somebody"]))


def fall_asleep(it: Electors, rng: random.Random, awake: list[int]) -> None:
    """Other processes are paused now, some in the middle of a call."""
    awake[:] = rng.sample(range(3), rng.randint(1, 3))
    for who in {0, 1, 2}.difference(awake):
        if (progress := rng.randrange(3)) > 0:
            it.act(who)
        if progress > 1:
            it.land(who)


@pytest.mark.parametrize("seed", range(WALKS))
def test_no_two_processes_lead_at_one_time(seed: int) -> None:
    rng, it, awake = random.Random(seed), Electors(), [0, 1, 2]
    for _ in range(STEPS):
        happening(it, rng, awake, may_delete=seed % 2 == 0)
        it.check()
    assert it.epochs, "somebody has led"
    it.one_leads_before_long()
