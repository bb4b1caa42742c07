"""Calls to policies (`parley.policy.v1`)."""

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from agent.core.model import Vm
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
from agent.node.plugins.proto import policy_v1_pb2 as messages
from agent.node.plugins.types.answers import AnswerCheck
from agent.node.plugins.types.calls import PluginCalls, amount_message, vm_message
from protocol.texts import clean

if TYPE_CHECKING:  # the stub of asyncio is a type only
    from agent.node.plugins.proto.policy_v1_pb2_grpc import PolicyAsyncStub

MAX_PARTS: Final = 16
MAX_NAME: Final = 128
"""Characters of the name of a part."""


class PolicyClient:
    """The `OutsidePolicy` port over one plugin."""

    def __init__(self, calls: "PluginCalls[PolicyAsyncStub]") -> None:
        self.calls = calls

    async def goal(self, vm: Vm, load: Load, sizing: Sizing, args: Mapping[str, Any]) -> Goal:
        """The goal for this load. Raises `PluginError`."""
        request = messages.GetGoalRequest(
            vm=vm_message(vm),
            load=load_message(load),
            sizing=messages.Sizing(
                in_use=amount_message(sizing.use),
                unit=amount_message(sizing.unit.step),
                is_apart=sizing.unit.is_apart,
            ),
            args_json=json.dumps(dict(args), default=str),  # a date in the settings, for one
        )
        return await self.calls.call(
            lambda stub: stub.GetGoal, request, lambda answer: goal_of(answer, vm, self.calls.name)
        )


def load_message(load: Load) -> messages.Load:
    """The load as plugins are told of it. Load averages that are no measurement are left out."""
    return messages.Load(
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


def _pressure(psi: Psi | None) -> messages.Pressure | None:
    if psi is None:
        return None
    return messages.Pressure(
        some_avg10_percent=usable(psi.some_avg10),
        some_avg60_percent=usable(psi.some_avg60),
        full_avg10_percent=usable(psi.full_avg10),
        full_avg60_percent=usable(psi.full_avg60),
    )


def goal_of(answer: messages.GetGoalResponse, vm: Vm, plugin: str) -> Goal:
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
    check: AnswerCheck, path: str, message: messages.ResourceGoal, plugin: str
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


def _units(check: AnswerCheck, path: str, message: messages.ResourceGoal | messages.GoalPart) -> int | None:
    if not message.HasField("units"):
        return None
    check.whole(path, message.units, MAX_UNITS)
    return message.units
