"""The split of one resource among the quotas of one parent, in whole numbers. Source: reference/koordinator.md 2.4, fair sharing.

The rule:

1. Each child keeps m = max(scaled min, guarantee) of what it asks for (all of m, if it does not lend).
2. The rest goes to those that ask for more, by weight and largest remainder (`split`); nobody gets more than he asks for, and what
   is left over goes round again. So nothing is left while anybody is short of it, and no unit is lost by rounding.

More request never makes a child's own runtime smaller. As with every split by largest remainders, one unit more to split may move
a unit from one child to another.

Scaled minimums are split by largest remainder too; the source truncates them, and so leaves units that nobody is assured of.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Claimant:
    """A child in one resource: `limit_request` is what it asks for within its max, `kept` the m of the rule."""

    name: str
    limit_request: int
    kept: int
    weight: int
    lends: bool = True


def split(amount: int, weights: Mapping[str, int]) -> dict[str, int]:
    """All of `amount` by weight. Of equal remainders the name that sorts first gets the unit; nothing where no weight is above 0."""
    total = sum(weights.values())
    if total <= 0:
        return dict.fromkeys(weights, 0)
    found, remainders = dict[str, int](), []
    for name, weight in weights.items():
        found[name], remainder = divmod(amount * weight, total)
        remainders.append((-remainder, name))
    left = amount - sum(found.values())
    for _, name in sorted(remainders)[:left]:
        found[name] += 1
    return found


def scaled_mins(total: int, mins: Mapping[str, int], scaling: frozenset[str]) -> dict[str, int]:
    """The minimums of the children of one parent that has `total`; those in `scaling` share what the other minimums leave, where
    that is not enough for all."""
    if sum(mins.values()) <= total:
        return dict(mins)
    fixed = {name: least for name, least in mins.items() if name not in scaling}
    left = max(total - sum(fixed.values()), 0)
    return fixed | split(left, {name: mins[name] for name in mins if name in scaling})


def runtimes(total: int, children: Sequence[Claimant]) -> dict[str, int]:
    """The runtime of each child of a parent that has `total`. They exceed it together only if what is kept does."""
    found, short = dict[str, int](), list[Claimant]()
    for child in children:
        if child.limit_request > child.kept:
            found[child.name] = child.kept
            short.append(child)
        else:
            found[child.name] = child.limit_request if child.lends else child.kept
    left = total - sum(found.values())
    while left > 0 and any(child.weight > 0 for child in short):
        given = split(left, {child.name: child.weight for child in short})
        left = 0
        for child in short:
            found[child.name] += given[child.name]
            over = max(found[child.name] - child.limit_request, 0)
            found[child.name] -= over
            left += over
        short = [child for child in short if found[child.name] < child.limit_request]
    return found
