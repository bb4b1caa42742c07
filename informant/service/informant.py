"""One informant put together: its routes, its children, its figures."""

import random
from functools import partial
from typing import Final

from hosting.client import HttpClient
from hosting.logs import Logger
from hosting.server import Handler, HangUp, Reply, Request, Route, text
from hosting.supervisor import Child
from informant.core import report
from informant.core.guard import Guard
from informant.core.sessions import SessionPhase
from informant.core.shortage import ShortageDetector
from informant.core.state import GuestState
from informant.core.wishes import Wishes
from informant.guest import protection
from informant.service.agents import AgentSet
from informant.service.limits import Guest, LimitController
from informant.service.machine_control import MachineControl
from informant.settings import CommonSettings

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
"""As in `hosting.metrics`, whose library would cost a guest several megabytes for a page of its own making."""


class Informant:
    """An informant over its guest and the agents of its VM."""

    def __init__(
        self, guest: Guest, settings: CommonSettings, client: HttpClient, log: Logger, rng: random.Random
    ) -> None:
        self._settings = settings
        self._guest = guest
        self.agents = AgentSet(
            client, log, settings.deadlines, settings.health, Wishes(timing=settings.wishes()), rng
        )
        state = GuestState(
            Guard(settings.guard()), ShortageDetector(settings.thresholds()), guest.approves_all
        )
        self.limits = LimitController(guest, log, state, self.agents)
        self.machine = MachineControl(guest.machine, log)

    def routes(self) -> tuple[Route, ...]:
        """What the informant serves. Source: reference/neon.md section 1.1."""
        return (
            Route("POST", "/register", self.agents.register),
            Route("DELETE", "/unregister", self.agents.unregister),
            Route("PUT", "/downscale", partial(self._of_an_agent, self.limits.downscale)),
            Route("PUT", "/upscale", partial(self._of_an_agent, self.limits.upscale)),
            Route("GET", "/machine", self.machine.show),
            Route("PUT", "/machine", self.machine.order),
            Route("GET", "/metrics", self._metrics),
            Route("GET", "/healthz", self._healthz),
            Route("GET", "/readyz", self._healthz),
        )

    def children(self) -> dict[str, Child]:
        """What runs beside the server, by name."""
        found = self.agents.children()
        found["sample"] = partial(self.limits.sample, self._settings.sample)
        if self._guest.machine is not None:
            found["machine"] = self.machine.carry_out
        for number, source in enumerate(self._guest.sources):
            found[f"listen-{number}"] = partial(self.limits.listen, source)
        return found

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
        """What the informant tells of itself."""
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
