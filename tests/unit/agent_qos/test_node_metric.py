"""The NodeMetric that the agent writes: its figures by the metric cache, its policy, and how it is written."""

import asyncio
import random
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from itertools import pairwise
from typing import Any

import pytest

from agent.node.qos.core.metrics import (
    NODE_CPU_USAGE,
    NODE_MEMORY_USAGE,
    NODE_MEMORY_WITH_PAGE_CACHE,
    POD_CPU_USAGE,
    POD_MEMORY_USAGE,
    SYS_CPU_USAGE,
    SYS_MEMORY_USAGE,
    Aggregation,
    MetricKind,
    MetricSample,
)
from agent.node.qos.core.node_metric import (
    LONG_KINDS,
    CollectPolicy,
    Measured,
    Usage,
    held_throughout,
    policy_of,
    status_of,
)
from agent.node.qos.core.states import VmState
from agent.node.qos.metric_cache import TimeSeriesCache
from agent.node.qos.node_metric import JITTER, NodeMetricWriter, measured
from agent.node.qos.node_object import RETRY
from agent.node.qos.states_informer import StateCallbacks, States
from hosting import logs
from hosting.kubernetes.api import UnreachableError
from hosting.kubernetes.koordinator import NODE_METRICS
from hosting.kubernetes.resources import NODES, Manifest
from protocol.values import ZERO, Resources
from tests.support.evictions import NODE, pod
from tests.support.kube_api import FakeApiServer
from tests.support.virtual_time import now_s, virtually

LOG = logs.logger("test")
NOW = "2026-11-27T12:00:00Z"
GIB = 1 << 30
DEFAULT = CollectPolicy()
LONGER = dict.fromkeys(LONG_KINDS, (1801, 1800.0))


# ------------------------------------------------------------ policy and status


@pytest.mark.parametrize(
    ("policy", "found"),
    [
        (None, DEFAULT),
        ({}, DEFAULT),
        ({"reportIntervalSeconds": 10}, replace(DEFAULT, report_interval_s=10)),
        ({"reportIntervalSeconds": 0}, DEFAULT),
        ({"reportIntervalSeconds": "60"}, DEFAULT),
        ({"aggregateDurationSeconds": 60}, replace(DEFAULT, average_s=60)),
        (
            {"nodeAggregatePolicy": {"durations": ["10m0s", "60s", "10m", "much", "-5s"]}},
            replace(DEFAULT, windows_s=(60, 600)),
        ),
        ({"nodeAggregatePolicy": {"durations": []}}, DEFAULT),
        ({"nodeAggregatePolicy": {"durations": 5}}, DEFAULT),
        ({"nodeAggregatePolicy": ["5m"]}, DEFAULT),
        ([], DEFAULT),
        ("60s", DEFAULT),
        (
            {"nodeMemoryCollectPolicy": "usageWithPageCache"},
            replace(DEFAULT, node_memory=NODE_MEMORY_WITH_PAGE_CACHE),
        ),
        ({"nodeMemoryCollectPolicy": "usageWithHotPageCache"}, DEFAULT),
    ],
)
def test_the_policy_of_an_object(policy: Any, found: CollectPolicy) -> None:
    assert policy_of({"spec": {"metricCollectPolicy": policy}}) == found


@pytest.mark.parametrize("spec", [None, [], [1], "much", 5])
def test_a_spec_that_is_no_mapping_asks_for_nothing(spec: Any) -> None:
    assert policy_of({"spec": spec}) == DEFAULT


def test_defaults_are_the_published_ones() -> None:
    assert (DEFAULT.report_interval_s, DEFAULT.average_s, DEFAULT.windows_s) == (60, 300, (300, 600, 1800))


def test_a_status_has_what_is_known() -> None:
    prod = replace(pod("a"), priority_class="koord-prod")
    ended = replace(pod("ended"), is_finished=True)
    use = Usage(0.25, 2 * GIB)
    found = Measured(
        Usage(1.5, 4 * GIB),
        Usage(None, GIB),
        {prod.uid: use, pod("vm").uid: use, ended.uid: use, "unknown": use},
        {600.0: {Aggregation.P95: Usage(2.0, 5)}, 60.0: {Aggregation.AVG: Usage(1.0, 4.6)}},
    )
    held = {pod("vm").uid: Resources(2000, 4 * GIB), "new": ZERO}
    assert status_of(found, [pod("vm"), pod("not-measured"), ended, prod], held, NOW) == {
        "updateTime": NOW,
        "nodeMetric": {
            "nodeUsage": {"resources": {"cpu": "1500m", "memory": str(4 * GIB)}},
            "systemUsage": {"resources": {"memory": str(GIB)}},
            "aggregatedNodeUsages": [
                {"duration": "1m0s", "usage": {"avg": {"resources": {"cpu": "1", "memory": "5"}}}},
                {"duration": "10m0s", "usage": {"p95": {"resources": {"cpu": "2", "memory": "5"}}}},
            ],
        },
        "podsMetric": [
            {
                "namespace": "default",
                "name": "a",
                "podUsage": {"resources": {"cpu": "250m", "memory": str(2 * GIB)}},
                "priority": "koord-prod",
            },
            {
                "namespace": "default",
                "name": "vm",
                "podUsage": {"resources": {"cpu": "250m", "memory": str(2 * GIB)}},
                "extensions": {"parley.dev/held": {"cpu": "2", "memory": "4Gi"}},
            },
        ],
    }


