"""Which shipped plugins are enabled where nobody configures any, in which order and with which weights.

Filters stand in the order of what they cost, and those that refuse most often first; the plugins of pools and of the ledger come last
among those that keep something, so that nothing has to be given back when another one refuses.
"""

from typing import Final

from scheduler.placing.core.profile import EnabledPlugin, PluginSet, Profile

_WITH_THE_LEDGER: Final = (
    EnabledPlugin("PoolAdmission"),
    EnabledPlugin("Reservation", 10),
    EnabledPlugin("LedgerFit"),
    EnabledPlugin("GrowthHeadroom", 2),
)
"""A reservation is there to be used: the node that has one for the pod is the best, whatever the others say."""

EXTENDER_PROFILE: Final = Profile(
    "",
    multi_point=PluginSet((EnabledPlugin("PrioritySort"), *_WITH_THE_LEDGER, EnabledPlugin("DefaultBinder"))),
)
"""Beside kube-scheduler, whose own plugins judge what is not the ledger's. No queue is sorted there, but each profile has an order."""

FULL_PROFILE: Final = Profile(
    "",
    multi_point=PluginSet(
        (
            EnabledPlugin("PrioritySort"),
            EnabledPlugin("SchedulingGates"),
            EnabledPlugin("UnhandledFeatures"),
            EnabledPlugin("NodeUnschedulable"),
            EnabledPlugin("NodeName"),
            EnabledPlugin("TaintToleration", 3),
            EnabledPlugin("NodeAffinity", 2),
            EnabledPlugin("NodePorts"),
            EnabledPlugin("NodeResources"),
            EnabledPlugin("PodTopologySpread", 2),
            *_WITH_THE_LEDGER,
            EnabledPlugin("DefaultBinder"),
        )
    ),
)
"""For pods that name this scheduler. The weights are those of kube-scheduler where it has the same plugin."""
