"""Exact resources and their translation into whole vCPUs and slots, by example."""

import pytest

from protocol import wire
from protocol.values import ZERO, Bounds, Resources

GIB = 2**30


def test_each_resource_is_treated_on_its_own() -> None:
    a, b = Resources(1000, 4), Resources(2000, 3)
    assert (a.min(b), a.max(b)) == (Resources(1000, 3), Resources(2000, 4))
    assert not a.fits_in(b)
    assert not b.fits_in(a)
    assert a.exceeds(b)


def test_a_headroom_may_be_negative() -> None:
    assert Resources(1, 2) - Resources(3, 1) == Resources(-2, 1)
    assert not (ZERO - Resources(1, 1)).is_positive()


def test_positive_means_both() -> None:
    assert Resources(1, 1).is_positive()
    assert not Resources(1, 0).is_positive()
    assert not Resources(0, 1).is_positive()


def test_the_text_shows_quantities() -> None:
    assert str(Resources(1250, 4608 * 2**20)) == "1250m CPU / 4608Mi"
    assert str(Resources(1000, 4)) == "1 CPU / 4 bytes"
    assert str(Resources(1000, 1)) == "1 CPU / 1 byte"
    assert str(Resources(1000, 1024)) == "1 CPU / 1Ki"
    assert str(ZERO) == "0 CPU / 0"


def test_names_come_in_a_fixed_order() -> None:
    assert Resources(1, 2).named() == (("cpu", 1), ("memory", 2))


@pytest.mark.parametrize(
    ("low", "high", "match"),
    [
        (Resources(0, 1), Resources(1, 1), "above zero"),
        (Resources(1, -1), Resources(1, 1), "above zero"),
        (Resources(2, 1), Resources(1, 1), "must not exceed"),
        (Resources(1, 2), Resources(1, 1), "must not exceed"),
    ],
)
def test_bounds_that_contradict_themselves_are_refused(low: Resources, high: Resources, match: str) -> None:
    with pytest.raises(ValueError, match=match):
        Bounds(low, high)


@pytest.mark.parametrize("amount", [(-1, 0), (0, -1), (65536, 0), (0, 65536)])
def test_wire_resources_hold_only_what_travels(amount: tuple[int, int]) -> None:
    with pytest.raises(ValueError, match="must lie in"):
        wire.SlotResources(*amount)


@pytest.mark.parametrize(("amount", "named"), [((0, 1), "vCPUs"), ((1, 0), "mem"), ((0, 0), "vCPUs")])
def test_zero_resources_are_named(amount: tuple[int, int], named: str) -> None:
    with pytest.raises(ValueError, match=f"{named} must be non-zero"):
        wire.SlotResources(*amount).validate_non_zero()
