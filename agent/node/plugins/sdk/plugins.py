"""The base classes of node plugins. Each method may be plain, and then runs in a thread, or `async def`."""

from collections.abc import Awaitable, Mapping
from typing import Any, ClassVar

from agent.node.plugins.sdk.values import (
    Amount,
    PluginVm,
    VmGoal,
    VmLoad,
    VmReading,
    VmSize,
    VmSizing,
    WriteDeadline,
)


class NodePlugin:
    """What all node plugins have: the name that they register under, and the version of their software, for people.

    Calls for several VMs come at the same time. What a method raises is told to the agent, which goes on without the answer.
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
    """Resizes VMs. Fences, generations and moments are kept by what serves the plugin: a resizer only looks and writes.

    `command_deadline_s`: what `write` hands on to somebody else is accepted so long after the write's deadline, and so long after
    `write` has ended, or never; 0 where nothing outlives `write`, and at most 5. `look_every_s` and `look_at_rest_every_s`: looking more often shows nothing new, or costs more than it tells.
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
        that showed what the agent has seen. Raises `TargetRefusedError` or `NotWrittenError` where nothing was written; another
        error means that the target may have been accepted."""
        raise NotImplementedError
