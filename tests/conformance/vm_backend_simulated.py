"""Plants of simulated VMs: one for each profile of faults, all on a clock that moves only when a test says so."""

import asyncio
import heapq
import json
import random
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import msgspec

from agent.backends.change_log import FILE_NAME, ChangeLog
from agent.backends.faults import NONE, Faults
from agent.backends.simulated import MonotonicClock, SimulatedBackend, VmFile
from agent.core.ports import VmBackend
from hosting.settings import check
from protocol.values import ZERO, Observation, Resources
from tests.conformance.vm_backend_clauses import BackendPlant, Traits
from tests.support.amounts import cu
from tests.unit.agent.driver import VM

Profile = dict[str, Any]

_ALL: Final[Profile] = {
    "latency": {"fence": [0, 0.2], "observe": [0, 0.3], "resize": [0, 0.4]},
    "movement": {"steps": 3, "memorySlower": 2, "memoryArrives": 0.8},
    "failBefore": {"fence": 0.1, "observe": 0.1, "resize": 0.1},
    "failAfter": {"fence": 0.1, "resize": 0.1},
    "refusing": {"every": 3, "lasts": 0.5},
    "commandDeadline": 2,
    "late": 0.3,
}
PROFILES: Final[dict[str, tuple[float, Profile]]] = {
    "at once": (0.0, {}),
    "with delay": (0.4, {}),
    "latency": (0.4, {"latency": {"fence": 0.2, "observe": [0.1, 0.4], "resize": [0.1, 0.4]}}),
    "slow looks": (0.4, {"latency": {"observe": 2.0, "resize": 0.2}}),
    "CPU first": (0.4, {"movement": {"steps": 4, "memorySlower": 3}}),
    "memory in part": (0.4, {"movement": {"steps": 2, "memoryArrives": 0.5}}),
    "failing": (
        0.4,
        {
            "failBefore": {"fence": 0.3, "observe": 0.3, "resize": 0.3},
            "failAfter": {"fence": 0.3, "resize": 0.3},
            "latency": {"resize": 0.2},
        },
    ),
    "refusing": (0.4, {"refusing": {"every": 2, "lasts": 1}}),
    "late, fence makes void": (0.4, {"commandDeadline": 2, "late": 0.5, "latency": {"resize": 0.4}}),
    "late, fence waits": (
        0.4,
        {"commandDeadline": 2, "late": 0.5, "latency": {"resize": 0.4}, "fence": "wait"},
    ),
    "finish first": (
        0.4,
        {"movement": {"steps": 3, "memorySlower": 2}, "replacement": "finish-first"},
    ),
    "withdrawn": (0.4, {"withdrawn": 0.6, "movement": {"steps": 3}}),
    "everything": (0.4, _ALL),
    "everything, otherwise": (
        0.4,
        {**_ALL, "fence": "wait", "replacement": "finish-first", "withdrawn": 0.3},
    ),
}


class Virtual:
    """Time that passes when it is told to; who sleeps is woken in order."""

    def __init__(self) -> None:
        self.now_s = 1000.0
        self._sleepers: list[tuple[float, int, asyncio.Future[None]]] = []
        self._count = 0

    def clock(self) -> MonotonicClock:
        return MonotonicClock(lambda: self.now_s, self._sleep)

    async def _sleep(self, seconds: float) -> None:
        woken: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._count += 1
        heapq.heappush(self._sleepers, (self.now_s + seconds, self._count, woken))
        await woken

    async def go_on(self) -> None:
        """To the next moment at which somebody wakes."""
        self._sleepers = [each for each in self._sleepers if not each[2].done()]
        heapq.heapify(self._sleepers)
        assert self._sleepers, "everybody waits for ever"
        await self.wait(max(0.0, self._sleepers[0][0] - self.now_s))

    async def wait(self, seconds: float) -> None:
        """Let time pass, and everybody do what they can."""
        until_s = self.now_s + seconds
        await self._turn()
        while self._sleepers and self._sleepers[0][0] <= until_s:
            at_s, _, woken = heapq.heappop(self._sleepers)
            self.now_s = max(self.now_s, at_s)
            if not woken.done():
                woken.set_result(None)
                await self._turn()
        self.now_s = until_s

    async def _turn(self) -> None:
        for _ in range(4):
            await asyncio.sleep(0)


class FoldedLog(ChangeLog):
    """A change log that is folded as it is written and compared with the truth at every line."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory, "node-a")
        self.path = directory / "vms" / "default.pod-a.json"
        self.shown = {"size": ZERO, "target": ZERO}
        self.faults: list[str] = []

    def size(self, vm: str, amount: Resources) -> None:
        super().size(vm, amount)
        self._note("size", amount)

    def target(self, vm: str, amount: Resources) -> None:
        super().target(vm, amount)
        self._note("target", amount)

    def _note(self, kind: str, amount: Resources) -> None:
        if kind == "size" and self.shown["size"] == ZERO:
            self.shown["target"] = amount  # a VM is made at rest
        self.shown[kind] = amount
        self.compare(f"after {kind} {amount}")

    def compare(self, moment: str) -> None:
        truth = self.truth()
        if truth is not None and not (
            truth.size.fits_in(self.shown["size"]) and truth.target.fits_in(self.shown["target"])
        ):
            self.faults.append(f"{moment}: {truth.size} to {truth.target}, logged {self.shown}")

    def truth(self) -> VmFile | None:
        """The VM's file as it is; None where it is none."""
        try:
            return msgspec.json.decode(self.path.read_bytes(), type=VmFile)
        except (ValueError, OSError):
            return None


@contextmanager
def planted(
    directory: Path,
    profile: tuple[float, Profile],
    seed: int = 0,
    kind: type[SimulatedBackend] = SimulatedBackend,
) -> Iterator[BackendPlant]:
    """A plant whose back ends are of `kind`, with the delay and the faults of `profile`."""
    delay_s, faults = profile[0], check(profile[1], Faults)
    virtual, rng = Virtual(), random.Random(seed)
    directory.mkdir(exist_ok=True)
    with FoldedLog(directory) as log:
        path = log.path

        def opened() -> VmBackend:
            backend = kind(directory, log, delay_s, faults, rng, virtual.clock())
            inner = backend._write

            def write(vm: Any, content: VmFile) -> None:
                inner(vm, content)
                log.compare("after a write")

            vars(backend)["_write"] = write
            backend.create(VM, cu(2))
            return backend

        honest = SimulatedBackend(directory, log, delay_s, _without_calls(faults), rng, virtual.clock())

        async def look() -> Observation:
            return await honest.observe(VM)

        yield BackendPlant(
            Traits(
                keeps_targets=faults.withdrawn == 0,
                arrives=faults.movement.memory_arrives == 1,
                is_slow=delay_s > 0 and faults == NONE.model_copy(update={"movement": faults.movement}),
            ),
            opened,
            look,
            lambda: _spoil(path),
            lambda: [json.loads(line) for line in (directory / FILE_NAME).read_text().splitlines()],
            lambda: log.faults,
            lambda: virtual.now_s,
            virtual.go_on,
            virtual.wait,
        )


def _without_calls(faults: Faults) -> Faults:
    return faults.model_copy(update={"latency": NONE.latency, "fail_before": NONE.fail_before})


def _spoil(path: Path) -> None:
    path.write_text('{"generation": 1')


def has_chance(profile: tuple[float, Profile]) -> bool:
    """Whether anything is left to chance."""
    return any(key in profile[1] for key in ("late", "withdrawn", "failBefore", "failAfter"))
