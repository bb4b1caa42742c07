"""A reply whose constant bytes were kept is, byte for byte, the reply that the codec writes."""

from uuid import UUID

from hypothesis import given
from hypothesis import strategies as st

from protocol import codec
from protocol.reasons import Reason, ReasonCode
from protocol.values import MAX_MEMORY_BYTES, MAX_VCPU_MILLI, ComputeUnit, Resources
from protocol.wire import PodName
from scheduler.permits.core import decision, events

_AMOUNTS = st.builds(Resources, st.integers(0, MAX_VCPU_MILLI), st.integers(0, MAX_MEMORY_BYTES))
_FEW = st.sampled_from([Resources(1000, 2**30), Resources(2000, 2**31), Resources(0, 0)])
_REASONS = st.sampled_from([(), (Reason(ReasonCode.NODE_HEADROOM, "no room", "cpu", 1.5),)])
_ECHOES = st.builds(
    events.Echo,
    st.sampled_from([1, 10, 11, 2**63, 2**64 - 1]),
    st.sampled_from([UUID(int=1), UUID(int=2**127 + 1)]),
    st.integers(0, 3),
    st.sampled_from([None, "1"]),
)
_DECIDED = st.builds(
    events.Decided,
    st.just(1),
    st.builds(PodName, st.sampled_from(["a", '"sequenceNumber":1']), st.just("default")),
    st.just("n1"),
    _FEW,
    _FEW,
    _AMOUNTS | _FEW,
    st.builds(ComputeUnit, _FEW, st.booleans()),
    st.sampled_from([2**20, 2**30]),
    _REASONS,
    st.none() | _ECHOES,
    st.booleans(),
    st.booleans(),
)


@given(st.lists(_DECIDED, min_size=1, max_size=20))
def test_a_reply_is_what_the_codec_writes(replies: list[events.Decided]) -> None:
    for each in replies:
        assert decision.encode(each) == codec.encode(decision.message(each))
