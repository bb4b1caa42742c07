"""The search for what a chain admits: exact sequences, caps, and what the result says."""

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

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
from scheduler.pools.core.values import ADMITTED, Admission, Context, Pool, Purpose
from tests.unit.scheduler_pools.pool_talkers import POOL, Talker, later

OK = ProbeResultKind.OK
INSUFFICIENT = ProbeResultKind.INSUFFICIENT_RESOURCES
INTERNAL = ProbeResultKind.INTERNAL_ERROR
INVALID = ProbeResultKind.INVALID_SPEC
FULL = new_insufficient_resources("full")
DOWN = new_internal("down")
BAD = new_invalid_spec("bad")

Answer = Admission | type[Interrupt]


def run(current: int, candidate: int, say: Callable[[int], Answer]) -> tuple[ProbeResult, list[int]]:
    """The result of a search, and what was asked about."""
    searching = probe.search(current, candidate)
    asked: list[int] = []
    try:
        number = next(searching)
        while True:
            asked.append(number)
            answer = say(number)
            number = searching.send(answer) if isinstance(answer, Admission) else searching.throw(answer())
    except StopIteration as stop:
        found: ProbeResult = stop.value
        return found, asked


def scripted(current: int, candidate: int, *answers: Answer) -> tuple[ProbeResult, list[int]]:
    left = iter(answers)
    found, asked = run(current, candidate, lambda _: next(left))
    assert list(left) == []
    return found, asked


def refusing(limit: int) -> Callable[[int], Admission]:
    """Refuses what is above a limit, with an error that tells what was asked about."""
    return lambda asked: (
        ADMITTED if asked <= limit else Admission(error=new_insufficient_resources(str(asked)), plugin="p")
    )


def capping(limit: int, **texts: Any) -> Callable[[int], Admission]:
    return lambda _: Admission(admitted=limit, **texts)


# ------------------------------------------------------------ sequences


@pytest.mark.parametrize(
    ("limit", "current", "candidate", "asked", "accepted", "refusal"),
    [
        (100, 50, 80, [80], 80, None),
        (60, 50, 80, [80, 65, 57, 61, 59, 60], 60, 61),
        (51, 50, 80, [80, 65, 57, 53, 51, 52], 51, 52),
        (50, 50, 80, [80, 65, 57, 53, 51], 50, 51),
        (5, 50, 80, [80, 65, 57, 53, 51], 50, 51),
        (79, 50, 80, [80, 65, 72, 76, 78, 79], 79, 80),
        (64, 0, 128, [128, 64, 96, 80, 72, 68, 66, 65], 64, 65),
        (1, 0, 128, [128, 64, 32, 16, 8, 4, 2, 1], 1, 2),
        (3, 0, 10, [10, 5, 2, 3, 4], 3, 4),
        (0, 0, 1, [1], 0, 1),
        (0, 0, 2, [2, 1], 0, 1),
        (1, 0, 2, [2, 1], 1, 2),
        (2, 0, 3, [3, 1, 2], 2, 3),
        (10, 10, 11, [11], 10, 11),
        (4, 4, 12, [12, 8, 6, 5], 4, 5),
        (7, 4, 12, [12, 8, 6, 7], 7, 8),
        (11, 4, 12, [12, 8, 10, 11], 11, 12),
    ],
)
def test_the_sequence_is_that_of_the_seed_and_no_refusal_is_lost(
    limit: int, current: int, candidate: int, asked: list[int], accepted: int, refusal: int | None
) -> None:
    found, sequence = run(current, candidate, refusing(limit))
    assert sequence == asked
    assert (found.kind, found.accepted) == (OK if refusal is None else INSUFFICIENT, accepted)
    assert (str(found.error), found.plugin) == (str(refusal), "" if refusal is None else "p")
    assert (found.refused, found.calls, found.is_complete) == (refusal, len(asked), True)


@pytest.mark.parametrize(
    ("answers", "asked", "kind", "accepted", "error"),
    [
        ([DOWN], [16], INTERNAL, 0, DOWN),
        ([BAD], [16], INVALID, 0, BAD),
        ([FULL, DOWN], [16, 8], INTERNAL, 0, DOWN),
        ([FULL, None, DOWN], [16, 8, 12], INTERNAL, 8, DOWN),
        ([FULL, None, FULL, BAD], [16, 8, 12, 10], INVALID, 8, BAD),
    ],
)
def test_anything_but_a_want_of_resources_ends_it_at_once(
    answers: list[AppError | None], asked: list[int], kind: ProbeResultKind, accepted: int, error: AppError
) -> None:
    found, sequence = scripted(0, 16, *(Admission(error=answer) for answer in answers))
    assert (sequence, found.kind, found.accepted) == (asked, kind, accepted)
    assert found.error is error
    assert found.is_complete


@pytest.mark.parametrize(("current", "candidate"), [(5, 5), (5, 4), (5, 0), (0, 0), (0, -1)])
def test_what_is_not_above_current_is_never_asked(current: int, candidate: int) -> None:
    found, asked = run(current, candidate, refusing(-1))
    assert (found, asked) == (ProbeResult(OK, current), [])


