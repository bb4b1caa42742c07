"""The questions of `http-admission` to its service, and the meaning of the answers. Pure.

The question is a POST with a JSON object (`question`). These are answers, and nothing else is:

* 200 or 204 without a body: admitted. 200 with `{admitted?, retryAfterSeconds?, reason?, message?}`: admitted up to that
  many replicas. A field that is not known, or a `kind`, is a fault here: who says `allowed: false` must not admit.
* 429: InsufficientResources. Its body may hold the same fields; those that are not known do no harm.
* 503 with a JSON object of known fields that holds `kind: InsufficientResources` or a `message`: InsufficientResources.
  Any other 503 is what a proxy says of a service that is down: an outage.
* 400 and 422: InvalidSpec of the VM that asks first, or of the one that `vmUid` names, which must be one of those that
  ask; of the pool where the body says `scope: pool`, or where no VM asks.
* A `kind` in the body of these four statuses wins over the status.

All else is Internal and a failure of the service: other statuses (redirects among them), no answer in time, no connection,
answers that are too large, bodies that cannot be used. `Retry-After` and `retryAfterSeconds` (which wins) tell when asking
again may help, and count up to a day. Clients see the body's `message` in part; causes are for logs.
"""

import json
import re
from collections import Counter
from dataclasses import dataclass
from datetime import UTC
from email.utils import parsedate_to_datetime
from typing import Annotated, Any, Final, Literal, TypeAlias, assert_never

import msgspec
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic.alias_generators import to_camel

from hosting.client import Answered, Outcome, Unanswered
from protocol.texts import clean
from scheduler.pools.core.batches import MAX_WAIT_S
from scheduler.pools.core.errors import KIND_OF_CODE, AppError, Detail, PluginErrorKind, Scope, new_internal
from scheduler.pools.core.values import ADMITTED, Admission, Context, Member, Pods, Pool, ProbeEnd, VmRequest

VERSION: Final = 1
"""Of the question and its answers."""
MAX_MESSAGE: Final = 240
"""Characters of a message for clients."""

Hook: TypeAlias = Literal["create", "update", "delete"]


def question(hook: Hook, ctx: Context, pool: Pool, pods: Pods | None, send_members: bool) -> bytes:
    """The question as JSON. Amounts are quantities of CPU and memory; `pods` is None if a hook has none."""
    asked: dict[str, Any] = {
        "version": VERSION,
        "hook": hook,
        "purpose": ctx.purpose.value,
        "question": ctx.question,
        "pool": {
            "name": pool.name,
            "uid": pool.uid,
            "generation": pool.generation,
            "labels": dict(pool.labels),
            "annotations": dict(pool.annotations),
            "computeUnit": pool.compute_unit.written(),
            "limits": {
                "maxUnits": pool.limits.max_units,
                "maxUnitsPerVm": pool.limits.max_units_per_vm,
                "minUnits": pool.limits.min_units,
            },
            "replicas": pool.replicas,
        },
        "requests": [
            {
                **_vm(request),
                "wanted": request.wanted.written(),
                "units": request.units,
                "wantedUnits": request.wanted_units,
            }
            for request in ctx.requests
        ],
    }
    if pods is not None:
        asked["memberCount"] = len(pods)
        if send_members:
            asked["members"] = [
                {**_vm(member), "reserved": member.reserved.written(), "units": member.units}
                for member in pods
            ]
    return msgspec.json.encode(asked)


def outcome(end: ProbeEnd) -> bytes:
    """The end of a question, as JSON: how many of the pool's units were committed to VMs, and how many it holds now.

    Units that were admitted beyond what it holds are free again. Any 2xx takes it, the body is not looked at; it may come twice.
    """
    told = {
        "version": VERSION,
        "hook": "outcome",
        "question": end.question,
        "pool": {
            "name": end.pool.name,
            "uid": end.pool.uid,
            "generation": end.pool.generation,
            "computeUnit": end.pool.compute_unit.written(),
            "replicas": end.pool.replicas,
        },
        "asked": end.asked,
        "admitted": end.admitted,
        "committed": end.committed,
        "released": max(end.admitted - end.pool.replicas, 0),
    }
    return msgspec.json.encode(told)


