"""Calls to a plugin: the bound, the figures, who is away, and what comes of a registration that is replaced."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import grpc
import grpc.aio
import pytest

from agent.core.ports import BackendError, FencedOffError, Fencing, ResizeRefusedError
from agent.node.plugins.ports import AnswerError, PluginAwayError, PluginError
from agent.node.plugins.proto import nodeplugin_v1_pb2 as shared
from agent.node.plugins.proto import resizer_v1_pb2 as wire
from agent.node.plugins.types.calls import PluginCalls, PluginLimits, PluginLink
from agent.node.plugins.types.catalogue import TypeHandler
from agent.node.plugins.types.resizer import (
    ResizerAnewError,
    ResizerAwayError,
    ResizerClient,
    ResizerFailedError,
)
from protocol.pages import PluginCallCounts
from tests.support.amounts import cu
from tests.support.plugin_registry import NoSizeLog
from tests.support.virtual_time import now_s, turns, virtually
from tests.unit.agent.driver import VM

LIMITS = PluginLimits(call_deadline_s=2.0, max_calls=2, command_deadline_s=3.0)


class FakeChannel:
    """The connection of a registration; it notes its end."""

    def __init__(self) -> None:
        self.closed_with: float | None = None
        self.channel = self

    async def close(self, grace: float | None = None) -> None:
        self.closed_with = grace if self.closed_with is None else self.closed_with


class FakeStub:
    """A plugin that answers each call as the test says."""

    def __init__(self, answer: Callable[[Any], Awaitable[Any]]) -> None:
        self._answer = answer
        self.asked: list[Any] = []

    def __getattr__(self, name: str) -> Callable[..., Awaitable[Any]]:
        def call(request: Any, timeout: float) -> Awaitable[Any]:
            self.asked.append(request)
            return self._answer(request)

        return call


def linked(answer: Callable[[Any], Awaitable[Any]]) -> tuple[PluginCalls[Any], FakeChannel, FakeStub]:
    tasks: set[asyncio.Task[None]] = set()

    def own(work: Any, name: str) -> None:
        task = asyncio.create_task(work, name=name)
        tasks.add(task)
        task.add_done_callback(tasks.discard)

    calls: PluginCalls[Any] = PluginCalls("Policy", "p", LIMITS, own)
    channel, stub = FakeChannel(), FakeStub(answer)
    calls.use(PluginLink("/p.sock", channel, stub))  # type: ignore[arg-type]  # a fake of the connection
    return calls, channel, stub


def failed(code: grpc.StatusCode, text: str) -> grpc.aio.AioRpcError:
    return grpc.aio.AioRpcError(code, grpc.aio.Metadata(), grpc.aio.Metadata(), text)


async def ask(calls: PluginCalls[Any], read: Callable[[Any], Any] = lambda answer: answer) -> Any:
    return await calls.call(lambda stub: stub.Ask, "question", read)


def cannot_be_used(_: object) -> None:
    raise AnswerError("units: must be from 0 to 1, not 2")


@virtually
async def test_calls_beyond_the_bound_are_turned_away_at_once_and_others_are_not_held_up() -> None:
    async def slow(_: object) -> str:
        await asyncio.sleep(5)
        return "late"

    calls, _, _ = linked(slow)
    under_way = [asyncio.create_task(ask(calls)) for _ in range(2)]
    await turns()
    before_s = now_s()
    with pytest.raises(PluginError, match="Policy p has 2 calls under way, and no more are made at once"):
        await ask(calls)
    assert now_s() == before_s
    assert calls.figures() == PluginCallCounts(made=2, in_flight=2, turned_away=1)
    assert [await each for each in under_way] == ["late", "late"]
    assert await ask(calls) == "late"


@pytest.mark.parametrize(
    ("code", "text", "told"),
    [
        (grpc.StatusCode.DEADLINE_EXCEEDED, "x", "Policy p: no answer within 2 s"),
        (grpc.StatusCode.UNKNOWN, "ValueError:\nno", "Policy p: UNKNOWN: ValueError: no"),
        (grpc.StatusCode.UNAVAILABLE, "", "Policy p: UNAVAILABLE: without a reason"),
        (None, "", "Policy p: an answer that cannot be used: units: must be from 0 to 1, not 2"),
    ],
)
def test_a_call_that_fails_is_told_and_counted(code: grpc.StatusCode | None, text: str, told: str) -> None:
    async def answer(_: object) -> str:
        if code is not None:
            raise failed(code, text)
        return "answer"

    async def asked() -> PluginCallCounts:
        calls, _, _ = linked(answer)
        with pytest.raises(PluginError) as raised:
            await ask(calls, cannot_be_used)
        assert str(raised.value) == told
        return calls.figures()

    is_late = code is grpc.StatusCode.DEADLINE_EXCEEDED
    assert asyncio.run(asked()) == PluginCallCounts(
        made=1, failed=1, timed_out=int(is_late), last_error=told.removeprefix("Policy p: ")
    )


@virtually
async def test_a_plugin_that_is_away_is_not_asked_and_its_calls_under_way_have_time_to_end() -> None:
    async def slow(_: object) -> str:
        await asyncio.sleep(1)
        return "old"

    calls, channel, _ = linked(slow)
    under_way = asyncio.create_task(ask(calls))
    await turns()
    calls.use(None)
    with pytest.raises(PluginAwayError, match="Policy p is not registered"):
        await ask(calls)
    assert await under_way == "old"
    assert channel.closed_with == LIMITS.call_deadline_s + LIMITS.command_deadline_s


@virtually
async def test_only_a_caller_that_was_cancelled_is_cancelled() -> None:
    async def cut(_: object) -> str:
        raise asyncio.CancelledError  # as the library does with the calls of a channel that is closed

    calls, _, _ = linked(cut)
    with pytest.raises(PluginError, match="the registration ended during the call"):
        await ask(calls)

    async def never(_: object) -> None:
        await asyncio.get_running_loop().create_future()

    calls, _, _ = linked(never)
    task = asyncio.create_task(ask(calls))
    await turns()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert calls.figures() == PluginCallCounts(made=1)


@pytest.mark.parametrize(
    ("name", "endpoint", "versions", "text"),
    [
        ("p", "/run/p.sock", ["v2alpha1", "v1"], None),
        (
            "-p",
            "p.sock",
            ["v0", "v2"],
            (
                "the registration cannot be used: name: must be 1 to 128 letters, digits, '-', '_' or '.', and begin and end with a "
                "letter or digit, not '-p'; endpoint: must be the absolute path of a socket, without '..', not 'p.sock'; "
                "supported_versions[0]: must be such as 'v1' or 'v2beta1', not 'v0'; supported_versions: must hold 'v1', "
                "not ['v0', 'v2']"
            ),
        ),
        (
            "p",
            "/" + "x" * 4096,
            ["v1"],
            (
                "the registration cannot be used: endpoint: must have at most 4096 bytes and has 4097, "
                f"not '/{'x' * 58}…"
            ),
        ),
        (
            "p",
            "/run/../p.sock",
            [],
            (
                "the registration cannot be used: endpoint: must be the absolute path of a socket, without '..', not "
                "'/run/../p.sock'; supported_versions: must hold 'v1', not []"
            ),
        ),
    ],
)
async def test_what_a_registration_may_say(
    name: str, endpoint: str, versions: list[str], text: str | None
) -> None:
    handler: TypeHandler[Any] = TypeHandler(
        lambda _: None, LIMITS, stub=lambda channel: channel, request=wire.DescribeRequest
    )
    if text is None:
        await handler.validate_plugin(name, endpoint, versions)
    else:
        with pytest.raises(PluginError) as raised:
            await handler.validate_plugin(name, endpoint, versions)
        assert str(raised.value) == text


# ---------------------------------------------------------------- resizers

CLOCK = wire.ClockReading(clock_id="c", reading_s=50.0)
MIB4 = shared.Resources(cpu_milli=4000, memory_bytes=4 * 2**30)
MIB2 = shared.Resources(cpu_milli=2000, memory_bytes=2 * 2**30)


def resizer(*answers: Any) -> tuple[ResizerClient, FakeStub]:
    """A resizer that gives these answers, one after the other."""
    left = list(answers)

    async def answer(_: object) -> Any:
        return left.pop(0)

    calls, _, stub = linked(answer)
    client = ResizerClient(calls, NoSizeLog(), lambda: 100.0)
    client.describe(wire.DescribeResponse(clock=CLOCK))()
    return client, stub


def size(now: shared.Resources, target: shared.Resources, uid: str = VM.pod_uid) -> wire.ObserveResponse:
    return wire.ObserveResponse(vm_uid=uid, size=now, target=target, clock=CLOCK)


async def resize(client: ResizerClient, not_after_s: float = 101.0) -> None:
    await client.resize(VM, cu(4), Fencing(1), seen=cu(2), not_after_s=not_after_s)


@pytest.mark.parametrize(
    ("answer", "text"),
    [
        (size(MIB2, MIB2, "other"), "vm_uid: must repeat 'uid-a', not 'other'"),
        (
            size(shared.Resources(cpu_milli=-1), MIB2),
            "size.cpu_milli: must be from 1 to 1000000000, not -1; size.memory_bytes: must be from 1 to 9223372036854775807, not 0",
        ),
        (
            wire.ObserveResponse(vm_uid=VM.pod_uid, size=MIB2, target=MIB2),
            "clock.clock_id: must not be empty, not ''",
        ),
        (
            wire.ObserveResponse(vm_uid=VM.pod_uid, size=MIB2, target=MIB2, clock=CLOCK, refusal="x" * 2000),
            f"refusal: must have at most 1024 characters and has 2000, not '{'x' * 59}…",
        ),
    ],
)
async def test_a_look_that_cannot_be_is_refused(answer: wire.ObserveResponse, text: str) -> None:
    client, _ = resizer(answer)
    with pytest.raises(ResizerFailedError) as raised:
        await client.observe(VM)
    assert str(raised.value) == f"Policy p: an answer that cannot be used: {text}"


async def test_a_size_above_all_that_was_seen_and_commanded_is_told_once_and_then_believed() -> None:
    accepted = wire.ResizeResponse(vm_uid=VM.pod_uid, accepted=wire.Accepted(), clock=CLOCK)
    client, _ = resizer(size(MIB2, MIB2), size(MIB4, MIB2), size(MIB4, MIB2), accepted, size(MIB4, MIB4))
    await client.observe(VM)
    with pytest.raises(
        ResizerFailedError, match=r"size: must not exceed 2 CPU / 2Gi, which covers .* not 4 CPU / 4Gi"
    ):
        await client.observe(VM)
    assert (await client.observe(VM)).size == cu(4)
    await resize(client)
    assert (await client.observe(VM)).target == cu(4)


@pytest.mark.parametrize(
    ("outcome", "kind", "text"),
    [
        ({"not_written": wire.NotWritten(reason="too late")}, BackendError, "too late"),
        ({"refused": wire.Refused(reason="no room")}, ResizeRefusedError, "no room"),
        ({"fenced_off": wire.FencedOff(reason="generation 1")}, FencedOffError, "generation 1"),
        (
            {},
            ResizerFailedError,
            "Policy p: an answer that cannot be used: outcome: must be one of accepted, not_written, refused, fenced_off, not None",
        ),
        (
            {"refused": wire.Refused()},
            ResizerFailedError,
            "Policy p: an answer that cannot be used: refused.reason: must not be empty, not ''",
        ),
    ],
)
async def test_what_a_resize_comes_to(outcome: dict[str, Any], kind: type[Exception], text: str) -> None:
    client, _ = resizer(wire.ResizeResponse(vm_uid=VM.pod_uid, clock=CLOCK, **outcome))
    with pytest.raises(BackendError) as raised:
        await resize(client)
    assert (type(raised.value), str(raised.value)) == (kind, text)


@pytest.mark.parametrize(
    ("not_after_s", "told_s"), [(101.0, 51.0), (1e9, 52.0)], ids=["given", "end of the call"]
)
async def test_a_moment_is_told_on_the_plugins_own_clock(not_after_s: float, told_s: float) -> None:
    client, stub = resizer(wire.ResizeResponse(vm_uid=VM.pod_uid, accepted=wire.Accepted(), clock=CLOCK))
    await resize(client, not_after_s=not_after_s)
    assert stub.asked[0].not_after == wire.Moment(clock_id="c", at_s=told_s)


async def test_what_is_late_already_is_not_sent() -> None:
    client, stub = resizer()
    with pytest.raises(BackendError, match="decided too long ago"):
        await resize(client, not_after_s=99.0)
    assert stub.asked == []


async def test_a_fence_must_rise() -> None:
    answers = [wire.FenceResponse(vm_uid=VM.pod_uid, generation=number, clock=CLOCK) for number in (7, 7)]
    client, _ = resizer(
        *answers,
        wire.FenceResponse(vm_uid=VM.pod_uid, not_fenced=wire.NotWritten(reason="late"), clock=CLOCK),
    )
    assert (await client.fence(VM)).generation == 7
    with pytest.raises(ResizerFailedError, match="generation: must be from 8 to 9223372036854775807, not 7"):
        await client.fence(VM)
    with pytest.raises(BackendError, match="late"):
        await client.fence(VM)


@pytest.mark.parametrize("is_told", [True, False], ids=["registered anew", "dialled anew by the library"])
async def test_a_resizer_that_was_started_anew_is_fenced_before_it_resizes(is_told: bool) -> None:
    anew = wire.ClockReading(clock_id="d", reading_s=1.0)
    fenced = wire.FenceResponse(vm_uid=VM.pod_uid, generation=1, clock=CLOCK)
    forgot = wire.ResizeResponse(vm_uid=VM.pod_uid, fenced_off=wire.FencedOff(reason="by 0"), clock=anew)
    again = wire.FenceResponse(vm_uid=VM.pod_uid, generation=2, clock=anew)
    accepted = wire.ResizeResponse(vm_uid=VM.pod_uid, accepted=wire.Accepted(), clock=anew)
    client, stub = resizer(fenced, *([] if is_told else [forgot]), again, accepted)
    await client.fence(VM)
    if is_told:
        client.describe(wire.DescribeResponse(clock=anew))()
    for _ in range(1 if is_told else 2):
        with pytest.raises(ResizerAnewError, match="Policy p was started anew, and is fenced before"):
            await resize(client)
    assert len(stub.asked) == (1 if is_told else 2)
    await client.fence(VM)
    await resize(client)


async def test_what_a_resizer_can_do_has_bounds() -> None:
    client, _ = resizer()
    able = wire.Capabilities(command_deadline_s=3.5, look_every_s=-1)
    with pytest.raises(AnswerError) as raised:
        client.describe(wire.DescribeResponse(capabilities=able, clock=CLOCK))
    assert str(raised.value) == (
        "capabilities.command_deadline_s: must be a number from 0 to 3, not 3.5; "
        "capabilities.look_every_s: must be a number from 0 to 300, not -1.0"
    )
    assert client.capabilities.command_deadline_s == 5.0


async def test_a_resizer_that_is_away_is_an_error_of_the_back_end() -> None:
    calls: PluginCalls[Any] = PluginCalls("Resizer", "r", LIMITS, lambda _work, _name: None)
    client = ResizerClient(calls, NoSizeLog())
    for call in (
        client.observe(VM),
        client.fence(VM),
        client.resize(VM, cu(1), Fencing(1), seen=cu(1), not_after_s=1e12),
    ):
        with pytest.raises(ResizerAwayError, match="Resizer r is not registered"):
            await call
