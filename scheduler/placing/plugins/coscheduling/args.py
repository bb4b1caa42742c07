"""The args of `Coscheduling`, with the published names, defaults and ranges."""

from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from scheduler.placing.plugins.base import PublishedArgs
from scheduler.placing.plugins.coscheduling.core import GangDefaults, MatchPolicy, duration_s


def _duration(text: str) -> str:
    if duration_s(text) is None:
        raise ValueError(f"must be a duration from 0 such as 600s or 1m30s, not {text!r}")
    return text


class CoschedulingArgs(PublishedArgs):
    """The args. `skipCheckScheduleCycle` is deprecated and has no effect, nor has `controllerWorkers`: there is one.

    Preemption for a whole gang and the topology of networks are not there: who asks for them is refused.
    """

    default_timeout: Annotated[str, AfterValidator(_duration)] = "600s"
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
        return GangDefaults(duration_s(self.default_timeout) or 0.0, MatchPolicy(self.default_match_policy))
