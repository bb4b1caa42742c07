"""The pure parts of the limits for peers: who is a peer, the virtual clock, the table of connections."""

from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from hosting import peers
from hosting.peers import PeerClock, PeerTable, peer_of


@pytest.mark.parametrize(
    ("address", "peer"),
    [
        ("10.0.0.7", "10.0.0.7"),
        ("::ffff:10.0.0.7", "10.0.0.7"),
        ("2001:db8::7", "2001:db8::/64"),
        ("2001:db8::ffff:7", "2001:db8::/64"),
        ("2001:db8:0:1::7", "2001:db8:0:1::/64"),
        ("fe80::7%eth0", "fe80::/64"),
        ("::1", "::1"),
        ("", ""),
        ("no:address", "no:address"),
    ],
)
def test_all_addresses_that_one_machine_can_choose_are_one_peer(address: str, peer: str) -> None:
    assert peer_of(address) == peer


# ---------------------------------------------------------------- the virtual clock


def test_a_burst_goes_through_and_what_follows_is_spaced() -> None:
    clock = PeerClock(10.0, 5.0, 60.0)
    assert [clock.turn("a", 1.0, 0.0) for _ in range(8)] == pytest.approx([0, 0, 0, 0, 0, 0, 0.1, 0.2])


def test_after_a_rest_there_is_the_same_burst_again_and_no_more() -> None:
    clock = PeerClock(8.0, 4.0)
    for now_s in (0.0, 1024.0):
        assert [clock.turn("a", 1.0, now_s) for _ in range(7)] == [0.0] * 5 + [None] * 2


def test_a_request_that_costs_more_than_the_burst_is_served_and_then_paid_for() -> None:
    clock = PeerClock(10.0, 5.0, 60.0)
    assert clock.turn("a", 100.0, 0.0) == 0.0
    assert clock.turn("a", 1.0, 0.0) == pytest.approx(9.5)


def test_no_clock_runs_further_ahead_than_it_may() -> None:
    clock = PeerClock(10.0, 5.0, 1.0, most_ahead_s=4.0)
    assert clock.turn("a", 1e12, 0.0) == 0.0
    clock.charge("a", 1e12, 0.0)
    assert clock.turn("a", 1.0, 2.4) is None
    assert clock.turn("a", 1.0, 2.5) == pytest.approx(1.0)


def test_what_was_done_already_is_paid_for_by_the_next_request() -> None:
    clock = PeerClock(10.0, 5.0, 60.0)
    clock.charge("a", 25.0, 0.0)
    assert clock.turn("a", 1.0, 0.0) == pytest.approx(2.0)


def test_a_refused_request_costs_nothing() -> None:
    clock = PeerClock(1.0, 0.0, 1.0)
    assert [clock.turn("a", 1.0, 0.0) for _ in range(4)] == [0.0, 1.0, None, None]
    assert clock.turn("a", 1.0, 1.0) == 1.0


def test_peers_at_rest_are_forgotten() -> None:
    clock = PeerClock(10.0, 5.0)
    for each in range(1000):
        clock.turn(str(each), 1.0, each * 1.0)
    assert len(clock) <= 2


def test_peers_that_are_remembered_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peers, "MAX_PEERS", 10)
    clock = PeerClock(10.0, 5.0)
    for each in range(1000):
        clock.turn(str(each), 1.0, 0.0)
    assert len(clock) == 10


RATE, BURST, LONGEST = 8.0, 16.0, 4.0


@given(
    flood=st.lists(st.floats(0.0, 50.0), max_size=60),
    modest=st.lists(st.floats(0.125, 8.0), max_size=60),
)
def test_a_caller_below_its_share_never_waits_for_a_flooder(flood: list[float], modest: list[float]) -> None:
    """The modest caller asks for `cost` each time it could have earned that; the flooder asks at every moment in between."""
    clock, now_s = PeerClock(RATE, BURST, LONGEST), 0.0
    for cost in modest:
        for other in flood:
            clock.turn("flooder", other, now_s)
        assert clock.turn("modest", cost, now_s) == 0.0
        now_s += cost / RATE