def _vm(vm: VmRequest | Member) -> dict[str, Any]:
    return {
        "namespace": vm.pod.namespace,
        "name": vm.pod.name,
        "uid": vm.uid,
        "node": vm.node,
        "labels": dict(vm.labels),
        "current": vm.current.written(),
    }


@dataclass(frozen=True, slots=True)
class Said:
    """The service has answered: admitted, capped, or refused for a reason of its own."""

    admission: Admission


@dataclass(frozen=True, slots=True)
class Failed:
    """The service has not answered. `is_outage`: it is not there, rather than wrong; `may_retry`: another call at once may do better;
    `is_late`: the time was over; `why` is for logs and the status, and holds nothing that the peer wrote.
    """

    error: AppError
    why: str
    is_outage: bool = False
    may_retry: bool = False
    is_late: bool = False


class _Body(BaseModel):
    """The object in an answer, every field optional or null."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", strict=True, alias_generator=to_camel, allow_inf_nan=False
    )

    admitted: Annotated[int, Field(ge=0, lt=2**63)] | None = None
    retry_after_seconds: Annotated[float, Field(ge=0)] | None = None
    reason: Annotated[str, Field(max_length=64, pattern=r"^([A-Z][A-Za-z0-9]*)?$")] | None = None
    message: str | None = None
    kind: PluginErrorKind | None = None
    scope: Scope | None = None
    vm_uid: Annotated[str, Field(max_length=64)] | None = None


class _LooseBody(_Body):
    """The same, with other fields beside those that are known."""

    model_config = ConfigDict(extra="ignore")


def understood(outcome: Outcome, requests: tuple[VmRequest, ...], wall_s: float) -> Said | Failed:
    """The meaning of the end of a call (the module's table). `wall_s` is Unix time, for dates of a peer without a clock."""
    if isinstance(outcome, Unanswered):
        return _no_answer(outcome)
    wait_s = retry_after_s(outcome.headers.get("retry-after"), outcome.headers.get("date"), wall_s)
    if outcome.status == 204 or (outcome.status == 200 and not outcome.body):
        return Said(ADMITTED)
    if outcome.status == 200:
        return _admitted(outcome, wait_s)
    if outcome.status in KIND_OF_CODE:
        return _refused(outcome, requests, wait_s)
    return _bad_status(outcome, wait_s)


def _no_answer(outcome: Unanswered) -> Failed:
    cause = ConnectionError(f"{outcome.kind}: {outcome.message}")
    why = outcome.message
    match outcome.kind:
        case "timeout":
            error = internal("the admission service did not answer in time", cause=cause)
            return Failed(error, why, is_outage=True, is_late=True)
        case "connect" | "cut":
            error = internal("the admission service cannot be reached", cause=cause)
            return Failed(error, why, is_outage=True, may_retry=True)
        case "too-large" | "garbage":
            return Failed(internal("the admission service's answer cannot be used", cause=cause), why)
        case _:
            assert_never(outcome.kind)


def _bad_status(answer: Answered, wait_s: float | None) -> Failed:
    """Any status that is no answer, and a 503 that nothing vouches for."""
    why = f"status {answer.status} with {len(answer.body)} bytes"
    message = f"the admission service failed (status {answer.status})"
    is_outage = answer.status >= 500
    error = internal(message, wait_s=wait_s, cause=ConnectionError(why))
    return Failed(error, why, is_outage=is_outage, may_retry=is_outage and wait_s is None)


def _unusable(answer: Answered, rule: str) -> Failed:
    error = internal(f"the admission service's answer cannot be used: {rule}")
    return Failed(error, f"status {answer.status} with a body that cannot be used")


def _admitted(answer: Answered, header_wait_s: float | None) -> Said | Failed:
    try:
        body = _Body.model_validate_json(answer.body)
    except ValidationError as error:
        return _unusable(answer, fault_lines(error)[0])
    if twice := _given_twice(answer.body):
        return _unusable(answer, f"the key {twice[:60]!r} was given twice")
    if body.kind or body.scope or body.vm_uid:
        return _unusable(answer, "kind, scope and vmUid belong to refusals, not to status 200")
    wait_s = _wait_s(body, header_wait_s)
    return Said(Admission(None, body.admitted, wait_s, body.reason or "", shown(body.message or "")))


def _refused(answer: Answered, requests: tuple[VmRequest, ...], header_wait_s: float | None) -> Said | Failed:
    try:
        model = _Body if answer.status == 503 else _LooseBody
        body = model.model_validate_json(answer.body)
    except ValidationError as error:
        if answer.status == 503:
            return _bad_status(answer, header_wait_s)
        if any(not item["loc"] for item in error.errors()):  # no JSON object: the status says it
            body = _LooseBody()
        else:
            return _unusable(answer, fault_lines(error)[0])
    if twice := _given_twice(answer.body):
        return _unusable(answer, f"the key {twice[:60]!r} was given twice")
    kind = body.kind or KIND_OF_CODE[answer.status]
    wait_s = _wait_s(body, header_wait_s)
    message = shown(body.message or "")
    is_vouched_for = answer.status != 503 or body.kind or message
    if kind is PluginErrorKind.INTERNAL or not is_vouched_for:
        return _bad_status(answer, wait_s)
    message = message or f"the admission service refused (status {answer.status})"
    scope, vm_uid = Scope.POOL, ""
    if kind is PluginErrorKind.INVALID_SPEC and requests and body.scope is not Scope.POOL:
        scope, vm_uid = Scope.VM, body.vm_uid or ""
        if vm_uid and all(request.uid != vm_uid for request in requests):
            return _unusable(answer, "vmUid must be that of a VM that asks")
    reason = body.reason or ""
    refusal = AppError(answer.status, message, detail=Detail(kind, scope, vm_uid, wait_s, reason))
    cap = body.admitted if kind is PluginErrorKind.INSUFFICIENT_RESOURCES else None
    return Said(Admission(None, cap, wait_s, reason, message, refusal))


def _given_twice(content: bytes) -> str:
    """A key that a JSON object has more than once, at any depth: which of its values is meant nobody knows."""
    found = [""]

    def pairs(items: list[tuple[str, Any]]) -> None:
        counts = Counter(key for key, _ in items)
        found[0] = found[0] or next((key for key, count in counts.items() if count > 1), "")

    try:
        json.loads(content, object_pairs_hook=pairs)
    except (ValueError, RecursionError):
        return ""  # no JSON: then its fields say nothing
    return found[0]


def _wait_s(body: _Body, header_wait_s: float | None) -> float | None:
    return header_wait_s if body.retry_after_seconds is None else min(body.retry_after_seconds, MAX_WAIT_S)


def retry_after_s(text: str | None, date: str | None, wall_s: float) -> float | None:
    """Seconds (0 to `MAX_WAIT_S`) that a `Retry-After` header names; None without one that can be read.

    A date counts from the answer's own `date`, so that clocks need not agree, and from `wall_s` where there is none.
    """
    text = (text or "").strip()
    if re.fullmatch("[0-9]+", text):
        return min(float(text), MAX_WAIT_S)
    until_s = _unix_s(text)
    if until_s is None:
        return None
    sent_s = _unix_s(date or "")
    return min(max(until_s - (wall_s if sent_s is None else sent_s), 0.0), MAX_WAIT_S)


def _unix_s(date: str) -> float | None:
    try:
        read = parsedate_to_datetime(date)
        return (read if read.tzinfo is not None else read.replace(tzinfo=UTC)).timestamp()
    except (ArithmeticError, LookupError, TypeError, ValueError):  # what is no date fails in many ways
        return None


def shown(text: str) -> str:
    """A peer's text for clients: one line of printable characters, at most `MAX_MESSAGE`."""
    return clean(text, MAX_MESSAGE)


def internal(message: str, *, wait_s: float | None = None, cause: Exception | None = None) -> AppError:
    """A refusal as Internal that may tell when asking again helps."""
    return new_internal(shown(message), cause, retry_after_s=wait_s)


_WORDS: Final = {
    "extra_forbidden": "there is no such field",
    "missing": "is required",
    "model_type": "must be a mapping",
}


def fault_lines(error: ValidationError) -> list[str]:
    """One line for each fault of args or of a body: where and which rule, never the value."""
    lines = []
    for item in error.errors(include_url=False, include_input=False, include_context=False):
        path = ""
        for part in item["loc"]:
            path += f"[{part}]" if isinstance(part, int) else f".{part}" if path else part
        rule = _WORDS.get(item["type"], item["msg"].removeprefix("Value error, "))
        lines.append(f"{path or '(all)'}: {rule}")
    return lines
