"""`GET /machine` and `PUT /machine`: shows what the guest has of its machine, and switches its CPUs as an agent's back end orders."""

import asyncio
from functools import partial
from typing import Final

from hosting.fault_log import FaultLog
from hosting.logs import Logger
from hosting.server import HangUp, Reply, Request, text
from hosting.threads import SingleCall
from informant.core.cpu_orders import CpuOrders, CpuSwitch
from informant.guest.findings import reason_of
from informant.guest.machine_files import MachineFiles
from protocol import codec
from protocol.errors import RemoteProtocolError
from protocol.machine import GuestMachine, MachineOrder

SWITCH_S: Final = 10.0
"""How long the kernel may take for one CPU; 1.8 s were seen in a guest whose only CPU was busy. Then the order is given up."""
ANSWER_S: Final = 3.0
"""An order is answered after so long at most; what is left of it goes on."""


class MachineControl:
    """Carries out the newest order. Whoever has ordered need not wait for it: the order stands without its caller."""

    def __init__(
        self,
        files: MachineFiles | None,
        log: Logger,
        *,
        switch_s: float = SWITCH_S,
        answer_s: float = ANSWER_S,
    ) -> None:
        """`files` is None where the guest has no machine of its own: a synthetic load, a pod."""
        self._files = files
        self._log = log
        self._switch_s, self._answer_s = switch_s, answer_s
        self._orders = CpuOrders()
        self._kernel = SingleCall()
        self._coming: frozenset[int] = frozenset()
        self._ordered, self._at_rest = asyncio.Event(), asyncio.Event()
        self._faults = FaultLog(log, "a CPU could not be switched", "a CPU can be switched again")

    async def show(self, _: Request) -> Reply | HangUp:
        """`GET /machine`."""
        return self._shown(200)

    async def order(self, request: Request) -> Reply | HangUp:
        """`PUT /machine`: the machine once the order was carried out, as far as it can be."""
        try:
            order = codec.decode(MachineOrder, request.body)
        except RemoteProtocolError as error:
            return text(error.status, str(error))
        before = self._shown(409 if self._orders.is_outdated(order) else 200)
        if self._files is None or before.status != 200:
            return before
        lacks = _lacks(self._files) if order.online_cpus is not None else ""
        if lacks:
            return text(501, f"CPUs cannot be switched here: {lacks}")
        self._orders = self._orders.taken(order)
        self._at_rest.clear()
        self._ordered.set()
        try:
            async with asyncio.timeout(self._answer_s):
                await self._at_rest.wait()
        except TimeoutError:
            pass  # the answer shows how far it has come
        # The order stands by now, so this is not the answer that it cannot be carried out.
        return self._shown(409 if self._orders.is_outdated(order) else 200, unshown=500)

    async def carry_out(self) -> None:
        """Switch CPUs as the newest order says, one at a time, for ever."""
        while True:
            while (switch := self._next()) is not None:
                await self._switch(switch)
            self._at_rest.set()
            await self._ordered.wait()
            self._ordered.clear()

    def _next(self) -> CpuSwitch | None:
        """The next switch of the order that stands; the order has ended where there is none."""
        if self._files is None or self._orders.wanted is None:
            return None
        try:
            switch = self._orders.next_switch(self._files.cpus())
        except (OSError, ValueError) as error:
            self._faults.failed(error, "all")
            switch = None
        self._orders = self._orders.done() if switch is None else self._orders.trying(switch)
        return switch

    async def _switch(self, switch: CpuSwitch) -> None:
        assert self._files is not None
        orders, cpu = self._orders, f"CPU {switch.number}"
        self._coming = self._coming_now() | ({switch.number} if switch.is_on else set())
        try:
            await self._kernel.run(partial(self._files.switch, switch), self._switch_s)
        except FileNotFoundError:
            pass  # it is being plugged in or out: whoever ordered it sees that it is not online
        except TimeoutError:
            self._faults.failed(f"the kernel takes longer than {self._switch_s:g} s", cpu, cpu=switch.number)
            if self._orders is orders:  # no newer one has come
                self._orders = orders.done()
        except OSError as error:
            self._faults.failed(reason_of(error), cpu, cpu=switch.number, online=switch.is_on)
        else:
            self._faults.worked(cpu, cpu=switch.number)
            self._log.info("CPU switched", cpu=switch.number, online=switch.is_on)

    def _coming_now(self) -> frozenset[int]:
        """The CPUs that the kernel may be bringing online, also for an order that was given up."""
        return self._coming if self._kernel.is_busy else frozenset()

    def _shown(self, status: int, unshown: int = 501) -> Reply:
        """The machine now, with that status; `unshown` where it cannot be told."""
        if self._files is None:
            return text(unshown, "this guest has no machine of its own")
        try:
            cpus, memory = self._files.cpus(), self._files.memory()
        except (OSError, ValueError) as error:
            return text(unshown, f"this guest's kernel does not show its machine: {error}")
        shown = GuestMachine(
            self._orders.generation,
            len(cpus.present),
            len(cpus.online),
            memory.online_bytes,
            memory.block_bytes,
            len(self._coming_now() & cpus.present - cpus.online),
        )
        return Reply(status, codec.encode(shown))

    def figures(self) -> dict[str, float]:
        """What the informant tells of the machine; nothing where the kernel does not tell."""
        if self._files is None:
            return {}
        try:
            cpus = self._files.cpus()
        except (OSError, ValueError):
            return {}
        return {
            "parley_informant_cpus_present": len(cpus.present),
            "parley_informant_cpus_online": len(cpus.online),
        }


def _lacks(files: MachineFiles) -> str:
    """Why CPUs cannot be switched; empty where they can."""
    try:
        return files.lacks()
    except (OSError, ValueError) as error:
        return str(error)
