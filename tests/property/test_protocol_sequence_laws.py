"""Laws of sequence gates and of the negotiation, over arbitrary interleavings."""

from uuid import UUID

from hypothesis import given, settings
from hypothesis import strategies as st

from protocol.sequence import (
    AgentGate,
    AnswerGate,
    AnswerOrder,
    Life,
    Passed,
    Retry,
    Reused,
    SequenceSource,
    Stale,
    Superseded,
)
from protocol.versions import PLUGIN_SPOKEN, Negotiation, PluginProtoVersion, VersionRange

relaxed = settings(deadline=None, max_examples=200)

# Few lives, numbers and bodies, so that collisions are the rule; an ID always keeps its start.
STARTS = {UUID(int=1): 100, UUID(int=2): 100, UUID(int=3): 101, UUID(int=4): 99}
lives = st.sampled_from([Life(agent, start) for agent, start in STARTS.items()])
requests = st.tuples(lives, st.integers(1, 6), st.sampled_from("abc"))
steps = st.lists(st.one_of(requests, st.just("fail")), max_size=60)
Step = tuple[Life, int, str] | str


def _run(gate: AgentGate, step: Step) -> AgentGate:
    """The gate after `step`, which is a request or the failure of the one in progress."""
    if isinstance(step, str):
        return gate.fail() if gate.life is not None else gate
    return gate.take(*step) if isinstance(gate.check(*step), Passed) else gate


@relaxed
@given(steps)
def test_accepted_numbers_of_one_life_rise_unless_the_last_ended_undecided(history: list[Step]) -> None:
    gate = AgentGate()
    accepted: dict[UUID, int] = {}
    for step in history:
        before, gate = gate, _run(gate, step)
        if isinstance(step, str) or not isinstance(before.check(*step), Passed):
            continue
        life, number, body = step
        last = accepted.get(life.agent_id, 0)
        again = number == last and before.undecided and body == before.body
        assert number > last or again
        accepted[life.agent_id] = number
        assert (gate.life, gate.last, gate.body, gate.undecided) == (life, number, body, False)


@relaxed
@given(steps)
def test_what_does_not_pass_leaves_the_gate_alone_and_names_what_is_known(history: list[Step]) -> None:
    gate = AgentGate()
    for step in history:
        if not isinstance(step, str):
            judgement = gate.check(*step)
            assert gate.check(*step) == judgement, "judging changes nothing"
            match judgement:
                case Stale(last):
                    assert step[1] < last == gate.last
                case Reused(last):
                    assert step[1] == last == gate.last
                    assert step[2] != gate.body
                case Superseded(current, last):
                    assert (current, last) == (gate.life, gate.last)
                    assert step[0].started_at_ms <= current.started_at_ms
                case Retry():
                    assert step == (gate.life, gate.last, gate.body)
                case Passed():
                    pass
        gate = _run(gate, step)


@relaxed
@given(steps)
def test_a_superseded_life_is_never_accepted_again(history: list[Step]) -> None:
    gate = AgentGate()
    superseded: set[UUID] = set()
    for step in history:
        before, gate = gate, _run(gate, step)
        if isinstance(step, str):
            continue
        if before.check(*step) is Passed.SUPERSEDES:
            assert before.life is not None
            superseded.add(before.life.agent_id)
        if step[0].agent_id in superseded:
            assert isinstance(before.check(*step), Superseded)
            assert gate == before


@relaxed
@given(steps, requests)
def test_a_retry_is_the_last_request_of_the_current_life_with_an_equal_body(
    history: list[Step], request: tuple[Life, int, str]
) -> None:
    gate = AgentGate()
    for step in history:
        gate = _run(gate, step)
    equal = gate.life is not None and request == (gate.life, gate.last, gate.body)
    assert isinstance(gate.check(*request), Retry) == (equal and not gate.undecided)
    if equal and gate.undecided:
        assert gate.check(*request) is Passed.NEW