# ------------------------------------------------------------ caps


@pytest.mark.parametrize("limit", [80, 81, 1000])
def test_a_cap_that_is_not_below_what_was_asked_is_none(limit: int) -> None:
    found, asked = run(50, 80, capping(limit, retry_after_s=2.0))
    assert (asked, found) == ([80], ProbeResult(OK, 80, retry_after_s=2.0, calls=1))


@pytest.mark.parametrize("limit", [0, 1, 49, 50])
def test_a_cap_that_is_not_above_current_takes_nothing_away(limit: int) -> None:
    found, asked = run(50, 80, capping(limit))
    assert (asked, found.kind, found.accepted) == ([80], INSUFFICIENT, 50)
    assert found.error is not None
    assert kind_from_app_error(found.error) is PluginErrorKind.INSUFFICIENT_RESOURCES


def test_a_cap_without_a_message_says_what_and_whose_it_is() -> None:
    found, _ = run(0, 8, capping(3, plugin="quota", reason="Full"))
    assert str(found.error) == "the plugin quota admits only 3 of 8 replicas"
    assert found.error is not None
    assert found.error.detail == Detail(PluginErrorKind.INSUFFICIENT_RESOURCES, reason="Full")


def test_the_cap_beside_an_error_is_asked_about_next() -> None:
    """A quota states its cap, and a later plugin is full all the same, until 58."""
    found, asked = run(
        50,
        80,
        lambda n: Admission(admitted=60, error=FULL if n > 58 else None, plugin="p") if n else ADMITTED,
    )
    assert asked[:2] == [80, 60]
    assert (found.accepted, found.refused, found.error) == (58, 59, FULL)
    assert found.calls == len(asked) <= 2 + math.ceil(math.log2(30))


# ------------------------------------------------------------ waits


# ------------------------------------------------------------ interrupts


def test_an_answer_in_time_is_complete_whatever_the_clock_says() -> None:
    chain = PluginManager(Talker("a"))
    ctx = Context(Purpose.PROBE, deadline_s=5.0)
    found, _ = calls.begin(manager.probe_steps(chain, ctx, POOL, (), (0, 9), lambda: 99.0))
    assert found == ProbeResult(OK, 9, calls=1)


def test_the_clock_ends_a_search_between_two_calls() -> None:
    chain = PluginManager(Talker("a", lambda pool: refusing(8)(pool.replicas)))
    times = iter([1.0, 2.0, 5.0, 6.0])
    ctx = Context(Purpose.PROBE, deadline_s=5.0)
    found, _ = calls.begin(manager.probe_steps(chain, ctx, POOL, (), (0, 16), lambda: next(times)))
    assert found is not None
    assert (found.calls, found.accepted, found.refused, found.is_complete) == (3, 8, 12, False)
    assert next(times) == 6.0


# ------------------------------------------------------------ a real chain


async def test_without_a_chain_all_is_accepted_without_a_call() -> None:
    for chain in (None, PluginManager()):
        found = await manager.probe_accepted_replicas(chain, POOL, (), 5, 9)
        assert found == ProbeResult(OK, 9)
        assert (await manager.probe_accepted_replicas(chain, POOL, (), 5, 3)).accepted == 5


@pytest.mark.parametrize("when", [later, lambda say: say], ids=["coroutine", "plain"])
async def test_a_chain_is_asked_about_the_pool_with_other_replicas(when: Callable[[Any], Any]) -> None:
    plugin = Talker("a", when(lambda pool: refusing(7)(pool.replicas)))
    before = replace(POOL)
    found = await manager.probe_accepted_replicas(PluginManager(plugin), POOL, (), 5, 9)
    assert (found.accepted, str(found.error), found.plugin) == (7, "8", "a")
    assert [seen[0] for seen in plugin.seen] == [POOL.with_replicas(n) for n in (9, 7, 8)]
    assert {seen[1].purpose for seen in plugin.seen} == {Purpose.PROBE}
    assert before == POOL


async def test_what_a_plugin_changes_in_a_probe_is_dropped() -> None:
    def change(pool: Pool) -> Admission:
        changed = replace(pool, labels={**pool.labels, f"asked{pool.replicas}": "1"})
        return Admission(pool=changed, admitted=6)

    plugin = Talker("a", change)
    found = await manager.probe_accepted_replicas(PluginManager(plugin), POOL, (), 5, 9)
    assert (found.accepted, found.calls) == (6, 2)
    assert all(seen[0].labels == POOL.labels for seen in plugin.seen)


async def test_the_reasons_and_members_of_the_call_are_handed_on() -> None:
    plugin = Talker("a")
    ctx = Context(Purpose.BIND, deadline_s=9.0)
    members: tuple[Any, ...] = ("vm",)
    await manager.probe_accepted_replicas(PluginManager(plugin), POOL, members, 0, 1, ctx)
    assert plugin.seen == [(POOL.with_replicas(1), ctx, members)]
