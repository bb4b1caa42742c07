"""The annotations of one VM about its scaling: policies, windows, steps and bounds in place of the configured ones.

`parley.dev/config` is JSON with `policies` and `windows`, as in the settings file, and `tied`; `parley.dev/unit` is JSON with the steps,
`{cpu, memory}`; `parley.dev/bounds` is JSON with `min` and `max`, each `{cpu, memory}`. Of a step, a minimum and a maximum either part may
be left out. `parley.dev/metrics-plugin` names a plugin. `parley.dev/priority` is a whole number, `parley.dev/yield` a `YieldMode`. For NeonVM objects the published `autoscaling.neon.tech/config` and `…/bounds` are
read if ours say nothing (reference/neon.md 6.2). Faults are reported and ignored; nothing is raised. Sources leave out wrong parts
(`checks`), and describe the VM with the parts that were valid before.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, Final

from pydantic import BeforeValidator, ValidationError

from agent.core.model import YieldMode
from agent.core.policies.combined import Combined
from agent.daemon import policies, windows
from agent.daemon.node_settings import plugin_name
from agent.daemon.policies import PolicyRegistry
from agent.daemon.windows import Timed
from agent.sources.file import VmSettings
from hosting.amounts import share
from hosting.kubernetes import virtual_machines
from hosting.kubernetes.annotations import Checks, bounds, mapping, short, step, tied
from hosting.kubernetes.names import CONFIG, METRICS_PLUGIN, NEON_CONFIG, SUB_PRIORITY, YIELD
from hosting.settings import FaultsError, Settings, check, listed
from protocol import values
from protocol.extension import MAX_PRIORITY, MIN_PRIORITY
from protocol.values import Bounds


@dataclass(frozen=True, slots=True)
class Overrides:
    """The settings of one VM that its annotations replace; None if they give no usable value."""

    policies: Combined | None = None
    windows: tuple[Timed, ...] | None = None
    bounds: Bounds | None = None
    step: values.Resources | None = None
    is_tied: bool | None = None
    metrics_plugin: str | None = None
    """Empty for the exporter."""
    priority: int | None = None
    yields: YieldMode | None = None


@dataclass(frozen=True, slots=True)
class VmDefaults:
    """The settings of a VM without annotations. `policies` is the list of the settings file. For an object that is a NeonVM
    `VirtualMachine` (`is_neonvm`) the published names are read too, and its resources are always tied."""

    bounds: Bounds
    slot_bytes: int
    step: values.Resources
    policies: Sequence[Any] = policies.DEFAULT
    is_neonvm: bool = False


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
    """The replaced settings, and every fault as a text that begins with the annotation's name."""
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
            found = replace(
                found, policies=_neon_config(annotations, configured.policies, registry, faults, faults)
            )
        if found.is_tied is False:
            faults.append(f"{CONFIG}: tied: must be true, because the resources of a NeonVM are tied")
        found = replace(found, is_tied=True)
    return (
        replace(
            found,
            bounds=found_bounds,
            step=found_step,
            metrics_plugin=_metrics_plugin(annotations, registry, faults),
            priority=_priority(annotations, faults),
            yields=_yields(annotations, faults),
        ),
        faults,
    )


def checks(registry: PolicyRegistry, chosen: Sequence[Any]) -> Checks:
    """The agent's own checks, beside the readers that it shares with the scheduler; `chosen` are the policies of the settings file."""
    return {
        CONFIG: lambda found, faults: _config(found, registry, faults),
        METRICS_PLUGIN: lambda found, faults: _metrics_plugin(found, registry, faults),
        SUB_PRIORITY: _priority,
        YIELD: _yields,
        NEON_CONFIG: lambda found, faults: _neon_config(found, chosen, registry, faults, []),
    }


def faults_of_vms(data: Mapping[Any, Any], registry: PolicyRegistry) -> list[str]:
    """The faults in the annotations of a raw settings file's VMs. An entry that is no valid VM is skipped: other checks tell its faults."""
    faults: list[str] = []
    for index, entry in enumerate(listed(data, "vms")):
        if not isinstance(entry, dict) or not entry.get("annotations"):
            continue
        try:
            vm = VmSettings.model_validate(entry)
        except ValidationError:
            continue
        defaults = VmDefaults(Bounds(vm.min, vm.max), vm.slot_bytes, vm.compute_unit)
        faults += (
            f"vms[{index}].annotations: {fault}" for fault in read(vm.annotations, defaults, registry)[1]
        )
    return faults


def _config(annotations: Mapping[str, object], registry: PolicyRegistry, faults: list[str]) -> Overrides:
    """Policies as a whole, because a goal without one of them would be lower than was asked for; windows one by one."""
    data = mapping(annotations, CONFIG, faults)
    chosen: Combined | None = None
    open_at: tuple[Timed, ...] | None = None
    is_tied = tied(data, faults)
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
        elif key != "tied":
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


def _priority(annotations: Mapping[str, object], faults: list[str]) -> int | None:
    text = annotations.get(SUB_PRIORITY)
    if text is None:
        return None
    number = int(str(text)) if re.fullmatch(r"[+-]?[0-9]{1,10}", str(text)) else None
    if number is None or not MIN_PRIORITY <= number <= MAX_PRIORITY:
        rule = f"must be a whole number from {MIN_PRIORITY} to {MAX_PRIORITY}"
        faults.append(f"{SUB_PRIORITY}: {rule} (found {short(text)!r})")
        return None
    return number


def _yields(annotations: Mapping[str, object], faults: list[str]) -> YieldMode | None:
    text = annotations.get(YIELD)
    if text is None:
        return None
    try:
        return YieldMode(str(text))
    except ValueError:
        words = ", ".join(YieldMode)
        faults.append(f"{YIELD}: must be one of {words} (found {short(text)!r})")
        return None


def _neon_config(
    annotations: Mapping[str, object],
    configured: Sequence[Any],
    registry: PolicyRegistry,
    faults: list[str],
    unused: list[str],
) -> Combined | None:
    """The configured policies with the published targets in `utilisation`; each value counts by itself.

    Values without an effect here are told in `unused`: other releases of the published agent know more.
    """
    args: dict[str, float] = {}
    for key, value in mapping(annotations, NEON_CONFIG, faults).items():
        if key in _NEON_UNUSED:
            if value is not False:
                unused.append(f"{NEON_CONFIG}: {key}: has no effect here")
        elif key not in _NEON_SHARES:
            unused.append(f"{NEON_CONFIG}: {short(key)}: there is no such setting")
        else:
            wrong = _share_faults(value, key, args)
            faults += (f"{NEON_CONFIG}: {key}{fault.removeprefix('share')}" for fault in wrong)
    if not args:
        return None
    chosen, is_used = [], False
    for item in configured:
        entry = dict(item) if isinstance(item, Mapping) else {"name": item}
        if entry.get("name") == "utilisation":
            entry["args"], is_used = {**entry.get("args", {}), **args}, True
        chosen.append(entry)
    if not is_used:
        unused.append(f"{NEON_CONFIG}: has no effect, because the policy utilisation is not in use")
        return None
    try:
        return policies.build(chosen, registry, f"{NEON_CONFIG}: policies")
    except FaultsError as error:
        faults += error.faults
        return None


def _share_faults(value: object, key: str, args: dict[str, float]) -> list[str]:
    """Adds the published share to `args`; else returns its faults."""
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
