"""The metrics endpoint: plain integers on the hot path, one collector that reads them when somebody scrapes.

Every scrape shows the present state and nothing else, so zeros and vanished objects need no care.
"""

import asyncio
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Final, Literal, TypeAlias

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from hosting import logs
from hosting.server import Handler, Reply, Request, Server
from hosting.threads import in_own_thread

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"


@dataclass(frozen=True, slots=True)
class Family:
    """One metric with its samples now. Counters end in `_total` on the page, whether the name says so or not.

    Samples are gone through once, in another thread than the loop's: many of them may be made only then.
    """

    kind: Literal["counter", "gauge"]
    name: str
    help: str
    labels: tuple[str, ...]
    samples: Iterable[tuple[tuple[str, ...], float]]


DURATION_BOUNDS_S: Final = (
    0.00005, 0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0,
)  # fmt: skip


@dataclass(slots=True)
class Durations:
    """Counts of durations by upper bound (`DURATION_BOUNDS_S`); the last one counts the durations above all of them."""

    counts: list[int] = field(default_factory=lambda: [0] * (len(DURATION_BOUNDS_S) + 1))
    sum_s: float = 0.0

    def observe(self, duration_s: float) -> None:
        self.counts[bisect_left(DURATION_BOUNDS_S, duration_s)] += 1
        self.sum_s += duration_s

    def now(self) -> "Durations":
        """A copy for a reader in another thread."""
        return Durations(list(self.counts), self.sum_s)


@dataclass(frozen=True, slots=True)
class HistogramFamily:
    """A histogram of durations with its counts now, by the values of its labels."""

    name: str
    help: str
    durations: tuple[tuple[tuple[str, ...], Durations], ...]
    labels: tuple[str, ...] = ()
    kind: Literal["histogram"] = "histogram"

    def metric(self) -> Metric:
        """The metric as the library knows it: cumulative counts by upper bound."""
        metric = HistogramMetricFamily(self.name, self.help, labels=self.labels)
        bounds = [*(f"{bound:g}" for bound in DURATION_BOUNDS_S), "+Inf"]
        for labels, durations in self.durations:
            buckets = list(zip(bounds, accumulate(durations.counts), strict=True))
            metric.add_metric(labels, buckets=buckets, sum_value=durations.sum_s)
        return metric


AnyFamily: TypeAlias = Family | HistogramFamily


def server_families(*servers: Server) -> tuple[Family, ...]:
    """The metrics of every process with HTTP servers: sums over `servers`, and log lines that were lost."""
    counted: Counter[str] = Counter()
    for server in servers:
        counted.update(server.stats)
    events = tuple(((event,), float(count)) for event, count in counted.items())
    gates = {id(server.gate): server.gate for server in servers if server.gate is not None}
    refused: Counter[tuple[str, str]] = Counter()
    for refusals in (*(gate.refusals for gate in gates.values()), *(server.refusals for server in servers)):
        refused.update(refusals.counts)
    connections = sum(server.open_connections() for server in servers)
    return (
        Family("counter", "parley_http_server", "Events of the HTTP server", ("event",), events),
        Family(
            "counter",
            "parley_http_refused",
            "Requests and connections that were refused to their caller, by the right that they needed and the reason",
            ("right", "reason"),
            tuple((key, float(count)) for key, count in sorted(refused.items())),
        ),
        Family(
            "counter",
            "parley_log_lost",
            "Log lines that could not be written",
            (),
            (((), logs.lost_lines()),),
        ),
        Family("gauge", "parley_http_connections", "Open connections", (), (((), connections),)),
    )


class _Live(Collector):
    def __init__(self, read: Callable[[], Iterable[AnyFamily]]) -> None:
        self._read = read

    def collect(self) -> Iterable[Metric]:
        for family in self._read():
            if isinstance(family, HistogramFamily):
                yield family.metric()
                continue
            made = CounterMetricFamily if family.kind == "counter" else GaugeMetricFamily
            metric = made(family.name, family.help, labels=family.labels)
            for labels, value in family.samples:
                metric.add_metric(labels, value)
            yield metric


def handler(read: Callable[[], Iterable[AnyFamily]]) -> Handler:
    """A handler for `GET /metrics`. `read` runs in the event loop (it reads live state), one family at a time; rendering in a thread."""

    async def serve(_: Request) -> Reply:
        families = []
        for family in read():
            families.append(family)
            await asyncio.sleep(0)
        registry = CollectorRegistry(auto_describe=False)
        registry.register(_Live(lambda: families))
        page = await in_own_thread(lambda: generate_latest(registry))
        return Reply(200, page, CONTENT_TYPE)

    return serve
