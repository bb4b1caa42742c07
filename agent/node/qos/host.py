"""One strategy with its thread. Events of the thread are told to the daemon's loop, which decides everything."""

import asyncio
import contextlib
import inspect
import random
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from typing import Final

from agent.node.qos.client import RunMarks
from agent.node.qos.core.lifecycle import (
    Lifecycle,
    LifecycleAction,
    LifecycleEvent,
    LifecycleSignal,
    LifecycleTiming,
    RunEnded,
    StrategyState,
    ThreadEnded,
    step,
)
from agent.node.qos.ports import ExtensionPlugin, MetricCache, NodeClient
from agent.node.qos.states_informer import States, StrategyStates
from hosting.logs import Logger
from protocol.texts import clean

MAX_ERROR: Final = 500
"""Characters of an error that are kept."""
CALLBACKS_END_S: Final = 2.0
"""How long `stop` waits for callbacks of the strategy that still run."""


class ThreadStop:
    """The request that a strategy's thread ends. Implements `StopSignal`."""

    def __init__(self) -> None:
        self._event = threading.Event()
        self._lock = threading.Lock()
        self._on_request: Callable[[], object] = lambda: None

    def request(self) -> None:
        """Ask for the end, from any thread."""
        with self._lock:
            self._event.set()
            self._on_request()

    def is_set(self) -> bool:
        return self._event.is_set()

    def wait(self, timeout_s: float) -> bool:
        """Wait until the end is asked for, at most `timeout_s` seconds; whether it is asked for."""
        return self._event.wait(timeout_s)

    @contextlib.contextmanager
    def calling(self, on_request: Callable[[], object]) -> Iterator[None]:
        """Have `on_request` called with the request, at once if that was made before."""
        with self._lock:
            self._on_request = on_request
            if self._event.is_set():
                on_request()
        try:
            yield
        finally:
            with self._lock:
                self._on_request = lambda: None


@dataclass(frozen=True, slots=True)
class PluginDependencies:
    """The tools that every strategy is given. `client` makes that of one strategy, by its name, and `acting` one that acts even if the
    strategy only recommends. Without `marks` nothing is known of an earlier life."""

    client: Callable[[str, ThreadStop], NodeClient]
    acting: Callable[[str, ThreadStop], NodeClient]
    metric_cache: MetricCache
    states: States
    marks: RunMarks | None = None


