"""Messages of the agent as values of authors, and back."""

from typing import Any

from google.protobuf.message import Message

from agent.node.plugins.proto import (
    metricssource_v1_pb2,
    nodeplugin_v1_pb2,
    policy_v1_pb2,
)
from agent.node.plugins.sdk.values import (
    Amount,
    PluginVm,
    StallPercent,
    StallTotals,
    UnitGoal,
    VmGoal,
    VmLoad,
    VmReading,
    VmSizing,
)


def amount(message: nodeplugin_v1_pb2.Resources) -> Amount:
    """An amount as the agent wrote it."""
    return Amount(message.cpu_milli, message.memory_bytes)


def amount_message(value: Amount) -> nodeplugin_v1_pb2.Resources:
    """An amount as the agent reads it."""
    return nodeplugin_v1_pb2.Resources(cpu_milli=value.cpu_milli, memory_bytes=value.memory_bytes)


def vm(message: nodeplugin_v1_pb2.Vm) -> PluginVm:
    return PluginVm(
        message.namespace,
        message.name,
        message.uid,
        message.kind,
        amount(message.min),
        amount(message.max),
        message.virtual_machine if message.HasField("virtual_machine") else None,
    )


def reading_message(uid: str, value: VmReading) -> metricssource_v1_pb2.ReadResponse:
    """The answer of a metrics source."""
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


def load(message: policy_v1_pb2.Load) -> VmLoad:
    known: dict[str, Any] = {name: getattr(message, name) for name in _LOAD_FIGURES if _has(message, name)}
    for name in ("cpu_pressure", "memory_pressure"):
        if _has(message, name):
            known[name] = _percent(getattr(message, name))
    return VmLoad(**known)


def _percent(message: policy_v1_pb2.Pressure) -> StallPercent:
    return StallPercent(**{name: getattr(message, name) for name in _STALLS if _has(message, name)})


def _has(message: Message, name: str) -> bool:
    return message.HasField(name)


def sizing(message: policy_v1_pb2.Sizing) -> VmSizing:
    return VmSizing(amount(message.in_use), amount(message.unit), message.is_apart)


def goal_message(uid: str, value: VmGoal) -> policy_v1_pb2.GetGoalResponse:
    return policy_v1_pb2.GetGoalResponse(
        vm_uid=uid, cpu=_unit_goal(value.cpu), memory=_unit_goal(value.memory)
    )


def _unit_goal(value: UnitGoal) -> policy_v1_pb2.ResourceGoal:
    parts = [
        policy_v1_pb2.GoalPart(name=each.name, units=each.units, reason=each.reason) for each in value.parts
    ]
    return policy_v1_pb2.ResourceGoal(units=value.units, reason=value.reason, parts=parts)
