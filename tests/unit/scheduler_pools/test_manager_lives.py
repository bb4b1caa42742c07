"""The life of a chain: starting, stopping, and calls that do not end when they should."""

import asyncio
import gc
from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest

from scheduler.pools.chain import calls, manager
from scheduler.pools.chain.calls import MAX_ABANDONED
from scheduler.pools.chain.manager import PluginManager, PluginStartError
from scheduler.pools.chain.plugin import BasePlugin, Handle
from scheduler.pools.core.errors import Interrupt
from scheduler.pools.core.probe import ProbeResultKind
from scheduler.pools.core.values import ADMITTED, Admission
from tests.unit.scheduler_pools.pool_talkers import (
    CTX,
    FULL,
    HANDLE,
    HOOKS,
    POOL,
    SOON_S,
    Say,
    Talker,
    ask,
    asking,
    is_internal,
    labelled,
    later,
)

# ------------------------------------------------------------ start and stop


class Starter(BasePlugin):
    """Tells when it is started and stopped; raises what it is given."""

    def __init__(self, name: str, heard: list[str], error: BaseException | None = None) -> None:
        self.label, self.heard, self.error = name, heard, error

    def name(self) -> str:
        return self.label

    def tell(self, what: str) -> None:
        self.heard.append(f"{what} {self.label}")
        if self.error is not None:
            raise self.error

    def start(self, handle: Handle) -> Any:
        assert handle is HANDLE
        self.tell("start")

    def stop(self) -> Any:
        self.tell("stop")


class LateStarter(Starter):
    """The same as coroutines."""

    async def start(self, handle: Handle) -> None:
        await asyncio.sleep(0)
        super().start(handle)

    async def stop(self) -> None:
        await asyncio.sleep(0)
        super().stop()


def starters(heard: list[str], kinds: Sequence[type[Starter]], **errors: BaseException) -> PluginManager:
    names = "abc"
    return PluginManager(
        *(kind(name, heard, errors.get(name)) for name, kind in zip(names, kinds, strict=True))
    )


MIXES = [
    (Starter, Starter, Starter),
    (LateStarter, LateStarter, LateStarter),
    (Starter, LateStarter, Starter),
]


@pytest.mark.parametrize("kinds", MIXES)
async def test_plugins_start_in_order_and_stop_in_reverse(kinds: Sequence[type[Starter]]) -> None:
    heard: list[str] = []
    chain = starters(heard, kinds)
    await chain.start(HANDLE)
    await chain.stop()
    assert heard == ["start a", "start b", "start c", "stop c", "stop b", "stop a"]


@pytest.mark.parametrize("kinds", MIXES)
@pytest.mark.parametrize(
    "error", [OSError("no route"), FULL, asyncio.CancelledError(), ValueError(), SystemExit(1)]
)
async def test_the_start_ends_at_the_first_error_and_names_the_plugin(
    kinds: Sequence[type[Starter]], error: BaseException
) -> None:
    heard: list[str] = []
    with pytest.raises(PluginStartError, match=r'plugin "b" start: .+'):
        await starters(heard, kinds, b=error).start(HANDLE)
    assert heard == ["start a", "start b"]


@pytest.mark.parametrize("kinds", MIXES)
@pytest.mark.parametrize("error", [OSError("no route"), asyncio.CancelledError(), KeyboardInterrupt()])
async def test_one_that_does_not_stop_keeps_no_other_from_it(
    kinds: Sequence[type[Starter]], error: BaseException
) -> None:
    heard: list[str] = []
    await starters(heard, kinds, b=error).stop()
    assert heard == ["stop c", "stop b", "stop a"]


async def test_a_start_that_hangs_ends_with_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    class Hanging(Starter):
        async def start(self, handle: Handle) -> None:
            del handle
            await asyncio.Event().wait()

        async def stop(self) -> None:
            await asyncio.Event().wait()

    monkeypatch.setattr(manager, "START_TIMEOUT_S", SOON_S)
    heard: list[str] = []
    chain = PluginManager(Starter("a", heard), Hanging("b", heard))
    with pytest.raises(PluginStartError, match='plugin "b" start'):
        await chain.start(HANDLE)
    await chain.stop()
    assert heard == ["start a", "stop a"]


# ------------------------------------------------------------ time


