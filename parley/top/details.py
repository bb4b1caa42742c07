"""The view of one VM: lines from `/v1/vms/NAMESPACE/NAME` of its agent. Pure."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, Literal

from parley.top.texts import MAX_LINE, amount_text, clean, figure, kind
from protocol.agent_pages import GoalReasons, LoadShown, VmInFull

MAX_EVENTS: Final = 64
MAX_LISTED: Final = 32

Kind = Literal["heading", "plain", "fault"]


@dataclass(frozen=True, slots=True)
class DetailLine:
    text: str
    kind: Kind = "plain"


def lines(vm: VmInFull) -> list[DetailLine]:
    """One VM in full: its amounts, the plan, the reasons, and the last events."""
    return [*_amounts(vm), *_plan(vm), *_reasons(vm), *_journal(vm)]


def _pair(name: str, text: str) -> DetailLine:
    return DetailLine(f"  {name:<10} {text}")


def _seconds(value: float | None, digits: int = 1) -> str:
    return f"{figure(value, digits)} s" if value is not None else "-"


def _amounts(vm: VmInFull) -> Iterator[DetailLine]:
    why = "; ".join(vm.state_reasons[:MAX_LISTED])
    yield _pair("state", f"{vm.state or '-'}{f': {why}' if why else ''}")
    yield _pair("size", amount_text(vm.size))
    yield _pair("target", amount_text(vm.target))
    yield from _goal(vm)
    yield _pair("permit", amount_text(vm.permit))
    yield _pair("held", amount_text(vm.held))
    least, most = (vm.bounds.min, vm.bounds.max) if vm.bounds is not None else (None, None)
    unit = amount_text(vm.compute_unit)
    yield _pair("bounds", f"{amount_text(least)} to {amount_text(most)}, in units of {unit}")
    load = vm.load or LoadShown()
    parts = [f"{figure(load.busy_cpus)} CPUs busy"] if load.busy_cpus is not None else []
    parts += [f"load average {figure(load.load1)}"] if load.load1 is not None else []
    parts += [f"{figure(load.memory_used / 2**30)} GiB used"] if load.memory_used is not None else []
    age = f" ({_seconds(vm.metrics_age_seconds)} ago)" if parts else ""
    yield _pair("load", f"{', '.join(parts) or '-'}{age}")
    yield _pair("informant", vm.informant or "-")
    counts = vm.counts
    refused = ", ".join(f"{code} {many}" for code, many in list(counts.refusals.items())[:MAX_LISTED])
    yield _pair(
        "so far", f"permits {counts.permits}, resizes {counts.resizes}, refusals: {refused or 'none'}"
    )
    for fault in vm.faults[:MAX_LISTED]:
        yield DetailLine(f"  fault      {fault}", "fault")


def _goal(vm: VmInFull) -> Iterator[DetailLine]:
    """The goal, and a line with the reason for each resource if the agent gives them."""
    tied_or_apart = kind(vm)
    yield _pair("goal", f"{amount_text(vm.goal)}{f', {tied_or_apart}' if tied_or_apart else ''}")
    reasons, goal = vm.goal_reasons or GoalReasons(), vm.goal
    if reasons.cpu:
        yield _pair("… CPU", f"{goal.cpu if goal is not None else '-'}: {reasons.cpu}")
    if reasons.memory:
        yield _pair("… memory", f"{goal.memory if goal is not None else '-'}: {reasons.memory}")


def _plan(vm: VmInFull) -> Iterator[DetailLine]:
    yield DetailLine("Plan", "heading")
    plan = vm.plan
    if plan is None:
        yield DetailLine("  none yet")
        return
    yield _pair("wants", f"{amount_text(plan.desired)}: {plan.reason or '-'}")
    yield _pair("actions", ", ".join(plan.actions) or "none")
    yield _pair("next look", f"in {_seconds(plan.next_look_seconds, 2)}")


def _reasons(vm: VmInFull) -> Iterator[DetailLine]:
    yield DetailLine("Reasons for less than was asked", "heading")
    if not vm.reasons:
        yield DetailLine("  none")
    for reason in vm.reasons[:MAX_LISTED]:
        again = reason.retry_after_seconds
        when = f" (again in {_seconds(again)})" if again is not None else ""
        code = f"{reason.code or '-'}{f' ({reason.resource})' if reason.resource else ''}"
        yield DetailLine(f"  {code}: {reason.message}{when}")


def _journal(vm: VmInFull) -> Iterator[DetailLine]:
    """The latest first: the agent writes it last."""
    yield DetailLine("Journal, the latest first", "heading")
    if not vm.journal:
        yield DetailLine("  nothing yet")
    for event in reversed(vm.journal[-MAX_EVENTS:]):
        fields = f" {json.dumps(event.fields, ensure_ascii=False)}" if event.fields else ""
        yield DetailLine(f"{figure(event.seconds_ago, 3):>9} s ago  {clean(event.event + fields, MAX_LINE)}")
