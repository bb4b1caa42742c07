"""A batch of requests as bytes, by example; its laws are in tests/property/test_codec_laws.py."""

import pytest

from protocol.batch import read_batch, write_batch


def test_a_batch_is_split_into_its_items_as_they_were_sent() -> None:
    body = b' [ {"a":"\xff"} ,\n{"a": [1, 2]}, null ]\n'
    assert read_batch(body) == [b'{"a":"\xff"}', b'{"a": [1, 2]}', b"null"]
    assert read_batch(b"[]") == []


@pytest.mark.parametrize(
    "body",
    [b"", b"{}", b"null", b'"[]"', b"[", b"[1", b"[1,]", b"[1 2]", b"[]x", b"[nul]", b"[" * 100_000, b"\xff"],
)
def test_what_is_no_array_is_no_batch(body: bytes) -> None:
    assert read_batch(body) is None


def test_the_answer_to_a_batch_holds_each_body_as_it_is() -> None:
    assert write_batch([(200, b'{"a": 1}'), (409, b"{}")]) == (
        b'[{"status":200,"body":{"a": 1}},{"status":409,"body":{}}]'
    )
    assert write_batch([]) == b"[]"
