"""`Reservation` objects, ours (reservations.parley.dev) and the published ones (reservations.scheduling.koordinator.sh): told to the core,
which keeps their room, and shown in their status ([decision 49](../../../docs/decisions/0049-one-holder-for-two-reservations.md)).

The phase that was written is what is known of a reservation after a restart: one that has succeeded or failed keeps nothing any more.
"""

import asyncio
import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any, Final, TypeAlias

from pydantic import Field

from hosting.amounts import PositiveResources
from hosting.kubernetes import objects
from hosting.kubernetes.api import KubernetesApi, KubernetesError
from hosting.kubernetes.koordinator import PUBLISHED_RESERVATIONS
from hosting.kubernetes.reflector import Reflector
from hosting.kubernetes.resources import RESERVATIONS, Manifest, ResourceType
from hosting.logs import Logger
from hosting.settings import Settings, check
from hosting.supervisor import Child
from protocol.values import ZERO
from scheduler.clusters.kubernetes.cluster import TellFault
from scheduler.clusters.kubernetes.published_reservations import (
    published_reservation_of,
    published_reservation_status,
)
from scheduler.clusters.kubernetes.reading import MALFORMED
from scheduler.clusters.kubernetes.status import StatusCondition, StatusWriter, conditions_of
from scheduler.permits.core import events
from scheduler.permits.core.model import ReservationOwner, ReservationSpec
from scheduler.permits.core.state import CoreState, ReservationAccount
from scheduler.ports import ClusterUnreachableError

Take: TypeAlias = Callable[[events.Input], object]
"""Brings an input to the core."""

LOOK_S: Final = 1.0
_SAME_NAME: Final = "a Reservation of scheduling.koordinator.sh has this name, and is the one that counts; give this one another name"
ENDED: Final = frozenset({"Succeeded", "Failed"})
"""The phases of a reservation that keeps nothing any more."""


class SelectorEntry(Settings):
    """Labels that a pod has."""

    match_labels: Annotated[dict[str, str], Field(max_length=64)] = Field(default_factory=dict)


class OwnerEntry(Settings):
    """Pods that may use the room."""

    namespace: str | None = None
    label_selector: SelectorEntry = Field(default_factory=SelectorEntry)


class ReservationEntry(Settings):
    """The spec of a Reservation."""

    node_name: str = ""
    resources: PositiveResources
    owners: Annotated[list[OwnerEntry], Field(max_length=64)] = Field(default_factory=list)
    allocate_once: bool = True
    order: Annotated[int, Field(ge=0)] = 0
    ttl_seconds: Annotated[int, Field(ge=1)] | None = None


def reservation_of(manifest: Manifest, wall: datetime) -> ReservationSpec:
    """The reservation that an object describes, at this time of day. Raises `FaultsError`."""
    entry = check(manifest.get("spec") or {}, ReservationEntry)
    owners = tuple(
        ReservationOwner(owner.namespace or None, tuple(sorted(owner.label_selector.match_labels.items())))
        for owner in entry.owners
    )
    return ReservationSpec(
        uid=objects.uid(manifest),
        name=objects.name(manifest),
        node=entry.node_name,
        allocatable=entry.resources,
        owners=owners,
        allocate_once=entry.allocate_once,
        has_ended=_phase(manifest) in ENDED or _is_over(manifest, entry.ttl_seconds, wall),
        order=entry.order,
    )


def _phase(manifest: Manifest) -> str:
    phase: str = (manifest.get("status") or {}).get("phase", "")
    return phase


def _is_over(manifest: Manifest, ttl_s: int | None, wall: datetime) -> bool:
    if ttl_s is None:
        return False
    created = datetime.fromisoformat(manifest["metadata"]["creationTimestamp"])
    return wall >= created + timedelta(seconds=ttl_s)


def reservation_status(
    manifest: Manifest, account: ReservationAccount | None, fault: str, wall: datetime
) -> dict[str, Any]:
    """The status of an object; `fault` says why it was not taken up, `account` is what the core knows of it."""
    phase, ready = _state(manifest, account, fault)
    status: dict[str, Any] = {
        "observedGeneration": manifest["metadata"].get("generation", 0),
        "phase": phase,
        "conditions": conditions_of(manifest, (ready,), wall),
    }
    if account is not None and account.spec is not None and account.spec.node:
        status["nodeName"] = account.spec.node
        status["allocated"] = account.allocated.written()
    return status


