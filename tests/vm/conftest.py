"""The fixtures of tests with real guests. Where these are impossible, the tests are skipped, with what would help."""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from labs.vms import image as images
from labs.vms.image import VmImage
from tests.support import vms
from tests.support.vms import Guests

_STARTED = pytest.StashKey[Guests]()
_COUNT = pytest.StashKey[int]()


@pytest.fixture(scope="session")
def image() -> VmImage:
    """The image of this checkout; it is built where the cache has none."""
    why = vms.why_skipped()
    if why is not None:
        pytest.skip(why)
    return images.build(print)


@pytest.fixture(scope="session")
def guarded(image: VmImage) -> Iterator[Path]:
    """A directory with a short path, which goes with this process, with all that was started meanwhile."""
    with vms.guarded_directory() as directory:
        yield directory


@pytest.fixture
def guest_directory(guarded: Path, request: pytest.FixtureRequest) -> Path:
    """A directory with a short path for the files of one test's guests."""
    number = request.session.stash.setdefault(_COUNT, 0) + 1
    request.session.stash[_COUNT] = number
    directory = guarded / f"t{number}"
    directory.mkdir()
    return directory


@pytest.fixture
async def guests(
    image: VmImage, guest_directory: Path, request: pytest.FixtureRequest
) -> AsyncIterator[Guests]:
    """Starts guests for a test: `guest = await guests()`. They end with the test."""
    started = Guests(image, guest_directory)
    request.node.stash[_STARTED] = started
    try:
        yield started
    finally:
        await started.end()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Any:
    """A test that failed shows what its guests printed last."""
    report = yield
    started = item.stash.get(_STARTED, None)
    if report.failed and started is not None:
        report.sections += started.tails()
    return report
