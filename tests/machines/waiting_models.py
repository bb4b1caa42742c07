"""Requests that wait inside the scheduler."""

from dataclasses import dataclass

from protocol.wire import AgentRequest
from tests.machines.agent_models import Packet
from tests.machines.cluster_models import Snapshot
from tests.machines.published_models import PublishedAgent


@dataclass(slots=True, eq=False)
class Waiting:
    """A request without the extension that waits inside the scheduler for a look that began earlier, since `since_s`."""

    agent: PublishedAgent
    request: AgentRequest
    look: Snapshot | None
    until_s: float
    since_s: float


@dataclass(slots=True, eq=False, frozen=True)
class Asking:
    """A request that waits for its pool's verdict, of either kind of agent; `is_taken` says that its answer arrives."""

    packet: Packet | None
    waiting: Waiting | None
    is_taken: bool