def _state(manifest: Manifest, account: ReservationAccount | None, fault: str) -> tuple[str, StatusCondition]:
    def state(phase: str, reason: str, message: str) -> tuple[str, StatusCondition]:
        return phase, StatusCondition("Ready", phase == "Available", reason, message)

    if _phase(manifest) == "Succeeded" or (account is not None and account.is_used_up):
        return state("Succeeded", "Succeeded", "the pod that it was for has used it")
    spec = account.spec if account is not None else None
    if _phase(manifest) == "Failed" or (spec is not None and spec.has_ended):
        return state("Failed", "Expired", "its time is over")
    if fault:
        return state("Pending", "Faults", fault)
    if account is None or spec is None:
        return state("Pending", "Waiting", "the scheduler has not taken it up yet")
    if not spec.node:
        return state("Pending", "NoNode", "spec.nodeName says whose room is kept")
    if account.reason is not None and account.allocated == ZERO:
        return state("Pending", "NoRoom", account.reason.message)
    return state("Available", "Available", "its room is kept")


@dataclass(frozen=True, slots=True)
class _Type:
    """One type of Reservations: how its objects are read, and what their status is."""

    type: ResourceType
    watch: Reflector
    writer: StatusWriter
    read: Callable[[Manifest, datetime], ReservationSpec]
    status: Callable[[Manifest, ReservationAccount | None, str, datetime], dict[str, Any]]


class KubernetesReservations:
    """The Reservation objects of the cluster. `children` keep them up to date, `run` tells one core of them and writes status."""

    def __init__(
        self,
        api: KubernetesApi,
        clock: Callable[[], float],
        rng: random.Random,
        log: Logger,
        wall: Callable[[], datetime] = lambda: datetime.now(UTC),
        tell_fault: TellFault | None = None,
    ) -> None:
        """`tell_fault` is told of an object that cannot be read."""
        self._clock = clock
        self._wall = wall
        self._tell_fault = tell_fault
        self._api, self._log = api, log
        self._types = tuple(
            _Type(
                type_,
                Reflector(
                    api,
                    type_,
                    clock=clock,
                    rng=rng,
                    log=log,
                    is_optional=True,
                    may_be_forbidden=type_ is PUBLISHED_RESERVATIONS,
                ),
                StatusWriter(api, type_, clock, log),
                read,
                status,
            )
            for type_, read, status in (
                (PUBLISHED_RESERVATIONS, published_reservation_of, published_reservation_status),
                (RESERVATIONS, reservation_of, reservation_status),
            )
        )
        self._told: dict[str, ReservationSpec] = {}
        """By UID."""
        self._faults: dict[str, str] = {}
        """By UID, of objects that cannot be read; their earlier descriptions still count."""

    def children(self) -> Mapping[str, Child]:
        return {f"watch of {each.type.plural}.{each.type.group}": each.watch.run for each in self._types}

    def watch_of(self, type_: ResourceType) -> Reflector:
        (found,) = (each.watch for each in self._types if each.type is type_)
        return found

    async def load(self) -> None:
        """See every object. Raises `ClusterUnreachableError`; of a type that the API server does not know there are none."""
        for each in self._types:
            try:
                await each.watch.caught_up(self._clock())
            except KubernetesError as error:
                if not each.watch.is_missing:
                    raise ClusterUnreachableError(f"{each.type.plural}.{each.type.group}: {error}") from None

    async def run(self, core: CoreState, take: Take) -> None:
        """Tell the core what has changed, and write status, from time to time: some of it changes with time alone."""
        while True:
            self.tell(take)
            await self.write(core)
            await asyncio.sleep(LOOK_S)

    def tell(self, take: Take) -> None:
        """Tell the core of every reservation that came, changed, ended or went."""
        wall, there, names = self._wall(), set[str](), set[str]()
        for each, manifest in self._objects():
            uid, name = objects.uid(manifest), objects.name(manifest)
            there.add(uid)
            if each.type is RESERVATIONS and name in names:
                self._note_fault(RESERVATIONS, uid, manifest, _SAME_NAME)
                continue
            names.add(name)
            try:
                spec = each.read(manifest, wall)
            except MALFORMED as error:
                self._note_fault(each.type, uid, manifest, str(error) or repr(error))
                continue
            self._faults.pop(uid, None)
            if self._told.get(uid) != spec:
                self._told[uid] = spec
                take(events.ReservationSeen(spec))
        for uid in sorted(self._told.keys() - there):
            del self._told[uid]
            take(events.ReservationGone(uid))
        self._faults = {uid: fault for uid, fault in self._faults.items() if uid in there}

    def _objects(self) -> Iterator[tuple[_Type, Manifest]]:
        """The published ones first."""
        return ((each, manifest) for each in self._types for manifest in each.watch.objects().values())

    def _note_fault(self, type_: ResourceType, uid: str, manifest: Manifest, fault: str) -> None:
        if self._faults.get(uid) != fault and self._tell_fault is not None:
            self._tell_fault(type_, manifest, fault)
        self._faults[uid] = fault

    async def write(self, core: CoreState) -> None:
        wall = self._wall()
        for each in self._types:
            wanted = []
            for manifest in each.watch.objects().values():
                uid = objects.uid(manifest)
                account, fault = core.reservations.find(uid), self._faults.get(uid, "")
                wanted.append((manifest, each.status(manifest, account, fault, wall)))
            await each.writer.write(wanted)
