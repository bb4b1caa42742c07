"""The args of `Coscheduling`, with the published names, defaults and ranges."""

from typing import Annotated, Literal

from pydantic import Field

from hosting.amounts import GoDuration
from scheduler.placing.plugins.base import PublishedArgs
from scheduler.placing.plugins.coscheduling.core import GangDefaults, MatchPolicy


class CoschedulingArgs(PublishedArgs):
    """The args. `skipCheckScheduleCycle` is deprecated and has no effect, nor has `controllerWorkers`: there is one.

    Preemption for a whole gang and the topology of networks are not there: who asks for them is refused.
    """

    default_timeout: GoDuration = 600.0
    """How long a pod waits for the others of its gang, where the gang does not say it; 15 minutes at most."""
    default_match_policy: Literal["only-waiting", "waiting-and-running", "once-satisfied"] = "once-satisfied"
    """Which pods count for the minimum of a gang that does not say it."""
    controller_workers: Annotated[int, Field(ge=1)] = 1
    """Accepted, without effect."""
    skip_check_schedule_cycle: bool = False
    """Accepted, without effect."""
    enable_preemption: Literal[False] = False
    """Not there: only `false` is accepted."""
    aware_network_topology: Literal[False] = False
    """Not there: only `false` is accepted."""

    def defaults(self) -> GangDefaults:
        return GangDefaults(self.default_timeout, MatchPolicy(self.default_match_policy))
