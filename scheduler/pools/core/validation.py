"""How what people and plugins write of a pool may be spelled. Pure."""

import re
from typing import Final

from scheduler.pools.core.values import Pool

MAX_UNITS: Final = 2**31 - 1
MAX_TEXTS: Final = 64
MAX_ANNOTATION: Final = 4096
_KEY: Final = re.compile(
    r"([a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?"
)
_LABEL: Final = re.compile(r"([A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?")


def key(value: str) -> str:
    """The name of a label, an annotation or a finalizer. Raises `ValueError`."""
    if not _KEY.fullmatch(value):
        raise ValueError("must be a name of at most 63 letters, digits, -, _ and ., perhaps after a domain/")
    return value


def label(value: str) -> str:
    """The text of a label. Raises `ValueError`."""
    if not _LABEL.fullmatch(value):
        raise ValueError("must be at most 63 letters, digits, -, _ and .")
    return value


def annotation(value: str) -> str:
    """The text of an annotation. Raises `ValueError`."""
    if len(value) > MAX_ANNOTATION:
        raise ValueError(f"must have at most {MAX_ANNOTATION} characters")
    if any("\ud800" <= each <= "\udfff" for each in value):
        raise ValueError("must not hold half of a character")
    return value


def problem_of(pool: Pool) -> str:
    """What is wrong with a pool as a plugin has changed it; one that could not be written or read again is none."""
    if max(len(pool.labels), len(pool.annotations), len(pool.finalizers)) > MAX_TEXTS:
        return f"there may be at most {MAX_TEXTS} labels, annotations and finalizers each"
    limits = (pool.limits.max_units, pool.limits.max_units_per_vm, pool.limits.min_units)
    if any(limit is not None and limit > MAX_UNITS for limit in limits):
        return f"a limit must be at most {MAX_UNITS}"
    try:
        for name in (*pool.labels, *pool.annotations, *pool.finalizers):
            key(name)
        for text in pool.labels.values():
            label(text)
        for text in pool.annotations.values():
            annotation(text)
    except ValueError as error:
        return f"labels, annotations and finalizers: {error}"
    return ""
