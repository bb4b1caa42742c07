"""Output for whoever debugs plugins: the scores of the best nodes as a table, and why each node was rejected.

Both are off unless somebody switches them on, at the start or while the scheduler runs. Source: reference/koordinator.md 1.9.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from scheduler.placing.core.plugin import NodePluginScores

MOST_NODES: Final = 100
"""A table of scores has no more rows."""


@dataclass(slots=True)
class DebugFlags:
    """The switches. `scores` is the number of nodes in the table of scores, 0 for no table; `filters` logs rejections."""

    scores: int = 0
    filters: bool = False


def score_table(pod: str, scores: Sequence[NodePluginScores], most_nodes: int) -> str:
    """The scores of the best nodes, a row for each, the best one first. Columns are the sum and the plugins, with their weights."""
    best = sorted(scores, key=lambda node: (-node.total, node.name))[:most_nodes]
    plugins = [plugin for plugin, _ in best[0].scores] if best else []
    head = ("#", "node", "score", *plugins)
    rows = [
        (str(place), node.name, str(node.total), *(str(dict(node.scores).get(name, "")) for name in plugins))
        for place, node in enumerate(best)
    ]
    widths = [max(len(row[column]) for row in (head, *rows)) for column in range(len(head))]
    lines = (
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in (head, *rows)
    )
    return "\n".join((f"scores for {pod}", *(line.rstrip() for line in lines)))
