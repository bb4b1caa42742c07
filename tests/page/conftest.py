"""One browser for all tests of the live page."""

from collections.abc import Iterator

import pytest

from tests.page.browser import PageDriver, browsing
from tests.support.short_paths import short_directory
from tests.support.watch_assets import WatchAssetsError, find_browser


@pytest.fixture(scope="session")
def browser() -> Iterator[PageDriver]:
    """Chromium; tests are skipped where it is missing."""
    try:
        find_browser()
    except WatchAssetsError as error:
        pytest.skip(str(error))
    with short_directory() as directory, browsing(directory) as found:
        yield found
