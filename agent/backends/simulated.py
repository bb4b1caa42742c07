"""Simulated VMs: the reference model of a back end. Each is a small file, so that VMs and targets outlive the agent.

A resize sets the target at once and the size a moment later (`delay_s`); sizes change only here. Commands are fenced by
a generation in the file: `fence` raises it, and a command of an older one is refused. Every write is a rename, and
between reading a file and renaming nothing is awaited, so one daemon per state directory (the node lock) is enough.
"""

import json
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from agent.backends.change_log import ChangeLog
from agent.core.model import Observation, Vm
from agent.core.ports import BackendError, Capabilities, Fencing
from protocol.values import Resources


@dataclass(frozen=True, slots=True)
class _File:
    """What a VM's file holds. `ready_at_s` (monotonic clock) is when the size becomes the target."""

    generation: int
    size_cpu: int
    size_memory: int
    target_cpu: int
    target_memory: int
    ready_at_s: float

    @property
    def size(self) -> Resources:
        return Resources(self.size_cpu, self.size_memory)

    @property
    def target(self) -> Resources:
        return Resources(self.target_cpu, self.target_memory)


def _file(generation: int, size: Resources, target: Resources, ready_at_s: float) -> _File:
    return _File(
        generation, size.vcpu_milli, size.memory_bytes, target.vcpu_milli, target.memory_bytes, ready_at_s
    )


class SimulatedBackend:
    """The `VmBackend` port over files in `directory`."""

    def __init__(self, directory: Path, log: ChangeLog, delay_s: float = 0.2) -> None:
        self._directory = directory / "vms"
        self._log = log
        self._delay_s = delay_s
        self._directory.mkdir(parents=True, exist_ok=True)

    @property
    def capabilities(self) -> Capabilities:
        """Commands take effect at once or never."""
        return Capabilities(command_deadline_s=0.0)

    def create(self, vm: Vm, size: Resources) -> None:
        """Make the VM with `size` unless it exists already."""
        if not self._path(vm).exists():
            self._log.size(vm.name, size)
            self._write(vm, _file(0, size, size, 0.0))
            return
        # It outlived an earlier agent: say again what it has, for a log that began since.
        known = self._settle(vm)
        self._log.target(vm.name, known.target)
        self._log.size(vm.name, known.size)

    async def fence(self, vm: Vm) -> Fencing:
        """Raise the generation: commands of earlier ones are refused from now on."""
        known = self._settle(vm)
        self._write(vm, _file(known.generation + 1, known.size, known.target, known.ready_at_s))
        return Fencing(known.generation + 1)

    async def observe(self, vm: Vm) -> Observation:
        """The VM's size and target."""
        begun_s = time.monotonic()
        known = self._settle(vm)
        return Observation(known.size, known.target, begun_s)

    async def resize(self, vm: Vm, target: Resources, fencing: Fencing) -> None:
        """Set the target; the size follows."""
        known = self._settle(vm)
        if known.generation != fencing.generation:
            raise BackendError(f"generation {fencing.generation} was fenced off by {known.generation}")
        if not target.is_positive():
            raise BackendError(f"a VM cannot have {target}")
        if known.target == target:
            return
        # In the log a raise comes before the fact and a lowering after it.
        if target.exceeds(known.target):
            self._log.target(vm.name, known.target.max(target))
        self._write(vm, _file(known.generation, known.size, target, time.monotonic() + self._delay_s))
        if known.target.exceeds(target):
            self._log.target(vm.name, target)

    def _settle(self, vm: Vm) -> _File:
        """The VM as it is by now: a target whose moment has come is the size."""
        path = self._path(vm)
        try:
            known = _File(**json.loads(path.read_bytes()))
        except OSError as error:
            raise BackendError(f"{path} cannot be read: {error.strerror}") from None
        except (ValueError, TypeError):
            raise BackendError(
                f"{path} is no file of a simulated VM; remove it to make the VM anew"
            ) from None
        if known.size == known.target or time.monotonic() < known.ready_at_s:
            return known
        if known.target.exceeds(known.size):
            self._log.size(vm.name, known.size.max(known.target))
        settled = _file(known.generation, known.target, known.target, 0.0)
        self._write(vm, settled)
        if known.size.exceeds(known.target):
            self._log.size(vm.name, settled.size)
        return settled

    def _write(self, vm: Vm, content: _File) -> None:
        path = self._path(vm)
        new = path.with_suffix(".new")
        try:
            new.write_text(json.dumps(asdict(content)))
            new.replace(path)
        except OSError as error:
            raise BackendError(f"{path} cannot be written: {error.strerror}") from None

    def _path(self, vm: Vm) -> Path:
        return self._directory / f"{vm.pod.namespace}.{vm.pod.name}.json"
