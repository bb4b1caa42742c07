"""Moves NeonVM's VMs to other nodes: a VirtualMachineMigration object for each move, which NeonVM's controller carries out.

A move that succeeds ends with the VM's pod: the cluster tells that. One that fails, is removed, or waits too long for a node is
told as `MigrationEnded`. Moves that others have begun count as well, because the VM must not be resized meanwhile. Our
objects are deleted when their move has ended. Source: reference/neon.md 6.3.
"""

import asyncio
import random
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from hosting.backoff import Backoff
from hosting.fault_log import FaultLog
from hosting.kubernetes import objects
from hosting.kubernetes.api import KubernetesApi, KubernetesError, RefusedError
from hosting.kubernetes.reflector import Reflector
from hosting.kubernetes.resources import MIGRATIONS, PODS, VIRTUAL_MACHINES, Manifest
from hosting.kubernetes.virtual_machines import machine_of
from hosting.logs import Logger
from hosting.supervisor import Child
from protocol.wire import PodName
from scheduler.permits.core import events
from scheduler.ports import LeadershipGuard, MigratorError, SoleScheduler

CREATED_BY: Final = "app.kubernetes.io/managed-by"
US: Final = "parley-scheduler"
"""The value of that label on objects of ours: nobody else's are deleted."""
PENDING_S: Final = 300.0
"""How long a move may wait until a node takes the VM; then it is given up."""
LOOK_S: Final = 5.0
"""How often all moves are looked at, beside whenever one changes."""
RETRY: Final = Backoff(base_s=60.0, cap_s=600.0)
"""How long a node is left alone after a move from it has failed."""
_OVER: Final = frozenset({"Succeeded", "Failed"})

Key = tuple[str, str]
Choose: TypeAlias = Callable[[events.MigrationWanted], Awaitable[tuple[str, ...]]]
"""Says which nodes could take a VM, the best one first. Raises `MigratorError` if there is none."""


@dataclass(frozen=True, slots=True)
class _Move:
    """A VirtualMachineMigration. `source` is the pod that the VM leaves, None until NeonVM has told it. `is_going` says that
    the object is being deleted, which ends the move."""

    key: Key
    uid: str
    vm: str
    phase: str
    source: PodName | None
    is_ours: bool
    is_going: bool

    @classmethod
    def read(cls, manifest: Manifest) -> "_Move":
        status: Mapping[str, Any] = manifest.get("status") or {}
        namespace, source = objects.namespace(manifest), status.get("sourcePodName")
        return cls(
            (namespace, objects.name(manifest)),
            objects.uid(manifest),
            str((manifest.get("spec") or {}).get("vmName", "")),
            str(status.get("phase") or "Pending"),
            PodName(str(source), namespace) if source else None,
            objects.labels(manifest).get(CREATED_BY) == US,
            "deletionTimestamp" in manifest["metadata"],
        )


