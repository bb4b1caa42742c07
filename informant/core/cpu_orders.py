"""The choice of the CPUs of the guest to switch, one after the other, and of the order that stands.

An order says how many CPUs should be online. CPUs come online from the lowest number up, and go offline from the highest number down; CPU 0
always stays. An order is carried out once, over the CPUs that are present then: a CPU that is plugged in later, or switched by somebody
else, needs another order.
"""

from dataclasses import dataclass, replace

from protocol.informant_pages import MachineOrder


@dataclass(frozen=True, slots=True)
class CpuSwitch:
    """Bring one CPU online, or take it offline."""

    number: int
    is_on: bool


@dataclass(frozen=True, slots=True)
class GuestCpus:
    """The numbers of the CPUs that the guest's kernel knows, and of those that it has online."""

    present: frozenset[int]
    online: frozenset[int]


@dataclass(frozen=True, slots=True)
class CpuOrders:
    """The highest `generation` that was taken, the highest `sequence_number` of it, and the newest order: so many CPUs are `wanted`, None
    if nothing is left to do.

    Each CPU is `tried` once for each order. So an order ends, even if the kernel refuses switches.
    """

    generation: int = 0
    wanted: int | None = None
    tried: frozenset[int] = frozenset()
    sequence_number: int = 0

    def is_outdated(self, order: MachineOrder) -> bool:
        """Whether an order comes from a life that a later one has superseded, or was overtaken by a newer one of its life."""
        return (order.generation, order.sequence_number) < (self.generation, self.sequence_number)

    def taken(self, order: MachineOrder) -> "CpuOrders":
        """The orders with a new one, which replaces the one before. The new order must not be outdated.

        An order without a number replaces nothing of its own generation.
        """
        assert not self.is_outdated(order)
        if order.online_cpus is None and order.generation == self.generation:
            return replace(self, sequence_number=order.sequence_number)
        return CpuOrders(order.generation, order.online_cpus, sequence_number=order.sequence_number)

    def next_switch(self, cpus: GuestCpus) -> CpuSwitch | None:
        """The next switch towards the order that stands; None if nothing is left that can be done."""
        if self.wanted is None:
            return None
        missing = self.wanted - len(cpus.online)
        if missing > 0:
            number = min(cpus.present - cpus.online - self.tried, default=None)
        elif missing < 0:
            number = max(cpus.online - {0} - self.tried, default=None)
        else:
            return None
        return None if number is None else CpuSwitch(number, is_on=missing > 0)

    def trying(self, switch: CpuSwitch) -> "CpuOrders":
        return replace(self, tried=self.tried | {switch.number})

    def done(self) -> "CpuOrders":
        return replace(self, wanted=None, tried=frozenset())
