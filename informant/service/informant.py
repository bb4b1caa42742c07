"""One informant put together: its sources of events, its routes, its children, its figures, and who may resize the machine."""

import asyncio
import random
from functools import partial
from pathlib import Path
from typing import Final

from hosting.client import HttpClient
from hosting.fault_log import FaultLog
from hosting.logs import Logger
from hosting.server import Handler, HangUp, Reply, Request, Route, text
from hosting.signed_link import RefusalTally, SignedLink
from hosting.signing import HEADER, SIGNATURE_REFUSALS, SignedRequest
from hosting.supervisor import Child
from hosting.threads import SingleCall
from informant.core import report
from informant.core.cpu_orders import CpuOrders, CpuSwitch
from informant.core.guard import Guard
from informant.core.sessions import SessionPhase, Wishes
from informant.core.shortage import ShortageDetector
from informant.core.state import GuestState
from informant.guest import protection, watching
from informant.guest.cgroup import Cgroup
from informant.guest.kernel import Finding, reason_of
from informant.guest.machine import MachineFiles
from informant.guest.watching import EventSource, SourceName
from informant.service.agents import AgentSet
from informant.service.limits import Guest, LimitController
from informant.settings import CommonSettings, InformantSettings
from protocol import codec
from protocol.errors import RemoteProtocolError
from protocol.informant_pages import GuestMachine, MachineOrder

SWITCH_S: Final = 10.0
"""How long the kernel may take for one CPU; 1.8 s were seen in a guest whose only CPU was busy. Then the order is given up."""
ANSWER_S: Final = 3.0
"""An order is answered after so long at most; the rest of it goes on."""


class MachineControl:
    """Carries out the newest order. The caller who ordered need not wait for it: the order stands without its caller."""

    def __init__(
        self,
        files: MachineFiles | None,
        log: Logger,
        *,
        switch_s: float = SWITCH_S,
        answer_s: float = ANSWER_S,
    ) -> None:
        """`files` is None if the guest has no machine of its own: a synthetic load, a pod."""
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
        """The next switch of the order that stands; the order has ended if there is none."""
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
            pass  # it is being plugged in or out: the caller who ordered it sees that it is not online
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
        """The machine now, with that status; `unshown` if it cannot be told."""
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
        """The informant's figures of the machine; empty if the kernel does not tell."""
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
    """Why CPUs cannot be switched; empty if they can."""
    try:
        return files.lacks()
    except (OSError, ValueError) as error:
        return str(error)


CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
"""As in `hosting.metrics`, whose library would cost a guest several megabytes for a page of its own making."""


