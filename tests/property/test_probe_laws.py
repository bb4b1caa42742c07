"""Laws of the search for what a chain admits, over all small ranges, all short scripts and random chains."""

import asyncio
import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler.pools.chain import calls, manager
from scheduler.pools.chain.manager import PluginManager
from scheduler.pools.core import probe
from scheduler.pools.core.errors import (
    AppError,
    Detail,
    Interrupt,
    PluginErrorKind,
    kind_from_app_error,
    new_insufficient_resources,
    new_internal,
    new_invalid_spec,
)
from scheduler.pools.core.probe import ProbeResult, ProbeResultKind
from scheduler.pools.core.values import ADMITTED, Admission, Context, Pods, Pool
from tests.unit.scheduler_pools.pool_talkers import CTX, POOL, Talker

MAX_DELTA = 64
OFFSETS = (0, 1, 7, 1000)
INSUFFICIENT = ProbeResultKind.INSUFFICIENT_RESOURCES
FULL = new_insufficient_resources("full")

Say = Callable[[int], Admission]


def most_calls(delta: int) -> int:
    """1 + ceil(log2 delta), in whole numbers."""
    return 1 + (delta - 1).bit_length()


def asked_of(say: Say, current: int, candidate: int) -> ProbeResult:
    searching = probe.search(current, candidate)
    try:
        asked = next(searching)
        while True:
            asked = searching.send(say(asked))
    except StopIteration as stop:
        found: ProbeResult = stop.value
        return found


# ------------------------------------------------------------ all ranges, all monotone plugins


def refusing(limit: int) -> Say:
    no = Admission(error=FULL)
    return lambda asked: ADMITTED if asked <= limit else no


def capping(limit: int) -> Say:
    answer = Admission(admitted=max(limit, 0))
    return lambda _: answer


def capping_with_an_error(limit: int) -> Say:
    no = Admission(admitted=max(limit, 0), error=FULL)
    return lambda asked: ADMITTED if asked <= limit else no


def capping_too_high(limit: int) -> Say:
    """Another plugin states a cap that is one above what this one admits."""
    no = Admission(admitted=max(limit, 0) + 1, error=FULL)
    return lambda asked: ADMITTED if asked <= limit else no


def ranges() -> Iterator[tuple[int, int, int]]:
    """Every current, candidate and limit, from below the one to above the other."""
    for offset, delta in itertools.product(OFFSETS, range(1, MAX_DELTA + 1)):
        for limit in range(offset - 1, offset + delta + 2):
            yield offset, offset + delta, limit


@pytest.mark.parametrize(
    ("plugin", "more"), [(refusing, 0), (capping, 1), (capping_with_an_error, 1), (capping_too_high, 1)]
)
def test_the_largest_admitted_number_is_found_within_the_bound_on_calls(
    plugin: Callable[[int], Say], more: int
) -> None:
    for current, candidate, limit in ranges():
        case = (current, candidate, limit)
        found = asked_of(plugin(limit), current, candidate)
        expected = max((n for n in range(current + 1, candidate + 1) if n <= limit), default=current)
        assert found.accepted == expected, case
        assert found.calls <= most_calls(candidate - current) + more, case
        assert found.is_complete, case
        if expected == candidate:
            assert (found.kind, found.error, found.refused) == (ProbeResultKind.OK, None, None), case
        else:
            assert (found.kind, found.refused) == (INSUFFICIENT, expected + 1), case
            assert found.error is not None, case


def test_a_stated_cap_costs_one_call_more_and_no_search() -> None:
    for current, candidate, limit in ranges():
        found = asked_of(capping(limit), current, candidate)
        assert found.calls == 1 + (current < limit < candidate), (current, candidate, limit)


# ------------------------------------------------------------ all short scripts


@dataclass(frozen=True)
class Step:
    """A question and its answer; None is an interrupt."""

    asked: int
    answer: Admission | None


def refusals(code: int, detail: Any = None) -> AppError:
    return AppError(code, "no", detail=detail)


WANTS: tuple[AppError, ...] = (FULL, refusals(429), refusals(500, PluginErrorKind.INSUFFICIENT_RESOURCES))
ENDS: tuple[AppError, ...] = (
    new_internal("down"),
    new_invalid_spec("bad"),
    refusals(409, PluginErrorKind.UNKNOWN),
    refusals(0, Detail(reason="Unknown")),
)


