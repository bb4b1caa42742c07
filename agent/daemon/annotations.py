"""What one VM's annotations say about its scaling: policies, windows, steps and bounds in place of the configured ones.

`parley.dev/config` is JSON with `policies` and `windows`, as in the settings file, and `tied`; `parley.dev/unit` is JSON
with the steps, `{cpu, memory}`; `parley.dev/bounds` is JSON with `min` and `max`, each `{cpu, memory}`. Of a step, a
minimum and a maximum either part may be left out. `parley.dev/metrics-plugin` names a plugin. For NeonVM objects the published `autoscaling.neon.tech/config` and `…/bounds`
are read where ours say nothing (reference/neon.md 6.2). What is wrong is reported and ignored; nothing is raised.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, Final

from pydantic import BeforeValidator

from agent.core.policies.combined import Combined
from agent.daemon import policies, windows
from agent.daemon.node_settings import plugin_name
from agent.daemon.policies import PolicyRegistry
from agent.daemon.windows import Timed
from hosting.amounts import share
from hosting.kubernetes import virtual_machines
from hosting.kubernetes.annotations import bounds, mapping, short, step
from hosting.kubernetes.names import CONFIG, METRICS_PLUGIN, NEON_CONFIG
from hosting.settings import FaultsError, Settings, check
from protocol import values
from protocol.values import Bounds


@dataclass(frozen=True, slots=True)
class Overrides:
    """What the annotations of one VM replace; None where they give no usable value."""

    policies: Combined | None = None
    windows: tuple[Timed, ...] | None = None
    bounds: Bounds | None = None
    step: values.Resources | None = None
    is_tied: bool | None = None
    metrics_plugin: str | None = None
    """Empty for the exporter."""


@dataclass(frozen=True, slots=True)
class VmDefaults:
    """The settings of a VM without annotations. `policies` is the list of the settings file. For an object that is a NeonVM
    `VirtualMachine` (`is_neonvm`) the published names are read too, and its resources are always tied."""

    bounds: Bounds
    slot_bytes: int
    step: values.Resources
    policies: Sequence[Any] = policies.DEFAULT
    is_neonvm: bool = False


class _Tie(Settings):
    tied: bool


def _published_share(value: object) -> object:
    """A published number, to the six digits that are counted here."""
    return round(value, 6) if isinstance(value, float) else value


class _NeonShare(Settings):
    share: Annotated[int, share(0, 2), BeforeValidator(_published_share)]


_NEON_SHARES: Final = {
    "loadAverageFractionTarget": ("loadTarget", "cpuTarget"),
    "memoryUsageFractionTarget": ("memoryTarget",),
    "cpuStableZoneRatio": ("cpuStableZone",),
    "cpuMixedZoneRatio": ("cpuMixedZone",),
}
"""Published keys and the args of `utilisation` that they set."""
_NEON_UNUSED: Final = frozenset(
    {
        "memoryTotalFractionTarget",
        "enableLFCMetrics",
        "lfcUseLargestWindow",
        "lfcToMemoryRatio",
        "lfcWindowSizeMinutes",
        "lfcMinWaitBeforeDownscaleMinutes",
    }
)


def read(
    annotations: Mapping[str, object], configured: VmDefaults, registry: PolicyRegistry
) -> tuple[Overrides, list[str]]:
    """What the annotations replace, and every fault as a text that begins with the annotation's name."""
    faults: list[str] = []
    found = _config(annotations, registry, faults)
    slot_bytes = configured.slot_bytes
    if not configured.is_neonvm:
        found_bounds = bounds(annotations, configured.bounds, faults)
        found_step = step(annotations, configured.step, faults)
    else:
        found_bounds = virtual_machines.bounds_of(annotations, configured.bounds, slot_bytes, faults)
        found_step = virtual_machines.step_of(annotations, configured.step, slot_bytes, faults)
        if found.policies is None:
            found = replace(found, policies=_neon_config(annotations, configured, registry, faults))
        if found.is_tied is False:
            faults.append(f"{CONFIG}: tied: must be true, because the resources of a NeonVM are tied")
        found = replace(found, is_tied=True)
    plugin = _metrics_plugin(annotations, registry, faults)
    return replace(found, bounds=found_bounds, step=found_step, metrics_plugin=plugin), faults


