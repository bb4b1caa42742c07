"""One caller that claims to have met a later leader does not end a leadership; two nodes do, or one that is alone."""

import pytest

from scheduler.daemon.term import CONTRADICTED_S, SOLE_S, Claims

A, B, C = ("a",), ("b",), ("c",)


def test_callers_that_need_not_show_who_they_are_are_believed_at_once() -> None:
    assert Claims().believed(None, 0.0)


def test_one_node_that_others_contradict_is_never_believed() -> None:
    claims = Claims()
    assert not claims.believed(A, 0.0)
    for at in (0.0, 30.0, 60.0, 90.0):
        claims.heard(B, at)
        assert not claims.believed(A, at + 1.0)


def test_two_nodes_are_believed_whatever_others_say() -> None:
    claims = Claims()
    assert not claims.believed(A, 0.0)
    claims.heard(B, 0.5)
    assert claims.believed(C, 1.0)


def test_a_node_that_is_alone_is_believed_after_a_while() -> None:
    claims = Claims()
    assert not claims.believed(A, 0.0)
    claims.heard(A, 1.0)
    assert not claims.believed(A, SOLE_S - 1)
    assert claims.believed(A, SOLE_S)


def test_a_node_that_others_contradict_no_more_is_believed_after_a_while() -> None:
    claims = Claims()
    assert not claims.believed(A, 0.0)
    claims.heard(B, 1.0)
    assert not claims.believed(A, SOLE_S)
    assert claims.believed(A, 1.0 + CONTRADICTED_S)


@pytest.mark.parametrize("witness", [(), ("a", "b")])
def test_a_caller_without_one_node_is_no_witness(witness: tuple[str, ...]) -> None:
    """A token that was issued for no pod, and published agents of several nodes."""
    claims = Claims()
    assert not claims.believed(A, 0.0)
    assert not claims.believed(witness, 1000.0)
    claims.heard(witness, 0.0)
    assert claims.believed(A, SOLE_S)
