"""Which scheduling plugins there are. Source: seed 001, `Registry`; its texts are kept."""

from collections.abc import Mapping
from importlib import metadata
from typing import Final

from hosting.registry import FactoryRegistry, RegistryError
from scheduler.placing.core.handle import PluginFactory

PLUGIN_GROUP: Final = "parley.scheduling_plugins"
"""The entry-point group of scheduling plugins: the entry's name is the plugin's, its value the factory."""
SHIPPED: Final[Mapping[str, str]] = {
    "DefaultBinder": "scheduler.placing.plugins.default_binder:DefaultBinder",
    "GrowthHeadroom": "scheduler.placing.plugins.growth_headroom:GrowthHeadroom",
    "LedgerFit": "scheduler.placing.plugins.ledger_fit:LedgerFit",
    "NodeAffinity": "scheduler.placing.plugins.node_conditions:NodeAffinity",
    "NodeName": "scheduler.placing.plugins.node_conditions:NodeName",
    "NodePorts": "scheduler.placing.plugins.node_resources:NodePorts",
    "NodeResources": "scheduler.placing.plugins.node_resources:NodeResources",
    "NodeUnschedulable": "scheduler.placing.plugins.node_conditions:NodeUnschedulable",
    "PodTopologySpread": "scheduler.placing.plugins.pod_topology_spread:PodTopologySpread",
    "PoolAdmission": "scheduler.placing.plugins.pool_admission:PoolAdmission",
    "PrioritySort": "scheduler.placing.plugins.queueing:PrioritySort",
    "Reservation": "scheduler.placing.plugins.reservation:ReservationPlugin",
    "SchedulingGates": "scheduler.placing.plugins.queueing:SchedulingGates",
    "TaintToleration": "scheduler.placing.plugins.node_conditions:TaintToleration",
    "UnhandledFeatures": "scheduler.placing.plugins.unhandled_features:UnhandledFeatures",
}
"""The plugins that come with the scheduler: name, and where the factory is. Its module is imported at the first use."""


class Registry(FactoryRegistry[PluginFactory]):
    """Factories of scheduling plugins by name, which may be any text. Complete before a framework is built from it."""

    def __init__(self) -> None:
        super().__init__("scheduling plugin", lambda name: isinstance(name, str), "a name must be a text")

    def unregister(self, name: str) -> None:
        """Remove a factory. Raises `RegistryError` for a name that is not registered."""
        if name not in self._factories:
            raise RegistryError(f"no plugin named {name} exists")
        del self._factories[name]

    def merge(self, other: "Registry") -> None:
        """Add the factories of `other`, one by one. Raises `RegistryError` at the first taken name; what came before it stays."""
        for name, load in other._factories.items():  # noqa: SLF001 - of the same class
            self._add(name, load)

    def _taken(self, name: str) -> str:
        return f"a plugin named {name} already exists"


def new_registry() -> Registry:
    """The plugins that are shipped, and those of installed distributions. Source: seed 001, `NewRegistry`.

    Raises `RegistryError` where two use one name.
    """
    found = Registry()
    for name, value in SHIPPED.items():
        found.add_entry_point(metadata.EntryPoint(name, value, PLUGIN_GROUP))
    found.load_entry_points(PLUGIN_GROUP)
    return found
