"""Several policies as one: the highest wish counts, and every wish is kept with its reason."""

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
    moved,
)


@dataclass(frozen=True, slots=True)
class Combined:
    """Policies by the name that they are configured by; one alone, or none, is combined as well."""

    policies: tuple[tuple[str, Policy], ...] = (("utilisation", Utilisation()),)

    @property
    def smoothing(self) -> Smoothing:
        """How the means are held that `utilisation` rests on."""
        return next(
            (policy.smoothing for _, policy in self.policies if isinstance(policy, Utilisation)),
            Utilisation().smoothing,
        )

    def goal(self, load: Load, sizing: Sizing) -> Goal:
        """The highest wish. Where no policy can tell, or nothing may shrink, not less than the size."""
        size = min(sizing.units(), MAX_UNITS)
        parts = tuple(part for name, policy in self.policies for part in _parts(name, policy, load, sizing))
        wish = highest(parts)
        if isinstance(wish, Unknown):
            return Goal(size, f"the size stays: {wish.reason}", parts)
        if not sizing.can_decrease and wish.units < size:
            return moved(wish, size, "no decrease", f"it may not shrink now; else {wish.reason}")
        return wish


def _parts(name: str, policy: Policy, load: Load, sizing: Sizing) -> Iterator[GoalPart]:
    """What one policy wishes, with the wishes that it was made of where it tells them."""
    wish = policy.goal(load, sizing)
    match wish:
        case Unknown(reason):
            yield GoalPart(name, None, reason)
        case Goal(units, reason, ()):
            yield GoalPart(name, units, reason)
        case Goal(_, _, parts):
            for part in parts:
                yield GoalPart(f"{name}/{part.policy}", part.units, part.reason)
