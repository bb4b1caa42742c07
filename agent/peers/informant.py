"""The link to the informant: register, ask, tell; every outcome is an event."""

import random
from typing import Final
from uuid import UUID

from agent.core import events
from hosting import problems
from hosting.client import Answered, HttpClient, Outcome
from protocol import codec, wire
from protocol.errors import RemoteProtocolError
from protocol.texts import clean
from protocol.values import Resources
from protocol.versions import INFORMANT_SPOKEN

_REASON_CHARS: Final = 300


def _told(answer: Answered) -> str:
    """The error in an answer: its status, and the reason in its body, as one short line."""
    reason = clean(problems.text_of(answer.body), _REASON_CHARS)
    return f"status {answer.status}: {reason}" if reason else f"status {answer.status}"


class InformantLink:
    """Calls one VM's informant. `serve_addr` is the `host:port` that informants call back; a path is added to it."""

    def __init__(
        self, client: HttpClient, url: str, serve_addr: str, deadline_s: float, rng: random.Random
    ) -> None:
        self._client = client
        self._url = url
        self._serve_addr = serve_addr
        self._deadline_s = deadline_s
        self._rng = rng

    def _desc(self, registration: UUID) -> wire.AgentDesc:
        address = f"{self._serve_addr}/agents/{registration}"
        return wire.AgentDesc(registration, address, INFORMANT_SPOKEN.min, INFORMANT_SPOKEN.max)

    async def register(self, registration: UUID) -> events.Registered | events.RegisterFailed:
        chance = self._rng.random()
        outcome = await self._send("POST", "/register", self._desc(registration))
        if not isinstance(outcome, Answered):
            return events.RegisterFailed(outcome.message, chance)
        if outcome.status != 200:
            return events.RegisterFailed(_told(outcome), chance)
        try:
            desc = codec.decode(wire.InformantDesc, outcome.body)
        except RemoteProtocolError as error:
            return events.RegisterFailed(clean(str(error), _REASON_CHARS), chance)
        if desc.proto_version not in INFORMANT_SPOKEN:
            return events.RegisterFailed(f"it chose version {desc.proto_version}", chance)
        if desc.metrics_method.prometheus is None:
            return events.RegisterFailed("it names no way to read metrics", chance)
        return events.Registered(registration, desc.proto_version, desc.metrics_method.prometheus.port)

    async def unregister(self, registration: UUID, deadline_s: float) -> None:
        body = codec.encode(self._desc(registration))
        _ = await self._client.call("DELETE", f"{self._url}/unregister", body=body, deadline_s=deadline_s)

    async def ask_downscale(
        self, amount: Resources
    ) -> events.DownscaleApproved | events.DownscaleDenied | events.InformantFailed:
        outcome = await self._send("PUT", "/downscale", wire.RawResources(*amount.as_quantities()))
        if not isinstance(outcome, Answered) or outcome.status != 200:
            return self._failure(outcome)
        try:
            result = codec.decode(wire.DownscaleResult, outcome.body)
        except RemoteProtocolError as error:
            return events.InformantFailed(clean(str(error), _REASON_CHARS), False, self._rng.random())
        if result.ok:
            return events.DownscaleApproved(amount)
        return events.DownscaleDenied(amount, clean(result.status, _REASON_CHARS))

    async def announce_upscale(self, amount: Resources) -> events.UpscaleAnnounced | events.InformantFailed:
        outcome = await self._send("PUT", "/upscale", wire.RawResources(*amount.as_quantities()))
        if not isinstance(outcome, Answered) or outcome.status != 200:
            return self._failure(outcome)
        return events.UpscaleAnnounced(amount)

    async def _send(self, method: str, path: str, message: wire.Message) -> Outcome:
        return await self._client.call(
            method, f"{self._url}{path}", body=codec.encode(message), deadline_s=self._deadline_s
        )

    def _failure(self, outcome: Outcome) -> events.InformantFailed:
        if isinstance(outcome, Answered):
            return events.InformantFailed(_told(outcome), outcome.status == 404, self._rng.random())
        return events.InformantFailed(outcome.message, outcome.kind == "connect", self._rng.random())
