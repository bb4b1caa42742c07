"""What a runner writes down: log lines for people, and changes of what its life may use for the observer."""

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
    """Writes down what the present life of one VM's runner may use, whenever that changes."""

    def __init__(self, log: HeldLog) -> None:
        self._log = log
        self._written: tuple[UUID, Resources] | None = None

    def note(self, state: RunnerState, now_s: float) -> None:
        """Write the amount that is held now, where it changed. An earlier life holds nothing from then on."""
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
    """Logs what a person would want to know of one runner."""

    def __init__(self, log: Logger) -> None:
        self._log = log

    def planned(self, before: Plan | None, after: Plan) -> None:
        if before is None or before.desired != after.desired:
            self._log.info("goal", desired=str(after.desired), reason=str(after.reason))

    def happened(self, transition: Transition) -> None:
        event, before, after = transition.event, transition.before, transition.after
        if after.backend.refused != before.backend.refused:
            latest = after.backend.refused[-1]
            self._log.warning("resize refused", target=str(latest.target), error=latest.why)
        match event:
            case events.Started():
                pass
            case events.PermitGranted():
                self._granted(event, before, after)
            case events.PermitRefused() | events.PermitFailed():
                if before.scheduler.fault != after.scheduler.fault:
                    self._log.warning("no permit", seq=event.number, error=after.scheduler.fault)
            case events.ResizeAccepted():
                sent = before.backend.sent
                self._log.info("resize", target=str(sent.target) if sent is not None else None)
            case events.DownscaleDenied():
                self._log.info(
                    "downscale refused by the guest",
                    amount=str(event.amount),
                    resource=_asked_for_less(event.amount, before),
                    reason=event.status,
                )
            case _:
                self._trouble(before, after)

    def _granted(self, event: events.PermitGranted, before: RunnerState, after: RunnerState) -> None:
        known = before.scheduler
        if after.scheduler.fault and not known.fault:
            self._log.warning("permit not usable", error=after.scheduler.fault)
        elif event.permit != known.permit or _codes(event.reasons) != _codes(known.reasons):
            why = "; ".join(map(str, _binding(event.reasons, after)))
            self._log.info("permit", seq=event.number, permit=str(event.permit), reason=why or None)

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


def _binding(reasons: tuple[Reason, ...], state: RunnerState) -> list[Reason]:
    """The binding reason; of a VM that is apart, that of each resource."""
    if not state.unit.is_apart:
        return list(reasons[:1])
    first = {reason.resource: reason for reason in reversed(reasons)}
    return [reason for reason in reasons if first[reason.resource] is reason]


def _asked_for_less(amount: Resources, before: RunnerState) -> str | None:
    """The resources that were to shrink, where that is known."""
    known = before.informant.known_size
    if known is None:
        return None
    pairs = zip(amount.named(), known.named(), strict=True)
    return " and ".join(name for (name, less), (_, more) in pairs if less < more) or None


def _codes(reasons: tuple[Reason, ...]) -> tuple[tuple[ReasonCode, str | None], ...]:
    """The codes of reasons with their resources: a change of these is worth a line, while messages hold numbers that change
    with each request."""
    return tuple((reason.code, reason.resource) for reason in reasons)
