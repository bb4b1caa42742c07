"""Applies readings of the load, and the answers of policies in processes of their own."""

import math
from dataclasses import dataclass
from typing import Final

from msgspec.structs import replace

from agent.core import events, on_informant
from agent.core.model import Sample, Vm, VmKind, load_between
from agent.core.policies.combined import Combined, tied
from agent.core.policies.remembered import Remembered, remember
from agent.core.policies.values import MILLION, Goal, Load, PluginAnswer, Sizing
from agent.core.policies.windows import NO_LIMITS
from agent.core.state import LoadReading, MetricsState, PluginPoliciesState, PolicyQuestion, RunnerState
from agent.core.timing import Timing
from protocol.texts import counted
from protocol.values import ZERO, Resources

LATE_S: Final = 2.0
"""A reading may have been taken so much before it was received: the time between two readings is known no better."""
BURST: Final = 8
"""A pod without limits, or with higher ones than its requests, may use more than its size. If nobody tells how much, so many times
its maximum are believed."""
_MACHINES: Final = (VmKind.QEMU, VmKind.NEONVM)


@dataclass(frozen=True, slots=True)
class Usable:
    """The most that a VM can have used between two readings: CPUs, and bytes of memory; None if that is not known."""

    cpus: float
    memory_bytes: int | None


def usable(vm: Vm, had: Resources, before: Sample | None, after: Sample) -> Usable:
    """The most that `vm` can have used. `had` is the most that it had since the reading before; zero if that is not known.

    A machine of its own has nothing beyond that. If a guest tells its CPUs (those of its limits, of a pod), it tells its memory as
    well, and both are believed; else the VM's maximum counts.
    """
    most = vm.bounds.max.max(had)
    told = [each.cpus for each in (before, after) if each is not None and each.cpus is not None]
    if vm.kind in _MACHINES:
        has = most if had == ZERO else had
        return Usable(max([math.ceil(has.vcpu_milli / 1000), *told]), has.memory_bytes)
    if told:
        return Usable(max([most.vcpu_milli / 1000, *told]), None)
    times = BURST if vm.kind is VmKind.POD else 1
    return Usable(most.vcpu_milli / 1000 * times, most.memory_bytes * times)


def plausible(load: Load, most: Usable, before: Sample | None, after: Sample) -> tuple[Load, str]:
    """The load without figures that cannot be true, and why they cannot; empty if all of them can."""
    why, used = [], load.memory_used()
    if load.busy_micro is not None and before is not None:
        span_s = after.at_s - before.at_s
        if load.busy_micro * span_s > most.cpus * MILLION * (span_s + LATE_S):
            why.append(f"{load.busy_micro / MILLION:.0f} busy CPUs, of {counted(most.cpus, 'CPU')} at most")
            load = replace(load, busy_micro=None)
    if used is not None and most.memory_bytes is not None and used > most.memory_bytes:
        why.append(f"{_mib(used)} MiB of memory in use, of {_mib(most.memory_bytes)} MiB at most")
        load = replace(load, memory_total=None, memory_available=None)
    return load, f"implausible, and not counted: {'; '.join(why)}" if why else ""


