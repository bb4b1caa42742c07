"""The log of a runner: lines for people, and for the observer the changes of the amount that its life may use."""

from uuid import UUID

from agent.core import events
from agent.core.plan import Plan
from agent.core.ports import HeldLog
from agent.core.state import RunnerState
from agent.core.step import Transition
from hosting.logs import Logger
from protocol.reasons import Reason, ReasonCode
from protocol.values import ZERO, Resources


class HeldJournal:
    """Writes down the amount that the present life of one VM's runner may use, whenever that changes."""

    def __init__(self, log: HeldLog) -> None:
        self._log = log
        self._written: tuple[UUID, Resources] | None = None

    def note(self, state: RunnerState, now_s: float) -> None:
        """Write the amount that is held now, if it changed. An earlier life holds nothing from then on."""
        name, life, held = state.vm.name, state.life.agent_id, state.held_at(now_s)
        before = self._written
        if before == (life, held):
            return
        if before is not None and before[0] != life:
            self._log.held(name, str(before[0]), ZERO)
        if held != ZERO or before is not None:
            self._log.held(name, str(life), held)
        self._written = (life, held)


class RunnerLog:
    """Logs the news of one runner that a person would want to know. Every line of a decision has the same keys."""

    def __init__(self, log: Logger) -> None:
        self._log = log

    def planned(self, before: Plan | None, after: Plan, state: RunnerState) -> None:
        if before is None or before.desired != after.desired:
            self._write("goal", state, goal=after.desired, message=str(after.reason))

    def happened(self, transition: Transition) -> None:
        event, before, after = transition.event, transition.before, transition.after
        refused = after.backend.refused
        if refused and refused[-1] not in before.backend.refused:
            latest = refused[-1]
            self._write("resize refused", after, target=latest.target, message=latest.why, could_not=True)
        match event:
            case events.Started():
                pass
            case events.PermitGranted():
                self._granted(event, before, after)
            case events.PermitRefused() | events.PermitFailed():
                if before.scheduler.fault != after.scheduler.fault:
                    self._no_permit(event, after)
            case events.ResizeAccepted():
                sent = before.backend.sent
                self._write("resize", before, target=sent.target if sent is not None else None)
            case events.DownscaleDenied():
                self._write(
                    "downscale refused by the guest",
                    before,
                    target=event.amount,
                    resource=_asked_for_less(event.amount, before),
                    message=event.status,
                )
            case _:
                self._trouble(before, after)

    def _granted(self, event: events.PermitGranted, before: RunnerState, after: RunnerState) -> None:
        known = before.scheduler
        if after.scheduler.fault and not known.fault:
            self._write(
                "permit not usable",
                after,
                seq=event.number,
                permit=event.permit,
                message=after.scheduler.fault,
                could_not=True,
            )
        elif event.permit != known.permit or _codes(event.reasons) != _codes(known.reasons):
            binding = _binding(event.reasons, after)
            self._write(
                "permit",
                after,
                seq=event.number,
                permit=event.permit,
                reason=" ".join(reason.code.value for reason in binding) or None,
                resource=" ".join(reason.resource for reason in binding if reason.resource) or None,
                message="; ".join(reason.message for reason in binding) or None,
                retry_after_s=next((each.retry_after_s for each in binding if each.retry_after_s), None),
            )

    def _no_permit(self, event: events.PermitRefused | events.PermitFailed, after: RunnerState) -> None:
        refusal = after.scheduler.refusal
        self._write(
            "no permit",
            after,
            seq=event.number,
            reason=refusal.code.value if refusal is not None and refusal.code is not None else None,
            message=after.scheduler.fault,
            retry_after_s=event.retry_after_s if isinstance(event, events.PermitRefused) else None,
            could_not=True,
        )

    def _write(  # noqa: PLR0913 - the keys of a line
        self,
        event: str,
        state: RunnerState,
        *,
        seq: int | None = None,
        goal: Resources | None = None,
        target: Resources | None = None,
        permit: Resources | None = None,
        reason: str | None = None,
        resource: str | None = None,
        message: str | None = None,
        retry_after_s: float | None = None,
        could_not: bool = False,
    ) -> None:
        """One line of a decision; keys that do not apply are null."""
        look = state.backend.observation
        write = self._log.warning if could_not else self._log.info
        write(
            event,
            seq=seq,
            goal=_text(goal),
            size=_text(look.size) if look is not None else None,
            target=_text(target),
            permit=_text(permit),
            reason=reason,
            resource=resource,
            message=message,
            retry_after_s=retry_after_s,
        )

    def _trouble(self, before: RunnerState, after: RunnerState) -> None:
        faults = {
            "backend": (before.backend.fault, after.backend.fault),
            "informant": (before.informant.fault, after.informant.fault),
            "metrics": (before.metrics.fault, after.metrics.fault),
            "policies": (before.policies.fault, after.policies.fault),
            "resize": (before.backend.resizing.fault, after.backend.resizing.fault),
        }
        for action, (known, fault) in faults.items():
            if fault and fault != known:
                self._log.warning("trouble", action=action, error=fault)
        phase = after.informant.phase
        if phase is not before.informant.phase and after.informant.is_registered:
            self._log.info("informant", phase=phase.value)


def _text(amount: Resources | None) -> str | None:
    return str(amount) if amount is not None else None


def _binding(reasons: tuple[Reason, ...], state: RunnerState) -> list[Reason]:
    """The binding reason; of a VM that is apart, that of each resource."""
    if not state.unit.is_apart:
        return list(reasons[:1])
    first = {reason.resource: reason for reason in reversed(reasons)}
    return [reason for reason in reasons if first[reason.resource] is reason]


def _asked_for_less(amount: Resources, before: RunnerState) -> str | None:
    """The resources that were to shrink, if that is known."""
    known = before.informant.known_size
    if known is None:
        return None
    pairs = zip(amount.named(), known.named(), strict=True)
    return " and ".join(name for (name, less), (_, more) in pairs if less < more) or None


def _codes(reasons: tuple[Reason, ...]) -> tuple[tuple[ReasonCode, str | None], ...]:
    """The codes of reasons with their resources: a change of these is worth a line, while messages hold numbers that change
    with each request."""
    return tuple((reason.code, reason.resource) for reason in reasons)
