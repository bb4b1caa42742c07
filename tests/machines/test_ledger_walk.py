"""One ledger, its agents and their VMs under every fault, walked at random: nothing is ever overcommitted.

Hypothesis keeps its walks short and can shrink them (`test_ledger_machine`); these are long and many. The number of
steps is PARLEY_WALK_STEPS (continuous integration takes 2,000,000). They begin at a seed that is always the same, so
that a change is judged by itself and not by its luck; `make explore` walks on from a fresh one, and PARLEY_WALK_SEED
repeats what a failure names.
"""

import os

import pytest

from tests.machines.ledger_driver import walk_many
from tests.machines.permit_laws import Reached

STEPS = int(os.environ.get("PARLEY_WALK_STEPS", "100000"))
FIXED_SEED = 20_000
ENOUGH = 500_000
"""Steps that reach everything that must be reached, many times over."""


def _seed() -> int:
    given = os.environ.get("PARLEY_WALK_SEED", str(FIXED_SEED))
    return int.from_bytes(os.urandom(4), "big") if given == "fresh" else int(given)


# A million steps take about a minute on two cores; a slower machine may take several.
@pytest.mark.timeout(3600)
def test_no_walk_overcommits_a_node(capsys: pytest.CaptureFixture[str]) -> None:
    seed = _seed()
    with capsys.disabled():  # a walk of a fresh seed can be repeated only by it
        print(f" PARLEY_WALK_SEED={seed} ", end="", flush=True)  # noqa: T201 - as said
    done = walk_many(seed, STEPS)
    assert not done.failure, done.failure
    with capsys.disabled():
        for what in Reached:
            print(f"\n  {done.reached[what]:>9} times: {what}", end="", flush=True)  # noqa: T201 - how far it has come
    assert set(done.reached) == set(Reached) or STEPS < ENOUGH, "a walk must reach all of it"
