"""Which neighbours are asked, as a table."""

import pytest

from protocol.values import ComputeUnit, Resources
from scheduler.permits.core.limits import growth
from scheduler.permits.core.yields import Lacking, Neighbour, choose
from tests.support.amounts import UNIT, cu

APART = ComputeUnit(UNIT, is_apart=True)
TIED = ComputeUnit(UNIT)
NOTHING = cu(0)


def near(
    name: str,
    spare: Resources,
    to_higher: Resources = NOTHING,
    *,
    priority: int = 0,
    unit: ComputeUnit = APART,
) -> Neighbour:
    return Neighbour(name, name, priority, cu(6), unit, spare, to_higher)


@pytest.mark.parametrize(
    ("wanted", "neighbours", "expected"),
    [
        (cu(4), [], {}),
        (cu(4), [near("a", cu(3)), near("b", cu(1))], {"a": cu(2)}),
        (cu(4), [near("a", cu(1)), near("b", cu(1)), near("c", cu(2))], {"c": cu(2)}),
        (cu(4), [near("a", cu(1)), near("b", cu(1))], {"a": cu(1), "b": cu(1)}),
        (cu(4), [near("a", cu(2), priority=7), near("b", cu(2), priority=3)], {"b": cu(2)}),
        (cu(4), [near("a", cu(2)), near("b", cu(3))], {"b": cu(2)}),
        (cu(4), [near("a", cu(1))], {"a": cu(1)}),
        (cu(4), [near("a", cu(0.5)), near("b", cu(0.5))], {}),
        (cu(4, 2), [near("a", cu(3))], {"a": cu(2, 0)}),
        (cu(4), [near("a", cu(3, 0)), near("b", cu(0, 3))], {"a": cu(2, 0), "b": cu(0, 2)}),
        (cu(4, 2), [near("a", cu(3), unit=TIED)], {"a": cu(2)}),
        (cu(4), [near("a", cu(2), unit=ComputeUnit(cu(2))), near("b", cu(1))], {"a": cu(2)}),
        (cu(3), [near("a", cu(2), unit=ComputeUnit(cu(2)))], {"a": cu(2)}),
        (cu(4), [near("a", NOTHING, cu(5)), near("b", cu(2), priority=9)], {"b": cu(2)}),
        (cu(4), [near("a", NOTHING, cu(5)), near("b", cu(1), priority=9)], {"a": cu(2)}),
        (cu(4), [near("a", NOTHING, cu(5), priority=5)], {"a": cu(2)}),
        (cu(6), [near("a", NOTHING, cu(5), priority=5)], {"a": cu(2)}),
        (cu(4), [near("a", NOTHING, cu(5), priority=6)], {}),
    ],
    ids=[
        "nobody is there",
        "no more than is lacking",
        "one rather than two",
        "two where one does not do",
        "the lower priority first",
        "the larger spare first",
        "a part is better than nothing",
        "two halves of a step are none",
        "only the resource that is lacking",
        "each resource of another one",
        "tied resources come together",
        "one that gives in large steps is enough",
        "rounded up to its steps",
        "comfort before need, of whatever priority",
        "need where comfort does not do",
        "an equal share of need to one's like",
        "no more than an equal share",
        "no need to one below",
    ],
)
def test_who_is_asked_for_how_much(
    wanted: Resources, neighbours: list[Neighbour], expected: dict[str, Resources]
) -> None:
    """For a VM of priority 5 that has 2 units and no room beside."""
    waiter = Lacking(growth(cu(2), wanted, APART, cu(8)), cu(2), priority=5)
    assert {each.name: amount for each, amount in choose(waiter, neighbours).items()} == expected
