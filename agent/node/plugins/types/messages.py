"""The agent's values as messages to plugins, and amounts of answers as values."""

from typing import Final

from agent.core.model import Vm
from agent.node.plugins.proto import nodeplugin_v1_pb2 as shared
from agent.node.plugins.types.answers import AnswerCheck
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
