"""`PrioritySort` and `SchedulingGates`: in which order pods get their turn, and which do not yet. Names as in kube-scheduler."""

from collections.abc import Sequence

from scheduler.placing.core.objects import PodInfo, QueuedPod
from scheduler.placing.core.status import Code, Status, new_status
from scheduler.placing.core.values import (
    ActionType,
    EventResource,
    EventWithHint,
    QueueingHint,
    SchedulingEvent,
)
from scheduler.placing.plugins.base import ShippedPlugin
from scheduler.placing.plugins.node_selectors import spec_of


class PrioritySort(ShippedPlugin):
    """The higher priority first, then who has waited longer. Point: queueSort."""

    def less(self, first: QueuedPod, second: QueuedPod) -> bool:
        """Whether `first` goes before `second`."""
        return (-first.pod.priority, first.since_s) < (-second.pod.priority, second.since_s)


class SchedulingGates(ShippedPlugin):
    """A pod waits while it has scheduling gates. Point: preEnqueue."""

    def events_to_register(self) -> Sequence[EventWithHint]:
        return (EventWithHint(EventResource.POD, ActionType.UPDATE, _is_open),)

    def pre_enqueue(self, pod: PodInfo) -> Status | None:
        """Names the gates that are left."""
        gates = [str(each.get("name")) for each in spec_of(pod.manifest).get("schedulingGates") or ()]
        if not gates:
            return None
        return new_status(
            Code.UNSCHEDULABLE_AND_UNRESOLVABLE, f"waiting for scheduling gates: {', '.join(gates)}"
        )


def _is_open(pod: PodInfo, event: SchedulingEvent) -> QueueingHint:
    after = event.after
    if isinstance(after, PodInfo) and (
        after.uid != pod.uid or spec_of(after.manifest).get("schedulingGates")
    ):
        return QueueingHint.SKIP
    return QueueingHint.QUEUE
