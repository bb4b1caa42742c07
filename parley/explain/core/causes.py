"""Which cause comes first: a table of rules, asked in order. The first rule that finds its cause decides."""

from collections.abc import Callable
from dataclasses import replace
from typing import Final, TypeAlias

from parley.explain.core.evidence import (
    CAUSE_ADVICE,
    CPU_REFUSED,
    PLACING_ADVICE,
    CauseCode,
    Evidence,
    SizeCause,
    advice_of,
    rejection_of,
)
from parley.explain.core.words import containers_of, limit_cause, named, pending_of, seconds, told, written
from parley.reach.ports import NoAnswer
from parley.top.texts import goal_reasons
from protocol.agent_pages import ResizePhase, VmInFull, exceeds
from protocol.explaining import Explanation, Presence, ReasonShown
from protocol.reasons import ErrorCode, ReasonCode
from protocol.texts import counted

_WINDOWS: Final = frozenset({"floor", "ceiling"})
"""The agent's names for the parts of a goal that time windows make."""
NOT_SCALED: Final = "vm-not-scaled"
"""The code of an agent that knows a VM and does not scale it."""
UNKNOWN: Final = frozenset({ErrorCode.UNKNOWN_POD.value, ErrorCode.UNKNOWN_VM.value})
"""How scheduler and agent say that they do not know a VM. Any other 404 is of a program that was not meant."""
SILENT_S: Final = 45.0
"""An agent asks every 15 s; one that was not heard for three times that long asks no more."""
_HEAL_AT_ONCE: Final = (ErrorCode.SEQUENCE_STALE.value, ErrorCode.SEQUENCE_REUSED.value)

Rule: TypeAlias = Callable[[Evidence], SizeCause | None]


def _of_agent(rule: Callable[[VmInFull], SizeCause | None]) -> Rule:
    """A rule about the agent's word alone; it finds nothing without one."""
    return lambda evidence: rule(evidence.agent) if isinstance(evidence.agent, VmInFull) else None


def cause_of(evidence: Evidence) -> SizeCause:
    for rule in RULES:
        found = rule(evidence)
        if found is not None:
            return found
    return _own(CauseCode.SATISFIED)


def _own(code: CauseCode, detail: str = "") -> SizeCause:
    return SizeCause(code.value, CAUSE_ADVICE[code], detail)


def _named(code: str, detail: str) -> SizeCause:
    return SizeCause(code, advice_of(code), detail, rejection=rejection_of(code))


# ---------------------------------------------------------------- nobody, nothing


def _unschedulable(evidence: Evidence) -> SizeCause | None:
    diagnosis = evidence.diagnosis
    if diagnosis is None:
        return None
    advice = PLACING_ADVICE.get(diagnosis.rejection, CAUSE_ADVICE[CauseCode.UNSCHEDULABLE])
    return SizeCause(CauseCode.UNSCHEDULABLE, advice, diagnosis.text, rejection=diagnosis.rejection)


def _unknown(evidence: Evidence) -> SizeCause | None:
    agent, scheduler = evidence.agent, evidence.scheduler
    if not isinstance(agent, NoAnswer) or not isinstance(scheduler, NoAnswer):
        return None
    if agent.code == NOT_SCALED:
        return _own(CauseCode.NOT_SCALED, agent.fault)
    if any(each.code in UNKNOWN for each in (scheduler, agent)):
        answered = (each.fault for each in (scheduler, agent) if each.status is not None)
        return _own(CauseCode.UNKNOWN_VM, "; ".join(answered))
    return _own(CauseCode.NOBODY_ANSWERS, f"{scheduler.fault}; {agent.fault}")


def _gone(evidence: Evidence) -> SizeCause | None:
    told_by, agent = evidence.scheduler, evidence.agent
    if isinstance(told_by, NoAnswer) or told_by.presence is not Presence.GONE:
        return None
    # An agent that serves the VM and gets no permit sees one that runs: only the scheduler's cluster has it no more.
    if isinstance(agent, VmInFull) and agent.standing_fault("scheduler") is not None:
        return None
    ago_s = told_by.gone_seconds_ago
    return _own(CauseCode.GONE, f"gone {seconds(ago_s)} ago" if ago_s is not None else "")


