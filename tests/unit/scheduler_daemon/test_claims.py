"""One caller that claims to have met a later leader does not end a leadership; two nodes do, or one that is alone."""

from scheduler.daemon.term import SOLE_S, Claims

A, B, C = ("a",), ("b",), ("c",)


def test_callers_that_need_not_show_who_they_are_are_believed_at_once() -> None:
    assert Claims().believed((), 0.0)


def test_one_node_that_others_contradict_is_never_believed() -> None:
    claims = Claims()
    assert not claims.believed(A, 0.0)
    claims.heard(B)
    assert not any(claims.believed(A, at) for at in (1.0, SOLE_S, 1000.0))


def test_two_nodes_are_believed_whatever_others_say() -> None:
    claims = Claims()
    assert not claims.believed(A, 0.0)
    claims.heard(B)
    assert claims.believed(C, 1.0)


def test_a_node_that_is_alone_is_believed_after_a_while() -> None:
    claims = Claims()
    assert not claims.believed(A, 0.0)
    claims.heard(A)
    assert not claims.believed(A, SOLE_S - 1)
    assert claims.believed(A, SOLE_S)
