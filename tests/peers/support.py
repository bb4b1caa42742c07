"""Helpers of the peers' own tests: short waits, a bare client, a bare agent."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any
from uuid import uuid4

from tests.peers.agent_server import AgentKnobs
from tests.peers.gojson import (
    AGENT_DESC,
    AGENT_IDENTIFICATION_MESSAGE,
    AGENT_REQUEST,
    Message,
    encode,
)
from tests.peers.published_informant import InformantKnobs
from tests.peers.recording import (
    JSON,
    Answer,
    Caller,
    Exchange,
    Fault,
    Journal,
    Peer,
    RecordingServer,
    Request,
)
from tests.peers.resources import Resources

LONG = 5.0  # a limit that no test is to reach


def informant_knobs(**changes: Any) -> InformantKnobs:
    """Limits that a loaded machine keeps; the order of /resume is the one that an agent survives."""
    knobs = InformantKnobs(
        resume_order="after", resume_delay=0.01, id_timeout=LONG, resume_timeout=LONG, suspend_timeout=LONG,
        try_upscale_timeout=LONG, health_period=60.0,
    )  # fmt: skip
    return replace(knobs, **changes)


def agent_knobs(**changes: Any) -> AgentKnobs:
    """Waits of milliseconds, limits that a loaded machine keeps."""
    knobs = AgentKnobs(
        request_timeout=LONG, register_timeout=LONG, register_retry=0.01, server_min_wait=0.01,
        server_normal_wait=0.02, downscale_timeout=LONG, metrics_period=0.02, metrics_timeout=LONG,
        metrics_min_wait=0.01, scheduler_min_wait=0.01, watchdog=LONG, own_lock_watchdog=0.02,
    )  # fmt: skip
    return replace(knobs, **changes)


@asynccontextmanager
async def running(*peers: Peer) -> AsyncIterator[None]:
    """The peers that are not started yet by hand, stopped in the end whatever happens."""
    started: list[Peer] = []
    try:
        for peer in peers:
            started.append(peer)
            await peer.start()
        yield
    finally:
        for peer in reversed(started):
            await peer.stop()


class Client:
    """A bare caller of one address."""

    def __init__(self) -> None:
        self.journal = Journal()
        self._caller = Caller(self.journal, content_type=JSON, redirects=True)

    async def start(self) -> None:
        pass

    async def stop(self) -> None:
        await self._caller.close()

    async def __call__(self, address: str, request: str, body: bytes | None = None) -> Exchange:
        method, _, path = request.partition(" ")
        await self._caller.call(method, f"http://{address}{path}", body, LONG)
        return self.journal.exchanges[-1]


@dataclass(eq=False)
class BareAgent:
    """An agent's own server that says yes to everything, except where the test orders a fault."""

    id: str = field(default_factory=lambda: str(uuid4()))
    versions: tuple[int, int] = (1, 2)
    numbers: list[int] = field(default_factory=list)  # sequence numbers to send first
    faults: list[Fault] = field(default_factory=list)
    journal: Journal = field(default_factory=Journal)
    sequence: int = 0
    answers_as: str | None = None

    def __post_init__(self) -> None:
        self.server = RecordingServer(self._handle, self.journal, self.faults)

    async def start(self) -> None:
        await self.server.start()

    async def stop(self) -> None:
        await self.server.stop()

    @property
    def desc(self) -> bytes:
        return self.described()

    def described(self, **changes: object) -> bytes:
        low, high = self.versions
        desc: Message = {
            "agentID": self.id,
            "agentServeAddr": self.server.address,
            "minProtoVersion": low,
            "maxProtoVersion": high,
        }
        return encode(AGENT_DESC, desc | changes)

    @property
    def requests(self) -> list[str]:
        return [f"{exchange.method} {exchange.path}" for exchange in self.journal.exchanges]

    async def _handle(self, _request: Request) -> Answer:
        self.sequence += 1
        message = {
            "data": {"agentID": self.answers_as or self.id},
            "sequenceNumber": self.numbers.pop(0) if self.numbers else self.sequence,
        }
        return Answer(200, encode(AGENT_IDENTIFICATION_MESSAGE, message))


LOADS: Message = {"loadAvg1M": 0.5, "loadAvg5M": 0.25}


def agent_request(
    asked: Resources, version: int = 2, metrics: Message | None = LOADS, pod: tuple[str, str] = ("ns", "a")
) -> bytes:
    message = {
        "protoVersion": version,
        "pod": {"namespace": pod[0], "name": pod[1]},
        "resources": asked.message(),
        "metrics": metrics,
    }
    return encode(AGENT_REQUEST, message)
