"""The back end of an agent on Kubernetes: each VM is resized as what it is, a pod or a NeonVM."""

from agent.core.model import Vm, VmKind
from agent.core.ports import Capabilities, Fencing, VmBackend
from protocol.values import Observation, Resources


class KubernetesBackend:
    """The `VmBackend` port over those of pods and of NeonVMs."""

    def __init__(self, pods: VmBackend, machines: VmBackend) -> None:
        self._pods = pods
        self._machines = machines

    @property
    def capabilities(self) -> Capabilities:
        """Those that hold for both."""
        both = (self._pods.capabilities, self._machines.capabilities)
        return Capabilities(max(each.command_deadline_s for each in both))

    async def fence(self, vm: Vm) -> Fencing:
        return await self._of(vm).fence(vm)

    async def observe(self, vm: Vm) -> Observation:
        return await self._of(vm).observe(vm)

    async def resize(
        self, vm: Vm, target: Resources, fencing: Fencing, *, seen: Resources, not_after_s: float
    ) -> None:
        await self._of(vm).resize(vm, target, fencing, seen=seen, not_after_s=not_after_s)

    def _of(self, vm: Vm) -> VmBackend:
        return self._machines if vm.kind is VmKind.NEONVM else self._pods
