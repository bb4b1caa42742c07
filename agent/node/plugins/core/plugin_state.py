"""Where the registration of a plugin is: the handler's state machine of seed 003, as a table."""

import enum
from collections.abc import Mapping
from typing import Final


class PluginState(enum.StrEnum):
    """Where a plugin's registration is. Newer than the published cache, whose actual world knows `registered` only."""

    DISCOVERED = "discovered"
    """The socket is there, and nothing was asked yet."""
    CONNECTING = "connecting"
    """The socket is dialled, the plugin asked what it is, and other sockets of its name are waited for."""
    VALIDATING = "validating"
    REGISTERING = "registering"
    NOTIFYING = "notifying"
    REGISTERED = "registered"
    SUPERSEDED = "superseded"
    """A newer socket has registered under the same name."""
    DEREGISTERING = "deregistering"
    FAILED = "failed"
    """The last try failed; the next one comes after a back-off."""


class RegistrationEvent(enum.StrEnum):
    """What happens to the registration of one socket."""

    DIALLED = "dialled"
    IDENTIFIED = "identified"
    """The plugin said what it is, and no other socket of its name is at its turn."""
    VALIDATED = "validated"
    TAKEN = "taken"
    """The handler uses the plugin from now on."""
    ACKNOWLEDGED = "acknowledged"
    """The plugin took the news that it is registered."""
    OUTDATED = "outdated"
    """The handler knows a newer socket of the same name."""
    REVIVED = "revived"
    """The newer socket of the same name has ended."""
    ENDED = "ended"
    """The socket is not desired any more, or was created anew, or its server has gone."""
    DEREGISTERED = "deregistered"
    FAILED = "failed"
    GONE = "gone"
    """The socket is not there any more, and nothing is left to be undone."""


S, E = PluginState, RegistrationEvent
TABLE: Final[Mapping[tuple[PluginState, RegistrationEvent], PluginState | None]] = {
    (S.DISCOVERED, E.DIALLED): S.CONNECTING,
    (S.DISCOVERED, E.GONE): None,
    (S.CONNECTING, E.IDENTIFIED): S.VALIDATING,
    (S.CONNECTING, E.OUTDATED): S.SUPERSEDED,
    (S.CONNECTING, E.FAILED): S.FAILED,
    (S.VALIDATING, E.VALIDATED): S.REGISTERING,
    (S.VALIDATING, E.FAILED): S.FAILED,
    (S.REGISTERING, E.TAKEN): S.NOTIFYING,
    (S.REGISTERING, E.FAILED): S.FAILED,
    (S.NOTIFYING, E.ACKNOWLEDGED): S.REGISTERED,
    # The handler has the plugin already: what it took is given back first.
    (S.NOTIFYING, E.FAILED): S.DEREGISTERING,
    (S.REGISTERED, E.OUTDATED): S.SUPERSEDED,
    (S.REGISTERED, E.ENDED): S.DEREGISTERING,
    (S.SUPERSEDED, E.REVIVED): S.DISCOVERED,
    (S.SUPERSEDED, E.ENDED): S.DISCOVERED,
    (S.SUPERSEDED, E.FAILED): S.FAILED,
    (S.DEREGISTERING, E.DEREGISTERED): S.DISCOVERED,
    (S.DEREGISTERING, E.FAILED): S.FAILED,
    (S.FAILED, E.DIALLED): S.CONNECTING,
    (S.FAILED, E.GONE): None,
}
"""From where what leads to where; None is the end. What is not in the table cannot happen."""
KNOWN: Final = frozenset({S.NOTIFYING, S.REGISTERED, S.DEREGISTERING})
"""In these states a handler knows the plugin."""
del S, E
