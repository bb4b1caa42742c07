"""How many replicas a chain admits: the search as a pure generator.

The search yields the number to ask about and is sent the chain's `Admission`. Source: seed 000,
`ProbeAcceptedReplicas`, with two repairs: the error starts as the candidate's rejection, so that a refusal is never
without a reason, and a cap that a plugin states is verified by one call instead of being searched for.
"""

import enum
from collections.abc import Generator
from dataclasses import dataclass, replace
from typing import TypeAlias

from protocol.texts import counted
from protocol.values import Resources, amount_of
from scheduler.pools.core.errors import AppError, Detail, Interrupt, PluginErrorKind, kind_from_app_error
from scheduler.pools.core.values import Admission, AmountCap, measure_text, tightest


class ProbeResultKind(enum.IntEnum):
    """Why a search ended. Source: seed 000."""

    OK = 0
    """All that was asked for was admitted."""
    INSUFFICIENT_RESOURCES = 1
    """At least one number was refused for want of resources; `accepted` is the largest that was admitted."""
    INTERNAL_ERROR = 2
    """A plugin failed; what was admitted before must not be taken for a limit."""
    INVALID_SPEC = 3
    """Wrong at any number."""


@dataclass(frozen=True, slots=True)
class ProbeResult:
    """The outcome of a search.

    `accepted` is the largest number in [current, candidate] that was admitted, `current` where none was. `error` is the
    last refusal and `plugin` whose it was; `retry_after_s` the longest wait that a plugin named. Beside seed 000: `refused`
    is the smallest number that is known to be refused, `calls` how often the chain was asked, and `is_complete` False
    where a deadline ended the search, so that numbers between `accepted` and `refused` were not asked about. `amounts` is the
    smallest cap of each resource that was stated; such a cap refuses no number. `amount` is what was asked about together with
    `accepted`, where amounts were.
    """

    kind: ProbeResultKind
    accepted: int
    error: AppError | None = None
    plugin: str = ""
    retry_after_s: float | None = None
    refused: int | None = None
    calls: int = 0
    is_complete: bool = True
    amounts: tuple[AmountCap, ...] = ()
    amount: Resources | None = None

    @property
    def cut_amounts(self) -> tuple[AmountCap, ...]:
        """The caps that are below what was asked about."""
        if self.amount is None:
            return ()
        amount = self.amount
        return tuple(cap for cap in self.amounts if cap.most < amount_of(amount, cap.resource))


Search: TypeAlias = Generator[int, Admission, ProbeResult]

_KINDS = {
    PluginErrorKind.INSUFFICIENT_RESOURCES: ProbeResultKind.INSUFFICIENT_RESOURCES,
    PluginErrorKind.INVALID_SPEC: ProbeResultKind.INVALID_SPEC,
}


def search(current: int, candidate: int) -> Search:
    """Find the largest number in [current, candidate] that is admitted; `current` is taken to be.

    At most 1 + ceil(log2(candidate - current)) questions, one more where a plugin states a cap. Throw `Interrupt` in
    to end it with what is known.
    """
    if candidate <= current:
        return ProbeResult(ProbeResultKind.OK, current)
    found = ProbeResult(ProbeResultKind.OK, current)
    asked = candidate
    is_cap_verified = False
    while found.refused is None or found.accepted + 1 < found.refused:
        try:
            answer = yield asked
        except Interrupt:
            return replace(found, is_complete=False)
        found, cap = _after(found, asked, answer)
        if answer.amounts:
            found = replace(found, amounts=tightest(found.amounts, answer.amounts))
        if found.kind in (ProbeResultKind.INTERNAL_ERROR, ProbeResultKind.INVALID_SPEC):
            return found
        if found.refused is None:
            return found  # the candidate itself
        if cap is not None and not is_cap_verified and found.accepted < cap < found.refused:
            is_cap_verified = True
            asked = cap
        else:
            low, high = found.accepted + 1, found.refused - 1
            asked = low + (high - low) // 2
    return found


def about_amount(result: ProbeResult, amount: Resources) -> ProbeResult:
    """The result of a search that was about `amount` as well: where a cap is below that, resources were wanting."""
    result = replace(result, amount=amount)
    if result.kind is not ProbeResultKind.OK or not result.cut_amounts:
        return result
    cap = result.cut_amounts[0]
    kind = ProbeResultKind.INSUFFICIENT_RESOURCES
    return replace(result, kind=kind, error=amount_error(cap), plugin=cap.plugin)


def amount_error(cap: AmountCap) -> AppError:
    """The refusal that a cap below what was asked about amounts to."""
    what = measure_text(cap.resource, cap.most)
    message = cap.message or f"the plugin {cap.plugin or 'chain'} admits only {what}"
    detail = Detail(PluginErrorKind.INSUFFICIENT_RESOURCES, reason=cap.reason)
    return AppError(503, message, detail=detail)


def _after(found: ProbeResult, asked: int, answer: Admission) -> tuple[ProbeResult, int | None]:
    """The result after one more answer, and the cap that it states if that is below what was asked about."""
    waits = [wait_s for wait_s in (found.retry_after_s, answer.retry_after_s) if wait_s is not None]
    error, cap = answer.error, answer.admitted
    if error is not None:
        detail = error.detail
        if isinstance(detail, Detail) and detail.retry_after_s is not None:
            waits.append(detail.retry_after_s)
        kind = _KINDS.get(kind_from_app_error(error), ProbeResultKind.INTERNAL_ERROR)
        refused = found.refused
        if kind is ProbeResultKind.INSUFFICIENT_RESOURCES:
            refused = asked if cap is None else min(asked, cap + 1)
    elif cap is not None and cap < asked:
        message = (
            answer.message
            or f"the plugin {answer.plugin or 'chain'} admits only {cap} of {counted(asked, 'replica')}"
        )
        detail = Detail(PluginErrorKind.INSUFFICIENT_RESOURCES, reason=answer.reason)
        error, kind = AppError(503, message, detail=detail), ProbeResultKind.INSUFFICIENT_RESOURCES
        refused = cap + 1
    else:
        wait_s = max(waits) if waits else None
        after = ProbeResult(
            found.kind, asked, found.error, found.plugin, wait_s, found.refused, found.calls + 1
        )
        return replace(after, amounts=found.amounts) if found.amounts else after, None
    refused = refused if refused is None else max(min(refused, found.refused or refused), found.accepted + 1)
    after = replace(
        found,
        kind=kind,
        error=error,
        plugin=answer.plugin,
        retry_after_s=max(waits, default=None),
        refused=refused,
        calls=found.calls + 1,
    )
    return after, cap
