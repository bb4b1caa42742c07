"""The fair split of everything that can be lent, in all measures (units, CPU, memory) together. Pure, in exact numbers.

Who takes part wants so much of each measure. His *dominant share* is the largest part that he gets of any of them. The rule:

1. All dominant shares rise together, in proportion to the weights, and everybody gets his amounts in the proportion in which
   he wants them; so a tenant that is heavy on memory pays with memory, and not for CPUs that it does not want. Whoever has all
   that he wants stops, and what he leaves goes to the others by their weights.
2. When one measure has run out, everybody keeps what he has of it. The others are split on in the same way, by what is still
   wanted of them: resources may grow apart. So nothing is left that anybody wants.
3. Each measure is rounded by largest remainder: the shares add up, and nobody gets more than he wants. Of equal remainders the
   name that sorts first gets the unit. (As with every split by largest remainders, one unit more to split, or one who takes part
   less, may move a unit from one share to another.)

Of a single measure that is a split by weight.

Example: of 100 CPUs and 100 GiB, `a` wants 100 CPUs and 50 GiB, `b` 100 GiB. Both dominant shares rise to 2/3, where the memory
is gone: `a` has 66⅔ CPUs and 33⅓ GiB, `b` 66⅔ GiB. Then `a` gets the other CPUs, which `b` does not want. A split of each measure by
itself would have given each 50 GiB, and `a`, which has all the CPUs, as much memory as `b`.

Source: Ghodsi et al., "Dominant Resource Fairness", NSDI 2011.
"""

from collections.abc import Sequence
from fractions import Fraction
from math import gcd, lcm
from typing import NamedTuple


class Demand(NamedTuple):
    """Who takes part, with what he wants at most of each measure, in their order; None is whatever there is. `weight` is at least
    1, the amounts at least 0."""

    name: str
    weight: int
    most: tuple[int | None, ...]


def fair_split(totals: Sequence[int], demands: Sequence[Demand]) -> dict[str, tuple[int, ...]]:
    """The share of each in every measure, by name: by the rule of this module. Names must differ; totals are at least 0."""
    exact, one = exact_split(totals, demands)
    names = sorted(exact)
    rounded = [_rounded([exact[name][at] for name in names], one) for at in range(len(totals))]
    return {name: tuple(shares[place] for shares in rounded) for place, name in enumerate(names)}


def exact_split(totals: Sequence[int], demands: Sequence[Demand]) -> tuple[dict[str, list[int]], int]:
    """The shares as if amounts could be divided: as whole numbers of parts, and how many parts are one.

    (`Fraction`s would say the same, five times as slowly. Every growth that borrows is a split.)
    """
    one, left = 1, list(totals)
    wanted = {
        each.name: [total if most is None else most for most, total in zip(each.most, totals, strict=True)]
        for each in demands
    }
    wants = {name: list(own) for name, own in wanted.items()}
    weights = {each.name: each.weight for each in demands}
    while there := [at for at, amount in enumerate(left) if amount > 0]:
        rising = _rising(totals, there, wants, weights)
        if not rising:
            break
        common = lcm(*[each.step for each in rising])
        ends = [_runs_out(at, left[at], rising, common) for at in there]
        # Where there is enough of everything, the end is where the last has all that he wants.
        end = min([level for level in ends if level is not None], default=Fraction(rising[-1].level))
        level, part = end.numerator, end.denominator
        scale = common * part
        one, left = one * scale, [amount * scale for amount in left]
        for own in wants.values():
            own[:] = [amount * scale for amount in own]
        for each in rising:
            own, has_all = wants[each.name], each.level * part <= level
            speed = common // each.step * level
            for at in there:
                more = own[at] if has_all else each.rates[at] * speed
                own[at] -= more
                left[at] -= more
    shares = {
        name: [amount * one - missing for amount, missing in zip(own, wants[name], strict=True)]
        for name, own in wanted.items()
    }
    return shares, one


class _Rising(NamedTuple):
    """Who still wants something: `wants` is all of it, which he has at `level`. He gets `rates` with each `step` of it."""

    level: int
    name: str
    wants: list[int]
    rates: list[int]
    step: int


def _rising(
    totals: Sequence[int], there: Sequence[int], wants: dict[str, list[int]], weights: dict[str, int]
) -> list[_Rising]:
    """By level. Levels are those of the weighted dominant shares, in a unit in which they are whole numbers."""
    whole, of_weights = lcm(*[totals[at] for at in there]), lcm(*weights.values())
    parts = [(at, whole // totals[at]) for at in there]
    found = []
    for name, own in wants.items():
        dominant = max([own[at] * part for at, part in parts])
        if dominant:
            level = dominant * (of_weights // weights[name])
            divisor = gcd(level, *own)
            found.append(_Rising(level, name, own, [amount // divisor for amount in own], level // divisor))
    return sorted(found)


def _runs_out(at: int, left: int, rising: Sequence[_Rising], common: int) -> Fraction | None:
    """The level at which a measure has run out; None where there is enough. `common` is a multiple of all steps."""
    speeds = [each.rates[at] * (common // each.step) for each in rising]  # for a level of `common`
    speed = sum(speeds)
    for each, own in zip(rising, speeds, strict=True):
        if own and left * common <= each.level * speed:
            return Fraction(left * common, speed)
        left -= each.wants[at]
        speed -= own
    return None


def _rounded(exact: Sequence[int], one: int) -> list[int]:
    """Whole shares with the same sum: the largest remainders get what is left, of equal ones the first."""
    parts = [divmod(share, one) for share in exact]
    missing = sum(rest for _, rest in parts) // one
    shares = [whole for whole, _ in parts]
    for place in sorted(range(len(parts)), key=lambda place: -parts[place][1])[:missing]:
        shares[place] += 1
    return shares
