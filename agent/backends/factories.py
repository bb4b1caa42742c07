"""Back ends by the names that settings use (`backend`)."""

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from agent.backends.change_log import ChangeLog
from agent.backends.faults import NONE, Faults
from agent.backends.kubernetes import KubernetesBackend
from agent.backends.logged_sizes import LoggedSizes
from agent.backends.pod.backend import PodBackend
from agent.backends.pod.distribution import DivisionRules
from agent.backends.simulated import SimulatedBackend
from agent.core.model import VmKind
from agent.core.ports import VmBackend, VmDescription
from hosting.kubernetes.scaling import Scaling

if TYPE_CHECKING:  # the client library is an extra
    from hosting.kubernetes.api import KubernetesApi


@dataclass(frozen=True, slots=True)
class OnKubernetes:
    """What the back end of a pod or a NeonVM may use.

    `scaling` says how the pod `namespace/name` is scaled (shares, restarts), None for what is
    not scaled and for NeonVMs.
    """

    api: "KubernetesApi"
    scaling: Callable[[str], Scaling | None]


@dataclass(frozen=True, slots=True)
class BackendOptions:
    """What a back end may need. `resize_delay_s` and `faults` are for simulated VMs, `kubernetes` is for those of a cluster."""

    state_directory: Path
    change_log: ChangeLog
    rng: random.Random
    resize_delay_s: float = 0.0
    faults: Faults = NONE
    kubernetes: OnKubernetes | None = None
    sizes: LoggedSizes | None = None
    """Where sizes are logged, where others of the agent log there as well."""


@dataclass(frozen=True, slots=True)
class InstalledBackend:
    """A back end, and what it needs before the runner of a VM starts.

    `prepare` makes the VM where the back end is what makes VMs. It raises `BackendError`.
    """

    backend: VmBackend
    prepare: Callable[[VmDescription], None]


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
            VmKind.POD: PodBackend(there.api, sizes, rules),
            VmKind.NEONVM: NeonVmBackend(there.api, sizes),
        }
    )
    return InstalledBackend(backend, lambda _: None)  # such VMs are made by others


FACTORIES: Final[Mapping[str, Callable[[BackendOptions], InstalledBackend]]] = {
    "simulated": _simulated,
    "kubernetes": _kubernetes,
}
