"""Sockets, servers and handlers in any order: the calls for one plugin name never overlap, and in the end everything healthy is registered."""

from collections.abc import Callable

import pytest

from agent.node.plugins.core.plugin_info import PluginState
from tests.machines.plugin_mutants import MUTANTS, Patch
from tests.machines.plugin_world import LawBrokenError, walk

WALKS = 50
STEPS = 60


def test_no_walk_breaks_a_law_and_together_they_see_every_state() -> None:
    assert set().union(*(walk(seed, STEPS) for seed in range(WALKS))) == set(PluginState)


@pytest.mark.parametrize("mutant", MUTANTS, ids=[mutant.__name__ for mutant in MUTANTS])
def test_a_walk_finds_the_bug(mutant: Callable[[], Patch]) -> None:
    with mutant():
        for seed in range(WALKS):
            try:
                walk(seed, STEPS)
            except LawBrokenError:
                return
    pytest.fail(f"not found within {WALKS} walks")
