"""The base classes of node plugins, and the plain values that authors are given and answer, with their units in the names.

None means unknown. Each method may be plain, and then runs in a thread, or `async def`.
"""

import math
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar


@dataclass(frozen=True, slots=True)
class Amount:
    """An amount of both resources: thousandths of a CPU, and bytes."""

    cpu_milli: int
    memory_bytes: int


@dataclass(frozen=True, slots=True)
class PluginVm:
    """A VM of this node. A VM that is made anew under its name has another `uid`; `kind` is such as `pod` or `neonvm`."""

    namespace: str
    name: str
    uid: str
    kind: str
    min: Amount
    max: Amount
    virtual_machine: str | None = None
    """The name of the VirtualMachine object; None for what is no NeonVM."""


@dataclass(frozen=True, slots=True)
class StallTotals:
    """Seconds so far in which some tasks, or all, waited for one resource: counters."""

    some_s: float
    full_s: float | None = None


@dataclass(frozen=True, slots=True)
class VmReading:
    """The answer of a metrics source. `cpu_busy_s` counts the CPU time so far; `age_s` is how old the reading is."""

    load1: float | None = None
    load5: float | None = None
    cpu_busy_s: float | None = None
    memory_total_bytes: int | None = None
    memory_available_bytes: int | None = None
    cpu_stalls: StallTotals | None = None
    memory_stalls: StallTotals | None = None
    age_s: float | None = None


@dataclass(frozen=True, slots=True)
class StallPercent:
    """Per cent of the last 10 and 60 seconds in which some tasks, or all, waited for one resource."""

    some_avg10_percent: float | None = None
    some_avg60_percent: float | None = None
    full_avg10_percent: float | None = None
    full_avg60_percent: float | None = None


@dataclass(frozen=True, slots=True)
class VmLoad:
    """The load that a policy judges. Busy CPUs are in millionths; a tail is an amount that is hardly ever exceeded."""

    cpu_busy_micro: int | None = None
    cpu_busy_mean_micro: int | None = None
    cpu_busy_tail_micro: int | None = None
    load1: float | None = None
    load5: float | None = None
    load_mean_micro: int | None = None
    memory_total_bytes: int | None = None
    memory_available_bytes: int | None = None
    memory_mean_bytes: int | None = None
    memory_tail_bytes: int | None = None
    memory_rise_bytes_per_s: int | None = None
    memory_surge_bytes: int | None = None
    cpu_pressure: StallPercent | None = None
    memory_pressure: StallPercent | None = None


@dataclass(frozen=True, slots=True)
class VmSizing:
    """The amount in use of the VM, and one unit of growth. Apart, each resource has a number of units of its own; tied, the agent
    takes the larger number of a goal for both."""

    in_use: Amount
    unit: Amount
    is_apart: bool


@dataclass(frozen=True, slots=True)
class UnitPart:
    """One figure behind a goal, such as the tail of the memory in use."""

    name: str
    units: int | None
    reason: str


@dataclass(frozen=True, slots=True)
class UnitGoal:
    """The goal for one resource in whole units, and why; None if the policy cannot tell. `parts` has the binding part first."""

    units: int | None
    reason: str
    parts: tuple[UnitPart, ...] = ()


@dataclass(frozen=True, slots=True)
class VmGoal:
    """The answer of a policy."""

    cpu: UnitGoal
    memory: UnitGoal


@dataclass(frozen=True, slots=True)
class VmSize:
    """A look at a VM: its size, the target that it is moving to, and why it does not move, if that is known."""

    size: Amount
    target: Amount
    refusal: str | None = None


class NotWrittenError(Exception):
    """Nothing was written and nothing is under way, for a reason of the moment."""


class TargetRefusedError(Exception):
    """The target cannot be had, for a reason that lasts, and nothing was written."""


@dataclass(frozen=True, slots=True)
class WriteDeadline:
    """The moment after which a write must not begin, on `clock`."""

    at_s: float
    clock: Callable[[], float]

    def left_s(self) -> float:
        """The seconds that are left; negative afterwards."""
        return self.at_s - self.clock() if math.isfinite(self.at_s) else self.at_s

    def check(self) -> None:
        """Raise `NotWrittenError` if the moment has passed. `write` is called right after such a check; a `write` of several
        steps checks before each."""
        if (left_s := self.left_s()) < 0:
            raise NotWrittenError(f"it is {-left_s:.3g} s too late to write")


class NodePlugin:
    """A node plugin: the name that it registers under, and the version of its software, for people.

    Calls for several VMs come at the same time. An exception of a method is told to the agent, which goes on without the answer.
    """

    name: str
    software_version: str = ""
    plugin_type: ClassVar[str]


class MetricsSourcePlugin(NodePlugin):
    """Tells the load of VMs instead of an exporter in the VM."""

    plugin_type: ClassVar[str] = "MetricsSource"

    def read(self, vm: PluginVm) -> VmReading | Awaitable[VmReading]:
        raise NotImplementedError


class PolicyPlugin(NodePlugin):
    """Turns load into a goal."""

    plugin_type: ClassVar[str] = "Policy"

    def goal(
        self, vm: PluginVm, load: VmLoad, sizing: VmSizing, args: Mapping[str, Any]
    ) -> VmGoal | Awaitable[VmGoal]:
        """The goal for this load; `args` are those of the agent's settings."""
        raise NotImplementedError


class ResizerPlugin(NodePlugin):
    """Resizes VMs. Fences, generations and moments are kept by `serve`: a resizer only looks and writes.

    `command_deadline_s`: a command that `write` hands on to somebody else is accepted so long after the write's deadline, and so long after
    `write` has ended, or never; 0 if nothing outlives `write`, and at most 5. `look_every_s` and `look_at_rest_every_s`: looking more often shows nothing new, or costs more than it tells.
    """

    plugin_type: ClassVar[str] = "Resizer"
    command_deadline_s: float = 0.0
    look_every_s: float = 0.0
    look_at_rest_every_s: float = 0.0

    def observe(self, vm: PluginVm) -> VmSize | Awaitable[VmSize]:
        """A look at the VM now, never from memory."""
        raise NotImplementedError

    def write(self, vm: PluginVm, target: Amount, deadline: WriteDeadline) -> Awaitable[None] | None:
        """Set the target, and return when it is accepted. The calls for one VM come one after the other, each right after a look
        that showed the same as the agent has seen. Raises `TargetRefusedError` or `NotWrittenError` if nothing was written; another
        error means that the target may have been accepted."""
        raise NotImplementedError
