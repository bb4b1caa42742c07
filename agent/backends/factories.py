"""Back ends by the names that settings use (`backend`)."""

import random
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol

from agent.backends.change_log import ChangeLog, LoggedSizes
from agent.backends.faults import NONE, Faults
from agent.backends.pod.backend import PodBackend, nothing_known
from agent.backends.pod.containers import DivisionRules
from agent.backends.qemu.core.state import GuestRules
from agent.backends.simulated import SimulatedBackend
from agent.core.model import Vm, VmKind
from agent.core.ports import BackendError, VmBackend, VmDescription
from hosting.client import HttpClient
from hosting.kubernetes.scaling import Scaling
from hosting.logs import Logger
from hosting.metrics import Family
from hosting.signed_link import OF_AGENT, SignedLink
from protocol.agent_pages import MachineShown
from protocol.informant_pages import PodCgroups

if TYPE_CHECKING:  # the client library is an extra
    from hosting.kubernetes.api import KubernetesApi
from agent.core.ports import Capabilities, Fencing
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


NO_QEMU_EXTRA: Final = "backend: qemu needs the extra `vm`: .venv/bin/pip install '.[vm]'"


@dataclass(frozen=True, slots=True)
class OnKubernetes:
    """The tools of the back end of a pod or a NeonVM.

    `scaling` says how the pod `namespace/name` is scaled (shares, restarts), None for pods that are not scaled and for NeonVMs.
    `informant` is the URL of the node informant for the pod, None if the pod has one of its own.
    """

    api: "KubernetesApi"
    scaling: Callable[[str], Scaling | None]
    informant: Callable[[str], str | None]


@dataclass(frozen=True, slots=True)
class OnQemu:
    """The tools of the back end of QEMU guests. `to_informants` is open while the back end works; `moved` is told the name of a VM that
    has moved, or is out of reach."""

    rules: GuestRules
    to_informants: HttpClient
    moved: Callable[[str], None]
    log: Logger


@dataclass(frozen=True, slots=True)
class BackendOptions:
    """The tools of any back end. `resize_delay_s` and `faults` are for simulated VMs, `kubernetes` is for those of a cluster, `qemu` for
    QEMU guests."""

    state_directory: Path
    change_log: ChangeLog
    rng: random.Random
    resize_delay_s: float = 0.0
    faults: Faults = NONE
    kubernetes: OnKubernetes | None = None
    qemu: OnQemu | None = None
    cgroups: Callable[[Vm], Awaitable[PodCgroups | None]] = nothing_known
    """Reads the control groups of a pod."""
    sizes: LoggedSizes | None = None
    """The log of sizes, if other parts of the agent log there as well."""


class Machines(Protocol):
    """A back end that holds a connection to each of its VMs."""

    async def forget(self, name: str) -> None:
        """The VM `namespace/name` is not ours any more."""

    async def close(self) -> None:
        """End everything."""

    def machine(self, name: str) -> MachineShown | None:
        """The machine as the VM's page shows it; None while the machine is out of reach."""

    def families(self) -> Iterator[Family]:
        """The machines' metrics."""


@dataclass(frozen=True, slots=True)
class InstalledBackend:
    """A back end, and its work before the runner of a VM starts.

    `prepare` makes the VM if the back end makes VMs. It raises `BackendError`.
    """

    backend: VmBackend
    prepare: Callable[[VmDescription], None]
    machines: Machines | None = None


def _simulated(options: BackendOptions) -> InstalledBackend:
    backend = SimulatedBackend(
        options.state_directory, options.change_log, options.resize_delay_s, options.faults, options.rng
    )
    return InstalledBackend(backend, lambda spec: backend.create(spec.vm, spec.initial or spec.vm.bounds.min))


def _kubernetes(options: BackendOptions) -> InstalledBackend:
    """Pods and NeonVMs, resized with the credentials of the source."""
    from agent.backends.neonvm import NeonVmBackend  # noqa: PLC0415 - the client library is an extra

    there = options.kubernetes
    assert there is not None, "the settings name a cluster"

    def rules(name: str) -> DivisionRules:
        scaling = there.scaling(name)
        return DivisionRules() if scaling is None else DivisionRules(scaling.shares, scaling.may_restart)

    sizes = options.sizes or LoggedSizes(options.change_log)
    backend = KubernetesBackend(
        {
            VmKind.POD: PodBackend(there.api, sizes, rules, cgroups=options.cgroups),
            VmKind.NEONVM: NeonVmBackend(there.api, sizes),
        }
    )
    return InstalledBackend(backend, lambda _: None)  # such VMs are made by others


def _qemu(options: BackendOptions) -> InstalledBackend:
    try:
        from agent.backends.qemu.backend import QemuBackend  # noqa: PLC0415 - the client library is an extra
    except ImportError:
        raise BackendError(NO_QEMU_EXTRA) from None
    from agent.backends.qemu.guest_files import GuestFiles  # noqa: PLC0415 - only guests need it
    from agent.backends.qemu.guest_loop import GuestAccess, LoopContext  # noqa: PLC0415 - it loads that library
    from agent.backends.qemu.reading import InformantMachine  # noqa: PLC0415 - only guests need it

    there = options.qemu
    assert there is not None, "the daemon has informants"
    sizes = options.sizes or LoggedSizes(options.change_log)
    files = GuestFiles(options.state_directory)
    context = LoopContext(files, sizes, there.rules, there.moved, there.log, options.rng)
    backend = QemuBackend(context)

    def prepare(spec: VmDescription) -> None:
        signed = SignedLink(Path(spec.secret_file), OF_AGENT) if spec.secret_file else None
        guest = InformantMachine(there.to_informants, spec.informant_url, signed)
        backend.describe(spec.vm, GuestAccess(Path(spec.qmp), guest))

    return InstalledBackend(backend, prepare, backend)


FACTORIES: Final[Mapping[str, Callable[[BackendOptions], InstalledBackend]]] = {
    "simulated": _simulated,
    "kubernetes": _kubernetes,
    "qemu": _qemu,
}
