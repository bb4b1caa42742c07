"""The model finds every bug that is put in on purpose, so the checkers are checked.

Each bug has a seed whose walk finds it soon. Where the model has changed since, the walks after it are searched; a bug
that is not found within `WORLDS` of them needs a better model, or another seed.
"""

import pytest

from tests.machines.ledger_driver import walk, walk_some
from tests.machines.mutants import MUTANTS, Mutant
from tests.machines.mutants_of_negotiation import NEGOTIATION_MUTANTS
from tests.machines.mutants_of_placements import PLACEMENT_MUTANTS

ALL = (*MUTANTS, *PLACEMENT_MUTANTS, *NEGOTIATION_MUTANTS)

WORLDS = 60


@pytest.mark.parametrize("mutant", ALL, ids=[mutant.name for mutant in ALL])
def test_the_walk_finds_the_bug(mutant: Mutant) -> None:
    with mutant.patch():
        found = walk_some(range(mutant.seed, mutant.seed + WORLDS))
    assert "LawBrokenError" in found.failure, f"not found within {found.steps} steps"
    assert walk(found.seed).failure == "", "without the bug the same walk breaks nothing"


def test_every_bug_has_a_number_of_its_own() -> None:
    for mutants in (MUTANTS, PLACEMENT_MUTANTS, NEGOTIATION_MUTANTS):
        assert [mutant.number for mutant in mutants] == list(range(1, len(mutants) + 1))
