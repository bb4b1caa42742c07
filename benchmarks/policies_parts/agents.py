"""Rules that run the agent's own code: its state, its policies, its windows, its handling of wishes."""

import dataclasses
import sys
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final
from uuid import UUID

from msgspec import Struct
from msgspec.structs import replace

from agent.core import events
from agent.core.desire import desire, shrink
from agent.core.model import Vm
from agent.core.policies.combined import Combined
from agent.core.policies.peaks import NO_SURGES, NO_TAIL
from agent.core.policies.remembered import Zones
from agent.core.policies.stepwise import LoadAverage
from agent.core.policies.utilisation import Utilisation
from agent.core.policies.values import MILLION, Goal, Load, ResourceGoal, Sizing, units_for
from agent.core.state import BackendState, InformantState, RegistrationPhase, RunnerState
from agent.core.step import apply
from agent.core.timing import Timing
from agent.daemon.settings import Periods
from benchmarks.policies_parts.families import GIB, MIB, MOST_BYTES, MOST_CPUS
from benchmarks.policies_parts.guest import OURS, PUBLISHED, GuestRules
from benchmarks.policies_parts.replay import Rule, Seen
from benchmarks.policies_parts.shapes import HOUR_S
from protocol.sequence import Life
from protocol.values import Bounds, ComputeUnit, Observation, Resources
from protocol.versions import InformantProtoVersion
from protocol.wire import MoreResources, PodName

UNIT: Final = Resources(250, int(GIB))
BOUNDS: Final = Bounds(UNIT, Resources(int(1000 * MOST_CPUS), int(MOST_BYTES)))
_LIFE: Final = Life(UUID(int=1, version=4), 1)
_REGISTRATION: Final = UUID(int=2, version=4)
DEFAULT: Final = Utilisation()
REMEMBERS_S: Final = DEFAULT.surges.window_s + HOUR_S
_SILENCE_S: Final = 1e12
"""The informant's health calls are not played: it never counts as silent."""


@dataclass(frozen=True, slots=True)
class AgentSetup:
    """How an agent is configured. `is_apart`: each resource has a number of units of its own. `is_whole`: the scheduler is a
    published one and knows whole, equal numbers of units only.
    `remembers_s` is how far back the policy's memory reaches, in seconds."""

    policy: Combined
    timing: Timing
    guest: GuestRules = OURS
    is_apart: bool = False
    is_whole: bool = False
    remembers_s: float = 1.0 * HOUR_S


class AgentRule(Rule):
    """The agent's code for one VM, without its talks: the state after each event, and its wishes."""

    def __init__(self, setup: AgentSetup, size: Resources) -> None:
        super().__init__(size, setup.guest, setup.remembers_s)
        self._setup = setup
        self._timing = replace(setup.timing, informant_silence_s=_SILENCE_S)
        state = RunnerState(
            Vm(PodName("vm", "default"), "uid", BOUNDS, ComputeUnit(UNIT, setup.is_apart), int(GIB)),
            _LIFE,
            informant=InformantState(
                RegistrationPhase.ACTIVE, _REGISTRATION, InformantProtoVersion.V1_1, metrics_port=1
            ),
            backend=BackendState(is_fenced=True, observation=Observation(size, size, 0.0)),
        )
        unit = UNIT if setup.is_whole else None
        scheduler = replace(state.scheduler, unit=unit)
        self.state = replace(state, scheduler=scheduler)

    def read(self, seen: Seen, now_s: float) -> None:
        """The metrics of the last 5 s."""
        self._apply(events.MetricsRead(seen.sample), now_s)

    def wished(self, more: MoreResources, now_s: float) -> None:
        """The guest cannot wait."""
        self._apply(events.TryUpscaleReceived(_REGISTRATION, more), now_s)

    def moved(self, size: Resources, target: Resources, now_s: float) -> None:
        """The VM is looked at, and the guest told of growth that has come."""
        self._apply(events.Observed(Observation(size, target, now_s)), now_s)
        if size == target:
            self._apply(events.UpscaleAnnounced(size), now_s)

    def wanted(self, now_s: float) -> Resources:
        return desire(self.state, now_s, self._timing)[0]

    def shrunk(self, size: Resources, wanted: Resources, now_s: float) -> Resources:
        """The size that the agent asks the guest for."""
        return shrink(self.state, size, size.min(wanted), size, now_s, self._timing).amount

    def answered(self, size: Resources, now_s: float, *, is_approved: bool) -> None:
        """The guest has said yes or no."""
        self._apply(
            events.DownscaleApproved(size) if is_approved else events.DownscaleDenied(size, "replay"), now_s
        )

    def remembered_bytes(self) -> int:
        """The samples, means and goals in the state."""
        return _bytes_of(self.state.metrics, set())

    def _apply(self, event: events.Event, now_s: float) -> None:
        self.state = apply(self.state, event, now_s, self._timing, self._setup.policy)


