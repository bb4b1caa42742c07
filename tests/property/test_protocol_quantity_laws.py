"""Laws of quantities, against exact fractions and for every suffix."""

import contextlib
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from protocol import quantities
from protocol.quantities import Format, Quantity, parse
from tests.property import protocol_strategies as some

relaxed = settings(deadline=None, max_examples=60)

DECIMAL = {"n": -9, "u": -6, "m": -3, "": 0, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}
BINARY = {"Ki": 1, "Mi": 2, "Gi": 3, "Ti": 4, "Pi": 5, "Ei": 6}
NANO = 10**9
LARGEST = (2**63 - 1) * NANO
decimals = st.from_regex(r"[0-9]{1,15}(\.[0-9]{1,10})?", fullmatch=True)


def _up_to_nano(amount: Fraction) -> int:
    """In nano-units, rounded away from zero, as the published rules do."""
    scaled = abs(amount) * NANO
    nanos = -(-scaled.numerator // scaled.denominator)
    return nanos if amount >= 0 else -nanos


@relaxed
@given(some.any_quantities)
def test_canonical_text_reads_back_as_the_same_amount(quantity: Quantity) -> None:
    if quantity.format is Format.BINARY_SI:  # these stop at the largest signed 64-bit number, when read
        nanos = max(min(quantity.nanos, LARGEST), -LARGEST)
        quantity = Quantity(nanos, quantity.format)
    assert parse(quantity.canonical()) == quantity


@relaxed
@given(some.quantity_texts)
def test_canonical_text_is_a_fixed_point(text: str) -> None:
    canonical = parse(text).canonical()
    assert parse(canonical).canonical() == canonical
    assert parse(canonical) == parse(text)


@relaxed
@pytest.mark.parametrize("suffix", DECIMAL)
@given(sign=st.sampled_from(["", "+", "-"]), digits=decimals)
def test_decimal_suffixes_are_exact_and_only_finer_than_nano_goes_up(
    suffix: str, sign: str, digits: str
) -> None:
    amount = Fraction(digits) * Fraction(10) ** DECIMAL[suffix] * (-1 if sign == "-" else 1)
    assert parse(f"{sign}{digits}{suffix}").nanos == _up_to_nano(amount)


@relaxed
@pytest.mark.parametrize("suffix", BINARY)
@given(sign=st.sampled_from(["", "+", "-"]), digits=decimals)
def test_binary_suffixes_are_exact_up_to_the_largest_signed_number(
    suffix: str, sign: str, digits: str
) -> None:
    amount = min(_up_to_nano(Fraction(digits) * 1024 ** BINARY[suffix]), LARGEST)
    assert parse(f"{sign}{digits}{suffix}").nanos == (-amount if sign == "-" else amount)


@relaxed
@given(
    digits=decimals,
    exponent=st.integers(-400, 400),
    letter=st.sampled_from("eE"),
    zeros=st.integers(0, 20),
)
def test_exponents_are_exact_however_they_are_written(
    digits: str, exponent: int, letter: str, zeros: int
) -> None:
    written = ("-" if exponent < 0 else "") + "0" * zeros + str(abs(exponent))
    expected = _up_to_nano(Fraction(digits) * Fraction(10) ** exponent)
    assert parse(f"{digits}{letter}{written}").nanos == expected


@relaxed
@given(some.any_quantities, some.any_quantities)
def test_order_and_equality_are_those_of_the_amounts(one: Quantity, other: Quantity) -> None:
    assert (one < other) == (one.nanos < other.nanos)
    assert (one == other) == (one.nanos == other.nanos)
    if one == other:
        assert hash(one) == hash(other)


@relaxed
@given(some.any_quantities)
def test_values_round_up_and_exact_values_tell_whether_they_are_exact(quantity: Quantity) -> None:
    amount = Fraction(quantity.nanos, NANO)
    for rounded, exact, wanted in (
        (quantity.value(), quantity.exact_value(), amount),
        (quantity.milli_value(), quantity.exact_milli_value(), amount * 1000),
    ):
        assert wanted <= rounded < wanted + 1
        assert exact == (rounded if rounded == wanted else None)


@relaxed
@given(st.integers(-(2**70), 2**70), st.booleans())
def test_whole_and_milli_amounts_are_kept(number: int, binary: bool) -> None:
    assert quantities.from_value(number, binary=binary).exact_value() == number
    assert quantities.from_milli(number).exact_milli_value() == number
    assert parse(quantities.from_milli(number).canonical()).exact_milli_value() == number
    if abs(number) < 2**63:
        assert parse(quantities.from_value(number, binary=binary).canonical()).exact_value() == number


@relaxed
@given(st.text(max_size=20))
def test_any_text_is_a_quantity_or_a_quantity_error(text: str) -> None:
    quantity = None
    with contextlib.suppress(quantities.QuantityError):
        quantity = parse(text)
    assert quantity is None or parse(quantity.canonical()) == quantity
