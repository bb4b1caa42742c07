"""Nodes, VMs and other holders of room as lists, in pages that hold nothing between two calls; and the latest decisions, for somebody who
follows them. Reads only.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any, Final

import msgspec
from msgspec.structs import asdict

from protocol.explaining import (
    DecisionOutcome,
    Decisions,
    GrowthShown,
    NodeInFull,
    NodeShown,
    PodInFull,
    PodShown,
    RowShown,
    StatePage,
    VmShown,
)
from protocol.values import ZERO
from protocol.wire import PodName
from scheduler.explain.core import explaining, records
from scheduler.explain.core.explaining import ExplainView
from scheduler.explain.core.memory import Trail
from scheduler.explain.core.records import RememberedDecision, amount_of, shown_amount
from scheduler.permits.core.ledger import NodeAccount, Row
from scheduler.permits.core.model import Kind
from scheduler.permits.core.state import CoreState, VmRecord, VmTable

NODES: Final = "node/"
VMS: Final = "vm/"
OTHERS: Final = "other/"
MOST_EXAMINED: Final = 2000
"""Things that are looked at for one page."""
PLACES: Final = (NODES, VMS, OTHERS)
"""The beginnings of the places at which a list is continued, in their order; after each follows the last name that was told."""


@dataclass(frozen=True, slots=True)
class StateFilter:
    """The filter of a page of the state; None and an empty text stand for all. `after` is the place after which it begins."""

    limit: int
    after: str = ""
    kind: str | None = None
    namespace: str | None = None
    node: str | None = None
    pool: str | None = None
    outcome: str | None = None

    def holds(self, place: str) -> bool:
        if place == VMS:
            return self.kind in (None, "vm")
        if self.pool is not None or self.outcome is not None:
            return False
        if place == NODES:
            return self.kind in (None, "node") and self.namespace is None
        return self.kind in (None, "pod", "reservation")


class NameIndex:
    """The names of all VMs in their order. Kept while no VM comes or goes, for a page must not cost a sort of 10,000 names."""

    def __init__(self) -> None:
        self._changes = -1
        self._names: list[str] = []
        self._pods: dict[str, PodName] = {}

    def names(self, vms: VmTable) -> list[str]:
        """`namespace/name` of every VM, sorted."""
        if vms.changes != self._changes:
            self._pods = {record.name: record.spec.pod for record in vms}
            self._names, self._changes = sorted(self._pods), vms.changes
        return self._names

    def pod(self, name: str) -> PodName:
        return self._pods[name]


def state_page(view: ExplainView, index: NameIndex, wanted: StateFilter) -> StatePage:
    """One page of everything that is asked for. If few things match, it ends after a number of others: none may hold the loop for long."""
    nodes: list[NodeShown] = []
    vms: list[VmShown] = []
    others: list[PodShown] = []
    place = None
    for examined, (at, item) in enumerate(_all(view, index, wanted)):
        if len(nodes) + len(vms) + len(others) == wanted.limit or examined == MOST_EXAMINED:
            break
        match item:
            case NodeAccount():
                nodes.append(node_shown(item))
            case VmRecord():
                vms.append(vm_shown(view, item))
            case Row():
                others.append(
                    PodShown(
                        kind=item.holder.kind.value,
                        name=item.name,
                        uid=item.holder.uid,
                        node=item.node,
                        reserved=shown_amount(item.reserved),
                    )
                )
            case None:
                pass
        place = at
    else:
        place = None
    return StatePage(
        instance=str(view.core.config.instance),
        epoch=view.core.config.epoch,
        at=view.moment(view.unix_s),
        nodes=tuple(nodes),
        vms=tuple(vms),
        others=tuple(others),
        continue_=place,
    )


def _all(
    view: ExplainView, index: NameIndex, wanted: StateFilter
) -> Iterator[tuple[str, NodeAccount | VmRecord | Row | None]]:
    """All things after the place where the list goes on, each with its own place; None for a VM that is not asked for."""
    after = wanted.after
    begun = next((number for number, place in enumerate(PLACES) if after.startswith(place)), 0)
    for number, place in enumerate(PLACES):
        if number < begun or not wanted.holds(place):
            continue
        last = after.removeprefix(place) if number == begun and after else None
        match place:
            case "node/":
                yield from (
                    (place + account.capacity.name, account) for account in _nodes(view.core, wanted, last)
                )
            case "vm/":
                yield from ((place + name, record) for name, record in _vms(view, index, wanted, last))
            case _:
                yield from ((place + _key(row), row) for row in _others(view.core, wanted, last))


def _nodes(core: CoreState, wanted: StateFilter, last: str | None) -> Iterator[NodeAccount]:
    accounts = core.ledger.nodes() if wanted.node is None else filter(None, [core.ledger.node(wanted.node)])
    for account in sorted(accounts, key=lambda each: each.capacity.name):
        if last is None or account.capacity.name > last:
            yield account


def _vms(
    view: ExplainView, index: NameIndex, wanted: StateFilter, last: str | None
) -> Iterator[tuple[str, VmRecord | None]]:
    vms = view.core.vms
    names = index.names(vms)
    first = 0 if last is None else bisect_right(names, last)
    if wanted.namespace is not None:
        first = max(first, bisect_left(names, wanted.namespace + "/"))
    for name in islice(names, first, None):
        if wanted.namespace is not None and not name.startswith(wanted.namespace + "/"):
            return
        record = vms.find(index.pod(name))
        yield name, record if record is not None and _is_wanted(view, record, wanted) else None


def _is_wanted(view: ExplainView, record: VmRecord, wanted: StateFilter) -> bool:
    if wanted.node is not None and record.spec.node != wanted.node:
        return False
    if wanted.pool is not None and record.spec.pool != wanted.pool:
        return False
    if wanted.outcome is None:
        return True
    outcome = latest_outcome(view, record, view.trail_of(record))
    return outcome is not None and outcome.value == wanted.outcome


def _others(core: CoreState, wanted: StateFilter, last: str | None) -> Iterator[Row]:
    """Pods that are no VMs, and reservations."""
    if wanted.node is None:
        rows: Iterator[Row] = core.ledger.rows()
    else:
        account = core.ledger.node(wanted.node)
        rows = iter(account.rows.values() if account is not None else ())
    found = [row for row in rows if row.holder.kind is not Kind.VM and _is_other_wanted(row, wanted)]
    for row in sorted(found, key=_key):
        if last is None or _key(row) > last:
            yield row


def _is_other_wanted(row: Row, wanted: StateFilter) -> bool:
    kind = row.holder.kind
    if wanted.kind is not None and kind.value != wanted.kind:
        return False
    return wanted.namespace is None or (kind is Kind.POD and row.name.startswith(wanted.namespace + "/"))


def _key(row: Row) -> str:
    return f"{row.name}/{row.holder.uid}"


# ------------------------------------------------------------ one of each


def vm_shown(view: ExplainView, record: VmRecord) -> VmShown:
    row, reading = record.row, record.reading
    trail = view.trail_of(record)
    return VmShown(
        vm=record.name,
        uid=record.spec.uid,
        node=record.spec.node,
        permit=shown_amount(row.state.current),
        reserved=shown_amount(row.reserved),
        maximum=shown_amount(record.spec.bounds.max),
        is_settled=record.settled,
        is_migrating=row.state.migrating,
        size=amount_of(reading.size) if reading is not None else None,
        wanted=explaining.wanted(record, trail),
        pool=record.spec.pool,
        outcome=latest_outcome(view, record, trail),
        limit=explaining.first_limit(view, record, trail),
        asked_seconds_ago=explaining.asked_ago_s(record, view.now_s),
        recent=_encoded(trail.permits) if trail is not None else (),
        recent_loads=_encoded(view.memory.loads_of(record.spec.pod, record.spec.uid)),
    )


def latest_outcome(view: ExplainView, record: VmRecord, trail: Trail | None) -> DecisionOutcome | None:
    """The outcome of a VM's latest decision; None before the first one of this process that left a trace."""
    if explaining.is_waiting(record, trail):
        return DecisionOutcome.HELD
    if trail is None:
        return None
    if explaining.latest_refusal(view.core, record, trail, view.now_s) is not None:
        return DecisionOutcome.REFUSED
    content = trail.decided.content
    if content is not None and content.outcome is not DecisionOutcome.PERMITTED:
        return content.outcome
    if record.is_leaving or record.row.state.migrating:
        return DecisionOutcome.MIGRATION
    return DecisionOutcome.PERMITTED if trail.decided.latest is not None else None


