"""The log of a runner: lines for people, and for the observer the changes of the amount that its life may use; and its events for people and
tools: the kind, and plain fields in JSON, without the ID of a registration and values that mean nothing outside the process."""

import dataclasses
import enum
import math
import re
from typing import Any, Final
from uuid import UUID

import msgspec
from pydantic.alias_generators import to_camel

from agent.core import events
from agent.core.plan import Plan
from agent.core.ports import HeldLog
from agent.core.state import RunnerState
from agent.core.step import Transition
from hosting.logs import Logger
from protocol.reasons import Reason, ReasonCode
from protocol.texts import clean
from protocol.values import ZERO, Resources

MAX_TEXT: Final = 200
"""Characters of one text among the fields."""
MAX_ITEMS: Final = 8
"""Items of one list among the fields."""
_KEYS: Final = ("seq", "goal", "size", "target", "permit", "reason", "resource", "message", "retry_after_s")
"""The keys of each line of a decision; those that do not apply are null."""
_LEFT_OUT: Final = {"registration", "chance", "sent_s", "begun_s", "at_s", "not_after_s"}
_ID_NAME: Final = re.compile(r"(?:Ui|I)d$")
"""The end of a name that is written in capitals here, as in the published messages: `agentID`, `podUID`."""
_ID: Final = re.compile(r"\b([0-9a-f]{8})(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}\b", re.IGNORECASE)


def without_ids(text: str) -> str:
    """A text in which every UUID is cut to its first eight characters: a peer's error may quote the registration."""
    return _ID.sub(r"\1…", text)


def event_document(event: events.Event) -> dict[str, Any]:
    """`event` is the kind of the event, as named in `agent/core/events.py`; `fields` are its fields."""
    return {"event": type(event).__name__, "fields": _fields(event)}


def _fields(value: Any) -> dict[str, Any]:
    if isinstance(value, msgspec.Struct):
        names = value.__struct_fields__
    else:
        names = tuple(item.name for item in dataclasses.fields(value))
    found = {_key(name): _plain(getattr(value, name)) for name in names if name not in _LEFT_OUT}
    return {name: item for name, item in found.items() if item is not None}


def _key(name: str) -> str:
    camel = to_camel(f"{name.removesuffix('_s')}_seconds" if name.endswith("_s") else name)
    return _ID_NAME.sub(lambda found: found[0].upper(), camel)


def _plain(value: Any) -> Any:
    """The value of a field in JSON; None for a value that is left out."""
    match value:
        case enum.Enum():
            return value.value if isinstance(value.value, str) else str(value)
        case None | bool() | int():
            return value
        case float():
            return round(value, 3) if math.isfinite(value) else None
        case str():
            return clean(without_ids(value), MAX_TEXT)
        case UUID():
            return without_ids(str(value))
        case Resources():
            return value.written()
        case list() | tuple():
            return [_plain(item) for item in value[:MAX_ITEMS]]
        case _ if isinstance(value, events.Action):
            return {"kind": type(value).__name__, **_fields(value)}
        case _ if isinstance(value, msgspec.Struct) or dataclasses.is_dataclass(value):
            return _fields(value)
        case _:
            return clean(without_ids(str(value)), MAX_TEXT)


class HeldJournal:
    """Writes down the amount that the present life of one VM's runner may use, whenever that changes."""

    def __init__(self, log: HeldLog) -> None:
        self._log = log
        self._written: tuple[UUID, Resources] | None = None

    def note(self, state: RunnerState, now_s: float) -> None:
        """Write the amount that is held now, if it changed. An earlier life holds nothing from then on."""
        life, held = state.life.agent_id, state.held_at(now_s)
        before = self._written
        if before == (life, held):
            return
        name = state.vm.name
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

    def _write(
        self,
        event: str,
        state: RunnerState,
        *,
        could_not: bool = False,
        **told: Resources | str | float | None,
    ) -> None:
        look = state.backend.observation
        told["size"] = look.size if look is not None else None
        write = self._log.warning if could_not else self._log.info
        write(event, **{key: _written(told.get(key)) for key in _KEYS})

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


def _written(value: Resources | str | float | None) -> str | float | None:
    return str(value) if isinstance(value, Resources) else value


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
