"""Every wait of the agent's core, in seconds, with its reason, and how long a runner steps back from another agent of its VM. Shells have
their own deadlines."""

from dataclasses import dataclass, replace
from typing import Final

from hosting.backoff import Backoff
from protocol.values import Value


class Timing(Value, frozen=True):
    """Waits and periods. Defaults follow the published agent if it has one (reference/neon.md 6.1)."""

    tick_s: float = 15.0
    """A request is sent at least this often: each renews the lease (half of `hold_s`) and carries fresh metrics."""
    hold_s: float = 30.0
    """How long a permit counts without another answer; the scheduler's hand-over is longer."""
    alone_s: float = 60.0
    """So long after a scheduler has superseded the lives before this one, their leases are over: as long as its hand-over."""
    request_deadline_s: float = 4.0
    denied_s: float = 2.0
    """Wait before asking again for an amount that was not fully granted."""
    unsettled_s: float = 0.2
    """Wait before naming the scheduler again, when it still answers that it is unsettled."""
    retry_base_s: float = 0.5
    retry_cap_s: float = 5.0
    """Back-off after failures of any peer."""
    leader_retry_cap_s: float = 2.0
    """A lower cap if there may be another leader soon, who is to be met within 3 s: nobody answers, or not as the leader."""
    metrics_s: float = 5.0
    metrics_stale_s: float = 15.0
    """Without metrics for this long the goal is not lowered any more."""
    down_window_s: float = 5.0
    """The goal falls only to the highest goal of this window."""
    downscale_cooldown_s: float = 5.0
    """Wait after the informant refused a downscale."""
    try_upscale_s: float = 10.0
    """How long a `/try-upscale` counts."""
    relapse_s: float = 60.0
    relapse_cap_s: float = 3600.0
    """The gain of a wish stays so long if the last such growth was given back and soon wished for again; longer each time in a row."""
    yield_s: float = 60.0
    """For so long comfort is not asked for again that was given back for another VM's need."""
    yield_refused_s: float = 60.0
    """For so long after a refused shrink the VM has nothing to spare."""
    epoch_spread_s: float = 0.5
    """The runners of a node ask another scheduler process within this time."""
    backend_deadline_s: float = 5.0
    """How long one call to the back end may take."""
    command_deadline_s: float = 5.0
    """After it a resize that was sent can no longer be accepted; the back end's capability says how long that is."""
    observe_busy_s: float = 0.1
    """How often the VM is looked at while a resize is under way."""
    observe_rest_s: float = 10.0
    """How often a VM is looked at that has reached its target; changes by others are noticed so late."""
    observe_idle_s: float = 10.0
    """How often a VM is looked at whose node has not moved for `stall_s`."""
    stall_s: float = 30.0
    """After so long without progress towards its target a VM is not waited for any more."""
    refused_base_s: float = 10.0
    refused_cap_s: float = 300.0
    """Wait before a size is tried again that the VM's node did not take; longer with each refusal in a row."""
    informant_silence_s: float = 25.0
    """An informant asks for the agent's ID every 10 s; an informant that is silent for this long has forgotten the agent."""

    def kept_s(self, relapses: int) -> float:
        """How long the gain of a wish stays once the guest can wait again."""
        if relapses == 0:
            return self.down_window_s
        return Backoff(self.relapse_s, cap_s=self.relapse_cap_s).delay_s(relapses, 0)

    def refused_wait_s(self, times: int, chance: float) -> float:
        """The wait after so many refusals in a row; `chance` (0 to 1) takes up to a quarter of it away."""
        return Backoff(self.refused_base_s, cap_s=self.refused_cap_s, jitter=0.25).delay_s(times, chance)

    def retry_after_s(self, failures: int, chance: float) -> float:
        """Back-off after `failures` failures in a row; `chance` (0 to 1) takes up to half of it away."""
        return self._backoff_s(self.retry_cap_s, failures, chance)

    def leader_retry_after_s(self, failures: int, chance: float) -> float:
        """As `retry_after_s`, if there may be another leader soon."""
        return self._backoff_s(min(self.retry_cap_s, self.leader_retry_cap_s), failures, chance)

    def _backoff_s(self, cap_s: float, failures: int, chance: float) -> float:
        return Backoff(min(self.retry_base_s, cap_s), cap_s=cap_s).delay_s(failures, chance)


WAITS: Final = Backoff(5.0, cap_s=300.0, jitter=0.8)
FORGIVEN_S: Final = 2 * WAITS.cap_s
"""A life that lasted so long had no rival. Longer than any wait, so that of two rivals at most one forgets the other."""
SUSPICIOUS: Final = 2
"""So many takeovers in a row are more than a hand-over between daemons."""


@dataclass(frozen=True, slots=True)
class Rivalry:
    """How often in a row lives of this runner were superseded by lives that are not its own, and, once one was, until when
    the runner waits before its next life.

    A new life supersedes the one before, so two daemons that serve the same VM without a common node lock would supersede each
    other for ever, and the scheduler would keep the amounts that each of them may still hold.
    """

    count: int = 0
    wait_until_s: float = 0.0

    def superseded(self, lasted_s: float, now_s: float, chance: float) -> "Rivalry":
        """After a life of `lasted_s` was superseded: 1 to 5 s of waiting, doubled each time up to 5 minutes."""
        count = 1 if lasted_s >= FORGIVEN_S else self.count + 1
        return replace(self, count=count, wait_until_s=now_s + WAITS.delay_s(count, chance))

    def warning(self, lived_s: float) -> str:
        """A warning for an operator when the present life has lasted for `lived_s`; else empty."""
        if self.count < SUSPICIOUS or lived_s >= FORGIVEN_S:
            return ""
        return f"superseded {self.count} times in a row: is a second agent running for this VM?"
