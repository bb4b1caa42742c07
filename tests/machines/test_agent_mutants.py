"""The agent's machine finds every bug that is put in on purpose, so its invariants and its rules are checked."""

import hypothesis
import pytest
from hypothesis import Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from tests.machines.mutants_of_agents import AGENT_MUTANTS, AgentMutant
from tests.machines.test_agent_machine import AgentMachine

EXAMPLES = 1200
OF_A_SEED = settings(
    AgentMachine.TestCase.settings,
    max_examples=EXAMPLES,
    phases=(Phase.generate,),
    database=None,
    report_multiple_bugs=False,
)


@pytest.mark.parametrize("mutant", AGENT_MUTANTS, ids=[mutant.name for mutant in AGENT_MUTANTS])
def test_the_machine_finds_the_bug(mutant: AgentMutant) -> None:
    class Seeded(AgentMachine):
        pass

    machine = hypothesis.seed(mutant.seed)(Seeded)
    with mutant.patch(), pytest.raises(AssertionError, match=r"in use, .* in the ledger"):
        run_state_machine_as_test(machine, settings=OF_A_SEED)
