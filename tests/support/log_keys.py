"""The keys of log lines about decisions: those that docs/reference/logs.md promises, beside those of every line."""

from typing import Final

SCHEDULER_KEYS: Final = frozenset(
    {
        "vm",
        "node",
        "seq",
        "outcome",
        "requested",
        "before",
        "permit",
        "reason",
        "resource",
        "message",
        "retry_after_s",
    }
)
AGENT_KEYS: Final = frozenset(
    {"seq", "goal", "size", "target", "permit", "reason", "resource", "message", "retry_after_s"}
)
OF_EVERY_LINE: Final = frozenset({"event", "log_level"})
"""The keys of a recorded line before it is written."""
