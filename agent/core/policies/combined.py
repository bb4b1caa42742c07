"""Several policies as one: the highest goal counts, and every part is kept with its reason."""

from collections.abc import Iterator
from dataclasses import dataclass

from agent.core.policies.smoothing import Smoothing
from agent.core.policies.utilisation import Utilisation
from agent.core.policies.values import (
    MAX_UNITS,
    Goal,
    GoalPart,
    Load,
    Policy,
    Sizing,
    Unknown,
    highest,
)


@dataclass(frozen=True, slots=True)
class Combined:
    """Policies by their configured names; also of a single policy, or of none."""

    policies: tuple[tuple[str, Policy], ...] = (("utilisation", Utilisation()),)

    @property
    def smoothing(self) -> Smoothing:
        """How the means are held that `utilisation` rests on."""
        return next(
            (policy.smoothing for _, policy in self.policies if isinstance(policy, Utilisation)),
            Utilisation().smoothing,
        )

    def goal(self, load: Load, sizing: Sizing) -> Goal:
        """The highest goal. Where no policy can tell, the goal is the size."""
        parts = tuple(part for name, policy in self.policies for part in _parts(name, policy, load, sizing))
        result = highest(parts)
        if isinstance(result, Unknown):
            return Goal(min(sizing.units(), MAX_UNITS), f"the size stays: {result.reason}", parts)
        return result


def _parts(name: str, policy: Policy, load: Load, sizing: Sizing) -> Iterator[GoalPart]:
    """The result of one policy as parts, with the parts that the policy names."""
    result = policy.goal(load, sizing)
    match result:
        case Unknown(reason):
            yield GoalPart(name, None, reason)
        case Goal(units, reason, ()):
            yield GoalPart(name, units, reason)
        case Goal(_, _, parts):
            for part in parts:
                yield GoalPart(f"{name}/{part.policy}", part.units, part.reason)
