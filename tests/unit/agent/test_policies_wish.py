"""How much more an urgent wish asks for."""

import pytest

from agent.core.policies.utilisation import wished
from protocol.values import ZERO, Resources
from tests.support.amounts import GIB, UNIT, cu

STEP = Resources(250, GIB)


@pytest.mark.parametrize(
    ("size", "named", "earlier", "result"),
    [
        (cu(4), "cpu", ZERO, cu(6, 0)),
        (cu(4), "memory", ZERO, cu(0, 6)),
        (cu(4), "cpu memory", ZERO, cu(6)),
        (cu(0.25, 1), "cpu memory", ZERO, cu(0.5, 2)),  # at least a unit
        (cu(1.25, 5), "cpu memory", ZERO, cu(2, 8)),  # half of five units are three
        (Resources(1100, GIB + 1), "cpu memory", ZERO, Resources(1850, 2 * GIB + 1)),  # whole units more
        (cu(4), "memory", cu(0, 6), cu(0, 6)),  # not there yet: no more than before
        (cu(4, 6), "memory", cu(0, 6), cu(0, 12)),  # there, and not enough: the double
        (cu(4, 5), "memory", cu(0, 6), cu(0, 6)),  # only a part of it is there
        (cu(4, 8), "memory", cu(0, 6), cu(0, 16)),
        (cu(4, 6), "cpu", cu(0, 6), cu(6, 0)),  # the wish before was for memory
        (cu(6, 4), "cpu memory", cu(6, 0), cu(12, 6)),
    ],
)
def test_half_of_the_size_more_and_the_double_where_that_was_not_enough(
    size: Resources, named: str, earlier: Resources, result: Resources
) -> None:
    assert (
        wished(size, STEP, 500_000, cpu="cpu" in named, memory="memory" in named, earlier=earlier) == result
    )


@pytest.mark.parametrize(("share", "first", "second"), [(0, 5, 5), (250_000, 5, 6), (1_000_000, 8, 12)])
def test_the_share_is_a_setting(share: int, first: int, second: int) -> None:
    for earlier, result in ((ZERO, first), (cu(4, 0), second)):
        assert wished(cu(4), UNIT, share, cpu=True, memory=False, earlier=earlier) == cu(result, 0)
