"""Makes the picture of the live page that the README shows, from a run of the demo:

    python -m tests.page.screenshot [FILE]

starts `parley demo`, waits until there is something to see, and writes what Chromium shows; `docs/images/live-page.png` by default.
"""

import re
import signal
import sys
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from tests.page.browser import PageDriver, browsing
from tests.support.processes import Program, fetch
from tests.support.short_paths import short_directory
from tests.support.waiting import shown_blocking

PICTURE: Final = Path(__file__).parents[2] / "docs" / "images" / "live-page.png"
SIZE: Final = (1280, 720)
DECISIONS: Final = 25
"""How many decisions there are to see before the README's picture is taken."""
MOST_BYTES: Final = 200_000
"""More than that is too much for a repository."""


def address_of(demo: Program) -> str:
    """The address of the demo's live page, as soon as the demo has said it."""

    def said() -> str | None:
        assert demo.process.poll() is None, demo.text()
        found = re.search(r"live page: (http://\S+)", demo.text())
        return found[1] if found else None

    return shown_blocking("the address of the page", said)


def is_worth_a_picture(browser: PageDriver, decisions: int) -> bool:
    """Whether some VM gets less than it wants, and so many decisions are to be seen."""
    decided = re.match(r"\d+", browser.text("#stream-count"))
    return (
        decided is not None
        and int(decided[0]) >= decisions
        and browser.count("#vms .denied") > 0
        and browser.count("#vms .partial, #vms .permitted") > 0
    )


def take(path: Path, decisions: int = DECISIONS) -> None:
    """Write the picture, as soon as so many decisions are to be seen. Raises `AssertionError` where there is nothing to see, or the picture is too large."""
    with short_directory() as directory, browsing(directory) as browser:
        arguments = ("demo", "--vms", "6", "--directory", str(directory / "demo"))
        demo = Program("parley", *arguments, output=directory / "demo.log")
        try:
            address = address_of(demo)
            port = urlsplit(address).port
            assert port is not None
            shown_blocking("the scheduler", lambda: fetch(port, "/readyz"))
            browser.open(address, SIZE)
            shown_blocking("something to see", lambda: is_worth_a_picture(browser, decisions))
            browser.save(path)
        finally:
            demo.end(signal.SIGINT)
    assert path.stat().st_size < MOST_BYTES, f"{path.stat().st_size} bytes are too many"


if __name__ == "__main__":
    take(Path(sys.argv[1]) if len(sys.argv) > 1 else PICTURE)
