"""Makes a runner step back from other agents of its VM: for longer each time that another agent takes over.

A new life supersedes the one before, so two daemons that serve the same VM without a common node lock would supersede each
other for ever, and the scheduler would keep the amounts that each of them may still hold.
"""

from dataclasses import dataclass, replace
from typing import Final

from hosting.backoff import Backoff

WAITS: Final = Backoff(5.0, cap_s=300.0, jitter=0.8)
FORGIVEN_S: Final = 2 * WAITS.cap_s
"""A life that lasted so long had no rival. Longer than any wait, so that of two rivals at most one forgets the other."""
SUSPICIOUS: Final = 2
"""So many takeovers in a row are more than a hand-over between daemons."""


@dataclass(frozen=True, slots=True)
class Rivalry:
    """How often in a row lives of this runner were superseded by lives that are not its own, and, once one was, until when
    the runner waits before its next life."""

    count: int = 0
    wait_until_s: float = 0.0

    def superseded(self, lasted_s: float, now_s: float, chance: float) -> "Rivalry":
        """After a life of `lasted_s` was superseded: 1 to 5 s of waiting, doubled each time up to 5 minutes."""
        count = 1 if lasted_s >= FORGIVEN_S else self.count + 1
        return replace(self, count=count, wait_until_s=now_s + WAITS.delay_s(count, chance))

    def warning(self, lived_s: float) -> str:
        """A warning for an operator when the present life has lasted for `lived_s`; else empty."""
        if self.count < SUSPICIOUS or lived_s >= FORGIVEN_S:
            return ""
        return f"superseded {self.count} times in a row: is a second agent running for this VM?"
