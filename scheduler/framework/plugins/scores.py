"""How scores that may be any number are brought into the range 0 to 100."""

from scheduler.framework.core.plugin import MAX_NODE_SCORE


def normalize(scores: dict[str, int], *, is_reversed: bool = False) -> None:
    """Scale `scores` in place so that the largest one is 100; with `is_reversed` the smallest is best, and 0 becomes 100.

    Scores are 0 or more. Source: `DefaultNormalizeScore` of kube-scheduler.
    """
    most = max(scores.values(), default=0)
    for name, score in scores.items():
        scaled = score * MAX_NODE_SCORE // most if most else 0
        scores[name] = MAX_NODE_SCORE - scaled if is_reversed else scaled
