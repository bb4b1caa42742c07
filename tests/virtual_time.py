"""An event loop whose clock jumps: nothing waits in it, and what happens when is the same in every run."""

import asyncio
import selectors


class _Jumping(selectors.DefaultSelector):
    now_s = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        assert timeout is not None, "everybody waits, and nothing will ever happen"
        self.now_s += max(timeout, 0.0)
        return super().select(0)


class VirtualLoop(asyncio.SelectorEventLoop):
    """A loop that never waits: its clock jumps."""

    def __init__(self) -> None:
        self._jumping = _Jumping()
        super().__init__(self._jumping)

    def time(self) -> float:
        """The virtual time in seconds."""
        return self._jumping.now_s


def now_s() -> float:
    """The clock of the loop that runs."""
    return asyncio.get_running_loop().time()
