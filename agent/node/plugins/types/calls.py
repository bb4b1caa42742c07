"""The calls to one plugin, and those to metrics sources and policies: each has a deadline, only so many are under way, and their outcomes are
counted.

A plugin may register again, on another socket or with a new server on the same one: calls under way end at the server that they began with, and
later calls go to the new server. The agent's values as messages, and amounts of answers as values, are here for all types.
"""

import asyncio
import json
import time
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

import grpc
import grpc.aio
from msgspec.structs import replace

from agent.core.model import Sample, Stalls, Vm
from agent.core.policies.values import (
    MAX_TEXT,
    MAX_UNITS,
    Goal,
    GoalPart,
    Load,
    Psi,
    ResourceGoal,
    Sizing,
    usable,
)
from agent.node.plugins.plugin_connection import UnixChannel
from agent.node.plugins.ports import (
    AnswerCheck,
    AnswerError,
    PluginAwayError,
    PluginError,
    plain,
)
from agent.node.plugins.proto import metricssource_v1_pb2, policy_v1_pb2
from agent.node.plugins.proto import nodeplugin_v1_pb2 as shared
from protocol.pages import PluginCallCounts
from protocol.texts import clean
from protocol.values import MAX_MEMORY_BYTES, Resources

MAX_CPU_MILLI: Final = 10**9
"""A million CPUs: more is no VM's size."""


def vm_message(vm: Vm) -> shared.Vm:
    return shared.Vm(
        namespace=vm.pod.namespace,
        name=vm.pod.name,
        uid=vm.pod_uid,
        kind=vm.kind.value,
        virtual_machine=vm.virtual_machine or None,
        min=amount_message(vm.bounds.min),
        max=amount_message(vm.bounds.max),
    )


def amount_message(amount: Resources) -> shared.Resources:
    return shared.Resources(cpu_milli=amount.vcpu_milli, memory_bytes=amount.memory_bytes)


def amount_of(check: AnswerCheck, path: str, message: shared.Resources) -> Resources:
    """The amount that a VM has or moves to: both resources are above zero."""
    check.whole(f"{path}.cpu_milli", message.cpu_milli, MAX_CPU_MILLI, 1)
    check.whole(f"{path}.memory_bytes", message.memory_bytes, MAX_MEMORY_BYTES, 1)
    return Resources(message.cpu_milli, message.memory_bytes)


S = TypeVar("S")
Request = TypeVar("Request")
Response = TypeVar("Response")
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class PluginLimits:
    """The bounds of one plugin. `max_calls` is how many calls to it may be under way at once.

    `command_deadline_s` is the longest that a resizer may take until a command that it has handed on can no longer be accepted.
    """

    call_deadline_s: float = 2.0
    max_calls: int = 32
    register_deadline_s: float = 10.0
    command_deadline_s: float = 5.0


@dataclass(frozen=True, slots=True)
class PluginLink(Generic[S]):
    """The connection of one registration. `stub` calls the plugin's service."""

    endpoint: str
    opened: UnixChannel
    stub: S


class PluginCalls(Generic[S]):
    """One plugin of one type, registered or not.

    `own` makes a task of work that must go on when a call has ended, and keeps it.
    """

    def __init__(
        self,
        plugin_type: str,
        name: str,
        limits: PluginLimits,
        own: Callable[[Coroutine[Any, Any, None], str], None],
    ) -> None:
        self.plugin_type = plugin_type
        self.name = name
        self.limits = limits
        self._own = own
        self._link: PluginLink[S] | None = None
        self._in_flight = 0
        self._figures = PluginCallCounts()

    @property
    def endpoint(self) -> str | None:
        """The socket of the plugin; None while the plugin is not registered."""
        return None if self._link is None else self._link.endpoint

    def figures(self) -> PluginCallCounts:
        """The calls since the plugin has registered last, and those that are under way."""
        return replace(self._figures, in_flight=self._in_flight)

    def use(self, link: PluginLink[S] | None) -> None:
        """Make later calls over this connection; None for the end of the registration."""
        before, self._link = self._link, link
        if link is not None:
            self._figures = PluginCallCounts()
        if before is not None:
            self._own(self._ended(before), f"calls to {self} end")

    async def call(
        self,
        method: Callable[[S], "grpc.aio.UnaryUnaryMultiCallable[Request, Response]"],
        request: Request,
        read: Callable[[Response], T],
        deadline_s: float | None = None,
    ) -> T:
        """The answer as `read` takes it; `read` raises `AnswerError` for an answer that breaks its rules.

        Raises `PluginAwayError` if no plugin is registered, and `PluginError` for all else: no answer in time, too many calls,
        an error of the plugin, an answer that cannot be used.
        """
        link = self._link
        if link is None:
            raise PluginAwayError(f"{self} is not registered")
        if self._in_flight >= self.limits.max_calls:
            self._figures = replace(self._figures, turned_away=self._figures.turned_away + 1)
            raise PluginError(f"{self} has {self._in_flight} calls under way, and no more are made at once")
        timeout_s = self.limits.call_deadline_s if deadline_s is None else deadline_s
        self._figures = replace(self._figures, made=self._figures.made + 1)
        self._in_flight += 1
        try:
            return read(message(await method(link.stub)(request, timeout=timeout_s)))
        except grpc.aio.AioRpcError as error:
            is_late = error.code() is grpc.StatusCode.DEADLINE_EXCEEDED
            text = f"no answer within {timeout_s:g} s" if is_late else status_text(error)
            raise self._failed(text, is_late=is_late) from None
        except AnswerError as error:
            raise self._failed(f"an answer that cannot be used: {error}") from None
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
            # The library cancels calls of a channel that is closed.
            raise self._failed("the registration ended during the call") from None
        finally:
            self._in_flight -= 1

    def _failed(self, text: str, *, is_late: bool = False) -> PluginError:
        now = self._figures
        self._figures = replace(
            now, failed=now.failed + 1, timed_out=now.timed_out + is_late, last_error=text or None
        )
        return PluginError(f"{self}: {text}")

    async def _ended(self, link: PluginLink[S]) -> None:
        """Close a connection when its calls have ended, which their deadlines bound."""
        await link.opened.channel.close(grace=self.limits.call_deadline_s + self.limits.command_deadline_s)
        await link.opened.close()

    def __str__(self) -> str:
        return f"{self.plugin_type} {self.name}"


