"""One node over a virtual day: the real cores of scheduler and agents, with peers that always work and guests whose load is a function of time.

Faults are a matter of `tests/simulation/world.py`; this shows how sizes come out over hours, in a few seconds.
"""

import heapq
import itertools
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final
from uuid import UUID

from agent.core import events as agent_events
from agent.core.model import Sample, Vm, YieldMode
from agent.core.policies.combined import Combined
from agent.core.state import MetricsState, RunnerState
from agent.core.step import RunnerCore
from agent.core.timing import Timing
from agent.peers.scheduler import request_of
from protocol.sequence import Life
from protocol.values import Bounds, ComputeUnit, Observation, Resources
from protocol.versions import InformantProtoVersion
from protocol.wire import PodName
from scheduler.permits.core import events
from scheduler.permits.core.core import Core
from scheduler.permits.core.model import NodeSpec, VmSpec
from scheduler.permits.core.state import SchedulerConfig
from tests.support.amounts import GIB, UNIT, cu

TIMING: Final = Timing(down_window_s=300.0)
INSTANCE: Final = UUID(int=7)
HOP_S: Final = 0.005
RESIZE_S: Final = 0.3

Load = Callable[[float], float]
"""CPUs that a guest could use at a time of the day, in seconds."""


@dataclass(slots=True)
class Guest:
    """One VM with its runner. `cpu_s` is the CPU time used so far; `area_cpu_s` its size over time, `short_s` how long it had less than its
    load needs."""

    vm: Vm
    load: Load
    size: Resources
    target: Resources
    state: RunnerState
    core: RunnerCore
    cpu_s: float = 0.0
    counted_s: float = 0.0
    asked: int = 0
    given: int = 0
    sizes: list[tuple[float, int]] = field(default_factory=list)
    wake: int = 0


