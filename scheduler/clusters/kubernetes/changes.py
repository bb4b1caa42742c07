"""The cluster as told to the scheduler of pods: pods that wait for one of our profiles, and changes after which others are worth another try.

There is a watch for each scheduler's name. Changes are events of the scheduling framework, and given out once the ledger has taken what
they stand for: tried earlier, a pod would find everything as it was.
"""

import random
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from hosting.kubernetes import objects, pods
from hosting.kubernetes.api import KubernetesApi
from hosting.kubernetes.core.known import Change, Changed, Key, key_of
from hosting.kubernetes.reflector import Reflector
from hosting.kubernetes.resources import NODES, PODS, Manifest, ResourceType
from hosting.logs import Logger
from hosting.supervisor import Child
from scheduler.clusters.kubernetes.cluster import KubernetesCluster
from scheduler.clusters.kubernetes.placing import PlacingView
from scheduler.clusters.kubernetes.published_reservations import reserve_pod
from scheduler.clusters.kubernetes.reading import MALFORMED
from scheduler.permits.core.core import Core
from scheduler.placing.core.informers import Informer
from scheduler.placing.core.values import ActionType, EventResource, SchedulingEvent
from scheduler.placing.cycle.scheduler import PodScheduler


class ClusterChanges:
    """Collects changes. Of one object only its last state counts, beside the one that was given out before."""

    def __init__(self, cluster: KubernetesCluster, view: PlacingView) -> None:
        self._view = view
        self._collected: dict[tuple[ResourceType, Key], tuple[Manifest | None, Manifest | None]] = {}
        """Before and after, None if the object was not there."""
        cluster.listen(self._note)

    def _note(self, type_: ResourceType, keys: Collection[Key], changes: tuple[Change, ...]) -> None:
        del keys
        if type_ not in {NODES, PODS}:
            return
        for change in changes:
            about = type_, key_of(change.manifest)
            is_there = isinstance(change, Changed)
            previous = change.previous if isinstance(change, Changed) else change.manifest
            before, _ = self._collected.get(about, (previous, None))
            self._collected[about] = before, change.manifest if is_there else None

    def take(self) -> list[SchedulingEvent]:
        """The events of nodes, and of pods that have one. Called when the ledger has taken all that the watches showed."""
        collected, self._collected = self._collected, {}
        events = []
        for (type_, _), (before, after) in collected.items():
            if type_ is PODS:
                events += self._events(type_, _living(before), _living(after))
            else:
                events += self._events(type_, before, after)
        return events

    def _events(
        self, type_: ResourceType, before: Manifest | None, after: Manifest | None
    ) -> list[SchedulingEvent]:
        resource = EventResource.POD if type_ is PODS else EventResource.NODE
        was, is_ = self._shown(type_, before), self._shown(type_, after)
        if before is not None and after is not None:
            if objects.uid(before) != objects.uid(after):
                return [
                    SchedulingEvent(resource, ActionType.DELETE, before=was),
                    SchedulingEvent(resource, ActionType.ADD, after=is_),
                ]
            counts = _what_counts(before) != _what_counts(after)
            return [SchedulingEvent(resource, ActionType.UPDATE, was, is_)] if counts else []
        if before is not None:
            return [SchedulingEvent(resource, ActionType.DELETE, before=was)]
        return [SchedulingEvent(resource, ActionType.ADD, after=is_)] if after is not None else []

    def _shown(self, type_: ResourceType, manifest: Manifest | None) -> Any:
        if manifest is None or type_ is not PODS:
            return manifest
        return self._view.as_far_as_readable(manifest)


