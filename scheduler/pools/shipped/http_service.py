"""The traffic between `http-admission` and its service beside questions: credentials, from files that may be renewed, and outcomes."""

import asyncio
import random
import re
from collections import deque
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Final

from hosting.backoff import Backoff
from hosting.fault_log import FaultLog
from hosting.logs import Logger
from hosting.threads import SingleCall, in_own_thread
from hosting.tls import Tls, TlsError, TlsFiles

MAX_TOKEN_BYTES: Final = 16 * 1024
READ_DEADLINE_S: Final = 2.0


def read_token(path: Path) -> str:
    """The bearer token in a file. Raises `ValueError`, without any of it, for what is no token."""
    try:
        with path.open("rb") as file:
            content = file.read(MAX_TOKEN_BYTES + 1)
    except OSError as error:
        raise ValueError(f"tokenFile: {path} cannot be read: {error.strerror}") from None
    if len(content) > MAX_TOKEN_BYTES or not re.fullmatch(rb"[\x21-\x7e]+", content.strip()):
        raise ValueError(f"tokenFile: {path} must hold one token: visible ASCII characters without blanks")
    return content.strip().decode("ascii")


class Credentials:
    """The files as they were read last. `load` first, `refresh` from time to time."""

    def __init__(self, token_file: Path | None, tls: TlsFiles, log: Logger) -> None:
        self._token_file = token_file
        self._faults = FaultLog(
            log, "credentials cannot be read again, the old ones stay in force", "credentials read again"
        )
        self._reading = SingleCall()
        self.headers = {"Accept": "application/json"}
        self.tls = Tls(tls) if tls.paths() else None

    async def load(self) -> None:
        """Read everything. Raises `ValueError` for what cannot be used."""
        await self._read_token()
        if self.tls is not None:
            try:
                # Not `wait_for`: that of Python 3.11 may lose a cancellation.
                async with asyncio.timeout(READ_DEADLINE_S):
                    await in_own_thread(self.tls.load)
            except TlsError as error:
                raise ValueError(f"caFile, certFile, keyFile: {error}") from None
            except TimeoutError:
                raise ValueError("caFile, certFile, keyFile: could not be read in time") from None

    async def refresh(self) -> None:
        """Read renewed files again. One that cannot be used is reported once, and what was read before stays in force."""
        try:
            await self._read_token()
            if self.tls is not None:
                await self.tls.refresh()
        except (ValueError, TlsError) as error:
            self._faults.failed(error)
        else:
            self._faults.worked()

    async def _read_token(self) -> None:
        path = self._token_file
        if path is None:
            return
        try:
            token = await self._reading.run(lambda: read_token(path), READ_DEADLINE_S)
        except TimeoutError:
            raise ValueError(f"tokenFile: {path} could not be read in time") from None
        self.headers = {**self.headers, "Authorization": f"Bearer {token}"}


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
        """End. Outcomes that were not told by then are lost."""
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