def _not_scaled(evidence: Evidence) -> SizeCause | None:
    agent = evidence.agent
    is_told = isinstance(agent, NoAnswer) and agent.code == NOT_SCALED
    return _own(CauseCode.NOT_SCALED, agent.fault) if isinstance(agent, NoAnswer) and is_told else None


# ---------------------------------------------------------------- agent and scheduler


def _superseded(evidence: Evidence) -> SizeCause | None:
    agent, scheduler = evidence.agent, evidence.scheduler
    if isinstance(agent, VmInFull):
        return _own(CauseCode.SUPERSEDED, _joined(agent.state_reasons)) if agent.state == "dormant" else None
    refusal = _standing_refusal(scheduler) if isinstance(scheduler, Explanation) else None
    if refusal is not None and refusal.code == ErrorCode.AGENT_SUPERSEDED:
        return _own(CauseCode.SUPERSEDED, told(refusal))
    return None


def _standing_refusal(scheduler: Explanation) -> ReasonShown | None:
    """The error of the latest request; None if an agent was answered since, or nobody has asked for long."""
    refusal = scheduler.refusal
    return refusal if refusal is not None and scheduler.limits[:1] == (refusal,) else None


@_of_agent
def _refused_request(agent: VmInFull) -> SizeCause | None:
    """The scheduler answers the agent, and not with a permit: version skew, an error of the protocol, no leader."""
    trouble, link = agent.standing_fault("scheduler"), agent.scheduler
    code = (trouble.code or "") if trouble is not None else ""
    is_old = trouble is not None and trouble.status == 400 and not code and link.answered_seconds_ago is None
    if link.is_exhausted or is_old or code == ErrorCode.UNSUPPORTED_VERSION:
        said = f"{trouble.message}; " if trouble is not None else ""
        theirs = f", the scheduler {link.fault.supported}" if link.fault and link.fault.supported else ""
        return _named(
            ErrorCode.UNSUPPORTED_VERSION, f"{said}the agent speaks {link.supported_versions or '?'}{theirs}"
        )
    if trouble is None or (code in _HEAL_AT_ONCE and link.failures < 2):
        return None
    if code or trouble.status is not None:
        return _named(code or ErrorCode.MALFORMED, trouble.message)
    return None


def _scheduler_silent(evidence: Evidence) -> SizeCause | None:
    agent = evidence.agent
    trouble = agent.standing_fault("scheduler") if isinstance(agent, VmInFull) else None
    if trouble is None or not isinstance(agent, VmInFull) or trouble.code or trouble.status is not None:
        return None
    link = agent.scheduler
    times = f" ({link.failures} times in a row)" if link.failures > 1 else ""
    left_s = link.lease_left_seconds
    lease = ""
    if left_s is not None:
        lease = (
            f"; what it holds counts for {seconds(left_s)} more" if left_s > 0 else "; its lease has run out"
        )
    return _own(CauseCode.SCHEDULER_SILENT, f"{trouble.message}{times}{lease}")


def _refused_by_scheduler(evidence: Evidence) -> SizeCause | None:
    """If no agent answers us, somebody may ask all the same: a published agent, or one that we cannot reach."""
    agent, scheduler = evidence.agent, evidence.scheduler
    if not isinstance(agent, NoAnswer) or not isinstance(scheduler, Explanation):
        return None
    refusal = _standing_refusal(scheduler)
    if refusal is None and scheduler.presence is Presence.UNKNOWN:
        refusal = next(iter(scheduler.limits), None)
    return _named(refusal.code, told(refusal)) if refusal is not None else None


def _agent_silent(evidence: Evidence) -> SizeCause | None:
    agent, scheduler = evidence.agent, evidence.scheduler
    if not isinstance(agent, NoAnswer) or not isinstance(scheduler, Explanation):
        return None
    if scheduler.waiting is not None:  # an agent that asks now has not been answered yet
        return None
    asked_s = scheduler.asked_seconds_ago
    if asked_s is not None and asked_s <= SILENT_S:
        return None
    since = "none has asked yet" if asked_s is None else f"the last request came {seconds(asked_s)} ago"
    return _own(CauseCode.AGENT_SILENT, f"{since}; {agent.fault}")


