"""Which neighbours are asked to give back room for a VM that waits, and how much each. Pure: values in, values out.

A neighbour gives comfort first (`spare`). Only if that is not enough, one that allows it is asked for what it needs itself: down to its
minimum by a VM of higher priority or by those from whom its quota has borrowed, down to an equal share by one of its own priority
(`spare_to_higher`). Of the sets that cover the amount, one with the fewest neighbours is taken; among those the one of lower priority goes first,
then the one with more to spare.
"""

import heapq
from collections.abc import Mapping, Sequence

from protocol.values import ZERO, ComputeUnit, Resources, Value, amount_of
from scheduler.permits.core.limits import Growth, grant


class Neighbour(Value, frozen=True):
    """A VM that may be asked: its permit, the steps in which it shrinks, and the amounts that it could give."""

    uid: str
    name: str
    priority: int
    current: Resources
    unit: ComputeUnit
    spare: Resources
    spare_to_higher: Resources = ZERO


class Lacking(Value, frozen=True):
    """A VM that waits: the growth that it needs, the amount that the others leave of the node to it now, and its priority."""

    way: Growth
    room: Resources
    priority: int


def reached(way: Growth, room: Resources) -> Resources:
    """The permit that `room` would allow, in whole steps."""
    return grant(way, way.headroom(room)).permit if way.unit is not None else way.current


def choose(waiter: Lacking, neighbours: Sequence[Neighbour]) -> Mapping[Neighbour, Resources]:
    """The amount that each neighbour is asked for; nobody if all of them together could not give room for one more step.

    If they cannot give all that is needed, they are asked for as many steps as they can.
    """
    way = waiter.way
    spares = {each: _whole(each, each.spare) for each in neighbours}
    full = reached(way, waiter.room + sum(spares.values(), ZERO))
    if full != way.wanted:
        more = {each: _whole(each, _spare_to(each, waiter)) for each in neighbours}
        further = reached(way, waiter.room + sum(more.values(), ZERO))
        if further.exceeds(full):
            spares, full = more, further
    if not full.exceeds(reached(way, waiter.room)):
        return {}
    asked: dict[Neighbour, Resources] = {}
    for resource, want in full.named():
        if want > amount_of(way.current, resource):
            _ask(asked, spares, resource, want - amount_of(waiter.room, resource))
    return asked


def give_back(excess: Resources, holders: Sequence[Neighbour]) -> Mapping[Neighbour, Resources]:
    """The amount that each holder of a quota is asked for, so that they hold `excess` less together, or as much less as they can.

    Comfort first, by resource; only if that is not enough, what those need that allow it.
    """
    asked: dict[Neighbour, Resources] = {}
    for resource, amount in excess.named():
        spares = {each: _whole(each, each.spare) for each in holders}
        if sum(amount_of(spare, resource) for spare in spares.values()) < amount:
            spares = {each: _whole(each, each.spare.max(each.spare_to_higher)) for each in holders}
        most = sum(amount_of(spare, resource) for spare in spares.values())
        _ask(asked, spares, resource, min(amount, most))
    return asked


def _ask(
    asked: dict[Neighbour, Resources], spares: Mapping[Neighbour, Resources], resource: str, lacking: int
) -> None:
    """Ask for `lacking` of one resource, in addition to `asked`: those that are asked already before others."""
    lacking -= sum(amount_of(amount, resource) for amount in asked.values())
    left = {each: amount_of(spare - asked.get(each, ZERO), resource) for each, spare in spares.items()}
    known = [each for each in asked if left[each] > 0]
    others = {each: spare for each, spare in left.items() if spare > 0 and each not in asked}
    covered = sum(left[each] for each in known)
    for each in (*known, *fewest(others, lacking - covered)):
        if lacking <= 0:
            return
        amount = _steps(each, resource, min(left[each], lacking))
        asked[each] = asked.get(each, ZERO) + amount
        lacking -= amount_of(amount, resource)


def fewest(spares: Mapping[Neighbour, int], lacking: int) -> list[Neighbour]:
    """The smallest set that covers `lacking`: of the sets of that size the one of lower priority first, then of larger spare."""
    count, covered = 0, 0
    for spare in sorted(spares.values(), reverse=True):
        if covered >= lacking:
            break
        count, covered = count + 1, covered + spare
    ordered = sorted(spares, key=lambda each: (each.priority, -spares[each], each.name))
    chosen: list[Neighbour] = []
    total = 0
    for place, each in enumerate(ordered):
        others = count - len(chosen) - 1
        if others < 0:
            break
        most = sum(heapq.nlargest(others, (spares[other] for other in ordered[place + 1 :])))
        if total + spares[each] + most >= lacking:
            chosen.append(each)
            total += spares[each]
    return chosen


def _spare_to(neighbour: Neighbour, waiter: Lacking) -> Resources:
    """The amount that a neighbour can be asked for, its own needs included if it allows that."""
    if waiter.priority < neighbour.priority:
        return neighbour.spare
    allowed = neighbour.spare_to_higher
    if waiter.priority == neighbour.priority:
        more = neighbour.current - waiter.way.current
        allowed = allowed.min(Resources(more.vcpu_milli // 2, more.memory_bytes // 2)).max(ZERO)
    return neighbour.spare.max(allowed)


def _whole(neighbour: Neighbour, amount: Resources) -> Resources:
    """As much of `amount` as the neighbour can shrink by, in whole steps."""
    step = neighbour.unit.step
    if not step.is_positive():
        return ZERO
    cpu, memory = amount.vcpu_milli // step.vcpu_milli, amount.memory_bytes // step.memory_bytes
    if not neighbour.unit.is_apart:
        cpu = memory = min(cpu, memory)
    return Resources(cpu * step.vcpu_milli, memory * step.memory_bytes)


def _steps(neighbour: Neighbour, resource: str, amount: int) -> Resources:
    """The fewest steps that free `amount` of one resource; if the neighbour's resources are tied, of both."""
    step = neighbour.unit.step
    count = -(-amount // amount_of(step, resource))
    if not neighbour.unit.is_apart:
        return step * count
    return (
        Resources(step.vcpu_milli * count, 0)
        if resource == "cpu"
        else Resources(0, step.memory_bytes * count)
    )
