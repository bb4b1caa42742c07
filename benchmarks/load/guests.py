"""The guests of an agent under load: our informant for each VM, all behind one server, each under an address of its own.

Informants are told apart by their loopback addresses (127.1.0.1 and so on), because an agent reads metrics from the host
of the informant and the port that this one names. Routes, sessions, checks of `/id`, the bytes of pages and answers are
our informant's own; only the machine that it reads is made up (`Guest`).
"""

import asyncio
import random
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from types import TracebackType
from typing import Final, Self

from hosting import addresses, logs, server
from hosting.client import HttpClient
from informant.core.report import Reading
from informant.service.informant import Informant
from informant.service.limits import Guest as Seen
from informant.settings import InformantSettings
from protocol import codec, wire
from protocol.values import Resources

GIB: Final = 2**30
CONNECTIONS: Final = 16384
HEALTH_S: Final = 10.0
"""How often an informant asks for the ID of its agent."""


class Guest:
    """The machine that an informant reads: `demand_cpus` are busy, or as many as it has; its use of memory is constant:
    three quarters of the units that it begins with, which are the goal of that use."""

    def __init__(self, units: int, demand_cpus: float) -> None:
        self.demand_cpus = demand_cpus
        self._cpus, self._memory_bytes = float(units), units * GIB
        self._used_bytes = self._memory_bytes * 3 // 4
        self._last_s = asyncio.get_running_loop().time()
        self._busy_s = 0.0

    def read(self) -> Reading:
        """The machine now, with everything that /proc tells on a kernel with PSI."""
        self._advance()
        load, free = self.demand_cpus, max(0, self._memory_bytes - self._used_bytes)
        names = (f"{part}_{kind}" for part in ("cpu", "memory", "io") for kind in ("waiting", "stalled"))
        stalls_s = dict.fromkeys(names, 0.125)
        return Reading(load, load, load, self._busy_s, round(self._cpus), self._memory_bytes, free, stalls_s)

    def resized(self, size: Resources) -> None:
        self._advance()
        self._cpus, self._memory_bytes = size.vcpu_milli / 1000, size.memory_bytes

    def _advance(self) -> None:
        now_s = asyncio.get_running_loop().time()
        self._busy_s += min(self.demand_cpus, self._cpus) * (now_s - self._last_s)
        self._last_s = now_s


@dataclass(slots=True)
class _Vm:
    """One informant; `agent` is what the agent that registered last said of itself."""

    guest: Guest
    informant: Informant
    handlers: Mapping[tuple[str, str], server.Handler]
    agent: wire.AgentDesc | None = None
    tasks: list[asyncio.Task[None]] = field(default_factory=list)


class Guests:
    """Serves the informants of `count` guests for the length of an `async with` block.

    `requests` counts what the agent asked, by path.
    """

    def __init__(self, count: int, make: Callable[[int], Guest], rng: random.Random) -> None:
        self._count = count
        self._make = make
        self._rng = rng
        self._vms: dict[str, _Vm] = {}
        self._open = AsyncExitStack()
        self.requests: Counter[str] = Counter()
        self.port = 0

    async def __aenter__(self) -> Self:
        log = logs.logger("guests")
        for index in range(self._count):
            # A client each, as they would have: so many connections the agent must keep open.
            client = await self._open.enter_async_context(HttpClient(max_connections=8))
            guest = self._make(index)
            informant = Informant(Seen(guest), InformantSettings(), client, log, self._rng)
            handlers = {(route.method, route.path): route.answer for route in informant.routes()}
            self._vms[address_of(index)] = _Vm(guest, informant, handlers)
        first = next(iter(self._vms.values()))
        routes = tuple(server.Route(method, path, self._serve) for method, path in first.handlers)
        serving = server.Server(log, routes, limits=server.ServerLimits(connections=CONNECTIONS))
        # Every address of the loopback network at once; other clients are turned away.
        self.port = await serving.start("0.0.0.0", 0)
        self._open.push_async_callback(serving.close)
        for vm in self._vms.values():
            vm.informant.agents.metrics_port = self.port
            vm.tasks = [
                asyncio.create_task(vm.informant.agents.select()),
                asyncio.create_task(self._check(vm)),
            ]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        tasks = [task for vm in self._vms.values() for task in vm.tasks]
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
        await self._open.aclose()

    async def _check(self, vm: _Vm) -> None:
        """Informants have begun at any time before, so their checks are spread."""
        await asyncio.sleep(self._rng.random() * HEALTH_S)
        await vm.informant.agents.check_health()

    async def _serve(self, request: server.Request) -> server.Reply | server.HangUp:
        vm = self._vms.get(request.headers.get("host", "").partition(":")[0])
        if vm is None or not addresses.is_loopback(request.peer):
            return server.text(404, "no such guest")
        self.requests[request.path] += 1
        answer = await vm.handlers[request.method, request.path](request)
        if request.path == "/register" and isinstance(answer, server.Reply) and answer.status == 200:
            vm.agent = codec.decode(wire.AgentDesc, request.body)
        return answer

    def url_of(self, index: int) -> str:
        """The address of a VM's informant."""
        return f"http://{address_of(index)}:{self.port}"

    def guest_of(self, index: int) -> Guest:
        """The machine of a VM."""
        return self._vms[address_of(index)].guest

    def agent_of(self, index: int) -> wire.AgentDesc | None:
        """The description that the agent registered for a VM gave of itself; None if there was none."""
        return self._vms[address_of(index)].agent

    @property
    def registered(self) -> int:
        return sum(vm.agent is not None for vm in self._vms.values())


def address_of(index: int) -> str:
    """The loopback address of a VM."""
    return f"127.1.{index // 250}.{index % 250 + 1}"
