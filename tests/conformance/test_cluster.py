"""One suite for every `Cluster`: what the permit service relies on, wherever it sees its VMs. And proof that it can fail.

The clauses are in `cluster_clauses.py`; another adapter needs a plant only (`cluster_plants.py`).
"""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.conformance.cluster_clauses import CLAUSES
from tests.conformance.cluster_mutants import MUTANTS, ClusterMutant
from tests.conformance.cluster_plants import PLANTS
from tests.support.virtual_time import VirtualLoop

SEEDS = 20


def run(clause: str, plant: Callable[..., Any], directory: Path, seed: int, **broken: Any) -> None:
    """Run a clause in virtual time; the seed is in what it raises."""
    with (
        asyncio.Runner(loop_factory=VirtualLoop) as runner,
        plant(directory / str(seed), seed, **broken) as made,
    ):
        try:
            runner.run(CLAUSES[clause](made))
        except Exception as error:
            error.add_note(f"seed {seed}")
            raise


@pytest.mark.parametrize("clause", CLAUSES)
@pytest.mark.parametrize("plant", PLANTS)
def test_adapters_keep(plant: str, clause: str, tmp_path: Path) -> None:
    for seed in range(SEEDS if clause.startswith("any_") else 2):
        run(clause, PLANTS[plant], tmp_path, seed)


@pytest.mark.parametrize(
    "mutant", MUTANTS, ids=lambda mutant: f"{mutant.kind.__name__} of {mutant.plant}".replace(" ", "_")
)
def test_the_suite_catches(mutant: ClusterMutant, tmp_path: Path) -> None:
    for seed in range(SEEDS):
        try:
            run(mutant.clause, PLANTS[mutant.plant], tmp_path, seed, **mutant.planted())
        except AssertionError:
            return
    raise AssertionError(f"nobody noticed: {mutant.kind.__doc__}")


def test_every_clause_catches_somebody() -> None:
    assert set(CLAUSES) - {mutant.clause for mutant in MUTANTS} == set()
