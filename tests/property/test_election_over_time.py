"""Three processes and one Lease: paused, with clocks that run at different rates, over a network that loses and delays.

At no moment do two of them believe that they lead, and each leadership has a higher epoch than all before.
"""

import random
from dataclasses import dataclass, field
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

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
WHO = st.integers(0, 2)


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


class Electors(RuleBasedStateMachine):
    """Three processes."""

    def __init__(self) -> None:
        super().__init__()
        self.now_s, self.born, self.lease = 100.0, 0, Lease()
        self.deleted = False
        self.epochs: list[int] = []
        self.led: dict[str, int] = {}
        self.processes = [self.process(offset, rate) for offset, rate in ((0, 1.0), (5000, 0.9), (-90, 1.1))]

    def process(self, offset_s: float, rate: float) -> Process:
        """A process that has just started."""
        self.born += 1
        election = Election(f"process {self.born}", TIMES, 10 * self.born, random.Random(self.born))
        return Process(election, offset_s, rate)

    def clock(self, process: Process) -> float:
        return self.now_s * process.rate + process.offset_s

    @rule(seconds=st.sampled_from([0.3, 1.0, 3.0, 9.0, 16.0, 60.0]))
    def pass_time(self, seconds: float) -> None:
        self.now_s += seconds

    @rule(who=WHO)
    def act(self, who: int) -> None:
        process = self.processes[who]
        if process.call is None:
            step = process.election.step(self.clock(process))
            if not isinstance(step, RestUntil):
                process.call = Call(step, self.clock(process))

    @rule(who=WHO)
    def land(self, who: int) -> None:
        call = self.processes[who].call
        if call is not None and not call.has_landed:
            self.effect(call)

    def effect(self, call: Call) -> None:
        call.has_landed = True
        call.answer = self.lease.manifest if isinstance(call.step, ReadLease) else self.lease.write(call.step)

    @rule(who=WHO)
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

    @rule(who=WHO)
    def go_on(self, who: int) -> None:
        """As it mostly is: a step, and its answer at once."""
        self.act(who)
        self.land(who)
        self.arrive(who)

    @rule(who=WHO)
    def give_up(self, who: int) -> None:
        """Nobody waits for the answer any more; the call may still have its effect."""
        process = self.processes[who]
        if process.call is not None:
            if not process.call.has_landed:
                process.late.append(process.call)
            process.call = None
            process.election.failed(self.clock(process))

    @rule(who=WHO)
    @precondition(lambda self: any(each.late for each in self.processes))
    def land_late(self, who: int) -> None:
        if self.processes[who].late:
            self.effect(self.processes[who].late.pop(0))

    @rule(who=WHO)
    def release(self, who: int) -> None:
        process = self.processes[who]
        if process.call is None and (write := process.election.release()) is not None:
            process.call = Call(write, self.clock(process))

    @rule(who=WHO, above=st.integers(0, 3))
    def hear_of_an_epoch(self, who: int, above: int) -> None:
        """An agent tells of an epoch, of one that was lost with a Lease as well."""
        self.processes[who].election.saw(max([0, *self.epochs]) + above)

    @rule(who=WHO)
    def restart(self, who: int) -> None:
        old = self.processes[who]
        self.processes[who] = self.process(old.offset_s, old.rate)
        self.processes[who].late = old.late + ([old.call] if old.call and not old.call.has_landed else [])

    @rule()
    def delete(self) -> None:
        self.deleted, self.lease.manifest = True, None

    @rule(holder=st.sampled_from(["", "somebody"]))
    @precondition(lambda self: self.lease.manifest is not None)
    def edit(self, holder: str) -> None:
        """Somebody writes another holder by hand."""
        assert self.lease.manifest is not None
        record = LeaseRecord.read(self.lease.manifest, TIMES)
        self.lease.write(WriteLease(record, holder or "x", record.epoch or 0))
        self.lease.manifest["spec"]["holderIdentity"] = holder

    @invariant()
    def at_most_one_leads(self) -> None:
        leading = [each for each in self.processes if each.election.is_valid(self.clock(each))]
        assert len(leading) <= 1

    @invariant()
    def epochs_rise(self) -> None:
        for process in self.processes:
            epoch, who = process.election.epoch, process.election.identity
            if epoch and self.led.get(who) != epoch:
                assert self.deleted or epoch > max([0, *self.epochs])
                self.led[who] = epoch
                self.epochs.append(epoch)

    def teardown(self) -> None:
        """With a network that works, one leads before long, and goes on."""
        for process in self.processes:
            while process.late:
                self.effect(process.late.pop())
        for _ in range(400):
            self.now_s += 0.1
            for who in range(3):
                self.go_on(who)
            self.at_most_one_leads()
        assert [each.election.is_valid(self.clock(each)) for each in self.processes].count(True) == 1


TestElectors = Electors.TestCase
TestElectors.settings = settings(max_examples=150, stateful_step_count=60, deadline=None)
