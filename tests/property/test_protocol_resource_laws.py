"""Laws of resources (exact and wire), of their translation, and of version ranges."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from protocol import quantities, values, wire
from protocol.versions import InformantProtoVersion, PluginProtoVersion, VersionRange
from tests.property import protocol_strategies as some

relaxed = settings(deadline=None, max_examples=60)
Amount = values.Resources
slot_sizes = st.one_of(st.sampled_from([2**30, 2**29, 1]), st.integers(1, 2**45))


@relaxed
@given(some.signed_amounts, some.signed_amounts, some.signed_amounts)
def test_min_and_max_are_a_lattice(a: Amount, b: Amount, c: Amount) -> None:
    assert a.min(b) == b.min(a)
    assert a.max(b) == b.max(a)
    assert a.min(b.min(c)) == a.min(b).min(c)
    assert a.max(a.min(b)) == a == a.min(a.max(b))
    assert a.min(b).fits_in(a)
    assert a.fits_in(a.max(b))
    assert a.exceeds(b) == (a.max(b) != b)


@relaxed
@given(some.signed_amounts, some.signed_amounts, some.signed_amounts)
def test_clamp_stays_inside_and_the_high_bound_wins(a: Amount, low: Amount, high: Amount) -> None:
    clamped = a.clamp(low, high)
    assert clamped.fits_in(high)
    if low.fits_in(high):
        assert low.fits_in(clamped)
        assert clamped.clamp(low, high) == clamped
        assert (clamped == a) == (low.fits_in(a) and a.fits_in(high))


@relaxed
@given(some.signed_amounts, some.signed_amounts, st.integers(0, 1000))
def test_sums_differences_and_multiples_are_exact(a: Amount, b: Amount, factor: int) -> None:
    assert a + b - b == a
    assert a * (factor + 1) == a * factor + a
    assert a - a == values.ZERO


@relaxed
@given(some.amounts, some.positive_amounts)
def test_units_are_the_fewest_that_cover(amount: Amount, unit: Amount) -> None:
    number = amount.units(unit)
    assert amount.fits_in(unit * number)
    assert number == 0 or amount.exceeds(unit * (number - 1))


@relaxed
@given(some.positive_amounts, some.positive_amounts, some.signed_amounts)
def test_bounds_hold_what_they_clamp(a: Amount, b: Amount, amount: Amount) -> None:
    bounds = values.Bounds(a.min(b), a.max(b))
    assert bounds.min.fits_in(bounds.clamp(amount))
    assert bounds.clamp(amount).fits_in(bounds.max)


@relaxed
@given(some.wire_resources, some.wire_resources)
def test_wire_resources_keep_the_published_relations(a: wire.SlotResources, b: wire.SlotResources) -> None:
    assert a.min(b) == b.min(a)
    assert a.max(b) == b.max(a)
    assert a.max(a.min(b)) == a == a.min(a.max(b))
    assert not a.min(b).has_field_greater_than(a)
    assert not a.max(b).has_field_less_than(a)
    assert a.has_field_less_than(b) == b.has_field_greater_than(a)
    increase = a.increase_from(b)
    assert (increase.cpu or increase.memory) == a.has_field_greater_than(b)
    assert increase.not_().not_() == increase
    assert increase.and_(increase.not_()) == wire.MoreResources(False, False)


@relaxed
@given(some.wire_resources, st.integers(0, 65535))
def test_a_wire_product_is_exact_or_refused(a: wire.SlotResources, factor: int) -> None:
    if max(a.vcpu, a.mem) * factor > 65535:
        with pytest.raises(ValueError, match="must lie in"):
            a.mul(factor)
    else:
        assert a.mul(factor) == wire.SlotResources(a.vcpu * factor, a.mem * factor)


@relaxed
@given(some.wire_resources, slot_sizes)
def test_raw_resources_and_exact_amounts_agree(a: wire.SlotResources, slot: int) -> None:
    raw, exact = a.convert_to_raw(quantities.from_value(slot)), wire.from_slots(a, slot)
    assert raw.cpu is not None
    assert raw.memory is not None
    assert (raw.cpu.exact_milli_value(), raw.memory.exact_value()) == (exact.vcpu_milli, exact.memory_bytes)


@relaxed
@given(some.wire_resources, slot_sizes)
def test_whole_slots_survive_both_translations(a: wire.SlotResources, slot: int) -> None:
    exact = wire.from_slots(a, slot)
    assert wire.request_slots(exact, slot) == a == wire.permit_slots(exact, slot)


@relaxed
@given(some.amounts, slot_sizes)
def test_a_request_rounds_up_a_permit_down_and_both_saturate(amount: Amount, slot: int) -> None:
    """Per resource: the request covers the amount, by less than one step, unless it is at 65,535."""
    up, down = wire.request_slots(amount, slot), wire.permit_slots(amount, slot)
    asked, permitted = wire.from_slots(up, slot), wire.from_slots(down, slot)
    assert permitted.fits_in(amount)
    rows = zip((up.vcpu, up.mem), (down.vcpu, down.mem), (1000, slot), strict=True)
    amounts = zip(asked.named(), permitted.named(), amount.named(), strict=True)
    for (high, low, step), ((_, more), (_, less), (_, exact)) in zip(rows, amounts, strict=True):
        assert high == 65535 or 0 <= more - exact < step
        assert low == 65535 or 0 <= exact - less < step
        assert 0 <= high - low <= 1


def _ranges(version: type[PluginProtoVersion]) -> st.SearchStrategy[VersionRange[PluginProtoVersion]]:
    numbers = st.one_of(st.integers(0, 8), st.sampled_from([2**32 - 2, 2**32 - 1]))
    return st.builds(VersionRange, numbers.map(version), numbers.map(version))


@relaxed
@given(_ranges(PluginProtoVersion), _ranges(PluginProtoVersion))
def test_latest_shared_is_symmetric_and_what_brute_force_finds(
    a: VersionRange[PluginProtoVersion], b: VersionRange[PluginProtoVersion]
) -> None:
    candidates = [PluginProtoVersion(number) for number in (*range(9), 2**32 - 2, 2**32 - 1)]
    shared = [version for version in candidates if version in a and version in b]
    assert a.latest_shared(b) == (max(shared) if shared else None)
    assert a.latest_shared(b) == b.latest_shared(a)


@relaxed
@given(_ranges(PluginProtoVersion))
def test_a_valid_range_shares_its_end_with_itself_and_an_inverted_one_nothing(
    a: VersionRange[PluginProtoVersion],
) -> None:
    assert a.latest_shared(a) == (a.max if a.min <= a.max else None)


@relaxed
@given(some.uint(32))
def test_any_number_is_a_version_with_a_text(number: int) -> None:
    for version in (PluginProtoVersion(number), InformantProtoVersion(number)):
        assert int(version) == number == version.value
        assert version.is_valid() == (number != 0)
        assert str(version).startswith(("v", "<invalid", "<unknown"))
        assert version == type(version)(number)
