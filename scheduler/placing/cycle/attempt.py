"""One attempt to give a pod a node: which node is chosen, and what follows until the pod is bound.

The order is that of kube-scheduler (reference/kubernetes.md 1.7, 1.9) with the steps of seed 002 (koordinator.md 1.4). An exception
of a plugin is a failure of this pod only. After Reserve nothing goes by the snapshot: the ledger is asked.
"""

import asyncio
import random
from collections.abc import Awaitable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal, Protocol, TypeAlias

from hosting.backoff import Backoff
from scheduler.placing.core.objects import NodeInfo, NodeSnapshot, PodInfo
from scheduler.placing.core.queue import Rejection
from scheduler.placing.core.values import (
    Code,
    RejectionClass,
    Status,
    error_status,
    is_rejected,
    is_success,
    message_of,
    new_status,
)
from scheduler.placing.cycle.binding import Assumptions, Binding
from scheduler.placing.cycle.calls import fault_text
from scheduler.placing.cycle.context import CycleState
from scheduler.placing.cycle.framework import SchedulingFramework
from scheduler.placing.cycle.hooks import SharedHooks
from scheduler.placing.cycle.passes import NodesFound, find_nodes, score_nodes
from scheduler.placing.plugins.base import MAY_BE_BOUND, RESERVATION_USED, find
from scheduler.ports import LeadershipGuard

FailureReason: TypeAlias = Literal["Unschedulable", "SchedulerError"]
"""The reason in the pod's condition. Source: kube-scheduler."""
SCHEDULER_ERROR: Final[FailureReason] = "SchedulerError"


@dataclass(frozen=True, slots=True)
class CycleFailure:
    """Why a cycle has not bound its pod. Without a `rejection` something failed, and the pod is tried again after a back-off."""

    status: Status
    text: str
    rejection: Rejection | None = None
    rejection_class: RejectionClass = RejectionClass.CAPACITY
    """Of a rejection."""

    @property
    def reason(self) -> FailureReason:
        return "Unschedulable" if self.rejection is not None else SCHEDULER_ERROR

    @classmethod
    def of(cls, status: Status) -> "CycleFailure":
        """Something failed, or said no when it is too late to wait for an event."""
        return cls(status, message_of(status))


class PlacingPort(Protocol):
    """Pods and nodes as plugins see them. `scheduler.clusters.kubernetes.placing.PlacingView` is it."""

    def pod_info(self, manifest: Mapping[str, Any]) -> PodInfo:
        """A pod. Raises `ValueError` where nobody can say how much room it needs."""

    def snapshot(self) -> NodeSnapshot:
        """Every node, now."""

    def assume_pod(self, pod: PodInfo, node_name: str) -> None:
        """Show the pod on that node for as long as the ledger keeps room for it there."""


SCHEDULING_DEADLINE_S: Final = 30.0
"""How long the plugins may take until a node is chosen, and again until it is reserved."""
BINDING_DEADLINE_S: Final = 60.0
"""How long one try to bind may take, with what comes before it; the wait for the permit has its own time-outs."""
HOLD_S: Final = 60.0
"""While nobody knows whether a pod was bound, its room is kept at least so long after each try to find out."""
IN_DOUBT: Final = Backoff(base_s=1.0, cap_s=10.0)
"""Between tries to bind a pod that may be bound already."""
ALL_BELOW: Final = 100
"""So many nodes are all looked at. Source: kube-scheduler, as `enough` as a whole."""


class _FailedError(Exception):
    """The attempt has failed."""

    def __init__(self, failure: CycleFailure) -> None:
        super().__init__(failure.text)
        self.failure = failure


