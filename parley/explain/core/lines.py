"""The answer as lines for people: at most `MAX_LINES`, the cause in the first two."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from parley.explain.core.causes import binding, cause_of, limits_of
from parley.explain.core.evidence import CauseCode, Evidence, SizeCause
from parley.explain.core.words import (
    holders,
    load_of,
    named,
    over_causes,
    pending_of,
    pool_holders,
    restarts_of,
    seconds,
    told,
    written,
)
from parley.reach.ports import NoAnswer
from parley.top.texts import clean, goal_reasons
from protocol.agent_pages import VmInFull
from protocol.explaining import Explanation, PoolCondition, Presence, ProgressCode
from protocol.pages import DiagnosisShown
from protocol.texts import counted

MAX_LINES: Final = 12
MAX_FAILURES: Final = 7
"""Reasons of a pod that waits to be scheduled, the most frequent ones first."""
_MAX_TEXT: Final = 500
_LABEL: Final = 8
_WAITS: Final = {
    "answer": "a request to the scheduler is under way",
    "metrics": "the agent asks as soon as it has metrics, which this scheduler demands",
    "look": "the agent asks after its next look at the VM",
    "fence": "the agent asks as soon as no command of an earlier life can take effect",
    "takeover": "the agent does not ask while another one owns the VM",
}


@dataclass(frozen=True, slots=True)
class SizeExplanation:
    """The cause, and the lines. `is_known` says that at least one program knows the VM."""

    cause: SizeCause
    lines: tuple[str, ...]
    is_known: bool


def answer(evidence: Evidence) -> SizeExplanation:
    """Why the VM has its size."""
    cause = cause_of(evidence)
    is_known = not (isinstance(evidence.agent, NoAnswer) and isinstance(evidence.scheduler, NoAnswer))
    is_known = is_known or cause.code == CauseCode.NOT_SCALED or evidence.diagnosis is not None
    lines = (_head(evidence, cause), *_details(cause), *(_rest(evidence, cause) if is_known else ()))
    if not is_known:
        lines = (*lines, _line("do", cause.advice.remedy))
    return SizeExplanation(cause, tuple(clean(line, _MAX_TEXT) for line in lines[:MAX_LINES]), is_known)


def _line(label: str, text: str) -> str:
    return f"{label:<{_LABEL}} {text}"


def _head(evidence: Evidence, cause: SizeCause) -> str:
    agent, scheduler = evidence.agent, evidence.scheduler
    has = want = ""
    if isinstance(agent, VmInFull):
        has = written(agent.size) if agent.size is not None else ""
        want = written(agent.goal) if agent.goal is not None and agent.wants_more | agent.wants_less else ""
    elif isinstance(scheduler, Explanation) and scheduler.presence is Presence.LIVE:
        # The permit of a VM that is not settled is nothing yet, which says nothing of its size.
        found = scheduler.size or (scheduler.permit if scheduler.is_settled else None)
        has = written(found) if found is not None else ""
        want = written(scheduler.wanted) if scheduler.wanted is not None and scheduler.limits else ""
        want = want if want != has else ""
    words = " and ".join(
        text for text in (f"wants {want}" if want else "", f"has {has}" if has else "") if text
    )
    return f"{evidence.vm}{' ' if words else ''}{words}: {cause.meaning} ({cause.code})."


def _details(cause: SizeCause) -> tuple[str, ...]:
    return (_line("because", cause.detail),) if cause.detail else ()


def _waits(diagnosis: DiagnosisShown, cause: SizeCause) -> Iterator[str]:
    """Of a pod that waits to be scheduled."""
    yield _line(
        "since",
        f"{seconds(diagnosis.waits_seconds)}, tried last {seconds(diagnosis.tried_seconds_ago)} ago"
        f" (class {diagnosis.rejection})",
    )
    for each in diagnosis.failures[:MAX_FAILURES]:
        by = f"{each.plugin}, " if each.plugin else ""
        yield _line(
            "nodes",
            f"{each.nodes} of {diagnosis.nodes}: {each.reason} ({by}{each.code}, class {each.rejection})",
        )
    left = len(diagnosis.failures) - MAX_FAILURES
    if left > 0:
        yield _line("nodes", f"and {counted(left, 'other reason')}")
    yield _line("do", cause.advice.remedy)


def _rest(evidence: Evidence, cause: SizeCause) -> Iterator[str]:
    if evidence.diagnosis is not None:
        yield from _waits(evidence.diagnosis, cause)
        return
    agent, scheduler = evidence.agent, evidence.scheduler
    facts = agent if isinstance(agent, VmInFull) else None
    told_by = (
        scheduler if isinstance(scheduler, Explanation) and scheduler.presence is Presence.LIVE else None
    )
    yield from _wants(facts, told_by, cause)
    yield from _has(facts, told_by)
    yield from _limits(evidence, cause)
    if told_by is not None:
        yield from _node(told_by)
        yield from _pool(told_by)
    following = _next(evidence, facts)
    if following:
        yield _line("next", following)
    yield _line("do", cause.advice.remedy)
    notes = "; ".join(_notes(evidence, facts, cause))
    if notes:
        yield _line("note", notes)


# ---------------------------------------------------------------- wants, has


def _wants(facts: VmInFull | None, told_by: Explanation | None, cause: SizeCause) -> Iterator[str]:
    if facts is not None:
        why = "; ".join(goal_reasons(facts))
        why = "" if why in cause.detail else why
        yield _line("wants", f"{written(facts.goal)}{f': {why}' if why else ''}")
        load, age_s = load_of(facts), facts.metrics_age_seconds
        if load:
            yield _line("load", f"{load}{f' ({seconds(age_s)} ago)' if age_s is not None else ''}")
    elif told_by is not None and told_by.wanted is not None:
        yield _line(
            "wants",
            f"{written(told_by.wanted)}, asked for {seconds(told_by.asked_seconds_ago)} ago; its agent would know why",
        )


def _has(facts: VmInFull | None, told_by: Explanation | None) -> Iterator[str]:
    if facts is not None:
        parts = [f"size {written(facts.size)}"]
        if facts.target is not None and facts.target != facts.size:
            parts.append(f"target {written(facts.target)}")
        parts.append(f"permit {written(facts.permit) if facts.permit is not None else 'none yet'}")
        if facts.held is not None and facts.held != facts.permit:
            parts.append(f"held {written(facts.held)}")
        if facts.bounds is not None:
            parts.append(f"bounds {written(facts.bounds.min)} to {written(facts.bounds.max)}")
        yield _line("has", ", ".join(parts))
    elif told_by is not None:
        size = f"size {written(told_by.size)}, " if told_by.size is not None else ""
        bounds = f"bounds {written(told_by.minimum)} to {written(told_by.maximum)}"
        yield _line(
            "has", f"{size}permit {written(told_by.permit)}, reserved {written(told_by.reserved)}, {bounds}"
        )


def _limits(evidence: Evidence, cause: SizeCause) -> Iterator[str]:
    """The limits that are not told as the cause already."""
    first = binding(evidence)
    others = [
        f"{each.code} ({told(each)})"
        for each in limits_of(evidence)
        if not (each is first and each.code == cause.code)
    ]
    if others:
        yield _line("limits" if first is not None and first.code != cause.code else "also", "; ".join(others))


# ---------------------------------------------------------------- who holds the room


def _node(told_by: Explanation) -> Iterator[str]:
    room = told_by.room
    if room is None:
        return
    if not room.is_known:
        yield _line("node", f"{room.node}, which the cluster does not show")
        return
    why = f", more than it has because of {over_causes(room)}" if room.over_full_because_of else ""
    kept = f"{written(told_by.reserved)} are kept for this VM"
    yield _line(
        "node", f"{room.node} has {written(room.free)} free of {written(room.reservable)}{why}; {kept}"
    )
    if room.holders:
        yield _line("holders", holders(room.holders, room.more_holders))


def _pool(told_by: Explanation) -> Iterator[str]:
    pool = told_by.pool
    if pool is None:
        return
    held = f"{pool.held_units} of " if pool.most_units is not None else ""
    most = pool.most_units if pool.most_units is not None else pool.held_units
    parts = [f"{pool.pool} holds {held}{counted(most, 'unit')}, this VM {pool.vm_units}"]
    if pool.most_units_per_vm is not None:
        parts.append(f"a VM may hold {pool.most_units_per_vm}")
    if pool.state != PoolCondition.OPEN:
        parts.append(f"{pool.state.value}{f': {told(pool.reason)}' if pool.reason is not None else ''}")
    if pool.holders:
        parts.append(pool_holders(pool))
    yield _line("pool", "; ".join(parts))


# ---------------------------------------------------------------- what comes next


def _next(evidence: Evidence, facts: VmInFull | None) -> str:
    scheduler = evidence.scheduler
    parts = list(_tries(facts)) if facts is not None else []
    first = binding(evidence)
    if first is not None and first.retry_after_seconds:
        parts.append(f"asking may help in {seconds(first.retry_after_seconds)}")
    is_live = isinstance(scheduler, Explanation) and scheduler.presence is Presence.LIVE
    if facts is None and isinstance(scheduler, Explanation) and is_live and scheduler.asked_seconds_ago:
        parts.append(f"its agent asked {seconds(scheduler.asked_seconds_ago)} ago")
    return "; ".join(parts)


def _tries(facts: VmInFull) -> Iterator[str]:
    """The agent's next action, and its time."""
    link, resize, refusal = facts.scheduler, facts.resize, facts.guest.refused_downscale
    if facts.takeover is not None and facts.takeover.next_life_seconds is not None:
        yield f"the agent asks for the VM again in {seconds(facts.takeover.next_life_seconds)}"
    elif link.next_seconds is not None:
        when = f"in {seconds(link.next_seconds)}" if link.next_seconds > 0 else "now"
        yield f"the scheduler is asked again {when}"
    elif link.waits_for:
        yield _WAITS.get(link.waits_for, f"the agent waits for {link.waits_for}")
    elif facts.plan is not None and facts.plan.next_look_seconds is not None:
        yield f"the agent looks again in {seconds(facts.plan.next_look_seconds)}"
    if resize.retry_in_seconds is not None:
        yield f"the resize is tried again in {seconds(resize.retry_in_seconds)}"
    for refused in facts.refused_sizes:
        if refused.retry_in_seconds is not None:
            yield f"{written(refused.target)} is tried again in {seconds(refused.retry_in_seconds)}"
    if refusal is not None:
        yield f"the guest is asked again in {seconds(refusal.retry_in_seconds)}"


