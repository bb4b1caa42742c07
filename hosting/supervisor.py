"""Runs the children of a daemon, each by itself: a child that fails is reported and restarted, the others go on.

An `asyncio.TaskGroup` would cancel all of them with the first failure, which is why it is not used here.
"""

import asyncio
import random
from collections.abc import Callable, Coroutine
from typing import Any, Final

from hosting.backoff import Backoff
from hosting.logs import Logger

_RESTART: Final = Backoff(base_s=0.5, cap_s=30.0)
END_S: Final = 20.0
"""The time that `stop` gives its children: less than Kubernetes gives the pod."""

Child = Callable[[], Coroutine[Any, Any, None]]


class Supervisor:
    """Owns the tasks of a daemon. `stop` ends all of them and waits; nothing is left behind, but a child that does not end."""

    def __init__(
        self,
        log: Logger,
        rng: random.Random,
        backoff: Backoff = _RESTART,
        healthy_after_s: float = 10.0,
        end_s: float = END_S,
    ) -> None:
        """`end_s` is how long `stop` waits."""
        self._log = log
        self._rng = rng
        self._backoff = backoff
        self._healthy_after_s = healthy_after_s
        self._end_s = end_s
        self._children: dict[str, asyncio.Task[None]] = {}
        self.restarts_total = 0

    def start(self, name: str, child: Child) -> None:
        """Run `child` until it returns, restarting it with back-off when it fails. Names are unique."""
        assert name not in self._children, f"a child called {name} runs already"
        task = asyncio.create_task(self._guard(name, child), name=name)
        self._children[name] = task
        # Not a `finally` in the guard: a task that is cancelled before its first step runs no line of it.
        task.add_done_callback(lambda _: self._children.pop(name))

    def names(self) -> tuple[str, ...]:
        """The children that run, in the order of their start."""
        return tuple(self._children)

    async def end(self, name: str) -> None:
        """Cancel one child and wait for its end; unknown names are no fault (it may have ended by itself)."""
        task = self._children.get(name)
        if task is not None:
            task.cancel()
            await asyncio.wait([task])

    async def stop(self) -> None:
        """Cancel every child and wait until all have ended. A child that has lost its cancellation is reported, and waited for no
        longer: the program ends without it."""
        tasks = list(self._children.values())
        for task in tasks:
            task.cancel()
        if tasks:
            _, left = await asyncio.wait(tasks, timeout=self._end_s)
            for task in left:
                self._log.error("child does not end", child=task.get_name(), waited_s=self._end_s)

    async def _guard(self, name: str, child: Child) -> None:
        loop, task = asyncio.get_running_loop(), asyncio.current_task()
        assert task is not None
        failures = 0
        while True:
            began = loop.time()
            try:
                await child()
            except (Exception, asyncio.CancelledError) as error:  # noqa: BLE001 - our faults end at the guard
                if task.cancelling():
                    if not isinstance(error, asyncio.CancelledError):
                        self._log.error(
                            "child failed while it ended", child=name, error=repr(error), exc_info=error
                        )
                    return
                ran_s = loop.time() - began
                failures = 1 if ran_s >= self._healthy_after_s else failures + 1
                delay_s = self._backoff.delay_s(failures, self._rng.random())
                self.restarts_total += 1
                self._log.error(
                    "child failed", child=name, error=repr(error), restart_in_s=delay_s, exc_info=error
                )
            else:
                return
            await asyncio.sleep(delay_s)