def message(answer: Response | None) -> Response:
    """The message that a call gave. Raises `AnswerError` for bytes that are no message of that type, for which the library
    gives None."""
    if answer is None:
        raise AnswerError("its bytes are no message of the expected type")
    return answer


def status_text(error: grpc.aio.AioRpcError) -> str:
    return f"{error.code().name}: {plain(error.details() or 'without a reason')}"


if TYPE_CHECKING:  # the stub of asyncio is a type only
    from agent.node.plugins.proto.metricssource_v1_pb2_grpc import MetricsSourceAsyncStub

MAX_AGE_S: Final = 300.0
MAX_LOAD: Final = 1e6
MAX_COUNTED_S: Final = 1e15
"""A counter of seconds beyond this is no measurement: a million CPUs for thirty years."""


class MetricsSourceClient:
    """The `MetricsSource` port over one plugin (`parley.metricssource.v1`)."""

    def __init__(
        self, calls: "PluginCalls[MetricsSourceAsyncStub]", clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.calls = calls
        self._clock = clock

    async def read(self, vm: Vm) -> Sample:
        return await self.calls.call(
            lambda stub: stub.Read,
            metricssource_v1_pb2.ReadRequest(vm=vm_message(vm)),
            lambda answer: sample_of(answer, vm, self._clock()),
        )


def sample_of(answer: metricssource_v1_pb2.ReadResponse, vm: Vm, received_s: float) -> Sample:
    """The sample that an answer holds. Raises `AnswerError` with every fault."""
    check = AnswerCheck()
    check.same("vm_uid", answer.vm_uid, vm.pod_uid)
    check.number("age_s", answer.age_s, MAX_AGE_S)
    check.number("load1", answer.load1, MAX_LOAD)
    check.number("load5", answer.load5, MAX_LOAD)
    check.number("cpu_busy_total_s", answer.cpu_busy_total_s, MAX_COUNTED_S)
    check.whole("memory_total_bytes", answer.memory_total_bytes, MAX_MEMORY_BYTES)
    check.whole("memory_available_bytes", answer.memory_available_bytes, MAX_MEMORY_BYTES)
    has = answer.HasField
    knows_memory = has("memory_total_bytes") and has("memory_available_bytes")
    if knows_memory and answer.memory_available_bytes > answer.memory_total_bytes:
        check.fault(
            "memory_available_bytes", answer.memory_available_bytes, "must not exceed memory_total_bytes"
        )
    cpu_stalls = _stalls(check, "cpu_stalls", answer.cpu_stalls) if has("cpu_stalls") else None
    memory_stalls = _stalls(check, "memory_stalls", answer.memory_stalls) if has("memory_stalls") else None
    check.end()
    return Sample(
        received_s - answer.age_s,
        answer.load1 if has("load1") else None,
        answer.load5 if has("load5") else None,
        answer.cpu_busy_total_s if has("cpu_busy_total_s") else None,
        answer.memory_total_bytes if has("memory_total_bytes") else None,
        answer.memory_available_bytes if has("memory_available_bytes") else None,
        cpu_stalls,
        memory_stalls,
    )


def _stalls(check: AnswerCheck, path: str, message: metricssource_v1_pb2.Stalls) -> Stalls:
    check.number(f"{path}.some_total_s", message.some_total_s, MAX_COUNTED_S)
    if not message.HasField("full_total_s"):
        return Stalls(message.some_total_s)
    check.number(f"{path}.full_total_s", message.full_total_s, MAX_COUNTED_S)
    if message.full_total_s > message.some_total_s:
        check.fault(f"{path}.full_total_s", message.full_total_s, "must not exceed some_total_s")
    return Stalls(message.some_total_s, message.full_total_s)


if TYPE_CHECKING:  # the stub of asyncio is a type only
    from agent.node.plugins.proto.policy_v1_pb2_grpc import PolicyAsyncStub

MAX_PARTS: Final = 16
MAX_NAME: Final = 128
"""Characters of the name of a part."""


class PolicyClient:
    """The `OutsidePolicy` port over one plugin (`parley.policy.v1`)."""

    def __init__(self, calls: "PluginCalls[PolicyAsyncStub]") -> None:
        self.calls = calls

    async def goal(self, vm: Vm, load: Load, sizing: Sizing, args: Mapping[str, Any]) -> Goal:
        request = policy_v1_pb2.GetGoalRequest(
            vm=vm_message(vm),
            load=load_message(load),
            sizing=policy_v1_pb2.Sizing(
                in_use=amount_message(sizing.use),
                unit=amount_message(sizing.unit.step),
                is_apart=sizing.unit.is_apart,
            ),
            args_json=json.dumps(dict(args), default=str),  # a date in the settings, for one
        )
        return await self.calls.call(
            lambda stub: stub.GetGoal, request, lambda answer: goal_of(answer, vm, self.calls.name)
        )


def load_message(load: Load) -> policy_v1_pb2.Load:
    """The load as plugins are told of it. Load averages that are no measurement are left out."""
    return policy_v1_pb2.Load(
        cpu_busy_micro=load.busy(),
        cpu_busy_mean_micro=load.busy_mean_micro,
        cpu_busy_tail_micro=load.busy_tail_micro,
        load1=usable(load.load1),
        load5=usable(load.load5),
        load_mean_micro=load.load_mean_micro,
        memory_total_bytes=load.memory_total,
        memory_available_bytes=load.memory_available,
        memory_mean_bytes=load.memory_mean,
        memory_tail_bytes=load.memory_tail,
        memory_rise_bytes_per_s=load.memory_rise,
        memory_surge_bytes=load.memory_surge,
        cpu_pressure=_pressure(load.cpu_psi),
        memory_pressure=_pressure(load.memory_psi),
    )


def _pressure(psi: Psi | None) -> policy_v1_pb2.Pressure | None:
    if psi is None:
        return None
    return policy_v1_pb2.Pressure(
        some_avg10_percent=usable(psi.some_avg10),
        some_avg60_percent=usable(psi.some_avg60),
        full_avg10_percent=usable(psi.full_avg10),
        full_avg60_percent=usable(psi.full_avg60),
    )


def goal_of(answer: policy_v1_pb2.GetGoalResponse, vm: Vm, plugin: str) -> Goal:
    """The goal that an answer holds. Raises `AnswerError` with every fault."""
    check = AnswerCheck()
    check.same("vm_uid", answer.vm_uid, vm.pod_uid)
    for path in ("cpu", "memory"):
        if not answer.HasField(path):
            check.fault(path, None, "must be given; a goal without units says that the policy cannot tell")
    cpu = _resource_goal(check, "cpu", answer.cpu, plugin) if answer.HasField("cpu") else None
    memory = _resource_goal(check, "memory", answer.memory, plugin) if answer.HasField("memory") else None
    check.end()
    assert cpu is not None
    assert memory is not None
    return Goal(cpu, memory)


def _resource_goal(
    check: AnswerCheck, path: str, message: policy_v1_pb2.ResourceGoal, plugin: str
) -> ResourceGoal:
    units = _units(check, f"{path}.units", message)
    check.text(f"{path}.reason", message.reason)
    if len(message.parts) > MAX_PARTS:
        check.fault(f"{path}.parts", len(message.parts), f"must have at most {MAX_PARTS} parts")
    parts = []
    for index, part in enumerate(message.parts[:MAX_PARTS]):
        where = f"{path}.parts[{index}]"
        check.text(f"{where}.name", part.name)
        check.text(f"{where}.reason", part.reason)
        parts.append(
            GoalPart(
                f"{plugin}: {clean(part.name, MAX_NAME)}",
                _units(check, f"{where}.units", part),
                clean(part.reason, MAX_TEXT),
            )
        )
    reason = clean(message.reason, MAX_TEXT)
    return ResourceGoal(units, reason, tuple(parts) or (GoalPart(plugin, units, reason),))


def _units(
    check: AnswerCheck, path: str, message: policy_v1_pb2.ResourceGoal | policy_v1_pb2.GoalPart
) -> int | None:
    if not message.HasField("units"):
        return None
    check.whole(path, message.units, MAX_UNITS)
    return message.units
