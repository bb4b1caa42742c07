"""The life of one strategy: when its thread begins, when the thread is asked to end, and the state that people see.

A strategy has one thread at a time. In the thread `setup` runs, then `run`, then `stop`; a `setup` that fails is followed by neither.
A thread that does not end in time is left alone and reported; the strategy begins again only after that thread has ended.
"""

import enum
from dataclasses import dataclass, replace
from typing import Final, TypeAlias, assert_never

from hosting.backoff import Backoff


class StrategyState(enum.StrEnum):
    """The state of a strategy that people see."""

    OFF = "off"
    """Its feature gate is off."""
    STARTING = "starting"
    """`setup` runs."""
    RUNNING = "running"
    BACKING_OFF = "backing-off"
    """Something was raised; it is tried again later."""
    STOPPING = "stopping"
    """The end was asked for, or `stop` runs."""
    STOPPED = "stopped"
    """Its gate is on, and `run` has ended by itself, or the QoS manager has ended."""
    STUCK = "stuck"
    """Its thread has not ended in time, and is left alone."""


class ThreadPhase(enum.StrEnum):
    """The method that a strategy's thread runs."""

    SETUP = "setup"
    RUN = "run"
    STOP = "stop"


@dataclass(frozen=True, slots=True)
class LifecycleTiming:
    """Waits, in seconds."""

    sync_s: float = 60.0
    """So long the states may take to be known, before anything is started."""
    end_s: float = 5.0
    """After being asked, `setup` and `run` have so long to end; then `stop` has."""
    retry_base_s: float = 0.5
    retry_cap_s: float = 60.0
    """The wait after the first failure, which doubles with each in a row, and its limit; chance takes up to half of it away."""
    healthy_after_s: float = 60.0
    """A failure after so long is the first in a row again."""

    def retry_after_s(self, failures: int, chance: float) -> float:
        """The wait after so many failures in a row; `chance` is from 0 to 1."""
        return Backoff(self.retry_base_s, cap_s=self.retry_cap_s).delay_s(failures, chance)


class LifecycleSignal(enum.Enum):
    """An event without more to tell."""

    ENABLE = enum.auto()
    """The gate is on."""
    DISABLE = enum.auto()
    """The gate is off."""
    DRAIN = enum.auto()
    """The QoS manager ends."""
    SET_UP = enum.auto()
    """`setup` has ended; `run` begins."""
    TICK = enum.auto()
    """Time has passed."""


@dataclass(frozen=True, slots=True)
class RunEnded:
    """`run` has ended, or raised `error`; `stop` begins."""

    error: str = ""


@dataclass(frozen=True, slots=True)
class ThreadEnded:
    """The thread has ended. `error` is the error that any of its methods raised; `chance` (0 to 1) is for the back-off."""

    error: str
    chance: float


LifecycleEvent: TypeAlias = LifecycleSignal | RunEnded | ThreadEnded


class LifecycleAction(enum.StrEnum):
    BEGIN = "begin"
    """Start a thread."""
    ASK = "ask"
    """Ask the thread to end."""


@dataclass(frozen=True, slots=True)
class Lifecycle:
    """The state of a strategy and its thread. `phase` is None while it has no thread; `due_s` is when a `Tick` is needed."""

    state: StrategyState = StrategyState.OFF
    since_s: float = 0.0
    is_wanted: bool = False
    rest: StrategyState = StrategyState.OFF
    """The state without a thread, while the strategy is not wanted."""
    phase: ThreadPhase | None = None
    is_asked: bool = False
    """Whether the thread was asked to end."""
    due_s: float | None = None
    failures: int = 0
    """In a row."""
    restarts: int = 0
    """Threads that were begun after a failure."""
    last_error: str = ""

    @property
    def is_quiet(self) -> bool:
        """Whether there is nothing to wait for: no thread, or one that is left alone."""
        return self.phase is None or self.state is StrategyState.STUCK


