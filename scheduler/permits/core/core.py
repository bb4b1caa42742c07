"""The one door of the scheduler's decisions: `Core.apply(input) -> outputs`.

Requests, cluster events, configuration, the verdicts of pools and the clock are inputs; the journal, the replay and the
simulator rest on that. Nothing here waits, reads a clock or draws a random number.
"""

from collections.abc import Callable
from typing import Any, Final

from scheduler.permits.core import auditing, clock, cluster, events, migration, placement, requests, reserving
from scheduler.permits.core.rules import DEFAULT_RULES, Rules
from scheduler.permits.core.state import CoreState, SchedulerConfig

Handler = Callable[[CoreState, Any], tuple[events.Output, ...]]

# A table, because a chain of class patterns costs as much as a decision.
_HANDLERS: Final[dict[type[Any], Handler]] = {
    events.RequestArrived: requests.arrived,
    events.AdmissionCallEnded: requests.admission_ended,
    events.ClockTicked: clock.tick,
    events.Configured: cluster.configured,
    events.NodeSeen: cluster.node_seen,
    events.NodeGone: cluster.node_gone,
    events.PodSeen: cluster.pod_seen,
    events.PodGone: cluster.pod_gone,
    events.VmSeen: cluster.vm_seen,
    events.VmGone: cluster.vm_gone,
    events.PoolSeen: cluster.pool_seen,
    events.PoolGone: cluster.pool_gone,
    events.ClusterRead: placement.cluster_read,
    events.PlacementAssumed: placement.assumed,
    events.PlacementConfirmed: placement.confirmed,
    events.PlacementForgotten: placement.forgotten,
    events.ReservationSeen: reserving.seen,
    events.ReservationGone: reserving.gone,
    events.MigrationStarted: migration.started,
    events.MigrationFailed: migration.over,
    events.MigrationEnded: migration.over,
}


class Core:
    """The decisions of one scheduler process. `state` may be read by anybody, and is written by `apply` only."""

    def __init__(self, config: SchedulerConfig, rules: Rules = DEFAULT_RULES) -> None:
        self.state = CoreState(config, rules)
        self.config = config
        self.ledger = self.state.ledger
        self.vms = self.state.vms

    def apply(self, event: events.Input) -> tuple[events.Output, ...]:
        """Take one input and return what follows from it. Raises `AssertionError` for a fault of ours only."""
        return _HANDLERS[type(event)](self.state, event)

    def audit(self) -> list[str]:
        """The faults of the accounts, as far as they can be seen from within: none, ever."""
        return auditing.audit(self.state)
