"""Looks at real guests: the parts plugged by QEMU's word, the use by the guest's word, and the view of agent and scheduler."""

import asyncio
import sys
import uuid
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import psutil

from hosting import signed_link
from hosting.client import Answered, HttpClient, Outcome
from hosting.qmp import QmpClosedError, QmpError, QmpMonitor
from hosting.signed_link import SignedLink
from protocol import codec, quantities
from protocol.informant_pages import GuestMachine
from protocol.values import ZERO, Resources

ANSWER_S: Final = 5.0
"""A guest whose vCPUs are all busy answers within a second."""
BETWEEN_LOOKS_S: Final = 0.1


def size_of(written: Mapping[str, str]) -> Resources:
    """An amount as documents write it."""
    cpu = quantities.parse(written["cpu"]).exact_milli_value()
    memory = quantities.parse(written["memory"]).exact_value()
    assert cpu is not None
    assert memory is not None
    return Resources(cpu, memory)


@dataclass(frozen=True, slots=True)
class GuestLook:
    """The amount that QEMU has plugged in, and the part of it that the guest has online: None while its informant is silent."""

    vcpus_plugged: int
    memory_plugged_bytes: int
    vcpus_online: int | None
    memory_online_bytes: int | None

    @property
    def use(self) -> Resources:
        """The amount that counts as in use: the vCPUs online, or all that are plugged while nobody tells; the memory that is plugged."""
        vcpus = self.vcpus_plugged if self.vcpus_online is None else self.vcpus_online
        return Resources(vcpus * 1000, self.memory_plugged_bytes)

    def is_usable(self) -> bool:
        return self.memory_online_bytes == self.memory_plugged_bytes


LOOKER: Final = uuid.uuid4()
"""Whom a guest with a secret takes for the one who looks."""


async def guest_look(
    monitor: QmpMonitor, client: HttpClient, informant_url: str, signed: SignedLink | None = None
) -> GuestLook:
    """Look at a guest; one look at a time, if it has a secret. Raises `QmpError`."""
    url = f"{informant_url}/machine"
    vcpus, memory, answer = await asyncio.gather(
        monitor.execute("query-hotpluggable-cpus"),
        monitor.execute("query-memory-size-summary"),
        signed_link.call(client, signed, LOOKER, "GET", url, body=None, deadline_s=ANSWER_S),
    )
    machine = (
        codec.decode(GuestMachine, answer.body)
        if isinstance(answer, Answered) and answer.status == 200
        else None
    )
    return GuestLook(
        sum("qom-path" in slot for slot in vcpus),
        memory["base-memory"] + memory.get("plugged-memory", 0),
        machine.online_cpus if machine is not None else None,
        machine.memory_online_bytes if machine is not None else None,
    )


def figures_of(answer: Outcome) -> dict[str, float]:
    """The figures of a page of metrics, by their names with labels. Raises `OSError` if nobody answered."""
    if not isinstance(answer, Answered):
        raise OSError(answer.message)
    lines = (line.rpartition(" ") for line in answer.body.decode().splitlines() if not line.startswith("#"))
    return {name: float(value) for name, _, value in lines}


@dataclass(frozen=True, slots=True)
class VmLook:
    """One VM from every side: the agent's entry of `/v1/vms`, the scheduler's row, and the guest."""

    status: Mapping[str, Any]
    row: Mapping[str, Any]
    guest: GuestLook

    def drift(self) -> str:
        """The differences between agent, ledger, QEMU and guest; empty if they agree. Agreement is only owed at rest."""
        use = self.guest.use.written()
        sides = {
            "the agent's size": self.status["size"],
            "its target": self.status["target"],
            "what it holds": self.status["held"],
            "the ledger's row": self.row["reserved"],
        }
        differing = [f"{side} is {amount}" for side, amount in sides.items() if amount != use]
        if not self.guest.is_usable():
            differing.append(f"of the memory {self.guest.memory_online_bytes} bytes are online")
        return f"in use are {use}, but {', '.join(differing)}" if differing else ""


@dataclass(slots=True)
class UseWatch:
    """Adds up, again and again, the use of all guests, and notes every time at which that was more than `room`.

    Guests do not answer at the same moment, and another may get an amount before the one that gave it up answers. So all are asked
    twice, and of each the smaller answer counts: the amount that a guest used the whole time. A look without an answer of each guest
    does not count.
    """

    room: Resources
    asking: Callable[[], Mapping[str, Awaitable[GuestLook]]]
    looks: int = 0
    largest: Resources = ZERO
    faults: list[str] = field(default_factory=list)

    async def run(self) -> None:
        """Watch until cancelled. Raises what a look raises, unless QEMU did not answer."""
        while True:
            before, after = await self._uses(), await self._uses()
            if before is not None and after is not None:
                self._note(before, after)
            await asyncio.sleep(BETWEEN_LOOKS_S)

    def _note(self, before: Mapping[str, Resources], after: Mapping[str, Resources]) -> None:
        total = ZERO
        for name, use in after.items():
            total += use.min(before.get(name, ZERO))
        self.looks += 1
        self.largest = self.largest.max(total)
        if total.exceeds(self.room):
            self.faults.append(f"{total} of {self.room} in use: {before}, then {after}")

    async def _uses(self) -> dict[str, Resources] | None:
        """The use of each guest; None if it is not known of one of them just now."""
        asked = self.asking()
        looks = await asyncio.gather(*asked.values(), return_exceptions=True)
        found: dict[str, Resources] = {}
        for name, look in zip(asked, looks, strict=True):
            match look:
                case GuestLook(vcpus_online=None) | QmpError() if not isinstance(look, QmpClosedError):
                    return None
                case GuestLook():
                    found[name] = look.use
                case QmpClosedError():
                    pass  # a guest that has gone uses nothing
                case error:
                    raise error
        return found


def left_over(directory: Path) -> Iterator[str]:
    """The leftovers below `directory` that should not be: processes that name it, sockets, and files that were not finished."""
    for process in psutil.process_iter():
        try:
            command = process.cmdline()
        except psutil.Error:  # it has ended meanwhile
            continue
        if any(str(directory) in word for word in command):
            yield f"process {process.pid}: {' '.join(command)[:200]}"
    for path in directory.rglob("*"):
        if path.is_socket():
            yield f"socket {path}"
        elif path.suffix in {".new", ".tmp"}:
            yield f"file {path}"


def tell(what: str, **figures: float) -> None:
    """Print what was measured in one line, for those who look (`pytest -s`): times are never asserted."""
    sys.stdout.write(f"\n{what}: {', '.join(f'{name} {value:.4g}' for name, value in figures.items())}\n")