def vm(name: str, cpu: int, memory: int) -> VmState:
    return VmState(f"default/{name}", pod(name).uid, ZERO, ZERO, Resources(cpu, memory), ZERO)


def test_a_vm_held_what_it_was_permitted_at_both_reports() -> None:
    """Its use cannot be that of a size that it has had for a moment only."""
    before = {pod("a").uid: Resources(1000, 4), pod("gone").uid: Resources(1, 1)}
    assert held_throughout([vm("a", 2000, 2), vm("new", 1000, 1)], before) == {
        pod("a").uid: Resources(1000, 2)
    }


@pytest.mark.parametrize("node", [Usage(), Usage(1.0), Usage(None, 1.0)])
def test_there_is_no_status_before_the_use_of_the_node_is_known(node: Usage) -> None:
    assert status_of(Measured(node), [], {}, NOW) is None


# ------------------------------------------------------------ figures of the metric cache


def samples(kind: MetricKind, seconds: int, **properties: str) -> list[MetricSample]:
    """One sample each second, up to now: 0 at first, then 1 more each."""
    return [MetricSample(kind, 10_000.0 - seconds + each, each, properties) for each in range(seconds + 1)]


def cache_of(seconds: int) -> TimeSeriesCache:
    found = TimeSeriesCache(longer=LONGER, clock=lambda: 10_000.0)
    for kind in (NODE_CPU_USAGE, NODE_MEMORY_USAGE, SYS_CPU_USAGE, SYS_MEMORY_USAGE):
        for begin in range(0, seconds + 1, 60):  # in turns, as time passes
            found.append(samples(kind, seconds)[begin : begin + 60])
    return found


def test_figures_of_the_windows_that_have_enough_samples() -> None:
    found = measured(cache_of(300), DEFAULT)
    assert (found.node, found.system) == (Usage(150.0, 150.0), Usage(150.5, 150.5))
    assert list(found.windows) == [300.0, 600.0]
    assert found.windows[300.0] == {
        Aggregation.AVG: Usage(150.0, 150.0),
        Aggregation.P50: Usage(149.0, 149.0),
        Aggregation.P90: Usage(269.0, 269.0),
        Aggregation.P95: Usage(284.0, 284.0),
        Aggregation.P99: Usage(296.0, 296.0),
    }


@pytest.mark.parametrize(
    ("seconds", "windows"),
    [(100, []), (150, []), (151, [300]), (300, [300]), (301, [300, 600]), (901, [300, 600, 1800])],
)
def test_a_window_needs_samples_over_half_of_it(seconds: int, windows: list[float]) -> None:
    """After a restart of the agent short data does not pass for long data."""
    assert list(measured(long_cache(seconds), DEFAULT).windows) == windows


def long_cache(seconds: int) -> TimeSeriesCache:
    """As time passes: no sample is older than five minutes when it comes."""
    now = [10_000.0 - seconds]
    found = TimeSeriesCache(longer=LONGER, clock=lambda: now[0])
    while now[0] < 10_000.0:
        now[0] += 1
        found.append(MetricSample(kind, now[0], 1.0) for kind in (NODE_CPU_USAGE, NODE_MEMORY_USAGE))
    now[0] = 10_000.0
    return found


def test_a_window_that_is_longer_than_what_is_kept_is_left_out() -> None:
    policy = replace(DEFAULT, windows_s=(60.0, 3600.0))
    assert list(measured(cache_of(300), policy).windows) == [60.0]


def test_pods_with_both_figures() -> None:
    cache = cache_of(10)
    cache.append(samples(POD_CPU_USAGE, 2, pod_uid="a") + samples(POD_MEMORY_USAGE, 2, pod_uid="a"))
    cache.append(samples(POD_CPU_USAGE, 2, pod_uid="b"))
    assert measured(cache, DEFAULT).pods == {"a": Usage(1.0, 1.0)}


def test_nothing_is_made_up() -> None:
    assert measured(TimeSeriesCache(), DEFAULT) == Measured()


def test_some_kinds_are_kept_longer_within_the_bound() -> None:
    cache = long_cache(1000)
    assert cache.query(NODE_CPU_USAGE, 9999, Aggregation.COUNT).value == 1000
    assert cache.bound_bytes > TimeSeriesCache().bound_bytes


