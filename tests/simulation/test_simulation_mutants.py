"""The runs find every bug that is put in on purpose, so the observer, the coverage and the calm are checked themselves.

Each bug has a seed whose run finds it. Where the programs or the menu have changed since, the runs after it are searched; a
bug that is not found within `WORLDS` of them needs another seed, or a better menu.
"""

import functools

import pytest

from tests.simulation.driver import run, run_some
from tests.simulation.mutants import MUTANTS, SimulationMutant

WORLDS = 12


@functools.cache
def _fault_without_the_bug(seed: int, length_s: float) -> str:
    return run(seed, length_s).failure


@pytest.mark.parametrize("mutant", MUTANTS, ids=[mutant.name for mutant in MUTANTS])
def test_a_run_finds_the_bug(mutant: SimulationMutant) -> None:
    with mutant.patch():
        found = run_some(range(mutant.seed, mutant.seed + WORLDS), mutant.length_s)
    assert "LawBrokenError" in found.failure, f"not found within {found.steps} steps: {found.failure}"
    assert _fault_without_the_bug(found.seed, mutant.length_s) == "", (
        "without the bug the same run breaks nothing"
    )
