"""Calls to resizers (`parley.resizer.v1`) as a back end.

Agent and plugin share no clock. Each answer holds a reading of the plugin's clock; counted from the moment at which the reading was
received, a moment of ours becomes one of the plugin's clock that is not later. So a plugin that was stopped between a call's arrival
and its write knows that it is late. Each resize names such a moment, at the latest the end of its own call.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol, TypeVar

import grpc.aio

from agent.core.model import Vm
from agent.core.ports import (
    BackendError,
    BoundedMemo,
    Capabilities,
    FencedOffError,
    Fencing,
    ResizeRefusedError,
    check_moment,
)
from agent.node.plugins.ports import AnswerCheck, AnswerError, PluginAwayError, PluginError, plain
from agent.node.plugins.proto import resizer_v1_pb2 as messages
from agent.node.plugins.types.calls import PluginCalls, amount_message, amount_of, vm_message
from protocol.values import Observation, Resources

if TYPE_CHECKING:  # the stub of asyncio is a type only
    from agent.node.plugins.proto.resizer_v1_pb2_grpc import ResizerAsyncStub

MAX_GENERATION: Final = 2**63 - 1
MAX_READING_S: Final = 1e15
MAX_CLOCK_ID: Final = 64
MAX_LOOK_S: Final = 300.0
MAX_LOOK_AT_REST_S: Final = 3600.0
Request = TypeVar("Request")
Response = TypeVar("Response")
T = TypeVar("T")


class ResizerAwayError(BackendError):
    """No resizer of that name is registered: nothing was asked."""


class ResizerFailedError(BackendError):
    """A resizer gave no usable answer: late, failed, overloaded, or an answer that breaks its rules."""


class ResizerAnewError(BackendError):
    """The resizer was started anew since the VM was fenced, and must be fenced again first. Nothing was written."""


class SizeLog(Protocol):
    """The log of sizes and targets, as `agent.backends.change_log.LoggedSizes` does for all back ends of objects that others resize."""

    def begin(self) -> int:
        """The number of a look that begins now."""

    def commanding(self, vm: str, target: Resources) -> None:
        """A command is about to be sent."""

    def settled(self, vm: str) -> None:
        """No command that was sent can be accepted any more."""

    def seen(self, vm: str, size: Resources, target: Resources, number: int) -> None:
        """The result of the look of that number."""


@dataclass(frozen=True, slots=True)
class _PluginClock:
    """The plugin's clock, and our moment at which the reading had been received."""

    clock_id: str
    reading_s: float
    received_s: float


@dataclass(slots=True)
class _Standing:
    """The knowledge of one VM. `reach` is the size that it may come to: all that was seen or commanded since the last rest.
    A command that was sent may be accepted until `open_until_s`; None if none can. `clock_id` tells the life of the plugin that
    gave `generation`; empty before the first fence."""

    generation: int = 0
    clock_id: str = ""
    reach: Resources | None = None
    open_until_s: float | None = None


