"""The pages by which the informants of a node's VMs call their runners.

Each call is checked before anything reaches a runner: by the ID of its registration, by its signature if the VM has a secret, and by the
rate of its VM. Published informants sign nothing, so a VM without a secret is known by the ID alone.
"""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Final, TypeAlias
from uuid import UUID

from agent.core import events
from agent.core.ports import BoundedMemo
from agent.core.state import RegistrationPhase
from agent.runner.runner import Runner
from hosting.logs import Logger
from hosting.metrics import Family
from hosting.server import Handler, HangUp, Reply, Request, Route, text
from hosting.signed_link import RefusalTally
from hosting.signing import HEADER, CallRefusal, RefusalReason, SignedRequest
from hosting.token_bucket import TokenBucket
from protocol import codec, wire
from protocol.errors import RemoteProtocolError
from protocol.sequence import SequenceSource
from protocol.texts import clean

MAX_WHY: Final = 300
"""Characters of an informant's reason for a wish; a longer one is cut."""
BURST: Final = 20
PER_S: Final = 5.0
"""Calls of one VM. An informant calls every ten seconds, and when a wish begins or ends."""

_Message: TypeAlias = wire.Empty | wire.ResumeAgent | wire.SuspendAgent | wire.MoreResourcesRequest


@dataclass(slots=True)
class _Sequence:
    registration: UUID
    source: SequenceSource = field(default_factory=SequenceSource)


class Callbacks:
    """The pages that informants call: `/agents/{agent_id}/id`, `/resume`, `/suspend`, `/try-upscale`, one port for all VMs. Finds the runner
    that a call is for, hands the event to it, and answers.

    The ID in the path and the `expectedID` of the body must both be the ID of the registration in force, else 404 as from a published
    agent. Every good answer carries the next number of that registration's sequence. Source: reference/neon.md 1.1, 1.4 and 1.5.
    """

    def __init__(
        self, runners: Callable[[], list[Runner]], log: Logger, now_s: Callable[[], float] = time.monotonic
    ) -> None:
        self._runners = runners
        self._now_s = now_s
        self._known: dict[UUID | None, Runner] = {}
        """Runners by registration, as of the last search through all runners."""
        self._sequences: dict[str, _Sequence] = {}
        self._rates = BoundedMemo(lambda: TokenBucket(BURST, PER_S))
        self._refused = RefusalTally(log, "call of an informant refused")

    def routes(self) -> tuple[Route, ...]:
        """The four routes. `GET /id` comes with a body as the others do: `{}`."""
        return (
            Route("GET", "/agents/{agent_id}/id", self._serving(wire.Empty), 1024),
            Route("POST", "/agents/{agent_id}/resume", self._serving(wire.ResumeAgent), 1024),
            Route("POST", "/agents/{agent_id}/suspend", self._serving(wire.SuspendAgent), 1024),
            Route("POST", "/agents/{agent_id}/try-upscale", self._serving(wire.MoreResourcesRequest), 2048),
        )

    def families(self) -> Iterator[Family]:
        """The metric of refused calls."""
        counts = tuple(((reason,), float(count)) for reason, count in sorted(self._refused.counts.items()))
        yield Family(
            "counter", "parley_agent_callbacks_refused", "Refused calls of informants", ("reason",), counts
        )

    def _serving(self, kind: type[_Message]) -> Handler:
        async def serve(request: Request) -> Reply | HangUp:
            return self._call(request, kind)

        return serve

    def _find(self, agent_id: str) -> tuple[Runner, UUID] | None:
        try:
            wanted = UUID(agent_id)
        except ValueError:
            return None
        if (
            str(wanted) != agent_id.lower()
        ):  # UUIDs can be written in many ways, and informants write them in one
            return None
        runners = self._runners()
        for is_new in (False, True):
            if is_new:  # registered since, or unknown
                self._known = {each.state.informant.registration: each for each in runners}
            runner = self._known.get(wanted)
            if runner is None or runner not in runners or runner.state.superseded_at_ms is not None:
                continue  # dormant: the agent that superseded it is the one to talk to
            if runner.state.informant.registration == wanted:
                return runner, wanted
        return None

    def _call(self, request: Request, kind: type[_Message]) -> Reply | HangUp:
        found = self._find(request.parameters["agent_id"])
        if found is None:
            return self._refuse(404, "unknown", "no agent with this ID", request)
        runner, registration = found
        refused = self._unproved(runner, registration, request)
        if refused is not None:
            return refused
        if not self._rates.of(runner.vm.name).take(self._now_s()):
            told = f"this VM calls more than {PER_S:g} times a second"
            return self._refuse(429, "flood", told, request, runner)
        try:
            message = codec.decode(kind, request.body)
        except RemoteProtocolError as error:
            return text(error.status, str(error))
        if not isinstance(message, wire.Empty) and message.expected_id != registration:
            return self._refuse(404, "unknown", "no agent with this ID", request, runner)
        return self._take(runner, registration, message)

    def _unproved(self, runner: Runner, registration: UUID, request: Request) -> Reply | None:
        """The refusal of a call that the VM's secret does not prove."""
        if runner.signed is None:
            return None
        said = SignedRequest(request.method, request.path, request.body)
        refused = runner.signed.refusal(request.headers.get(HEADER.lower()), said, registration)
        if refused is None:
            return None
        return self._refuse(401, refused.reason, refused.why, request, runner)

    def _refuse(
        self, status: int, reason: RefusalReason, why: str, request: Request, runner: Runner | None = None
    ) -> Reply:
        """Count and log a call that reaches no runner."""
        about = {"vm": runner.vm.name} if runner is not None else {}
        call = request.path.rpartition("/")[2]
        self._refused.refused(CallRefusal(reason, why), self._now_s(), call=call, peer=request.peer, **about)
        return text(status, why)

    def _take(self, runner: Runner, registration: UUID, message: _Message) -> Reply | HangUp:
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
            if len(self._sequences) > 2 * len(runners := self._runners()) + 16:
                there = {each.vm.name for each in runners}
                self._sequences = {name: each for name, each in self._sequences.items() if name in there}
        known.source = known.source.next()
        message = wire.AgentMessage(wire.AgentIdentification(registration), known.source.last)
        return Reply(200, codec.encode(message))
