"""A process with strategies that hang wherever a strategy can: it ends all the same, when it is told to."""

import asyncio
import random
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from agent.node.qos.client import StrategyPorts
from agent.node.qos.config import ExtensionRegistry, configured
from agent.node.qos.core.gates import FeatureSpec
from agent.node.qos.core.lifecycle import LifecycleTiming
from agent.node.qos.core.states import ObjectType
from agent.node.qos.manager import QosManager
from agent.node.qos.ports import MetricCache, NodeClient, StatesInformer, StopSignal
from hosting import lifecycle, logs
from tests.support.waiting import until
from tests.unit.agent_qos.strategies import states

FOR_EVER = 3600.0
hanging: list[str] = []


def hang(where: str) -> None:
    """Note that this is where a strategy hangs, and do."""
    hanging.append(where)
    threading.Event().wait(FOR_EVER)


class HangingStrategy:
    """Hangs in what `run` does, or earlier."""

    def __init__(self, run: Callable[[StopSignal], Awaitable[None] | None], where: str = "") -> None:
        self._run = run
        self._where = where

    def init_flags(self, args: Any) -> None:
        """No args."""

    def setup(self, client: NodeClient, metric_cache: MetricCache, states_informer: StatesInformer) -> None:
        if self._where == "callback":
            states_informer.register_callbacks(ObjectType.NODE, "hangs", "", lambda _: hang("callback"))
        if self._where == "setup":
            hang("setup")

    def run(self, stop: StopSignal) -> Awaitable[None] | None:
        return self._run(stop)

    def stop(self) -> None:
        """Nothing to put back."""


def wait(stop: StopSignal) -> None:
    stop.wait(FOR_EVER)


def in_run(stop: StopSignal) -> None:
    hang("run")


async def in_a_thread(stop: StopSignal) -> None:
    await asyncio.to_thread(hang, "thread")


async def in_the_loop(stop: StopSignal) -> None:
    hang("loop")


def in_a_pool(stop: StopSignal) -> None:
    ThreadPoolExecutor(1).submit(hang, "pool")
    stop.wait(FOR_EVER)


def in_a_thread_of_its_own(stop: StopSignal) -> None:
    threading.Thread(target=hang, args=("own thread",), daemon=False).start()
    stop.wait(FOR_EVER)


STRATEGIES = {
    "Setup": HangingStrategy(wait, "setup"),
    "Callback": HangingStrategy(wait, "callback"),
    "Run": HangingStrategy(in_run),
    "Thread": HangingStrategy(in_a_thread),
    "Loop": HangingStrategy(in_the_loop),
    "Pool": HangingStrategy(in_a_pool),
    "OwnThread": HangingStrategy(in_a_thread_of_its_own),
}


log = logs.logger("hanging")


async def main(stop: lifecycle.Stop) -> int:
    registry = ExtensionRegistry()
    for name, strategy in STRATEGIES.items():
        registry.register_plugin(name, FeatureSpec(default=True), strategy)
    cache: Any = None
    timing = LifecycleTiming(end_s=0.1)
    manager = QosManager(
        configured({}, {}, registry=registry),
        cache,
        states(),
        StrategyPorts(),
        log,
        random.Random(),
        timing,
    )
    running = asyncio.create_task(manager.run())
    await until(lambda: len(hanging) == len(STRATEGIES))
    log.info("all hang")
    await stop.wait()
    running.cancel()
    await asyncio.wait([running])
    log.info("ended")
    return 7


if __name__ == "__main__":
    raise SystemExit(lifecycle.run_to_exit(main))
