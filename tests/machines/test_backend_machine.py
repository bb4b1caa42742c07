"""Lives of agents over one simulated VM: calls on their way, fences, replacements, deaths in the middle of a write.

Each life is the agent's own reducer beside a back end of its own. Calls are stepped by hand, so that any of them may be
anywhere when something else happens. The laws: after a fence no earlier command takes effect; a size never exceeds
max(size at the replacement, new target), and max(size, target) covers what is to come; what an agent takes to be in
use covers what its VM may reach; the log never shows less than the VM has.
"""

import math
import random
import tempfile
import types
from collections.abc import Coroutine, Generator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from agent.backends.faults import Faults
from agent.backends.simulated import MonotonicClock, SimulatedBackend, VmFile
from agent.core import events
from agent.core.model import Vm
from agent.core.ports import BackendError, Fencing
from agent.core.state import RunnerState, SchedulerState
from agent.core.step import apply
from agent.core.timing import Timing
from hosting.settings import check
from protocol.values import Observation, Resources
from tests.conformance.vm_backend_simulated import PROFILES, FoldedLog
from tests.support.amounts import cu
from tests.unit.agent.driver import LIFE, UTILISATION, VM

AMOUNTS = st.builds(cu, st.integers(1, 8), st.integers(1, 8))
PATIENT_S = 5.0
"""How long a call may take before it is cut off."""


class Death(BaseException):
    """The process ends here."""


class Mortal(SimulatedBackend):
    """A back end whose process may die while it writes: before the file is renamed, or after."""

    dies: str = ""
    world: "World"

    def _write(self, vm: Vm, content: VmFile) -> None:
        if self.dies == "before":
            self._path(vm).with_suffix(".new").write_bytes(b'{"generation": 1')
            raise Death
        before = self.world.truth()
        super()._write(vm, content)
        self.world.wrote(before, content)
        if self.dies == "after":
            raise Death


@dataclass(eq=False)
class Life:
    """An agent's process as far as its VM goes: what it knows (`state`) and commands with."""

    number: int
    backend: Mortal
    timing: Timing
    state: RunnerState
    fencing: Fencing | None = None

    def apply(self, event: events.Event, now_s: float) -> None:
        self.state = apply(self.state, event, now_s, self.timing, UTILISATION)


@dataclass(eq=False)
class Call:
    """A call that is under way. It goes on at `wakes_s`; `begun_s` is when it was started."""

    life: Life
    action: events.Fence | events.Observe | events.Resize
    coroutine: Coroutine[Any, Any, Any]
    begun_s: float
    wakes_s: float


