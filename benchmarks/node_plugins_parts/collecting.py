"""The cost of the metric cache and the collectors over 110 pods of three containers, in a process of its own.

`python -m benchmarks.node_plugins_parts.collecting CGROUPS SECONDS`: prints one JSON line.
"""

import asyncio
import contextlib
import gc
import itertools
import json
import sys
import time
from pathlib import Path
from typing import Any, Final

import psutil
import uvloop

from agent.node.qos.collectors import Collectors
from agent.node.qos.core import metrics
from agent.node.qos.core.metrics import Aggregation, MetricSample
from agent.node.qos.core.states import NodeState
from agent.node.qos.metric_cache import TimeSeriesCache
from agent.node.qos.states_informer import StateCallbacks, States
from benchmarks.load.figures import in_ms, percentile
from benchmarks.node_plugins_parts.groups import CONTAINERS, PODS, uid_of
from hosting import logs
from hosting.cgroups.tree import CgroupTree
from protocol.values import Resources

FULL_S: Final = 300
PROBE_S: Final = 0.005
QUERIES: Final = 200
PER_POD: Final = (metrics.POD_CPU_USAGE, metrics.POD_MEMORY_USAGE, metrics.POD_CPU_THROTTLED)
PER_CONTAINER: Final = (
    metrics.CONTAINER_CPU_USAGE,
    metrics.CONTAINER_MEMORY_USAGE,
    metrics.CONTAINER_CPU_THROTTLED,
)


class Clock:
    """A clock that the benchmark sets."""

    def __init__(self) -> None:
        self.now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


def _resident_mb() -> float:
    gc.collect()
    return float(psutil.Process().memory_info().rss) / 1e6


def cache_figures() -> dict[str, float]:
    """Memory of a cache with 5 minutes of all series at 1 Hz, and the time of queries of it."""
    clock = Clock()
    ids = [f"{number:064x}" for number in range(PODS * CONTAINERS)]
    uids = [uid_of(number) for number in range(PODS)]
    before_mb = _resident_mb()
    cache = TimeSeriesCache(clock=clock)
    began_s = time.process_time()
    for _ in range(FULL_S):
        clock.now_s += 1.0
        for index, uid in enumerate(uids):
            batch = [MetricSample(kind, clock.now_s, 1.5, {"pod_uid": uid}) for kind in PER_POD]
            for container in ids[index * CONTAINERS : (index + 1) * CONTAINERS]:
                properties = {"container_id": container}
                batch += [MetricSample(kind, clock.now_s, 1.5, properties) for kind in PER_CONTAINER]
            cache.append(batch)
    added_s = time.process_time() - began_s
    taken_mb = _resident_mb() - before_mb
    one = _timed(
        lambda: cache.query(
            metrics.POD_CPU_USAGE, FULL_S, Aggregation.P99, {"pod_uid": uids[next(numbers) % PODS]}
        )
    )
    each = _timed(lambda: cache.query_each(metrics.POD_CPU_USAGE, FULL_S, Aggregation.P99))
    return {
        "cache_series": len(cache),
        "cache_mb": round(taken_mb, 1),
        "cache_bound_mb": round(cache.bound_bytes / 1e6, 1),
        "cache_add_us": round(added_s / FULL_S / len(cache) * 1e6, 2),
        "query_pod_p99_ms": round(percentile(one, 0.99) * 1000, 3),
        "query_all_pods_p99_ms": round(percentile(each, 0.99) * 1000, 3),
    }


numbers = itertools.count()


def _timed(call: Any) -> list[float]:
    found = []
    for _ in range(QUERIES):
        began_s = time.perf_counter()
        call()
        found.append(time.perf_counter() - began_s)
    return sorted(found)


async def _late(seconds: float) -> list[float]:
    found, until_s = [], time.monotonic() + seconds
    while (now_s := time.monotonic()) < until_s:
        await asyncio.sleep(PROBE_S)
        found.append(max(0.0, time.monotonic() - now_s - PROBE_S))
    return found


async def collector_figures(root: Path, seconds: float) -> dict[str, float | None]:
    """CPU of the collectors at 1 Hz, and how late the event loop of their process is without and with them."""
    log = logs.logger("collectors")
    states = States(StateCallbacks(log, time.monotonic))
    states.publish_node(NodeState("node", Resources(2000, 2**32), Resources(2000, 2**32)))
    states.publish_pods((), is_healthy=True)
    states.publish_vms(())
    states.publish_policies(())
    collectors = Collectors(TimeSeriesCache(), CgroupTree(root), states, log)
    without = in_ms(await _late(seconds))
    idle_s = time.process_time()
    await _late(seconds)
    idle_s = time.process_time() - idle_s
    task = asyncio.create_task(collectors.run())
    await asyncio.sleep(2.5)
    before_s, rounds, began_s = time.process_time(), collectors.figures.rounds, time.monotonic()
    late = in_ms(await _late(seconds))
    busy_s, span_s = time.process_time() - before_s, time.monotonic() - began_s
    rounds = collectors.figures.rounds - rounds
    figures = collectors.figures
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task
    return {
        "collected_pods": figures.pods,
        "collectors_cpu_percent": round((busy_s - idle_s) / span_s * 100, 2),
        "collectors_round_ms": round(figures.round_seconds * 1000, 1),
        "collectors_rounds_per_s": round(rounds / span_s, 2),
        **{f"loop_late_{name}": value for name, value in without.items()},
        **{f"loop_late_collecting_{name}": value for name, value in late.items()},
    }


def main() -> None:
    """Measure and print."""
    logs.configure("error")
    root, seconds = Path(sys.argv[1]), float(sys.argv[2])
    found: dict[str, float | None] = {**cache_figures()}
    found |= uvloop.run(collector_figures(root, seconds))
    print(json.dumps(found))


if __name__ == "__main__":
    main()
