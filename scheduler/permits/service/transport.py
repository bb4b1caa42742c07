"""Where permits are asked for over HTTP: a request's bytes in, a status and bytes out. What must wait, waits in the service."""

from collections.abc import Awaitable
from dataclasses import dataclass
from time import perf_counter
from typing import Final

from hosting import server
from protocol import codec
from protocol.errors import RemoteProtocolError
from protocol.extension import AGENT_HEADER
from protocol.reasons import ErrorCode
from protocol.wire import AgentRequest
from scheduler.permits.service.answers import Outcome
from scheduler.permits.service.operations import PERMIT
from scheduler.permits.service.service import PermitService

_AGENT_HEADER: Final = AGENT_HEADER.lower()


@dataclass(frozen=True, slots=True)
class PermitTransport:
    """Reads requests for the service, and tells those that cannot be read."""

    service: PermitService

    def routes(self) -> tuple[server.Route, ...]:
        """Where permits are asked for. Published agents use no other path; their scheduler reads so much of a body."""
        limit = codec.MAX_REQUEST_BYTES
        return (
            server.Route("POST", "/", self.serve, max_body_bytes=limit, cuts=True, about=PERMIT),
            server.Route("*", "/", self.serve, max_body_bytes=limit, cuts=True),
        )

    async def serve(self, request: server.Request) -> Outcome:
        """Answer one HTTP request on `/`, whatever its method."""
        began_s = perf_counter()
        for_extension = _AGENT_HEADER in request.headers
        if request.method != "POST":
            text = "must be POST"
            return self.service.answers.error(400, ErrorCode.WRONG_METHOD, text, for_extension=for_extension)
        if request.is_cut and for_extension:
            text = f"the body must not exceed {codec.MAX_REQUEST_BYTES} bytes"
            return self.service.answers.error(413, ErrorCode.MALFORMED, text, for_extension=True)
        outcome = self.decide(request.body, for_extension=for_extension, waited_s=request.waited_s)
        if not isinstance(outcome, server.Reply | server.HangUp):
            outcome = await outcome
        self.service.stats.latency.observe(perf_counter() - began_s)
        return outcome

    def decide(
        self, body: bytes, *, for_extension: bool = False, waited_s: float = 0.0
    ) -> Outcome | Awaitable[Outcome]:
        """Answer one request: at once where nothing must be waited for.

        `for_extension` says that the caller has the extension (it sent the header), should the body not tell. A caller without it
        has waited for `waited_s` already.
        """
        try:
            request = codec.decode(AgentRequest, body)
        except RemoteProtocolError as error:
            return self.service.answers.error(
                error.status, error.code, str(error), for_extension=for_extension
            )
        return self.service.decide(request, body, waited_s)
