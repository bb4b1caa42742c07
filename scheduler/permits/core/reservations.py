"""The knowledge of reservations beside their rows: their descriptions, and the amount that each of their users has taken."""

from collections.abc import Iterator
from dataclasses import dataclass, field

from protocol.reasons import Reason
from protocol.values import ZERO, Resources
from scheduler.permits.core.model import Holder, Kind, ReservationSpec


@dataclass(slots=True)
class ReservationAccount:
    """One reservation. `spec` is None if pods name it and the cluster does not show it (yet).

    `taken` is the amount that its users have of it: at most what they held when they were placed or seen, and together at most what there
    is. A reservation that `is_used_up` served the one pod that it was made for. `reason` says why not all of it is kept.
    """

    uid: str
    spec: ReservationSpec | None = None
    taken: dict[Holder, Resources] = field(default_factory=dict)
    is_used_up: bool = False
    reason: Reason | None = None

    @property
    def holder(self) -> Holder:
        """The owner of its row."""
        return Holder(Kind.RESERVATION, self.uid)

    @property
    def allocated(self) -> Resources:
        """The sum of its users' amounts."""
        total = ZERO
        for amount in self.taken.values():
            total += amount
        return total

    @property
    def is_open(self) -> bool:
        """Whether it keeps room at all."""
        spec = self.spec
        return spec is not None and bool(spec.node) and not spec.has_ended and not self.is_used_up

    def left_to(self, holder: Holder) -> Resources:
        """The amount that the others leave to a user, by the description; zero if the reservation is not known."""
        if self.spec is None:
            return ZERO
        others = self.allocated - self.taken.get(holder, ZERO)
        return (self.spec.allocatable - others).max(ZERO)


class ReservationTable:
    """All reservations by UID, and which one each holder uses."""

    def __init__(self) -> None:
        self._by_uid: dict[str, ReservationAccount] = {}
        self._used: dict[Holder, str] = {}

    def find(self, uid: str) -> ReservationAccount | None:
        """One reservation that the cluster shows, or that somebody uses."""
        return self._by_uid.get(uid)

    def used_by(self, holder: Holder) -> str | None:
        return self._used.get(holder)

    def taken_by(self, holder: Holder) -> Resources:
        """The amount that a holder has of the reservation that it uses."""
        uid = self._used.get(holder)
        return self._by_uid[uid].taken[holder] if uid is not None else ZERO

    def open(self, uid: str) -> ReservationAccount:
        """A reservation, known from now on."""
        return self._by_uid.setdefault(uid, ReservationAccount(uid))

    def use(self, uid: str, holder: Holder) -> ReservationAccount:
        """A holder, which uses no other one, uses a reservation; its amount is still to be counted."""
        account = self.open(uid)
        account.taken[holder] = ZERO
        self._used[holder] = uid
        return account

    def leave(self, holder: Holder) -> ReservationAccount | None:
        """A holder uses no reservation any more; the one that it used."""
        uid = self._used.pop(holder, None)
        if uid is None:
            return None
        account = self._by_uid[uid]
        del account.taken[holder]
        self.drop_unused(account)
        return account

    def drop_unused(self, account: ReservationAccount) -> None:
        """Forget a reservation that is not there and that nobody uses."""
        if account.spec is None and not account.taken:
            self._by_uid.pop(account.uid, None)

    def users(self) -> Iterator[tuple[Holder, str]]:
        """Each user, and the reservation that it uses."""
        return iter(self._used.items())

    def __iter__(self) -> Iterator[ReservationAccount]:
        return iter(self._by_uid.values())
