"""A rate with a burst, as a token bucket. Pure: time comes in as a value."""

from dataclasses import dataclass, field


@dataclass(slots=True)
class TokenBucket:
    """Holds `burst` tokens at first and at most, and gets `per_s` more each second."""

    burst: float
    per_s: float
    _tokens: float = field(default=-1.0, init=False)
    _at_s: float = field(default=0.0, init=False)

    def take(self, now_s: float) -> bool:
        """Take a token, if there is one at `now_s` (monotonic)."""
        held = self.burst if self._tokens < 0 else self._tokens + (now_s - self._at_s) * self.per_s
        self._tokens, self._at_s = min(self.burst, held), now_s
        if self._tokens < 1:
            return False
        self._tokens -= 1
        return True
