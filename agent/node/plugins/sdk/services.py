"""The services of metrics sources and policies over an author's plugin, and the common parts of all services.

Messages become an author's values, and back. Plain methods run in threads of their own, and an exception of an author's code is a gRPC
status with its text.
"""

import inspect
import json
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, TypeVar, cast

import grpc.aio
from google.protobuf.message import Message

from agent.node.plugins.proto import (
    metricssource_v1_pb2,
    nodeplugin_v1_pb2,
    policy_v1_pb2,
)
from agent.node.plugins.proto.metricssource_v1_pb2_grpc import MetricsSourceServicer
from agent.node.plugins.proto.policy_v1_pb2_grpc import PolicyServicer
from agent.node.plugins.sdk.plugins import (
    Amount,
    MetricsSourcePlugin,
    NodePlugin,
    PluginVm,
    PolicyPlugin,
    StallPercent,
    StallTotals,
    UnitGoal,
    VmGoal,
    VmLoad,
    VmReading,
    VmSizing,
)
from hosting.logs import Logger
from hosting.threads import in_own_thread


def amount_of(message: nodeplugin_v1_pb2.Resources) -> Amount:
    return Amount(message.cpu_milli, message.memory_bytes)


def amount_message(value: Amount) -> nodeplugin_v1_pb2.Resources:
    return nodeplugin_v1_pb2.Resources(cpu_milli=value.cpu_milli, memory_bytes=value.memory_bytes)


def vm_of(message: nodeplugin_v1_pb2.Vm) -> PluginVm:
    return PluginVm(
        message.namespace,
        message.name,
        message.uid,
        message.kind,
        amount_of(message.min),
        amount_of(message.max),
        message.virtual_machine if message.HasField("virtual_machine") else None,
    )


def reading_message(uid: str, value: VmReading) -> metricssource_v1_pb2.ReadResponse:
    return metricssource_v1_pb2.ReadResponse(
        vm_uid=uid,
        age_s=value.age_s,
        load1=value.load1,
        load5=value.load5,
        cpu_busy_total_s=value.cpu_busy_s,
        memory_total_bytes=value.memory_total_bytes,
        memory_available_bytes=value.memory_available_bytes,
        cpu_stalls=_stalls(value.cpu_stalls),
        memory_stalls=_stalls(value.memory_stalls),
    )


def _stalls(value: StallTotals | None) -> metricssource_v1_pb2.Stalls | None:
    if value is None:
        return None
    return metricssource_v1_pb2.Stalls(some_total_s=value.some_s, full_total_s=value.full_s)


_LOAD_FIGURES = (
    "cpu_busy_micro",
    "cpu_busy_mean_micro",
    "cpu_busy_tail_micro",
    "load1",
    "load5",
    "load_mean_micro",
    "memory_total_bytes",
    "memory_available_bytes",
    "memory_mean_bytes",
    "memory_tail_bytes",
    "memory_rise_bytes_per_s",
    "memory_surge_bytes",
)
_STALLS = ("some_avg10_percent", "some_avg60_percent", "full_avg10_percent", "full_avg60_percent")


def load_of(message: policy_v1_pb2.Load) -> VmLoad:
    known = _known(message, _LOAD_FIGURES)
    for name, stalls in _known(message, ("cpu_pressure", "memory_pressure")).items():
        known[name] = StallPercent(**_known(stalls, _STALLS))
    return VmLoad(**known)


def _known(message: Message, names: Iterable[str]) -> dict[str, Any]:
    return {name: getattr(message, name) for name in names if message.HasField(name)}


def sizing_of(message: policy_v1_pb2.Sizing) -> VmSizing:
    return VmSizing(amount_of(message.in_use), amount_of(message.unit), message.is_apart)


def goal_message(uid: str, value: VmGoal) -> policy_v1_pb2.GetGoalResponse:
    return policy_v1_pb2.GetGoalResponse(
        vm_uid=uid, cpu=_unit_goal(value.cpu), memory=_unit_goal(value.memory)
    )


