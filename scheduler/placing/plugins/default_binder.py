"""`DefaultBinder`: binds a pod to the node that was chosen, over the port `Binder`."""

from hosting.kubernetes import names
from scheduler.placing.core.objects import PodInfo
from scheduler.placing.core.plugin import CycleContext
from scheduler.placing.core.status import Code, Status, error_status, new_status
from scheduler.placing.plugins.base import ShippedPlugin
from scheduler.placing.plugins.notes import MAY_BE_BOUND, RESERVATION_USED, find


class DefaultBinder(ShippedPlugin):
    """The plugin. Point: bind."""

    async def bind(self, context: CycleContext, pod: PodInfo, node_name: str) -> Status | None:
        """Bind the pod; Skip where nothing binds here. A pod that uses a reservation is told its UID by an annotation.

        The answer may be lost, or this call be cancelled. Then `MAY_BE_BOUND` is noted, and what is kept for the pod stays.
        """
        binder = self._handle.binder
        if binder is None:
            return new_status(Code.SKIP)
        reservation = find(context, RESERVATION_USED)
        annotations = {names.RESERVATION: reservation} if reservation is not None else {}
        context.write(MAY_BE_BOUND, True)
        failure = await binder.bind(pod.pod, pod.uid, node_name, annotations)
        if failure is None:
            context.delete(MAY_BE_BOUND)
            return None
        if failure.may_be_bound:
            text = (
                f"it is not known yet whether pod {pod.name} was bound to node {node_name}: {failure.message}"
            )
            return error_status(text)
        context.delete(MAY_BE_BOUND)
        return error_status(f"pod {pod.name} was not bound to node {node_name}: {failure.message}")