class Slow(Talker):
    """Answers when `open` is set; swallows `deaf` cancellations before it gives in."""

    def __init__(self, name: str, deaf: int = 0, end: Admission | BaseException = ADMITTED) -> None:
        super().__init__(name, self.wait)
        self.open = asyncio.Event()
        self.deaf = deaf
        self.end = end
        self.begun = asyncio.Event()
        self.cancelled = self.ended = 0

    async def wait(self, _: object) -> Admission:
        self.begun.set()
        deaf = self.deaf
        try:
            while True:
                try:
                    await self.open.wait()
                    break
                except asyncio.CancelledError:
                    self.cancelled += 1
                    deaf -= 1
                    if deaf < 0:
                        raise
        finally:
            self.ended += 1
        if isinstance(self.end, BaseException):
            raise self.end
        return self.end


@pytest.fixture(autouse=True)
async def nothing_is_complained_of() -> AsyncIterator[None]:
    """A complaint that the loop would log, such as an exception that nobody looked at, fails the test."""
    complaints: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: complaints.append(context))
    yield
    await turns()
    assert complaints == []


def giving(value: object) -> Say:
    return lambda _: value


async def turns(number: int = 5) -> None:
    for _ in range(number):
        await asyncio.sleep(0)


@pytest.mark.parametrize("hook", HOOKS)
async def test_a_call_that_takes_too_long_is_cancelled_and_internal(hook: str) -> None:
    slow, after = Slow("slow"), Talker("after")
    chain = PluginManager(Talker("a", labelled(one="1")), slow, after, timeout_s=SOON_S)
    found = await asking(chain, hook)
    assert is_internal(found, "slow")
    assert str(found.error) == f"slow did not answer within {SOON_S:g} s"
    assert (found.updated, after.seen) == (True, [])
    await turns()
    assert (slow.cancelled, slow.ended, chain.abandoned) == (1, 1, 0)


async def test_an_awaitable_of_any_sort_is_awaited() -> None:
    loop = asyncio.get_running_loop()
    done: asyncio.Future[Admission] = loop.create_future()
    done.set_result(Admission(admitted=3))

    class Awaitable:
        def __await__(self) -> Any:
            yield from asyncio.sleep(0).__await__()
            return Admission(admitted=2)

    task = asyncio.ensure_future(asyncio.sleep(0, Admission(admitted=1)))
    found = [
        await ask("pre_update_pool", Talker("a", giving(awaitable)))
        for awaitable in (done, Awaitable(), task)
    ]
    assert [answer.admitted for answer in found] == [3, 2, 1]


async def test_a_broken_awaitable_is_internal() -> None:
    class Broken:
        def __await__(self) -> Any:
            raise RuntimeError("no")

    class NoIterator:
        def __await__(self) -> Any:
            return 3

    other_loop = asyncio.new_event_loop()
    foreign = other_loop.create_future()
    other_loop.close()
    for broken in (Broken(), NoIterator(), foreign):
        assert is_internal(await ask("pre_update_pool", Talker("a", giving(broken))), "a")


@pytest.mark.parametrize("end", [ADMITTED, Admission(admitted=0), FULL, ValueError("late")], ids=str)
async def test_what_comes_too_late_is_of_no_interest(end: Admission | BaseException) -> None:
    slow = Slow("slow", deaf=1, end=end)
    chain = PluginManager(slow, timeout_s=SOON_S)
    found = await asking(chain, "pre_update_pool")
    assert is_internal(found, "slow")
    await turns()
    assert (chain.abandoned, slow.ended) == (1, 0)
    slow.open.set()
    await turns()
    assert (chain.abandoned, slow.ended) == (0, 1)
    assert is_internal(found, "slow")
    del chain, found, slow
    gc.collect()  # only now would the loop complain of an exception that nobody looked at


async def test_a_plugin_that_never_ends_is_not_called_any_more_until_it_does() -> None:
    slow, before = Slow("slow", deaf=1), Talker("before", labelled(one="1"))
    chain = PluginManager(before, slow, timeout_s=SOON_S / 10)
    for number in range(MAX_ABANDONED + 3):
        found = await asking(chain, HOOKS[number % 3])
        assert is_internal(found, "slow")
        assert found.updated
    assert (len(slow.seen), chain.abandoned) == (MAX_ABANDONED, MAX_ABANDONED)
    assert len(before.seen) == MAX_ABANDONED + 3
    slow.open.set()
    await turns()
    assert chain.abandoned == 0
    assert (await asking(chain, "pre_update_pool")).error is None
    assert len(slow.seen) == MAX_ABANDONED + 1