class LedgerChanges:
    """The room that becomes free, and the changes, in the ledger alone, seen by its counts since the last look."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._room_frees = core.ledger.room_frees
        self._pools = self._state_of_pools()
        self._reservations = self._state_of_reservations()

    def take(self) -> list[SchedulingEvent]:
        """Whether room became free in the ledger, a pool gave something back or was changed, or reservations came, changed or went."""
        events = []
        ledger = self._core.ledger
        if ledger.room_frees != self._room_frees:
            self._room_frees = ledger.room_frees
            events.append(SchedulingEvent(EventResource.LEDGER, ActionType.UPDATE))
        pools = self._state_of_pools()
        if pools != self._pools:
            self._pools = pools
            events.append(SchedulingEvent(EventResource.POOL, ActionType.UPDATE))
        reservations = self._state_of_reservations()
        if reservations != self._reservations:
            self._reservations = reservations
            events.append(SchedulingEvent(EventResource.RESERVATION, ActionType.UPDATE))
        return events

    def _state_of_reservations(self) -> dict[str, tuple[object, ...]]:
        return {
            each.uid: (each.spec, each.allocated, each.is_used_up, each.reason is None)
            for each in self._core.state.reservations
        }

    def _state_of_pools(self) -> tuple[int, dict[str, int | None]]:
        ledger = self._core.ledger
        return ledger.frees, {
            pool.name: pool.spec.generation if pool.spec is not None else None for pool in ledger.pools()
        }


def _living(pod: Manifest | None) -> Manifest | None:
    """The pod; None if it has ended, which gives room back like a deletion."""
    return pod if pod is not None and not pods.is_terminal(pod) else None


def _what_counts(manifest: Manifest) -> tuple[Any, ...]:
    """The fields that plugins may go by; the rest of a status changes all the time."""
    status = manifest.get("status") or {}
    conditions = {each.get("type"): each.get("status") for each in status.get("conditions") or ()}
    is_pod = "phase" in status
    return (
        manifest.get("spec"),
        dict(objects.labels(manifest)),
        dict(objects.annotations(manifest)),
        status.get("allocatable"),
        None if is_pod else conditions,
    )


class UnscheduledPods:
    """Tells a scheduler of pods without a node, and when they have one or are no more."""

    def __init__(
        self,
        api: KubernetesApi,
        view: PlacingView,
        scheduler: PodScheduler,
        *,
        clock: Callable[[], float],
        rng: random.Random,
        log: Logger,
    ) -> None:
        self._api = api
        self._view = view
        self._scheduler = scheduler
        self._clock, self._rng, self._log = clock, rng, log
        self._has_refused = False
        self._watches: dict[str, Reflector] = {}

    def follow(self, names: Iterable[str]) -> Mapping[str, Child]:
        """Watch the pods for these schedulers as well: the tasks that must run for those that are new.

        Pods are offered once more: those of a name that comes again were dropped while it was nobody's.
        """
        self._has_refused = True
        fresh = {name: self._watch(name) for name in names if name not in self._watches}
        self._watches |= fresh
        return {f"watch of pods for {name}": watch.run for name, watch in fresh.items()}

    def _watch(self, name: str) -> Reflector:
        return Reflector(
            self._api,
            PODS,
            field_selector=f"spec.nodeName=,spec.schedulerName={name}",
            clock=self._clock,
            rng=self._rng,
            log=self._log,
            on_change=self._changed,
        )

    def offer_again(self) -> None:
        """Tell once more of pods that were not taken, if there were any."""
        if not self._has_refused:
            return
        self._has_refused = False
        for watch in self._watches.values():
            for manifest in watch.objects().values():
                self._offer(manifest)

    def _changed(self, changes: tuple[Change, ...]) -> None:
        for change in changes:
            if isinstance(change, Changed) and _is_open(change.manifest):
                self._offer(change.manifest)
            else:
                self._scheduler.pod_gone(objects.uid(change.manifest))

    def _offer(self, manifest: Manifest) -> None:
        self._has_refused |= not self._scheduler.pod_seen(self._view.as_far_as_readable(manifest))


class UnscheduledReservations:
    """Tells a scheduler of published Reservations without a node, each as the pod that is placed for it."""

    def __init__(
        self,
        informer: Informer,
        view: PlacingView,
        scheduler: PodScheduler,
        wall: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._informer, self._view, self._scheduler, self._wall = informer, view, scheduler, wall
        self._names: Sequence[str] = ()
        informer.add_event_handler(self._heard)

    def follow(self, names: Sequence[str]) -> None:
        """Those for these schedulers from now on; the first one also has those that name none."""
        self._names = names
        for manifest in list(self._informer.objects().values()):
            self._heard(None, manifest)

    def _heard(self, before: Manifest | None, after: Manifest | None) -> None:
        pod = self._wanted(after) if after is not None else None
        if pod is not None:
            self._scheduler.pod_seen(self._view.as_far_as_readable(pod))
        elif (known := after or before) is not None:
            self._scheduler.pod_gone(objects.uid(known))

    def _wanted(self, manifest: Manifest) -> Manifest | None:
        if not self._names:
            return None
        try:
            pod = reserve_pod(manifest, self._names[0], self._wall())
        except MALFORMED:  # its status tells why
            return None
        return pod if pod is not None and pod["spec"]["schedulerName"] in self._names else None


def _is_open(pod: Manifest) -> bool:
    phase = (pod.get("status") or {}).get("phase")
    return "deletionTimestamp" not in pod["metadata"] and phase not in {"Succeeded", "Failed"}
