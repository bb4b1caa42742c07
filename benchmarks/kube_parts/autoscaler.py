"""A stated reference: when a Vertical Pod Autoscaler with its published timings would act on the same jumps. Nothing of this is measured.

Source: the flags of its version 1: recommender `--recommender-interval` 1 min, updater `--updater-interval` 1 min. A jump comes at
a random moment of both. Every other wait counts as zero: scraping of metrics, the share of a histogram that a jump must reach before
the recommendation rises, eviction and restart of the pod, or its resize in place.
"""

import random
from typing import Final

RECOMMENDER_S: Final = 60.0
UPDATER_S: Final = 60.0


def waits_s(count: int, rng: random.Random) -> list[float]:
    """From each of `count` jumps to the updater that acts on the next recommendation, in seconds."""
    return [rng.uniform(0, RECOMMENDER_S) + rng.uniform(0, UPDATER_S) for _ in range(count)]
