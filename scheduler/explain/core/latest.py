"""The latest decisions of all VMs, for somebody who follows them. Reads only."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice

from protocol.explaining import Decisions
from scheduler.explain.core import records
from scheduler.explain.core.explaining import ExplainView
from scheduler.explain.core.records import RememberedDecision


@dataclass(frozen=True, slots=True)
class LatestFilter:
    """Which decisions are asked for: after which number, how many at most; None stands for all. After 0 these are the newest ones, or with
    `is_from_oldest` those from the oldest that is remembered."""

    after: int
    limit: int
    is_from_oldest: bool = False
    namespace: str | None = None
    name: str | None = None
    node: str | None = None
    outcome: str | None = None

    def holds(self, remembered: RememberedDecision) -> bool:
        namespace, _, name = remembered.vm.partition("/")
        return (
            (self.namespace is None or self.namespace == namespace)
            and (self.name is None or self.name == name)
            and (self.node is None or self.node == remembered.node)
            and (self.outcome is None or self.outcome == remembered.outcome)
        )


def decisions(view: ExplainView, wanted: LatestFilter) -> Decisions:
    """The decisions after a number, the oldest first, and the number to go on from."""
    memory = view.memory
    if wanted.after or wanted.is_from_oldest:
        found = list(islice(_held(memory.after(wanted.after), wanted), wanted.limit))
        is_cut = len(found) == wanted.limit
    else:
        found = list(islice(_held(memory.newest_first(), wanted), wanted.limit))[::-1]
        is_cut = False
    return Decisions(
        instance=str(view.core.config.instance),
        next=found[-1].number if is_cut else memory.number,
        are_lost=memory.are_lost(wanted.after),
        decisions=tuple([records.recall(remembered, view.moment) for remembered in found]),
    )


def _held(remembered: Iterator[RememberedDecision], wanted: LatestFilter) -> Iterator[RememberedDecision]:
    return (each for each in remembered if wanted.holds(each))
