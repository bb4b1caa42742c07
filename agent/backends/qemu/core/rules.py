"""Every wait of a guest's loop in seconds, with its reason, and the settings."""

from dataclasses import dataclass

from hosting.backoff import Backoff


@dataclass(frozen=True, slots=True)
class GuestRules:
    """The first four are settings (docs/reference/agent.md)."""

    unplugs_cpus: bool = False
    """True if vCPUs are unplugged, and not only taken offline. Under emulation QEMU does not survive it."""
    eject_deadline_s: float = 10.0
    """A guest that can spare a DIMM gives it back within 0.1 s. After this it is told that the guest keeps it."""
    usable_deadline_s: float = 5.0
    """A plugged device is usable within 2 s, also in a guest that is busy."""
    silence_s: float = 3.0
    """How long the last answer of a guest counts. After that all plugged vCPUs do."""
    look_at_rest_s: float = 5.0
    """QEMU tells of each change by itself; looking as well finds untold changes."""
    look_moving_s: float = 0.1
    """How often QEMU is asked while the size of a virtio-mem device moves, or a device should go: its events are limited to one in a second."""
    guest_moving_s: float = 0.05
    """How often the guest is asked while it takes up plugged devices: it does so within 0.04 s."""
    retry_base_s: float = 0.25
    retry_cap_s: float = 10.0
    """Back-off after steps of one resource that failed."""
    nudge_base_s: float = 5.0
    nudge_cap_s: float = 60.0
    """Back-off of requests that are repeated because the guest does not comply: an eject after its deadline, a virtio-mem device that does
    not shrink."""

    @property
    def guest_at_rest_s(self) -> float:
        """How often a guest is asked that does nothing: two answers may be lost before it counts as silent."""
        return self.silence_s / 3

    def retry_after_s(self, failures: int, chance: float) -> float:
        """The wait after `failures` failures in a row; `chance` (0 to 1) takes up to half of it away."""
        return Backoff(self.retry_base_s, cap_s=self.retry_cap_s).delay_s(failures, chance)

    def nudge_after_s(self, times: int, chance: float) -> float:
        """The wait after something was asked for so many times in vain."""
        return Backoff(self.nudge_base_s, cap_s=self.nudge_cap_s, jitter=0.25).delay_s(times, chance)

    def eject_again_s(self, times: int, chance: float) -> float:
        """When an eject is asked for again that was asked for so many times: after its deadline, and the back-off."""
        return self.eject_deadline_s + self.nudge_after_s(times, chance)
