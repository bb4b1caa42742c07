"""The cleaner of texts from outside."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.texts import clean

NASTY = ("\x1b[2J\x1b[H", "\x1b]0;owned\x07", "\x9b31m", "\u202e", "a\r\nb", "x" * 5000, "\ud800")


@pytest.mark.parametrize(
    ("given", "shown"),
    [
        ("plain", "plain"),
        ("a [b] c", "a [b] c"),
        ("\x1b[31mred\x1b[0m", "red"),
        ("\x1b]0;title\x07after \x1b(Bx\x1bcy", "after xy"),
        ("\x9b31mred", "red"),
        ("a\r\n\tb", "a b"),
        ("a\x00\x7f\u202eb\u200b\ud800", "ab"),
        ("x" * 30, "x" * 19 + "…"),
        ("x" * 19 + "\x00" * 500, "x" * 19 + "…"),
        (7, ""),
        (None, ""),
    ],
)  # fmt: skip
def test_texts_are_one_line_without_what_a_terminal_obeys(given: object, shown: str) -> None:
    assert clean(given, 20) == shown


@given(st.text() | st.sampled_from(NASTY), st.integers(1, 40))
def test_every_text_becomes_plain_and_short(text: str, limit: int) -> None:
    found = clean(text, limit)
    assert found.isprintable()
    assert len(found) <= limit
