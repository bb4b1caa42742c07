"""The actions of strategies on the node, behind small ports, each of which may be missing."""

import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, Protocol

from agent.node.qos.core.actions import (
    CgroupResource,
    CgroupUpdate,
    DecisionRecord,
    EvictOutcome,
    EvictResult,
    StrategyDecision,
    WriteOutcome,
    WriteResult,
    counted_as,
    noted,
)
from agent.node.qos.core.states import PodState
from agent.node.qos.ports import StopSignal
from hosting.cgroups.tree import CgroupTree
from hosting.logs import Logger
from protocol.texts import clean

MAX_REASON: Final = 64
"""Characters of a reason, which is a label in metrics."""


class CgroupPort(Protocol):
    """Writes cgroups. Called from any thread."""

    @property
    def cgroups(self) -> CgroupTree:
        """As `NodeClient.cgroups`."""

    def write(self, updates: Sequence[CgroupUpdate], writer: str = "") -> tuple[WriteOutcome, ...]:
        """As `NodeClient.write`; `writer` is the strategy's name."""

    def read(self, group: str, resource: CgroupResource) -> int | str | None:
        """As `NodeClient.read`."""


class EvictionPort(Protocol):
    """Evicts pods. Called from any thread."""

    def evict(self, pod: PodState, reason: str) -> EvictOutcome:
        """As `NodeClient.evict`."""

    def recommend(self, pod: PodState, reason: str) -> EvictOutcome:
        """Say that the pod would be evicted, and do nothing."""


class EventPort(Protocol):
    """Reports Events. Called from any thread, and never blocks."""

    def record(self, pod: PodState | None, reason: str, message: str, *, is_warning: bool) -> None:
        """An Event of a pod, or of the node if `pod` is None."""


class RunMarks:
    """The strategies that have begun to act and have not put back their changes yet, told to the next life of an agent that is killed: a
    file in `directory` for each. Any thread may call every method; all raise `OSError`."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def has(self, strategy: str) -> bool:
        return (self._directory / strategy).exists()

    def put(self, strategy: str) -> None:
        self._directory.mkdir(mode=0o700, exist_ok=True)
        (self._directory / strategy).touch(mode=0o600)

    def remove(self, strategy: str) -> None:
        (self._directory / strategy).unlink(missing_ok=True)


@dataclass(frozen=True, slots=True)
class StrategyPorts:
    """The ports that the daemon gives. Any may be missing, and then the actions that need it are `unavailable`. By `marks`, strategies that
    do not act any more put back the changes of an agent that was killed."""

    executor: CgroupPort | None = None
    evictor: EvictionPort | None = None
    events: EventPort | None = None
    marks: RunMarks | None = None

    @property
    def cgroups(self) -> CgroupTree:
        """The executor's tree; without an executor the tree that kubelets lay out by default."""
        return CgroupTree() if self.executor is None else self.executor.cgroups


class StrategyJournal:
    """The record of one strategy: counters, and its last decisions. Any thread may call every method."""

    def __init__(self, strategy: str, log: Logger, clock: Callable[[], float]) -> None:
        self._strategy = strategy
        self._log = log
        self._clock = clock
        self._lock = threading.Lock()
        self._counts: Counter[tuple[str, str]] = Counter()
        self.records: tuple[DecisionRecord, ...] = ()

    def count(self, action: str, result: str) -> None:
        with self._lock:
            self._counts[action, result] += 1

    def counts(self) -> Mapping[tuple[str, str], int]:
        """How often each action (`write`, `evict`, `event`, `decision`) had each result; of decisions that is the reason."""
        with self._lock:
            return dict(self._counts)

    def decided(self, decision: StrategyDecision, *, is_done: bool) -> None:
        """Note a decision; `is_done` says that its actions are done and not only recommended."""
        reason, message = clean(str(decision.reason), MAX_REASON), clean(str(decision.message))
        decision = replace(decision, reason=reason, message=message)
        with self._lock:
            self._counts["decision", counted_as(decision.reason, self._counts, "decision")] += 1
            self.records, is_logged = noted(self.records, decision, self._clock(), is_done=is_done)
        if is_logged:
            self._log.info(
                "strategy decided",
                strategy=self._strategy,
                reason=decision.reason,
                message=decision.message,
                inputs=dict(decision.inputs),
            )


