"""The metrics endpoint: plain integers on the hot path, one collector that reads them when somebody scrapes.

Zeros and vanished objects come for free, because every scrape tells the present state and nothing else.
"""

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final, Literal

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from hosting import logs
from hosting.server import Handler, Reply, Request, Server

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"


@dataclass(frozen=True, slots=True)
class Family:
    """One metric with its samples now. Counters end in `_total` on the page, whether the name says so or not."""

    kind: Literal["counter", "gauge"]
    name: str
    help: str
    labels: tuple[str, ...]
    samples: tuple[tuple[tuple[str, ...], float], ...]


def server_families(server: Server) -> tuple[Family, ...]:
    """What every process with an HTTP server tells of itself."""
    events = tuple(((event,), float(count)) for event, count in server.stats.items())
    return (
        Family("counter", "parley_http_server", "Events of the HTTP server", ("event",), events),
        Family(
            "counter",
            "parley_log_lost",
            "Log lines that could not be written",
            (),
            (((), logs.lost_lines()),),
        ),
        Family(
            "gauge", "parley_http_connections", "Open connections", (), (((), server.open_connections()),)
        ),
    )


class _Live(Collector):
    def __init__(self, read: Callable[[], Iterable[Family]]) -> None:
        self._read = read

    def collect(self) -> Iterable[Metric]:
        for family in self._read():
            made = CounterMetricFamily if family.kind == "counter" else GaugeMetricFamily
            metric = made(family.name, family.help, labels=family.labels)
            for labels, value in family.samples:
                metric.add_metric(labels, value)
            yield metric


def handler(read: Callable[[], Iterable[Family]]) -> Handler:
    """A handler for `GET /metrics`. `read` runs in the event loop (it reads live state); rendering in a thread."""

    async def serve(_: Request) -> Reply:
        families = tuple(read())
        registry = CollectorRegistry(auto_describe=False)
        registry.register(_Live(lambda: families))
        page = await asyncio.to_thread(generate_latest, registry)
        return Reply(200, page, CONTENT_TYPE)

    return serve