class Informant:
    """An informant over its guest and the agents of its VM. With `signed`, the link by the VM's secret, agents must sign what they ask."""

    def __init__(
        self,
        guest: Guest,
        settings: CommonSettings,
        client: HttpClient,
        log: Logger,
        rng: random.Random,
        signed: SignedLink | None = None,
    ) -> None:
        self._settings = settings
        self._guest = guest
        self._signed = signed
        self._refused = RefusalTally(log, "request refused")
        self.agents = AgentSet(
            client, log, settings.deadlines, settings.health, Wishes(timing=settings.wishes()), rng, signed
        )
        state = GuestState(
            Guard(settings.guard()), ShortageDetector(settings.thresholds()), guest.approves_all
        )
        self.limits = LimitController(guest, log, state, self.agents)
        self.machine = MachineControl(guest.machine, log)

    def routes(self) -> tuple[Route, ...]:
        """The routes of the informant. Source: reference/neon.md section 1.1. `/metrics` is open, as that of a published guest is: it tells
        of load alone, and exporters are read by others than agents, too."""
        signed = self._of_a_signer
        return (
            Route("POST", "/register", partial(signed, self.agents.register)),
            Route("DELETE", "/unregister", partial(signed, self.agents.unregister)),
            Route("PUT", "/downscale", partial(signed, partial(self._of_an_agent, self.limits.downscale))),
            Route("PUT", "/upscale", partial(signed, partial(self._of_an_agent, self.limits.upscale))),
            Route("GET", "/machine", partial(signed, self.machine.show)),
            Route("PUT", "/machine", partial(signed, self.machine.order)),
            Route("GET", "/metrics", self._metrics),
            Route("GET", "/healthz", self._healthz),
            Route("GET", "/readyz", self._healthz),
        )

    def children(self) -> dict[str, Child]:
        found = self.agents.children()
        found["sample"] = partial(self.limits.sample, self._settings.sample)
        if self._guest.machine is not None:
            found["machine"] = self.machine.carry_out
        for number, source in enumerate(self._guest.sources):
            found[f"listen-{number}"] = partial(self.limits.listen, source)
        return found

    async def _of_a_signer(self, handler: Handler, request: Request) -> Reply | HangUp:
        """Refuse what is not signed by the VM's secret, if it has one."""
        if self._signed is not None:
            said = SignedRequest(request.method, request.path, request.body)
            refused = self._signed.refusal(request.headers.get(HEADER.lower()), said)
            if refused is not None:
                now_s = asyncio.get_running_loop().time()
                self._refused.refused(refused, now_s, path=request.path, peer=request.peer)
                return text(401, refused.why)
        return await handler(request)

    async def _of_an_agent(self, handler: Handler, request: Request) -> Reply | HangUp:
        """Agree on sizes with registered agents alone. These requests carry no ID: an agent that hears 404 registers again.

        Otherwise an agent that outlives the informant would go on for hours unregistered, and never hear of a wish.
        """
        if not self.agents.is_any_registered():
            return text(404, "no agent is registered: register first")
        return await handler(request)

    async def _metrics(self, request: Request) -> Reply | HangUp:
        for_agent = request.query.get("for") == "agent"
        own = {} if for_agent else self.figures()
        return Reply(200, report.page(self.limits.look(), own, for_agent=for_agent), CONTENT_TYPE)

    async def _healthz(self, _: Request) -> Reply | HangUp:
        return text(200, "ok")

    def figures(self) -> dict[str, float]:
        phases = [session.phase for session in self.agents.sessions.all]
        wished, state = self.agents.wished, self.limits.state
        figures: dict[str, float] = {
            f'parley_informant_agents{{phase="{phase.value}"}}': phases.count(phase) for phase in SessionPhase
        }
        figures |= {
            f"parley_informant_{name}_total": count
            for name, count in (
                ("wishes", self.agents.counts["wishes"]),
                ("wishes_delivered", self.agents.counts["delivered"]),
                ("stale_answers", self.agents.counts["stale"]),
                ("downscales_approved", state.stats.approved),
                ("downscales_refused", state.stats.refused),
                ("limit_hits", state.stats.hits),
                ("freezes", state.stats.freezes),
                ("found_frozen", state.stats.found_frozen),
            )
        }
        if self._signed is not None:
            for reason in SIGNATURE_REFUSALS:
                name = f'parley_informant_requests_refused_total{{reason="{reason}"}}'
                figures[name] = self._refused.counts[reason]
        figures['parley_informant_wish{resource="cpu"}'] = wished.cpu
        figures['parley_informant_wish{resource="memory"}'] = wished.memory
        size = state.guard.size
        if size is not None:
            figures["parley_informant_size_cpus"] = size.vcpu_milli / 1000
            figures["parley_informant_size_memory_bytes"] = size.memory_bytes
        for number, source in enumerate(self._guest.sources):
            figures[f'parley_informant_event_source{{name="{source.name}",number="{number}"}}'] = 1
        figures |= self.machine.figures()
        figures["parley_informant_resident_memory_bytes"] = protection.resident_bytes()
        return figures


PRESSURE: Final = Path("/proc/pressure")
NOT_WANTED: Final = "not wanted by the settings"


def open_sources(
    cgroup: Cgroup | None, settings: InformantSettings, pressure: Path = PRESSURE
) -> tuple[tuple[EventSource, ...], tuple[Finding, ...]]:
    """All sources of events that the guest has, open, which the caller closes: the limits of the workload's cgroup, and pressure; and findings
    on all of them. Needs a running event loop."""
    sources: list[EventSource] = []
    findings: list[Finding] = []
    if cgroup is not None and "memory.events" not in cgroup.lacks():
        path = cgroup.path / "memory.events"
        source = watching.LastingSource(path, partial(watching.listen, path, settings.sources()))
        sources.append(source)
        findings.append(Finding("events of memory.events", True, _told(source.name, source.lacks)))
    for resource, share, over_s in (
        ("memory", settings.memory.waiting_share, settings.memory.over),
        ("cpu", settings.cpu.waiting_share, settings.cpu.over),
    ):
        own = cgroup.path / f"{resource}.pressure" if cgroup is not None else None
        path = own if own is not None and own.exists() else pressure / resource
        name = f"trigger of {path}"
        if share is None or settings.events not in ("auto", "poll"):
            findings.append(Finding(name, False, NOT_WANTED))
            continue
        try:
            trigger = watching.LastingSource(path, partial(_trigger, path, share, over_s))
        except OSError as error:
            findings.append(Finding(name, False, reason_of(error)))
        else:
            sources.append(trigger)
            findings.append(Finding(name, True, trigger.told))
    return tuple(sources), tuple(findings)


def _trigger(path: Path, share: float, over_s: float) -> tuple[EventSource, dict[str, str]]:
    return watching.pressure(path, share, over_s), {}


def _told(name: SourceName, lacks: dict[str, str]) -> str:
    return "; ".join([f"by {name}", *(f"no {other}: {why}" for other, why in lacks.items())])