def _unit_goal(value: UnitGoal) -> policy_v1_pb2.ResourceGoal:
    parts = [
        policy_v1_pb2.GoalPart(name=each.name, units=each.units, reason=each.reason) for each in value.parts
    ]
    return policy_v1_pb2.ResourceGoal(units=value.units, reason=value.reason, parts=parts)


T = TypeVar("T")


async def called(method: Callable[..., T | Awaitable[T]], *arguments: Any) -> T:
    """The outcome of a method, which may be plain or `async def`. A plain one may block: it runs in a thread of its own."""
    if inspect.iscoroutinefunction(method):
        return cast("T", await method(*arguments))
    found = await in_own_thread(lambda: method(*arguments))
    return await found if inspect.isawaitable(found) else found


def checked(value: object, kind: type[T], method: str) -> T:
    """The result of an author's method. Raises `TypeError` for one of another type."""
    if not isinstance(value, kind):
        raise TypeError(f"{method} must return a {kind.__name__}, not {value!r:.200}")
    return value


async def answered(work: Awaitable[T], context: grpc.aio.ServicerContext[Any, Any], log: Logger) -> T:
    """The answer to a call. An exception of the author's code is logged here and told to the agent."""
    try:
        return await work
    except Exception as error:
        log.warning("a call failed", error=repr(error), exc_info=error)
        await context.abort(grpc.StatusCode.UNKNOWN, f"{type(error).__name__}: {error}"[:1000])
        raise AssertionError("a call that was aborted goes on") from error


Context = grpc.aio.ServicerContext[Any, Any]


def identity(plugin: NodePlugin) -> nodeplugin_v1_pb2.PluginIdentity:
    return nodeplugin_v1_pb2.PluginIdentity(name=plugin.name, software_version=plugin.software_version)


class MetricsSourceService(MetricsSourceServicer):
    """Serves `parley.metricssource.v1`."""

    def __init__(self, plugin: MetricsSourcePlugin, log: Logger) -> None:
        self._plugin = plugin
        self._log = log

    async def Describe(
        self, request: metricssource_v1_pb2.DescribeRequest, context: object
    ) -> metricssource_v1_pb2.DescribeResponse:
        return metricssource_v1_pb2.DescribeResponse(identity=identity(self._plugin))

    async def Read(
        self, request: metricssource_v1_pb2.ReadRequest, context: Context
    ) -> metricssource_v1_pb2.ReadResponse:
        return await answered(self._read(request), context, self._log)

    async def _read(self, request: metricssource_v1_pb2.ReadRequest) -> metricssource_v1_pb2.ReadResponse:
        found = await called(self._plugin.read, vm_of(request.vm))
        return reading_message(request.vm.uid, checked(found, VmReading, "read"))


class PolicyService(PolicyServicer):
    """Serves `parley.policy.v1`."""

    def __init__(self, plugin: PolicyPlugin, log: Logger) -> None:
        self._plugin = plugin
        self._log = log

    async def Describe(
        self, request: policy_v1_pb2.DescribeRequest, context: object
    ) -> policy_v1_pb2.DescribeResponse:
        return policy_v1_pb2.DescribeResponse(identity=identity(self._plugin))

    async def GetGoal(
        self, request: policy_v1_pb2.GetGoalRequest, context: Context
    ) -> policy_v1_pb2.GetGoalResponse:
        return await answered(self._goal(request), context, self._log)

    async def _goal(self, request: policy_v1_pb2.GetGoalRequest) -> policy_v1_pb2.GetGoalResponse:
        found = await called(
            self._plugin.goal,
            vm_of(request.vm),
            load_of(request.load),
            sizing_of(request.sizing),
            json.loads(request.args_json or "{}"),
        )
        return goal_message(request.vm.uid, checked(found, VmGoal, "goal"))
