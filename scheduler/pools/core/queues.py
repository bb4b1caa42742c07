"""What is known of one pool that is asked for growth: who waits, what is remembered, its members, what they claim. Pure."""

from collections.abc import Iterable

from scheduler.permits.core.ledger import Ledger, PoolAccount
from scheduler.permits.core.model import Holder, Kind
from scheduler.permits.core.vms import VmTable
from scheduler.pools.core.admission_state import PoolAdmissionState
from scheduler.pools.core.batches import PoolGrowth, Waiter, labels_of
from scheduler.pools.core.claims import Claims
from scheduler.pools.core.values import Member, Pods

MAX_BATCH = 128
"""Requests that one batch may serve; the loop is held for as long as their commits take."""


class PoolQueue:
    """One pool's queue, in the order of arrival, by ticket. `asked` are those of the batch under way who still wait."""

    __slots__ = ("_account", "_members", "alone", "asked", "claims", "name", "state", "waiting")

    def __init__(self, name: str) -> None:
        self.name = name
        self.waiting: dict[int, Waiter] = {}
        self.asked: dict[int, Waiter] = {}
        self.alone: set[int] = set()
        """The first in the queue, who are asked about one by one, because one of them is to blame."""
        self.state = PoolAdmissionState()
        self.claims = Claims()
        self._members: dict[Holder, Member] = {}
        self._account: PoolAccount | None = None
        """Whose rows `_members` are."""

    def __len__(self) -> int:
        return len(self.waiting) + len(self.asked)

    def join(self, waiter: Waiter) -> None:
        """One more waits, behind all others."""
        self.waiting[waiter.needed.ticket] = waiter

    def leave(self, ticket: int) -> None:
        """One does not wait any more."""
        self.waiting.pop(ticket, None)
        self.asked.pop(ticket, None)
        self.alone.discard(ticket)

    def take(self) -> list[Waiter]:
        """Those who are asked about together next, at most `MAX_BATCH`; empty where nobody waits."""
        if len(self.waiting) <= 1:
            self.asked, self.waiting = self.waiting, {}
            return list(self.asked.values())
        first = next(iter(self.waiting))
        count = 1 if first in self.alone else MAX_BATCH
        taken = [ticket for ticket, _ in zip(self.waiting, range(count), strict=False)]
        self.asked = {ticket: self.waiting.pop(ticket) for ticket in taken}
        return list(self.asked.values())

    def put_back(self, growths: Iterable[PoolGrowth], *, is_alone: bool = False) -> None:
        """Those who still wait of a batch wait in front of all others again, in their order."""
        tickets = [growth.waiter.needed.ticket for growth in growths]
        back = {ticket: self.asked.pop(ticket) for ticket in tickets if ticket in self.asked}
        if is_alone:
            self.alone.update(back)
        if back:
            self.waiting = {**back, **self.waiting}

    def refresh(self, ledger: Ledger, vms: VmTable) -> Pods:
        """The pool's VMs as they are now; members and claims are brought in step with the ledger.

        Values are made anew only for VMs that were changed.
        """
        members, account = self._members, ledger.pool(self.name)
        changed = ledger.take_changed(self.name)
        if (
            self._account is not account
        ):  # another pool of that name, or none: what was known is of no account
            members.clear()
            self.claims.clear()
            self._account = account
            changed = set(account.rows) if account is not None else set()
        for holder in changed:
            row = ledger.row(holder)
            record = vms.by_uid(holder.uid) if holder.kind is Kind.VM else None
            if row is None or record is None or row.pool != self.name:
                members.pop(holder, None)
                self.claims.withdraw(holder.uid)
                if record is None:
                    self.state = self.state.without_vm(holder.uid)
                continue
            self.claims.holds(holder.uid, row.units, row.pooled)
            spec, state = record.spec, row.state
            members[holder] = Member(
                spec.pod, spec.uid, row.node, labels_of(spec.labels), state.current, row.reserved, row.units
            )
        return tuple(members.values())

    def forget(self) -> None:
        """The pool is gone: nothing of it is remembered, and nobody waits for it; those of the batch under way do."""
        self.waiting.clear()
        self.alone.clear()
        self.state = PoolAdmissionState()
        self.claims.clear()
        self._members.clear()
        self._account = None
