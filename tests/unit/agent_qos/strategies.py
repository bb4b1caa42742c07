"""Strategies that do as a test says, and what they were called with."""

import asyncio
import threading
from collections.abc import Awaitable, Callable
from typing import Any, Final

import structlog

from agent.node.qos.core.lifecycle import LifecycleTiming
from agent.node.qos.core.states import NodeState, PodState, QosClass
from agent.node.qos.ports import MetricCache, NodeClient, StatesInformer, StopSignal
from agent.node.qos.states_informer import StateCallbacks, States
from protocol.values import Resources

NONE: Final = Resources(0, 0)
LOG: Final[Any] = structlog.wrap_logger(structlog.ReturnLogger(), processors=[])
QUICK: Final = LifecycleTiming(sync_s=0.05, end_s=0.2, retry_base_s=0.001, retry_cap_s=0.001)


class Lines:
    """A logger that keeps its lines, as (level, text, fields)."""

    def __init__(self) -> None:
        self.lines: list[tuple[str, str, dict[str, Any]]] = []

    def __getattr__(self, level: str) -> Callable[..., None]:
        return lambda text, **fields: self.lines.append((level, text, fields))

    def texts(self, level: str) -> list[str]:
        return [text for found, text, _ in self.lines if found == level]


class Strategy:
    """Notes each call. `setup`, `running` and `stopping` are what the three methods do; by default `run` waits for its end."""

    def __init__(
        self,
        running: Callable[[StopSignal], Awaitable[None] | None] | None = None,
        *,
        setup: Callable[[NodeClient, MetricCache, StatesInformer], None] = lambda *_: None,
        stopping: Callable[[], None] = lambda: None,
    ) -> None:
        self.calls: list[str] = []
        self.threads: set[threading.Thread] = set()
        self._running = running or self._wait
        self._setup = setup
        self._stopping = stopping

    def init_flags(self, args: Any) -> None:
        self.calls.append("init_flags")

    def setup(self, client: NodeClient, metric_cache: MetricCache, states_informer: StatesInformer) -> None:
        self.threads.add(threading.current_thread())
        self.calls.append("setup")
        self._setup(client, metric_cache, states_informer)

    def run(self, stop: StopSignal) -> Awaitable[None] | None:
        self.calls.append("run")
        return self._running(stop)

    def stop(self) -> None:
        self.calls.append("stop")
        self._stopping()

    @staticmethod
    def _wait(stop: StopSignal) -> None:
        while not stop.wait(60.0):
            pass

    def living(self) -> int:
        return sum(thread.is_alive() for thread in self.threads)


class UnshownError(Exception):
    """An error that cannot be shown."""

    def __repr__(self) -> str:
        raise RuntimeError

    def __str__(self) -> str:
        raise RuntimeError


def raising(error: BaseException) -> Callable[..., None]:
    """A method that raises."""

    def fail(*_: object) -> None:
        raise error

    return fail


async def waiting(stop: StopSignal) -> None:
    """A `run` as a coroutine, which waits for its cancellation."""
    await asyncio.Event().wait()


def states(*, is_synced: bool = True) -> States:
    found = States(StateCallbacks(LOG, clock=lambda: 0.0))
    found.publish_node(NodeState("node-1", Resources(4000, 2**33), Resources(4000, 2**33)))
    found.publish_vms(())
    found.publish_policies(())
    if is_synced:
        found.publish_pods((), is_healthy=True)
    return found


def pod(name: str, **fields: Any) -> PodState:
    return PodState(
        "default", name, f"uid-{name}", QosClass.BEST_EFFORT, "BestEffort", 0, NONE, NONE, **fields
    )
