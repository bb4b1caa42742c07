"""The scheduler of the mode `full`: takes pods from the queue, one cycle after the other, and binds them side by side.

A cycle ends with the permit. Waiting for that and binding goes on in a task of its own, while the next cycle begins. What becomes of a pod
is told to the queue, to the plugins, and to people.
"""

import asyncio
import random
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final, Protocol

from hosting.metrics import AnyFamily, Family
from scheduler.placing.core.handle import SchedulerCache, SchedulingQueue
from scheduler.placing.core.objects import PodInfo, QueuedPod
from scheduler.placing.core.queue import PodQueue, QueuePool, Rejection, by_priority
from scheduler.placing.core.values import (
    ActionType,
    Code,
    EventResource,
    RegisteredEvents,
    SchedulingEvent,
    Status,
    error_status,
    is_success,
    new_status,
)
from scheduler.placing.cycle.attempt import Attempt, CycleFailure, Frameworks, PlacingPort
from scheduler.placing.cycle.framework import SchedulingFramework
from scheduler.placing.cycle.hooks import SharedHooks
from scheduler.ports import LeadershipGuard, SoleScheduler

MAX_BINDING: Final = 1000
"""Pods that wait for their permit or are being bound. With so many no cycle begins, so a group whose pods wait for each other must
be smaller."""
END_S: Final = 5.0
"""How long calls that bind may take to end when the scheduler ends. The binder's own deadline is shorter."""
FAILURE_DEADLINE_S: Final = 30.0
"""How long what plugins do about a failure may take."""


class OutcomeReporter(Protocol):
    """Tells people what became of pods. Calls never wait and never fail."""

    def scheduled(self, pod: PodInfo, node_name: str) -> None:
        """The pod was bound to that node."""

    def failed(self, pod: PodInfo, failure: CycleFailure) -> None:
        """The pod has no node."""


@dataclass(frozen=True, slots=True)
class _OnItsWay:
    """A pod that was given a node and is not bound yet."""

    attempt: Attempt
    task: "asyncio.Task[None]"


