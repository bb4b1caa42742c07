"""The pods that wait for their permit, by UID, with one timer for each plugin that made a pod wait.

What is decided is in `scheduler.placing.core.waiting`. Sources: seed 001, `WaitingPod`; reference/kubernetes.md 1.6.
"""

import asyncio
from collections.abc import Callable, Mapping

from scheduler.placing.core.handle import WaitingPod
from scheduler.placing.core.objects import PodInfo
from scheduler.placing.core.waiting import PermitWait, Settled, WaitPhase, begin_wait


class WaitingEntry:
    """A pod in the map of waiting pods; the `WaitingPod` of the plugins.

    Its timers run from the beginning, also while nobody waits. They are stopped with the wait's end.
    """

    def __init__(self, pod: PodInfo, waits_s: Mapping[str, float]) -> None:
        self._pod = pod
        self._wait = begin_wait(waits_s)
        self._over = asyncio.Event()
        loop = asyncio.get_running_loop()
        self._timers = {
            plugin: loop.call_later(wait_s, self._time_over, plugin)
            for plugin, wait_s in self._wait.pending.items()
        }

    def get_pod(self) -> PodInfo:
        return self._pod

    def pending_plugins(self) -> tuple[str, ...]:
        """The plugins that have not allowed the pod, sorted; also after a rejection or a time-out."""
        return tuple(sorted(self._wait.pending))

    def allow(self, plugin: str | None = None) -> bool:
        """`plugin`, or with None every plugin, allows the pod. Whether that changed anything."""
        return self._become(self._wait.allow(plugin))

    def reject(self, message: str, plugin: str = "") -> bool:
        return self._become(self._wait.reject(message, plugin))

    async def outcome(self) -> Settled:
        """Wait until the wait is settled, which the earliest time-out does at the latest, and return how it was.

        Raises `RuntimeError` where the pod is discarded meanwhile.
        """
        await self._over.wait()
        if self._wait.outcome is None:
            raise RuntimeError("the pod was discarded while a run waited for its permit")
        return self._wait.outcome

    def collected(self) -> None:
        """The run that waits has the outcome."""
        self._become(self._wait.collect())

    def cancel(self) -> None:
        """Nobody will ask for the outcome: stop the timers; later signals change nothing."""
        self._become(self._wait.cancel())

    def _time_over(self, plugin: str) -> None:
        self._become(self._wait.time_over(plugin))

    def _become(self, after: PermitWait) -> bool:
        """Take over what was decided. Stops the timers of plugins that do not count any more. Whether anything changed."""
        if after is self._wait:
            return False
        self._wait = after
        is_over = after.phase is not WaitPhase.WAITING
        for plugin in self._timers.keys() - (set() if is_over else after.pending.keys()):
            self._timers.pop(plugin).cancel()
        if is_over:
            self._over.set()
        return True


class WaitingPods:
    """All pods that wait for their permit, by UID. Needs a running event loop.

    Where a pod comes under the UID of one that waits, the later one is found from then on. Each of them still ends by itself.
    """

    def __init__(self) -> None:
        self._entries: dict[str, WaitingEntry] = {}

    def add(self, pod: PodInfo, waits_s: Mapping[str, float]) -> WaitingEntry:
        """`pod` waits from now on, for each of these plugins at most so many seconds, and never more than 15 minutes.

        The caller then calls `wait` once, or `discard` where no run will wait. Raises `ValueError` without a plugin.
        """
        entry = self._entries[pod.uid] = WaitingEntry(pod, waits_s)
        return entry

    def get(self, uid: str) -> WaitingEntry | None:
        """The pod of that UID, where it waits: from `add` until `wait` returns."""
        return self._entries.get(uid)

    def iterate(self, callback: Callable[[WaitingPod], object]) -> None:
        """Call `callback` for every pod that waits now. What `callback` adds or settles does not disturb that."""
        for entry in tuple(self._entries.values()):
            callback(entry)

    async def wait(self, entry: WaitingEntry) -> Settled:
        """Wait until the pod's wait is settled, and say how. Afterwards it waits no longer, also where this is cancelled."""
        try:
            settled = await entry.outcome()
            entry.collected()
            return settled
        finally:
            self.discard(entry)

    def discard(self, entry: WaitingEntry) -> None:
        """The pod waits no longer. A later pod under its UID stays."""
        entry.cancel()
        if self._entries.get(entry.get_pod().uid) is entry:
            del self._entries[entry.get_pod().uid]
