"""Published Reservations (`scheduling.koordinator.sh`): their room as the core keeps it, their status, and the pod that looks for their node.

Pure. The spec is read in `scheduler.placing.plugins.published_reservations`. Source: reference/koordinator.md 2.6.
"""

from datetime import datetime, timedelta
from typing import Any, Final

from hosting.kubernetes import objects, pods
from hosting.kubernetes.koordinator import PUBLISHED_RESERVATIONS
from hosting.kubernetes.resources import Manifest
from protocol.values import ZERO, Resources
from scheduler.clusters.kubernetes.status import StatusCondition, conditions_of
from scheduler.permits.core.model import ReservationSpec
from scheduler.permits.core.state import ReservationAccount
from scheduler.placing.plugins.published_reservations import (
    ORDER,
    PublishedReservationEntry,
    spec_of_reservation,
)

SUCCEEDED: Final = "Succeeded"
FAILED: Final = "Failed"
ENDED: Final = frozenset({SUCCEEDED, FAILED})
MAX_OWNERS_SHOWN: Final = 100


def published_reservation_of(manifest: Manifest, wall: datetime) -> ReservationSpec:
    """As the core keeps it: CPU and memory, on the node of its status. Raises `FaultsError`, and `ValueError` for a template without
    requests.

    It has no owners there: those of this kind are more than labels, and only the plugin `Reservation` knows them.
    """
    spec = spec_of_reservation(manifest)
    order = objects.labels(manifest).get(ORDER, "")
    return ReservationSpec(
        uid=objects.uid(manifest),
        name=objects.name(manifest),
        node=(manifest.get("status") or {}).get("nodeName") or "",
        allocatable=reserved(spec),
        allocate_once=spec.allocate_once is not False,
        has_ended=_phase(manifest) in ENDED or _is_over(manifest, spec, wall),
        order=int(order) if order.isdecimal() else 0,
        is_pre_allocated=spec.pre_allocation,
    )


def reserved(spec: PublishedReservationEntry) -> Resources:
    """What a pod of the template holds. Raises an error of `reading.MALFORMED` if that is nothing, or cannot be read."""
    amount = pods.holds({"metadata": {}, "spec": _pod_spec(spec), "status": {}})
    if amount == ZERO:
        raise ValueError(
            "spec.template: its containers request neither CPU nor memory, so there is nothing to keep"
        )
    return amount


def _pod_spec(spec: PublishedReservationEntry) -> dict[str, Any]:
    found = spec.template.get("spec")
    return found if isinstance(found, dict) else {}


def _phase(manifest: Manifest) -> str:
    phase: str = (manifest.get("status") or {}).get("phase", "")
    return phase


def _is_over(manifest: Manifest, spec: PublishedReservationEntry, wall: datetime) -> bool:
    """Whether its time has passed: `expires` if that is given, else its TTL since its creation."""
    if spec.expires is not None:
        return wall >= datetime.fromisoformat(spec.expires)
    ttl_s = spec.ttl_s
    return ttl_s is not None and wall >= datetime.fromisoformat(objects.created(manifest)) + timedelta(
        seconds=ttl_s
    )


def published_reservation_status(
    manifest: Manifest, account: ReservationAccount | None, fault: str, wall: datetime
) -> dict[str, Any]:
    """The status of an object; `fault` says why it was not taken up. The condition `Scheduled` of one without a node is that of its
    scheduling, which is written where that ends."""
    spec = account.spec if account is not None else None
    before = manifest.get("status") or {}
    phase, ready = _state(manifest, account, fault)
    status: dict[str, Any] = {"phase": phase}
    conditions = [ready]
    if spec is not None and spec.node:
        conditions.append(StatusCondition("Scheduled", True, "Scheduled", f"its room is on node {spec.node}"))
        status["nodeName"] = spec.node
        status["allocatable"] = spec.allocatable.written()
        if account is not None and account.allocated != ZERO:
            status["allocated"] = account.allocated.written()
    elif "nodeName" in before:
        status["nodeName"] = before["nodeName"]
    written = conditions_of(manifest, conditions, wall)
    told = {each["type"] for each in written}
    kept = [each for each in before.get("conditions") or () if each.get("type") not in told]
    status["conditions"] = [*kept, *written]
    if owners := _owners(account):
        status["currentOwners"] = owners
    return status


def _owners(account: ReservationAccount | None) -> list[dict[str, str]]:
    """By UID alone: more is not known of a holder."""
    if account is None:
        return []
    return [
        {"kind": "Pod", "uid": uid} for uid in sorted(each.uid for each in account.taken)[:MAX_OWNERS_SHOWN]
    ]


def _state(manifest: Manifest, account: ReservationAccount | None, fault: str) -> tuple[str, StatusCondition]:
    def state(phase: str, reason: str, message: str) -> tuple[str, StatusCondition]:
        return phase, StatusCondition("Ready", phase == "Available", reason, message)

    if _phase(manifest) == SUCCEEDED or (account is not None and account.is_used_up):
        return state(SUCCEEDED, "Succeeded", "the pod that it was for has used it")
    spec = account.spec if account is not None else None
    if _phase(manifest) == FAILED or (spec is not None and spec.has_ended):
        return state(FAILED, "Expired", "its time is over")
    if fault:
        return state("Pending", "Faults", fault)
    if spec is None or account is None or not spec.node:
        return state("Pending", "Unschedulable", "it has no node yet")
    if account.reason is not None and account.allocated == ZERO:
        return state("Waiting" if spec.is_pre_allocated else "Pending", "NoRoom", account.reason.message)
    return state("Available", "Available", "its room is kept")


def reserve_pod(manifest: Manifest, scheduler_name: str, wall: datetime) -> Manifest | None:
    """The pod that is placed for a Reservation: that of its template, under the Reservation's name and UID. It never exists. One that
    names no scheduler is that of `scheduler_name`. Its conditions are those of the Reservation. None if no node is to be found for it.

    Its `kind` tells it from a pod: nobody else makes objects with that. Raises an error of `reading.MALFORMED`.
    """
    spec, status = spec_of_reservation(manifest), manifest.get("status") or {}
    is_going = "deletionTimestamp" in manifest["metadata"]
    if status.get("nodeName") or is_going or _phase(manifest) in ENDED or _is_over(manifest, spec, wall):
        return None
    reserved(spec)
    metadata = spec.template.get("metadata") or {}
    return {
        "apiVersion": PUBLISHED_RESERVATIONS.api_version,
        "kind": PUBLISHED_RESERVATIONS.kind,
        "metadata": {
            "name": objects.name(manifest),
            "namespace": metadata.get("namespace") or "default",
            "uid": objects.uid(manifest),
            "labels": dict(metadata.get("labels") or {}),
            "annotations": dict(metadata.get("annotations") or {}),
            "creationTimestamp": objects.created(manifest),
        },
        "spec": {"schedulerName": scheduler_name, **_pod_spec(spec)},
        "status": {"phase": "Pending", "conditions": status.get("conditions") or []},
    }


def is_reserve_pod(manifest: Manifest) -> bool:
    return manifest.get("kind") == PUBLISHED_RESERVATIONS.kind