class PluginHost:
    """One strategy. Every method is called in the daemon's loop; only the strategy's own methods run in its thread."""

    def __init__(
        self,
        name: str,
        plugin: ExtensionPlugin,
        dependencies: PluginDependencies,
        log: Logger,
        rng: random.Random,
        timing: LifecycleTiming,
        on_change: Callable[[], None],
    ) -> None:
        """`on_change` is called after each change of the state."""
        self.name = name
        self.life = Lifecycle(since_s=time.monotonic())
        self._plugin = plugin
        self._dependencies = dependencies
        self._log = log
        self._rng = rng
        self._timing = timing
        self._on_change = on_change
        self._stop = ThreadStop()
        self._only_sets_up = False
        self._timer: asyncio.TimerHandle | None = None

    def set_up(self) -> None:
        """Set up the strategy, whose gate is off, and end it. If an earlier life of the agent has left changes, they are put back: `run` is
        called and asked to end at once. Else it is not called."""
        self._only_sets_up = True
        self.handle(LifecycleSignal.ENABLE)
        self.handle(LifecycleSignal.DISABLE)
        self._only_sets_up = False

    def handle(self, event: LifecycleEvent) -> None:
        loop = asyncio.get_running_loop()
        before = self.life
        self.life, action = step(before, event, time.monotonic(), self._timing)
        match action:
            case LifecycleAction.BEGIN:
                self._begin(loop)
            case LifecycleAction.ASK:
                self._stop.request()
                self._dependencies.states.callbacks.close(self.name, 0.0)  # no further call, without waiting
            case None:
                pass
        if self._timer is not None:
            self._timer.cancel()
        due_s = self.life.due_s
        self._timer = (
            None
            if due_s is None
            else loop.call_later(due_s - time.monotonic(), self.handle, LifecycleSignal.TICK)
        )
        if self.life.state is not before.state:
            self._on_change()
            self._report()

    def _begin(self, loop: asyncio.AbstractEventLoop) -> None:
        self._stop = ThreadStop()
        if self._only_sets_up:
            self._stop.request()
        thread = threading.Thread(
            target=self._live, args=(loop, self._stop), name=f"strategy {self.name}", daemon=True
        )
        try:
            thread.start()
        except RuntimeError as error:  # the system has no more threads
            loop.call_soon(self._ended, f"no thread can be started: {error}")

    def _ended(self, error: str) -> None:
        self.handle(ThreadEnded(error, self._rng.random()))

    def _report(self) -> None:
        state, life = self.life.state, self.life
        match state:
            case StrategyState.BACKING_OFF:
                retry_in_s = round((life.due_s or 0.0) - time.monotonic(), 1)
                self._log.warning(
                    "strategy is tried again",
                    strategy=self.name,
                    error=life.last_error,
                    retry_in_s=retry_in_s,
                )
            case StrategyState.STUCK:
                self._log.warning("strategy does not end, its thread is left alone", strategy=self.name)
            case StrategyState.RUNNING | StrategyState.OFF | StrategyState.STOPPED:
                self._log.info(f"strategy is {state}", strategy=self.name)
            case StrategyState.STARTING | StrategyState.STOPPING:
                pass

    def _live(self, loop: asyncio.AbstractEventLoop, stop: ThreadStop) -> None:
        def tell(handle: Callable[..., object], argument: object) -> None:
            with contextlib.suppress(RuntimeError):  # the loop has ended meanwhile
                loop.call_soon_threadsafe(handle, argument)

        states = StrategyStates(self._dependencies.states, self.name)
        client, was_marked = self._dependencies.client(self.name, stop), self._is_marked()
        if client.recommends_only and was_marked:
            acting = self._dependencies.acting(self.name, stop)
            if not self._error_of("setup", lambda: self._set_up(acting, states)):
                self._error_of("stop", lambda: self._end(acting))
            states.close(CALLBACKS_END_S)
        error = self._error_of("setup", lambda: self._set_up(client, states))
        if not error:
            tell(self.handle, LifecycleSignal.SET_UP)
            if was_marked or not stop.is_set():
                error = self._error_of("run", lambda: _run(self._plugin, stop))
            tell(self.handle, RunEnded(error))
            states.close(CALLBACKS_END_S)
            error = self._error_of("stop", lambda: self._end(client)) or error
        states.close(CALLBACKS_END_S)
        tell(self._ended, error)

    def _is_marked(self) -> bool:
        """Whether an earlier life of the agent has left the strategy acting."""
        marks = self._dependencies.marks
        return marks is not None and marks.has(self.name)

    def _set_up(self, client: NodeClient, states: StrategyStates) -> None:
        self._plugin.setup(client, self._dependencies.metric_cache, states)
        if self._dependencies.marks is not None and not client.recommends_only:
            self._dependencies.marks.put(self.name)

    def _end(self, client: NodeClient) -> None:
        self._plugin.stop()
        if self._dependencies.marks is not None and not client.recommends_only:
            self._dependencies.marks.remove(self.name)

    def _error_of(self, method: str, call: Callable[[], object]) -> str:
        """The error of a method, as a text; empty if there is none."""
        try:
            call()
        except BaseException as error:  # noqa: BLE001 - an error of a strategy ends that strategy alone
            text = f"{method}: {_shown(error)}"
            self._log.warning("strategy failed", strategy=self.name, error=text, exc_info=error)
            return text
        return ""


def _shown(error: BaseException) -> str:
    """An error for people, with an error class of any kind."""
    try:
        return clean(repr(error), MAX_ERROR)
    except Exception:  # noqa: BLE001 - the class is a strategy's
        return type(error).__name__


def _run(plugin: ExtensionPlugin, stop: ThreadStop) -> None:
    """`run`, and if that gives a coroutine, that one too, in a loop of its own."""
    awaitable = plugin.run(stop)
    if inspect.isawaitable(awaitable):
        with asyncio.Runner(loop_factory=asyncio.new_event_loop) as runner:
            runner.run(_until_stopped(awaitable, stop))


async def _until_stopped(awaitable: Awaitable[None], stop: ThreadStop) -> None:
    """Wait for the awaitable, which is cancelled with the request to end."""
    loop = asyncio.get_running_loop()
    running = asyncio.ensure_future(awaitable)
    with stop.calling(lambda: loop.call_soon_threadsafe(running.cancel)):
        try:
            await running
        except asyncio.CancelledError:
            if not stop.is_set():
                raise