# ------------------------------------------------------------ writing


def synced() -> States:
    states = States(StateCallbacks(LOG, now_s))
    states.publish_node(NODE)
    states.publish_pods([], is_healthy=True)
    states.publish_vms([])
    states.publish_policies([])
    return states


@dataclass
class World:
    """An API server with the node, and a writer."""

    server: FakeApiServer = field(default_factory=FakeApiServer)
    states: States = field(default_factory=synced)
    cache: TimeSeriesCache = field(default_factory=lambda: cache_of(300))

    def __post_init__(self) -> None:
        self.node = self.server.put(NODES, {"metadata": {"name": "n1"}})
        self.writer = NodeMetricWriter(
            self.server.api(),
            lambda: self.node,
            self.cache,
            self.states,
            LOG,
            random.Random(1),
            lambda: datetime(2026, 11, 27, 12, 0, tzinfo=UTC),
        )

    def written(self) -> Manifest:
        return self.server.get(NODE_METRICS, "", "n1")

    @property
    def calls(self) -> list[str]:
        return [f"{call.method} {call.path.rpartition('/v1alpha1/')[2]}" for call in self.server.calls]


PATCH, CREATE = "PATCH nodemetrics/n1/status", "POST nodemetrics"


async def test_an_object_is_made_once_and_goes_with_its_node() -> None:
    world = World()
    assert await world.writer.write()
    found = world.written()
    (owner,) = found["metadata"]["ownerReferences"]
    assert (owner["kind"], owner["name"], owner["uid"]) == ("Node", "n1", world.node["metadata"]["uid"])
    assert found["status"]["updateTime"] == NOW
    assert found["status"]["nodeMetric"]["nodeUsage"] == {"resources": {"cpu": "150", "memory": "150"}}
    assert await world.writer.write()
    assert world.calls == [PATCH, CREATE, PATCH, PATCH]


async def test_the_policy_of_an_object_that_is_there_counts_from_the_next_report() -> None:
    world = World()
    policy = {"nodeAggregatePolicy": {"durations": ["60s"]}}
    world.server.put(
        NODE_METRICS, {"metadata": {"name": "n1"}, "spec": {"metricCollectPolicy": policy}, "status": {}}
    )
    for expected in (["5m0s", "10m0s"], ["1m0s"]):
        assert await world.writer.write()
        found = world.written()["status"]["nodeMetric"]["aggregatedNodeUsages"]
        assert [each["duration"] for each in found] == expected
    assert CREATE not in world.calls


async def test_what_a_vm_held_is_told_from_its_second_report_on() -> None:
    world = World()
    a = pod("a")
    world.states.publish_pods([a], is_healthy=True)
    for kind in (POD_CPU_USAGE, POD_MEMORY_USAGE):
        world.cache.append(samples(kind, 2, pod_uid=a.uid))
    told = []
    for cpu in (1000, 4000, 4000):
        world.states.publish_vms([vm("a", cpu, GIB)])
        assert await world.writer.write()
        (entry,) = world.written()["status"]["podsMetric"]
        told.append(entry.get("extensions", {}).get("parley.dev/held", {}).get("cpu"))
    assert told == [None, "1", "4"]


async def test_somebody_else_may_make_it_at_the_same_time() -> None:
    world = World()
    world.server.fail("status", lambda call: call.method == "PATCH", status=404, times=1)
    world.server.put(NODE_METRICS, {"metadata": {"name": "n1"}})
    assert await world.writer.write()
    assert world.calls == [PATCH, CREATE, PATCH]


@pytest.mark.parametrize("what", ["states", "node", "figures"])
async def test_nothing_is_written_as_long_as_too_little_is_known(what: str) -> None:
    world = World(
        states=States(StateCallbacks(LOG, now_s)) if what == "states" else synced(),
        cache=TimeSeriesCache() if what == "figures" else cache_of(300),
    )
    if what == "node":
        world.node = None  # type: ignore[assignment] # before it was read
    assert not await world.writer.write()
    assert world.calls == []


def test_reports_come_in_the_interval_and_failures_are_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    @virtually
    async def story() -> None:
        at_s = list[float]()
        world = World()

        async def write() -> bool:
            at_s.append(now_s())
            if len(at_s) in {3, 4}:
                raise UnreachableError("no answer within 5 s")
            return True

        monkeypatch.setattr(world.writer, "write", write)
        running = asyncio.create_task(world.writer.run())
        await asyncio.sleep(200)
        running.cancel()
        waits = [after - before for before, after in pairwise(at_s)]
        for wait, most in zip(waits, (60, 60, 1, 2, 60), strict=False):
            jitter = JITTER if most == 60 else RETRY.jitter
            assert most * (1 - jitter) <= wait <= most
        assert len(at_s) >= 6

    story()