@relaxed
@given(steps)
def test_the_start_of_the_current_life_never_falls(history: list[Step]) -> None:
    gate, start = AgentGate(), 0
    for step in history:
        gate = _run(gate, step)
        if gate.life is not None:
            assert gate.life.started_at_ms >= start
            start = gate.life.started_at_ms


@relaxed
@given(st.lists(st.integers(0, 20), max_size=40))
def test_an_answer_is_fresh_exactly_when_it_is_above_all_before(numbers: list[int]) -> None:
    gate, highest = AnswerGate(), 0
    for number in numbers:
        order, gate = gate.check(number)
        wanted = AnswerOrder.FRESH if number > highest else AnswerOrder.OLD
        assert order is (wanted if number else AnswerOrder.INVALID)
        highest = max(highest, number)
        assert gate.last == highest


@relaxed
@given(st.lists(st.one_of(st.none(), st.integers(0, 2**64 - 100)), max_size=40))
def test_a_source_only_counts_up_and_goes_on_above_what_a_refusal_names(named: list[int | None]) -> None:
    """None asks for the next number, a number is what a 409 named."""
    source, given_ = SequenceSource(), [0]
    for number in named:
        if number is not None:
            source = source.above(number)
            assert source.last >= number
            continue
        source = source.next()
        assert source.last > given_[-1]
        given_.append(source.last)


@relaxed
@given(st.integers(1, 30))
def test_a_source_starts_at_one_and_leaves_no_number_out(count: int) -> None:
    source, numbers = SequenceSource(), []
    for _ in range(count):
        source = source.next()
        numbers.append(source.last)
    assert numbers == list(range(1, count + 1))


versions = st.integers(0, 8).map(PluginProtoVersion)
ranges = st.builds(VersionRange, versions, versions)
events = st.one_of(st.sampled_from(["success", "plain"]), ranges)
Event = str | VersionRange[PluginProtoVersion]


def _after(state: Negotiation, event: Event) -> Negotiation:
    if isinstance(event, VersionRange):
        return state.on_supported(event)
    return state.on_success() if event == "success" else state.on_plain_refusal()


@relaxed
@given(st.lists(events, max_size=30))
def test_a_negotiation_never_leaves_the_range_that_both_speak(history: list[Event]) -> None:
    state = Negotiation()
    for event in history:
        state = _after(state, event)
        assert state.version is None or state.version in PLUGIN_SPOKEN
        if isinstance(event, VersionRange):
            assert state.version == PLUGIN_SPOKEN.latest_shared(event)
            assert not state.succeeded


@relaxed
@given(st.lists(events, max_size=30))
def test_a_plain_refusal_never_steps_down_after_a_success(history: list[Event]) -> None:
    state = Negotiation()
    for event in history:
        before, state = state, _after(state, event)
        if event == "plain" and before.succeeded:
            assert state == before
        elif event == "plain" and before.version == PLUGIN_SPOKEN.min:
            assert state == Negotiation(PLUGIN_SPOKEN.max, exhausted=True)
        elif event == "plain" and before.version is not None:
            assert state.version == before.version - 1


@relaxed
@given(st.lists(events, max_size=10))
def test_refusals_alone_end_within_as_many_steps_as_there_are_versions(history: list[Event]) -> None:
    """Exhausted, without a shared version, or settled on one that has worked: then nothing is left to try."""
    state = Negotiation()
    for event in history:
        state = _after(state, event)
    for _ in range(PLUGIN_SPOKEN.min, PLUGIN_SPOKEN.max + 1):
        state = state.on_plain_refusal()
    assert state.exhausted or state.version is None or state.succeeded


@relaxed
@given(st.lists(events, max_size=10), ranges)
def test_naming_the_versions_twice_changes_nothing(
    history: list[Event], theirs: VersionRange[PluginProtoVersion]
) -> None:
    state = Negotiation()
    for event in history:
        state = _after(state, event)
    once = state.on_supported(theirs)
    assert once.on_supported(theirs) == once == Negotiation().on_supported(theirs)
