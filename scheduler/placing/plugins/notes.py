"""What shipped plugins tell each other in the context of a cycle: which reservation a pod uses, and that a binding is in doubt."""

from typing import Any, Final

from scheduler.placing.core.plugin import CycleContext
from scheduler.placing.core.values import ContextKey

RESERVATION_USED: Final = ContextKey("parley.dev/reservation-used")
"""The UID of the reservation whose room was kept for the pod. `LedgerFit` writes it, `DefaultBinder` tells the pod."""
MAY_BE_BOUND: Final = ContextKey("parley.dev/may-be-bound")
"""Something while nobody knows whether the pod was bound: what was kept for the pod stays then. `DefaultBinder` writes True around
its call; `LedgerFit` writes `EARLIER` where a cycle before has left that open."""
EARLIER: Final = "earlier"


def find(context: CycleContext, key: str) -> Any:
    """What is kept under `key`; None where nothing is."""
    try:
        return context.read(key)
    except LookupError:  # NotFoundError
        return None
