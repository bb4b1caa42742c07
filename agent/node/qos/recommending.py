"""A strategy that only recommends: it reads, decides and explains as ever, and does nothing."""

from collections.abc import Sequence
from dataclasses import replace

from agent.node.qos.client import StrategyJournal, StrategyPorts
from agent.node.qos.core.actions import (
    CgroupResource,
    CgroupUpdate,
    EvictOutcome,
    EvictResult,
    StrategyDecision,
    WriteOutcome,
    WriteResult,
)
from agent.node.qos.core.states import PodState
from hosting.cgroups.tree import CgroupTree


class RecommendingClient:
    """Says what would be done. Implements `NodeClient`. Strategies word their messages as if they acted; `would: ` is added here."""

    recommends_only = True

    def __init__(self, ports: StrategyPorts, journal: StrategyJournal) -> None:
        self._ports = ports
        self._journal = journal

    @property
    def cgroups(self) -> CgroupTree:
        """Where the control groups of pods are."""
        return self._ports.cgroups

    def write(self, updates: Sequence[CgroupUpdate]) -> tuple[WriteOutcome, ...]:
        """`UNCHANGED` for each update that the cgroup has already, `RECOMMENDED` for the others."""
        outcomes = tuple(self._recommended(each) for each in updates)
        for outcome in outcomes:
            self._journal.count("write", outcome.result)
        return outcomes

    def read(self, group: str, resource: CgroupResource) -> int | str | None:
        """The value that a cgroup has now; None where there is none, or no executor."""
        return None if self._ports.executor is None else self._ports.executor.read(group, resource)

    def evict(self, pod: PodState, reason: str) -> EvictOutcome:
        """Recommend to evict a pod."""
        if self._ports.evictor is None:
            outcome = EvictOutcome(EvictResult.RECOMMENDED, f"would evict {pod.full_name}: {reason}")
        else:
            outcome = self._ports.evictor.recommend(pod, reason)
        self._journal.count("evict", outcome.result)
        return outcome

    def record(self, pod: PodState | None, reason: str, message: str, *, is_warning: bool = False) -> None:
        """Report an Event, with `Would` before its reason and `would: ` before its message."""
        if self._ports.events is None:
            self._journal.count("event", "unavailable")
            return
        self._ports.events.record(pod, f"Would{reason}", _would(message), is_warning=is_warning)
        self._journal.count("event", "recommended")

    def decided(self, decision: StrategyDecision) -> None:
        """Note a decision."""
        if decision.is_action:
            decision = replace(decision, message=_would(decision.message))
        self._journal.decided(decision, is_done=False)

    def _recommended(self, update: CgroupUpdate) -> WriteOutcome:
        found = self.read(update.group, update.resource)
        result = WriteResult.UNCHANGED if found == update.value else WriteResult.RECOMMENDED
        return WriteOutcome(update, result, "" if found is None else str(found))


def _would(message: str) -> str:
    return f"would: {message}"