# ---------------------------------------------------------------- notes


def _notes(evidence: Evidence, facts: VmInFull | None, cause: SizeCause) -> Iterator[str]:
    """Which program does not answer, and the other things that are worth a look."""
    for each in (evidence.scheduler, evidence.agent):
        if isinstance(each, NoAnswer) and each.fault not in cause.detail:
            yield f"this is told without {'the scheduler' if each is evidence.scheduler else 'its agent'}: {each.fault}"
    if facts is not None:
        yield from _notes_of_agent(facts, cause)
    scheduler = evidence.scheduler
    if isinstance(scheduler, Explanation):
        if scheduler.condition:
            yield scheduler.condition
        if scheduler.is_recommend_only and cause.code not in {"recommend-only", "stopped"}:
            yield "growth is only recommended for it"
        if scheduler.is_growth_stopped and cause.code != "stopped":
            yield "growth is stopped by configuration"
        yield from _migration(scheduler)
        if scheduler.negotiation is not None:
            yield scheduler.negotiation.message


def _notes_of_agent(facts: VmInFull, cause: SizeCause) -> Iterator[str]:
    pending = pending_of(facts)
    if facts.guest.urgent is not None:
        yield f"the guest cannot wait for {named(facts.guest.urgent)}"
    if restarts := restarts_of(facts):
        yield restarts
    for trouble in facts.standing_faults:
        if trouble.message not in cause.detail:
            yield f"{trouble.peer}: {trouble.message}"
    if pending and pending not in cause.detail:
        yield pending
    yield from facts.warnings


def _migration(told_by: Explanation) -> Iterator[str]:
    """The latest outcome of the wish that the VM leaves its node. It limits nothing."""
    said = told_by.migration
    if said is None:
        return
    what = "its migration could not be started: " if said.code == ProgressCode.MIGRATION_FAILED else ""
    wait_s = said.retry_after_seconds
    then = f"; the next one is tried in {seconds(wait_s)} at the earliest" if wait_s else ""
    yield f"{what}{told(said)}{then}"