def _unsettled(evidence: Evidence) -> SizeCause | None:
    agent, scheduler = evidence.agent, evidence.scheduler
    said = binding(evidence)
    if said is not None and said.code == ReasonCode.UNSETTLED:
        return _named(ReasonCode.UNSETTLED, told(said))
    if (
        isinstance(scheduler, Explanation)
        and not scheduler.is_settled
        and scheduler.presence is Presence.LIVE
        and scheduler.waiting is None
    ):
        held = f"until then {written(scheduler.reserved)} are kept for it"
        return _named(
            ReasonCode.UNSETTLED, f"the agent has not named this scheduler in a request yet; {held}"
        )
    if isinstance(agent, VmInFull) and agent.scheduler.is_unsettled:
        return _named(ReasonCode.UNSETTLED, "the scheduler does not know yet what it may use")
    return None


# ---------------------------------------------------------------- the VM, its guest, its metrics


@_of_agent
def _vm_unseen(agent: VmInFull) -> SizeCause | None:
    look, trouble = agent.look, agent.standing_fault("VM")
    if look.fault and (agent.state == "stuck" or look.failures > 1 or agent.size is None):
        ago = (
            f", the last look that did was {seconds(look.age_seconds)} ago"
            if look.age_seconds is not None
            else ""
        )
        return _own(CauseCode.VM_UNSEEN, f"{look.fault}{ago}")
    if agent.state == "stuck" and agent.size is None and trouble is not None:
        return _own(CauseCode.VM_UNSEEN, trouble.message)
    return None


@_of_agent
def _containers(agent: VmInFull) -> SizeCause | None:
    found = containers_of(agent)
    if found.mismatch:
        return _own(CauseCode.CGROUP_MISMATCH, "; ".join(filter(None, (found.mismatch, found.not_running))))
    return _own(CauseCode.CONTAINER_DOWN, found.not_running) if found.not_running else None


@_of_agent
def _resize_fails(agent: VmInFull) -> SizeCause | None:
    resize, trouble = agent.resize, agent.standing_fault("VM")
    is_failing = resize.phase is ResizePhase.FAILING or (agent.state == "stuck" and trouble is not None)
    if not is_failing:
        return None
    times = (
        f" ({counted(resize.failures, 'time')} since {seconds(resize.since_seconds)} ago)"
        if resize.failures and resize.since_seconds is not None
        else ""
    )
    message = resize.fault or resize.refusal or (trouble.message if trouble is not None else "")
    return _own(CauseCode.RESIZE_FAILS, f"to {written(resize.to or agent.goal)}: {message}{times}")


def _resize_refused(evidence: Evidence) -> SizeCause | None:
    agent, scheduler = evidence.agent, evidence.scheduler
    if isinstance(agent, VmInFull):
        for each in sorted(agent.refused_sizes, key=lambda each: each.kind != "growth"):
            what = "growth" if each.kind == "growth" else "a shrink"
            return _own(CauseCode.RESIZE_REFUSED, f"it refuses {what} to {written(each.target)}: {each.why}")
        if agent.resize.phase is ResizePhase.REFUSED:
            return _own(CauseCode.RESIZE_REFUSED, agent.resize.fault or agent.resize.refusal or "")
        return None
    if isinstance(scheduler, Explanation) and scheduler.resize_refusal:
        return _own(CauseCode.RESIZE_REFUSED, scheduler.resize_refusal)
    return None


@_of_agent
def _downscale_refused(agent: VmInFull) -> SizeCause | None:
    if not agent.wants_less:
        return None
    trouble, refused = agent.standing_fault("informant"), agent.guest.refused_downscale
    if refused is None:
        return None
    why = f": {trouble.message}" if trouble is not None else ""
    found = _own(CauseCode.DOWNSCALE_REFUSED, f"it refuses to shrink to {named(refused)}{why}")
    return replace(found, advice=CPU_REFUSED) if refused.memory is None else found


