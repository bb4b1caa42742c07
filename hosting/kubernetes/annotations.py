"""Annotations that agent and scheduler must read alike: bounds and steps in JSON, names that are misspelt, and which texts count.

`parley.dev/unit` holds the steps, `{cpu, memory}`; `parley.dev/bounds` holds `min` and `max`, each `{cpu, memory}`. Of a
step, a minimum and a maximum either part may be left out. `autoscaling.neon.tech/bounds` is the published form for NeonVM objects
(reference/neon.md 6.2). A wrong part is ignored, and becomes a fault, a text that begins with the annotation's name.

An annotation with faults is never ignored as if it were not there, because without it the VM might take more: the last text without
faults stays. Agent and scheduler remember `Settled.valid` for each object (by UID), and pass it on at the next look.
"""

import contextlib
import difflib
import json
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Final, TypeAlias

from hosting.amounts import Cpu, Memory
from hosting.kubernetes import names, objects
from hosting.kubernetes.resources import Manifest
from hosting.settings import FaultsError, Settings, check
from protocol import values
from protocol.texts import clean
from protocol.values import Bounds

MAX_BYTES: Final = 64 * 1024


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


def step(
    annotations: Mapping[str, object], base: values.Resources, faults: list[str]
) -> values.Resources | None:
    """The new steps; a part that is wrong or left out stays as configured."""
    found = base
    for key, value in mapping(annotations, names.UNIT, faults).items():
        if key not in ("cpu", "memory"):
            faults.append(f"{names.UNIT}: {short(key)}: there is no such setting")
            continue
        if value is None:
            continue
        try:
            parts = check({key: value}, _Parts)
        except FaultsError as error:
            faults += (f"{names.UNIT}: {fault}" for fault in error.faults)
            continue
        if not parts.over(found).is_positive():
            faults.append(f"{names.UNIT}: {key}: must be above zero (found {short(value)})")
            continue
        found = parts.over(found)
    return None if found == base else found


def bounds(annotations: Mapping[str, object], base: Bounds, faults: list[str]) -> Bounds | None:
    """The new bounds; a `min` or `max` that is wrong stays as configured, and so does any part that is left out."""
    data, configured = mapping(annotations, names.BOUNDS, faults), {"min": base.min, "max": base.max}
    found: dict[str, values.Resources] = {}
    for key, value in data.items():
        if key not in configured:
            faults.append(f"{names.BOUNDS}: {short(key)}: there is no such setting")
            continue
        try:
            found[key] = check({"amount": value}, _Limit).amount.over(configured[key])
        except FaultsError as error:
            faults += (f"{names.BOUNDS}: {key}{fault.removeprefix('amount')}" for fault in error.faults)
    if not found:
        return None
    return _made(found.get("min", base.min), found.get("max", base.max), names.BOUNDS, faults)


def tied(config: Mapping[str, Any], faults: list[str]) -> bool | None:
    """The member `tied` of `parley.dev/config`; None if it is absent or wrong. The rest of that annotation is the agent's alone."""
    if "tied" not in config:
        return None
    try:
        return check({"tied": config["tied"]}, _Tie).tied
    except FaultsError as error:
        faults += (f"{names.CONFIG}: {fault}" for fault in error.faults)
        return None


def neon_bounds(annotations: Mapping[str, object], slot_bytes: int, faults: list[str]) -> Bounds | None:
    """The bounds of the published annotation, whose memory is in whole slots."""
    if names.NEON_BOUNDS not in annotations:
        return None
    data = mapping(annotations, names.NEON_BOUNDS, faults, is_reported=True)
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
        faults += (f"{names.NEON_BOUNDS}: {fault}" for fault in wrong)
        return None
    return _made(amounts[0], amounts[1], names.NEON_BOUNDS, faults)


def _made(least: values.Resources, most: values.Resources, name: str, faults: list[str]) -> Bounds | None:
    try:
        return Bounds(least, most)
    except ValueError as error:
        faults.append(f"{name}: {error}")
        return None


