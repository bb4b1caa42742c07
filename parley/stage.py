"""The parts of a run of the demo, from any source of its node and its VMs."""

import importlib.util
import shlex
import shutil
import sys
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, TypeAlias

from parley.burner import Burner
from parley.children import ProgramSpec
from protocol.values import Resources

CHART_CODE: Final = "xstatic.pkg.d3"
NO_LIVE_PAGE: Final = "no live page: its chart code is missing; .venv/bin/pip install '.[page]' gets it"


def has_live_page() -> bool:
    """Whether the chart code of the scheduler's live page is there: a scheduler that is told to serve the page without it does not start."""
    try:
        return importlib.util.find_spec(CHART_CODE) is not None
    except ModuleNotFoundError:  # of the packages around it
        return False


def live_page_arguments() -> tuple[str, ...]:
    return ("--page",) if has_live_page() else ()


def live_page_address(scheduler_port: int) -> str | None:
    """The address at which a browser on this machine finds the page; None if there is none."""
    return f"http://127.0.0.1:{scheduler_port}/" if has_live_page() else None


Say: TypeAlias = Callable[[str, str], None]
"""Tells people of an event: which part of the stage it is about, and a line."""


class StageError(Exception):
    """The demo cannot run here. The text is for a person, and says what would help."""


async def nothing(_: Say) -> None:
    """Do nothing beside the programs: the load comes from elsewhere."""


@dataclass(frozen=True, slots=True)
class Stage:
    """One node, its VMs, and the programs of Parley that the demo runs for them, in the order of their start."""

    directory: Path
    node: str
    reservable: Resources
    """The amount that all VMs of the node may use together."""
    agent_port: int
    scheduler_port: int
    programs: tuple[ProgramSpec, ...]
    steps: Mapping[str, Resources]
    """One compute unit of each VM, by NAMESPACE/NAME."""
    burner: Burner | None = None
    """Burdens this machine, if one of the VMs has its load."""
    beside: Callable[[Say], Coroutine[Any, Any, None]] = nothing
    """Runs beside the programs until it is cancelled, before any of them is ended: sets loads, and keeps guests running."""
    restarts: Mapping[str, int] = field(default_factory=dict)
    """How often what is no program of Parley was started again; counted by `beside`."""

    @property
    def state(self) -> Path:
        return self.directory / "state"

    @property
    def page(self) -> str | None:
        """The address of the scheduler's live page; None if its chart code is not installed."""
        return live_page_address(self.scheduler_port)

    @property
    def explanation(self) -> str:
        """The command that says why the first of the VMs has its size, for another terminal in the same directory."""
        vm, *_ = self.steps
        scheduler, agent = (f"127.0.0.1:{port}" for port in (self.scheduler_port, self.agent_port))
        return f"{_this_program()} explain {shlex.quote(vm)} --scheduler {scheduler} --agent {agent}"


def _this_program() -> str:
    """How people call the command line that they have called just now."""
    called = Path(sys.argv[0])
    if called.name != "parley":  # python -m parley
        return f"{shlex.quote(sys.executable)} -m parley"
    found = shutil.which("parley")
    is_on_path = found is not None and called.exists() and Path(found).samefile(called)
    return "parley" if is_on_path else shlex.quote(sys.argv[0])
