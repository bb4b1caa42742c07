"""NeonVM: the target of a VM is `use` in the spec of its VirtualMachine object, the size is in the object's status.

Each command is one JSON patch that tests its premises: the pod that the VM is in, the target that was seen, and the
mark of the life that commands. The mark is an annotation, the life's generation and a number that each command raises. So a
fence, which writes the next generation, makes void all commands of an earlier life; and a command whose outcome is not
known is made void by the next look, which raises the number first, however late the API server takes the command.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

from agent.backends.change_log import LoggedSizes
from agent.backends.mark import Mark
from agent.core.model import Vm
from agent.core.ports import (
    BackendError,
    Capabilities,
    Fencing,
    ResizeRefusedError,
    check_moment,
    other_target,
)
from hosting.kubernetes import objects
from hosting.kubernetes.api import CALL_DEADLINE_S, KubernetesApi, KubernetesError, RefusedError
from hosting.kubernetes.names import FENCE
from hosting.kubernetes.resources import JSON_PATCH, VIRTUAL_MACHINES, Manifest
from hosting.kubernetes.virtual_machines import UnreadableVmError, VirtualMachine, as_cpus
from protocol.values import Observation, Resources

ATTEMPTS: Final = 5
"""How often a mark is written anew if somebody else has changed the object meanwhile."""
LASTING: Final = frozenset({400, 403, 422})
"""The statuses with which the API server, its policies and NeonVM's webhook refuse a write for ever."""
MIGRATING: Final = frozenset({"PreMigrating", "Migrating"})
_MARK_PATH: Final = f"/metadata/annotations/{FENCE.replace('/', '~1')}"


@dataclass(eq=False, slots=True)
class NeonVmBackend:
    """The `VmBackend` port over VirtualMachine objects."""

    api: KubernetesApi
    sizes: LoggedSizes
    clock: Callable[[], float] = time.monotonic
    unix_clock: Callable[[], float] = time.time
    _unresolved: dict[str, Mark] = field(default_factory=dict, init=False)
    """VMs with a command whose outcome is not known, and the mark that the command rests on."""

    @property
    def capabilities(self) -> Capabilities:
        """A command may be accepted after its sender has died, until its own deadline."""
        return Capabilities(command_deadline_s=CALL_DEADLINE_S)

    async def fence(self, vm: Vm) -> Fencing:
        for _ in range(ATTEMPTS):
            manifest, _ = await self._read(vm)
            mark = Mark.after(Mark.of(manifest), self.unix_clock())
            marked = await self._write_mark(vm, manifest, mark)
            if marked is not None:
                self._resolved(vm)
                self._seen(vm, marked)
                return Fencing(mark.generation)
        raise BackendError("the VirtualMachine changes too often to be fenced")

    async def observe(self, vm: Vm) -> Observation:
        """Read the object, after all commands that are still on their way were made void."""
        begun_s, number = self.clock(), self.sizes.begin()
        manifest, machine = await self._read(vm)
        rests_on = self._unresolved.get(vm.name)
        if rests_on is not None:
            begun_s = self.clock()
            manifest, machine = await self._make_void(vm, manifest, rests_on)
            number = self.sizes.begin()
        if machine.size is None:
            raise BackendError(f"the VM has no size yet, it is {machine.phase or 'not started'}")
        self.sizes.seen(vm.name, machine.size, machine.target, number)
        return Observation(machine.size, machine.target, begun_s)

    async def resize(
        self, vm: Vm, target: Resources, fencing: Fencing, *, seen: Resources, not_after_s: float
    ) -> None:
        """Write the target, if the object still is as it was seen."""
        manifest, machine = await self._read(vm)
        mark = Mark.owned(manifest, fencing)
        _check(machine, target)
        if machine.target == target:
            return
        if machine.target != seen:
            raise other_target(machine.target, seen)
        check_moment(self.clock(), not_after_s)
        is_alone = self._unresolved.get(vm.name) != mark
        self._unresolved[vm.name] = mark
        self.sizes.commanding(vm.name, target)
        try:
            written = await self.api.patch(
                VIRTUAL_MACHINES,
                machine.namespace,
                machine.name,
                _command(manifest, machine, target, mark),
                content_type=JSON_PATCH,
                query=_server_deadline(),
            )
        except RefusedError as error:
            if error.status < 500 and is_alone:
                self._resolved(vm)
            raise await self._explained(vm, mark, machine, target, error) from None
        except KubernetesError as error:
            raise BackendError(str(error)) from None
        self._resolved(vm)
        self._seen(vm, written)

    # ------------------------------------------------------------ calls

    async def _read(self, vm: Vm) -> tuple[Manifest, VirtualMachine]:
        try:
            manifest = await self.api.get(VIRTUAL_MACHINES, vm.pod.namespace, vm.virtual_machine)
        except KubernetesError as error:
            raise BackendError(str(error)) from None
        return manifest, _machine(vm, manifest)

    async def _write_mark(self, vm: Vm, manifest: Manifest, mark: Mark) -> Manifest | None:
        """The object with the mark; None if it has changed since it was read."""
        try:
            return await self.api.patch(
                VIRTUAL_MACHINES,
                vm.pod.namespace,
                vm.virtual_machine,
                mark.patch(objects.version(manifest)),
                query=_server_deadline(),
            )
        except RefusedError as error:
            if error.is_conflict:
                return None
            raise BackendError(str(error)) from None
        except KubernetesError as error:
            raise BackendError(str(error)) from None

    async def _make_void(self, vm: Vm, manifest: Manifest, rests_on: Mark) -> tuple[Manifest, VirtualMachine]:
        """The VM when no command of this process is on its way any more: accepted or void, and the look is later."""
        for _ in range(ATTEMPTS):
            if Mark.of(manifest) != rests_on:
                break  # the command was accepted, or a fence has come: either way it cannot be accepted again
            marked = await self._write_mark(vm, manifest, rests_on.next())
            if marked is not None:
                manifest = marked
                break
            manifest, _ = await self._read(vm)
        else:
            raise BackendError("the VirtualMachine changes too often to be looked at")
        if self._unresolved.get(vm.name) == rests_on:
            self._resolved(vm)
        return manifest, _machine(vm, manifest)

    async def _explained(
        self, vm: Vm, mark: Mark, before: VirtualMachine, target: Resources, error: RefusedError
    ) -> BackendError:
        """Why a command was refused that rested on `mark` and `before`: the API server names no test that failed."""
        try:
            manifest, machine = await self._read(vm)
            found = Mark.owned(manifest, Fencing(mark.generation))
        except BackendError as other:
            return other
        if machine.target not in (before.target, target):
            return other_target(machine.target, before.target)
        stands = (found, machine.uid, machine.target) == (mark, before.uid, before.target)
        if stands and error.status in LASTING:
            return ResizeRefusedError(f"the API server refuses the target: {error.message or error}")
        return BackendError(str(error))

    def _resolved(self, vm: Vm) -> None:
        self._unresolved.pop(vm.name, None)
        self.sizes.settled(vm.name)

    def _seen(self, vm: Vm, manifest: Manifest) -> None:
        """Log the sizes in the answer to a write."""
        machine = _machine(vm, manifest)
        self.sizes.seen(vm.name, machine.size or machine.target, machine.target, self.sizes.begin())