_Step: TypeAlias = tuple[Lifecycle, LifecycleAction | None]
_NO_TIMING: Final = LifecycleTiming()


def step(life: Lifecycle, event: LifecycleEvent, now_s: float, timing: LifecycleTiming = _NO_TIMING) -> _Step:
    match event:
        case LifecycleSignal.ENABLE:
            return _enabled(life, now_s)
        case LifecycleSignal.DISABLE:
            return _unwanted(life, StrategyState.OFF, now_s, timing)
        case LifecycleSignal.DRAIN:
            rest = StrategyState.STOPPED if life.is_wanted else life.rest
            return _unwanted(life, rest, now_s, timing)
        case LifecycleSignal.SET_UP:
            life = replace(life, phase=ThreadPhase.RUN)
            return (life if life.is_asked else _in(life, StrategyState.RUNNING, now_s)), None
        case RunEnded(error):
            return _run_ended(life, error, now_s, timing), None
        case ThreadEnded():
            return _thread_ended(life, event, now_s, timing)
        case LifecycleSignal.TICK:
            return _ticked(life, now_s)
        case _:
            assert_never(event)


def _in(life: Lifecycle, state: StrategyState, now_s: float, due_s: float | None = None) -> Lifecycle:
    since_s = life.since_s if life.state is state else now_s
    return replace(life, state=state, since_s=since_s, due_s=due_s)


def _begun(life: Lifecycle, now_s: float) -> _Step:
    life = replace(life, phase=ThreadPhase.SETUP, is_asked=False)
    return _in(life, StrategyState.STARTING, now_s), LifecycleAction.BEGIN


def _enabled(life: Lifecycle, now_s: float) -> _Step:
    if life.is_wanted:
        return life, None
    life = replace(life, is_wanted=True, failures=0)
    # A thread that was asked to end must end first: one strategy is never in two threads.
    return (life, None) if life.phase is not None else _begun(life, now_s)


def _unwanted(life: Lifecycle, rest: StrategyState, now_s: float, timing: LifecycleTiming) -> _Step:
    life = replace(life, is_wanted=False, rest=rest)
    if life.phase is None:
        return _in(life, rest, now_s), None
    if life.is_asked:
        return life, None
    life = replace(life, is_asked=True)
    if life.phase is not ThreadPhase.STOP:
        life = _in(life, StrategyState.STOPPING, now_s, now_s + timing.end_s)
    return life, LifecycleAction.ASK


def _run_ended(life: Lifecycle, error: str, now_s: float, timing: LifecycleTiming) -> Lifecycle:
    was_healthy = life.state is StrategyState.RUNNING and now_s - life.since_s >= timing.healthy_after_s
    life = replace(
        life,
        phase=ThreadPhase.STOP,
        failures=0 if was_healthy else life.failures,
        last_error=error or life.last_error,
    )
    return _in(life, StrategyState.STOPPING, now_s, now_s + timing.end_s)


def _thread_ended(life: Lifecycle, event: ThreadEnded, now_s: float, timing: LifecycleTiming) -> _Step:
    was_asked = life.is_asked
    life = replace(life, phase=None, is_asked=False, last_error=event.error or life.last_error)
    if not life.is_wanted:
        return _in(life, life.rest, now_s), None
    if was_asked:  # switched off and on again meanwhile
        return _begun(life, now_s)
    if not event.error:
        return _in(replace(life, failures=0), StrategyState.STOPPED, now_s), None
    life = replace(life, failures=life.failures + 1)
    retry_s = now_s + timing.retry_after_s(life.failures, event.chance)
    return _in(life, StrategyState.BACKING_OFF, now_s, retry_s), None


def _ticked(life: Lifecycle, now_s: float) -> _Step:
    if life.due_s is None or now_s < life.due_s:
        return life, None
    if life.state is StrategyState.BACKING_OFF:
        return _begun(replace(life, restarts=life.restarts + 1), now_s)
    return _in(life, StrategyState.STUCK, now_s), None
