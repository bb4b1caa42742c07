"""The model world driven by Hypothesis: short walks over the same moves as `test_ledger_walk`, which shrink.

About 20,000 steps. A failure prints the moves that are left after shrinking, in the order in which they were made.
"""

from hypothesis import HealthCheck, note, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from tests.machines import ledger_laws
from tests.machines.ledger_drain import drain
from tests.machines.ledger_moves import MOVES, SHAPES, Move, Shape, build
from tests.machines.ledger_world import World


@st.composite
def moves(draw: st.DrawFn) -> tuple[Move, tuple[int, ...]]:
    move = draw(st.sampled_from(MOVES))
    return move, tuple(draw(st.integers(0, size - 1)) for size in move.sizes)


class LedgerMachine(RuleBasedStateMachine):
    """One world. The observer and the laws are checked at every move, the ledger's sums as well."""

    world: World

    @initialize(shape=st.sampled_from(SHAPES), is_known=st.booleans())
    def begin(self, shape: Shape, is_known: bool) -> None:
        """Small VMs, which the scheduler saw being born or not."""
        self.world = build(shape, is_known=is_known)

    @rule(chosen=moves())
    def something_happens(self, chosen: tuple[Move, tuple[int, ...]]) -> None:
        move, numbers = chosen
        note(move.told(numbers))
        move.act(self.world, *numbers)
        ledger_laws.check_audit(self.world)

    def teardown(self) -> None:
        """Faults stop, and everything comes right."""
        if hasattr(self, "world"):
            drain(self.world)


LedgerMachine.TestCase.settings = settings(
    max_examples=250,
    stateful_step_count=80,
    deadline=None,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow],
)
TestLedgerMachine = LedgerMachine.TestCase