def enough(nodes: int, percent: int | None = None) -> int:
    """How many feasible nodes end the search among so many: all of few; of more, `percent` of them, or 50 % at first and 5 % of very
    many."""
    if nodes < ALL_BELOW:
        return nodes
    return max(ALL_BELOW, nodes * (percent or max(50 - nodes // 125, 5)) // 100)


@dataclass(frozen=True, slots=True)
class Frameworks:
    """The frameworks of all profiles by the schedulers' names, and what they share."""

    by_name: Mapping[str, SchedulingFramework]
    shared: SharedHooks


class Attempt:
    """One attempt: `choose` a node, then `reserve` and `bind` in the block of its `binding`, as long as none of them fails."""

    def __init__(
        self,
        framework: SchedulingFramework,
        shared: SharedHooks,
        pod: PodInfo,
        rng: random.Random,
        guard: LeadershipGuard,
    ) -> None:
        self.pod: Final = pod
        self.framework: Final = framework
        self.shared: Final = shared
        self.context: Final = CycleState()
        self.node_name = ""
        """The node that was chosen; empty before."""
        self.examined = 0
        """How many nodes were judged."""
        self.is_sending = False
        """Whether the call that binds is under way."""
        self._rng = rng
        self._guard = guard

    def binding(self, assumptions: Assumptions) -> Binding:
        """All that follows the choice of the node. A pod that is not bound when its block ends is given up."""
        return Binding(self.framework, self.context, self.pod, self.node_name, assumptions, self.shared.log)

    # ------------------------------------------------------------ the scheduling part

    async def choose(self, view: PlacingPort, first: int) -> CycleFailure | None:
        """Choose a node; the search begins with the one at index `first`."""
        return await self._within(SCHEDULING_DEADLINE_S, self._choose(view, first))

    async def _choose(self, view: PlacingPort, first: int) -> None:
        self.framework.begin_cycle(self.context, self.pod)
        snapshot = view.snapshot()
        self.framework.set_snapshot(snapshot)
        nodes = tuple(snapshot.values())
        found = await find_nodes(
            self.framework,
            self.context,
            self.pod,
            nodes,
            enough=enough(len(nodes), self.framework.profile.nodes_percent),
            first=first,
        )
        self.examined = found.examined
        if found.status is not None and not is_rejected(found.status):
            raise _FailedError(CycleFailure.of(found.status))
        if not found.feasible:
            raise _FailedError(await self._no_node(found))
        self.node_name = await self._best(found.feasible)

    async def _no_node(self, found: NodesFound) -> CycleFailure:
        """No node has room: the post-filter plugins may make some."""
        result, status = await self.framework.run_post_filter_plugins(self.context, self.pod, found.statuses)
        if result is not None and result.nominated_node_name:
            self.shared.nominations.nominate(self.pod, result.nominated_node_name)
        diagnosis = self.framework.diagnosis(self.context, self.pod)
        text = diagnosis.text
        rejection = Rejection(found.rejected_by(), found.rejected_by(Code.PENDING))
        said = found.status or status or new_status(Code.UNSCHEDULABLE, text)
        return CycleFailure(said, text, rejection, diagnosis.rejection)

    async def _best(self, nodes: tuple[NodeInfo, ...]) -> str:
        """The node with the highest score; chance decides between equals."""
        scored = await score_nodes(self.framework, self.context, self.pod, nodes)
        _must_succeed(scored.status)
        most = max(scored.scores.values())
        return self._rng.choice([name for name, score in scored.scores.items() if score == most])

    async def reserve(self, binding: Binding) -> CycleFailure | None:
        """Keep room on the node, and ask for the permit. With this the scheduling part ends."""
        return await self._within(SCHEDULING_DEADLINE_S, _agreed(binding.reserve()))

    # ------------------------------------------------------------ the binding part

    async def bind(self, binding: Binding) -> CycleFailure | None:
        """Wait for the permit and bind the pod. None once the pod is bound, and no answer before that is known."""
        return await self._within(None, self._bind(binding))

    async def _bind(self, binding: Binding) -> None:
        await _agreed(binding.wait())
        async with asyncio.timeout(BINDING_DEADLINE_S):
            _must_succeed(await binding.prepare())
        failures = 0
        while not is_success(status := await self._try_to_bind(binding)):
            if not binding.is_in_doubt:
                _must_succeed(status)
            failures += 1
            self.shared.log.warning(
                "a pod may be bound, or not: it is bound again", pod=self.pod.name, node=self.node_name
            )
            await asyncio.sleep(IN_DOUBT.delay_s(failures, self._rng.random()))
            self._keep_room()

    async def _try_to_bind(self, binding: Binding) -> Status | None:
        limit = asyncio.timeout(BINDING_DEADLINE_S)
        try:
            self._guard.check(0)
            self.is_sending = True
            async with limit:
                return await binding.bind()
        except Exception as error:  # noqa: BLE001 - a plugin's own: whatever it raises
            return self._fault(error, limit)
        finally:
            self.is_sending = False

    def _keep_room(self) -> None:
        """Keep the room of a pod in doubt. It may be gone, where a read has shown that the pod is not bound."""
        ports, pod = self.shared.ports, self.pod
        reason = ports.placements.assume(
            pod.holder,
            pod.name,
            self.node_name,
            pod.amount,
            until_s=ports.clock() + HOLD_S,
            pool=pod.pool,
            reservation=find(self.context, RESERVATION_USED),
        )
        if reason is not None:
            self.context.delete(MAY_BE_BOUND)
            _must_succeed(error_status(f"its room on node {self.node_name} is gone: {reason.message}"))

    # ------------------------------------------------------------ failures

    async def _within(self, deadline_s: float | None, part: Awaitable[None]) -> CycleFailure | None:
        """The failure of a part of the attempt, whether plugins said no, raised or took too long."""
        limit = asyncio.timeout(deadline_s)
        try:
            async with limit:
                await part
        except _FailedError as error:
            return error.failure
        except Exception as error:  # noqa: BLE001 - a plugin's own, or the loss of leadership
            return CycleFailure.of(self._fault(error, limit))
        return None

    def _fault(self, error: Exception, limit: asyncio.Timeout) -> Status:
        if limit.expired() or isinstance(error, TimeoutError):
            return error_status("the plugins have not answered in time")
        self.shared.log.error(
            "a plugin failed", pod=self.pod.name, node=self.node_name, error=repr(error), exc_info=error
        )
        return error_status(fault_text(error))


async def _agreed(answer: Awaitable[Status | None]) -> None:
    """A rejection waits for the events of its plugin; anything else but Success is a failure."""
    status = await answer
    if status is not None and is_rejected(status):
        plugins = frozenset({status.plugin} - {""})
        pending = plugins if status.code == Code.PENDING else frozenset[str]()
        of_class = status.rejection or RejectionClass.CAPACITY
        raise _FailedError(CycleFailure(status, status.message, Rejection(plugins, pending), of_class))
    _must_succeed(status)


def _must_succeed(status: Status | None) -> None:
    """Anything else is a failure, for which no event is waited for."""
    if not is_success(status):
        assert status is not None
        raise _FailedError(CycleFailure.of(status))
