"""The four runs of seed 001, with the codes and texts of their time, over the plugins of a framework of today.

Source: reference/kubernetes.md 1.5 and 1.6. Errors of plugins go through to the caller.
"""

from dataclasses import dataclass
from functools import partial

from protocol.durations import go_duration
from scheduler.placing.core.objects import PodInfo
from scheduler.placing.core.plugin import CycleContext
from scheduler.placing.core.runs import NoAnswers, PermitAnswers, PointRun, StatusAnswers
from scheduler.placing.core.values import Code, ExtensionPoint, Status, error_status, new_status
from scheduler.placing.core.waiting import PermitRejected, PermitTimedOut
from scheduler.placing.cycle.framework import SchedulingFramework


@dataclass(frozen=True, slots=True)
class EarlyRuns:
    """The runs. None of them undoes anything: that is for the caller, with `run_unreserve_plugins`."""

    framework: SchedulingFramework

    async def run_reserve_plugins(self, context: CycleContext, pod: PodInfo, node_name: str) -> Status | None:
        """`reserve` of each, up to the first that does not answer Success. Any other answer is an Error of the run."""
        failing = partial(_failed, "reserve", pod)
        row = PointRun(ExtensionPoint.RESERVE, ("reserve",), lambda _: StatusAnswers(failing))
        return await self.framework.run(row, context, pod, node_name)

    async def run_unreserve_plugins(self, context: CycleContext, pod: PodInfo, node_name: str) -> None:
        """`unreserve` of each, in their order and not in reverse."""
        row = PointRun(ExtensionPoint.RESERVE, ("unreserve",), lambda _: NoAnswers())
        await self.framework.run(row, context, pod, node_name)

    async def run_prebind_plugins(self, context: CycleContext, pod: PodInfo, node_name: str) -> Status | None:
        """`prebind` of each, or the newer `pre_bind`, up to the first that does not answer Success."""
        failing = partial(_refused, "prebind", pod)
        row = PointRun(ExtensionPoint.PRE_BIND, ("prebind", "pre_bind"), lambda _: StatusAnswers(failing))
        return await self.framework.run(row, context, pod, node_name)

    async def run_permit_plugins(self, context: CycleContext, pod: PodInfo, node_name: str) -> Status | None:
        """`permit` of each, up to the first that answers neither Success nor Wait, then wait where one said Wait.

        The pod waits for the shortest time that a plugin named, and 15 minutes at most. A cancelled run leaves no waiting pod behind.
        """
        failing = partial(_refused, "permit", pod)
        row = PointRun(ExtensionPoint.PERMIT, ("permit",), lambda _: PermitAnswers(pod, failing))
        waits_s, status = await self.framework.run(row, context, pod, node_name)
        if not waits_s:
            return status
        waiting = self.framework.shared.waiting_pods
        match await waiting.wait(waiting.add(pod, waits_s)):
            case PermitRejected(message, plugin):
                text = f"rejected while waiting at permit: {message}"
            case PermitTimedOut(plugin, wait_s):
                waited = go_duration(wait_s)
                text = f"pod {pod.pod.name} rejected due to timeout after waiting {waited} at permit"
            case _:
                return None
        return new_status(Code.UNSCHEDULABLE, text).by(plugin)


def _refused(point: str, pod: PodInfo, plugin: str, status: Status) -> Status:
    """How a run ends at which a plugin may say Unschedulable, which stays what it is; any other answer is an Error of the run."""
    if status.code != Code.UNSCHEDULABLE:
        return _failed(point, pod, plugin, status)
    return new_status(Code.UNSCHEDULABLE, f"rejected by {plugin} at {point}: {status.message}").by(plugin)


def _failed(point: str, pod: PodInfo, plugin: str, status: Status) -> Status:
    text = f"error while running {plugin} {point} plugin for pod {pod.pod.name}: {status.message}"
    return error_status(text).by(plugin)
