"""Reason and error codes: a code of a later version is never an error."""

from typing import Any

import pytest

from protocol.errors import Fault, LocalProtocolError, ProtocolError, RemoteProtocolError
from protocol.reasons import ErrorCode, Reason, ReasonCode


@pytest.mark.parametrize("code", ["", "of-a-later-version", "STOPPED", "\ud800"])
def test_an_unknown_code_is_other(code: str) -> None:
    assert ReasonCode(code) is ReasonCode.OTHER
    assert ErrorCode(code) is ErrorCode.OTHER


@pytest.mark.parametrize("code", [3, None, b"pool"])
def test_what_is_no_text_is_no_code(code: Any) -> None:
    with pytest.raises(ValueError, match="is not a valid ReasonCode"):
        ReasonCode(code)
    with pytest.raises(ValueError, match="is not a valid ErrorCode"):
        ErrorCode(code)


def test_codes_are_words_with_dashes() -> None:
    for code in (*ReasonCode, *ErrorCode):
        assert all(word.isalpha() and word.islower() for word in code.value.split("-"))


def test_a_reason_shows_its_code_resource_and_message() -> None:
    assert str(Reason(ReasonCode.POOL, "pool is full", "cpu", 2.0)) == "pool (cpu): pool is full"
    assert str(Reason(ReasonCode.STOPPED, "switched off")) == "stopped: switched off"


def test_an_error_shows_every_fault_and_its_place() -> None:
    faults = (Fault("pod.name", "must be a string", "1"), Fault("", "must be one JSON value"))
    error = RemoteProtocolError("bad JSON", faults)
    assert str(error) == ("bad JSON; pod.name: must be a string (found 1); (body): must be one JSON value")
    assert (error.status, error.code, error.faults) == (400, ErrorCode.MALFORMED, faults)


def test_the_side_at_fault_is_told_by_type() -> None:
    assert issubclass(LocalProtocolError, ProtocolError)
    assert not issubclass(LocalProtocolError, RemoteProtocolError)
    assert not issubclass(RemoteProtocolError, LocalProtocolError)
