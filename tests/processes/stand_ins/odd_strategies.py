"""The agent with four strategies of somebody else: one raises, one blocks for ever, one computes for ever, one does its work.

python odd_strategies.py ARGUMENTS-OF-THE-AGENT
"""

import threading
from typing import Any

from agent import program
from agent.node.qos.config import register_qos_ext_plugin
from agent.node.qos.core.actions import CgroupResource, CgroupUpdate, StrategyDecision
from agent.node.qos.core.gates import FeatureSpec
from agent.node.qos.ports import MetricCache, NodeClient, StatesInformer, StopSignal

GROUP = "kubepods/besteffort"


class Odd:
    client: NodeClient

    def init_flags(self, args: Any) -> None:
        del args

    def setup(self, client: NodeClient, metric_cache: MetricCache, states_informer: StatesInformer) -> None:
        del metric_cache
        self.client, self.states = client, states_informer

    def run(self, stop: StopSignal) -> None:
        raise NotImplementedError

    def stop(self) -> None:
        """Nothing is to be put back."""


class Raises(Odd):
    """Fails at once."""

    def run(self, stop: StopSignal) -> None:
        raise RuntimeError("a fault of the strategy")


class Blocks(Odd):
    """Hears nothing."""

    def run(self, stop: StopSignal) -> None:
        threading.Event().wait()


class Spins(Odd):
    """Computes for ever."""

    def run(self, stop: StopSignal) -> None:
        number = 0
        while True:
            number += 1


class Works(Odd):
    """Holds best-effort pods back, and gives the CPUs back in the end."""

    def run(self, stop: StopSignal) -> None:
        while not stop.wait(0.05):
            vms = len(self.states.get_all_vms())
            self.client.decided(StrategyDecision("held-back", f"beside {vms} VMs", {"vms": vms}, True))
            self._set(50_000)

    def stop(self) -> None:
        self._set(-1)

    def _set(self, quota_us: int) -> None:
        self.client.write([CgroupUpdate(GROUP, CgroupResource.CPU_QUOTA_US, quota_us, "held back")])


for strategy in (Raises(), Blocks(), Spins(), Works()):
    register_qos_ext_plugin(type(strategy).__name__, FeatureSpec(), strategy)
program.main()
