"""The share of a server that one peer may take: limits, a virtual clock that spaces what each does, and the table of connections.

Pure: moments come as arguments, in seconds of one clock that never goes back. The part that waits and accepts is `hosting.fairness`.
"""

import ipaddress
import math
from collections import OrderedDict
from collections.abc import Hashable, Iterator
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

UNIT_BYTES: Final = 512
"""A request costs its caller so many units as its route says, and one more for so many bytes."""
MAX_PEERS: Final = 65_536
"""Peers whose use is remembered. Beyond that the one that was silent for longest counts as one at rest."""
CATCH_UP_S: Final = 5.0
"""For no longer is a caller refused, however much it has sent."""


@dataclass(frozen=True, slots=True)
class PeerLimits:
    """The most that one peer may take.

    A peer is an address before a request is read (of IPv6 the /64, which is one machine's), and then the caller's name if it has shown a
    credential. An agent of 1,000 VMs takes about 60 units/s, because it asks in batches, and at a start 900 units at once; a published one of 100 VMs 45 units/s.
    """

    connections: int = 128
    """Of one address, idle and busy, and those in their handshake."""
    new_connections_per_s: float = 50.0
    """Without TLS, from one address, beyond as many at once as it may have open."""
    handshakes_per_s: float = 6.0
    """From one address, where each costs a millisecond: more of them would be what the slowest hundredth of all others waits for. `handshakes_at_once` are made at once. More wait for up to
    `longest_handshake_wait_s`, the newest first: agents give up after 4 s, and a handshake for one that has left is lost to the others."""
    handshakes_at_once: float = 40.0
    longest_handshake_wait_s: float = 3.0
    units_per_s: float = 300.0
    burst_units: float = 600.0
    """For a peer at rest: so much it may have at `peak_units_per_s`."""
    peak_units_per_s: float = 1000.0
    """Less than a tenth of what a core does."""
    peak_burst_units: float = 25.0
    """Served without any wait to a peer at rest: some ten requests, or one batch."""
    longest_wait_s: float = 3.0
    """A request that would wait longer is refused, after this wait. Agents give up after 4 s."""
    spares_loopback: bool = False
    """Callers on this machine have no limits."""

    def sustained(self) -> "PeerClock":
        most_ahead_s = self.burst_units / self.units_per_s + self.longest_wait_s + CATCH_UP_S
        return PeerClock(self.units_per_s, self.burst_units, self.longest_wait_s, most_ahead_s)

    def peak(self) -> "PeerClock":
        most_ahead_s = self.peak_burst_units / self.peak_units_per_s + self.longest_wait_s
        return PeerClock(self.peak_units_per_s, self.peak_burst_units, math.inf, most_ahead_s)

    def new_connections(self) -> "PeerClock":
        return PeerClock(self.new_connections_per_s, self.connections)

    def handshakes(self) -> "PeerClock":
        return PeerClock(self.handshakes_per_s, self.handshakes_at_once)


DEFAULT_PEER_LIMITS: Final = PeerLimits()


def peer_of(address: str) -> str:
    """The peer to which an address belongs: the /64 of IPv6, IPv4 by itself (also as `::ffff:192.0.2.7`); empty stays empty (a Unix socket)."""
    if ":" not in address:
        return address
    try:
        parsed = ipaddress.IPv6Address(address.partition("%")[0])
    except ValueError:
        return address
    if parsed.ipv4_mapped is not None:
        return str(parsed.ipv4_mapped)
    if parsed.is_loopback:
        return str(parsed)
    return str(ipaddress.IPv6Network((parsed, 64), strict=False))


