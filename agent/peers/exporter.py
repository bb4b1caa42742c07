"""The link to the metrics exporter of a VM: a page becomes one `Sample`."""

import random
import time
from typing import Final

from agent.core import events
from agent.core.model import Sample, Stalls, Vm
from hosting.client import Answered, HttpClient
from protocol import exporter
from protocol.errors import RemoteProtocolError
from protocol.texts import clean

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


class ExporterLink:
    """Reads one VM's exporter. `prefix` is that of its metrics, "node_" or "host_"; its page is below `path`."""

    def __init__(
        self,
        client: HttpClient,
        host: str,
        prefix: str,
        deadline_s: float,
        rng: random.Random,
        *,
        path: str = "",
    ) -> None:
        self._client = client
        self._host = host
        self._path = path.rstrip("/")
        self._prefix = prefix
        self._deadline_s = deadline_s
        self._rng = rng

    async def read(self, vm: Vm, port: int) -> events.MetricsRead | events.MetricsFailed:
        del vm  # it is the only one there
        url = f"http://{self._host}:{port}{self._path}/metrics{_QUERY}"
        outcome = await self._client.call("GET", url, deadline_s=self._deadline_s)
        chance = self._rng.random()
        if not isinstance(outcome, Answered):
            return events.MetricsFailed(outcome.message, outcome.kind == "connect", chance)
        if outcome.status != 200:
            return events.MetricsFailed(f"status {outcome.status}", False, chance)
        try:
            metrics = exporter.read_metrics(outcome.body, self._prefix)
            found = exporter.samples(outcome.body, tuple(self._prefix + name for name in _NAMES))
        except RemoteProtocolError as error:
            return events.MetricsFailed(clean(str(error), 300), False, chance)
        figures = {name: found.get(self._prefix + name) for name in _NAMES}
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
