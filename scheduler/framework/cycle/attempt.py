"""One attempt to give a pod a node: the scheduling part, the binding part, and what is undone where either fails.

The order is that of kube-scheduler (reference/kubernetes.md 1.7, 1.9) with the framework extender's steps (koordinator.md 1.4). What fails
after the node was chosen is undone so: Unreserve of all plugins in reverse order, then the room is forgotten, and forget handlers are told.
An exception of a plugin is a failure of this pod only. After Reserve nothing goes by the snapshot: the ledger is asked.
"""

import asyncio
import random
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final, TypeVar

from hosting.backoff import Backoff
from scheduler.framework.core.objects import NodeInfo, PodInfo
from scheduler.framework.core.queue import Rejection
from scheduler.framework.core.status import (
    Code,
    Status,
    code_of,
    error_status,
    is_rejected,
    is_success,
    new_status,
)
from scheduler.framework.cycle.passes import NodesFound, find_nodes, score_nodes
from scheduler.framework.cycle.ports import CycleFailure, PlacingPort
from scheduler.framework.extension.extender import FrameworkExtender
from scheduler.framework.extension.shared import SharedExtension
from scheduler.framework.plugins.notes import MAY_BE_BOUND, RESERVATION_USED, find
from scheduler.framework.runtime.context import CycleState

T = TypeVar("T")

SCHEDULING_DEADLINE_S: Final = 30.0
"""How long the plugins may take until a node is chosen and reserved."""
BINDING_DEADLINE_S: Final = 60.0
"""How long the plugins of each binding point may take; the wait for the permit has its own time-outs."""
UNDO_DEADLINE_S: Final = 30.0
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


