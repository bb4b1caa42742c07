"""What a scheduler that does not lead answers: the address of the one that does, and the description of what that one serves."""

import time
from typing import Final

from hosting import logs, server
from protocol.extension import AGENT_HEADER
from protocol.reasons import ErrorCode
from scheduler.daemon.serving import Serving, ServingOptions, Sources
from scheduler.framework.extension.shared import ExtenderPorts, SharedExtension
from scheduler.permits.answers import not_leader
from scheduler.ports import Cluster

_AGENT_HEADER: Final = AGENT_HEADER.lower()
_OF_AGENTS: Final = ("/", "/batch")


def refuse(request: server.Request, leader: str | None, own: str) -> server.Reply | server.HangUp:
    """Any answer but a permit would be fatal to callers without the extension, which post to `/` only. `own` is this process's address."""
    if request.path == "/" and _AGENT_HEADER not in request.headers:
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
