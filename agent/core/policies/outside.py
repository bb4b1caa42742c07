"""`plugin:NAME`: the goal of a policy in a process of its own. The process is asked beside everything else, after each reading of
the metrics; its answer comes with the load while it is fresh. Without an answer the built-in policy decides."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from agent.core.policies.utilisation import Utilisation
from agent.core.policies.values import MAX_TEXT, Goal, Load, PluginAnswer, Policy, ResourceGoal, Sizing

PREFIX: Final = "plugin:"
"""Before the name of a plugin in `policies`."""


@dataclass(frozen=True, slots=True)
class PluginPolicy:
    """The policy plugin `plugin`, which is asked with `args`; `built_in` decides if there is no answer."""

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
