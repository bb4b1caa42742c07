"""Every code has a meaning that reads on after a colon, and a remedy that is a sentence."""

import enum
from collections.abc import Mapping

import pytest

from protocol.advice import ADVICE, ERROR_ADVICE, Advice
from protocol.reasons import ErrorCode, ReasonCode


@pytest.mark.parametrize(("codes", "advice"), [(ReasonCode, ADVICE), (ErrorCode, ERROR_ADVICE)])
def test_every_code_has_advice_of_its_own(
    codes: type[enum.StrEnum], advice: Mapping[enum.StrEnum, Advice]
) -> None:
    assert set(advice) == set(codes)
    assert len({each.meaning for each in advice.values()}) == len(codes)
    for each in advice.values():
        assert each.meaning[0].islower()
        assert not each.meaning.endswith(".")
        assert each.remedy[0].isupper()
        assert each.remedy.endswith(".")
        assert each.meaning.isprintable()
        assert each.remedy.isprintable()