class _Client:
    """The calls that are the same for strategies that act and for those that only recommend."""

    def __init__(self, ports: StrategyPorts, journal: StrategyJournal) -> None:
        self._ports = ports
        self._journal = journal

    @property
    def cgroups(self) -> CgroupTree:
        return self._ports.cgroups

    def read(self, group: str, resource: CgroupResource) -> int | str | None:
        """The value that a cgroup has now; None if there is none, or no executor."""
        return None if self._ports.executor is None else self._ports.executor.read(group, resource)

    def _written(self, outcomes: tuple[WriteOutcome, ...]) -> tuple[WriteOutcome, ...]:
        for outcome in outcomes:
            self._journal.count("write", outcome.result)
        return outcomes

    def _evicted(self, outcome: EvictOutcome) -> EvictOutcome:
        self._journal.count("evict", outcome.result)
        return outcome

    def _record(
        self, pod: PodState | None, reason: str, message: str, result: str, *, is_warning: bool
    ) -> None:
        if self._ports.events is None:
            result = "unavailable"
        else:
            self._ports.events.record(pod, reason, message, is_warning=is_warning)
        self._journal.count("event", result)


class ActingClient(_Client):
    """Carries out the calls of a strategy. Implements `NodeClient`.

    Once the strategy is told to end, it evicts no more: a pod that is gone cannot be put back. It may still write cgroups,
    to put back its changes.
    """

    recommends_only = False

    def __init__(
        self, strategy: str, ports: StrategyPorts, journal: StrategyJournal, stop: StopSignal
    ) -> None:
        super().__init__(ports, journal)
        self._strategy = strategy
        self._stop = stop

    def write(self, updates: Sequence[CgroupUpdate]) -> tuple[WriteOutcome, ...]:
        """Set values of cgroups and read them back, as `NodeClient.write` says; `UNAVAILABLE` without an executor."""
        if self._ports.executor is None:
            return self._written(tuple(WriteOutcome(each, WriteResult.UNAVAILABLE) for each in updates))
        return self._written(self._ports.executor.write(updates, self._strategy))

    def evict(self, pod: PodState, reason: str) -> EvictOutcome:
        """Ask the API server to evict a pod; `UNAVAILABLE` without one, `REFUSED` once the strategy is told to end."""
        if self._stop.is_set():
            outcome = EvictOutcome(EvictResult.REFUSED, f"the strategy {self._strategy} is told to end")
        elif self._ports.evictor is None:
            outcome = EvictOutcome(EvictResult.UNAVAILABLE, "there is no API server to ask")
        else:
            outcome = self._ports.evictor.evict(pod, reason)
        return self._evicted(outcome)

    def record(self, pod: PodState | None, reason: str, message: str, *, is_warning: bool = False) -> None:
        self._record(pod, reason, message, "reported", is_warning=is_warning)

    def decided(self, decision: StrategyDecision) -> None:
        self._journal.decided(decision, is_done=True)


class RecommendingClient(_Client):
    """Reports the actions that would be done. Implements `NodeClient`. Strategies word their messages as if they acted; `would: ` is added
    here."""

    recommends_only = True

    def write(self, updates: Sequence[CgroupUpdate]) -> tuple[WriteOutcome, ...]:
        """`UNCHANGED` for each update that the cgroup has already, `RECOMMENDED` for the others."""
        return self._written(tuple(self._recommended(each) for each in updates))

    def _recommended(self, update: CgroupUpdate) -> WriteOutcome:
        found = self.read(update.group, update.resource)
        result = WriteResult.UNCHANGED if found == update.value else WriteResult.RECOMMENDED
        return WriteOutcome(update, result, "" if found is None else str(found))

    def evict(self, pod: PodState, reason: str) -> EvictOutcome:
        if self._ports.evictor is None:
            text = f"would evict {pod.full_name}: {reason}"
            return self._evicted(EvictOutcome(EvictResult.RECOMMENDED, text))
        return self._evicted(self._ports.evictor.recommend(pod, reason))

    def record(self, pod: PodState | None, reason: str, message: str, *, is_warning: bool = False) -> None:
        """Report an Event, with `Would` before its reason and `would: ` before its message."""
        self._record(pod, f"Would{reason}", f"would: {message}", "recommended", is_warning=is_warning)

    def decided(self, decision: StrategyDecision) -> None:
        if decision.is_action:
            decision = replace(decision, message=f"would: {decision.message}")
        self._journal.decided(decision, is_done=False)