class PeerClock:
    """Spaces what each peer does to `units_per_s`, with `burst_units` at once for a peer at rest.

    A peer's clock runs ahead of the real one by the time that what it did would take at that rate. A peer whose clock is no further ahead
    than the burst never waits, however much others do. No clock runs further ahead than `most_ahead_s`: what is beyond is forgiven.
    """

    def __init__(
        self,
        units_per_s: float,
        burst_units: float,
        longest_wait_s: float = 0.0,
        most_ahead_s: float = math.inf,
    ) -> None:
        self._s_per_unit = 1.0 / units_per_s
        self._burst_s = burst_units / units_per_s
        self._longest_wait_s = longest_wait_s
        self._most_ahead_s = most_ahead_s
        self._ahead: OrderedDict[str, float] = OrderedDict()
        """By peer: the moment that its clock shows. The peer that was silent for longest first."""

    def __len__(self) -> int:
        return len(self._ahead)

    def turn(self, peer: str, cost_units: float, now_s: float) -> float | None:
        """How long what costs so much must wait; None if that is longer than it may be: then it is not charged."""
        wait_s = self.wait_s(peer, now_s)
        if wait_s > self._longest_wait_s:
            return None
        self.charge(peer, cost_units, now_s)
        return wait_s

    def wait_s(self, peer: str, now_s: float) -> float:
        """How long what the peer does now must wait."""
        return max(self._ahead.get(peer, now_s) - now_s - self._burst_s, 0.0)

    def charge(self, peer: str, cost_units: float, now_s: float) -> None:
        """What costs so much was done already."""
        shown_s = max(self._ahead.get(peer, now_s), now_s) + cost_units * self._s_per_unit
        self._ahead[peer] = min(shown_s, now_s + self._most_ahead_s)
        self._ahead.move_to_end(peer)
        self._drop_rested(now_s)

    def _drop_rested(self, now_s: float) -> None:
        """Forget up to two peers at rest: more than one turn can add."""
        for _ in range(2):
            peer, shown_s = next(iter(self._ahead.items()))
            if shown_s > now_s and len(self._ahead) <= MAX_PEERS:
                return
            del self._ahead[peer]
            if not self._ahead:
                return


C = TypeVar("C", bound=Hashable)


def _to_the_end(ordered: dict[C, None], each: C) -> None:
    del ordered[each]
    ordered[each] = None


class PeerTable(Generic[C]):
    """The open connections by peer, each peer's longest-idle first, and how many each has, those that are about to be made included.

    Every step takes the same time however many there are.
    """

    def __init__(self) -> None:
        self._open: dict[str, dict[C, None]] = {}
        self._peers: dict[C, str] = {}
        self._counts: dict[str, int] = {}
        self._by_count: dict[int, dict[str, None]] = {}
        self._most = 0
        self._total = 0

    def __len__(self) -> int:
        """Open connections."""
        return len(self._peers)

    def __contains__(self, connection: object) -> bool:
        return connection in self._peers

    def __iter__(self) -> Iterator[C]:
        return iter(self._peers)

    @property
    def total(self) -> int:
        """Open connections, and those that are about to be made."""
        return self._total

    def count(self, peer: str) -> int:
        return self._counts.get(peer, 0)

    def reserve(self, peer: str) -> None:
        """Count a connection that is about to be made."""
        self._recount(peer, 1)

    def release(self, peer: str) -> None:
        """A connection that was counted was not made."""
        self._recount(peer, -1)

    def add(self, connection: C, peer: str) -> None:
        """A connection that was counted has been made."""
        self._peers[connection] = peer
        self._open.setdefault(peer, {})[connection] = None

    def rest(self, connection: C) -> None:
        """The connection has now been idle for the shortest time."""
        if (peer := self._peers.get(connection)) is not None:
            _to_the_end(self._open[peer], connection)
            _to_the_end(self._by_count[self._counts[peer]], peer)

    def remove(self, connection: C) -> bool:
        """Whether it was there."""
        if (peer := self._peers.pop(connection, None)) is None:
            return False
        mine = self._open[peer]
        del mine[connection]
        if not mine:
            del self._open[peer]
        self._recount(peer, -1)
        return True

    def of(self, peer: str) -> Iterator[C]:
        """The peer's connections, the longest-idle first."""
        return iter(self._open.get(peer, ()))

    def of_largest(self) -> Iterator[C]:
        """The connections of the peer that has the most, the longest-idle first; of several such peers, the one that rests longest."""
        for peer in self._by_count.get(self._most, {}):
            if peer in self._open:
                return iter(self._open[peer])
        return iter(self._peers)

    def _recount(self, peer: str, by: int) -> None:
        before = self._counts.get(peer, 0)
        after = before + by
        self._total += by
        if before:
            alike = self._by_count[before]
            del alike[peer]
            if not alike:
                del self._by_count[before]
        if after:
            self._counts[peer] = after
            self._by_count.setdefault(after, {})[peer] = None
        else:
            del self._counts[peer]
        if after > self._most or self._most not in self._by_count:
            self._most = after
