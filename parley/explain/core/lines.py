"""The answer as lines for people: at most `MAX_LINES`, the cause in the first two."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from parley.explain.core.causes import binding, cause_of, limits_of
from parley.explain.core.evidence import CauseCode, Evidence, SizeCause
from parley.explain.core.facts import AgentFacts, text_of
from parley.explain.core.room import holders, over_causes, pool_holders, seconds, told, written
from parley.reach.ports import NoAnswer
from parley.top.texts import clean
from protocol.explaining import Explanation, PoolCondition, Presence, ProgressCode

MAX_LINES: Final = 12
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
    is_known = is_known or cause.code == CauseCode.NOT_SCALED
    lines = (_head(evidence, cause), *_details(cause), *(_rest(evidence, cause) if is_known else ()))
    if not is_known:
        lines = (*lines, _line("do", cause.advice.remedy))
    return SizeExplanation(cause, tuple(clean(line, _MAX_TEXT) for line in lines[:MAX_LINES]), is_known)


def _line(label: str, text: str) -> str:
    return f"{label:<{_LABEL}} {text}"


def _head(evidence: Evidence, cause: SizeCause) -> str:
    agent, scheduler = evidence.agent, evidence.scheduler
    has = want = ""
    if isinstance(agent, AgentFacts):
        has = text_of(agent.size) if agent.size is not None else ""
        want = text_of(agent.goal) if agent.goal is not None and agent.wants_more | agent.wants_less else ""
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


def _rest(evidence: Evidence, cause: SizeCause) -> Iterator[str]:
    agent, scheduler = evidence.agent, evidence.scheduler
    facts = agent if isinstance(agent, AgentFacts) else None
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


def _wants(facts: AgentFacts | None, told_by: Explanation | None, cause: SizeCause) -> Iterator[str]:
    if facts is not None:
        why = "; ".join(facts.goal_reasons)
        why = "" if why in cause.detail else why
        yield _line("wants", f"{text_of(facts.goal)}{f': {why}' if why else ''}")
        if facts.load:
            age = f" ({seconds(facts.load_age_s)} ago)" if facts.load_age_s is not None else ""
            yield _line("load", f"{facts.load}{age}")
    elif told_by is not None and told_by.wanted is not None:
        yield _line(
            "wants",
            f"{written(told_by.wanted)}, asked for {seconds(told_by.asked_seconds_ago)} ago; its agent would know why",
        )


def _has(facts: AgentFacts | None, told_by: Explanation | None) -> Iterator[str]:
    if facts is not None:
        parts = [f"size {text_of(facts.size)}"]
        if facts.target is not None and facts.target != facts.size:
            parts.append(f"target {text_of(facts.target)}")
        parts.append(f"permit {text_of(facts.permit) if facts.permit is not None else 'none yet'}")
        if facts.held is not None and facts.held != facts.permit:
            parts.append(f"held {text_of(facts.held)}")
        if facts.minimum is not None and facts.maximum is not None:
            parts.append(f"bounds {text_of(facts.minimum)} to {text_of(facts.maximum)}")
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
    most = f" of {pool.most_units}" if pool.most_units is not None else ""
    parts = [f"{pool.pool} holds {pool.held_units}{most} units, this VM {pool.vm_units}"]
    if pool.most_units_per_vm is not None:
        parts.append(f"a VM may hold {pool.most_units_per_vm}")
    if pool.state != PoolCondition.OPEN:
        parts.append(f"{pool.state.value}{f': {told(pool.reason)}' if pool.reason is not None else ''}")
    if pool.holders:
        parts.append(pool_holders(pool))
    yield _line("pool", "; ".join(parts))


# ---------------------------------------------------------------- what comes next


def _next(evidence: Evidence, facts: AgentFacts | None) -> str:
    scheduler = evidence.scheduler
    parts = list(_tries(facts)) if facts is not None else []
    first = binding(evidence)
    if first is not None and first.retry_after_seconds:
        parts.append(f"asking may help in {seconds(first.retry_after_seconds)}")
    is_live = isinstance(scheduler, Explanation) and scheduler.presence is Presence.LIVE
    if facts is None and isinstance(scheduler, Explanation) and is_live and scheduler.asked_seconds_ago:
        parts.append(f"its agent asked {seconds(scheduler.asked_seconds_ago)} ago")
    return "; ".join(parts)


def _tries(facts: AgentFacts) -> Iterator[str]:
    """What the agent does next, and when."""
    if facts.takeover_s is not None:
        yield f"the agent asks for the VM again in {seconds(facts.takeover_s)}"
    elif facts.asking.next_s is not None:
        when = f"in {seconds(facts.asking.next_s)}" if facts.asking.next_s > 0 else "now"
        yield f"the scheduler is asked again {when}"
    elif facts.asking.waits_for:
        yield _WAITS.get(facts.asking.waits_for, f"the agent waits for {facts.asking.waits_for}")
    elif facts.next_look_s is not None:
        yield f"the agent looks again in {seconds(facts.next_look_s)}"
    if facts.resize.retry_s is not None:
        yield f"the resize is tried again in {seconds(facts.resize.retry_s)}"
    for refused in facts.refused_sizes:
        if refused.retry_s is not None:
            yield f"{refused.target} is tried again in {seconds(refused.retry_s)}"
    if facts.guest.refused and facts.guest.refused_retry_s is not None:
        yield f"the guest is asked again in {seconds(facts.guest.refused_retry_s)}"


# ---------------------------------------------------------------- notes


def _notes(evidence: Evidence, facts: AgentFacts | None, cause: SizeCause) -> Iterator[str]:
    """Which program does not answer, and what else is worth a look."""
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


def _notes_of_agent(facts: AgentFacts, cause: SizeCause) -> Iterator[str]:
    if facts.guest.urgent:
        yield f"the guest cannot wait for {facts.guest.urgent}"
    if facts.containers.told():
        yield facts.containers.told()
    for trouble in facts.troubles:
        if trouble.message not in cause.detail:
            yield f"{trouble.peer}: {trouble.message}"
    if facts.pending and facts.pending not in cause.detail:
        yield facts.pending
    yield from facts.warnings


def _migration(told_by: Explanation) -> Iterator[str]:
    """What became lately of the wish that the VM leaves its node. It limits nothing."""
    said = told_by.migration
    if said is None:
        return
    what = "its migration could not be started: " if said.code == ProgressCode.MIGRATION_FAILED else ""
    wait_s = said.retry_after_seconds
    then = f"; the next one is tried in {seconds(wait_s)} at the earliest" if wait_s else ""
    yield f"{what}{told(said)}{then}"
