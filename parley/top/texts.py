"""Reads the documents of agents without trusting them: every reader returns something that can be shown. Pure."""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from protocol import quantities, texts

MAX_CELL: Final = 160
"""Characters of a cell in the table."""
MAX_LINE: Final = 500
"""Characters of a line among the details."""
MAX_AMOUNT: Final = 40


def clean(value: object, limit: int = MAX_CELL) -> str:
    """A text as one line without control sequences, as long as a cell may be; "" for any other value."""
    return texts.clean(value, limit)


def mapping(value: object) -> Mapping[str, Any]:
    """A JSON object, or an empty one."""
    return value if isinstance(value, dict) else {}


def items(value: object, limit: int) -> Sequence[Any]:
    """The first `limit` items of a JSON array, or none."""
    return value[:limit] if isinstance(value, list) else ()


def number(value: object) -> float | None:
    """A finite number, or None."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        found = float(value)
    except OverflowError:
        return None
    return found if math.isfinite(found) else None


def figure(value: float, digits: int = 2) -> str:
    """A number for people; a huge one in short."""
    return f"{value:.{digits}f}" if abs(value) < 1e6 else f"{value:.3g}"


def age(seconds: float) -> str:
    """How long ago, in at most four characters for the first hours."""
    whole = max(int(seconds), 0)
    if whole < 120:
        return f"{whole}s"
    return f"{whole // 60}m" if whole < 7200 else f"{whole // 3600}h"


@dataclass(frozen=True, slots=True)
class ShownAmount:
    """CPU and memory as the agent wrote them, and their values for sorting (None where they are no quantities)."""

    text: str
    worth: tuple[int, int] | None


def amount(value: object) -> ShownAmount | None:
    """An amount `{"cpu": …, "memory": …}`; None where there is none."""
    found = mapping(value)
    cpu, memory = clean(found.get("cpu"), MAX_AMOUNT), clean(found.get("memory"), MAX_AMOUNT)
    if not cpu and not memory:
        return None
    try:
        worth = quantities.parse(cpu).nanos, quantities.parse(memory).nanos
    except quantities.QuantityError:
        return ShownAmount(f"{cpu or '?'}/{memory or '?'}", None)
    return ShownAmount(f"{cpu}/{memory}", worth)


def amount_text(value: object) -> str:
    """An amount for people, or a dash."""
    found = amount(value)
    return found.text if found is not None else "-"


def kind(vm: Mapping[str, Any]) -> str:
    """Whether the resources of a VM are `tied` or `apart`; "" where the agent does not say."""
    tied = vm.get("tied")
    return ("tied" if tied else "apart") if isinstance(tied, bool) else ""


def goal_reasons(vm: Mapping[str, Any]) -> tuple[str, ...]:
    """The reasons for a VM's goal: a text for each resource, or one for both; none where the agent does not say."""
    found = mapping(vm.get("goalReasons"))
    cpu, memory = (clean(found.get(name), MAX_LINE) for name in ("cpu", "memory"))
    if cpu == memory:
        return (cpu,) if cpu else ()
    return tuple(f"{name}: {text}" for name, text in (("CPU", cpu), ("memory", memory)) if text)


def document(body: bytes) -> dict[str, Any] | None:
    """The JSON object that an answer holds, or None."""
    try:
        found = json.loads(body)
    except (ValueError, RecursionError):  # not JSON or not UTF-8; or nested without end
        return None
    return found if isinstance(found, dict) else None
