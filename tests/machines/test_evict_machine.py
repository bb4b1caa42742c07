"""Evictions over time: no second victim for one pressure, and the pressure ends where it can."""

import random
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent.node.qos.core.evicting import EvictionEngine, ReleaseLedger
from tests.machines import evict_node
from tests.machines.evict_node import CAPACITY, LIMITS, RULES, EvictNode


def walk(seed: int, length: int) -> EvictNode:
    """A node where much goes wrong for a while, and then nothing any more."""
    node = EvictNode(random.Random(seed))
    for _ in range(length):
        if node.chance.random() < 0.2:
            node.arrive()
        if node.pods and node.chance.random() < 0.02:
            node.kill(node.chance.choice(list(node.pods)))
        node.second()
    node.is_calm = True
    for _ in range(400):
        node.second()
    return node


def check_calm(node: EvictNode) -> None:
    is_high = node.average * 100 >= RULES.used.upper_percent * CAPACITY
    is_releasing = any(not task.is_calm for task in node.engine.tasks)
    left = [each for each in node.pods.values() if each.is_eligible]
    assert not left or not (is_high or is_releasing)


@settings(max_examples=150)
@given(st.integers(0, 2**32), st.integers(20, 150))
def test_no_second_victim_for_one_pressure_and_the_pressure_ends_where_it_can(seed: int, length: int) -> None:
    check_calm(walk(seed, length))


def _next_goes(engine: EvictionEngine, uid: str, now_s: float, chance: float) -> None:
    engine._refuse(uid, now_s, chance)


@pytest.mark.parametrize(
    ("owner", "name", "bug"),
    [
        (ReleaseLedger, "pending", lambda *_: 0),
        (evict_node, "LIMITS", replace(LIMITS, settle_s=0)),
        (EvictionEngine, "_failed", _next_goes),
        (EvictionEngine, "_is_free", lambda *_: False),
    ],
    ids=[
        "what is being released does not count",
        "what has gone does not count",
        "after a failure the next one goes",
        "nobody ever goes",
    ],
)
def test_the_walk_finds_known_bugs(
    owner: object, name: str, bug: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    def search() -> None:
        for seed in range(100):
            check_calm(walk(seed, 100))

    monkeypatch.setattr(owner, name, bug)
    with pytest.raises(AssertionError):
        search()