class ResizerClient:
    """The `VmBackend` port over one plugin. While the plugin is away, calls raise `ResizerAwayError`; without a usable answer
    `ResizerFailedError`; and if another life of the plugin has fenced the VM, `ResizerAnewError`."""

    def __init__(
        self,
        calls: "PluginCalls[ResizerAsyncStub]",
        sizes: SizeLog,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.calls = calls
        self._sizes = sizes
        self._clock = clock
        self._reading: _PluginClock | None = None
        self._described = Capabilities(0.0)
        self._known = BoundedMemo(_Standing)

    @property
    def capabilities(self) -> Capabilities:
        """The deadline is the longest that any registered plugin may have, beyond that of a call. Waits between looks are those of
        the plugin that has registered last."""
        limits = self.calls.limits
        return Capabilities(
            limits.call_deadline_s + limits.command_deadline_s,
            self._described.look_every_s,
            self._described.look_at_rest_every_s,
        )

    def describe(self, answer: messages.DescribeResponse) -> Callable[[], None]:
        """Check the abilities that a plugin names. The call that is returned makes them count, once the plugin is registered. Raises
        `AnswerError`."""
        check, able = AnswerCheck(), answer.capabilities
        check.number(
            "capabilities.command_deadline_s", able.command_deadline_s, self.calls.limits.command_deadline_s
        )
        check.number("capabilities.look_every_s", able.look_every_s, MAX_LOOK_S)
        check.number("capabilities.look_at_rest_every_s", able.look_at_rest_every_s, MAX_LOOK_AT_REST_S)
        reading = self._read(check, answer.clock)
        check.end()
        described = Capabilities(able.command_deadline_s, able.look_every_s, able.look_at_rest_every_s)

        def begin() -> None:
            self._described, self._reading = described, reading

        return begin

    async def fence(self, vm: Vm) -> Fencing:
        deadline_s = self.calls.limits.call_deadline_s + self._described.command_deadline_s
        not_after = self._moment(self._clock() + deadline_s)
        request = messages.FenceRequest(vm=vm_message(vm), not_after=not_after)
        known = self._known.of(vm.name)

        def read(answer: messages.FenceResponse) -> str | None:
            check = self._checked(answer, vm)
            if answer.HasField("not_fenced"):
                check.text("not_fenced.reason", answer.not_fenced.reason)
                check.end()
                return plain(answer.not_fenced.reason)
            check.whole("generation", answer.generation, MAX_GENERATION, known.generation + 1)
            check.end()
            known.generation, known.clock_id = answer.generation, answer.clock.clock_id
            return None

        reason = await self._call(lambda stub: stub.Fence, request, read, deadline_s)
        if reason is not None:
            raise BackendError(reason)
        known.reach = None  # an earlier life may have commanded anything
        self._settled(vm, known)
        return Fencing(known.generation)

    async def observe(self, vm: Vm) -> Observation:
        begun_s, known = self._clock(), self._known.of(vm.name)
        if known.open_until_s is not None and begun_s > known.open_until_s:
            self._settled(vm, known)
        number = self._sizes.begin()

        def read(answer: messages.ObserveResponse) -> Observation:
            check = self._checked(answer, vm)
            size = amount_of(check, "size", answer.size)
            target = amount_of(check, "target", answer.target)
            if answer.HasField("refusal"):
                check.text("refusal", answer.refusal)
            check.end()
            self._sizes.seen(vm.name, size, target, number)
            _within_reach(known, size, target)
            refusal = plain(answer.refusal) if answer.HasField("refusal") else None
            return Observation(size, target, begun_s, refusal)

        return await self._call(lambda stub: stub.Observe, messages.ObserveRequest(vm=vm_message(vm)), read)

    async def resize(
        self, vm: Vm, target: Resources, fencing: Fencing, *, seen: Resources, not_after_s: float
    ) -> None:
        if not target.is_positive():
            raise BackendError(f"a VM cannot have {target}")
        now_s, deadline_s, known = self._clock(), self.calls.limits.call_deadline_s, self._known.of(vm.name)
        check_moment(now_s, not_after_s)
        last_s = min(not_after_s, now_s + deadline_s)
        not_after = self._moment(last_s)
        if known.clock_id not in ("", not_after.clock_id):
            raise self._anew()
        request = messages.ResizeRequest(
            vm=vm_message(vm),
            target=amount_message(target),
            seen=amount_message(seen),
            generation=fencing.generation,
            not_after=not_after,
        )
        was_open, known.open_until_s = known.open_until_s, last_s + self.calls.limits.command_deadline_s
        known.reach = target if known.reach is None else known.reach.max(target)
        self._sizes.commanding(vm.name, target)
        outcome = await self._call(
            lambda stub: stub.Resize, request, lambda answer: self._outcome(answer, vm, not_after.clock_id)
        )
        if was_open is None:
            self._settled(vm, known)
        if outcome is not None:
            raise outcome

    # ---------------------------------------------------------------- answers

    def _outcome(self, answer: messages.ResizeResponse, vm: Vm, asked: str) -> BackendError | None:
        """The meaning of a definite answer; None for a target that is accepted. `asked` is the clock of the life that was meant."""
        check = self._checked(answer, vm)
        kind = answer.WhichOneof("outcome")
        if kind is None:
            check.fault("outcome", None, "must be one of accepted, not_written, refused, fenced_off")
        elif kind != "accepted":
            check.text(f"{kind}.reason", getattr(answer, kind).reason)
        check.end()
        match kind:
            case "not_written":
                return BackendError(plain(answer.not_written.reason))
            case "refused":
                return ResizeRefusedError(plain(answer.refused.reason))
            case "fenced_off" if answer.clock.clock_id != asked:
                return self._anew()  # no later fence: this life knows of none
            case "fenced_off":
                return FencedOffError(plain(answer.fenced_off.reason))
            case _:
                return None

    def _checked(
        self, answer: messages.FenceResponse | messages.ObserveResponse | messages.ResizeResponse, vm: Vm
    ) -> AnswerCheck:
        """The check of an answer, which has begun with the fields of all answers. The reading of the clock counts at once."""
        check = AnswerCheck()
        check.same("vm_uid", answer.vm_uid, vm.pod_uid)
        reading = self._read(check, answer.clock)
        if not check.has_faults:
            self._reading = reading
        return check

    def _read(self, check: AnswerCheck, clock: messages.ClockReading) -> _PluginClock:
        check.text("clock.clock_id", clock.clock_id[: MAX_CLOCK_ID + 1])
        if len(clock.clock_id) > MAX_CLOCK_ID:
            check.fault("clock.clock_id", clock.clock_id, f"must have at most {MAX_CLOCK_ID} characters")
        check.number("clock.reading_s", clock.reading_s, MAX_READING_S)
        return _PluginClock(clock.clock_id, clock.reading_s, self._clock())

    def _moment(self, at_s: float) -> messages.Moment:
        """A moment of ours on the plugin's clock, or a moment before."""
        reading = self._reading
        if reading is None:
            raise ResizerAwayError(f"{self.calls} is not registered")
        return messages.Moment(clock_id=reading.clock_id, at_s=reading.reading_s + at_s - reading.received_s)

    def _anew(self) -> ResizerAnewError:
        return ResizerAnewError(
            f"{self.calls} was started anew, and is fenced before it resizes the VM again"
        )

    def _settled(self, vm: Vm, known: _Standing) -> None:
        known.open_until_s = None
        self._sizes.settled(vm.name)

    async def _call(
        self,
        method: "Callable[[ResizerAsyncStub], grpc.aio.UnaryUnaryMultiCallable[Request, Response]]",
        request: Request,
        read: Callable[[Response], T],
        deadline_s: float | None = None,
    ) -> T:
        try:
            return await self.calls.call(method, request, read, deadline_s)
        except PluginAwayError as error:
            raise ResizerAwayError(str(error)) from None
        except PluginError as error:
            raise ResizerFailedError(str(error)) from None


def _within_reach(known: _Standing, size: Resources, target: Resources) -> None:
    """A size never exceeds what was seen before, what was commanded since, and the target. Raises `AnswerError` once if it
    does; from then on it is believed, because the size of a VM counts however it came to that."""
    before, now = known.reach, size.max(target)
    known.reach = now if size == target or before is None else before.max(now)
    if before is not None and size.exceeds(before.max(target)):
        rule = f"must not exceed {before.max(target)}, which covers what was seen before and commanded since"
        raise AnswerError(f"size: {rule}, not {size}")