@given(st.lists(st.tuples(st.floats(0.0, 2.0), st.floats(0.125, 64.0)), max_size=100))
def test_each_request_is_served_in_order_within_the_longest_wait_or_refused(
    asked: list[tuple[float, float]],
) -> None:
    clock, now_s, last_s, served = PeerClock(RATE, BURST, LONGEST), 0.0, 0.0, []
    for gap_s, cost in asked:
        now_s += gap_s
        wait_s = clock.turn("a", cost, now_s)
        if wait_s is None:
            continue
        assert 0.0 <= wait_s <= LONGEST
        assert now_s + wait_s >= last_s - 1e-9, "none overtakes an earlier one of the same caller"
        last_s = now_s + wait_s
        served.append((last_s, cost))
    for first in range(len(served)):
        units = sum(cost for _, cost in served[first:-1])
        span_s = served[-1][0] - served[first][0]
        assert units <= BURST + RATE * span_s + 1e-6, "in no span of time more than the burst and its share"


# ---------------------------------------------------------------- the table of connections


def test_the_largest_peer_s_longest_idle_connection_comes_first() -> None:
    table = PeerTable[str]()
    for name in ("a1", "b1", "b2", "b3", "a2"):
        table.reserve(name[0])
        table.add(name, name[0])
    table.rest("b1")
    assert list(table.of_largest()) == ["b2", "b3", "b1"]
    assert [table.remove("b2"), table.remove("b2"), table.remove("b3")] == [True, False, True]
    assert list(table.of_largest()) == ["a1", "a2"]


def test_of_equal_peers_the_one_that_rests_longest_gives_way() -> None:
    table = PeerTable[str]()
    for name in "abc":
        table.reserve(name)
        table.add(name, name)
    table.rest("a")
    assert next(table.of_largest()) == "b"


def test_a_peer_that_only_shakes_hands_has_nothing_to_give() -> None:
    table = PeerTable[str]()
    table.reserve("a")
    table.add("a1", "a")
    for _ in range(3):
        table.reserve("b")
    assert next(table.of_largest()) == "a1"
    assert (table.count("b"), len(table), table.total) == (3, 1, 4)


@dataclass
class _Model:
    open: list[tuple[int, str]] = field(default_factory=list)
    waiting: list[str] = field(default_factory=list)


class Tables(RuleBasedStateMachine):
    """Against a table that counts anew each time."""

    def __init__(self) -> None:
        super().__init__()
        self.table = PeerTable[int]()
        self.model = _Model()
        self.number = 0

    @rule(peer=st.sampled_from("abcd"))
    def reserve(self, peer: str) -> None:
        self.table.reserve(peer)
        self.model.waiting.append(peer)

    @precondition(lambda self: self.model.waiting)
    @rule(is_made=st.booleans())
    def end_handshake(self, is_made: bool) -> None:
        peer = self.model.waiting.pop()
        if is_made:
            self.number += 1
            self.table.add(self.number, peer)
            self.model.open.append((self.number, peer))
        else:
            self.table.release(peer)

    @precondition(lambda self: self.model.open)
    @rule(data=st.data())
    def rest(self, data: st.DataObject) -> None:
        each = data.draw(st.sampled_from(self.model.open))
        self.model.open.remove(each)
        self.model.open.append(each)
        self.table.rest(each[0])

    @precondition(lambda self: self.model.open)
    @rule(data=st.data())
    def remove(self, data: st.DataObject) -> None:
        each = data.draw(st.sampled_from(self.model.open))
        self.model.open.remove(each)
        assert self.table.remove(each[0])

    @invariant()
    def agree(self) -> None:
        counts = {
            peer: self.model.waiting.count(peer) + sum(other == peer for _, other in self.model.open)
            for peer in "abcd"
        }
        assert {peer: self.table.count(peer) for peer in "abcd"} == counts
        assert self.table.total == sum(counts.values())
        assert set(self.table) == {number for number, _ in self.model.open}
        for peer in "abcd":
            assert list(self.table.of(peer)) == [number for number, other in self.model.open if other == peer]
        if self.model.open:
            first = next(self.table.of_largest())
            (owner,) = (peer for number, peer in self.model.open if number == first)
            largest = max(counts.values())
            if any(counts[peer] == largest for _, peer in self.model.open):
                assert counts[owner] == largest


TestTables = Tables.TestCase
