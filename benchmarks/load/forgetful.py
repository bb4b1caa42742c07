"""`python -m benchmarks.load.forgetful …`: the scheduler with its log lines, and without its memory of decisions: the difference is the
cost of the memory. No benchmark itself."""

import sys

from protocol.values import Resources
from scheduler.explain.core import memory
from scheduler.explain.core.records import DecisionEvent, RememberedDecision
from scheduler.program import main


def _remember_nothing(number: int, happening: DecisionEvent, at_s: float) -> RememberedDecision:
    return RememberedDecision(
        number, happening.vm, happening.node, happening.outcome.value, b"{}", at_s, at_s
    )


def _note_nothing(trail: object, now_s: float, permit: Resources) -> None:
    del trail, now_s, permit


def _always_satisfied(self: memory.DecisionMemory, pod: object) -> None:
    del self, pod


if __name__ == "__main__":
    memory.records.remember = _remember_nothing  # type: ignore[attr-defined]  # the module as its own modules see it
    memory._note_permit = _note_nothing  # noqa: SLF001 - this is what is left out
    memory.DecisionMemory.satisfied = _always_satisfied  # type: ignore[method-assign]  # this is what is left out
    sys.argv[0] = "parley-scheduler"
    main()
