"""Whether a pod that is denied for long is evicted."""

from agent.core.eviction import APART_S, MAX_REFUSED_S, REFUSED_S, Candidate, Evictions

DENIED = (Candidate("a", True), Candidate("b", True))


def test_the_one_denied_longest_goes_first_and_the_next_waits() -> None:
    evictions = Evictions(600).seen((Candidate("b", True),), 0).seen(DENIED, 10)
    assert evictions.due(599) is None
    assert evictions.due(700) == "b"
    evictions = evictions.accepted("b", 700).seen((Candidate("a", True),), 700)
    assert evictions.due(700 + APART_S - 1) is None
    assert evictions.due(700 + APART_S) == "a"


def test_a_break_in_the_denial_begins_the_wait_anew() -> None:
    evictions = Evictions(600).seen(DENIED, 0).seen((Candidate("a", False), Candidate("b", True)), 500)
    evictions = evictions.seen(DENIED, 510)
    assert evictions.due(600) == "b"
    evictions = evictions.seen((Candidate("a", True),), 610)  # b has gone
    assert evictions.due(610) is None
    assert evictions.due(1110) == "a"


def test_a_budgets_no_is_asked_again_later_and_later() -> None:
    evictions = Evictions(600).seen((Candidate("a", True),), 0)
    now_s, waits = 600.0, []
    for _ in range(8):
        assert evictions.due(now_s) == "a"
        evictions = evictions.refused("a", now_s, 0.0)
        began_s = now_s
        while evictions.due(now_s) is None:
            now_s += 10
        waits.append(now_s - began_s)
    assert waits[:4] == [REFUSED_S, 2 * REFUSED_S, 4 * REFUSED_S, 8 * REFUSED_S]
    assert waits[-1] == MAX_REFUSED_S
    assert (
        evictions.refused("a", now_s, 0.0, retry_after_s=2 * MAX_REFUSED_S).due(now_s + MAX_REFUSED_S) is None
    )
    assert evictions.refused("gone", now_s, 0.0) == evictions


def test_while_one_is_refused_another_may_go() -> None:
    evictions = Evictions(600).seen(DENIED, 0).refused("a", 600, 1.0)
    assert evictions.due(600 + APART_S - 1) is None
    assert evictions.due(600 + APART_S) == "b"


def test_one_without_a_place_elsewhere_stays_and_another_goes() -> None:
    """The time of its denial counts on: it goes as soon as there is a place."""
    here, gone = Candidate("a", True, has_place=False), Candidate("a", True)
    evictions = Evictions(600).seen((here,), 0).seen((here, Candidate("b", True)), 10)
    assert evictions.due(609) is None
    assert evictions.due(610) == "b"
    evictions = evictions.seen((gone,), 611)
    assert evictions.due(611) == "a"
    assert evictions.seen((here,), 612).due(612) is None
