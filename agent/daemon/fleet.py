"""The runners of this node: one for each VM of the file, started, told of changes and ended as the file says.

Starts are spread over the first seconds, so that a node full of VMs does not ask everybody at once. The same name with another
UID, and the same VM with another informant or annotations, is another runner.
"""

import asyncio
import random
from collections.abc import Callable, Iterable
from typing import Final

from agent.daemon.settings import VmEntry
from agent.runner.runner import Runner
from hosting.logs import Logger
from hosting.supervisor import Supervisor

SPREAD_S: Final = 2.0
"""Within this time the runners of a start begin, where there are many."""
SPREAD_EACH_S: Final = 0.01
GOODBYE_S: Final = 1.0


class Fleet:
    """Owns the runners. `make` builds one; `prepare` makes sure that the VM's back end knows it."""

    def __init__(
        self,
        make: Callable[[VmEntry], Runner],
        prepare: Callable[[VmEntry], None],
        supervisor: Supervisor,
        log: Logger,
        rng: random.Random,
    ) -> None:
        self._make = make
        self._prepare = prepare
        self._supervisor = supervisor
        self._log = log
        self._rng = rng
        self._entries: dict[str, VmEntry] = {}
        self._runners: dict[str, Runner] = {}

    def runners(self) -> list[Runner]:
        """Every runner, in the order of their start."""
        return list(self._runners.values())

    def find(self, name: str) -> Runner | None:
        """The runner of the VM `namespace/name`."""
        return self._runners.get(name)

    async def follow(self, entries: Iterable[VmEntry]) -> None:
        """Bring the runners in line with the file. Raises `BackendError` where a new VM's state cannot be read."""
        wanted = {entry.vm().name: entry for entry in entries}
        gone = [name for name, entry in self._entries.items() if not _is_same(wanted.get(name), entry)]
        await asyncio.gather(*(self._end(name) for name in gone))
        new = [entry for name, entry in wanted.items() if name not in self._entries]
        for entry in new:
            self._prepare(entry)
        spread_s = min(SPREAD_S, SPREAD_EACH_S * len(new)) if len(new) > 1 else 0.0
        for entry in new:
            self._start(entry, self._rng.random() * spread_s)
        for name, entry in wanted.items():
            if self._entries[name] != entry:
                self._entries[name] = entry
                self._runners[name].change(entry.vm())
                self._log.info("VM changed", vm=name)

    async def close(self) -> None:
        """End every runner and say good-bye to their informants."""
        await self._supervisor.stop()
        await asyncio.gather(*(runner.goodbye(GOODBYE_S) for runner in self.runners()))

    def _start(self, entry: VmEntry, delay_s: float) -> None:
        runner = self._make(entry)
        name = runner.vm.name
        self._entries[name], self._runners[name] = entry, runner
        first = [delay_s]

        async def run() -> None:
            await asyncio.sleep(first.pop() if first else 0.0)
            await runner.run()

        self._supervisor.start(name, run)

    async def _end(self, name: str) -> None:
        runner = self._runners.pop(name)
        del self._entries[name]
        await self._supervisor.end(name)
        await runner.goodbye(GOODBYE_S)
        self._log.info("VM is not ours any more", vm=name)


def _is_same(entry: VmEntry | None, known: VmEntry) -> bool:
    """Whether one runner serves both: bounds may differ, but neither the VM nor who decides for it and how."""
    return entry is not None and (entry.uid, entry.informant, entry.annotations) == (
        known.uid,
        known.informant,
        known.annotations,
    )
