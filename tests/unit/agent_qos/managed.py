"""A QoS manager over strategies of a test, running in the test's loop."""

import asyncio
import contextlib
import random
import threading
import time
from collections.abc import AsyncIterator, Mapping
from typing import Any

from agent.node.qos.client import RunMarks, StrategyPorts
from agent.node.qos.config import ExtensionRegistry, configured
from agent.node.qos.core.gates import FeatureSpec
from agent.node.qos.core.lifecycle import LifecycleTiming
from agent.node.qos.manager import QosManager
from agent.node.qos.ports import StopSignal
from agent.node.qos.states_informer import States
from tests.support.waiting import PATIENCE_S
from tests.unit.agent_qos.strategies import LOG, QUICK, Strategy, states

LIFE = ["init_flags", "setup", "run", "stop"]
SET_UP = ["init_flags", "setup", "stop"]
"""The calls of a strategy whose gate is off."""


def manager(
    plugins: Mapping[str, Strategy],
    known: States | None = None,
    *,
    on: bool = True,
    recommend_only: tuple[str, ...] = (),
    timing: LifecycleTiming = QUICK,
    log: Any = LOG,
    marks: RunMarks | None = None,
) -> QosManager:
    registry = ExtensionRegistry()
    for name, plugin in plugins.items():
        registry.register_plugin(name, FeatureSpec(default=on), plugin)
    config = configured({}, {}, recommend_only=recommend_only, registry=registry)
    cache: Any = None
    ports = StrategyPorts(marks=marks)
    return QosManager(config, cache, known or states(), ports, log, random.Random(0), timing)


@contextlib.asynccontextmanager
async def running(found: QosManager) -> AsyncIterator[QosManager]:
    """The manager, running; at the end it is cancelled, as the daemon does, and drains."""
    task = asyncio.create_task(found.run())
    await asyncio.sleep(0)
    try:
        yield found
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


class Hanging:
    """A method that hangs, until the test ends it."""

    def __init__(self) -> None:
        self.is_over = threading.Event()

    def __call__(self, *_: object) -> None:
        assert self.is_over.wait(PATIENCE_S)

    async def in_a_thread(self, stop: StopSignal) -> None:
        await asyncio.to_thread(self)

    def spin(self, stop: StopSignal) -> None:
        limit_s = time.monotonic() + PATIENCE_S
        while not self.is_over.is_set():
            assert time.monotonic() < limit_s
