"""Evictions over time: no second victim for one pressure, and the pressure ends where it can."""

import random

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.machines.evict_node import CAPACITY, RULES, EvictNode


@settings(max_examples=150)
@given(st.integers(0, 2**32), st.integers(20, 150))
def test_no_second_victim_for_one_pressure_and_the_pressure_ends_where_it_can(seed: int, length: int) -> None:
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
    is_high = node.average * 100 >= RULES.used.upper_percent * CAPACITY
    is_releasing = any(not task.is_calm for task in node.engine.tasks)
    left = [each for each in node.pods.values() if each.is_eligible]
    assert not left or not (is_high or is_releasing)
