"""Diagrams of the table machines, drawn from their tables: `python -m tests.tidy.diagrams` writes them into the docs."""

import enum
from collections.abc import Mapping
from pathlib import Path
from typing import Final, TypeVar

from agent.node.plugins.core.plugin_info import TABLE as REGISTRATIONS
from agent.node.plugins.core.plugin_info import PluginState
from informant.core.sessions import TABLE as SESSIONS
from informant.core.sessions import SessionPhase
from scheduler.placing.core.waiting import TABLE as WAITS
from scheduler.placing.core.waiting import WaitPhase

ROOT: Final = Path(__file__).resolve().parents[2]

P = TypeVar("P", bound=enum.Enum)
E = TypeVar("E", bound=enum.Enum)


def diagram(table: Mapping[tuple[P, E], P | None], first: P) -> str:
    """A state diagram in Mermaid's words; to leave the table is to end. Events with the same ends share an arrow."""
    arrows: dict[tuple[str, str], list[str]] = {}
    for (phase, event), after in table.items():
        ends = phase.value, "[*]" if after is None else after.value
        arrows.setdefault(ends, []).append(event.value)
    lines = [f"    {before} --> {after} : {', '.join(events)}" for (before, after), events in arrows.items()]
    return "\n".join(["```mermaid", "stateDiagram-v2", f"    [*] --> {first.value}", *lines, "```"])


def drawn(text: str, name: str, picture: str) -> str:
    """A page with the diagram between its marks. Raises `ValueError` where there are none."""
    begin, end = f"<!-- {name}: drawn from the table -->\n", f"<!-- end of {name} -->"
    before, _, rest = text.partition(begin)
    _, found, after = rest.partition(end)
    if not found:
        raise ValueError(f"there is no place for the diagram {name!r}")
    return f"{before}{begin}{picture}\n{end}{after}"


PAGES: Final = {
    ROOT / "docs" / "guides" / "informant.md": ("sessions", diagram(SESSIONS, SessionPhase.CHECKING)),
    ROOT / "docs" / "reference" / "node-plugins.md": (
        "registrations",
        diagram(REGISTRATIONS, PluginState.DISCOVERED),
    ),
    ROOT / "docs" / "guides" / "scheduling-plugins.md": ("waits", diagram(WAITS, WaitPhase.WAITING)),
}
"""The name and the diagram of each page that has one."""

if __name__ == "__main__":
    for page, (name, picture) in PAGES.items():
        page.write_text(drawn(page.read_text(), name, picture))
