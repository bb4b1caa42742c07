"""Makes the runner of a VM: its peers, and its policies, windows and bounds, as the settings and the VM's annotations say."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from msgspec.structs import replace

from agent.core import events
from agent.core.model import Vm, VmKind
from agent.core.policies.combined import Combined, PluginPolicy
from agent.core.policies.values import Load, PluginAnswer, Sizing
from agent.core.ports import ExporterPeer, VmBackend, VmDescription
from agent.daemon import annotations, policies, windows
from agent.daemon.load_files import LoadFiles
from agent.daemon.policies import checked
from agent.daemon.settings import AgentSettings
from agent.node.plugins.ports import MetricsSource, OutsidePolicy, PluginCatalogue, PluginError
from agent.peers.informant import ExporterLink, InformantLink
from agent.peers.scheduler import SchedulerLink
from agent.runner.peers import Peers
from agent.runner.runner import Runner, RunnerContext
from hosting.addresses import UNIX, Advertised, bracketed, is_own
from hosting.client import HttpClient
from hosting.signed_link import OF_AGENT, SecretFileError, SignedLink
from protocol.values import ComputeUnit


class PluginPolicies:
    """Asks the policy plugins of one VM, all at once, for at most `deadline_s`. Implements `PolicyPeer`."""

    def __init__(
        self, catalogue: PluginCatalogue, policies: Sequence[PluginPolicy], deadline_s: float
    ) -> None:
        self._policies = tuple((each, catalogue.policy(each.plugin)) for each in policies)
        self._deadline_s = deadline_s

    async def ask(self, vm: Vm, load: Load, sizing: Sizing) -> events.PoliciesAnswered:
        asked = (self._ask(policy, plugin, vm, load, sizing) for policy, plugin in self._policies)
        return events.PoliciesAnswered(tuple(await asyncio.gather(*asked)))

    async def _ask(
        self, policy: PluginPolicy, plugin: OutsidePolicy, vm: Vm, load: Load, sizing: Sizing
    ) -> PluginAnswer:
        name = policy.plugin
        try:
            async with asyncio.timeout(self._deadline_s):
                said = await plugin.goal(vm, load, sizing, policy.args)
        except PluginError as error:
            return PluginAnswer(name, None, str(error))
        except TimeoutError:
            return PluginAnswer(name, None, f"policy plugin {name}: no answer within {self._deadline_s:g} s")
        goal = checked(f"plugin {name}", said)
        lacking = (each.reason for each in (goal.cpu, goal.memory) if each.units is None)
        return PluginAnswer(name, goal, "; ".join(dict.fromkeys(lacking)))


@dataclass(frozen=True, slots=True)
class MetricsFromPlugin:
    """The load of one VM as a metrics plugin tells it; if the plugin fails, as the VM's exporter does. Implements
    `ExporterPeer`."""

    source: MetricsSource
    name: str
    exporter: ExporterPeer
    deadline_s: float

    async def read(self, vm: Vm, port: int) -> events.MetricsRead | events.MetricsFailed:
        try:
            async with asyncio.timeout(self.deadline_s):
                return events.MetricsRead(await self.source.read(vm), self.name)
        except PluginError as error:
            why = str(error)
        except TimeoutError:
            why = f"metrics plugin {self.name}: no answer within {self.deadline_s:g} s"
        outcome = await self.exporter.read(vm, port)
        if isinstance(outcome, events.MetricsRead):
            return replace(outcome, fault=f"{why}; the exporter is read instead")
        return replace(outcome, error=f"{why}; exporter: {outcome.error}")


INFORMANT_DEADLINE_S: Final = 2.0
METRICS_DEADLINE_S: Final = 2.0
PLUGIN_SLACK_S: Final = 0.5
"""Beyond the deadline of a call to a plugin, which the catalogue keeps itself and can tell more about."""


def vm_of(spec: VmDescription, own: annotations.Overrides, policy: Combined, *, is_tied: bool) -> Vm:
    """The VM of `spec` with the values of its annotations (`own`).

    Its resources are tied if the policy knows one number of units only; else as the annotations say, or the source, or the
    settings (`is_tied`).
    """
    words = (own.is_tied, spec.is_tied, is_tied)
    said = next(word for word in words if word is not None)
    unit = ComputeUnit(own.step or spec.vm.unit.step, not (policy.is_tied or said))
    vm = replace(spec.vm, bounds=own.bounds or spec.vm.bounds, unit=unit)
    if own.priority is not None:
        vm = replace(vm, priority=own.priority)
    return vm if own.yields is None else replace(vm, yields=own.yields)


@dataclass(frozen=True, slots=True)
class RunnerFactory:
    """The parts that all runners of a daemon share. `callback_address` is the address that informants are told to call, as HOST:PORT."""

    settings: AgentSettings
    backend: VmBackend
    scheduler: SchedulerLink
    to_informants: HttpClient
    to_exporters: HttpClient
    advertised: Advertised
    callback_address: str
    registry: policies.PolicyRegistry
    load_files: LoadFiles
    context: RunnerContext
    catalogue: PluginCatalogue | None = None
    """None if the settings name no directory of plugins."""

    def make(self, spec: VmDescription) -> Runner:
        """The runner of `spec`, not started. Faults of annotations are logged, and the faulty parts ignored."""
        own, faults = self._own(spec)
        for fault in faults:
            self.context.log.warning("annotation ignored", vm=spec.vm.name, error=fault)
        policy, vm = self._policy(own), self.vm(spec)
        schedule = (
            windows.Schedule(own.windows) if own.windows is not None else windows.of(self.settings.windows)
        )
        known = self.load_files.read(vm, policy.remembering)
        peers = self._peers(spec, own, policy)
        return Runner(vm, peers, self.context, policy, self.settings.timing(), schedule or None, known)

    def faults(self, spec: VmDescription) -> list[str]:
        """The faults in the annotations of `spec`; the faulty parts are ignored."""
        return self._own(spec)[1]

    def vm(self, spec: VmDescription) -> Vm:
        own, _ = self._own(spec)
        return vm_of(spec, own, self._policy(own), is_tied=self.settings.tied)

    def _own(self, spec: VmDescription) -> tuple[annotations.Overrides, list[str]]:
        vm = spec.vm
        defaults = annotations.VmDefaults(
            vm.bounds,
            vm.slot_bytes,
            vm.unit.step,
            tuple(self.settings.policies),
            is_neonvm=vm.kind is VmKind.NEONVM,
        )
        return annotations.read(spec.annotations, defaults, self.registry)

    def _policy(self, own: annotations.Overrides) -> Combined:
        return own.policies or policies.build(self.settings.policies, self.registry)

    def _peers(self, spec: VmDescription, own: annotations.Overrides, policy: Combined) -> Peers:
        url = spec.informant_url
        at_socket = url.startswith(UNIX)
        host = urlsplit(url).hostname or ""
        assert host or at_socket, "sources check URLs"
        if not at_socket and is_own(self.advertised.host) and not is_own(host):
            self.context.log.warning(
                "this informant cannot call back: it is told to call its own machine; set `advertise` and --host",
                vm=spec.vm.name,
                informant=spec.informant_url,
                advertised=self.callback_address,
            )
        signed = SignedLink(Path(spec.secret_file), OF_AGENT) if spec.secret_file else None
        if signed is not None:
            try:
                signed.load()
            except SecretFileError as error:
                self.context.log.warning(
                    "no call from or to this VM's informant before its secret can be read",
                    vm=spec.vm.name,
                    error=str(error),
                )
        return Peers(
            self.backend,
            self.scheduler,
            InformantLink(
                self.to_informants,
                url,
                f"{UNIX}{self.settings.callback_socket}:" if at_socket else self.callback_address,
                INFORMANT_DEADLINE_S,
                self.context.rng,
                signed,
            ),
            self._exporter(url, own.metrics_plugin),
            self._policy_peer(policy),
            signed,
        )

    def _exporter(self, url: str, plugin: str | None) -> ExporterPeer:
        """The source of the load; `plugin` is the one that the VM's annotation names."""
        settings, rng = self.settings, self.context.rng
        at_socket = url.startswith(UNIX)
        link = ExporterLink(
            self.to_exporters,
            "" if at_socket else bracketed(urlsplit(url).hostname or ""),
            settings.metrics_prefix,
            METRICS_DEADLINE_S,
            rng,
            path="" if at_socket else urlsplit(url).path,
            base=url if at_socket else "",
        )
        name = settings.plugins.metrics if plugin is None else plugin
        if not name or self.catalogue is None:
            return link
        source = self.catalogue.metrics_source(name)
        return MetricsFromPlugin(source, name, link, settings.plugins.deadline + PLUGIN_SLACK_S)

    def _policy_peer(self, policy: Combined) -> PluginPolicies | None:
        if not policy.plugins:
            return None
        assert self.catalogue is not None, "settings and annotations are checked"
        deadline_s = self.settings.plugins.deadline + PLUGIN_SLACK_S
        return PluginPolicies(self.catalogue, policy.plugins, deadline_s)