def _encoded(items: bytes) -> Any:
    """Items of an array, each with a comma behind it, that are encoded already, because a page has thousands of them: msgspec writes them into the page as they are."""
    return msgspec.Raw(b"[%b]" % items[:-1])


def node_shown(account: NodeAccount) -> NodeShown:
    capacity = account.capacity
    return NodeShown(
        node=capacity.name,
        reservable=shown_amount(capacity.reservable),
        reserved=shown_amount(account.reserved),
        free=shown_amount((capacity.reservable - account.reserved).max(ZERO)),
        buffer=shown_amount(account.buffer),
        pressure=shown_amount(account.pressure),
        pressure_accounted_for=shown_amount(account.accounted),
        watermark=shown_amount(capacity.watermark),
        compute_unit=amount_of(capacity.compute_unit),
        over_full_because_of=tuple([cause.value for cause in account.over]),
    )


def node_in_full(view: ExplainView, account: NodeAccount) -> NodeInFull:
    """The sums of a node and all of its rows."""
    growth = view.core.rules.growth
    return NodeInFull(
        **asdict(node_shown(account)),
        growth=GrowthShown(stop=growth.stopped, recommend_only=growth.recommend_only),
        rows=tuple([row_shown(view, row) for row in account.rows.values()]),
    )


def pod_in_full(view: ExplainView, pod: PodName) -> PodInFull | None:
    """The line of one pod, a VM or not; None if there is none."""
    record = view.core.vms.find(pod)
    row = record.row if record is not None else None
    if row is None:
        name = pod.full_name
        rows = view.core.ledger.rows()
        row = next((each for each in rows if each.name == name and each.holder.kind is Kind.POD), None)
    return PodInFull(**asdict(row_shown(view, row)), node=row.node) if row is not None else None


