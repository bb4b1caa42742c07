"""`Pool` objects (pools.parley.dev): described there, taken up through the hooks of the chain, and shown in their status.

The labels and annotations of an object are those of its pool. While plugins are configured, an object has our finalizer, so that
the hooks of its deletion run before it has gone.
"""

import asyncio
import random
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any, Final, Protocol

from hosting.fault_log import FaultLog
from hosting.kubernetes import objects
from hosting.kubernetes.api import KubernetesApi, KubernetesError
from hosting.kubernetes.core.known import Change
from hosting.kubernetes.reflector import Reflector
from hosting.kubernetes.resources import POOLS, Manifest
from hosting.logs import Logger
from hosting.settings import FaultsError, check
from scheduler.clusters.kubernetes.cluster import TellFault
from scheduler.clusters.kubernetes.status import StatusCondition, StatusWriter, conditions_of
from scheduler.pools.core.values import Pool
from scheduler.pools.entry import PoolEntry
from scheduler.ports import ClusterUnreachableError

LOOK_S: Final = 2.0
FINALIZER: Final = "parley.dev/pool"
_APPLIED: Final = "kubectl.kubernetes.io/last-applied-configuration"
"""A copy of the whole object, which kubectl keeps."""


class PoolViews(Protocol):
    """The view of the running core's pools. `scheduler.pools.service.PoolService` is it."""

    @property
    def has_plugins(self) -> bool:
        """Whether hooks are to be asked about a deletion."""

    @property
    def faults(self) -> Mapping[str, str]:
        """Why pools were not taken up as they are described, by name."""

    def view(self, name: str) -> Mapping[str, Any] | None:
        """A pool as `/v1/pools` shows it; None if there is none."""


def pool_of(manifest: Manifest) -> Pool:
    """The pool that an object describes. Raises `FaultsError`."""
    spec = manifest.get("spec") or {}
    annotations = {name: text for name, text in objects.annotations(manifest).items() if name != _APPLIED}
    entry = check(
        {
            "name": objects.name(manifest),
            "computeUnit": spec.get("computeUnit"),
            "limits": spec.get("limits") or {},
            "labels": dict(objects.labels(manifest)),
            "annotations": annotations,
        },
        PoolEntry,
    )
    return entry.pool()


def pool_status(
    manifest: Manifest, view: Mapping[str, Any] | None, fault: str, wall: datetime
) -> dict[str, Any]:
    """The status of an object; `fault` says why it was not taken up, `view` is the pool as it counts."""
    if fault:
        accepted = StatusCondition("Accepted", False, "Refused", fault)
    elif view is None:
        accepted = StatusCondition("Accepted", None, "Waiting", "the hooks of the plugins are asked")
    else:
        accepted = StatusCondition("Accepted", True, "Counts", "the pool counts as it is described")
    others = tuple(_condition(each) for each in view["status"]["conditions"]) if view is not None else ()
    status: dict[str, Any] = {
        "observedGeneration": manifest["metadata"].get("generation", 0),
        "conditions": conditions_of(manifest, (accepted, *others), wall),
    }
    if view is not None:
        unit = view["computeUnit"]
        status |= {
            "unit": f"{unit['cpu']} CPU / {unit['memory']}",
            "replicas": view["status"]["totalUnits"],
            "members": view["status"]["members"],
        }
    return status


def _condition(shown: Mapping[str, str]) -> StatusCondition:
    is_true = None if shown["status"] == "Unknown" else shown["status"] == "True"
    return StatusCondition(shown["type"], is_true, shown["reason"], shown["message"])


class KubernetesPools:
    """The Pool objects of the cluster. `run_watch` keeps them up to date, `run` their status and finalizers."""

    def __init__(
        self,
        api: KubernetesApi,
        clock: Callable[[], float],
        rng: random.Random,
        log: Logger,
        wall: Callable[[], datetime] = lambda: datetime.now(UTC),
        tell_fault: TellFault | None = None,
    ) -> None:
        """`tell_fault` is told of an object that is not taken up."""
        self._tell_fault = tell_fault
        self._api = api
        self._clock = clock
        self._log = log
        self._wall = wall
        self._watch = Reflector(
            api, POOLS, clock=clock, rng=rng, log=log, on_change=self._note, is_optional=True
        )
        self.run_watch = self._watch.run
        self._writer = StatusWriter(api, POOLS, clock, log)
        self._described: Mapping[str, Pool] = {}
        self._has_changed = True
        self._faults: dict[str, str] = {}
        self._told: dict[str, str] = {}
        """The faults that were told last."""
        self._finalizer_faults = FaultLog(
            log, "finalizer of a pool not written", "finalizer of a pool written"
        )

    def _note(self, _: tuple[Change, ...]) -> None:
        self._has_changed = True

    async def load(self) -> None:
        """See every object. Raises `ClusterUnreachableError`; if the API server knows no such type, there are none."""
        try:
            await self._watch.caught_up(self._clock())
        except KubernetesError as error:
            if not self._watch.is_missing:
                raise ClusterUnreachableError(f"pools: {error}") from None

    def described(self) -> Mapping[str, Pool]:
        """The pools as they are described, another mapping whenever an object has changed.

        An object with faults keeps the description that was read before.
        """
        if not self._has_changed:
            return self._described
        self._has_changed = False
        found: dict[str, Pool] = {}
        self._faults.clear()
        for (_, name), manifest in self._watch.objects().items():
            if "deletionTimestamp" in manifest["metadata"]:
                continue
            try:
                found[name] = pool_of(manifest)
            except FaultsError as error:
                self._faults[name] = "; ".join(error.faults)
                if name in self._described:
                    found[name] = self._described[name]
        if found != self._described:
            self._described = found
        return self._described

    async def run(self, views: PoolViews) -> None:
        while True:
            await asyncio.sleep(LOOK_S)
            await self.write(views)

    async def write(self, views: PoolViews) -> None:
        wall, refused, wanted = self._wall(), views.faults, []
        there = {name for _, name in self._watch.objects()}
        self._told = {name: fault for name, fault in self._told.items() if name in there}
        for (_, name), manifest in tuple(self._watch.objects().items()):
            view = views.view(name)
            await self._write_finalizer(manifest, has_gone=view is None, is_needed=views.has_plugins)
            fault = self._faults.get(name) or refused.get(name, "")
            if fault and self._told.get(name) != fault and self._tell_fault is not None:
                self._tell_fault(POOLS, manifest, fault)
            self._told[name] = fault
            wanted.append((manifest, pool_status(manifest, view, fault, wall)))
        await self._writer.write(wanted)

    async def _write_finalizer(self, manifest: Manifest, *, has_gone: bool, is_needed: bool) -> None:
        """Have our finalizer on an object while hooks must be asked, and take it off once the pool has gone."""
        metadata, name = manifest["metadata"], objects.name(manifest)
        found = metadata.get("finalizers") or []
        is_deleting = "deletionTimestamp" in metadata
        if FINALIZER in found and (has_gone if is_deleting else not is_needed):
            kept = [each for each in found if each != FINALIZER]
        elif FINALIZER not in found and is_needed and not is_deleting:
            kept = [*found, FINALIZER]
        else:
            return
        body = {"metadata": {"finalizers": kept, "resourceVersion": objects.version(manifest)}}
        try:
            await self._api.patch(POOLS, None, name, body)
        except KubernetesError as error:
            self._finalizer_faults.failed(error, name, pool=name)
        else:
            self._finalizer_faults.worked(name, pool=name)
