"""Back ends by the names that settings use (`backend`)."""

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from agent.backends.change_log import ChangeLog
from agent.backends.faults import NONE, Faults
from agent.backends.logged_sizes import LoggedSizes
from agent.backends.on_kubernetes import KubernetesBackend
from agent.backends.pod.distribution import DivisionRules
from agent.backends.simulated import SimulatedBackend
from agent.core.ports import VmBackend, VmDescription
from hosting.kubernetes.scaling import Scaling

if TYPE_CHECKING:  # the client library is an extra
    from hosting.kubernetes.api import KubernetesApi


@dataclass(frozen=True, slots=True)
class OnKubernetes:
    """What the back end of pods and NeonVMs needs. `scaling` says how the pod `namespace/name` is scaled; None for what is not, and
    for NeonVMs."""

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
    # The client library is an extra, and slow to load.
    from agent.backends.neonvm import NeonVmBackend  # noqa: PLC0415
    from agent.backends.pod.backend import PodBackend  # noqa: PLC0415

    cluster, log = options.kubernetes, options.change_log
    assert cluster is not None, "the settings have a source that goes with it"

    def rules(name: str) -> DivisionRules:
        scaling = cluster.scaling(name)
        return DivisionRules(scaling.shares, scaling.may_restart) if scaling is not None else DivisionRules()

    pods, machines = PodBackend(cluster.api, log, rules), NeonVmBackend(cluster.api, LoggedSizes(log))
    return InstalledBackend(KubernetesBackend(pods, machines), lambda _: None)


FACTORIES: Final[Mapping[str, Callable[[BackendOptions], InstalledBackend]]] = {
    "simulated": _simulated,
    "kubernetes": _kubernetes,
}