@dataclass
class World:
    """The VM, its log, and everybody who is alive. `owners` says whose command has which number."""

    directory: Path
    faults: Faults
    delay_s: float
    rng: random.Random
    log: FoldedLog
    now_s: float = 1000.0
    lives: list[Life] = field(default_factory=list)
    calls: list[Call] = field(default_factory=list)
    owners: dict[int, int] = field(default_factory=dict)
    stepping: Life | None = None
    fenced: Life | None = None
    count: int = 0

    def truth(self) -> VmFile | None:
        return self.log.truth()

    def wrote(self, before: VmFile | None, after: VmFile) -> None:
        """The laws of one change of the VM."""
        self.log.compare("after a write")
        bound = after.size.max(after.target)
        assert all(each.size.max(each.target).fits_in(bound) for each in after.agenda), f"to come: {after}"
        if before is None:
            return
        if after.sent != before.sent:
            assert self.stepping is not None
            self.owners[after.sent] = self.stepping.number
        if after.accepted == before.accepted:
            assert bound.fits_in(before.size.max(before.target)), "more, without a command"
            assert after.generation == before.generation or after.target == before.target
            return
        assert after.size == before.size
        assert after.target.fits_in(before.target.max(after.wanted))
        if self.faults.replacement == "at-once":
            reach = before.size.max(after.wanted)
            assert all(each.size.fits_in(reach) for each in after.agenda), "above size and new target"
        if self.fenced is not None:
            assert self.owners[after.accepted] >= self.fenced.number, "a command of an earlier life"

    def open(self) -> Life:
        """A new process."""
        clock = MonotonicClock(lambda: self.now_s, _sleep)
        self.count += 1
        backend = Mortal(self.directory, self.log, self.delay_s, self.faults, self.rng, clock)
        backend.world = self
        link = SchedulerState(held=cu(99), lease_until_s=math.inf)
        timing = Timing(command_deadline_s=backend.capabilities.command_deadline_s)
        life = Life(self.count, backend, timing, RunnerState(VM, LIFE, scheduler=link))
        backend.create(VM, cu(2))
        self.lives.append(life)
        return life

    def begin(self, life: Life, action: events.Fence | events.Observe | events.Resize) -> None:
        """Start a call, as the runner does."""
        life.apply(events.Started(action), self.now_s)
        coroutine: Coroutine[Any, Any, Any]
        match action:
            case events.Fence():
                coroutine = life.backend.fence(VM)
            case events.Observe():
                coroutine = life.backend.observe(VM)
            case events.Resize(target, seen, not_after_s):
                assert life.fencing is not None
                coroutine = life.backend.resize(VM, target, life.fencing, seen=seen, not_after_s=not_after_s)
        call = Call(life, action, coroutine, self.now_s, self.now_s)
        self.calls.append(call)
        self.step(call)

    def step(self, call: Call) -> None:
        """Let a call go on until it waits or ends."""
        self.stepping = call.life
        try:
            call.wakes_s = self.now_s + call.coroutine.send(None)
        except StopIteration as end:
            self._ended(call, end.value)
        except BackendError as error:
            self.calls.remove(call)
            call.life.apply(failure(call.action, str(error)), self.now_s)
        except Death:
            self.kill(call.life)
        finally:
            self.stepping = None

    def _ended(self, call: Call, outcome: Fencing | Observation | None) -> None:
        self.calls.remove(call)
        life = call.life
        match outcome:
            case Fencing():
                life.fencing = outcome
                life.apply(events.Fenced(), self.now_s)
                truth = self.truth()
                assert truth is not None
                if truth.generation == outcome.generation:
                    self.fenced = life
            case Observation():
                life.apply(events.Observed(outcome), self.now_s)
            case None:
                life.apply(events.ResizeAccepted(), self.now_s)

    def cut(self, call: Call) -> None:
        """A call has taken too long."""
        self.calls.remove(call)
        call.coroutine.close()
        call.life.apply(failure(call.action, "no answer"), self.now_s)

    def kill(self, life: Life) -> None:
        """A process dies, and all its calls with it."""
        self.lives.remove(life)
        for call in [each for each in self.calls if each.life is life]:
            self.calls.remove(call)
            call.coroutine.close()

    def pass_to(self, until_s: float) -> None:
        """Let time pass; every call goes on at its moment."""
        while True:
            due = min(self.calls, key=lambda each: each.wakes_s, default=None)
            if due is None or due.wakes_s > until_s:
                break
            self.now_s = max(self.now_s, due.wakes_s)
            if self.now_s - due.begun_s >= PATIENT_S + self.faults.command_deadline:
                self.cut(due)
            else:
                self.step(due)
        self.now_s = max(self.now_s, until_s)


@types.coroutine
def _sleep(seconds: float) -> Generator[float, None, None]:
    yield seconds


def failure(action: events.Fence | events.Observe | events.Resize, error: str) -> events.Event:
    match action:
        case events.Fence():
            return events.FenceFailed(error, 0.5)
        case events.Observe():
            return events.ObserveFailed(error, 0.5)
        case events.Resize():
            return events.ResizeFailed(error, 0.5)


