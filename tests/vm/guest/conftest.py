"""The guest of a test in this directory. Nothing here is timed: whatever is waited for has a generous deadline."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from hosting.client import HttpClient
from tests.support.vms import Guests, shell_of
from tests.vm.guest.agents import GuestAgent
from tests.vm.guest.inside import Inside
from tests.vm.guest.lab import BOOT, Lab
from tests.vm.guest.plugs import Plugs

HERE = Path(__file__).parent
DEADLINE_S = 400
"""Of a test, with the making of the image and the first boot, on a machine that does much else besides."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Give the tests of this directory their deadline."""
    for item in items:
        if item.path.is_relative_to(HERE):
            item.add_marker(pytest.mark.timeout(DEADLINE_S))


@pytest.fixture
async def lab(guests: Guests) -> AsyncIterator[Lab]:
    """A guest whose agent is in use and has announced the size; at the end the log must be free of faults."""
    guest = await guests()
    async with shell_of(guest) as shell, HttpClient() as client:
        agent = GuestAgent(guest.address)
        try:
            made = Lab(guest, client, agent, Plugs(guest.control), Inside(shell))
            await agent.register()
            await agent.upscale(1000, BOOT)
            yield made
            assert made.faults() == []
        finally:
            await agent.close()
