"""Chromium without a window, driven over the live page: what it shows, what it asked for, and what it complained about."""

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from selenium import webdriver
from selenium.common.exceptions import WebDriverException
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.remote.webelement import WebElement

from tests.support.waiting import NOT_YET, shown_blocking
from tests.support.watch_assets import find_browser

FLAGS: Final = (
    "--headless=new",
    "--no-sandbox",  # Chromium refuses to run as root with it; the page is our own
    "--disable-dev-shm-usage",
    "--disable-gpu",
    "--hide-scrollbars",
    "--disable-background-networking",
    "--disable-component-update",
    "--no-first-run",
)
WIDE: Final = (1280, 800)
NARROW: Final = (800, 1300)
PHONE: Final = (420, 900)
WIDEST: Final = (1920, 1080)
_NUMBER: Final = r"-?[\d.]+"


class PageDriver:
    def __init__(self, driver: webdriver.Chrome) -> None:
        self._driver = driver

    def open(self, address: str, size: tuple[int, int] = WIDE, *, is_dark: bool = False) -> None:
        """Show the page anew, in a window of that size."""
        self._driver.get("about:blank")  # an address that differs in its fragment only would not be loaded
        self.drain()
        self.resize(size)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if is_dark else "light"}
        self._command("Emulation.setEmulatedMedia", features=[scheme])
        self._driver.get(address)

    def resize(self, size: tuple[int, int]) -> None:
        width, height = size
        self._command(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=False,
        )

    def run(self, script: str, *arguments: object) -> Any:
        """Run a script within the page as a debugger would, and return its value: the page's policy does not hold for it."""
        return self._driver.execute_script(script, *arguments)

    def text(self, query: str) -> str:
        """The text of the first such element; empty where there is none."""
        return str(
            self.run(
                "const found = document.querySelector(arguments[0]); return found ? found.innerText : ''",
                query,
            )
        )

    def texts(self, query: str) -> list[str]:
        found: list[str] = self.run(
            "return [...document.querySelectorAll(arguments[0])].map((each) => each.innerText)", query
        )
        return found

    def words(self, query: str) -> list[str]:
        """The words of all such elements of drawings, in sight or not."""
        found: list[str] = self.run(
            "return [...document.querySelectorAll(arguments[0])].map((each) => each.textContent)", query
        )
        return found

    def count(self, query: str) -> int:
        return int(self.run("return document.querySelectorAll(arguments[0]).length", query))

    def rows(self, panel: str) -> list[str]:
        """The rows of a list that are drawn, from top to bottom."""
        found: list[str] = self.run(
            "return [...document.querySelectorAll(arguments[0])].sort((a, b) => a.offsetTop - b.offsetTop).map((each) => each.innerText)",
            f"{panel} .runway .row",
        )
        return found

    def row_id(self, panel: str, name: str) -> str:
        """The ID of the row that says so, as soon as it is drawn; another row has it when the order changes."""

        def look() -> str | None:
            found: list[list[str]] = self.run(
                "return [...document.querySelectorAll(arguments[0])].map((each) => [each.id, each.innerText])",
                f"{panel} .runway .row",
            )
            return next((row for row, text in found if name in text), None)

        return shown_blocking(f"a row of {name}", look)

    def find(self, query: str) -> WebElement:
        return self._driver.find_element(By.CSS_SELECTOR, query)

    def click(self, query: str) -> None:
        """Click on the first such element."""
        self.find(query).click()

    def click_row(self, panel: str, name: str) -> None:
        """Click on the row that says so, as soon as it is drawn."""

        def clicked() -> bool:
            for row in self._driver.find_elements(By.CSS_SELECTOR, f"{panel} .runway .row"):
                if name in row.text:
                    row.click()
                    return True
            return False

        shown_blocking(f"a row of {name}", lambda: _unless_redrawn(clicked))

    def type(self, query: str, *keys: str) -> None:
        """Press keys while that element has the focus."""
        self.find(query).send_keys(*keys)

    def focus(self) -> str:
        return str(self.run("return document.activeElement.id"))

    def until(self, what: str, query: str, part: str) -> str:
        """The text of an element, as soon as that part is in it."""

        def look() -> str | None:
            text = self.text(query)
            return text if part in text else None

        try:
            return shown_blocking(f"{what}: {part!r}", look)
        except AssertionError as error:
            raise AssertionError(f"{error}; it shows {self.text(query)[:500]!r}") from None

    def until_rows(self, panel: str, *parts: str) -> list[str]:
        """The rows that are drawn, as soon as each part is in one of them."""

        def look() -> list[str] | None:
            rows = self.rows(panel)
            return rows if rows and all(any(part in row for row in rows) for part in parts) else None

        return shown_blocking(f"rows with {parts}", look)

    def width(self, query: str) -> float:
        """How wide the first such element is drawn, in pixels."""
        return float(
            self.run("return document.querySelector(arguments[0]).getBoundingClientRect().width", query)
        )

    def heights(self, query: str) -> set[float]:
        """The heights that the path of a stepped line is at, in units of its drawing; downwards, as in SVG."""
        path = str(self.run("return document.querySelector(arguments[0]).getAttribute('d')", query))
        found = re.fullmatch(rf"M{_NUMBER},({_NUMBER})((?:[HV]{_NUMBER})*)", path)
        assert found is not None, f"{query} is no stepped line: {path!r}"
        return {float(found[1]), *(float(each) for each in re.findall(rf"V({_NUMBER})", found[2]))}

    def tick(self, times: int) -> None:
        """Wait until the page's own clock has struck so often for a timer of a second, as the page asks at."""
        self.run("window.ticks = 0; clearInterval(window.ticking)")
        self.run("window.ticking = setInterval(() => { window.ticks += 1; }, 1000)")
        shown_blocking("the page's clock", lambda: self.run("return window.ticks") >= times)
        self.run("clearInterval(window.ticking)")

    def complaints(self) -> list[str]:
        """The console's messages since the last look."""
        return [entry["message"] for entry in self._log("browser")]

    def requests(self) -> list[str]:
        """The addresses that were asked for since the last look, by their order."""
        messages = (json.loads(entry["message"])["message"] for entry in self._log("performance"))
        return [
            message["params"]["request"]["url"]
            for message in messages
            if message["method"] == "Network.requestWillBeSent"
        ]

    def drain(self) -> None:
        """Forget what was said and asked for until now."""
        self.complaints()
        self.requests()

    def save(self, path: Path) -> None:
        """Write what is seen as a PNG."""
        path.parent.mkdir(parents=True, exist_ok=True)
        assert self._driver.save_screenshot(str(path))

    def _log(self, kind: str) -> list[dict[str, Any]]:
        entries: list[dict[str, Any]] = self._driver.get_log(kind)  # type: ignore[no-untyped-call]  # selenium has no types there
        return entries

    def _command(self, name: str, **parameters: object) -> None:
        self._driver.execute_cdp_cmd(name, parameters)


def strangers(requests: list[str], address: str) -> list[str]:
    """The requests that went elsewhere than to the server of an address."""
    host = urlsplit(address).netloc
    return [
        each
        for each in requests
        if urlsplit(each).scheme not in {"data", "about"} and urlsplit(each).netloc != host
    ]


def _unless_redrawn(look: Any) -> Any:
    """A row may be drawn anew between the look and the click."""
    try:
        return look()
    except WebDriverException as error:
        raise NOT_YET[1](str(error)) from None


@contextmanager
def browsing(directory: Path) -> Iterator[PageDriver]:
    """A browser that keeps all it writes below a directory, until the end. Raises `WatchAssetsError` where there is none."""
    programs = find_browser()
    options = webdriver.ChromeOptions()
    options.binary_location = programs.chromium
    for flag in (*FLAGS, f"--user-data-dir={directory / 'profile'}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = webdriver.Chrome(options=options, service=Service(programs.driver))
    try:
        yield PageDriver(driver)
    finally:
        driver.quit()


ENTER: Final = Keys.ENTER
TAB: Final = Keys.TAB
ESCAPE: Final = Keys.ESCAPE
DOWN: Final = Keys.ARROW_DOWN
END: Final = Keys.END
