"""The link to the metrics exporter of a VM: a page becomes one `Sample`."""

import random
import time

from agent.core import events
from agent.core.model import Sample
from hosting.client import Answered, Client
from protocol import exporter
from protocol.errors import RemoteProtocolError


class ExporterLink:
    """Reads one VM's exporter. `prefix` is that of its metrics, "node_" or "host_"."""

    def __init__(self, client: Client, host: str, prefix: str, deadline_s: float, rng: random.Random) -> None:
        self._client = client
        self._host = host
        self._prefix = prefix
        self._deadline_s = deadline_s
        self._rng = rng

    async def read(self, port: int) -> events.MetricsRead | events.MetricsFailed:
        """Read the page on `port`."""
        url = f"http://{self._host}:{port}/metrics"
        outcome = await self._client.call("GET", url, deadline_s=self._deadline_s)
        chance = self._rng.random()
        if not isinstance(outcome, Answered):
            return events.MetricsFailed(outcome.message, outcome.kind == "connect", chance)
        if outcome.status != 200:
            return events.MetricsFailed(f"status {outcome.status}", False, chance)
        busy = f"{self._prefix}cpu_busy_seconds_total"
        try:
            metrics = exporter.read_metrics(outcome.body, self._prefix)
            found = exporter.samples(outcome.body, (busy,))
        except RemoteProtocolError as error:
            return events.MetricsFailed(str(error)[:300], False, chance)
        return events.MetricsRead(
            Sample(time.monotonic(), metrics.load_average_1min, metrics.load_average_5min, found.get(busy))
        )
