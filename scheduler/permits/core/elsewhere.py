"""Whether another node has room for a VM that its own node denies growth. Pure; reads the accounts.

It is told as the last reason of a denial that lasts, so that nobody moves or evicts the VM before there is a place for it. A node counts if its
free room fits all that is asked for and it has no taint that the VM's own node has not: the taints that the VM tolerates, its selectors and its
affinity are not known here. Nothing is kept on that node.
"""

from collections.abc import Iterator
from typing import Final

from msgspec.structs import replace

from protocol.reasons import Reason, ReasonCode
from protocol.values import ZERO, Resources
from scheduler.permits.core.ledger import Ledger, Verdict
from scheduler.permits.core.limits import Grant
from scheduler.permits.core.model import NodeSpec
from scheduler.permits.core.state import CoreState, RoomSearch, VmRecord

LASTING_S: Final = 30.0
"""A denial of that age is told with what is known of other nodes."""
LOOK_S: Final = 10.0
"""The nodes are looked through for one VM at most so often."""


def nodes_with_room(ledger: Ledger, nodes: dict[str, NodeSpec], own: str, amount: Resources) -> Iterator[str]:
    """The nodes beside a VM's own one that have room for all of `amount`."""
    allowed = frozenset(nodes[own].taints) if own in nodes else frozenset()
    cpu, memory = amount.vcpu_milli, amount.memory_bytes
    for account in ledger.nodes():
        most, reserved = account.capacity.reservable, account.reserved
        name = account.capacity.name
        if (
            most.vcpu_milli - reserved.vcpu_milli >= cpu
            and most.memory_bytes - reserved.memory_bytes >= memory
            and name != own
            and allowed.issuperset(nodes[name].taints)
        ):
            yield name


def told(core: CoreState, record: VmRecord, wanted: Resources, verdict: Verdict, now_s: float) -> Grant:
    """The grant of a verdict; that of a denial for want of room that lasts also says whether another node has room for `wanted`. Called once for each
    verdict that is posted: what was found is kept in the VM's record."""
    grant, state = verdict.grant, verdict.state
    assert grant is not None
    assert state is not None
    if state.pressure == ZERO or state.migrating:
        record.elsewhere = None
        return grant
    search = record.elsewhere or RoomSearch(now_s)
    if now_s - search.since_s < LASTING_S:
        record.elsewhere = search
        return grant
    if search.looked_s is None or now_s - search.looked_s >= LOOK_S:
        found = next(nodes_with_room(core.ledger, core.nodes, verdict.node, wanted), "")
        search = RoomSearch(search.since_s, now_s, found)
    record.elsewhere = search
    if not search.found:
        return grant
    message = f"node {search.found} has room for {wanted}"
    return replace(grant, reasons=(*grant.reasons, Reason(ReasonCode.ROOM_ELSEWHERE, message)))
