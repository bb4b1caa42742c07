"""What one VM's annotations say about its scaling: policies, windows, steps and bounds in place of the configured ones.

`parley.dev/config` is JSON with `policies` and `windows`, as in the settings file, and `tied`; `parley.dev/unit` is JSON
with the steps, `{cpu, memory}`; `parley.dev/bounds` is JSON with `min` and `max`, each `{cpu, memory}`. Of a step, a
minimum and a maximum either part may be left out. For NeonVM objects the published `autoscaling.neon.tech/config` and `…/bounds`
are read where ours say nothing (reference/neon.md 6.2). What is wrong is reported and ignored; nothing is raised.
"""

import contextlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, Final

from pydantic import BeforeValidator

from agent.core.policies.combined import Combined
from agent.daemon import policies, windows
from agent.daemon.policies import PolicyRegistry
from agent.daemon.windows import Timed
from hosting.amounts import Cpu, Memory, share
from hosting.settings import FaultsError, Settings, check
from protocol import values
from protocol.values import Bounds

CONFIG: Final = "parley.dev/config"
UNIT: Final = "parley.dev/unit"
BOUNDS: Final = "parley.dev/bounds"
NEON_CONFIG: Final = "autoscaling.neon.tech/config"
NEON_BOUNDS: Final = "autoscaling.neon.tech/bounds"
MAX_BYTES: Final = 64 * 1024


@dataclass(frozen=True, slots=True)
class Overrides:
    """What the annotations of one VM replace; None where they give no usable value."""

    policies: Combined | None = None
    windows: tuple[Timed, ...] | None = None
    bounds: Bounds | None = None
    step: values.Resources | None = None
    is_tied: bool | None = None


@dataclass(frozen=True, slots=True)
class VmDefaults:
    """The settings of a VM without annotations. `policies` is the list of the settings file. For an object that is a NeonVM
    `VirtualMachine` (`is_neonvm`) the published names are read too, and its resources are always tied."""

    bounds: Bounds
    slot_bytes: int
    step: values.Resources
    policies: Sequence[Any] = policies.DEFAULT
    is_neonvm: bool = False


