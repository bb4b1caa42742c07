"""The parts `plugins`, `qemu` and `qos` of the agent's settings file: plugins of the node, QEMU guests, and strategies."""

import functools
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, Field

from agent.backends.qemu.core.state import GuestRules
from agent.node.plugins.ports import NAME_RULE, is_plugin_name
from agent.node.qos.config import QOSExtensionConfig, configured
from hosting.settings import FaultsError, PathSetting, Settings


def _absolute(value: Path) -> Path:
    if not value.is_absolute():
        raise ValueError("must be an absolute path, such as /var/lib/parley/plugins_registry")
    return value


def plugin_name(value: str) -> str:
    """The name that a plugin registers under. Raises `ValueError` if no plugin can have it."""
    if not is_plugin_name(value):
        raise ValueError(NAME_RULE)
    return value


Directory = Annotated[PathSetting, AfterValidator(_absolute)]
PluginName = Annotated[str, AfterValidator(plugin_name)]


class PluginSettings(Settings):
    """Plugins in processes of their own."""

    directory: Directory | None = None
    """The directory in which plugins make their sockets; without it there are no plugins, and gRPC is not loaded."""
    metrics: PluginName | None = None
    """The plugin that tells the load of every VM, instead of the VM's exporter."""
    resizer: PluginName | None = None
    """The plugin that resizes the VMs, instead of the back end."""
    deadline: Annotated[float, Field(gt=0, le=4)] = 1.0
    """Seconds that one call may take: less than the 5 s of a call to the back end."""
    max_calls: Annotated[int, Field(ge=1, le=1024)] = 16
    """Calls to one plugin at the same time; further calls are turned away."""

    @classmethod
    def rules(cls, found: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
        if "directory" in found and found["directory"] is None:
            for name in ("metrics", "resizer"):
                if found.get(name) is not None:
                    yield name, "needs plugins.directory, where the plugin registers"


@functools.lru_cache(maxsize=4)
def _faults(
    gates: tuple[tuple[str, bool | str], ...],
    args: str,
    named: tuple[str, ...],
    interval_s: float,
) -> tuple[str, ...]:
    if not (gates or args or named):
        return ()
    try:
        # A value that is no bool is a fault of its own; the faults of the others are told beside it.
        configured(
            dict[str, Any](gates), json.loads(args or "{}"), recommend_only=named, interval_s=interval_s
        )
    except FaultsError as error:
        return tuple(error.faults)
    return ()


class QemuSettings(Settings):
    """How QEMU guests are brought to their targets. Durations are seconds."""

    unplug_cpus: bool = False
    """Whether vCPUs are unplugged, and not only taken offline; QEMU under emulation does not survive it."""
    eject_deadline: Annotated[float, Field(ge=1, le=600)] = 10.0
    """After so long a DIMM that the guest does not give up is told as such."""
    usable_deadline: Annotated[float, Field(ge=1, le=600)] = 5.0
    """Seconds after which plugged resources that the guest does not use are reported."""
    silence: Annotated[float, Field(ge=0.5, le=60)] = 3.0
    """For so long the last answer of an informant counts; after that all plugged vCPUs do."""

    def guest_rules(self) -> GuestRules:
        return GuestRules(self.unplug_cpus, self.eject_deadline, self.usable_deadline, self.silence)


class QosSettings(Settings):
    """Strategies on the node, each behind its feature gate."""

    feature_gates: dict[str, Any] = Field(default_factory=dict)
    """Which strategies run, by name; those that are left out have their default."""
    recommend_only: list[str] = Field(default_factory=list)
    """Strategies that only say what they would do."""
    cgroup_root: Directory = Path("/sys/fs/cgroup")
    """The directory where the host's control groups are mounted."""
    interval: Annotated[float, Field(ge=0.1, le=60)] = 1.0
    """How often the node is measured, in seconds: at most the shortest window of a strategy that is on."""
    node_metric: bool = False
    """Whether the agent writes the NodeMetric of its node, for schedulers that go by measured load; needs Kubernetes as the source."""
    args: dict[str, dict[str, Any]] = Field(default_factory=dict)
    """The args of strategies, by name."""
    node_topology: bool = False
    """Whether the agent keeps the NodeResourceTopology of its node, for schedulers that give out CPUs; needs Kubernetes as the source."""
    device_inventory: Directory | None = None
    """The file that describes the devices of the node, for schedulers that give them to pods; needs Kubernetes as the source."""
    sys_root: Directory = Path("/sys")
    """The directory where the kernel tells of CPUs and NUMA nodes."""

    @classmethod
    def rules(cls, found: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
        """Every gate and strategy is known, each takes its args, and no window is shorter than the interval."""
        gates, args = found.get("feature_gates", {}), found.get("args", {})
        named, interval_s = found.get("recommend_only", []), found.get("interval", 1.0)
        # The file is read again and again; plugins are asked anew only if something of this has changed.
        shown = tuple((name, on if isinstance(on, bool) else str(on)) for name, on in gates.items())
        written = json.dumps(args, default=str) if args else ""
        for fault in _faults(shown, written, tuple(named), interval_s):
            where, _, text = fault.partition(": ")
            yield where.removeprefix("qos."), text

    def config(self, extension_plugins: str = "") -> QOSExtensionConfig:
        """The gates and args together with `--qos-extension-plugins`. Raises `FaultsError` with every fault."""
        return configured(
            self.feature_gates, self.args, extension_plugins, self.recommend_only, interval_s=self.interval
        )
