"""The host's side of `guest_notes`: starts it through the guest's root shell, asks it, and compares the clocks."""

import asyncio
import base64
import contextlib
import itertools
import json
import time
import zlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Final

from benchmarks.vm_parts.clocks import ClockPair, best, pair_of

SOURCE: Final = Path(__file__).with_name("guest_notes.py")
PREFIX: Final = b"parley-notes "
START_S: Final = 30.0
ANSWER_S: Final = 10.0
CLOCK_TRIES: Final = 20
MAX_LINE_BYTES: Final = 2**20


class GuestProbe:
    """Asks what was noted in the guest. One question at a time."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._numbers = itertools.count(1)

    async def ask(self, word: str) -> dict[str, Any]:
        """Ask for something, by a word that `guest_notes` knows. Raises `TimeoutError` and `ConnectionError`."""
        number = next(self._numbers)
        self._writer.write(f"{number} {word}\n".encode())
        async with asyncio.timeout(ANSWER_S):
            await self._writer.drain()
            return await self.heard(number)

    async def heard(self, number: int) -> dict[str, Any]:
        """The answer of that number; other answers are passed over."""
        while True:
            line = await self._reader.readline()
            if not line:
                raise ConnectionError("the guest's shell has ended")
            _, prefix, text = line.partition(PREFIX)
            if prefix:
                answer: dict[str, Any] = json.loads(text)
                if answer["number"] == number:
                    return answer

    async def clocks(self) -> ClockPair:
        """The guest's clocks now, as exactly as some tries give them."""
        pairs = []
        for _ in range(CLOCK_TRIES):
            sent_s = time.monotonic()
            answer = await self.ask("clocks")
            pairs.append(pair_of(sent_s, time.monotonic(), answer["mono_ns"] / 1e9, answer["wall_ns"] / 1e9))
        return best(pairs)

    async def notes(self) -> list[dict[str, Any]]:
        """The notes since the last call."""
        noted: list[dict[str, Any]] = (await self.ask("notes"))["notes"]
        return noted


@contextlib.asynccontextmanager
async def probe(shell: Path) -> AsyncIterator[GuestProbe]:
    """The notes of one guest for the length of a block; `shell` is the socket of its root shell."""
    reader, writer = await asyncio.open_unix_connection(shell, limit=MAX_LINE_BYTES)
    try:
        found = GuestProbe(reader, writer)
        packed = base64.b64encode(zlib.compress(SOURCE.read_bytes(), 9)).decode()
        code = f"import base64,zlib;exec(zlib.decompress(base64.b64decode('{packed}')))"
        writer.write(f'python3 -c "{code}"\n'.encode())
        async with asyncio.timeout(START_S):
            await found.heard(0)
        yield found
        writer.write(b"0 end\n")
        await writer.drain()
    finally:
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()
