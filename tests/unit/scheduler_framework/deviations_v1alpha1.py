"""Where ours differs from the recordings of the early package: what ours does, and why."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final


@dataclass(frozen=True)
class Deviation:
    """What ours does in one case, in the words of the recording's `expect`, and why."""

    why: str
    ours: Mapping[str, Any]


DEVIATIONS: Final[dict[str, Deviation]] = {}
