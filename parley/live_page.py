"""The scheduler's live page in the demo: served where its chart code is installed.

The demo starts the scheduler as a process, so it looks for the package beforehand: a scheduler that is told to serve the page and cannot would not start.
"""

import importlib.util
from typing import Final

CHART_CODE: Final = "xstatic.pkg.d3"
MISSING: Final = "no live page: its chart code is missing; .venv/bin/pip install '.[page]' gets it"


def is_installed() -> bool:
    """Whether the chart code of the page is there."""
    try:
        return importlib.util.find_spec(CHART_CODE) is not None
    except ModuleNotFoundError:  # of the packages around it
        return False


def arguments() -> tuple[str, ...]:
    """What a scheduler of the demo is started with, so that it serves the page."""
    return ("--page",) if is_installed() else ()


def address(scheduler_port: int) -> str | None:
    """Where a browser on this machine finds the page; None where there is none."""
    return f"http://127.0.0.1:{scheduler_port}/" if is_installed() else None
