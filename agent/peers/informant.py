"""The links to the guest: to its informant (register, ask, tell), to its metrics exporter, of which a page becomes one `Sample`, and to the
node informant for the control groups of a pod. Every outcome of the first two is an event."""

import random
import time
from dataclasses import dataclass, field
from typing import Final
from uuid import UUID, uuid4

from agent.core import events
from agent.core.model import Sample, Stalls, Vm
from hosting import problems, signed_link
from hosting.client import Answered, HttpClient, Outcome
from hosting.signed_link import SignedLink
from protocol import codec, exporter, wire
from protocol.errors import RemoteProtocolError
from protocol.informant_pages import PodCgroups
from protocol.texts import clean
from protocol.values import Resources
from protocol.versions import INFORMANT_SPOKEN

_REASON_CHARS: Final = 300


def _told(answer: Answered) -> str:
    """The error in an answer: its status, and the reason in its body, as one short line."""
    reason = clean(problems.text_of(answer.body), _REASON_CHARS)
    return f"status {answer.status}: {reason}" if reason else f"status {answer.status}"


@dataclass(frozen=True, slots=True)
class InformantLink:
    """Calls one VM's informant. `serve_addr` is the `host:port` that informants call back, or the base of a `unix:` URL; a path is added to it.

    Requests are signed by `signed`, if the VM has a secret, under the ID `sender`: most of them belong to no registration.
    """

    client: HttpClient
    url: str
    serve_addr: str
    deadline_s: float
    rng: random.Random
    signed: SignedLink | None = None
    sender: UUID = field(default_factory=uuid4)

    def _desc(self, registration: UUID) -> wire.AgentDesc:
        address = f"{self.serve_addr}/agents/{registration}"
        return wire.AgentDesc(registration, address, INFORMANT_SPOKEN.min, INFORMANT_SPOKEN.max)

    async def register(self, registration: UUID) -> events.Registered | events.RegisterFailed:
        chance = self.rng.random()
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
        await self._send("DELETE", "/unregister", self._desc(registration), deadline_s)

    async def ask_downscale(
        self, amount: Resources
    ) -> events.DownscaleApproved | events.DownscaleDenied | events.InformantFailed:
        outcome = await self._send("PUT", "/downscale", wire.RawResources(*amount.as_quantities()))
        if not isinstance(outcome, Answered) or outcome.status != 200:
            return self._failure(outcome)
        try:
            result = codec.decode(wire.DownscaleResult, outcome.body)
        except RemoteProtocolError as error:
            return events.InformantFailed(clean(str(error), _REASON_CHARS), False, self.rng.random())
        if result.ok:
            return events.DownscaleApproved(amount)
        return events.DownscaleDenied(amount, clean(result.status, _REASON_CHARS))

    async def announce_upscale(self, amount: Resources) -> events.UpscaleAnnounced | events.InformantFailed:
        outcome = await self._send("PUT", "/upscale", wire.RawResources(*amount.as_quantities()))
        if not isinstance(outcome, Answered) or outcome.status != 200:
            return self._failure(outcome)
        return events.UpscaleAnnounced(amount)

    async def _send(
        self, method: str, path: str, message: wire.Message, deadline_s: float | None = None
    ) -> Outcome:
        return await signed_link.call(
            self.client,
            self.signed,
            self.sender,
            method,
            f"{self.url}{path}",
            body=codec.encode(message),
            deadline_s=self.deadline_s if deadline_s is None else deadline_s,
        )

    def _failure(self, outcome: Outcome) -> events.InformantFailed:
        if isinstance(outcome, Answered):
            return events.InformantFailed(_told(outcome), outcome.status == 404, self.rng.random())
        return events.InformantFailed(outcome.message, outcome.kind == "connect", self.rng.random())


_BUSY: Final = "cpu_busy_seconds_total"
_CPUS: Final = "cpus"
_TOTAL: Final = "memory_MemTotal_bytes"
_AVAILABLE: Final = "memory_MemAvailable_bytes"
_NAMES: Final = (
    _BUSY,
    _CPUS,
    _TOTAL,
    _AVAILABLE,
    *(
        f"pressure_{resource}_{kind}_seconds_total"
        for resource in ("cpu", "memory")
        for kind in ("waiting", "stalled")
    ),
)
_QUERY: Final = "?for=agent&collect[]=loadavg&collect[]=meminfo&collect[]=pressure&collect[]=cpu"
"""Asks for the metrics that are needed: Parley's informant knows `for`, the published exporter `collect[]`."""


@dataclass(frozen=True, slots=True)
class ExporterLink:
    """Reads one VM's exporter. `prefix` is that of its metrics, "node_" or "host_"; its page is below `path`.

    With `base`, a `unix:` URL, the page is there: a socket has no ports.
    """

    client: HttpClient
    host: str
    prefix: str
    deadline_s: float
    rng: random.Random
    path: str = ""
    base: str = ""

    async def read(self, vm: Vm, port: int) -> events.MetricsRead | events.MetricsFailed:
        del vm  # it is the only one there
        base = self.base or f"http://{self.host}:{port}{self.path.rstrip('/')}"
        outcome = await self.client.call("GET", f"{base}/metrics{_QUERY}", deadline_s=self.deadline_s)
        chance = self.rng.random()
        if not isinstance(outcome, Answered):
            return events.MetricsFailed(outcome.message, outcome.kind == "connect", chance)
        if outcome.status != 200:
            return events.MetricsFailed(f"status {outcome.status}", False, chance)
        try:
            names = tuple(self.prefix + name for name in _NAMES)
            metrics, found = exporter.read(outcome.body, self.prefix, names)
        except RemoteProtocolError as error:
            return events.MetricsFailed(clean(str(error), 300), False, chance)
        figures = {name: found.get(self.prefix + name) for name in _NAMES}
        return events.MetricsRead(
            Sample(
                time.monotonic(),
                metrics.load_average_1min,
                metrics.load_average_5min,
                figures[_BUSY],
                _bytes(figures[_TOTAL]),
                _bytes(figures[_AVAILABLE]),
                _stalls(figures, "cpu"),
                _stalls(figures, "memory"),
                figures[_CPUS],
            )
        )


def _bytes(value: float | None) -> int | None:
    return int(value) if value is not None and 0 <= value < 2**63 else None


def _stalls(figures: dict[str, float | None], resource: str) -> Stalls | None:
    some = figures[f"pressure_{resource}_waiting_seconds_total"]
    return None if some is None else Stalls(some, figures[f"pressure_{resource}_stalled_seconds_total"])


DEADLINE_S: Final = 1.0
"""The informant is on the same node, and reads some files."""


async def read_cgroups(client: HttpClient, url: str) -> PodCgroups | None:
    """The control groups of the pod whose informant is at `url`; None if it does not tell them."""
    outcome = await client.call("GET", f"{url.rstrip('/')}/cgroups", deadline_s=DEADLINE_S)
    if not isinstance(outcome, Answered) or outcome.status != 200:
        return None
    try:
        return codec.decode(PodCgroups, outcome.body)
    except RemoteProtocolError:
        return None
