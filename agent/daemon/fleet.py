"""The runners of this node: one for each VM of the source, started, told of changes and ended as the source says.

Starts are spread over the first seconds, so that a full node does not call all peers at once. The same name with another
UID gets another runner, and so does the same VM with another informant or other annotations.
"""

import asyncio
import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import Final

from agent.backends.factories import InstalledBackend
from agent.core.model import Vm
from agent.core.ports import VmChange, VmDescribed, VmDescription
from agent.runner.runner import Runner
from hosting.logs import Logger
from hosting.supervisor import Supervisor

SPREAD_S: Final = 2.0
"""The runners of a start begin within this time, if there are many."""
SPREAD_EACH_S: Final = 0.01
GOODBYE_S: Final = 1.0


@dataclass(eq=False, slots=True)
class Fleet:
    """Owns the runners. `make` builds a runner, `vm_of` the VM that a runner is told of when its description changes;
    `installed` is prepared for each VM, and forgets it."""

    make: Callable[[VmDescription], Runner]
    vm_of: Callable[[VmDescription], Vm]
    installed: InstalledBackend
    supervisor: Supervisor
    log: Logger
    rng: random.Random
    _wanted: dict[str, VmDescription] = field(default_factory=dict, init=False)
    _running: dict[str, VmDescription] = field(default_factory=dict, init=False)
    _runners: dict[str, Runner] = field(default_factory=dict, init=False)

    def runners(self) -> list[Runner]:
        """Every runner, in the order of their start."""
        return list(self._runners.values())

    def find(self, name: str) -> Runner | None:
        return self._runners.get(name)

    async def apply(self, changes: Iterable[VmChange]) -> None:
        """Bring the runners in line with the changes of a source.

        Raises `BackendError` if a new VM's state cannot be read; the next call tries that VM again.
        """
        for change in changes:
            if isinstance(change, VmDescribed):
                self._wanted[change.spec.vm.name] = change.spec
            else:
                self._wanted.pop(change.name, None)
        wanted = self._wanted
        gone = [name for name, spec in self._running.items() if not _is_same(wanted.get(name), spec)]
        await asyncio.gather(*(self._end(name) for name in gone))
        new = [spec for name, spec in wanted.items() if name not in self._running]
        for spec in new:
            self.installed.prepare(spec)
        spread_s = min(SPREAD_S, SPREAD_EACH_S * len(new)) if len(new) > 1 else 0.0
        for spec in new:
            self._start(spec, self.rng.random() * spread_s)
        for name, spec in wanted.items():
            before, self._running[name] = self._running[name], spec
            if before.containers != spec.containers:
                self._runners[name].look_now()
            if replace(before, containers=()) != replace(spec, containers=()):
                self._runners[name].change(self.vm_of(spec))
                self.log.info("VM changed", vm=name)

    def moved(self, name: str) -> None:
        """The back end tells that a VM has moved, or is out of reach."""
        if (runner := self._runners.get(name)) is not None:
            runner.look_now()

    async def close(self) -> None:
        """End every runner and say good-bye to their informants."""
        await self.supervisor.stop()
        await asyncio.gather(*(runner.goodbye(GOODBYE_S) for runner in self.runners()))

    def _start(self, spec: VmDescription, delay_s: float) -> None:
        runner = self.make(spec)
        name = runner.vm.name
        self._running[name], self._runners[name] = spec, runner
        first = [delay_s]

        async def run() -> None:
            await asyncio.sleep(first.pop() if first else 0.0)
            await runner.run()

        self.supervisor.start(name, run)

    async def _end(self, name: str) -> None:
        runner = self._runners.pop(name)
        del self._running[name]
        await self.supervisor.end(name)
        await runner.goodbye(GOODBYE_S)
        if self.installed.machines is not None:
            await self.installed.machines.forget(name)
        self.log.info("VM is not ours any more", vm=name)


def _is_same(wanted: VmDescription | None, running: VmDescription) -> bool:
    """Whether one runner serves both descriptions: the VM, the ways to it and its annotations are the same."""
    return wanted is not None and _identity(wanted) == _identity(running)


def _identity(spec: VmDescription) -> tuple[object, ...]:
    return spec.vm.pod_uid, spec.informant_url, spec.annotations, spec.qmp, spec.secret_file
