"""The scheduler's metrics on `/metrics`. The names are listed in docs/reference/metrics.md."""

from collections.abc import Iterator
from typing import Final, TypeAlias

from hosting.metrics import AnyFamily, Family, HistogramFamily, server_families
from hosting.server import Server
from protocol.reasons import ErrorCode
from protocol.values import ZERO, Resources
from scheduler.permits.core.core import Core
from scheduler.permits.core.ledger import Cause, Ledger, NodeAccount, OverCause
from scheduler.permits.core.state import VmRecord
from scheduler.permits.service.answers import PermitStats

SEQUENCE_CODES: Final = (ErrorCode.SEQUENCE_STALE, ErrorCode.SEQUENCE_REUSED, ErrorCode.AGENT_SUPERSEDED)


def families(core: Core, stats: PermitStats, server: Server, journal_lost: int = 0) -> Iterator[AnyFamily]:
    """The lists of VMs and nodes are of one moment. The page's thread computes with them, for that takes long at 100,000 VMs; the state of
    a VM is that of the moment at which it is counted."""
    yield from _decisions(stats)
    yield from _ledger(core.ledger)
    yield from _vms(list(core.vms))
    yield _flag("parley_scheduler_cluster_stale", "1 while the cluster cannot be read", stats.cluster_stale)
    yield _flag("parley_scheduler_config_stale", "1 while a new configuration has faults", stats.rules_stale)
    yield Family(
        "counter",
        "parley_scheduler_journal_lost",
        "Inputs that are in no file of the journal: too slow or refused by the disk, or after the journal stopped",
        (),
        (((), float(journal_lost)),),
    )
    yield from server_families(server)


def _decisions(stats: PermitStats) -> Iterator[AnyFamily]:
    yield Family(
        "counter",
        "parley_scheduler_requests",
        "Requests by outcome and status or code",
        ("outcome", "code"),
        tuple((key, value) for key, value in stats.answers.items()),
    )
    yield Family(
        "counter",
        "parley_scheduler_permits",
        "Permits by result and binding reason",
        ("result", "reason"),
        tuple((key, value) for key, value in stats.permits.items()),
    )
    yield Family(
        "counter",
        "parley_scheduler_units",
        "Compute units of growth, granted and refused",
        ("result",),
        tuple(((result,), float(stats.units[result])) for result in ("granted", "refused")),
    )
    yield Family(
        "counter",
        "parley_scheduler_sequence_rejections",
        "Requests that the sequence gate turned away",
        ("code",),
        tuple(((code.value,), float(stats.answers["error", code.value])) for code in SEQUENCE_CODES),
    )
    yield Family(
        "counter",
        "parley_scheduler_migrations",
        "Migrations that were started, or failed to start",
        ("result",),
        tuple(((result,), float(stats.migrations[result])) for result in ("started", "failed")),
    )
    yield HistogramFamily(
        "parley_scheduler_decision_seconds",
        "From the bytes of a request to its answer",
        (((), stats.latency.now()),),
    )


_NodeNow: TypeAlias = tuple[str, tuple[tuple[str, Resources], ...], tuple[OverCause, ...]]
"""A node's name, its amounts, and why it is over-full."""


def _ledger(ledger: Ledger) -> Iterator[Family]:
    nodes = tuple(map(_node_now, ledger.nodes()))
    yield Family(
        "gauge",
        "parley_scheduler_node_resources",
        "The ledger: CPUs and bytes per node and field",
        ("node", "resource", "field"),
        _amounts(nodes),
    )
    yield Family(
        "gauge",
        "parley_scheduler_node_over_full",
        "Nodes where more is reserved than may be, with each recorded cause",
        ("node", "cause"),
        tuple(((name, cause.value), 1.0) for name, _, over in nodes for cause in over),
    )


def _node_now(account: NodeAccount) -> _NodeNow:
    capacity = account.capacity
    amounts = (
        ("reservable", capacity.reservable),
        ("reserved", account.reserved),
        ("buffer", account.buffer),
        ("pressure", account.pressure),
        ("pressure-accounted", account.accounted),
        ("watermark", capacity.watermark),
    )
    return capacity.name, amounts, tuple(account.over)


def _amounts(nodes: tuple[_NodeNow, ...]) -> Iterator[tuple[tuple[str, ...], float]]:
    for name, amounts, _ in nodes:
        for field, amount in amounts:
            yield (name, "cpu", field), amount.vcpu_milli / 1000
            yield (name, "memory", field), amount.memory_bytes


def _start_up_buffer(records: list[VmRecord]) -> Iterator[tuple[tuple[str, ...], float]]:
    left = ZERO
    for state in (record.row.state for record in records):
        for floor in state.floors:
            if floor.cause is Cause.START_UP:
                left += (floor.amount - state.current).max(ZERO)
    yield ("cpu",), left.vcpu_milli / 1000
    yield ("memory",), float(left.memory_bytes)


def _vms(records: list[VmRecord]) -> Iterator[Family]:
    yield Family(
        "gauge",
        "parley_scheduler_start_up_buffer",
        "What is kept for VMs of which this process does not know yet what they may use",
        ("resource",),
        _start_up_buffer(records),
    )
    yield Family(
        "gauge",
        "parley_scheduler_vms",
        "VMs by whether this process knows what they may use",
        ("state",),
        _settled(records),
    )
    yield Family(
        "gauge",
        "parley_scheduler_vm_condition",
        "VMs with something that a person should mend",
        ("pod", "condition"),
        (((str(each.spec.pod), text), 1.0) for each in records if (text := each.condition)),
    )


def _settled(records: list[VmRecord]) -> Iterator[tuple[tuple[str, ...], float]]:
    settled = sum(record.settled for record in records)
    yield ("settled",), settled
    yield ("unsettled",), len(records) - settled


def _flag(name: str, text: str, value: bool) -> Family:
    return Family("gauge", name, text, (), (((), float(value)),))
