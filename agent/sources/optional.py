"""Objects of a type that a cluster may lack, because its CRD is not installed."""

import asyncio
import random
from collections.abc import Awaitable, Callable, Mapping
from typing import Final, Protocol

from agent.sources.kubernetes import Store
from hosting.kubernetes.errors import KubernetesError, RefusedError
from hosting.kubernetes.resources import Manifest

MISSING_S: Final = 60.0
"""After so long to twice that a type that is missing is looked for again."""


class Watched(Store, Protocol):
    """A store with what keeps it up to date."""

    async def run(self) -> None:
        """Never returns."""


class OptionalStore:
    """The objects of `watched`; none while the type is missing. `probe` lists hardly anything of the type."""

    def __init__(self, watched: Watched, probe: Callable[[], Awaitable[object]], rng: random.Random) -> None:
        self._watched = watched
        self._probe = probe
        self._rng = rng
        self._is_missing = asyncio.Event()

    async def run(self) -> None:
        """Never returns."""
        while not await self._is_there():
            self._is_missing.set()
            await asyncio.sleep(MISSING_S * (1 + self._rng.random()))
        await self._watched.run()

    async def _is_there(self) -> bool:
        try:
            await self._probe()
        except RefusedError as error:
            return not error.is_not_found
        except KubernetesError:
            return True  # not known: the watch will meet the same fault, and tell it
        return True

    def objects(self) -> Mapping[tuple[str, str], Manifest]:
        """All that are known."""
        return self._watched.objects()

    async def synced(self) -> None:
        """Return when a whole list has been seen, or the type is known to be missing."""
        waits = [
            asyncio.ensure_future(self._watched.synced()),
            asyncio.ensure_future(self._is_missing.wait()),
        ]
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for each in waits:
                each.cancel()

    @property
    def fault(self) -> str:
        """Why the objects may be out of date; none while the type is missing, or where it was removed."""
        fault = self._watched.fault
        return (
            ""
            if fault.startswith("404") or (self._is_missing.is_set() and not self._watched.objects())
            else fault
        )