@_of_agent
def _informant(agent: VmInFull) -> SizeCause | None:
    if agent.guest.has_suspended and not agent.scheduler.is_migrating:
        return _own(CauseCode.INFORMANT_SUSPENDED, _joined(goal_reasons(agent)))
    trouble = agent.standing_fault("informant")
    is_silent = agent.state == "stuck" or agent.metrics.waits_for == "informant"
    if trouble is None or not is_silent or agent.wants_more:
        return None
    return _own(CauseCode.INFORMANT_SILENT, trouble.message)


@_of_agent
def _metrics(agent: VmInFull) -> SizeCause | None:
    if agent.wants_more or agent.state in {"starting", "denied"}:
        return None
    trouble = agent.standing_fault("metrics")
    why = f": {trouble.message}" if trouble is not None else ""
    if agent.metrics.is_stale and agent.metrics_age_seconds is not None:
        return _own(
            CauseCode.METRICS_STALE, f"the last ones came {seconds(agent.metrics_age_seconds)} ago{why}"
        )
    if agent.metrics_age_seconds is None:
        waits = ", which wait for its informant" if agent.metrics.waits_for == "informant" else ""
        return _own(CauseCode.METRICS_MISSING, f"no metrics yet{waits}{why}")
    if agent.state == "stuck" and trouble is not None:
        return _own(
            CauseCode.METRICS_STALE, f"the last ones came {seconds(agent.metrics_age_seconds)} ago{why}"
        )
    return None


# ---------------------------------------------------------------- limits, and what goes on


def limits_of(evidence: Evidence) -> tuple[ReasonShown, ...]:
    """The limits that stand, the binding one first: by the scheduler's word, else as the agent was told them."""
    if isinstance(evidence.scheduler, Explanation):
        return evidence.scheduler.limits
    agent = evidence.agent
    # The agent keeps the reasons of a permit that covers its goal by now.
    if isinstance(agent, VmInFull) and (agent.state == "denied" or exceeds(agent.goal, agent.permit)):
        return agent.reasons
    return ()


def binding(evidence: Evidence) -> ReasonShown | None:
    """The limit that binds; None if none does."""
    return next(iter(limits_of(evidence)), None)


def _limit(evidence: Evidence) -> SizeCause | None:
    found = binding(evidence)
    agent, scheduler = evidence.agent, evidence.scheduler
    if found is not None:
        return limit_cause(found, scheduler if isinstance(scheduler, Explanation) else None)
    if not isinstance(scheduler, Explanation) or not isinstance(agent, VmInFull) or not agent.wants_more:
        return None
    if exceeds(agent.permit, agent.size):
        return None
    if scheduler.is_growth_stopped:
        return _named(ReasonCode.STOPPED, "growth is stopped by configuration")
    if scheduler.is_recommend_only:
        return _named(ReasonCode.RECOMMEND_ONLY, "growth is only recommended here")
    return None


@_of_agent
def _bounds(agent: VmInFull) -> SizeCause | None:
    """The agent asks for no more than the VM's maximum, so the scheduler may never hear of what is cut."""
    if agent.wants_more or not _is_cut(agent):
        return None
    most = agent.bounds.max if agent.bounds is not None else None
    detail = f"its policies ask for {written(agent.goal_before_bounds)}, and its maximum is {written(most)}"
    return _named(ReasonCode.VM_BOUNDS, detail)


def _is_cut(agent: VmInFull) -> bool:
    """Whether the maximum cuts what the policies ask for of a resource."""
    most = agent.bounds.max if agent.bounds is not None else None
    amounts = (agent.goal_before_bounds, most, agent.goal)
    wished, maximum, goal = (None if each is None else each.worth for each in amounts)
    if wished is None or maximum is None or goal is None:
        return False
    return any(wish > most <= now for wish, most, now in zip(wished, maximum, goal, strict=True))


def _migrating(evidence: Evidence) -> SizeCause | None:
    agent, scheduler = evidence.agent, evidence.scheduler
    is_told = isinstance(agent, VmInFull) and (agent.state == "migrating" or agent.scheduler.is_migrating)
    if is_told or (isinstance(scheduler, Explanation) and scheduler.is_migrating):
        return _named(ReasonCode.MIGRATING, "the VM does not grow before it has arrived")
    return None