def _machine(vm: Vm, manifest: Manifest) -> VirtualMachine:
    """The VM, as long as it is in the pod that this agent scales."""
    try:
        machine = VirtualMachine.read(manifest)
    except UnreadableVmError as error:
        raise BackendError(f"the VirtualMachine cannot be read: {error}") from None
    if machine.pod_name != vm.pod.name:
        raise BackendError(
            f"the VM is in pod {machine.pod_name} by now" if machine.pod_name else "the VM is in no pod"
        )
    return machine


def _check(machine: VirtualMachine, target: Resources) -> None:
    if not target.is_positive():
        raise BackendError(f"a VM cannot have {target}")
    if target.memory_bytes % machine.slot_bytes:
        raise ResizeRefusedError(
            f"memory must be whole slots of {Resources(0, machine.slot_bytes).written()['memory']}, not {target}"
        )
    if machine.limits.clamp(target) != target:
        raise ResizeRefusedError(
            f"the target must lie within spec.guest, {machine.limits.min} to {machine.limits.max}, not {target}"
        )
    if machine.phase in MIGRATING:
        raise BackendError("the VM is being migrated, and is not resized until it has arrived")


def _command(manifest: Manifest, machine: VirtualMachine, target: Resources, mark: Mark) -> list[Any]:
    """The JSON patch: everything that the command rests on, as it is written there, and the new target."""
    guest = manifest["spec"]["guest"]
    return [
        {"op": "test", "path": "/metadata/uid", "value": machine.uid},
        {"op": "test", "path": "/status/podName", "value": machine.pod_name},
        {"op": "test", "path": _MARK_PATH, "value": str(mark)},
        {"op": "test", "path": "/spec/guest/cpus/use", "value": guest["cpus"]["use"]},
        {"op": "test", "path": "/spec/guest/memorySlots/use", "value": guest["memorySlots"]["use"]},
        {"op": "replace", "path": _MARK_PATH, "value": str(mark.next())},
        {"op": "replace", "path": "/spec/guest/cpus/use", "value": as_cpus(target.vcpu_milli)},
        {
            "op": "replace",
            "path": "/spec/guest/memorySlots/use",
            "value": target.memory_bytes // machine.slot_bytes,
        },
    ]


def _server_deadline() -> dict[str, str]:
    """The API server gives a write up when we do."""
    return {"timeout": f"{CALL_DEADLINE_S:g}s"}
