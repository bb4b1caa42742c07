"""The plugins that come with the scheduler, by name. Each is imported when a profile first names it."""

from collections.abc import Mapping
from typing import Final

_HERE: Final = "scheduler.framework.plugins"

SHIPPED: Final[Mapping[str, str]] = {
    "DefaultBinder": f"{_HERE}.default_binder:DefaultBinder",
    "LedgerFit": f"{_HERE}.ledger_fit:LedgerFit",
}
"""The entry point of each factory, for `scheduler.framework.runtime.registry`."""
