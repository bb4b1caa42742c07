"""Binding pods for kube-scheduler: a node is judged once more on live state, and then the pod is bound as in any cycle.

A bind is a task of its own, which goes on when kube-scheduler hangs up. Its room is kept in the ledger until the cluster shows the pod
on its node. It is given back when the bind fails; and, where nobody knows whether the API server bound the pod, when a read of the
cluster that begins after the room's time shows that it did not.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Final, Protocol, TypeVar

from hosting.kubernetes import objects, pods
from hosting.kubernetes.resources import Manifest
from hosting.logs import Logger
from protocol.texts import clean
from protocol.wire import PodName
from scheduler.placing.core.objects import NodeSnapshot, PodInfo
from scheduler.placing.core.values import Status, is_success, message_of
from scheduler.placing.cycle.binding import Assumptions, Binding
from scheduler.placing.cycle.calls import fault_text
from scheduler.placing.cycle.context import CycleState
from scheduler.placing.cycle.framework import SchedulingFramework
from scheduler.placing.cycle.passes import find_nodes
from scheduler.placing.kube_extender.messages import ExtenderBindingArgs
from scheduler.ports import BINDING_SETTLES_S, ClusterUnreachableError, LeadershipGuard, NotLeadingError


class Scheduling(Assumptions, Protocol):
    """The scheduler's profiles, and the cluster as it is now. Only `read_pod` and `catch_up` wait."""

    def framework_of(self, scheduler_name: str) -> SchedulingFramework:
        """The profile of that name; the extender's default profile where there is none."""

    def snapshot(self) -> NodeSnapshot:
        """All nodes that the ledger knows, as they are now."""

    def pod_info(self, manifest: Manifest) -> PodInfo:
        """A pod as plugins see it. Raises `ValueError` for one that cannot be read."""

    async def read_pod(self, pod: PodName) -> Manifest | None:
        """The pod as the API server has it now. Raises `ClusterUnreachableError`."""

    async def catch_up(self) -> None:
        """Bring the ledger up to date with what the cluster has accepted by now; as it is, where that takes too long."""


T = TypeVar("T")
MAX_BINDS: Final = 256
"""Binds under way at once."""
BINDER_S: Final = 4.0
"""A call that binds has ended by then, answered or not."""
ENDING: Final = "this scheduler is ending"
MAX_REMEMBERED: Final = 1024
"""Pods that are remembered for each of the reasons to."""
MAX_SAID: Final = 1024
"""Characters of why a pod is not bound: kube-scheduler makes an Event of it."""


class NotBoundError(Exception):
    """The pod is not bound by this call; the text says why, for an Event of the pod."""


@dataclass(frozen=True, slots=True)
class Bind:
    """A bind under way."""

    node: str
    task: "asyncio.Task[str]"


@dataclass(frozen=True, slots=True)
class Doubt:
    """A pod that may be bound to `node`, for all that is known; from `settled_s` (monotonic) on a read decides."""

    node: str
    settled_s: float

    def __str__(self) -> str:
        return f"it is not known yet whether the pod was bound to node {self.node}"