def mapping(
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
            why = f"is not valid JSON: {short(error)}"
    if not isinstance(data, dict) or (is_reported and not data):
        faults.append(f"{name}: {why}")
        return {}
    return data


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        keys = [key for key, _ in pairs]
        double = next(key for key in keys if keys.count(key) > 1)
        raise ValueError(f"the key {short(double)} comes more than once")
    return found


def _refuse(text: str) -> Any:
    raise ValueError(f"{text} is no number of JSON")


def short(value: object) -> str:
    """The written value, on one line and cut, for a message."""
    return clean(str(value), 60)


_PREFIX: Final = f"{names.GROUP}/"
_MAX_TOLD: Final = 5


def misspelt(manifest: Manifest) -> tuple[str, ...]:
    """Labels and annotations of our group that have no meaning, as faults for a person.

    An unknown annotation is a fault, whatever its name. An unknown label is one only if it is close to a known name, because labels of
    our group may be those of somebody's plugin.
    """
    found = (*_annotations(manifest), *_labels(manifest))
    more = len(found) - _MAX_TOLD
    return (
        found
        if more <= 0
        else (*found[:_MAX_TOLD], f"and {more} more names of {_PREFIX} that have no meaning")
    )


def _annotations(manifest: Manifest) -> Iterator[str]:
    for name in _unknown(objects.annotations(manifest), names.ANNOTATIONS):
        if name in names.LABELS:
            yield f"{name} has no effect as an annotation: it is a label"
        else:
            hint = _closest(name, names.ANNOTATIONS | names.LABELS)
            yield f"{short(name)}: there is no such annotation{f', perhaps {hint} is meant' if hint else ''}"


def _labels(manifest: Manifest) -> Iterator[str]:
    for name in _unknown(objects.labels(manifest), names.LABELS):
        if name in names.ANNOTATIONS:
            yield f"{name} has no effect as a label: it is an annotation"
        elif hint := _closest(name, names.LABELS):
            yield f"{short(name)}: there is no such label, perhaps {hint} is meant"


def _unknown(found: Collection[str], known: Collection[str]) -> Iterator[str]:
    return (name for name in sorted(found) if name.startswith(_PREFIX) and name not in known)


def _closest(name: str, known: Collection[str]) -> str:
    """The known name that is most like it; empty if none is."""
    ours = {each.removeprefix(_PREFIX): each for each in sorted(known)}
    found = difflib.get_close_matches(name.removeprefix(_PREFIX), ours, 1, 0.7)
    return ours[found[0]] if found else ""


Check: TypeAlias = Callable[[Mapping[str, str], list[str]], object]
"""Reads one annotation, and appends its faults as texts for a person."""
Checks: TypeAlias = Mapping[str, Check]
"""By the annotation's name."""
Valid: TypeAlias = Mapping[str, str]
"""The texts that count, of annotations that are checked; one that is not there did not exist."""


@dataclass(frozen=True, slots=True)
class Settled:
    """The annotations that count. `faults` are texts for a person. `unknown` are the names of those with faults of which no text is known that
    is valid now: the object keeps its size until they are mended. `valid` is for the next look; None if nothing was known before."""

    annotations: Mapping[str, str]
    valid: Valid | None
    faults: tuple[str, ...] = ()
    unknown: tuple[str, ...] = ()


def settle(
    found: Mapping[str, str], checks: Checks, last: Valid | None, narrow: Collection[str] = ()
) -> Settled:
    """`last` has the annotations that were valid before, None if they are unknown. `narrow` are the annotations without which less is
    allowed: those are never unknown."""
    kept, faults, unknown = dict(found), list[str](), list[str]()
    for name, read in checks.items():
        if not (wrong := _wrong(name, found, read)):
            continue
        faults += wrong
        before = last.get(name) if last is not None else None
        if before is not None and not _wrong(name, {**found, name: before}, read):
            kept[name] = before
            continue
        del kept[name]
        if name not in narrow and (last is None or before is not None):
            unknown.append(name)
    valid = {name: kept[name] for name in checks if name in kept}
    if last is not None:  # a value that was valid once may be so again
        valid |= {name: last[name] for name in unknown}
    elif unknown:
        return Settled(kept, None, tuple(faults), tuple(unknown))
    return Settled(kept, valid, tuple(faults), tuple(unknown))


def stays(unknown: Collection[str]) -> str:
    """Why an object with `unknown` annotations keeps its size, for a person."""
    return f"no valid value of {', '.join(unknown)} is known: the size stays as it is until that is mended"


def _wrong(name: str, found: Mapping[str, str], check: Check) -> list[str]:
    wrong: list[str] = []
    if name in found:
        check(found, wrong)
    return wrong
