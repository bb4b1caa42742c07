"""The judgement of what the ledger, QEMU and the guests say of each VM. Pure.

*At all times*: no guest uses more than is reserved for it, and all together no more than the node can give. *At calm points*, when
nothing moves, all say the same, exactly.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from protocol.values import ZERO, Resources
from tests.support.vm_looks import GuestLook, VmLook, size_of


@dataclass(frozen=True, slots=True)
class MemoryBackends:
    """The memory back ends of one QEMU, by their IDs: all of them, and those that a device uses."""

    all: frozenset[str]
    used: frozenset[str]


@dataclass(frozen=True, slots=True)
class LedgerLook:
    """The scheduler's page of the node, and what its audit complains of."""

    reservable: Resources
    reserved: Resources
    rows: Mapping[str, Resources]
    """The amount that is reserved for each VM."""
    faults: tuple[str, ...]

    @classmethod
    def of(cls, node: Mapping[str, Any], audit: Mapping[str, Any]) -> "LedgerLook":
        """From the documents `/v1/nodes/NODE` and `/v1/audit`."""
        over = [f"it is over full because of {cause}" for cause in node["overFullBecauseOf"]]
        return cls(
            size_of(node["reservable"]),
            size_of(node["reserved"]),
            {row["name"].partition("/")[2]: size_of(row["reserved"]) for row in node["rows"]},
            (*over, *(f"the audit says: {fault}" for fault in audit["faults"])),
        )


def least_look(one: GuestLook, other: GuestLook) -> GuestLook:
    """The amount that a guest used all the time between two looks. Guests are looked at one after the other, and what one gives up another may have at once."""
    return GuestLook(
        min(one.vcpus_plugged, other.vcpus_plugged),
        min(one.memory_plugged_bytes, other.memory_plugged_bytes),
        _least(one.vcpus_online, other.vcpus_online),
        _least(one.memory_online_bytes, other.memory_online_bytes),
    )


def _least(one: int | None, other: int | None) -> int | None:
    return None if one is None or other is None else min(one, other)


def overuse(before: LedgerLook, guests: Mapping[str, GuestLook], after: LedgerLook) -> Iterator[str]:
    """Every use beyond what may be. The ledger was read `before` the guests, and again `after` them: rows move in between, so the
    larger one counts."""
    for name, guest in guests.items():
        reserved = before.rows.get(name, ZERO).max(after.rows.get(name, ZERO))
        if _certain_use(guest).exceeds(reserved):
            yield f"{name} uses {_certain_use(guest)}, and {reserved} is reserved for it"
    for ledger in (before, after):
        if ledger.reserved.exceeds(ledger.reservable):
            yield f"{ledger.reserved} is reserved of {ledger.reservable}"
        yield from (f"ledger: {fault}" for fault in ledger.faults)


def _certain_use(guest: GuestLook) -> Resources:
    """The certain use of a guest. To us it may be silent for a moment, and not to its agent; its vCPUs do not count then."""
    return guest.use if guest.vcpus_online is not None else Resources(0, guest.memory_plugged_bytes)


def drift(name: str, look: VmLook, backends: MemoryBackends) -> Iterator[str]:
    """Every disagreement about a VM while nothing moves."""
    told = look.drift()
    if told:
        yield f"{name}: {told}"
    if look.guest.vcpus_online is None:
        yield f"{name}: its informant did not answer"
    if look.row["current"] != look.row["reserved"]:
        yield f"{name}: its permit is {look.row['current']}, and {look.row['reserved']} is reserved"
    if look.status["permit"] != look.status["held"]:
        yield f"{name}: the agent's permit is {look.status['permit']}, and it holds {look.status['held']}"
    pending = (look.status.get("machine") or {}).get("pending")
    if pending:
        yield f"{name}: {pending}"
    loose = sorted(backends.all - backends.used)
    if loose:
        yield f"{name}: memory back ends that no device uses: {', '.join(loose)}"
