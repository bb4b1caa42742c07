"""The four runs of seed 001, with the codes and texts of their time. Source: reference/kubernetes.md 1.5 and 1.6.

`SchedulingFramework` has them as methods, beside the newer runs. They call plugins in the order in which they are given. What a
plugin raises goes through to the caller.
"""

from collections.abc import Sequence

from scheduler.placing.core.objects import PodInfo
from scheduler.placing.core.plugin import (
    CycleContext,
    PermitPlugin,
    Plugin,
    PreBindPlugin,
    PrebindPlugin,
    ReservePlugin,
    UnreservePlugin,
)
from scheduler.placing.core.status import (
    Code,
    Status,
    code_of,
    error_status,
    is_success,
    message_of,
    new_status,
)
from scheduler.placing.core.values import MaybeAwaited
from scheduler.placing.core.waiting import PermitAllowed, PermitRejected, PermitTimedOut, Settled, go_duration
from scheduler.placing.cycle.calls import answered
from scheduler.placing.cycle.waiting_pods import WaitingPods


async def run_reserve_plugins(
    plugins: Sequence[ReservePlugin], context: CycleContext, pod: PodInfo, node_name: str
) -> Status | None:
    """Call `reserve` of the plugins, up to the first that does not answer Success. Any other answer is an Error of the run.

    A failed run undoes nothing: that is for the caller, with `run_unreserve_plugins`.
    """
    for plugin in plugins:
        status = await answered(plugin.reserve(context, pod, node_name))
        if not is_success(status):
            return _failed(plugin, "reserve", pod, status)
    return None


async def run_unreserve_plugins(
    plugins: Sequence[UnreservePlugin], context: CycleContext, pod: PodInfo, node_name: str
) -> None:
    """Call `unreserve` of all plugins, in their order and not in reverse."""
    for plugin in plugins:
        await answered(plugin.unreserve(context, pod, node_name))


async def run_prebind_plugins(
    plugins: Sequence[PrebindPlugin | PreBindPlugin], context: CycleContext, pod: PodInfo, node_name: str
) -> Status | None:
    """Call `prebind` of the plugins, or the newer `pre_bind`, up to the first that does not answer Success.

    Unschedulable stays what it is; any other answer is an Error of the run.
    """
    for plugin in plugins:
        status = await answered(_prebind(plugin, context, pod, node_name))
        if not is_success(status):
            return _refused(plugin, "prebind", pod, status)
    return None


async def run_permit_plugins(
    plugins: Sequence[PermitPlugin],
    waiting_pods: WaitingPods,
    context: CycleContext,
    pod: PodInfo,
    node_name: str,
) -> Status | None:
    """Call `permit` of the plugins, up to the first that answers neither Success nor Wait, then wait where one said Wait.

    Unschedulable stays what it is; any other answer is an Error of the run. The pod is among `waiting_pods` while the run waits:
    for the shortest time that a plugin named, and 15 minutes at most. A cancelled run leaves no waiting pod behind.
    """
    waits_s: dict[str, float] = {}
    for plugin in plugins:
        status, wait_s = await answered(plugin.permit(context, pod, node_name))
        if code_of(status) == Code.WAIT:
            waits_s[plugin.name()] = min(wait_s, waits_s.get(plugin.name(), wait_s))
        elif not is_success(status):
            return _refused(plugin, "permit", pod, status)
    if not waits_s:
        return None
    return _permit_status(await waiting_pods.wait(waiting_pods.add(pod, waits_s)), pod)


def _prebind(
    plugin: PrebindPlugin | PreBindPlugin, context: CycleContext, pod: PodInfo, node_name: str
) -> MaybeAwaited[Status | None]:
    if isinstance(plugin, PrebindPlugin):
        return plugin.prebind(context, pod, node_name)
    return plugin.pre_bind(context, pod, node_name)


def _refused(plugin: Plugin, point: str, pod: PodInfo, status: Status | None) -> Status:
    """How a run ends at which a plugin may say Unschedulable."""
    if code_of(status) != Code.UNSCHEDULABLE:
        return _failed(plugin, point, pod, status)
    name = plugin.name()
    return new_status(Code.UNSCHEDULABLE, f"rejected by {name} at {point}: {message_of(status)}").by(name)


def _failed(plugin: Plugin, point: str, pod: PodInfo, status: Status | None) -> Status:
    name = plugin.name()
    text = f"error while running {name} {point} plugin for pod {pod.pod.name}: {message_of(status)}"
    return error_status(text).by(name)


def _permit_status(settled: Settled, pod: PodInfo) -> Status | None:
    """How the wait for the permit ended, in the seed's words."""
    match settled:
        case PermitAllowed():
            return None
        case PermitRejected(message, plugin):
            return new_status(Code.UNSCHEDULABLE, f"rejected while waiting at permit: {message}").by(plugin)
        case PermitTimedOut(plugin, wait_s):
            waited = go_duration(wait_s)
            text = f"pod {pod.pod.name} rejected due to timeout after waiting {waited} at permit"
            return new_status(Code.UNSCHEDULABLE, text).by(plugin)