def _config(annotations: Mapping[str, object], registry: PolicyRegistry, faults: list[str]) -> Overrides:
    """Policies as a whole, because a goal without one of them would be lower than was asked for; windows one by one."""
    data = mapping(annotations, CONFIG, faults)
    chosen: Combined | None = None
    open_at: tuple[Timed, ...] | None = None
    is_tied: bool | None = None
    for key, value in data.items():
        if key == "policies":
            try:
                chosen = policies.build(value, registry, f"{CONFIG}: policies")
            except FaultsError as error:
                faults += error.faults
        elif key == "windows":
            usable, wrong = windows.read(value, f"{CONFIG}: windows")
            faults += wrong
            open_at = usable if usable or not wrong else None
        elif key == "tied":
            try:
                is_tied = check({key: value}, _Tie).tied
            except FaultsError as error:
                faults += (f"{CONFIG}: {fault}" for fault in error.faults)
        else:
            faults.append(f"{CONFIG}: {short(key)}: there is no such setting")
    return Overrides(chosen, open_at, is_tied=is_tied)


def _metrics_plugin(
    annotations: Mapping[str, object], registry: PolicyRegistry, faults: list[str]
) -> str | None:
    name = annotations.get(METRICS_PLUGIN)
    if name is None or name == "":
        return None if name is None else ""
    if not registry.has_plugins:
        faults.append(f"{METRICS_PLUGIN}: needs plugins.directory in the agent's settings")
        return None
    try:
        return plugin_name(str(name))
    except ValueError as error:
        faults.append(f"{METRICS_PLUGIN}: {error} (found {short(name)!r})")
        return None


def _neon_config(
    annotations: Mapping[str, object], configured: VmDefaults, registry: PolicyRegistry, faults: list[str]
) -> Combined | None:
    """The configured policies with the published targets in `utilisation`; each value counts by itself."""
    args: dict[str, float] = {}
    for key, value in mapping(annotations, NEON_CONFIG, faults).items():
        if key in _NEON_UNUSED:
            if value is not False:
                faults.append(f"{NEON_CONFIG}: {key}: has no effect here")
        elif key not in _NEON_SHARES:
            faults.append(f"{NEON_CONFIG}: {short(key)}: there is no such setting")
        else:
            wrong = _share_faults(value, key, args)
            faults += (f"{NEON_CONFIG}: {key}{fault.removeprefix('share')}" for fault in wrong)
    if not args:
        return None
    chosen, is_used = [], False
    for item in configured.policies:
        entry = dict(item) if isinstance(item, Mapping) else {"name": item}
        if entry.get("name") == "utilisation":
            entry["args"], is_used = {**entry.get("args", {}), **args}, True
        chosen.append(entry)
    if not is_used:
        faults.append(f"{NEON_CONFIG}: has no effect, because the policy utilisation is not in use")
        return None
    try:
        return policies.build(chosen, registry, f"{NEON_CONFIG}: policies")
    except FaultsError as error:
        faults += error.faults
        return None


def _share_faults(value: object, key: str, args: dict[str, float]) -> list[str]:
    """Adds what the published share sets to `args`; else what is wrong with it."""
    try:
        written = check({"share": value}, _NeonShare).share
    except FaultsError as error:
        return error.faults
    found = {arg: min(written, 1_000_000) if arg == "cpuTarget" else written for arg in _NEON_SHARES[key]}
    wrong: list[str] = []
    try:
        check({arg: amount / 1_000_000 for arg, amount in found.items()}, policies.UtilisationArgs)
    except FaultsError as error:
        wrong = [f"share: {fault.partition(': ')[2]}" for fault in error.faults]
    else:
        args.update({arg: amount / 1_000_000 for arg, amount in found.items()})
    return wrong[:1]
