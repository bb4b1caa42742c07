"""Calls to metrics sources (`parley.metricssource.v1`)."""

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from agent.core.model import Sample, Stalls, Vm
from agent.node.plugins.proto import metricssource_v1_pb2 as messages
from agent.node.plugins.types.answers import AnswerCheck
from agent.node.plugins.types.calls import PluginCalls, vm_message
from protocol.values import MAX_MEMORY_BYTES

if TYPE_CHECKING:  # the stub of asyncio is a type only
    from agent.node.plugins.proto.metricssource_v1_pb2_grpc import MetricsSourceAsyncStub

MAX_AGE_S: Final = 300.0
MAX_LOAD: Final = 1e6
MAX_COUNTED_S: Final = 1e15
"""A counter of seconds beyond this is no measurement: a million CPUs for thirty years."""


class MetricsSourceClient:
    """The `MetricsSource` port over one plugin."""

    def __init__(
        self, calls: "PluginCalls[MetricsSourceAsyncStub]", clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.calls = calls
        self._clock = clock

    async def read(self, vm: Vm) -> Sample:
        """A reading of the VM now. Raises `PluginError`."""
        return await self.calls.call(
            lambda stub: stub.Read,
            messages.ReadRequest(vm=vm_message(vm)),
            lambda answer: sample_of(answer, vm, self._clock()),
        )


def sample_of(answer: messages.ReadResponse, vm: Vm, received_s: float) -> Sample:
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


def _stalls(check: AnswerCheck, path: str, message: messages.Stalls) -> Stalls:
    check.number(f"{path}.some_total_s", message.some_total_s, MAX_COUNTED_S)
    if not message.HasField("full_total_s"):
        return Stalls(message.some_total_s)
    check.number(f"{path}.full_total_s", message.full_total_s, MAX_COUNTED_S)
    if message.full_total_s > message.some_total_s:
        check.fault(f"{path}.full_total_s", message.full_total_s, "must not exceed some_total_s")
    return Stalls(message.some_total_s, message.full_total_s)