class Day:
    """A node of `cpus` CPUs and guests on it."""

    def __init__(self, cpus: int, seed: int = 1) -> None:
        self._rng = random.Random(seed)
        self._queue: list[tuple[float, int, Callable[[], None]]] = []
        self._order = itertools.count()
        self._tickets = itertools.count(1)
        self.now_s = 0.0
        self.guests: dict[str, Guest] = {}
        self.core = Core(SchedulerConfig(INSTANCE, is_first_start=True))
        self.core.apply(events.NodeSeen(NodeSpec("n", cu(cpus, 64))))
        self._tick()

    def guest(
        self, name: str, cpus: int, load: Load, *, priority: int = 0, yields: YieldMode = YieldMode.SLACK
    ) -> None:
        """A VM from 1 to 16 CPUs that has `cpus` at first."""
        size, bounds = cu(cpus, 2), Bounds(cu(1, 1), cu(16, 16))
        unit = ComputeUnit(UNIT, is_apart=True)
        vm = Vm(PodName(name, "demo"), name, bounds, unit, GIB, priority=priority, yields=yields)
        spec = VmSpec(vm.pod, name, "n", bounds, GIB, UNIT)
        reading = Observation(size, size, self.now_s)
        self.core.apply(events.VmSeen(spec, reading, self.now_s, is_new=True))
        life = Life(self._new_id(), 1 + len(self.guests))
        state = RunnerState(vm, life, self.now_s, metrics=MetricsState())
        core = RunnerCore(TIMING, Combined(), self._new_id)
        self.guests[name] = Guest(vm, load, size, size, state, core)
        self.at(self._rng.random(), lambda: self._step(self.guests[name]))

    def run_until(self, end_s: float) -> None:
        while self._queue and self._queue[0][0] <= end_s:
            self.now_s, _, work = heapq.heappop(self._queue)
            work()
        self.now_s = end_s

    def at(self, in_s: float, work: Callable[[], None]) -> None:
        heapq.heappush(self._queue, (self.now_s + in_s, next(self._order), work))

    def mean_cpus(self, name: str, from_s: float, until_s: float) -> float:
        """The mean size of a guest in CPUs over a part of the day."""
        moves = [*self.guests[name].sizes, (until_s, 0)]
        parts = (
            max(min(then_s, until_s) - max(at_s, from_s), 0.0) * cpus
            for (at_s, cpus), (then_s, _) in itertools.pairwise(moves)
        )
        return sum(parts) / (until_s - from_s) / 1000

    # ------------------------------------------------------------ the loop

    def _new_id(self) -> UUID:
        return UUID(int=self._rng.getrandbits(128), version=4)

    def _tick(self) -> None:
        self._applied(self.core.apply(events.ClockTicked(self.now_s)), None)
        self.at(1.0, self._tick)

    def _step(self, guest: Guest, *inbox: agent_events.Event) -> None:
        step = guest.core.step(guest.state, inbox, self.now_s)
        guest.state = step.state
        for started in step.started:
            self._perform(guest, started)
        guest.wake += 1
        turn = guest.wake
        self.at(max(step.plan.wake_at_s - self.now_s, 0.001), lambda: self._woken(guest, turn))

    def _woken(self, guest: Guest, turn: int) -> None:
        if turn == guest.wake:
            self._step(guest)

    def _perform(self, guest: Guest, started: agent_events.Started) -> None:
        begun_s = self.now_s
        match started.action:
            case agent_events.Fence():
                self._later(guest, agent_events.Fenced)
            case agent_events.Observe():
                self._later(
                    guest, lambda: agent_events.Observed(Observation(guest.size, guest.target, begun_s))
                )
            case agent_events.Resize(target):
                guest.target = target
                self.at(RESIZE_S, lambda: self._resized(guest, target))
                self._later(guest, agent_events.ResizeAccepted)
            case agent_events.RequestPermit():
                self.at(HOP_S, lambda: self._asked(guest, started.action))
            case agent_events.Register():
                assert started.registration is not None
                registration = started.registration
                self._later(guest, lambda: agent_events.Registered(registration, InformantProtoVersion(2), 1))
                self.at(2 * HOP_S, lambda: self._step(guest, agent_events.Resumed(registration)))
                self.at(10.0, lambda: self._heard(guest, registration))
            case agent_events.AskDownscale(amount):
                self._later(guest, lambda: agent_events.DownscaleApproved(amount))
            case agent_events.AnnounceUpscale(amount):
                self._later(guest, lambda: agent_events.UpscaleAnnounced(amount))
            case agent_events.ReadMetrics():
                self._later(guest, lambda: agent_events.MetricsRead(self._sample(guest)))
            case agent_events.AskPolicies():
                raise AssertionError("there are no plugins")

    def _later(self, guest: Guest, event: Callable[[], agent_events.Event]) -> None:
        self.at(HOP_S, lambda: self._step(guest, event()))

    def _heard(self, guest: Guest, registration: UUID) -> None:
        self._step(guest, agent_events.InformantHeard(registration))
        self.at(10.0, lambda: self._heard(guest, registration))

    def _resized(self, guest: Guest, target: Resources) -> None:
        self._count(guest)
        guest.size = target
        guest.sizes.append((self.now_s, target.vcpu_milli))
        record = self.core.vms.find(guest.vm.pod)
        assert record is not None
        seen = events.VmSeen(record.spec, Observation(target, target, self.now_s), self.now_s)
        self._applied(self.core.apply(seen), None)

    def _count(self, guest: Guest) -> None:
        """The CPU time used since the last count, by the mean of the load at both ends."""
        cpus = guest.size.vcpu_milli / 1000
        used = (min(guest.load(guest.counted_s), cpus) + min(guest.load(self.now_s), cpus)) / 2
        guest.cpu_s += used * (self.now_s - guest.counted_s)
        guest.counted_s = self.now_s

    def _sample(self, guest: Guest) -> Sample:
        self._count(guest)
        return Sample(self.now_s, None, None, guest.cpu_s, 2 * GIB, GIB, cpus=16)

    # ------------------------------------------------------------ the scheduler

    def _asked(self, guest: Guest, action: Any) -> None:
        arrived = events.RequestArrived(next(self._tickets), request_of(guest.vm, action.request), self.now_s)
        self._applied(self.core.apply(arrived), (guest, action.request))
        account = self.core.ledger.node("n")
        assert account is not None
        assert not account.is_over_full

    def _applied(self, outputs: tuple[events.Output, ...], asker: Any) -> None:
        for output in outputs:
            match output:
                case events.Decided():
                    guest, request = asker
                    echo = output.echo
                    assert echo is not None
                    granted = agent_events.PermitGranted(
                        request.number,
                        output.permit,
                        output.unit,
                        self.now_s,
                        output.reasons,
                        echo.sequence_number,
                        echo.instance,
                        echo.epoch,
                        token=echo.token,
                    )
                    self.at(HOP_S, lambda guest=guest, granted=granted: self._step(guest, granted))  # type: ignore[misc]  # bound now
                case events.RoomOffered(pod, _, _, amount):
                    self._notice(pod, agent_events.RoomNoticed(amount))
                case events.YieldAsked(pod, _, _, keep, _, beneficiary):
                    self.guests[pod.name].asked += 1
                    self._notice(
                        pod, agent_events.YieldNoticed(keep, str(beneficiary.pod), beneficiary.priority)
                    )
                case _:
                    pass

    def _notice(self, pod: PodName, event: agent_events.Event) -> None:
        self.at(HOP_S, lambda: self._step(self.guests[pod.name], event))
