"""The plugins that come with the scheduler, by name. Each is imported when a profile first names it."""

from collections.abc import Mapping
from typing import Final

_HERE: Final = "scheduler.framework.plugins"

SHIPPED: Final[Mapping[str, str]] = {
    "DefaultBinder": f"{_HERE}.default_binder:DefaultBinder",
    "GrowthHeadroom": f"{_HERE}.growth_headroom:GrowthHeadroom",
    "LedgerFit": f"{_HERE}.ledger_fit:LedgerFit",
    "NodeAffinity": f"{_HERE}.node_conditions:NodeAffinity",
    "NodeName": f"{_HERE}.node_conditions:NodeName",
    "NodePorts": f"{_HERE}.node_resources:NodePorts",
    "NodeResources": f"{_HERE}.node_resources:NodeResources",
    "NodeUnschedulable": f"{_HERE}.node_conditions:NodeUnschedulable",
    "PodTopologySpread": f"{_HERE}.pod_topology_spread:PodTopologySpread",
    "PoolAdmission": f"{_HERE}.pool_admission:PoolAdmission",
    "PrioritySort": f"{_HERE}.queueing:PrioritySort",
    "SchedulingGates": f"{_HERE}.queueing:SchedulingGates",
    "TaintToleration": f"{_HERE}.node_conditions:TaintToleration",
    "UnhandledFeatures": f"{_HERE}.unhandled_features:UnhandledFeatures",
}
"""The entry point of each factory, for `scheduler.framework.runtime.registry`."""

ALWAYS: Final = ("PoolAdmission", "LedgerFit")
"""Beside kube-scheduler, whose own plugins do the rest: what the ledger and the pools have to say, and the spread of growth."""
EXTENDER: Final[Mapping[str, int]] = {"PoolAdmission": 0, "LedgerFit": 0, "GrowthHeadroom": 1}