class KubernetesMigrator:
    """The `Migrator` port. Its `children` run as long as this scheduler leads; one migrator serves one core.

    `uid_of` gives the UID under which the core knows a pod's VM; `report` takes inputs to the core. With `choose` no move
    begins that has nowhere to go, and each names the best node. That is a wish: the scheduler of the second pod decides, and NeonVM
    up to v0.49 does not pass it on. `guard` lets nothing be created if another process leads.
    """

    def __init__(  # noqa: PLR0913 - the ports of a migrator
        self,
        api: KubernetesApi,
        report: Callable[[events.MigrationStarted | events.MigrationEnded], object],
        uid_of: Callable[[PodName], str | None],
        *,
        clock: Callable[[], float],
        rng: random.Random,
        log: Logger,
        choose: Choose | None = None,
        guard: LeadershipGuard | None = None,
    ) -> None:
        self._api = api
        self._choose = choose
        self._guard = guard or SoleScheduler()
        self._report = report
        self._uid_of = uid_of
        self._clock = clock
        self._rng = rng
        self._log = log
        self._changed = asyncio.Event()
        self._watch = Reflector(
            api,
            MIGRATIONS,
            clock=clock,
            rng=rng,
            log=log,
            on_change=lambda _: self._changed.set(),
            is_optional=True,
        )
        self._faults = FaultLog(log, "migration cannot be cleaned up", "migrations are cleaned up again")
        self._told: dict[Key, str] = {}
        """The moves that the core knows of, with the UID that the VM has there."""
        self._waiting_since_s: dict[Key, float] = {}
        self._failures = 0

    def children(self) -> dict[str, Child]:
        return {"watch of migrations": self._watch.run, "migrations": self.run}

    async def start(self, wanted: events.MigrationWanted) -> None:
        """Create the object. Done again for the same pod, the object that is there counts."""
        targets = await self._choose(wanted) if self._choose is not None else ()
        try:
            body = await self._migration(wanted, targets)
            self._guard.check(0)
            created = _Move.read(await self._created(body))
        except KubernetesError as error:
            raise MigratorError(str(error)) from None
        if created.phase in _OVER or created.is_going:
            raise MigratorError(f"an earlier migration {created.key[1]} is not cleaned up yet")
        self._told[created.key] = wanted.uid
        self._changed.set()

    async def run(self) -> None:
        await self._watch.synced()
        while True:
            self._changed.clear()
            await self._look()
            try:
                async with asyncio.timeout(LOOK_S):
                    await self._changed.wait()
            except TimeoutError:
                continue

    # ------------------------------------------------------------ beginning

    async def _migration(self, wanted: events.MigrationWanted, targets: tuple[str, ...]) -> Manifest:
        """The object that moves the VM of a pod. Raises `MigratorError` if that cannot be."""
        namespace = wanted.pod.namespace
        pod = await self._api.get(PODS, namespace, wanted.pod.name)
        name = machine_of(pod)
        if name is None or objects.uid(pod) != wanted.uid:
            raise MigratorError(f"pod {wanted.pod} is not that of a VirtualMachine any more")
        machine = await self._api.get(VIRTUAL_MACHINES, namespace, name)
        if (machine.get("status") or {}).get("podName") != wanted.pod.name:
            raise MigratorError(f"VirtualMachine {name} is not in pod {wanted.pod} any more")
        for other in map(_Move.read, self._watch.objects().values()):
            if (
                (other.key[0], other.vm) == (namespace, name)
                and other.phase not in _OVER
                and not other.is_ours
            ):
                raise MigratorError(
                    f"VirtualMachine {name} is being moved by migration {other.key[1]} already"
                )
        owner = {"kind": "VirtualMachine", "name": name, "uid": objects.uid(machine)}
        spec: dict[str, Any] = {"vmName": name, "preventMigrationToSameHost": True}
        if targets:
            spec["nodeAffinity"] = _preferring(targets[0])
        return {
            "apiVersion": MIGRATIONS.api_version,
            "kind": MIGRATIONS.kind,
            "metadata": {
                # The name is that of the pod's UID: the same VM may have to move again from where it went.
                "name": f"parley-{wanted.uid}",
                "namespace": namespace,
                "labels": {CREATED_BY: US},
                "ownerReferences": [{"apiVersion": VIRTUAL_MACHINES.api_version, **owner}],
            },
            "spec": spec,
        }

    async def _created(self, body: Manifest) -> Manifest:
        namespace, name = objects.namespace(body), objects.name(body)
        try:
            return await self._api.create(MIGRATIONS, namespace, body)
        except RefusedError as error:
            if not error.is_conflict:
                raise
        return await self._api.get(MIGRATIONS, namespace, name)

    # ------------------------------------------------------------ until the end

    async def _look(self) -> None:
        """Tell the core of the moves that have begun and those that are over, and clean up."""
        moves = {move.key: move for move in map(_Move.read, self._watch.objects().values())}
        for key in self._told.keys() - moves.keys():
            if await self._is_gone(key):
                self._end(key, "the migration was removed")
        for move in moves.values():
            if move.phase in _OVER:
                await self._over(move)
            else:
                await self._under_way(move)
        self._waiting_since_s = {
            key: since_s for key, since_s in self._waiting_since_s.items() if key in moves
        }

    async def _under_way(self, move: _Move) -> None:
        if move.is_going:
            return
        uid = self._uid_of(move.source) if move.source is not None else None
        if uid is not None and self._told.get(move.key) != uid:
            self._told[move.key] = uid
            self._report(events.MigrationStarted(uid))
        if move.phase != "Pending" or not move.is_ours:
            self._waiting_since_s.pop(move.key, None)
            return
        since_s = self._waiting_since_s.setdefault(move.key, self._clock())
        if self._clock() - since_s >= PENDING_S:
            why = f"no node has taken the VM within {PENDING_S:g} s"
            self._log.warning("migration given up", migration="/".join(move.key), why=why)
            await self._delete(move)

    async def _over(self, move: _Move) -> None:
        if move.phase == "Failed":
            self._end(move.key, "the migration failed")
        elif self._told.pop(move.key, None) is not None:
            self._failures = 0
            self._log.info("migration succeeded", vm=f"{move.key[0]}/{move.vm}")
        if move.is_ours and not move.is_going:
            await self._delete(move)

    def _end(self, key: Key, why: str) -> None:
        """The VM stays where it is."""
        uid = self._told.pop(key, None)
        if uid is None:
            return
        self._failures += 1
        wait_s = RETRY.delay_s(self._failures, self._rng.random())
        self._log.warning("migration ended", migration="/".join(key), why=why, retry_in_s=round(wait_s, 1))
        self._report(events.MigrationEnded(uid, self._clock() + wait_s))

    async def _is_gone(self, key: Key) -> bool:
        """Whether there is no such object: the watch may not have shown yet what was just created."""
        try:
            await self._api.get(MIGRATIONS, *key)
        except RefusedError as error:
            return error.is_not_found
        except KubernetesError:
            return False
        return False

    async def _delete(self, move: _Move) -> None:
        """Delete an object of ours. A failed deletion is tried again with the next look."""
        name = "/".join(move.key)
        try:
            await self._api.delete(MIGRATIONS, *move.key, body={"preconditions": {"uid": move.uid}})
        except KubernetesError as error:
            if not (isinstance(error, RefusedError) and (error.is_not_found or error.is_conflict)):
                self._faults.failed(error, name, migration=name)
                return
        self._faults.worked(name, migration=name)


def _preferring(node: str) -> Manifest:
    term = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": [node]}]}
    return {"preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 100, "preference": term}]}
