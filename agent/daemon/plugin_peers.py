"""Peers of a runner that are plugins of the node, each with the built-in part that takes over where a plugin fails."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace

from agent.core import events
from agent.core.model import Vm
from agent.core.policies.outside import PluginPolicy
from agent.core.policies.values import Goal, Load, PluginAnswer, Sizing
from agent.core.ports import ExporterPeer
from agent.daemon.policies import checked
from agent.node.plugins.ports import MetricsSource, OutsidePolicy, PluginCatalogue, PluginError


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
        return PluginAnswer(name, goal, "; ".join(dict.fromkeys(_lacking(goal))))


def _lacking(goal: Goal) -> list[str]:
    return [each.reason for each in (goal.cpu, goal.memory) if each.units is None]


class MetricsFromPlugin:
    """The load of one VM as a metrics plugin tells it; where the plugin fails, as the VM's exporter does. Implements
    `ExporterPeer`."""

    def __init__(self, source: MetricsSource, name: str, exporter: ExporterPeer, deadline_s: float) -> None:
        self._source = source
        self._name = name
        self._exporter = exporter
        self._deadline_s = deadline_s

    async def read(self, vm: Vm, port: int) -> events.MetricsRead | events.MetricsFailed:
        try:
            async with asyncio.timeout(self._deadline_s):
                return events.MetricsRead(await self._source.read(vm), self._name)
        except PluginError as error:
            why = str(error)
        except TimeoutError:
            why = f"metrics plugin {self._name}: no answer within {self._deadline_s:g} s"
        outcome = await self._exporter.read(vm, port)
        if isinstance(outcome, events.MetricsRead):
            return replace(outcome, fault=f"{why}; the exporter is read instead")
        return replace(outcome, error=f"{why}; exporter: {outcome.error}")
