"""The rules for what people write of a pool, and for what plugins answer. Pure."""

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from protocol.texts import clean
from protocol.values import RESOURCE_NAMES, Resources
from scheduler.pools.core.errors import MAX_MESSAGE, AppError, detail_of, new_internal
from scheduler.pools.core.values import (
    ADMITTED,
    Admission,
    AmountCap,
    PodAdmission,
    Pool,
    PoolLimits,
    described_as,
)

MAX_UNITS: Final = 2**31 - 1
MAX_TEXTS: Final = 64
MAX_ANNOTATION: Final = 4096
MAX_WAIT_S: Final = 1e9
"""The longest wait that a plugin can name (30 years); more is a mistake, such as a time of day in its place."""
KEY: Final = re.compile(
    r"([a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?"
)
LABEL: Final = re.compile(r"([A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?")


def key(value: str) -> str:
    """The name of a label, an annotation or a finalizer. Raises `ValueError`."""
    if not KEY.fullmatch(value):
        raise ValueError("must be a name of at most 63 letters, digits, -, _ and ., perhaps after a domain/")
    return value


def label(value: str) -> str:
    """The text of a label. Raises `ValueError`."""
    if not LABEL.fullmatch(value):
        raise ValueError("must be at most 63 letters, digits, -, _ and .")
    return value


def annotation(value: str) -> str:
    """The text of an annotation. Raises `ValueError`."""
    if len(value) > MAX_ANNOTATION:
        raise ValueError(f"must have at most {MAX_ANNOTATION} characters")
    if any("\ud800" <= each <= "\udfff" for each in value):
        raise ValueError("must not hold half of a character")
    return value


def pool_problem(pool: Any) -> str:
    """The fault of the fields that a plugin may change; empty if a pool can be stored and read again."""
    if not (isinstance(pool.compute_unit, Resources) and pool.compute_unit.is_positive()):
        return f"compute_unit must be a positive amount of each resource, not {pool.compute_unit!r}"
    if not isinstance(pool.limits, PoolLimits):
        return f"limits must be PoolLimits, not {type(pool.limits).__name__}"
    most, most_per_vm, least = pool.limits.max_units, pool.limits.max_units_per_vm, pool.limits.min_units
    given = [each for each in ((most, 0), (most_per_vm, 1)) if each[0] is not None]
    for limit, lowest in (*given, (least, 0)):
        if type(limit) is not int or not lowest <= limit <= MAX_UNITS:
            return f"a limit must be a whole number from {lowest} to {MAX_UNITS}, not {limit!r}"
    if most is not None and least > most:
        return f"min_units must not exceed max_units ({most}), as {least} does"
    return _texts_problem(pool)


def _texts_problem(pool: Pool) -> str:
    texts = (pool.labels, pool.annotations, pool.finalizers)
    if max(map(len, texts)) > MAX_TEXTS:
        return f"there may be at most {MAX_TEXTS} labels, annotations and finalizers each"
    checked = (
        *((key, name) for each in texts for name in each),
        *((label, text) for text in pool.labels.values()),
        *((annotation, text) for text in pool.annotations.values()),
    )
    if not all(isinstance(text, str) for _, text in checked):
        return "labels, annotations and finalizers must be texts"
    try:
        for check, text in checked:
            check(text)
    except ValueError as error:
        return f"labels, annotations and finalizers: {error}"
    return ""


# ------------------------------------------------------------ what plugins answer


def sound(answer: Any, kind: type[Any], seen: Any, hook: str) -> Any:
    """A plugin's answer, without what it must not change. Raises what is wrong with it otherwise; anybody may write a plugin."""
    if not isinstance(answer, kind):
        raise TypeError(f"a hook gives {kind.__name__}, not {type(answer).__name__}")
    problem = _answer_problem(answer)
    if problem:
        raise ValueError(problem)
    if isinstance(answer, PodAdmission) or answer is ADMITTED:
        return answer
    told = _told(answer)
    return told if told.pool is None else _checked(told, seen, hook)


def _told(own: Admission) -> Admission:
    """The answer with texts that can be shown; that of an error is read by `message_of`."""
    if not (own.message or own.reason or own.amounts):
        return own
    amounts = tuple(replace(cap, message=_line(cap.message), reason=_line(cap.reason)) for cap in own.amounts)
    return replace(own, message=_line(own.message), reason=_line(own.reason), amounts=amounts)


def _line(text: str) -> str:
    return clean(text, MAX_MESSAGE)


def _checked(own: Admission, seen: Pool, hook: str) -> Admission:
    """A plugin may change labels, annotations, finalizers, and, but for a deletion, unit and limits."""
    assert own.pool is not None
    kept = described_as(seen, own.pool)
    if hook == "pre_delete_pool":
        kept = replace(kept, compute_unit=seen.compute_unit, limits=seen.limits)
    if kept != own.pool:
        refusal = new_internal("a plugin changed what is not a plugin's to change, such as replicas")
        return replace(own, pool=None, error=own.error or refusal)
    return own


def error_problem(error: Any) -> str:
    """The fault of a refusal; empty if there is none."""
    if not isinstance(error, AppError):
        return f"error must be an AppError, not {type(error).__name__}"
    try:
        str(error.message)
    except Exception as unreadable:  # noqa: BLE001 - anybody may write a plugin
        return f"the message cannot be read: {unreadable!r}"
    return _wait_problem(detail_of(error).retry_after_s)


def _answer_problem(answer: Any) -> str:
    problem = error_problem(answer.error) if answer.error is not None else ""
    if problem:
        return problem
    if isinstance(answer, PodAdmission):
        is_manifest = answer.pod is None or isinstance(answer.pod, Mapping)
        return "" if is_manifest else f"pod must be a manifest, not {type(answer.pod).__name__}"
    if answer is ADMITTED:
        return ""
    cap = answer.admitted
    if cap is not None and (type(cap) is not int or cap < 0):
        return f"admitted must be a whole number from 0, not {cap!r}"
    problem = _caps_problem(answer.amounts) or _wait_problem(answer.retry_after_s)
    if problem:
        return problem
    if not (isinstance(answer.reason, str) and isinstance(answer.message, str)):
        return "reason and message must be texts"
    if answer.pool is None:
        return ""
    if not isinstance(answer.pool, Pool):
        return f"pool must be a Pool, not {type(answer.pool).__name__}"
    return pool_problem(answer.pool)


def _caps_problem(caps: Any) -> str:
    if caps == ():
        return ""
    if not (isinstance(caps, tuple) and all(isinstance(cap, AmountCap) for cap in caps)):
        return f"amounts must be a tuple of AmountCap, not {caps!r}"
    for cap in caps:
        if cap.resource not in RESOURCE_NAMES:
            return f"the resource of a cap must be one of {', '.join(RESOURCE_NAMES)}, not {cap.resource!r}"
        if type(cap.most) is not int or cap.most < 0:
            return f"most must be a whole number of milli-CPU or bytes from 0, not {cap.most!r}"
        if not (isinstance(cap.message, str) and isinstance(cap.reason, str)):
            return "reason and message of a cap must be texts"
    return ""


def _wait_problem(wait_s: Any) -> str:
    is_number = isinstance(wait_s, int | float) and not isinstance(wait_s, bool)
    if wait_s is None or (is_number and 0 <= wait_s <= MAX_WAIT_S):
        return ""
    return f"retry_after_s must be a number of seconds from 0, not {wait_s!r}"
