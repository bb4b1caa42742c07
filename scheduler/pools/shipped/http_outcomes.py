"""Tells the service of `http-admission` what became of its questions, one after the other, in their order."""

import asyncio
import random
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Final

from hosting.backoff import Backoff
from hosting.logs import Logger

MAX_WAITING: Final = 1024
"""Outcomes that wait to be told; of more the oldest are dropped and counted."""
RETRY: Final = Backoff(base_s=0.2, cap_s=30.0)


class Outcomes:
    """A bounded queue with one task. `send` tells one outcome; whether that was taken."""

    def __init__(
        self,
        send: Callable[[bytes], Awaitable[bool]],
        log: Logger,
        rng: random.Random,
        retry: Backoff = RETRY,
    ) -> None:
        self._send = send
        self._log = log
        self._rng = rng
        self._retry = retry
        self._waiting: deque[bytes] = deque()
        self._has_some = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self.lost = 0

    def __len__(self) -> int:
        return len(self._waiting)

    def start(self) -> None:
        self._task = asyncio.create_task(self._run(), name="outcomes of admissions")

    async def stop(self) -> None:
        """End. What was not told by then is not told any more."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    def add(self, outcome: bytes) -> None:
        """Tell this one after all that wait already."""
        if len(self._waiting) >= MAX_WAITING:
            self._waiting.popleft()
            if not self.lost:
                self._log.warning("outcomes for the admission service are lost: it does not take them")
            self.lost += 1
        self._waiting.append(outcome)
        self._has_some.set()

    async def _run(self) -> None:
        failures = 0
        while True:
            await self._has_some.wait()
            if not self._waiting:
                self._has_some.clear()
                continue
            outcome = self._waiting[0]
            if await self._send(outcome):
                failures = 0
                if self._waiting and self._waiting[0] is outcome:  # else it was dropped meanwhile
                    self._waiting.popleft()
            else:
                failures += 1
                await asyncio.sleep(self._retry.delay_s(failures, self._rng.random()))
