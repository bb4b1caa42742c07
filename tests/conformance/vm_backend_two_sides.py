"""Simulated VMs that a plugin resizes while it is registered, and the built-in back end otherwise; and plugins that come and go."""

import random
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from agent.backends.change_log import ChangeLog
from agent.backends.faults import NONE, Faults
from agent.backends.simulated import MONOTONIC, MonotonicClock, SimulatedBackend
from agent.core.model import Vm
from agent.core.ports import BackendError, Capabilities, FencedOffError, Fencing
from agent.node.plugins.types.resizer import ResizerFailedError
from agent.node.plugins.types.resizer_or_built_in import ResizerOrBuiltIn
from protocol.values import Observation, Resources
from tests.conformance.vm_backend_clauses import CLAUSES

PERIODS_S: Final = {"registered": 0.0, "away": -1.0, "comes and goes": 3.1}
"""For so long a plugin is registered, and then away; 0 for always, below 0 for never."""

ONE_OBJECT: Final = {
    "what_is_observed_is_not_older_than_the_look",
    "a_write_fails_where_another_target_stands_than_the_one_that_was_seen",
}
"""These clauses hand a proof of a fence to another object, which knows nothing of its sides."""
ONE_PROCESS: Final = {"commands_of_an_earlier_life_are_refused"}
"""A plugin that is away cannot be fenced: only the node lock keeps an earlier process from commanding it when it comes back."""


def kept_by_two_sides() -> list[tuple[str, str, str]]:
    """Which clauses hold, for each way in which a plugin is registered, with a profile of faults."""
    return [
        (plugin, "late, fence waits" if plugin == "away" else "everything", clause)
        for plugin in PERIODS_S
        for clause in CLAUSES
        if clause not in ONE_OBJECT and not (plugin == "comes and goes" and clause in ONE_PROCESS)
    ]


@dataclass(slots=True)
class PluginSide:
    """A plugin over the same VMs, with generations of its own that outlive its lives."""

    inner: SimulatedBackend
    generations: dict[str, int] = field(default_factory=dict)

    @property
    def capabilities(self) -> Capabilities:
        return self.inner.capabilities

    async def fence(self, vm: Vm) -> Fencing:
        generation = self.generations[vm.name] = self.generations.get(vm.name, 0) + 1
        try:
            await self.inner.fence(vm)
        except BackendError as error:
            raise ResizerFailedError(str(error)) from error
        return Fencing(generation)

    async def observe(self, vm: Vm) -> Observation:
        try:
            return await self.inner.observe(vm)
        except BackendError as error:
            raise ResizerFailedError(str(error)) from error

    async def resize(
        self, vm: Vm, target: Resources, fencing: Fencing, *, seen: Resources, not_after_s: float
    ) -> None:
        last = self.generations.get(vm.name)
        if last != fencing.generation:
            raise FencedOffError(f"generation {fencing.generation} was fenced off by {last}")
        known = Fencing(self.inner._read(vm).generation)
        try:
            await self.inner.resize(vm, target, known, seen=seen, not_after_s=not_after_s)
        except FencedOffError:
            raise
        except BackendError as error:
            raise ResizerFailedError(str(error)) from error


class TwoSides(SimulatedBackend):
    """Both sides as one back end."""

    period_s = 0.0
    generations: dict[str, int]

    def __init__(
        self,
        directory: Path,
        log: ChangeLog,
        delay_s: float = 0.2,
        faults: Faults = NONE,
        rng: random.Random | None = None,
        clock: MonotonicClock = MONOTONIC,
    ) -> None:
        super().__init__(directory, log, delay_s, faults, rng, clock)
        built_in, inner = (SimulatedBackend(directory, log, delay_s, faults, rng, clock) for _ in range(2))
        period_s = self.period_s
        self._both = ResizerOrBuiltIn(
            PluginSide(inner, self.generations),
            built_in,
            lambda: period_s == 0 or (period_s > 0 and clock.now_s() % (2 * period_s) < period_s),
            rng=rng,
            clock=clock.now_s,
            sleep=clock.sleep,
        )

    @property
    def capabilities(self) -> Capabilities:
        return self._both.capabilities

    async def fence(self, vm: Vm) -> Fencing:
        return await self._both.fence(vm)

    async def observe(self, vm: Vm) -> Observation:
        return await self._both.observe(vm)

    async def resize(
        self, vm: Vm, target: Resources, fencing: Fencing, *, seen: Resources, not_after_s: float
    ) -> None:
        await self._both.resize(vm, target, fencing, seen=seen, not_after_s=not_after_s)


def two_sides(name: str) -> type[TwoSides]:
    """The back ends of one plant, whose plugin is registered as the name says."""
    return type("TwoSidesOfAPlant", (TwoSides,), {"period_s": PERIODS_S[name], "generations": {}})
