"""Quantities by example: the published rules, and what is refused."""

import pytest

from protocol.quantities import (
    INT64_MAX,
    MAX_EXPONENT,
    MAX_TEXT,
    Format,
    Quantity,
    QuantityError,
    from_milli,
    from_value,
    parse,
)


@pytest.mark.parametrize(
    ("text", "canonical"),
    [
        ("0", "0"),
        ("-0", "0"),
        ("1500m", "1500m"),
        ("1.5", "1500m"),
        ("1000m", "1"),
        ("1024", "1024"),
        ("1000", "1k"),
        ("1024Ki", "1Mi"),
        ("1000Ki", "1000Ki"),
        ("1.5Gi", "1536Mi"),
        ("0.5Ki", "512"),
        ("0.0001Ki", "102400u"),
        ("1e3", "1e3"),
        ("1E3", "1e3"),
        ("12e4", "120e3"),
        ("1E", "1E"),
        (".5", "500m"),
        ("5.", "5"),
        ("+1", "1"),
        ("-1.5Gi", "-1536Mi"),
        ("0.1n", "1n"),
        ("16Ei", str(INT64_MAX)),
        ("-16Ei", str(-INT64_MAX)),
    ],
)
def test_canonical_text_follows_the_published_rules(text: str, canonical: str) -> None:
    assert parse(text).canonical() == canonical == str(parse(text))


@pytest.mark.parametrize(
    "text",
    [
        "",
        "+",
        "-",
        ".",
        " 1",
        "1 ",
        "1K",
        "1GB",
        "1gi",
        "1e",
        "1e+",
        "--1",
        "1.2.3",
        "1,5",
        "0x10",
        "1_0",
        "NaN",
        "Inf",
        "1Mi1",
        "1i",
        "١",
        "1\n",
        "\x00",
        "\ud800",
        "1e401",
        "1e-401",
        "1e" + "9" * 400,
        "1" * (MAX_TEXT + 1),
    ],
)
def test_what_is_no_quantity_is_refused_with_a_reason(text: str) -> None:
    with pytest.raises(QuantityError, match=r"quantity|exponent"):
        parse(text)


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("16GB", "16G or 16Gi"),
        ("16 GB", "16G or 16Gi"),
        ("1.5gb", "1.5G or 1.5Gi"),
        ("512K", "512k or 512Ki"),
        ("16GiB", "16Gi"),
        ("16gi", "16Gi"),
    ],
)
def test_what_people_write_for_bytes_gets_a_hint_that_can_be_read(text: str, meant: str) -> None:
    with pytest.raises(QuantityError) as caught:
        parse(text)
    assert str(caught.value).endswith(f"; did you mean {meant}?")
    assert all(parse(each).value() > 0 for each in meant.split(" or "))


@pytest.mark.parametrize("text", ["16 apples", "GB", "١GB", "-4GB", "1e3GB"])
def test_what_means_nothing_gets_no_hint(text: str) -> None:
    with pytest.raises(QuantityError) as caught:
        parse(text)
    assert "did you mean" not in str(caught.value)


def test_the_longest_and_the_largest_texts_are_read() -> None:
    assert parse("9" * MAX_TEXT).exact_value() == 10**MAX_TEXT - 1
    assert parse(f"1e{MAX_EXPONENT}").exact_value() == 10**MAX_EXPONENT
    assert parse(f"1e-{MAX_EXPONENT}").nanos == 1


def test_quantities_are_equal_when_their_amounts_are() -> None:
    assert parse("1Gi") == parse("1073741824") == from_value(2**30, binary=True)
    assert parse("1e3") == parse("1k") == from_milli(10**6)
    assert len({parse("1Gi"), parse("1073741824"), parse("1024Mi")}) == 1
    assert parse("1") != 1
    assert parse("999m") < parse("1")


def test_a_binary_quantity_below_1024_is_written_without_a_suffix() -> None:
    assert Quantity(1023 * 10**9, Format.BINARY_SI).canonical() == "1023"
    assert Quantity(1024 * 10**9, Format.BINARY_SI).canonical() == "1Ki"
    assert Quantity(1024 * 10**9, Format.DECIMAL_SI).canonical() == "1024"
