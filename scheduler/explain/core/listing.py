"""Nodes, VMs and other holders of room as lists, in pages that hold nothing between two calls; and the latest decisions, for somebody who
follows them. Reads only.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Generator, Iterator
from dataclasses import dataclass
from heapq import merge
from itertools import islice
from typing import Any, Final, TypeAlias

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
from scheduler.permits.core.ledger import Ledger, NodeAccount, Row
from scheduler.permits.core.model import Kind
from scheduler.permits.core.state import CoreState, VmRecord, VmTable

NODES: Final = "node/"
VMS: Final = "vm/"
OTHERS: Final = "other/"
MOST_EXAMINED: Final = 2000
"""Things that are looked at for one page."""
MOST_PUT_IN: Final = 256
"""VMs that have come since an index was made, and are put into it; more of them make it anew."""
SORTED_AT_ONCE: Final = 1024
"""Names that are sorted before others may run."""
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
    """The names of all VMs in their order. Kept, for a page must not cost a sort of 100,000 names: what has come since is put in, and what
    has gone stays until it is half of all. Names of VMs that have gone are in it."""

    def __init__(self) -> None:
        self._comings = 0
        self._names: list[str] = []
        self._pods: dict[str, PodName] = {}

    def follow(self, vms: VmTable) -> Generator[None, None, list[str]]:
        """`namespace/name` of every VM, sorted, in slices. The list is another one after each time that anything has come."""
        come = vms.comings - self._comings
        if come > MOST_PUT_IN or len(self._pods) > 2 * len(vms) + MOST_PUT_IN:
            yield from self._make_anew(vms)
        elif come:
            new = {record.name: record.spec.pod for record in vms.latest(come)}
            names = [*self._names, *(new.keys() - self._pods.keys())]
            names.sort()
            self._pods.update(new)
            self._names, self._comings = names, vms.comings
        return self._names

    def _make_anew(self, vms: VmTable) -> Generator[None, None, None]:
        comings, records = vms.comings, list(vms)
        pods: dict[str, PodName] = {}
        parts = []
        for begin in range(0, len(records), SORTED_AT_ONCE):
            part = {record.name: record.spec.pod for record in records[begin : begin + SORTED_AT_ONCE]}
            pods |= part
            parts.append(sorted(part))
            yield
        names = []
        for number, name in enumerate(merge(*parts)):
            names.append(name)
            if number % SORTED_AT_ONCE == 0:
                yield
        self._names, self._pods, self._comings = names, pods, comings

    def pod(self, name: str) -> PodName | None:
        """None for one that has gone, and was dropped since the names were told."""
        return self._pods.get(name)


def state_page(view: ExplainView, index: NameIndex, wanted: StateFilter) -> Generator[None, None, StatePage]:
    """One page of everything that is asked for, in slices. If few things match, it ends after a number of others."""
    nodes: list[NodeShown] = []
    vms: list[VmShown] = []
    others: list[PodShown] = []
    place, examined = None, 0
    for found in _all(view, index, wanted):
        yield
        if found is None:
            continue
        if len(nodes) + len(vms) + len(others) == wanted.limit or examined == MOST_EXAMINED:
            break
        at, item = found
        examined += 1
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


_Found: TypeAlias = tuple[str, NodeAccount | VmRecord | Row | None]
"""A thing with its place; None in place of a VM that is not asked for."""


def _all(view: ExplainView, index: NameIndex, wanted: StateFilter) -> Iterator[_Found | None]:
    """All things after the place where the list goes on; None in between, where others may run."""
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
                yield from _vms(view, index, wanted, last)
            case _:
                yield from _others(view.core, wanted, last)


def _nodes(core: CoreState, wanted: StateFilter, last: str | None) -> Iterator[NodeAccount]:
    accounts = core.ledger.nodes() if wanted.node is None else filter(None, [core.ledger.node(wanted.node)])
    for account in sorted(accounts, key=lambda each: each.capacity.name):
        if last is None or account.capacity.name > last:
            yield account


def _vms(
    view: ExplainView, index: NameIndex, wanted: StateFilter, last: str | None
) -> Generator[_Found | None, None, None]:
    vms = view.core.vms
    names = yield from index.follow(vms)
    first = 0 if last is None else bisect_right(names, last)
    if wanted.namespace is not None:
        first = max(first, bisect_left(names, wanted.namespace + "/"))
    for name in islice(names, first, None):
        if wanted.namespace is not None and not name.startswith(wanted.namespace + "/"):
            return
        pod = index.pod(name)
        record = vms.find(pod) if pod is not None else None
        yield VMS + name, record if record is not None and _is_wanted(view, record, wanted) else None


def _is_wanted(view: ExplainView, record: VmRecord, wanted: StateFilter) -> bool:
    if wanted.node is not None and record.spec.node != wanted.node:
        return False
    if wanted.pool is not None and record.spec.pool != wanted.pool:
        return False
    if wanted.outcome is None:
        return True
    outcome = latest_outcome(view, record, view.trail_of(record))
    return outcome is not None and outcome.value == wanted.outcome


def _others(core: CoreState, wanted: StateFilter, last: str | None) -> Iterator[_Found | None]:
    """Pods that are no VMs, and reservations."""
    account = core.ledger.node(wanted.node) if wanted.node is not None else None
    of_node = account.rows.values() if account is not None else ()
    found = []
    for row in list(core.ledger.rows() if wanted.node is None else of_node):
        if row.holder.kind is not Kind.VM and _is_other_wanted(row, wanted):
            found.append(row)
        yield None
    for row in sorted(found, key=_key):
        if last is None or _key(row) > last:
            yield OTHERS + _key(row), row


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


def nodes_shown(ledger: Ledger) -> Generator[None, None, tuple[NodeShown, ...]]:
    """The sums of every node, each of one moment."""
    nodes = []
    for account in list(ledger.nodes()):
        nodes.append(node_shown(account))
        yield
    return tuple(nodes)


def node_in_full(view: ExplainView, account: NodeAccount) -> Generator[None, None, NodeInFull]:
    """The sums of a node and all of its rows, each of one moment."""
    growth = view.core.rules.growth
    sums, rows = node_shown(account), []
    for row in list(account.rows.values()):
        rows.append(row_shown(view, row))
        yield
    return NodeInFull(
        **asdict(sums),
        growth=GrowthShown(stop=growth.stopped, recommend_only=growth.recommend_only),
        rows=tuple(rows),
    )


def pod_in_full(view: ExplainView, pod: PodName) -> Generator[None, None, PodInFull | None]:
    """The line of one pod, a VM or not; None if there is none."""
    record = view.core.vms.find(pod)
    row = record.row if record is not None else None
    name = pod.full_name
    for each in list(view.core.ledger.rows()) if row is None else ():
        if each.name == name and each.holder.kind is Kind.POD:
            row = each
            break
        yield
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


def decisions(view: ExplainView, wanted: LatestFilter) -> Generator[None, None, Decisions]:
    """The decisions after a number, the oldest first, and the number to go on from: as they are remembered at first."""
    memory = view.memory
    last, are_lost = memory.number, memory.are_lost(wanted.after)
    if wanted.after or wanted.is_from_oldest:
        found = list(islice(_held(memory.after(wanted.after), wanted), wanted.limit))
        is_cut = len(found) == wanted.limit
    else:
        found = list(islice(_held(memory.newest_first(), wanted), wanted.limit))[::-1]
        is_cut = False
    told = []
    for remembered in found:
        told.append(records.recall(remembered, view.moment))
        yield
    return Decisions(
        instance=str(view.core.config.instance),
        next=found[-1].number if is_cut else last,
        are_lost=are_lost,
        decisions=tuple(told),
    )


def _held(remembered: Iterator[RememberedDecision], wanted: LatestFilter) -> Iterator[RememberedDecision]:
    return (each for each in remembered if wanted.holds(each))