def enough(nodes: int) -> int:
    """How many feasible nodes end the search among so many: all of few; of more, 50 % at first and 5 % of very many."""
    if nodes < ALL_BELOW:
        return nodes
    return max(ALL_BELOW, nodes * max(50 - nodes // 125, 5) // 100)


@dataclass(frozen=True, slots=True)
class Extenders:
    """The frameworks of all profiles by the schedulers' names, and what they share."""

    frameworks: "dict[str, FrameworkExtender]"
    shared: SharedExtension


class Attempt:
    """One attempt. `schedule` chooses a node and reserves it; `bind` does the rest. After a failure of either call `undo`."""

    def __init__(
        self,
        framework: FrameworkExtender,
        shared: SharedExtension,
        view: PlacingPort,
        pod: PodInfo,
        rng: random.Random,
    ) -> None:
        self.pod: Final = pod
        self.framework: Final = framework
        self.shared: Final = shared
        self.node_name = ""
        """The node that was chosen; empty before."""
        self.context: Final = CycleState()
        self.examined = 0
        self._view = view
        self._rng = rng

    # ------------------------------------------------------------ the scheduling part

    async def schedule(self, first: int) -> CycleFailure | None:
        """Choose a node, reserve it, and ask for the permit. The search begins with the node at index `first`."""
        limit = asyncio.timeout(SCHEDULING_DEADLINE_S)
        try:
            async with limit:
                await self._schedule(first)
        except _FailedError as error:
            return error.failure
        except Exception as error:  # noqa: BLE001 - a plugin's own: whatever it raises
            return CycleFailure.of(self._fault(error, limit))
        return None

    async def _schedule(self, first: int) -> None:
        self.framework.begin_cycle(self.context, self.pod)
        snapshot = self._view.snapshot()
        self.framework.set_snapshot(snapshot)
        nodes = tuple(snapshot.values())
        found = await find_nodes(
            self.framework, self.context, self.pod, nodes, enough=enough(len(nodes)), first=first
        )
        self.examined = found.examined
        if found.status is not None and not is_rejected(found.status):
            raise _FailedError(CycleFailure.of(found.status))
        if not found.feasible:
            raise _FailedError(await self._no_node(found))
        name = await self._best(found.feasible)
        _, status = await self.framework.nominate_reservation(self.context, self.pod, name)
        self._must_succeed(status)
        self.node_name = name
        status = await self.framework.run_reserve_plugins_reserve(self.context, self.pod, name)
        self._must_agree(status)
        self._view.assume_pod(self.pod, name)
        status = await self.framework.run_permit(self.context, self.pod, name)
        if code_of(status) != Code.WAIT:
            self._must_agree(status)

    async def _no_node(self, found: NodesFound) -> CycleFailure:
        """Nobody has room: the post-filter plugins may make some."""
        result, status = await self.framework.run_post_filter_plugins(self.context, self.pod, found.statuses)
        if result is not None and result.nominated_node_name:
            self.shared.nominations.nominate(self.pod, result.nominated_node_name)
        text = self.framework.diagnosis(self.context, self.pod).text
        rejection = Rejection(found.rejected_by(), found.rejected_by(Code.PENDING))
        return CycleFailure(found.status or status or new_status(Code.UNSCHEDULABLE, text), text, rejection)

    async def _best(self, nodes: tuple[NodeInfo, ...]) -> str:
        """The node with the highest score; chance decides between equals."""
        scored = await score_nodes(self.framework, self.context, self.pod, nodes)
        self._must_succeed(scored.status)
        most = max(scored.scores.values())
        return self._rng.choice([name for name, score in scored.scores.items() if score == most])

    # ------------------------------------------------------------ the binding part

    async def bind(self) -> CycleFailure | None:
        """Wait for the permit and bind the pod. Returns None once the pod is bound, and not before that is known."""
        try:
            await self._bind()
        except _FailedError as error:
            return error.failure
        except Exception as error:  # noqa: BLE001 - a plugin's own, or the loss of leadership
            return CycleFailure.of(self._fault(error))
        return None

    async def _bind(self) -> None:
        run = self.framework
        status = await self._timely(run.run_pre_bind_pre_flights)
        if code_of(status) != Code.SKIP:
            self._must_succeed(status)
        self._must_agree(await run.wait_on_permit(self.pod))
        self._must_succeed(await self._timely(run.run_pre_bind_plugins))
        await self._bind_for_sure()
        with _contained(self, "post-bind plugins failed"):
            async with asyncio.timeout(BINDING_DEADLINE_S):
                await run.run_post_bind_plugins(self.context, self.pod, self.node_name)

    async def _bind_for_sure(self) -> None:
        """Bind, again and again while nobody knows whether the pod was bound: its room stays until that is known."""
        failures = 0
        while not is_success(status := await self._timely(self.framework.run_bind_plugins)):
            if not self._is_in_doubt:
                self._must_succeed(status)
            failures += 1
            self.shared.log.warning(
                "a pod may be bound, or not: it is bound again", pod=self.pod.name, node=self.node_name
            )
            await asyncio.sleep(IN_DOUBT.delay_s(failures, self._rng))
            self._keep_room()

    @property
    def _is_in_doubt(self) -> bool:
        return find(self.context, MAY_BE_BOUND) is True

    def _keep_room(self) -> None:
        """Keep the room of a pod in doubt. Where a read has shown that the pod is not bound, it may be gone."""
        surroundings, pod = self.shared.surroundings, self.pod
        reason = surroundings.placements.assume(
            pod.holder,
            pod.name,
            self.node_name,
            pod.amount,
            until_s=surroundings.clock() + HOLD_S,
            pool=pod.pool,
            reservation=find(self.context, RESERVATION_USED),
        )
        if reason is not None:
            self.context.delete(MAY_BE_BOUND)
            self._must_succeed(error_status(f"its room on node {self.node_name} is gone: {reason.message}"))

    # ------------------------------------------------------------ the end

    async def undo(self) -> None:
        """Give back what was reserved; nothing where no node was chosen. Fails never."""
        if not self.node_name:
            return
        with _contained(self, "unreserve failed"):
            async with asyncio.timeout(UNDO_DEADLINE_S):
                await self.framework.run_reserve_plugins_unreserve(self.context, self.pod, self.node_name)
        with _contained(self, "an assumed pod could not be forgotten"):
            self.shared.forget_pod(self.pod, self.node_name)

    # ------------------------------------------------------------ statuses

    async def _timely(
        self, run: Callable[[CycleState, PodInfo, str], Awaitable[Status | None]]
    ) -> Status | None:
        """The status of a run. Where it takes too long, or a plugin raises, it has failed."""
        limit = asyncio.timeout(BINDING_DEADLINE_S)
        try:
            async with limit:
                return await run(self.context, self.pod, self.node_name)
        except Exception as error:  # noqa: BLE001 - a plugin's own: whatever it raises
            return self._fault(error, limit)

    def _fault(self, error: Exception, limit: asyncio.Timeout | None = None) -> Status:
        if limit is not None and limit.expired():
            return error_status("the plugins have not answered in time")
        self.shared.log.error(
            "a plugin failed", pod=self.pod.name, node=self.node_name, error=repr(error), exc_info=error
        )
        return error_status(error if str(error) else repr(error))

    def _must_succeed(self, status: Status | None) -> None:
        """Anything else is a failure, for which no event is waited for."""
        if not is_success(status):
            assert status is not None
            raise _FailedError(CycleFailure.of(status))

    def _must_agree(self, status: Status | None) -> None:
        """A rejection waits for the events of its plugin."""
        if status is not None and is_rejected(status):
            plugins = frozenset({status.plugin} - {""})
            pending = plugins if status.code == Code.PENDING else frozenset[str]()
            raise _FailedError(CycleFailure(status, status.message, Rejection(plugins, pending)))
        self._must_succeed(status)


@contextmanager
def _contained(attempt: Attempt, text: str) -> Iterator[None]:
    """What a plugin raises here changes nothing any more."""
    try:
        yield
    except Exception:
        attempt.shared.log.exception(text, pod=attempt.pod.name, node=attempt.node_name)
