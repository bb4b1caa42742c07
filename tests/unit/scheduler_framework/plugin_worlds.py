"""Around a plugin under test: a handle whose ports answer as told and remember what they were asked, pods and nodes."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from hosting.kubernetes.resources import ResourceType
from protocol.reasons import Reason, ReasonCode
from protocol.values import ZERO, Bounds, Resources
from protocol.wire import PodName
from scheduler.permits.core.model import Holder, Kind
from scheduler.placing.core.handle import ExtendedHandle
from scheduler.placing.core.informers import Informer, NothingWatched
from scheduler.placing.core.objects import NodeInfo, PodInfo, Reservation, RowInfo
from scheduler.placing.core.values import Code, Status, code_of
from scheduler.ports import NotBound
from tests.support.amounts import cu

NO_ROOM = Reason(ReasonCode.NODE_HEADROOM, "the other holders leave 0 CPU of the node", "cpu")


@dataclass(frozen=True)
class Assumed:
    """An amount that the ledger was asked to keep."""

    name: str
    node: str
    amount: Resources
    until_s: float
    pool: str | None
    reservation: str | None


@dataclass(eq=False)
class LedgerAsTold:
    """The port `Placements`."""

    refusal: Reason | None = None
    kept: dict[str, Assumed] = field(default_factory=dict)
    """By UID."""
    forgotten: list[str] = field(default_factory=list)

    def assume(
        self,
        holder: Holder,
        name: str,
        node: str,
        amount: Resources,
        *,
        until_s: float,
        pool: str | None = None,
        reservation: str | None = None,
    ) -> Reason | None:
        if self.refusal is None:
            self.kept[holder.uid] = Assumed(name, node, amount, until_s, pool, reservation)
        return self.refusal

    def forget(self, holder: Holder) -> None:
        self.forgotten.append(holder.uid)
        self.kept.pop(holder.uid, None)

    def place_of(self, holder: Holder) -> str | None:
        kept = self.kept.get(holder.uid)
        return kept.node if kept is not None else None

    def headroom(self, node: str, holder: Holder) -> Resources:
        raise AssertionError("no reservation is nominated here")

    def ask_back(self, quota: str, excess: Resources, uids: Sequence[str]) -> None:
        raise AssertionError("no quota here has borrowed anything")


@dataclass
class PoolsAsTold:
    """The port `PlacementAdmission`."""

    refusal: Reason | None = None
    asked: list[tuple[str, Resources, float]] = field(default_factory=list)

    async def admit(
        self, pod: Mapping[str, Any], pool: str, amount: Resources, deadline_s: float
    ) -> Reason | None:
        del pod
        self.asked.append((pool, amount, deadline_s))
        return self.refusal


@dataclass
class BinderAsTold:
    """The port `Binder`."""

    failure: NotBound | None = None
    bound: list[tuple[str, str, str, Mapping[str, str]]] = field(default_factory=list)

    async def bind(
        self, pod: PodName, uid: str, node: str, annotations: Mapping[str, str]
    ) -> NotBound | None:
        self.bound.append((str(pod), uid, node, annotations))
        return self.failure


@dataclass
class NominatorAsTold:
    """Which reservation was nominated, by the UID of the pod."""

    nominated: dict[str, Reservation] = field(default_factory=dict)

    def nominated_reservation(self, pod: PodInfo, node_name: str) -> Reservation | None:
        del node_name
        return self.nominated.get(pod.uid)


@dataclass
class HandleAsTold:
    """A handle with the ports that plugins ask for."""

    placements: LedgerAsTold = field(default_factory=LedgerAsTold)
    placement_admission: PoolsAsTold = field(default_factory=PoolsAsTold)
    binder: BinderAsTold | None = field(default_factory=BinderAsTold)
    nominator: NominatorAsTold | None = None
    time_s: float = 1000.0

    def shared_informer(self, type_: ResourceType) -> Informer:
        return NothingWatched().informer(type_)

    def register_error_handler_filters(self, pre: object, post: object) -> None:
        """No pod fails."""

    def get_reservation_nominator(self) -> Any:
        return self.nominator

    def now_s(self) -> float:
        return self.time_s

    @property
    def extended(self) -> ExtendedHandle:
        """As factories get it."""
        return cast("ExtendedHandle", self)


class Notes(dict[str, Any]):
    """The context of a cycle."""

    def read(self, key: str) -> Any:
        return self[key]

    def write(self, key: str, value: Any) -> None:
        self[key] = value

    def delete(self, key: str) -> None:
        self.pop(key, None)


def pod(
    name: str,
    amount: Resources = ZERO,
    *,
    most: Resources | None = None,
    pool: str | None = None,
    priority: int = 0,
    labels: Mapping[str, str] | None = None,
    owner: str | None = None,
    **spec: Any,
) -> PodInfo:
    """A pod of the namespace `default`; with `most` one that grows. `owner` is the UID of its controller."""
    metadata: dict[str, Any] = {"name": name, "namespace": "default", "labels": dict(labels or {})}
    if owner is not None:
        metadata["ownerReferences"] = [
            {"kind": "ReplicaSet", "name": owner, "uid": owner, "controller": True}
        ]
    bounds = Bounds(cu(1), most) if most is not None else None
    return PodInfo(
        PodName(name, "default"),
        f"uid-{name}",
        amount,
        bounds,
        pool,
        priority,
        labels or {},
        {"metadata": metadata, "spec": spec},
    )


def row(name: str, reserved: Resources, **rest: Any) -> RowInfo:
    """A row of a pod or VM of the namespace `default`."""
    kind = Kind.VM if rest.get("bounds") is not None else Kind.POD
    return RowInfo(Holder(kind, f"uid-{name}"), f"default/{name}", reserved, **rest)


def node(
    name: str = "a",
    reservable: Resources = ZERO,
    rows: Sequence[RowInfo] = (),
    *,
    pods: Sequence[PodInfo] = (),
    labels: Mapping[str, str] | None = None,
    allocatable: Mapping[str, str] | None = None,
    **spec: Any,
) -> NodeInfo:
    metadata = {"name": name, "labels": {"kubernetes.io/hostname": name, **(labels or {})}}
    manifest = {
        "metadata": metadata,
        "spec": spec,
        "status": {"allocatable": {"pods": "110", **(allocatable or {})}},
    }
    return NodeInfo(
        name,
        reservable,
        sum((each.reserved for each in rows), ZERO),
        {each.holder: each for each in rows},
        tuple(pods),
        manifest,
    )


def told(status: Status | None) -> tuple[Code | int, str]:
    return code_of(status), status.message if status is not None else ""