def _mib(amount: int) -> int:
    return -(-amount // 2**20)


HISTORY_S: Final = 60.0
MAX_HISTORY: Final = 64
"""Samples; with shorter periods the history is shorter than a minute."""


def read(
    state: RunnerState, event: events.MetricsRead, now_s: float, timing: Timing, policy: Combined
) -> RunnerState:
    """A reading. Counters of another source say nothing together with those before: each source has its own history, so that a
    plugin that fails every other time leaves the load known."""
    link, known_s = state.metrics, event.sample.at_s - HISTORY_S
    history = tuple(each for each in link.history if each.sample.at_s >= known_s)
    known = tuple(each.sample for each in history if each.source == event.source)
    told = load_between(known, event.sample)
    before = known[-1] if known else None
    most = usable(state.vm, _had_since(before, history, link.had), before, event.sample)
    load, implausible = plausible(told, most, before, event.sample)
    how, size, unit = policy.remembering, state.in_use(), state.unit
    remembered, policies, need = remember(link.remembered, load, now_s, how), state.policies, link.need
    # If the exporter counts CPU time, the first sample alone says nothing; load averages would be a worse guess.
    is_first_of_pair = event.sample.cpu_busy_s is not None and told.busy_micro is None
    if size != ZERO and not is_first_of_pair:
        asked = PolicyQuestion(remembered.fill(load, now_s, how), Sizing(size, unit, state.vm.bounds))
        # The first answer of plugins is waited for, within its deadline: a built-in goal would stay for the down window.
        is_waiting = bool(policy.plugins) and policies.answered_s is None and policies.asked is None
        if not is_waiting:
            answers = policies.fresh(unit.step, now_s, timing.metrics_stale_s)
            remembered, need = _with_goal(remembered, policy, asked, answers, now_s, timing)
        if policy.plugins:
            policies = replace(policies, next=asked)
    link = MetricsState(
        next_read_s=now_s + timing.metrics_s,
        history=(*history, LoadReading(event.source, event.sample, link.had))[-MAX_HISTORY:],
        had=size,
        remembered=remembered,
        need=need,
        load=load,
        read_s=now_s,
        fault="; ".join(text for text in (event.fault, implausible) if text),
    )
    informant = on_informant.load_read(state.informant, load)
    return replace(state, metrics=link, policies=policies, informant=informant)


def _had_since(before: Sample | None, history: tuple[LoadReading, ...], had: Resources) -> Resources:
    """The most that was in use since the sample `before`, with the amount that it `had` since the last reading of any source."""
    for each in reversed(history):
        if each.sample is before:
            break
        had = had.max(each.had)
    return had


def failed(state: RunnerState, event: events.MetricsFailed, now_s: float, timing: Timing) -> RunnerState:
    failures = state.metrics.failures + 1
    wait_s = max(timing.metrics_s, timing.retry_after_s(failures, event.chance))
    link = replace(
        state.metrics, is_reading=False, failures=failures, next_read_s=now_s + wait_s, fault=event.error
    )
    state = replace(state, metrics=link)
    if event.is_lost and not state.informant.is_calling:
        return on_informant.failed(
            state, event.error, is_lost=True, now_s=now_s, timing=timing, chance=event.chance
        )
    return state


def asked(state: RunnerState, event: events.AskPolicies) -> RunnerState:
    assert state.policies.asked is None, "policies are asked already"
    policies = replace(state.policies, asked=PolicyQuestion(event.load, event.sizing), next=None)
    return replace(state, policies=policies)


def answered(
    state: RunnerState, event: events.PoliciesAnswered, now_s: float, timing: Timing, policy: Combined
) -> RunnerState:
    """The goal with the answers. If the load was read again meanwhile, it is the goal for that."""
    link = state.policies
    assert link.asked is not None, "an answer to nothing"
    step = link.asked.sizing.unit.step
    policies = PluginPoliciesState(None, link.next, event.answers, step, now_s)
    newest = link.next or link.asked
    answers = policies.fresh(newest.sizing.unit.step, now_s, timing.metrics_stale_s)
    remembered, need = _with_goal(state.metrics.remembered, policy, newest, answers, now_s, timing)
    metrics = replace(state.metrics, remembered=remembered, need=need)
    return replace(state, policies=policies, metrics=metrics)


def _with_goal(
    remembered: Remembered,
    policy: Combined,
    question: PolicyQuestion,
    answers: tuple[PluginAnswer, ...],
    now_s: float,
    timing: Timing,
) -> tuple[Remembered, Goal]:
    """The memory with one more goal, and the goal without comfort."""
    load: Load = replace(question.load, answers=answers) if answers else question.load
    goal, need = policy.goal(load, question.sizing), policy.need(load, question.sizing)
    return remembered.with_goal(goal, question.sizing.unit, now_s, timing.down_window_s), need


def goal_of(state: RunnerState) -> Goal | None:
    """The highest goal of the down window for each resource, within the time windows that are open: growth counts at
    once, a lower goal when the down window has passed. Of a tied VM the higher goal counts for both resources."""
    return _limited(state, state.metrics.remembered.goals.highest(state.unit))


def need_of(state: RunnerState) -> Goal | None:
    """The last goal without comfort, within the time windows that are open."""
    return _limited(state, state.metrics.need)


def _limited(state: RunnerState, goal: Goal | None) -> Goal | None:
    size, unit = state.in_use(), state.unit
    if goal is None:
        return None
    if not unit.is_apart:
        both = tied(goal.cpu, goal.memory)
        goal = Goal(both, both)
    if size == ZERO or state.limits == NO_LIMITS:
        return goal
    return state.limits.apply(goal, Sizing(size, unit, state.vm.bounds))