def _waiting(evidence: Evidence) -> SizeCause | None:
    scheduler = evidence.scheduler
    if isinstance(scheduler, NoAnswer) or scheduler.waiting is None:
        return None
    return _named(scheduler.waiting.code, told(scheduler.waiting))


@_of_agent
def _under_way(agent: VmInFull) -> SizeCause | None:
    if agent.state == "starting":
        return _own(CauseCode.STARTING, _joined(agent.state_reasons))
    waits, resize = pending_of(agent), agent.resize
    pending = f"; {waits}" if waits else ""
    since = "" if resize.since_seconds is None else f" for {seconds(resize.since_seconds)}"
    to = written(resize.to or agent.target)
    if resize.phase is ResizePhase.STALLED:
        return _own(CauseCode.RESIZE_STALLED, f"the target is {to}, and nothing has moved{since}{pending}")
    if not agent.wants_more and not agent.wants_less:
        return None
    if agent.wants_more and exceeds(agent.goal, agent.permit) and not exceeds(agent.permit, agent.size):
        return _own(CauseCode.WAITING, f"it asks for {written(agent.goal)} and has no answer yet{pending}")
    code = CauseCode.GROWING if agent.wants_more else CauseCode.SHRINKING
    if resize.phase is ResizePhase.MOVING:
        return _own(code, f"the resize to {to} is on its way{since}{pending}")
    if resize.phase is ResizePhase.SENDING:
        return _own(code, f"the resize to {to} was sent, and no look has shown it{since}{pending}")
    return _own(code, f"it may have {written(agent.permit)} and should have {written(agent.goal)}{pending}")


@_of_agent
def _minimum(agent: VmInFull) -> SizeCause | None:
    if agent.bounds is None:
        return None
    wished, least = agent.goal_before_bounds, agent.bounds.min
    if not exceeds(least, wished):
        return None
    detail = f"its policies ask for {written(wished)}, and its minimum is {written(least)}"
    return _own(CauseCode.AT_MINIMUM, detail)


def _satisfied(evidence: Evidence) -> SizeCause | None:
    agent, scheduler = evidence.agent, evidence.scheduler
    if isinstance(agent, VmInFull):
        metrics = agent.standing_fault("metrics")
        noted = [f"metrics: {metrics.message}"] if metrics is not None else []
        warned = "".join(f"; {each}" for each in (*noted, *agent.warnings[:1]))
        headline = "a time window sets its size" if _binding_policies(agent) & _WINDOWS else ""
        found = _own(CauseCode.SATISFIED, f"{_joined(goal_reasons(agent))}{warned}")
        return replace(found, headline=headline)
    if isinstance(scheduler, Explanation):
        return _own(CauseCode.PERMITTED, _permitted(scheduler, agent))
    return None


def _binding_policies(agent: VmInFull) -> set[str]:
    """The policy whose part of the goal binds, for each resource."""
    parts = agent.goal_parts
    return {each.policy for found in (parts.cpu, parts.memory) for each in found[:1]} if parts else set()


def _permitted(scheduler: Explanation, agent: NoAnswer) -> str:
    """When the agent asked last, and whether the VM has what it may have."""
    asked_s = scheduler.asked_seconds_ago
    parts = [f"it asked {seconds(asked_s)} ago"] if asked_s is not None else []
    if scheduler.size is not None and scheduler.size != scheduler.permit:
        parts.append(
            f"it may have {written(scheduler.permit)}, and the cluster shows {written(scheduler.size)}"
        )
    return "; ".join((*parts, agent.fault))


RULES: Final[tuple[Rule, ...]] = (
    _unschedulable,
    _unknown,
    _gone,
    _not_scaled,
    _superseded,
    _refused_request,
    _scheduler_silent,
    _refused_by_scheduler,
    _agent_silent,
    _unsettled,
    _vm_unseen,
    _containers,
    _resize_fails,
    _resize_refused,
    _downscale_refused,
    _informant,
    _metrics,
    _limit,
    _bounds,
    _migrating,
    _waiting,
    _under_way,
    _minimum,
    _satisfied,
)
"""A cause that makes those below it meaningless comes first: without an agent, a scheduler, a VM that can be seen, no limit matters."""


def _joined(texts: tuple[str, ...]) -> str:
    return "; ".join(texts)