class PodScheduler:
    """One for each time that this process leads. `run` schedules; the other calls wait for nothing."""

    def __init__(
        self,
        frameworks: Frameworks,
        view: PlacingPort,
        reporter: OutcomeReporter,
        *,
        clock: Callable[[], float],
        rng: random.Random,
        guard: LeadershipGuard | None = None,
    ) -> None:
        self._guard = guard or SoleScheduler()
        self._frameworks = frameworks
        self._view = view
        self._reporter = reporter
        self._clock = clock
        self._rng = rng
        self.queue: Final = PodQueue(self._less, self._gate, self._events_of)
        self._on_their_way: dict[str, _OnItsWay] = {}
        """By UID."""
        self._bound: set[str] = set()
        """By UID, the pods that were bound and are still shown without a node."""
        self._changed = asyncio.Event()
        self._first = 0
        self._attempts: Counter[str] = Counter()
        frameworks.shared.use_scheduler(_Adapter(self))

    # ------------------------------------------------------------ what has happened

    def use(self, frameworks: Frameworks) -> None:
        """The profiles are these from now on. Attempts that have begun go on with what they began with."""
        self._frameworks = frameworks
        frameworks.shared.use_scheduler(_Adapter(self))
        self.activate([pod.uid for pod in self.queue.pods()])

    def pod_seen(self, pod: PodInfo) -> bool:
        """There is a pod without a node, or it was changed. False: a full queue has not taken it.

        A change that was made before the pod was bound may be shown after that: the pod is not placed a second time.
        """
        if pod.uid in self._bound:
            return True
        is_taken = self.queue.add(pod, self._clock())
        self._changed.set()
        return is_taken

    def pod_gone(self, uid: str) -> None:
        """A pod is gone, or has a node: it waits for nothing any more, a permit included."""
        queued = self.queue.find(uid)
        self.queue.delete(uid)
        self._bound.discard(uid)
        on_its_way = self._on_their_way.get(uid)
        if on_its_way is not None:
            on_its_way.attempt.framework.reject_waiting_pod(uid)
        elif queued is not None:
            self._frameworks.shared.gone(queued.pod)

    def happened(self, events: Iterable[SchedulingEvent]) -> None:
        happened = tuple(events)
        if happened:
            self.queue.move(happened, self._clock())
            self._changed.set()

    def activate(self, uids: Sequence[str]) -> None:
        self.queue.activate(uids, self._clock())
        self._changed.set()

    def on_its_way(self, uid: str) -> Attempt | None:
        """The attempt that has given a pod its node, while the pod is not bound yet."""
        found = self._on_their_way.get(uid)
        return found.attempt if found is not None else None

    # ------------------------------------------------------------ cycles

    async def run(self) -> None:
        """Schedule until cancelled. Bindings that were sent are awaited then; of one without an answer in time nobody knows what becomes."""
        for uid in self.queue.in_flight():  # a fault of ours has ended their cycle, and this is run again
            self.queue.failed(uid, None, self._clock())
        try:
            while True:
                await self._room_for_another()
                self._changed.clear()
                queued = self._next()
                if queued is None:
                    await self._idle()
                else:
                    await self._cycle(queued)
                    await asyncio.sleep(0)  # agents have their turn between two cycles
        finally:
            await self._end()

    async def _end(self) -> None:
        """Nobody waits for a permit any more. Calls that bind are let end: the next leader must find the pods bound, or not."""
        ways = tuple(self._on_their_way.values())
        for each in ways:
            if not each.attempt.is_sending:
                each.task.cancel()
        if ways:
            _, late = await asyncio.wait([each.task for each in ways], timeout=END_S)
            for task in late:
                task.cancel()
            if late:
                await asyncio.wait(late)

    async def _room_for_another(self) -> None:
        while len(self._on_their_way) >= MAX_BINDING:
            tasks = [each.task for each in self._on_their_way.values()]
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)

    async def _idle(self) -> None:
        """Wait until somebody's turn may have come."""
        due_s = self.queue.due_s()
        try:
            async with asyncio.timeout(None if due_s is None else max(due_s - self._clock(), 0.0)):
                await self._changed.wait()
        except TimeoutError:
            self.queue.flush(self._clock())

    def _next(self) -> QueuedPod | None:
        """The pod whose turn it is: as a plugin says, else as the queue does."""
        wanted = self._frameworks.shared.next_pod()
        queued = self.queue.take(wanted.uid) if wanted is not None else None
        return queued or self.queue.pop(self._clock())

    async def _cycle(self, queued: QueuedPod) -> None:
        """One cycle for a pod, until it is known whether it gets a permit to wait for. Fails never."""
        framework, shared = self._framework_of(queued.pod), self._frameworks.shared
        if framework is None or "deletionTimestamp" in queued.pod.manifest["metadata"]:
            self.pod_gone(queued.pod.uid)
            return
        shared.dequeued(queued.pod)
        try:
            pod = self._view.pod_info(queued.pod.manifest)
        except ValueError as error:
            status = new_status(Code.UNSCHEDULABLE, str(error))
            await self._failed(shared, queued.pod, CycleFailure(status, status.message, Rejection()))
            return
        attempt = Attempt(framework, shared, pod, self._rng, self._guard)
        failure = await attempt.choose(self._view, self._first)
        self._first += attempt.examined
        if failure is not None:
            await self._failed(shared, pod, failure)
            return
        reserved = asyncio.get_running_loop().create_future()
        task = asyncio.create_task(self._bind(attempt, reserved), name=f"binding of pod {pod.name}")
        self._on_their_way[pod.uid] = _OnItsWay(attempt, task)
        task.add_done_callback(partial(self._arrived, pod.uid))
        await asyncio.wait([task, reserved], return_when=asyncio.FIRST_COMPLETED)

    def _arrived(self, uid: str, task: "asyncio.Task[None]") -> None:
        if self._on_their_way[uid].task is task:  # else the pod is on its way again
            del self._on_their_way[uid]

    async def _bind(self, attempt: Attempt, reserved: "asyncio.Future[None]") -> None:
        """All that follows the choice of a node. `reserved` is set when the next cycle may begin."""
        shared, pod = attempt.shared, attempt.pod
        try:
            async with attempt.binding(_Assumptions(self._view, shared)) as binding:
                failure = await attempt.reserve(binding)
                if failure is None:
                    reserved.set_result(None)
                    failure = await attempt.bind(binding)
        except Exception as error:
            shared.log.error("a pod could not be given up", pod=pod.name, error=repr(error), exc_info=error)
            failure = CycleFailure.of(error_status(repr(error)))
        if failure is not None:
            if failure.rejection is not None:
                attempt.framework.record_rejection(attempt.context, pod, {attempt.node_name: failure.status})
            self.happened([SchedulingEvent(EventResource.POD, ActionType.DELETE, before=pod)])
            await self._failed(shared, pod, failure)
            return
        if pod.uid in self.queue:
            self._bound.add(pod.uid)
            self.queue.delete(pod.uid)
        shared.nominations.remove(pod.uid)
        self._attempts["scheduled"] += 1
        self._reporter.scheduled(pod, attempt.node_name)
        attempt.framework.end_cycle(pod)

    async def _failed(self, shared: SharedHooks, pod: PodInfo, failure: CycleFailure) -> None:
        """Handle a failure as kube-scheduler does, unless a plugin has taken that over. Whatever plugins do, the pod is not lost."""
        self._attempts["unschedulable" if failure.rejection is not None else "error"] += 1
        if failure.rejection is not None:
            shared.rejections[failure.rejection_class] += 1

        async def handle() -> None:
            self.queue.failed(pod.uid, failure.rejection, self._clock())
            self._reporter.failed(pod, failure)

        try:
            async with asyncio.timeout(FAILURE_DEADLINE_S):
                await shared.failed(pod, failure.status, handle)
        except Exception as error:
            shared.log.error("a failure was not handled", pod=pod.name, error=repr(error), exc_info=error)
        self.queue.failed(pod.uid, Rejection(), self._clock())
        if (
            pod.uid not in self.queue
        ):  # the pod has gone meanwhile, and the attempt may have noted things since
            shared.gone(pod)
        self._changed.set()

    # ------------------------------------------------------------ what the queue goes by

    def _framework_of(self, pod: PodInfo) -> SchedulingFramework | None:
        return self._frameworks.by_name.get(pod.manifest["spec"].get("schedulerName", ""))

    def _less(self, first: QueuedPod, second: QueuedPod) -> bool:
        framework = next(iter(self._frameworks.by_name.values()), None)
        return by_priority(first, second) if framework is None else framework.queue_sort_less(first, second)

    def _gate(self, pod: PodInfo) -> Status | None:
        framework = self._framework_of(pod)
        for plugin in framework.pre_enqueue_plugins() if framework is not None else ():
            try:
                status = plugin.pre_enqueue(pod)
                is_open = is_success(status)
            except Exception as error:
                self._frameworks.shared.log.error(
                    "a pre-enqueue plugin failed", pod=pod.name, error=repr(error), exc_info=error
                )
                status, is_open = error_status(repr(error)), False
            if status is not None and not is_open:
                return status.by(plugin.name())
        return None

    def _events_of(self, pod: PodInfo) -> RegisteredEvents:
        framework = self._framework_of(pod)
        return framework.events if framework is not None else {}

    # ------------------------------------------------------------ figures

    def families(self) -> tuple[AnyFamily, ...]:
        counts = self.queue.counts()
        pods = tuple(((pool.value,), float(counts[pool])) for pool in QueuePool)
        faults = (
            (("hint",), float(self.queue.hint_faults_total)),
            (("less",), float(self.queue.order_faults_total)),
        )
        attempts = tuple(((each,), float(count)) for each, count in sorted(self._attempts.items()))
        return (
            Family(
                "gauge", "parley_scheduler_pods", "Pods without a node, by their place in the queue", ("place",), pods
            ),
            Family(
                "counter", "parley_scheduler_attempts", "Attempts to give a pod a node that have ended", ("result",), attempts
            ),
            Family(
                "counter",
                "parley_scheduler_refused_pods",
                "Pods that the queue has not taken, because it was full, each time they were seen",
                (),
                (((), float(self.queue.refused_total)),),
            ),
            Family(
                "counter", "parley_scheduler_queue_plugin_faults", "Answers of plugins to the queue that were of no use", ("call",), faults
            ),
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class _Assumptions:
    """Who must know which pods are on their way to a node."""

    view: PlacingPort
    shared: SharedHooks

    def assume_pod(self, pod: PodInfo, node_name: str) -> None:
        self.view.assume_pod(pod, node_name)

    def forget_pod(self, pod: PodInfo, node_name: str) -> None:
        self.shared.forget_pod(pod, node_name)


@dataclass(frozen=True, slots=True)
class _Adapter:
    """The scheduler as plugins may ask it: its cache, and its queue."""

    scheduler: PodScheduler

    def get_cache(self) -> SchedulerCache:
        return self

    def get_scheduling_queue(self) -> SchedulingQueue:
        return self

    def is_assumed_pod(self, uid: str) -> bool:
        return self.scheduler.on_its_way(uid) is not None

    def activate(self, pods: Sequence[PodInfo]) -> None:
        self.scheduler.activate([pod.uid for pod in pods])

    def move_all(self, event: SchedulingEvent) -> None:
        self.scheduler.happened([event])
