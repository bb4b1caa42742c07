"""Callers on this machine and elsewhere, and how refusals are counted and logged."""

import pytest

from hosting import access
from hosting.access import AccessRefused, AccessScope, Caller, LocalGate, Refusals, RequestHead
from tests.unit.hosting.raw_peers import recorded

EVERY = frozenset(access.GRANTED)
NETWORK = frozenset((AccessScope.PERMITS, AccessScope.PAGES))


def rights(peer: str, elsewhere: frozenset[AccessScope] = frozenset(), **headers: str) -> set[AccessScope]:
    """The rights that a caller has."""
    gate = LocalGate(Refusals(recorded()[0]), elsewhere)
    head = RequestHead(peer, headers)
    return {scope for scope in EVERY if isinstance(gate.admit(head, scope), Caller)}


@pytest.mark.parametrize(
    ("peer", "found"),
    [
        ("127.0.0.1", EVERY),
        ("127.8.9.1", EVERY),
        ("::1", EVERY),
        ("::ffff:127.0.0.1", EVERY),
        (access.UNIX_PEER, EVERY),
        ("", frozenset()),
        ("10.0.0.7", frozenset()),
        ("2001:db8::1", frozenset()),
        ("::ffff:10.0.0.7", frozenset()),
        ("localhost", frozenset()),
    ],
)
def test_this_machine_may_do_everything_and_others_nothing(peer: str, found: frozenset[AccessScope]) -> None:
    assert rights(peer) == found


def test_others_may_do_what_is_said_by_name() -> None:
    assert rights("10.0.0.7", NETWORK) == NETWORK


def test_web_pages_change_nothing_and_bind_nothing() -> None:
    read_only = EVERY - {AccessScope.WRITE, AccessScope.EXTENDER}
    assert rights("127.0.0.1", origin="https://evil.example") == read_only


def test_a_refusal_is_counted_each_time_and_logged_now_and_then() -> None:
    log, lines = recorded()
    now = [0.0]
    refusals = Refusals(log, lambda: now[0])
    refusal = AccessRefused(403, "scope", "no")
    for second in (0.0, 1.0, 2.0, access.TELL_EACH_S):
        now[0] = second
        refusals.add("a", AccessScope.WRITE, refusal)
    refusals.add("b", AccessScope.WRITE, refusal)
    refusals.add("a", AccessScope.PAGES, refusal)
    assert refusals.counts == {("write", "scope"): 5, ("pages", "scope"): 1}
    assert [(line["caller"], line["right"], line["more_before"]) for line in lines] == [
        ("a", "write", 0),
        ("a", "write", 2),
        ("b", "write", 0),
        ("a", "pages", 0),
    ]


def test_callers_without_end_are_not_remembered_without_end() -> None:
    refusals = Refusals(recorded()[0])
    for number in range(access.MAX_TOLD + 10):
        refusals.add(f"10.0.0.{number}", AccessScope.PERMITS, AccessRefused(401, "token", "no"))
    assert len(refusals._told) == access.MAX_TOLD