class _Parts(Settings):
    """An amount of one resource, or of both."""

    cpu: Annotated[int, Cpu] | None = None
    memory: Annotated[int, Memory] | None = None

    @classmethod
    def rules(cls, found: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
        """One of the two is given."""
        if found.get("cpu", 0) is None and found.get("memory", 0) is None:
            yield "", "needs cpu or memory"

    def over(self, base: values.Resources) -> values.Resources:
        """The amount, with the parts of `base` that are left out."""
        return values.Resources(
            base.vcpu_milli if self.cpu is None else self.cpu,
            base.memory_bytes if self.memory is None else self.memory,
        )


class _Limit(Settings):
    amount: _Parts


class _Tie(Settings):
    tied: bool


class _NeonAmount(Settings):
    cpu: Annotated[int, Cpu]
    mem: Annotated[int, Memory]


class _NeonBounds(Settings):
    """Both bounds, as the published reader demands."""

    min: _NeonAmount
    max: _NeonAmount


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
    bounds, step = (
        _bounds(annotations, configured.bounds, faults),
        _step(annotations, configured.step, faults),
    )
    if configured.is_neonvm:
        if found.policies is None:
            found = replace(found, policies=_neon_config(annotations, configured, registry, faults))
        if bounds is None:
            bounds = _neon_bounds(annotations, configured.slot_bytes, faults)
        if found.is_tied is False:
            faults.append(f"{CONFIG}: tied: must be true, because the resources of a NeonVM are tied")
        found = replace(found, is_tied=True)
    return replace(found, bounds=bounds, step=step), faults


def _config(annotations: Mapping[str, object], registry: PolicyRegistry, faults: list[str]) -> Overrides:
    """Policies as a whole, because a goal without one of them would be lower than was asked for; windows one by one."""
    data = _mapping(annotations, CONFIG, faults)
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
            faults.append(f"{CONFIG}: {_short(key)}: there is no such setting")
    return Overrides(chosen, open_at, is_tied=is_tied)


def _step(
    annotations: Mapping[str, object], base: values.Resources, faults: list[str]
) -> values.Resources | None:
    """The new steps; a part that is wrong or left out stays as configured."""
    found = base
    for key, value in _mapping(annotations, UNIT, faults).items():
        if key not in ("cpu", "memory"):
            faults.append(f"{UNIT}: {_short(key)}: there is no such setting")
            continue
        if value is None:
            continue
        try:
            parts = check({key: value}, _Parts)
        except FaultsError as error:
            faults += (f"{UNIT}: {fault}" for fault in error.faults)
            continue
        if not parts.over(found).is_positive():
            faults.append(f"{UNIT}: {key}: must be above zero (found {_short(value)})")
            continue
        found = parts.over(found)
    return None if found == base else found


def _bounds(annotations: Mapping[str, object], base: Bounds, faults: list[str]) -> Bounds | None:
    """The new bounds; a `min` or `max` that is wrong stays as configured, and so does any part that is left out."""
    data, configured = _mapping(annotations, BOUNDS, faults), {"min": base.min, "max": base.max}
    found: dict[str, values.Resources] = {}
    for key, value in data.items():
        if key not in configured:
            faults.append(f"{BOUNDS}: {_short(key)}: there is no such setting")
            continue
        try:
            found[key] = check({"amount": value}, _Limit).amount.over(configured[key])
        except FaultsError as error:
            faults += (f"{BOUNDS}: {key}{fault.removeprefix('amount')}" for fault in error.faults)
    if not found:
        return None
    return _made(found.get("min", base.min), found.get("max", base.max), BOUNDS, faults)


def _neon_bounds(annotations: Mapping[str, object], slot_bytes: int, faults: list[str]) -> Bounds | None:
    if NEON_BOUNDS not in annotations:
        return None
    data = _mapping(annotations, NEON_BOUNDS, faults, is_reported=True)
    if not data:
        return None
    wrong: list[str] = []
    amounts: list[values.Resources] = []
    try:
        check(data, _NeonBounds)
    except FaultsError as error:
        wrong += error.faults
    for name in ("min", "max"):
        with contextlib.suppress(FaultsError):  # told already
            amount = check(data.get(name), _NeonAmount)
            amounts.append(values.Resources(amount.cpu, amount.mem))
            if slot_bytes > 0 and amount.mem % slot_bytes:
                wrong.append(
                    f"{name}.mem: must be a multiple of the memory slot, {slot_bytes} bytes (found {amount.mem})"
                )
    if wrong:
        faults += (f"{NEON_BOUNDS}: {fault}" for fault in wrong)
        return None
    return _made(amounts[0], amounts[1], NEON_BOUNDS, faults)


def _made(least: values.Resources, most: values.Resources, name: str, faults: list[str]) -> Bounds | None:
    try:
        return Bounds(least, most)
    except ValueError as error:
        faults.append(f"{name}: {error}")
        return None


def _neon_config(
    annotations: Mapping[str, object], configured: VmDefaults, registry: PolicyRegistry, faults: list[str]
) -> Combined | None:
    """The configured policies with the published targets in `utilisation`; each value counts by itself."""
    args: dict[str, float] = {}
    for key, value in _mapping(annotations, NEON_CONFIG, faults).items():
        if key in _NEON_UNUSED:
            if value is not False:
                faults.append(f"{NEON_CONFIG}: {key}: has no effect here")
        elif key not in _NEON_SHARES:
            faults.append(f"{NEON_CONFIG}: {_short(key)}: there is no such setting")
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


def _mapping(
    annotations: Mapping[str, object], name: str, faults: list[str], *, is_reported: bool = False
) -> dict[str, Any]:
    """The JSON object of an annotation; empty, with a fault, for anything else. With `is_reported` an empty object is
    a fault."""
    text = annotations.get(name)
    if text is None:
        return {}
    data: object = None
    why = "must be a JSON object"
    if not isinstance(text, str) or len(text) > MAX_BYTES:
        why = f"must be a text of at most {MAX_BYTES} characters"
    else:
        try:
            data = json.loads(text, parse_constant=_refuse, object_pairs_hook=_once)
        except (ValueError, RecursionError) as error:
            why = f"is not valid JSON: {_short(error)}"
    if not isinstance(data, dict) or (is_reported and not data):
        faults.append(f"{name}: {why}")
        return {}
    return data


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        keys = [key for key, _ in pairs]
        double = next(key for key in keys if keys.count(key) > 1)
        raise ValueError(f"the key {_short(double)} comes more than once")
    return found


def _refuse(text: str) -> Any:
    raise ValueError(f"{text} is no number of JSON")


def _short(value: object) -> str:
    return " ".join(str(value).split())[:60]
