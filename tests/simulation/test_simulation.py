"""The three cores together, under faults, on one virtual clock: no law is ever broken, and calm brings everything to rest.

The number of worlds is PARLEY_SIMULATION_RUNS, about a second each. They begin at a seed that is always the same;
`PARLEY_SIMULATION_SEED=fresh` takes another, and a number repeats what a failure names.
"""

import os

import pytest

from tests.simulation.coverage import Negotiated
from tests.simulation.driver import run, run_many, seed_of, shrink

RUNS = int(os.environ.get("PARLEY_SIMULATION_RUNS", "8"))
FIXED_SEED = 3_000


@pytest.mark.timeout(3600)
def test_no_world_breaks_a_law_and_all_come_to_rest(capsys: pytest.CaptureFixture[str]) -> None:
    seed = seed_of(FIXED_SEED)
    with capsys.disabled():  # worlds of a fresh seed can be repeated only by it
        print(f" PARLEY_SIMULATION_SEED={seed} ", end="", flush=True)  # noqa: T201 - as said
    done = run_many(seed, RUNS)
    assert not done.failure, shrink(done).told()
    assert set(done.negotiated) == set(Negotiated) or RUNS < 8, "nodes must be full often enough"


def test_a_seed_repeats_its_run() -> None:
    first, again = run(4, 200.0), run(4, 200.0)
    assert (first.steps, first.failure) == (again.steps, again.failure)
    assert first.steps != run(5, 200.0).steps
