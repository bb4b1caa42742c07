"""One ledger, its agents and their VMs under every fault, walked at random: nothing is ever overcommitted.

Hypothesis keeps its walks short and can shrink them (`test_ledger_machine`); these are long and many. The number of
steps is PARLEY_WALK_STEPS (continuous integration takes 1,000,000); half of them begin at a seed that is always the
same, the other half at a fresh one, or both at PARLEY_WALK_SEED, which a failure names.
"""

import os

import pytest

from tests.machines.ledger_driver import walk_many

STEPS = int(os.environ.get("PARLEY_WALK_STEPS", "100000"))
FIXED_SEED = 20_000


def _seeds() -> list[int]:
    given = os.environ.get("PARLEY_WALK_SEED")
    return [int(given)] if given else [FIXED_SEED, int.from_bytes(os.urandom(4), "big")]


# A million steps take about a minute on two cores; a slower machine may take several.
@pytest.mark.timeout(1200)
@pytest.mark.parametrize(
    "seed", _seeds(), ids=("given",) if "PARLEY_WALK_SEED" in os.environ else ("fixed", "fresh")
)
def test_no_walk_overcommits_a_node(seed: int, capsys: pytest.CaptureFixture[str]) -> None:
    with capsys.disabled():  # a walk of a fresh seed can be repeated only by it
        print(f" PARLEY_WALK_SEED={seed} ", end="", flush=True)  # noqa: T201 - as said
    done = walk_many(seed, STEPS // len(_seeds()))
    assert not done.failure, done.failure
