"""Several policies as one: for each resource the highest goal counts, and every part is kept with its reason."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from msgspec.structs import replace

from agent.core.policies.remembered import Remembering
from agent.core.policies.utilisation import Utilisation
from agent.core.policies.values import (
    MAX_TEXT,
    Goal,
    GoalPart,
    Load,
    PluginAnswer,
    Policy,
    ResourceGoal,
    Sizing,
    highest,
)

PREFIX: Final = "plugin:"
"""Before the name of a plugin in `policies`."""


@dataclass(frozen=True, slots=True)
class PluginPolicy:
    """`plugin:NAME`: the policy `plugin` in a process of its own, which is asked with `args`, beside everything else, after each reading of
    the metrics. Its answer comes with the load while it is fresh; `built_in` decides if there is none."""

    plugin: str
    args: Mapping[str, Any] = field(default_factory=dict)
    built_in: Policy = field(default_factory=Utilisation)

    def goal(self, load: Load, sizing: Sizing) -> Goal:
        """The plugin's goal; of a resource that the plugin says nothing about, the built-in one with the reason why."""
        answer = next((each for each in load.answers if each.plugin == self.plugin), None)
        if answer is None:
            answer = PluginAnswer(self.plugin, None, f"policy plugin {self.plugin} has not answered")
        if answer.goal is None:
            nothing = ResourceGoal(None, answer.error)
            said = Goal(nothing, nothing)
        else:
            said = answer.goal
        if said.cpu.units is not None and said.memory.units is not None:
            return said
        goal = self.built_in.goal(load, sizing)
        return Goal(_or_built_in(said.cpu, goal.cpu), _or_built_in(said.memory, goal.memory))


def _or_built_in(said: ResourceGoal, goal: ResourceGoal) -> ResourceGoal:
    """The built-in goal comes without its parts: with them, the reason of one of them would be told."""
    if said.units is not None:
        return said
    return ResourceGoal(goal.units, f"{said.reason}; built-in utilisation: {goal.reason}"[:MAX_TEXT])


DEFAULT: Final = Utilisation()


@dataclass(frozen=True, slots=True)
class Combined:
    """Policies by their configured names; also of a single policy, or of none."""

    policies: tuple[tuple[str, Policy], ...] = (("utilisation", DEFAULT),)

    @property
    def remembering(self) -> Remembering:
        """The figures of the load that `utilisation` needs to be remembered."""
        return self._utilisation.remembering

    @property
    def wish_share(self) -> int:
        """How much of the size more an urgent wish asks for, in parts per million."""
        return self._utilisation.wish_share

    @property
    def _utilisation(self) -> Utilisation:
        """The settings that count beside the goal: those of `utilisation`, by default its defaults."""
        return next((policy for _, policy in self.policies if isinstance(policy, Utilisation)), DEFAULT)

    @property
    def is_tied(self) -> bool:
        """Whether one of the policies knows one number of units only, so that the VM's resources must be tied."""
        return any(getattr(policy, "is_tied", False) is True for _, policy in self.policies)

    @property
    def plugins(self) -> tuple[PluginPolicy, ...]:
        """The policies that must be asked for, because they are in processes of their own."""
        return tuple(policy for _, policy in self.policies if isinstance(policy, PluginPolicy))

    def goal(self, load: Load, sizing: Sizing) -> Goal:
        """The highest goal of each resource; of a tied VM the higher one for both.

        If no policy can tell about a resource, its size stays; if the VM is tied, the other resource decides alone.
        """
        return self._highest(
            sizing, tuple((name, policy.goal(load, sizing)) for name, policy in self.policies)
        )

    def need(self, load: Load, sizing: Sizing) -> Goal:
        """As `goal`, without what a policy takes for comfort."""
        found = []
        for name, policy in self.policies:
            need = getattr(policy, "need", policy.goal)
            found.append((name, need(load, sizing)))
        return self._highest(sizing, tuple(found))

    def _highest(self, sizing: Sizing, found: tuple[tuple[str, Goal], ...]) -> Goal:
        cpu = highest(part for name, goal in found for part in _parts(name, goal.cpu))
        memory = highest(part for name, goal in found for part in _parts(name, goal.memory))
        if not sizing.unit.is_apart:
            cpu = memory = tied(cpu, memory)
        size = sizing.units()
        return Goal(_known(cpu, size.cpu), _known(memory, size.memory))


def tied(cpu: ResourceGoal, memory: ResourceGoal) -> ResourceGoal:
    """The goal of both resources of a tied VM: the higher one with its reason, ties to CPU, and the parts of both."""
    binding, other = (memory, cpu) if _count(memory) > _count(cpu) else (cpu, memory)
    return replace(
        binding, parts=binding.parts + tuple(part for part in other.parts if part not in binding.parts)
    )


def _count(goal: ResourceGoal) -> int:
    return -1 if goal.units is None else goal.units


def _known(goal: ResourceGoal, size: int) -> ResourceGoal:
    """`goal`, or the size if nobody can tell."""
    if goal.units is not None:
        return goal
    return replace(goal, units=size, reason=f"the size stays: {goal.reason}")


def _parts(name: str, goal: ResourceGoal) -> Iterator[GoalPart]:
    """The result of one policy for one resource as parts, with the parts that the policy names."""
    if not goal.parts:
        yield GoalPart(name, goal.units, goal.reason)
    for part in goal.parts:
        yield GoalPart(f"{name}/{part.policy}", part.units, part.reason)
