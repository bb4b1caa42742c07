"""Tests of files that ask for it by `VIRTUAL_TIME = True` run on a loop whose clock jumps: nothing waits."""

import asyncio
from collections.abc import Callable, Mapping

import pytest

from tests.virtual_time import VirtualLoop


def pytest_asyncio_loop_factories(
    config: pytest.Config, item: pytest.Item
) -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    """The loop of each test."""
    del config
    is_virtual = getattr(getattr(item, "module", None), "VIRTUAL_TIME", False)
    return {"virtual": VirtualLoop} if is_virtual else {"asyncio": asyncio.new_event_loop}