class Binds:
    """The binds under way, by UID of the pod. `clock` is monotonic. Plugins have `plugins_s` seconds for a pod."""

    def __init__(
        self,
        scheduling: Scheduling,
        guard: LeadershipGuard,
        clock: Callable[[], float],
        log: Logger,
        plugins_s: float,
    ) -> None:
        self._plugins_s = plugins_s
        self._scheduling = scheduling
        self._guard = guard
        self._clock = clock
        self._log = log
        self._binds: dict[str, Bind] = {}
        self._shown: dict[str, Manifest] = {}
        """The pods that kube-scheduler showed last: a bind names its pod only, and to read it would be one call more."""
        self._bound: dict[str, str] = {}
        """The nodes of the pods that were bound last: a pod never leaves its node."""
        self._doubts: dict[str, Doubt] = {}
        self._is_closed = False

    def __len__(self) -> int:
        return len(self._binds)

    @property
    def in_doubt(self) -> int:
        """For how many pods nobody knows yet whether they were bound."""
        now_s = self._clock()
        return sum(now_s < doubt.settled_s for doubt in self._doubts.values())

    def show(self, pod: Manifest) -> None:
        _remember(self._shown, objects.uid(pod), pod)

    async def bind(self, asked: ExtenderBindingArgs) -> str:
        """Bind a pod, or join the call that does: an empty text once the pod is bound to that node, else why not.

        The bind goes on where the caller is cancelled.
        """
        bind = self._binds.get(asked.uid)
        if bind is None:
            if self._is_closed:
                return ENDING
            if len(self._binds) >= MAX_BINDS:
                return f"{MAX_BINDS} pods are being bound; try again"
            bind = self._begin(asked)
        elif bind.node != asked.node:
            return f"the pod is being bound to node {bind.node}, not to {asked.node}"
        await asyncio.wait({bind.task})
        return ENDING if bind.task.cancelled() else bind.task.result()

    def _begin(self, asked: ExtenderBindingArgs) -> Bind:
        task = asyncio.create_task(self._run(asked), name=f"bind of pod {asked.uid}")
        task.add_done_callback(lambda _: self._binds.pop(asked.uid))
        bind = self._binds[asked.uid] = Bind(asked.node, task)
        return bind

    async def close(self) -> None:
        """Begin no bind any more, and let those under way end. One that takes longer than it may is cancelled."""
        self._is_closed = True
        tasks = [bind.task for bind in self._binds.values()]
        if not tasks:
            return
        _, late = await asyncio.wait(tasks, timeout=self._plugins_s + BINDER_S)
        for task in late:
            task.cancel()
        if late:
            await asyncio.wait(late)

    # ------------------------------------------------------------ one bind

    async def _run(self, asked: ExtenderBindingArgs) -> str:
        try:
            await self._bind(asked)
        except (NotBoundError, NotLeadingError) as error:
            said = str(error)
        except Exception as error:  # noqa: BLE001 - a fault of one pod's plugins must not end the daemon
            self._log.error(
                "bind failed", pod=_text(asked), node=asked.node, error=repr(error), exc_info=error
            )
            said = f"internal error: {fault_text(error)}"
            if (doubt := self._doubts.get(asked.uid)) is not None:
                said = f"{doubt}; {said}"
        else:
            self._shown.pop(asked.uid, None)
            self._doubts.pop(asked.uid, None)
            _remember(self._bound, asked.uid, asked.node)
            return ""
        said = clean(said, MAX_SAID)
        self._log.warning("bind refused", pod=_text(asked), node=asked.node, reason=said)
        return said

    async def _bind(self, asked: ExtenderBindingArgs) -> None:
        """Raises `NotBoundError`, and `NotLeadingError`."""
        until_s = asyncio.get_running_loop().time() + self._plugins_s
        async with self._in_time(until_s):
            manifest = await self._pod(asked)
            if manifest is None:
                return
            binding = await self._judged(manifest, asked.node)
        async with binding:
            async with self._in_time(until_s):
                _check(await binding.reserve())
                _check(await binding.wait())
                _check(await binding.prepare())
            self._guard.check(0)
            try:
                _check(await binding.bind())
            finally:
                if binding.is_in_doubt:
                    _remember(self._doubts, asked.uid, Doubt(asked.node, self._clock() + BINDING_SETTLES_S))
            binding.framework.end_cycle(binding.pod)

    @asynccontextmanager
    async def _in_time(self, until_s: float) -> AsyncIterator[None]:
        """Until then (s, of the loop's clock) everything before the call that binds is over. Raises `NotBoundError`."""
        try:
            async with asyncio.timeout_at(until_s):
                yield
        except TimeoutError:
            raise NotBoundError(f"the pod was not ready to be bound after {self._plugins_s:g} s") from None

    async def _judged(self, manifest: Manifest, node_name: str) -> Binding:
        """A binding to a node that passes the filters now: others may have taken its room. Raises `NotBoundError`."""
        pod = self._scheduling.pod_info(manifest)
        framework = self._scheduling.framework_of(scheduler_name(manifest))
        nodes = self._scheduling.snapshot()
        framework.set_snapshot(nodes)
        node = nodes.get(node_name)
        if node is None:
            raise NotBoundError(f"node {node_name} is not in Parley's ledger")
        context = CycleState()
        found = await find_nodes(framework, context, pod, (node,))
        _check(found.status)
        _check(found.statuses.get(node_name))
        return Binding(framework, context, pod, node_name, self._scheduling, self._log)

    # ------------------------------------------------------------ where the pod is

    async def _pod(self, asked: ExtenderBindingArgs) -> Manifest | None:
        """The pod that is to be bound; None where it is bound to the node already. Raises `NotBoundError`.

        Of a pod in doubt the API server says where it is, and not what kube-scheduler has shown before the doubt began.
        """
        if (on := self._bound.get(asked.uid)) is not None:
            _check_place(on, asked.node)
            return None
        doubt = self._doubts.get(asked.uid)
        is_elsewhere = doubt is not None and doubt.node != asked.node
        found = self._shown.get(asked.uid) if doubt is None else None
        begun_s = self._clock()
        if found is None:
            found = await self._read(asked, doubt)
        if _is_on(found, asked):
            return None
        if doubt is not None and is_elsewhere:
            if begun_s < doubt.settled_s:
                raise NotBoundError(str(doubt))
            del self._doubts[asked.uid]
        if found["metadata"].get("deletionTimestamp") or pods.is_terminal(found):
            raise NotBoundError("the pod is being deleted, or has ended")
        return found

    async def _read(self, asked: ExtenderBindingArgs, doubt: Doubt | None) -> Manifest:
        try:
            found = await self._scheduling.read_pod(PodName(asked.name, asked.namespace))
        except ClusterUnreachableError as error:
            why = f"the pod cannot be read: {error}"
            raise NotBoundError(why if doubt is None else f"{doubt}; {why}") from None
        if found is None:
            raise NotBoundError("there is no such pod")
        return found


def _is_on(found: Manifest, asked: ExtenderBindingArgs) -> bool:
    """Whether the pod is on the node; False while it is on none. Raises `NotBoundError` where it never will be."""
    if objects.uid(found) != asked.uid:
        raise NotBoundError(f"the pod is another one now, with the UID {objects.uid(found)}")
    on = str((found.get("spec") or {}).get("nodeName") or "")
    _check_place(on or asked.node, asked.node)
    return bool(on)


def _check_place(on: str, node: str) -> None:
    if on != node:
        raise NotBoundError(f"the pod is on node {on} already")


def _check(status: Status | None) -> None:
    if not is_success(status):
        by = status.plugin if status is not None else ""
        raise NotBoundError(f"{by}: {message_of(status)}" if by else message_of(status))


def scheduler_name(manifest: Manifest) -> str:
    return str((manifest.get("spec") or {}).get("schedulerName") or "")


def _text(asked: ExtenderBindingArgs) -> str:
    return f"{asked.namespace}/{asked.name}"


def _remember(kept: dict[str, T], uid: str, value: T) -> None:
    """Keep the newest `MAX_REMEMBERED`."""
    kept.pop(uid, None)
    kept[uid] = value
    if len(kept) > MAX_REMEMBERED:
        del kept[next(iter(kept))]
