"""The fair split of several amounts at once: Dominant Resource Fairness, in exact numbers. Pure.

Who takes part wants so much of each amount (units, CPU, memory). His *dominant share* is the largest part that he gets of any
of them. The rule:

1. All dominant shares rise together, in proportion to the weights, and everybody gets his amounts in the proportion in which
   he wants them; so a tenant that is heavy on memory pays with memory, and not for CPUs that it does not want. Whoever has all
   that he wants stops.
2. When one amount has run out, everybody keeps what he has of it. The others are split on in the same way, by what is still
   wanted of them: resources may grow apart. So nothing is left that anybody wants.
3. Each amount is rounded by largest remainder, as `fair_split` does it: the shares add up, and nobody gets more than he wants.

With a single amount that is `fair_split`.

Example: of 100 CPUs and 100 GiB, `a` wants 100 CPUs and 50 GiB, `b` 100 GiB. Both dominant shares rise to 2/3, where the memory
is gone: `a` has 66⅔ CPUs and 33⅓ GiB, `b` 66⅔ GiB. Then `a` gets the other CPUs, which `b` does not want. A split of each amount by
itself would have given each 50 GiB, and `a`, which has all the CPUs, as much memory as `b`.

Source: Ghodsi et al., "Dominant Resource Fairness", NSDI 2011.
"""

from collections.abc import Sequence
from fractions import Fraction
from math import floor
from typing import NamedTuple


class Demands(NamedTuple):
    """Who takes part, with what he wants at most of each amount, in their order; None is whatever there is. `weight` is at least
    1, the amounts at least 0."""

    name: str
    weight: int
    most: tuple[int | None, ...]


def dominant_split(totals: Sequence[int], demands: Sequence[Demands]) -> dict[str, tuple[int, ...]]:
    """The share of each in every amount, by name: by the rule of this module. Names must differ; totals are at least 0."""
    wanted = {each.name: tuple(most for most in each.most if most is not None) for each in demands}
    if all(len(most) == len(totals) for most in wanted.values()) and all(
        sum(most[at] for most in wanted.values()) <= total for at, total in enumerate(totals)
    ):
        return wanted  # nothing is scarce
    exact = exact_split(totals, demands)
    names = sorted(exact)
    rounded = [_rounded([exact[name][at] for name in names]) for at in range(len(totals))]
    return {name: tuple(shares[place] for shares in rounded) for place, name in enumerate(names)}


def exact_split(totals: Sequence[int], demands: Sequence[Demands]) -> dict[str, list[Fraction]]:
    """The shares as if amounts could be divided."""
    left = [Fraction(total) for total in totals]
    has = {each.name: [Fraction(0)] * len(totals) for each in demands}
    wants = {
        each.name: [
            Fraction(total if most is None else most) for most, total in zip(each.most, totals, strict=True)
        ]
        for each in demands
    }
    weights = {each.name: each.weight for each in demands}
    while there := [at for at, amount in enumerate(left) if amount > 0]:
        # For each: when, by the common level of the weighted dominant shares, he has all that he still wants.
        sated = {
            name: dominant / weights[name]
            for name, want in wants.items()
            if (dominant := max(want[at] / totals[at] for at in there)) > 0
        }
        if not sated:
            break
        ends = [
            _runs_out(left[at], [(wants[name][at], level) for name, level in sated.items()]) for at in there
        ]
        end = min((level for level in ends if level is not None), default=None)
        for name, level in sated.items():
            part = Fraction(1) if end is None else min(Fraction(1), end / level)
            for at in there:
                more = wants[name][at] * part
                has[name][at] += more
                wants[name][at] -= more
                left[at] -= more
        if end is None:
            break
    return has


def _runs_out(left: Fraction, wants: Sequence[tuple[Fraction, Fraction]]) -> Fraction | None:
    """The level at which an amount has run out; None where there is enough. `wants` is how much each wants of it, and the level
    at which he has that."""
    rising = sorted((level, want) for want, level in wants if want)
    speed = sum((want / level for level, want in rising), Fraction(0))
    taken = at = Fraction(0)
    for level, want in rising:
        following = taken + (level - at) * speed
        if following >= left:
            return at + (left - taken) / speed
        taken, at = following, level
        speed -= want / level
    return None


def _rounded(exact: Sequence[Fraction]) -> list[int]:
    """Whole shares with the same sum: the largest remainders get what is left, of equal ones the first."""
    shares = [floor(share) for share in exact]
    missing = int(sum(exact)) - sum(shares)
    order = sorted(range(len(exact)), key=lambda place: (shares[place] - exact[place], place))
    for place in order[:missing]:
        shares[place] += 1
    return shares
