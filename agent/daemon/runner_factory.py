"""Makes the runner of a VM: its peers, and its policies, windows and bounds, as the settings and the VM's annotations say."""

from dataclasses import dataclass, replace
from typing import Final
from urllib.parse import urlsplit

from agent.core.ports import VmBackend, VmDescription
from agent.daemon import annotations, policies, windows
from agent.daemon.settings import AgentSettings
from agent.peers.exporter import ExporterLink
from agent.peers.informant import InformantLink
from agent.peers.scheduler import SchedulerLink
from agent.runner.peers import Peers
from agent.runner.runner import Runner, RunnerContext
from hosting.addresses import Advertised, bracketed, is_own
from hosting.client import HttpClient

INFORMANT_DEADLINE_S: Final = 2.0
METRICS_DEADLINE_S: Final = 2.0


@dataclass(frozen=True, slots=True)
class RunnerFactory:
    """What all runners of a daemon share. `callback_address` is where informants are told to call, as HOST:PORT."""

    settings: AgentSettings
    backend: VmBackend
    scheduler: SchedulerLink
    to_informants: HttpClient
    to_exporters: HttpClient
    advertised: Advertised
    callback_address: str
    registry: policies.PolicyRegistry
    context: RunnerContext

    def make(self, spec: VmDescription) -> Runner:
        """The runner of `spec`, not started. What is wrong with annotations is logged, and ignored."""
        vm = spec.vm
        defaults = annotations.VmDefaults(vm.bounds, vm.slot_bytes, tuple(self.settings.policies))
        own, faults = annotations.read(spec.annotations, defaults, self.registry)
        for fault in faults:
            self.context.log.warning("annotation ignored", vm=vm.name, error=fault)
        if own.bounds is not None:
            vm = replace(vm, bounds=own.bounds)
        policy = own.policies or policies.build(self.settings.policies, self.registry)
        schedule = (
            windows.Schedule(own.windows) if own.windows is not None else windows.of(self.settings.windows)
        )
        return Runner(vm, self._peers(spec), self.context, policy, self.settings.timing(), schedule)

    def _peers(self, spec: VmDescription) -> Peers:
        host = urlsplit(spec.informant_url).hostname
        assert host is not None, "sources check URLs"
        if is_own(self.advertised.host) and not is_own(host):
            self.context.log.warning(
                "this informant cannot call back: it is told to call its own machine; set `advertise` and --host",
                vm=spec.vm.name,
                informant=spec.informant_url,
                advertised=self.callback_address,
            )
        rng = self.context.rng
        return Peers(
            self.backend,
            self.scheduler,
            InformantLink(
                self.to_informants, spec.informant_url, self.callback_address, INFORMANT_DEADLINE_S, rng
            ),
            ExporterLink(
                self.to_exporters, bracketed(host), self.settings.metrics_prefix, METRICS_DEADLINE_S, rng
            ),
        )
