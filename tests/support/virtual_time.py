"""An event loop whose clock jumps: nothing waits in it, and the order of what happens is the same in every run.

`@virtually` runs a test in such a loop, `now_s()` is its clock, `turns()` lets others go on, `compute(1.5)` does not.
"""

import asyncio
import functools
import selectors
from collections.abc import Callable, Coroutine
from typing import Any, ParamSpec


class _Jumping(selectors.DefaultSelector):
    now_s = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        assert timeout is not None, "everybody waits, and nothing will ever happen"
        self.now_s += max(timeout, 0.0)
        return super().select(0)


class VirtualLoop(asyncio.SelectorEventLoop):
    """A loop that never waits: its clock jumps."""

    def __init__(self) -> None:
        self.jumping = _Jumping()
        super().__init__(self.jumping)
        self._clock_resolution = 1e-10  # a timer never comes a nanosecond early

    def time(self) -> float:
        """The virtual time in seconds."""
        return self.jumping.now_s


def now_s() -> float:
    """The clock of the loop that runs."""
    return asyncio.get_running_loop().time()


def compute(seconds: float) -> None:
    """The task that runs computes for so long, and nobody else goes on."""
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualLoop)
    loop.jumping.now_s += seconds


async def turns(count: int = 10) -> None:
    """Let every task go on that can."""
    for _ in range(count):
        await asyncio.sleep(0)


P = ParamSpec("P")


def virtually(test: Callable[P, Coroutine[Any, Any, None]]) -> Callable[P, None]:
    """Run an asynchronous test in virtual time. At the end of the test no other task may be left."""

    async def checked(*args: P.args, **kwargs: P.kwargs) -> None:
        await test(*args, **kwargs)
        await turns(3)
        left = asyncio.all_tasks() - {asyncio.current_task()}
        assert {task.get_name() for task in left} == set()

    @functools.wraps(test)
    def run(*args: P.args, **kwargs: P.kwargs) -> None:
        with asyncio.Runner(loop_factory=VirtualLoop) as runner:
            runner.run(checked(*args, **kwargs))

    return run
