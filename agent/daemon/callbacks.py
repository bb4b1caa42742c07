"""The pages that informants call: `/agents/{agent_id}/id`, `/resume`, `/suspend`, `/try-upscale`, one port for all VMs.

The ID in the path and the `expectedID` of the body must both be the ID of the registration in force, else 404 as
from a published agent. Every good answer carries the next number of that registration's sequence.
Source: reference/neon.md sections 1.1, 1.4 and 1.5.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, TypeAlias
from uuid import UUID

from agent.core import events
from agent.core.state import RegistrationPhase
from agent.runner.runner import Runner
from hosting.server import Handler, HangUp, Reply, Request, Route, text
from protocol import codec, wire
from protocol.errors import RemoteProtocolError
from protocol.sequence import SequenceSource
from protocol.texts import clean

MAX_WHY: Final = 300
"""Characters of an informant's reason for a wish; a longer one is cut."""

_Message: TypeAlias = wire.Empty | wire.ResumeAgent | wire.SuspendAgent | wire.MoreResourcesRequest


@dataclass(slots=True)
class _Sequence:
    registration: UUID
    source: SequenceSource = field(default_factory=SequenceSource)


class Callbacks:
    """Finds the runner that a call is for, hands the event to it, and answers."""

    def __init__(self, runners: Callable[[], list[Runner]]) -> None:
        self._runners = runners
        self._known: dict[str, Runner] = {}
        """Runners by registration, as of the last search through all runners."""
        self._sequences: dict[str, _Sequence] = {}

    def routes(self) -> tuple[Route, ...]:
        """The four routes. `GET /id` comes with a body as the others do: `{}`."""
        return (
            Route("GET", "/agents/{agent_id}/id", self._serving(wire.Empty), 1024),
            Route("POST", "/agents/{agent_id}/resume", self._serving(wire.ResumeAgent), 1024),
            Route("POST", "/agents/{agent_id}/suspend", self._serving(wire.SuspendAgent), 1024),
            Route("POST", "/agents/{agent_id}/try-upscale", self._serving(wire.MoreResourcesRequest), 2048),
        )

    def _serving(self, kind: type[_Message]) -> Handler:
        async def serve(request: Request) -> Reply | HangUp:
            return self._call(request, kind)

        return serve

    def _find(self, agent_id: str) -> tuple[Runner, UUID] | None:
        agent_id, runners = agent_id.lower(), self._runners()
        for is_new in (False, True):
            if is_new:  # registered since, or unknown
                self._known = {str(each.state.informant.registration): each for each in runners}
            runner = self._known.get(agent_id)
            if runner is None or runner not in runners or runner.state.superseded_at_ms is not None:
                continue  # dormant: the agent that superseded it is the one to talk to
            registration = runner.state.informant.registration
            if registration is not None and str(registration) == agent_id:
                return runner, registration
        return None

    def _call(self, request: Request, kind: type[_Message]) -> Reply | HangUp:
        try:
            message = codec.decode(kind, request.body)
        except RemoteProtocolError as error:
            return text(error.status, str(error))
        found = self._find(request.parameters["agent_id"])
        if found is None or (not isinstance(message, wire.Empty) and message.expected_id != found[1]):
            return text(404, "no agent with this ID")
        runner, registration = found
        match message:
            case wire.Empty():
                return self._offer(runner, registration, events.InformantHeard(registration))
            case wire.ResumeAgent():
                return self._offer(runner, registration, events.Resumed(registration))
            case wire.SuspendAgent():
                return self._offer(runner, registration, events.Suspended(registration))
            case wire.MoreResourcesRequest():
                link = runner.state.informant
                if link.version is not None and not link.version.has_try_upscale():
                    return text(400, f"/try-upscale is not part of {link.version}")
                if link.phase is RegistrationPhase.SUSPENDED:
                    return text(400, "this agent is suspended")
                why = clean(message.why, MAX_WHY)
                event = events.TryUpscaleReceived(registration, message.more_resources(), why)
                return self._offer(runner, registration, event)

    def _offer(self, runner: Runner, registration: UUID, event: events.Event) -> Reply | HangUp:
        """Hand the event to the runner; the answer carries the next number."""
        if not runner.offer(event):
            return text(503, "this VM's runner has fallen behind")
        known = self._sequences.get(runner.vm.name)
        if known is None or known.registration != registration:
            known = self._sequences[runner.vm.name] = _Sequence(registration)
        known.source = known.source.next()
        message = wire.AgentMessage(wire.AgentIdentification(registration), known.source.last)
        return Reply(200, codec.encode(message))
