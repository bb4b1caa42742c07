"""The summary of growing apart has the amounts of tied units, and growth beside a resource that was used up."""

from collections.abc import Mapping
from typing import Any

import pytest

from parley.observer import Comparison
from protocol.values import Resources

GIB = 2**30
Amount = tuple[float, int]
STEPS = {"a": Resources(1000, GIB), "b": Resources(1000, 2 * GIB)}


def folded(*uses: Mapping[str, Amount]) -> dict[str, Any]:
    """The figures on a node of 8 CPUs and 16 GiB after lines with these amounts of CPU and GiB."""
    comparison = Comparison(Resources(8000, 16 * GIB), STEPS)
    for at_s, each in enumerate(uses):
        made = {vm: Resources(round(cpu * 1000), gib * GIB) for vm, (cpu, gib) in each.items()}
        comparison.note(float(at_s), made)
    return comparison.figures()


def test_each_vm_would_have_had_tied_units_that_cover_what_it_had() -> None:
    found = folded({"a": (1, 6)}, {"a": (1, 6), "b": (2.5, 2), "other": (1, 1)}, {"a": (1, 1)})
    assert found["reserved"] == {"cpu": 4.5, "memory_gib": 9.0}
    assert found["tied"] == {"cpu": 6 + 3 + 1, "memory_gib": 6 + 6 + 1}


@pytest.mark.parametrize(
    ("before", "after", "grown"),
    [
        ({"a": (1, 1), "b": (7, 2)}, {"a": (1, 6), "b": (7, 2)}, "memory"),
        ({"a": (1, 1), "b": (6.5, 2)}, {"a": (1, 6), "b": (6.5, 2)}, "memory"),
        ({"a": (1, 1), "b": (6, 2)}, {"a": (1, 6), "b": (6, 2)}, None),
        ({"a": (1, 12), "b": (1, 4)}, {"a": (1, 12), "b": (5, 4)}, "cpu"),
        ({"a": (1, 12), "b": (1, 2)}, {"a": (1, 12), "b": (5, 2)}, None),
        ({"a": (1, 12), "b": (2, 4)}, {"a": (1, 12), "b": (1, 4)}, None),
        ({"a": (1, 1), "b": (6, 2)}, {"a": (2, 6), "b": (6, 2)}, None),
        ({"b": (7, 2)}, {"a": (1, 6), "b": (7, 2)}, None),
        ({"other": (1, 1), "b": (7, 2)}, {"other": (1, 6), "b": (7, 2)}, None),
    ],
)
def test_growth_counts_while_less_than_a_unit_of_the_other_resource_is_left(
    before: dict[str, Amount], after: dict[str, Amount], grown: str | None
) -> None:
    found = folded(before, after)["grown"]
    assert {resource for resource, growth in found.items() if growth is not None} == ({grown} - {None})


def test_the_growth_to_the_largest_amount_is_kept() -> None:
    full = {"b": (7.0, 2)}
    found = folded(*({**full, "a": (1.0, gib)} for gib in (1, 4, 6, 2, 3)))["grown"]
    assert found == {"cpu": None, "memory": {"vm": "a", "cpu": 1.0, "memory_gib": 6.0}}