class BackendMachine(RuleBasedStateMachine):
    """Everything that may happen to one VM and those who command it."""

    world: World

    @initialize(profile=st.sampled_from(sorted(PROFILES)), seed=st.integers(0, 1000))
    def begin(self, profile: str, seed: int) -> None:
        self._place = tempfile.TemporaryDirectory()
        directory = Path(self._place.name)
        delay_s, faults = PROFILES[profile]
        log = FoldedLog(directory)
        self.world = World(directory, check(faults, Faults), delay_s, random.Random(seed), log)
        self._take_over()

    def _take_over(self) -> None:
        """A new life that gets as far as knowing its VM, if all goes well."""
        world, life = self.world, self.world.open()
        world.begin(life, events.Fence())
        for _ in range(2):
            world.pass_to(max(each.wakes_s for each in world.calls) if world.calls else world.now_s)
            if life.state.backend.is_fenced and not life.state.backend.is_observing:
                world.begin(life, events.Observe())

    def teardown(self) -> None:
        if hasattr(self, "world"):
            for life in list(self.world.lives):
                self.world.kill(life)
            self.world.log.__exit__(None, None, None)
            self._place.cleanup()

    def _life(self, index: int) -> Life:
        return self.world.lives[-1 - (index % len(self.world.lives) if index > 4 else 0)]

    @rule(seconds=st.sampled_from([0.05, 0.2, 0.5, 1.0, 2.1, 6.0]))
    def time_passes(self, seconds: float) -> None:
        self.world.pass_to(self.world.now_s + seconds)

    @precondition(lambda self: self.world.calls)
    @rule()
    def the_next_call_goes_on(self) -> None:
        self.world.pass_to(min(each.wakes_s for each in self.world.calls))

    @precondition(lambda self: len(self.world.lives) < 3)
    @rule(is_prompt=st.booleans())
    def a_new_life_begins(self, is_prompt: bool) -> None:
        if is_prompt:
            self._take_over()
        else:
            self.world.open()

    @precondition(lambda self: self.world.lives)
    @rule(index=st.integers(0, 7), luck=st.integers(0, 4))
    def a_life_dies(self, index: int, luck: int) -> None:
        if luck == 0:
            self.world.kill(self._life(index))

    @precondition(lambda self: self.world.lives)
    @rule(index=st.integers(0, 7), dies=st.sampled_from(["before", "after"]), luck=st.integers(0, 4))
    def a_life_will_die_while_it_writes(self, index: int, dies: str, luck: int) -> None:
        if luck == 0:
            self._life(index).backend.dies = dies

    @precondition(lambda self: self.world.lives)
    @rule(index=st.integers(0, 7))
    def somebody_fences(self, index: int) -> None:
        life = self._life(index)
        if not life.state.backend.is_fenced and not life.state.backend.is_fencing:
            self.world.begin(life, events.Fence())

    @precondition(lambda self: self.world.lives)
    @rule(index=st.integers(0, 7))
    def somebody_looks(self, index: int) -> None:
        life = self._life(index)
        link = life.state.backend
        if link.is_fenced and not link.is_observing and not link.is_resizing:
            self.world.begin(life, events.Observe())

    @precondition(lambda self: self.world.lives)
    @rule(index=st.integers(0, 7), amount=AMOUNTS)
    def somebody_resizes(self, index: int, amount: Resources) -> None:
        life = self._life(index)
        link = life.state.backend
        is_free = link.sent is None and not link.is_resizing
        if link.observation is not None and is_free:
            not_after_s = self.world.now_s + PATIENT_S
            self.world.begin(life, events.Resize(amount, link.observation.target, not_after_s))

    @precondition(lambda self: self.world.lives)
    @rule(amount=AMOUNTS, apart_s=st.sampled_from([0.0, 0.02, 0.1]))
    def the_latest_life_looks_while_it_resizes(self, amount: Resources, apart_s: float) -> None:
        self.somebody_looks(0)
        self.world.pass_to(self.world.now_s + apart_s)
        if self.world.lives:
            self.somebody_resizes(0, amount)

    @precondition(lambda self: self.world.lives)
    @rule(amount=AMOUNTS, is_dead=st.booleans())
    def another_life_takes_over_while_a_command_is_on_its_way(self, amount: Resources, is_dead: bool) -> None:
        old = self.world.lives[-1]
        self.somebody_resizes(0, amount)
        if is_dead and old in self.world.lives:
            self.world.kill(old)
        self._take_over()

    @precondition(lambda self: self.world.calls)
    @rule(index=st.integers(0, 7), luck=st.integers(0, 2))
    def a_call_is_cut_off(self, index: int, luck: int) -> None:
        if luck == 0:
            self.world.cut(self.world.calls[index % len(self.world.calls)])

    @precondition(lambda self: self.world.lives and not self.world.calls)
    @rule(amount=AMOUNTS)
    def the_latest_life_looks_and_resizes(self, amount: Resources) -> None:
        self.somebody_looks(0)
        self.world.pass_to(
            max(each.wakes_s for each in self.world.calls) if self.world.calls else self.world.now_s
        )
        if self.world.lives:
            self.somebody_resizes(0, amount)

    @invariant()
    def in_use_covers_what_the_vm_may_reach(self) -> None:
        life, truth = self.world.fenced, self.world.truth()
        if life is None or truth is None or life.state.backend.observation is None:
            return
        reach = truth.size.max(truth.target)
        for command in truth.on_way:
            reach = reach.max(command.target)
        assert reach.fits_in(life.state.in_use()), f"{reach}, in use as the agent knows {life.state.in_use()}"

    @invariant()
    def the_log_never_shows_less_than_the_vm_has(self) -> None:
        assert self.world.log.faults == []


BackendMachine.TestCase.settings = settings(
    max_examples=80,
    stateful_step_count=50,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
test_backend_machine = BackendMachine.TestCase
