"""What the scheduler tells on `/metrics`. The names are listed in docs/operations.md."""

from collections.abc import Iterator

from hosting.metrics import Family, server_families
from hosting.server import Server
from scheduler.core.core import Core
from scheduler.service.permits import Counts


def families(core: Core, counts: Counts, server: Server, journal_lost: int = 0) -> Iterator[Family]:
    """Every metric with its samples now."""
    yield Family(
        "counter",
        "parley_scheduler_requests",
        "Requests by outcome and status or code",
        ("outcome", "code"),
        tuple((key, value) for key, value in counts.answers.items()),
    )
    yield Family(
        "counter",
        "parley_scheduler_permits",
        "Permits by result and binding reason",
        ("result", "reason"),
        tuple((key, value) for key, value in counts.permits.items()),
    )
    fields: list[tuple[tuple[str, ...], float]] = []
    for account in core.ledger.nodes():
        columns = {
            "reservable": account.terms.reservable,
            "reserved": account.reserved,
            "buffer": account.buffer,
        }
        for name, amount in columns.items():
            fields.append(((account.terms.name, "cpu", name), amount.vcpu_milli / 1000))
            fields.append(((account.terms.name, "memory", name), amount.memory_bytes))
    yield Family(
        "gauge",
        "parley_scheduler_node_resources",
        "The ledger: CPUs and bytes per node and field",
        ("node", "resource", "field"),
        tuple(fields),
    )
    yield Family(
        "gauge",
        "parley_scheduler_vms",
        "VMs by whether this process knows what they may use",
        ("state",),
        (
            (("settled",), sum(record.settled for record in core.book)),
            (("unsettled",), sum(not record.settled for record in core.book)),
        ),
    )
    yield Family(
        "gauge",
        "parley_scheduler_vm_condition",
        "VMs with something that a person should mend",
        ("pod", "condition"),
        tuple(((str(record.spec.pod), record.condition), 1.0) for record in core.book if record.condition),
    )
    yield Family(
        "gauge",
        "parley_scheduler_cluster_stale",
        "1 while the cluster cannot be read and what was read before is in force",
        (),
        (((), float(counts.cluster_stale)),),
    )
    yield Family(
        "counter",
        "parley_scheduler_journal_lost",
        "Journal lines that were lost because the disk was too slow",
        (),
        (((), float(journal_lost)),),
    )
    yield from server_families(server)
