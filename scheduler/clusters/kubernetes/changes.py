"""The changes of a cluster as events of the scheduling framework: pods that no node took may be worth another try.

Events are given out once the ledger has taken what they stand for: tried earlier, a pod would find everything as it was.
"""

from collections.abc import Collection
from typing import Any

from hosting.kubernetes import objects, pods
from hosting.kubernetes.core.known import Change, Changed, Key, key_of
from hosting.kubernetes.resources import NODES, PODS, Manifest, ResourceType
from scheduler.clusters.kubernetes.cluster import KubernetesCluster
from scheduler.clusters.kubernetes.placing import PlacingView
from scheduler.permits.core.core import Core
from scheduler.placing.core.values import ActionType, EventResource, SchedulingEvent


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
