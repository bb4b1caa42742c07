"""The reservations of a node as plugins see them, read from the ledger when they are asked for."""

from collections.abc import Sequence

from scheduler.permits.core.model import Kind
from scheduler.permits.core.reservations import ReservationAccount
from scheduler.permits.core.state import CoreState
from scheduler.placing.core.plugin_points import Reservation


class LedgerReservations:
    """The reservations whose room the ledger keeps. A reservation without a row has no room to give."""

    def __init__(self, core: CoreState) -> None:
        self._core = core

    def on(self, node_name: str) -> Sequence[Reservation]:
        """Those of a node now, in the order of their rows."""
        account = self._core.ledger.node(node_name)
        if account is None:
            return ()
        held = (
            self._core.reservations.find(holder.uid)
            for holder in account.rows
            if holder.kind is Kind.RESERVATION
        )
        return tuple(each for each in map(_shown, held) if each is not None)


def _shown(account: ReservationAccount | None) -> Reservation | None:
    """None for a row that was assumed for a reservation which the cluster does not show yet."""
    if account is None or account.spec is None:
        return None
    spec = account.spec
    return Reservation(
        uid=spec.uid,
        name=spec.name,
        node=spec.node,
        allocatable=spec.allocatable,
        allocated=account.allocated,
        owners=spec.owners,
        allocate_once=spec.allocate_once,
        is_available=account.is_open,
        order=spec.order,
    )
