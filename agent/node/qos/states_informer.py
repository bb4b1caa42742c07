"""The states informer: the daemon's loop publishes the states of the node, and strategies read it from their threads."""

import asyncio
from collections.abc import Callable, Iterable

from agent.node.qos.callbacks import StateCallbacks
from agent.node.qos.core.known_states import KnownStates
from agent.node.qos.core.states import NodeState, ObjectType, PodState, ScalingPolicyState, VmState


class States:
    """The newest states. One thread publishes, that of the daemon's loop; any thread may read. Implements `StatesInformer`.

    A reading that differs from the one before has the callbacks of its kind called. Order and repetition are no difference.
    """

    def __init__(self, callbacks: StateCallbacks) -> None:
        self.callbacks = callbacks
        self._known = KnownStates()
        self._synced = asyncio.Event()
        self.refused_total = 0
        """Readings without pods that were not believed."""

    def publish_node(self, node: NodeState) -> None:
        self._become(self._known.with_node(node), ObjectType.NODE)

    def publish_pods(self, pods: Iterable[PodState], *, is_healthy: bool) -> bool:
        """All pods of the node were read; whether the reading was believed.

        `is_healthy`: the source's last list succeeded, and its watch has been unbroken since. A reading without pods after one with
        pods is believed only then: a kubelet or API server that is coming up says the same as a node without pods.
        """
        read = tuple(pods)
        known = self._known.with_pods(read, is_healthy=is_healthy)
        self._become(known, ObjectType.ALL_PODS)
        is_believed = bool(read) or not known.pods
        self.refused_total += not is_believed
        return is_believed

    def publish_vms(self, vms: Iterable[VmState]) -> None:
        """All VMs of the agent were read."""
        self._become(self._known.with_vms(vms), ObjectType.ALL_VMS)

    def publish_policies(self, policies: Iterable[ScalingPolicyState]) -> None:
        """All scaling policies that matter to the node were read."""
        self._become(self._known.with_policies(policies), ObjectType.SCALING_POLICIES)

    async def wait_for_sync(self) -> None:
        """Wait until each kind was published at least once."""
        await self._synced.wait()

    def missing(self) -> tuple[ObjectType, ...]:
        """The kinds that were not published yet."""
        return self._known.missing

    def has_synced(self) -> bool:
        """Whether everything was read at least once."""
        return not self._known.missing

    def get_node(self) -> NodeState | None:
        """The node; None before it was read."""
        return self._known.node

    def get_all_pods(self) -> tuple[PodState, ...]:
        """All pods of the node, in the order of their UIDs."""
        return self._known.pods or ()

    def get_all_vms(self) -> tuple[VmState, ...]:
        """All VMs of the agent, in the order of their names."""
        return self._known.vms or ()

    def get_scaling_policies(self) -> tuple[ScalingPolicyState, ...]:
        """All scaling policies that matter to the node, in the order of their names."""
        return self._known.policies or ()

    def register_callbacks(
        self, object_type: ObjectType, name: str, description: str, callback: Callable[[ObjectType], None]
    ) -> None:
        """Call `callback` after objects of the type have changed, as `StateCallbacks.register` says."""
        self.callbacks.register(object_type, name, description, callback)

    def send_callback(self, object_type: ObjectType) -> None:
        """Have the callbacks of the type called, as after a change. Never blocks."""
        self.callbacks.send(object_type)

    def _become(self, known: KnownStates, changed: ObjectType) -> None:
        if known is self._known:
            return
        self._known = known
        if not known.missing:
            self._synced.set()
        self.callbacks.send(changed)


class StrategyStates:
    """The states as one strategy's thread is given them: its callbacks end with the thread. Implements `StatesInformer`."""

    def __init__(self, states: States, owner: str) -> None:
        self._states = states
        self._owner = owner
        self.has_synced = states.has_synced
        self.get_node = states.get_node
        self.get_all_pods = states.get_all_pods
        self.get_all_vms = states.get_all_vms
        self.get_scaling_policies = states.get_scaling_policies
        self.send_callback = states.send_callback

    def register_callbacks(
        self, object_type: ObjectType, name: str, description: str, callback: Callable[[ObjectType], None]
    ) -> None:
        """Call `callback` after objects of the type have changed, as `StateCallbacks.register` says, until the strategy ends."""
        self._states.callbacks.register(object_type, name, description, callback, self._owner)

    def close(self, deadline_s: float) -> None:
        """End the strategy's callbacks, and wait `deadline_s` at most for those that run."""
        self._states.callbacks.close(self._owner, deadline_s)
