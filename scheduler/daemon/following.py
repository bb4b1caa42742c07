"""What a scheduler that does not lead answers: the address of the one that does, and the description of what that one serves.

A request of a caller without the extension may be its first one, and is its last where the connection is closed; so it is held
while this process is about to lead.
"""

import asyncio
import time
from dataclasses import replace
from typing import Final

from hosting import logs, server
from protocol import codec
from protocol.extension import AGENT_HEADER
from protocol.reasons import ErrorCode
from scheduler.daemon.serving import Serving, ServingOptions, Sources
from scheduler.permits.service.answers import not_leader
from scheduler.placing.extension.shared import ExtenderPorts, SharedExtension
from scheduler.ports import Cluster

_AGENT_HEADER: Final = AGENT_HEADER.lower()
_OF_AGENTS: Final = ("/", "/batch")
AWAITED_S: Final = 3.0
"""So long a request is held for this process to lead. What is left of the caller's patience goes to a look at the cluster."""


def is_published(request: server.Request) -> bool:
    """Whether a caller without the extension asks for a permit: it posts to `/` only."""
    return request.path == "/" and _AGENT_HEADER not in request.headers


class HeldRequests:
    """Requests of callers without the extension that wait for this process to lead. The server's cap on connections bounds them."""

    def __init__(self) -> None:
        self._leads = asyncio.Event()
        self._handler: server.Handler | None = None

    def answer_by(self, handler: server.Handler | None) -> None:
        """This process leads, and `handler` answers; None: it leads no more."""
        self._handler = handler
        (self._leads.set if handler is not None else self._leads.clear)()

    async def serve(self, request: server.Request) -> server.Reply | server.HangUp:
        """The answer once this process leads; the end of the connection where it does not in time."""
        clock = asyncio.get_running_loop().time
        began_s = clock()
        try:
            async with asyncio.timeout(AWAITED_S):
                await self._leads.wait()
        except TimeoutError:
            return server.HangUp()
        if self._handler is None:
            return server.HangUp()
        limit = codec.MAX_REQUEST_BYTES
        is_cut = len(request.body) > limit
        found = replace(request, body=request.body[:limit], is_cut=is_cut, waited_s=clock() - began_s)
        return await self._handler(found)


def refuse(request: server.Request, leader: str | None, own: str) -> server.Reply | server.HangUp:
    """Any answer but a permit would be fatal to callers without the extension, which post to `/` only. `own` is this process's address."""
    if is_published(request):
        return server.HangUp()
    if request.path in _OF_AGENTS:
        return not_leader(leader)
    if leader is None:
        detail = "no scheduler leads now, as far as this one knows"
    elif leader == own:
        detail = "this scheduler does not serve yet, or no more"
    else:
        detail = f"another scheduler leads; ask {leader}"
    return server.problem(503, ErrorCode.NOT_LEADER, detail, leader=leader)


def led_routes(
    options: ServingOptions, cluster: Cluster, *, has_scheduling: bool
) -> tuple[server.Route, ...]:
    """The routes that a leader has beside those of every scheduler, to be described. They are those of a core that never begins.

    Pages of scheduling plugins are left out: which there are is known once they are made, and only a leader makes them.
    """
    options = options.copy()
    options["journal"] = options["state"] = None  # only the leader's may be open
    serving = Serving(options, Sources(cluster, None, dict, are_pools_objects=True))
    if not has_scheduling:
        return serving.routes()
    ports = ExtenderPorts(serving.placements, serving.births, time.monotonic)
    return (*serving.routes(), *SharedExtension(ports, logs.logger("scheduling")).routes(dict))
