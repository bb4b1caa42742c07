"""The view of one VM: lines from `/v1/vms/NAMESPACE/NAME` of its agent. Pure."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal
from urllib.parse import quote

from parley.top.texts import MAX_LINE, amount_text, clean, figure, items, kind, mapping, number

MAX_EVENTS: Final = 64
MAX_LISTED: Final = 32

Kind = Literal["heading", "plain", "fault"]


@dataclass(frozen=True, slots=True)
class DetailLine:
    """A line, and its kind."""

    text: str
    kind: Kind = "plain"


def path(vm: str) -> str | None:
    """The path of a VM's document; None for a name that no path can carry."""
    namespace, _, name = vm.partition("/")
    if {namespace, name} & {"", ".", ".."}:
        return None
    return "/v1/vms/" + "/".join(quote(part, safe="", errors="replace") for part in (namespace, name))


def lines(document: Mapping[str, Any]) -> list[DetailLine]:
    """One VM in full: its amounts, the plan, the reasons, and the last events."""
    return [*_amounts(document), *_plan(document), *_reasons(document), *_journal(document)]


def _pair(name: str, text: str) -> DetailLine:
    return DetailLine(f"  {name:<10} {text}")


def _seconds(value: object, digits: int = 1) -> str:
    found = number(value)
    return f"{figure(found, digits)} s" if found is not None else "-"


def _texts(value: object) -> list[str]:
    return [text for item in items(value, MAX_LISTED) if (text := clean(item, MAX_LINE))]


def _amounts(vm: Mapping[str, Any]) -> Iterator[DetailLine]:
    why = "; ".join(_texts(vm.get("stateReasons")))
    yield _pair("state", f"{clean(vm.get('state')) or '-'}{f': {why}' if why else ''}")
    for name in ("size", "target"):
        yield _pair(name, amount_text(vm.get(name)))
    yield from _goal(vm)
    for name in ("permit", "held"):
        yield _pair(name, amount_text(vm.get(name)))
    bounds = mapping(vm.get("bounds"))
    unit = amount_text(vm.get("computeUnit"))
    yield _pair(
        "bounds",
        f"{amount_text(bounds.get('min'))} to {amount_text(bounds.get('max'))}, in units of {unit}",
    )
    load = mapping(vm.get("load"))
    busy, average = number(load.get("busyCPUs")), number(load.get("load1"))
    parts = [f"{figure(busy)} CPUs busy"] if busy is not None else []
    parts += [f"load average {figure(average)}"] if average is not None else []
    used = number(load.get("memoryUsed"))
    parts += [f"{figure(used / 2**30)} GiB used"] if used is not None else []
    age = f" ({_seconds(vm.get('metricsAgeSeconds'))} ago)" if parts else ""
    yield _pair("load", f"{', '.join(parts) or '-'}{age}")
    yield _pair("informant", clean(vm.get("informant")) or "-")
    counts = mapping(vm.get("counts"))
    refusals = mapping(counts.get("refusals"))
    refused = ", ".join(f"{clean(code)} {_whole(many)}" for code, many in list(refusals.items())[:MAX_LISTED])
    yield _pair(
        "so far",
        f"permits {_whole(counts.get('permits'))}, resizes {_whole(counts.get('resizes'))}, "
        f"refusals: {refused or 'none'}",
    )
    for fault in _texts(vm.get("faults")):
        yield DetailLine(f"  fault      {fault}", "fault")


def _goal(vm: Mapping[str, Any]) -> Iterator[DetailLine]:
    """The goal, and a line with the reason for each resource where the agent gives them."""
    tied_or_apart = kind(vm)
    yield _pair("goal", f"{amount_text(vm.get('goal'))}{f', {tied_or_apart}' if tied_or_apart else ''}")
    goal, reasons = mapping(vm.get("goal")), mapping(vm.get("goalReasons"))
    for name, label in (("cpu", "CPU"), ("memory", "memory")):
        reason = clean(reasons.get(name), MAX_LINE)
        if reason:
            yield _pair(f"… {label}", f"{clean(goal.get(name)) or '-'}: {reason}")


def _whole(value: object) -> str:
    found = number(value)
    return figure(found, 0) if found is not None else "-"


def _plan(vm: Mapping[str, Any]) -> Iterator[DetailLine]:
    yield DetailLine("Plan", "heading")
    plan = mapping(vm.get("plan"))
    if not plan:
        yield DetailLine("  none yet")
        return
    yield _pair("wants", f"{amount_text(plan.get('desired'))}: {clean(plan.get('reason'), MAX_LINE) or '-'}")
    yield _pair("actions", ", ".join(_texts(plan.get("actions"))) or "none")
    yield _pair("next look", f"in {_seconds(plan.get('nextLookSeconds'), 2)}")


def _reasons(vm: Mapping[str, Any]) -> Iterator[DetailLine]:
    yield DetailLine("Reasons for less than was asked", "heading")
    found = items(vm.get("reasons"), MAX_LISTED)
    if not found:
        yield DetailLine("  none")
    for item in map(mapping, found):
        again = number(item.get("retryAfterSeconds"))
        when = f" (again in {_seconds(again)})" if again is not None else ""
        resource = clean(item.get("resource"))
        code = f"{clean(item.get('code')) or '-'}{f' ({resource})' if resource else ''}"
        yield DetailLine(f"  {code}: {clean(item.get('message'), MAX_LINE)}{when}")


def _journal(vm: Mapping[str, Any]) -> Iterator[DetailLine]:
    """The latest first: the agent writes it last."""
    yield DetailLine("Journal, the latest first", "heading")
    events = vm.get("journal")
    tail = events[-MAX_EVENTS:] if isinstance(events, list) else []
    if not tail:
        yield DetailLine("  nothing yet")
    for item in map(mapping, reversed(tail)):
        ago = number(item.get("secondsAgo"))
        when = f"{figure(ago, 3):>9} s ago" if ago is not None else f"{'-':>15}"
        yield DetailLine(f"{when}  {clean(_event(item), MAX_LINE)}")


def _event(item: Mapping[str, Any]) -> str:
    """The kind of an event and its fields as JSON."""
    kind, fields = clean(item.get("event"), MAX_LINE), mapping(item.get("fields"))
    return f"{kind} {json.dumps(fields, ensure_ascii=False)}" if fields else kind
