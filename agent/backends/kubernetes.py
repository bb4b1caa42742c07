"""The VMs of a node of Kubernetes: each is resized by the back end of its kind."""

from collections.abc import Mapping
from dataclasses import dataclass

from agent.core.model import Vm, VmKind
from agent.core.ports import BackendError, Capabilities, Fencing, VmBackend
from protocol.values import Observation, Resources


@dataclass(frozen=True, slots=True)
class KubernetesBackend:
    """The `VmBackend` port over the back ends `by_kind`."""

    by_kind: Mapping[VmKind, VmBackend]

    @property
    def capabilities(self) -> Capabilities:
        """The longest of all deadlines, and of all waits between looks."""
        able = [each.capabilities for each in self.by_kind.values()]
        return Capabilities(
            max(each.command_deadline_s for each in able),
            max(each.look_every_s for each in able),
            max(each.look_at_rest_every_s for each in able),
        )

    async def fence(self, vm: Vm) -> Fencing:
        return await self._of(vm).fence(vm)

    async def observe(self, vm: Vm) -> Observation:
        return await self._of(vm).observe(vm)

    async def resize(
        self, vm: Vm, target: Resources, fencing: Fencing, *, seen: Resources, not_after_s: float
    ) -> None:
        await self._of(vm).resize(vm, target, fencing, seen=seen, not_after_s=not_after_s)

    def _of(self, vm: Vm) -> VmBackend:
        found = self.by_kind.get(vm.kind)
        if found is None:
            raise BackendError(f"nothing here resizes a VM of kind {vm.kind.value}")
        return found