def row_shown(view: ExplainView, row: Row) -> RowShown:
    core = view.core
    record = core.vms.by_uid(row.holder.uid) if row.holder.kind is Kind.VM else None
    spec = record.spec if record is not None else None
    reply = record.reply if record is not None else None
    return RowShown(
        kind=row.holder.kind.value,
        uid=row.holder.uid,
        name=row.name,
        current=shown_amount(row.state.current),
        reserved=shown_amount(row.reserved),
        pressure=shown_amount(row.state.pressure),
        is_migrating=row.state.migrating,
        floors=tuple([explaining.floor_shown(floor, view.now_s) for floor in row.state.floors]),
        is_settled=record.settled if record is not None else None,
        maximum=shown_amount(spec.bounds.max) if spec is not None else None,
        is_recommend_only=core.rules.is_recommend_only(spec.pod.namespace, spec.pod.name)
        if spec is not None
        else None,
        pool=row.pool,
        pool_units=row.units if row.pool is not None else None,
        last_request=shown_amount(reply.request) if reply is not None else None,
        last_reasons=tuple(map(records.shown_reason, reply.reasons)) if reply is not None else None,
    )


@dataclass(frozen=True, slots=True)
class LatestFilter:
    """Which decisions are asked for: after which number, how many at most; None stands for all. After 0 these are the newest ones, or with
    `is_from_oldest` those from the oldest that is remembered."""

    after: int
    limit: int
    is_from_oldest: bool = False
    namespace: str | None = None
    name: str | None = None
    node: str | None = None
    outcome: str | None = None

    def holds(self, remembered: RememberedDecision) -> bool:
        namespace, _, name = remembered.vm.partition("/")
        return (
            (self.namespace is None or self.namespace == namespace)
            and (self.name is None or self.name == name)
            and (self.node is None or self.node == remembered.node)
            and (self.outcome is None or self.outcome == remembered.outcome)
        )


def decisions(view: ExplainView, wanted: LatestFilter) -> Decisions:
    """The decisions after a number, the oldest first, and the number to go on from."""
    memory = view.memory
    if wanted.after or wanted.is_from_oldest:
        found = list(islice(_held(memory.after(wanted.after), wanted), wanted.limit))
        is_cut = len(found) == wanted.limit
    else:
        found = list(islice(_held(memory.newest_first(), wanted), wanted.limit))[::-1]
        is_cut = False
    return Decisions(
        instance=str(view.core.config.instance),
        next=found[-1].number if is_cut else memory.number,
        are_lost=memory.are_lost(wanted.after),
        decisions=tuple([records.recall(remembered, view.moment) for remembered in found]),
    )


def _held(remembered: Iterator[RememberedDecision], wanted: LatestFilter) -> Iterator[RememberedDecision]:
    return (each for each in remembered if wanted.holds(each))
