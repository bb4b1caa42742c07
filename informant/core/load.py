"""A pod's load averages, which no kernel tells: the CPUs that the pod used or was kept from using, damped as the kernel damps."""

import math
from dataclasses import dataclass
from typing import Final

_OVER_S: Final = (60.0, 300.0, 900.0)


@dataclass(frozen=True, slots=True)
class DampedLoad:
    """Load averages over 1, 5 and 15 minutes at `at_s`, when `wanted_s` seconds of CPU had been used or kept back in all.

    Time in which a CPU limit holds tasks back counts as load: those tasks would run. In the kernel's load they count as well.
    """

    at_s: float
    wanted_s: float
    averages: tuple[float, float, float] = (0.0, 0.0, 0.0)

    def after(self, now_s: float, wanted_s: float) -> "DampedLoad":
        """The averages at `now_s`; the same ones if no time has passed."""
        span_s = now_s - self.at_s
        if span_s <= 0:
            return self
        load = max(0.0, wanted_s - self.wanted_s) / span_s
        one, five, fifteen = (
            load + (average - load) * math.exp(-span_s / over_s)
            for average, over_s in zip(self.averages, _OVER_S, strict=True)
        )
        return DampedLoad(now_s, wanted_s, (one, five, fifteen))
