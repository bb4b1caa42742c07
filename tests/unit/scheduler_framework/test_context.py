"""The state that plugins keep in a cycle, and the lock over it: who waits for whom, misuse, cancellation."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from scheduler.placing.cycle.context import CycleState, LockError, PluginContext
from tests.support.virtual_time import turns, virtually

Take = Callable[[PluginContext], Coroutine[Any, Any, None]]


@pytest.mark.parametrize("first", [PluginContext.lock, PluginContext.rlock])
@pytest.mark.parametrize("second", [PluginContext.lock, PluginContext.rlock])
@virtually
async def test_a_task_that_holds_the_lock_is_told_that_it_would_wait_for_itself(
    first: Take, second: Take
) -> None:
    context = PluginContext()
    await first(context)
    with pytest.raises(LockError, match="wait for itself"):
        await second(context)


@pytest.mark.parametrize("taken", [None, "read", "write"])
@virtually
async def test_what_was_not_taken_cannot_be_given_back(taken: str | None) -> None:
    context = PluginContext()
    if taken == "read":
        await context.rlock()
    elif taken == "write":
        await context.lock()
    if taken != "write":
        with pytest.raises(LockError, match="no writer"):
            context.unlock()
    if taken != "read":
        with pytest.raises(LockError, match="no reader"):
            context.runlock()


@virtually
async def test_a_reader_gives_back_its_own_hold_whoever_came_first() -> None:
    context = PluginContext()
    await context.rlock()

    async def other() -> None:
        await context.rlock()
        context.runlock()

    await asyncio.create_task(other())
    with pytest.raises(LockError, match="wait for itself"):
        await context.rlock()


@virtually
async def test_the_lock_is_given_back_when_its_block_fails() -> None:
    context = PluginContext()
    for block in (context.locked, context.rlocked, context.locked):
        with pytest.raises(ZeroDivisionError):
            async with block():
                raise ZeroDivisionError
    await context.lock()


@virtually
async def test_a_cancelled_wait_lets_those_behind_it_go_on() -> None:
    context = PluginContext()
    await context.rlock()
    writer = asyncio.create_task(context.lock())
    await turns()
    reader = asyncio.create_task(context.rlock())
    await turns()
    assert not reader.done(), "the writer was there before it"
    writer.cancel()
    await turns()
    assert reader.done()


@pytest.mark.parametrize("is_cancelled_first", [False, True])
@virtually
async def test_a_wait_that_is_cancelled_in_the_moment_of_its_turn_leaves_the_lock_free(
    is_cancelled_first: bool,
) -> None:
    context = PluginContext()
    await context.lock()
    waiter = asyncio.create_task(context.lock())
    await turns()
    if is_cancelled_first:
        waiter.cancel()
        context.unlock()
    else:
        context.unlock()
        waiter.cancel()
    await turns()
    assert waiter.cancelled()
    await context.lock()


def test_a_clone_has_the_content_and_goes_its_own_way() -> None:
    class Notes:
        def __init__(self, pods: int) -> None:
            self.pods = pods

        def clone(self) -> "Notes":
            return Notes(self.pods)

    state, shared = CycleState(), [1]
    state.write("notes", Notes(3))
    state.write("shared", shared)
    copy = state.clone()
    copy.read("notes").pods += 1
    assert copy.read("shared") is shared, "it has no clone"
    copy.delete("shared")
    assert (state.read("notes").pods, copy.read("notes").pods) == (3, 4)
    assert state.read("shared") is shared


def test_a_clone_has_the_skip_sets() -> None:
    state = CycleState()
    sets = [frozenset({each}) for each in "fsp"]
    state.skip_filter_plugins, state.skip_score_plugins, state.skip_pre_bind_plugins = sets
    copy = state.clone()
    assert [copy.skip_filter_plugins, copy.skip_score_plugins, copy.skip_pre_bind_plugins] == sets