NOT_JUDGED: Final = ResourceGoal(None, "not judged")


def _bytes_of(value: object, seen: set[int]) -> int:
    """The memory of a value with all that it refers to; an object that is referred to twice counts once."""
    if id(value) in seen:
        return 0
    seen.add(id(value))
    parts: Iterable[object] = ()
    if isinstance(value, Struct):
        parts = (getattr(value, name) for name in value.__struct_fields__)
    elif isinstance(value, tuple | list | deque):
        parts = value
    return sys.getsizeof(value) + sum(_bytes_of(part, seen) for part in parts)


@dataclass(frozen=True, slots=True)
class PublishedMemory:
    """The published goal by memory alone: a share of the size, and a margin. Source: reference/neon.md 6.2."""

    target: int = 750_000
    margin_bytes: int = int(100 * MIB)

    def goal(self, load: Load, sizing: Sizing) -> Goal:
        """As many units as keep memory in use, and the margin, at the target."""
        used = load.memory_used()
        if used is None:
            return Goal(NOT_JUDGED, NOT_JUDGED)
        units = units_for((used + self.margin_bytes) * MILLION, self.target * sizing.unit.step.memory_bytes)
        return Goal(NOT_JUDGED, ResourceGoal(units, "memory"))


def published() -> AgentSetup:
    """The published rule: load average for CPU, a share for memory; no window, since the published agent has none."""
    policy = Combined((("load-average", LoadAverage()), ("memory", PublishedMemory())))
    return AgentSetup(policy, Timing(down_window_s=0.001), PUBLISHED, is_whole=True)


def before() -> AgentSetup:
    """The settings of our default before resources were apart: tied units, 75 %, a window of 30 s."""
    policy = Utilisation(
        750_000,
        750_000,
        memory_margin=int(100 * MIB),
        cpu_zones=Zones(160_000, 160_000),
        memory_zones=Zones(50_000, 50_000),
        tail=NO_TAIL,
        surges=NO_SURGES,
        ahead_s=0.0,
        wish_share=0,
    )
    return AgentSetup(_alone(policy), Timing(down_window_s=30.0))


def default() -> AgentSetup:
    return _like_default()


def _like_default(policy: Utilisation = DEFAULT, down_window_s: float = Periods().down_window) -> AgentSetup:
    timing = Timing(down_window_s=down_window_s)
    return AgentSetup(_alone(policy), timing, is_apart=True, remembers_s=REMEMBERS_S)


def _alone(policy: Utilisation) -> Combined:
    return Combined((("utilisation", policy),))


SETUPS: Final[dict[str, Callable[[], AgentSetup]]] = {
    "published": published,
    "before": before,
    "default": default,
}
PARTS: Final[dict[str, Callable[[], AgentSetup]]] = {
    "default, tied": lambda: dataclasses.replace(default(), is_apart=False),
    "default without tail": lambda: _like_default(dataclasses.replace(DEFAULT, tail=NO_TAIL)),
    "default without surge": lambda: _like_default(dataclasses.replace(DEFAULT, surges=NO_SURGES)),
    "default without slope": lambda: _like_default(dataclasses.replace(DEFAULT, ahead_s=0.0)),
    "default, wishes of a unit": lambda: _like_default(dataclasses.replace(DEFAULT, wish_share=0)),
    "default, window of 30 s": lambda: _like_default(down_window_s=30.0),
}
"""The default without one of its parts: to be named with `--policy`."""


def first_size(cpus: float, memory_bytes: float) -> Resources:
    """A first size for such a use: tied units at three quarters."""
    need = Resources(int(1000 * cpus / 0.75), int(memory_bytes / 0.75))
    return BOUNDS.clamp(UNIT * need.units(UNIT))