async def test_abandoned_calls_of_one_plugin_do_not_silence_another_of_the_same_name() -> None:
    slow, other = Slow("base", deaf=1), Talker("base")
    chain = PluginManager(other, slow, timeout_s=SOON_S / 10)
    for _ in range(MAX_ABANDONED + 2):
        await asking(chain, "pre_update_pool")
    assert len(other.seen) == MAX_ABANDONED + 2
    slow.open.set()
    await turns()


# ------------------------------------------------------------ cancellation


@pytest.mark.parametrize("hook", [*HOOKS, "start", "stop", "probe"])
@pytest.mark.parametrize("deaf", [0, 1])
async def test_the_callers_cancellation_passes_through(hook: str, deaf: int) -> None:
    class Starting(Slow):
        def start(self, handle: Handle) -> Any:
            return self.wait(handle)

        def stop(self) -> Any:
            return self.wait(None)

    slow, after = Starting("slow", deaf=deaf), Talker("after")
    chain = PluginManager(slow, after)
    if hook == "probe":
        asked: Any = manager.probe_accepted_replicas(chain, POOL, (), 5, 9)
    elif hook in HOOKS:
        asked = asking(chain, hook)
    else:
        asked = chain.start(HANDLE) if hook == "start" else chain.stop()
    caller = asyncio.ensure_future(asked)
    await slow.begun.wait()
    caller.cancel()
    with pytest.raises(asyncio.CancelledError):
        await caller
    await turns()
    assert after.seen == []
    assert (slow.cancelled, slow.ended, chain.abandoned) == (1, 1 - deaf, deaf)
    slow.open.set()
    await turns()
    assert chain.abandoned == 0


async def test_a_caller_that_was_cancelled_at_the_moment_of_the_answer_still_ends() -> None:
    slow = Slow("slow")
    chain = PluginManager(slow, Talker("after"))
    caller = asyncio.ensure_future(asking(chain, "pre_update_pool"))
    await slow.begun.wait()
    slow.open.set()
    caller.cancel()
    with pytest.raises(asyncio.CancelledError):
        await caller
    await turns()
    assert chain.abandoned == 0


# ------------------------------------------------------------ deadlines


async def test_at_its_deadline_a_search_ends_with_what_is_known() -> None:
    """The candidate is refused, the middle admitted, then nothing is answered."""
    slow = Slow("slow", deaf=1)

    def say(pool: Any) -> Any:
        if pool.replicas == 16:
            raise FULL
        return ADMITTED if pool.replicas == 8 else slow.wait(pool)

    chain = PluginManager(Talker("a", say))
    steps = manager.probe_steps(chain, CTX, POOL, (), (0, 16))
    nothing, call = calls.begin(steps)
    assert nothing is None
    assert call is not None
    found = await calls.go_on(steps, call, asyncio.get_running_loop().time())
    assert (found.kind, found.accepted, found.refused) == (ProbeResultKind.INSUFFICIENT_RESOURCES, 8, 16)
    assert (found.error, found.is_complete, chain.abandoned) == (FULL, False, 1)
    slow.open.set()
    await turns()
    assert chain.abandoned == 0


async def test_a_time_out_before_the_deadline_is_the_plugins_failure() -> None:
    chain = PluginManager(Slow("slow"), timeout_s=SOON_S)
    steps = manager.probe_steps(chain, CTX, POOL, (), (0, 16))
    _, call = calls.begin(steps)
    assert call is not None
    found = await calls.go_on(steps, call, asyncio.get_running_loop().time() + 100)
    assert (found.kind, found.accepted, found.plugin) == (ProbeResultKind.INTERNAL_ERROR, 0, "slow")
    assert found.is_complete


@pytest.mark.parametrize("when", ["coroutine", "plain"])
async def test_a_plugin_cannot_pretend_that_the_time_is_over(when: str) -> None:
    def over(_: object) -> object:
        raise Interrupt

    chain = PluginManager(Talker("a", later(over) if when == "coroutine" else over))
    assert is_internal(await asking(chain, "pre_update_pool"), "a")