def replies(depth: int, asked: int, current: int) -> Iterator[Admission | None]:
    """Every answer to one question; None is an interrupt. Wants of every sort come at the first steps alone."""
    yield None
    yield ADMITTED
    yield Admission(admitted=asked + 3, retry_after_s=1.0 + depth)
    for error in (*ENDS, *(WANTS if depth < 2 else WANTS[:1])):
        yield Admission(error=error, plugin=str(depth))
    for cap in {asked - 1, (asked + current) // 2, max(current - 1, 0), current + 2}:
        yield Admission(admitted=cap, plugin=str(depth))
        yield Admission(admitted=cap, error=FULL, plugin=str(depth))


def histories(current: int, candidate: int) -> Iterator[tuple[ProbeResult, list[Step]]]:
    """Every search with its steps: each prefix is played again, because a generator has no copy."""
    open_scripts: list[list[Admission | None]] = [[]]
    while open_scripts:
        answers = open_scripts.pop()
        searching = probe.search(current, candidate)
        steps: list[Step] = []
        try:
            asked = next(searching)
            for answer in answers:
                steps.append(Step(asked, answer))
                asked = searching.throw(Interrupt()) if answer is None else searching.send(answer)
        except StopIteration as stop:
            assert len(steps) == len(answers), "the search ended before its script"
            yield stop.value, steps
            continue
        depth = len(answers)
        assert depth <= candidate - current, "the search does not end"
        open_scripts += [[*answers, answer] for answer in replies(depth, asked, current)]


def is_refusal(step: Step) -> bool:
    answer = step.answer
    return answer is not None and (
        answer.error is not None or (answer.admitted is not None and answer.admitted < step.asked)
    )


def refused_from(step: Step) -> int:
    """The smallest number that a step refuses for want of resources."""
    assert step.answer is not None
    return min(step.asked, step.asked if step.answer.admitted is None else step.answer.admitted + 1)


def check(current: int, candidate: int, found: ProbeResult, steps: list[Step]) -> None:
    answered = [step for step in steps if step.answer is not None]
    refused = [step for step in answered if is_refusal(step)]
    admitted = [step.asked for step in answered if not is_refusal(step)]
    asked = [step.asked for step in steps]
    # What is asked: the candidate first, everything within the range, nothing twice.
    assert asked[0] == candidate
    assert len(set(asked)) == len(asked)
    assert all(current < number <= candidate for number in asked)
    # Nothing that was refused, by then, is asked about or accepted.
    for number, step in enumerate(steps):
        assert all(step.asked < refused_from(earlier) for earlier in steps[:number] if is_refusal(earlier)), (
            steps
        )
        assert all(step.asked > earlier.asked for earlier in steps[:number] if earlier.asked in admitted), (
            steps
        )
    assert found.accepted == max(admitted, default=current)
    assert found.accepted not in [step.asked for step in refused]
    assert current <= found.accepted <= candidate
    # What is said.
    assert found.is_complete == (len(answered) == len(steps))
    assert found.calls == len(answered)
    capped = any(step.answer is not None and step.answer.admitted is not None for step in refused)
    assert found.calls <= most_calls(candidate - current) + capped
    check_words(found, answered, refused)
    waits = [step.answer.retry_after_s for step in answered if step.answer is not None]
    assert found.retry_after_s == max((wait_s for wait_s in waits if wait_s is not None), default=None)


def check_words(found: ProbeResult, answered: list[Step], refused: list[Step]) -> None:
    if not refused:
        assert (found.error, found.refused, found.plugin) == (None, None, "")
        return
    last = refused[-1].answer
    assert last is not None
    assert found.error is not None
    assert found.plugin == last.plugin
    assert last.error is None or found.error is last.error
    kind = kind_from_app_error(found.error)
    ending = {
        PluginErrorKind.INSUFFICIENT_RESOURCES: INSUFFICIENT,
        PluginErrorKind.INVALID_SPEC: ProbeResultKind.INVALID_SPEC,
    }.get(kind, ProbeResultKind.INTERNAL_ERROR)
    assert found.kind is ending
    if found.kind is INSUFFICIENT:
        assert found.refused is not None
        assert found.accepted < found.refused
        assert not found.is_complete or found.refused == found.accepted + 1
    else:
        assert answered[-1] is refused[-1]


@pytest.mark.parametrize(("current", "delta"), [*itertools.product((0, 5), range(1, 7)), (3, 8)])
def test_whatever_is_answered_the_search_ends_and_accepts_nothing_refused(current: int, delta: int) -> None:
    kinds = set()
    for found, steps in histories(current, current + delta):
        check(current, current + delta, found, steps)
        kinds.add((found.kind, found.is_complete))
    assert {(kind, True) for kind in ProbeResultKind} <= kinds
    assert (INSUFFICIENT, False) in kinds or delta == 1


@given(st.integers(0, 5), st.integers(1, 300), st.data())
def test_long_searches_keep_the_same_laws(current: int, delta: int, data: st.DataObject) -> None:
    steps: list[Step] = []
    answers = st.one_of(
        st.just(ADMITTED),
        st.builds(
            Admission,
            admitted=st.none() | st.integers(0, current + delta + 3),
            retry_after_s=st.none() | st.floats(0, 99),
            error=st.none() | st.sampled_from([*WANTS, *WANTS, *ENDS]),
            plugin=st.sampled_from("abc"),
        ),
    )

    def say(asked: int) -> Admission:
        steps.append(Step(asked, data.draw(answers)))
        answer = steps[-1].answer
        assert answer is not None
        return answer

    found = asked_of(say, current, current + delta)
    check(current, current + delta, found, steps)


# ------------------------------------------------------------ random chains


class Limited(Talker):
    """Admits up to `limit`, and says so in one of several ways, at once or from a coroutine."""

    def __init__(self, name: str, limit: int, way: str, is_coroutine: bool) -> None:
        super().__init__(name)
        self.limit, self.way, self.is_coroutine = limit, way, is_coroutine

    def pre_update_pool(self, ctx: Context, new_pool: Pool, pods: Pods) -> Any:
        del ctx, pods
        return self.slowly(new_pool.replicas) if self.is_coroutine else self.answer_of(new_pool.replicas)

    async def slowly(self, asked: int) -> Admission:
        await asyncio.sleep(0)
        return self.answer_of(asked)

    def answer_of(self, asked: int) -> Admission:
        if self.way == "cap":
            return Admission(admitted=self.limit)
        if asked <= self.limit:
            return ADMITTED
        if self.way == "raise":
            raise new_insufficient_resources(f"{self.label} has {self.limit}")
        no = AppError(429, f"{self.label} has {self.limit}")
        return Admission(error=no, admitted=self.limit if self.way == "cap and error" else None)


limits_and_ways = st.tuples(
    st.integers(0, 90), st.sampled_from(["cap", "raise", "error", "cap and error"]), st.booleans()
)


@given(st.lists(limits_and_ways, min_size=1, max_size=5), st.integers(0, 40), st.integers(1, 60))
def test_a_chain_admits_what_all_of_its_plugins_admit(
    plugins: list[tuple[int, str, bool]], current: int, delta: int
) -> None:
    candidate = current + delta
    chain = PluginManager(*(Limited(f"p{number}", *each) for number, each in enumerate(plugins)))
    steps = manager.probe_steps(chain, CTX, POOL, (), (current, candidate))
    found, call = calls.begin(steps)
    assert (call is None) == (not any(is_coroutine for *_, is_coroutine in plugins) or found is not None)
    if call is not None:
        found = asyncio.run(calls.go_on(steps, call))
    assert found is not None
    least = min(limit for limit, *_ in plugins)
    assert found.accepted == max(
        (n for n in range(current + 1, candidate + 1) if n <= least), default=current
    )
    is_capped = any("cap" in way for _, way, _ in plugins)
    assert found.calls <= most_calls(delta) + is_capped
    assert (found.kind is ProbeResultKind.OK) == (least >= candidate)
    assert (found.error is None) == (least >= candidate)
    if least < candidate:
        limit = plugins[int(found.plugin.removeprefix("p"))][0]
        assert limit < candidate
        assert found.refused == found.accepted + 1


@given(st.lists(st.integers(0, 90), min_size=1, max_size=5), st.permutations(range(5)), st.integers(1, 60))
def test_caps_give_the_same_in_any_order(caps: list[int], order: list[int], candidate: int) -> None:
    def found(limits: list[int]) -> ProbeResult:
        chain = PluginManager(*(Limited("p", limit, "cap", False) for limit in limits))
        answer, _ = calls.begin(manager.probe_steps(chain, CTX, POOL, (), (0, candidate)))
        assert answer is not None
        return answer

    one, other = found(caps), found([caps[place] for place in order if place < len(caps)])
    assert (one.kind, one.accepted, one.calls) == (other.kind, other.accepted, other.calls)
    assert one.accepted == min(*caps, candidate, candidate)
