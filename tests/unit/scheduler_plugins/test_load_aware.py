"""`LoadAwareScheduling`: args, objects and annotations, and its points beside VMs that grow. Figures of reference/koordinator.md 2.1."""

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any, cast

import pytest

from agent.node.qos.core.metrics import Aggregation
from agent.node.qos.core.node_metric import Measured, Usage, status_of
from hosting.kubernetes.koordinator import NODE_METRICS, PRIORITY_CLASS
from hosting.kubernetes.objects import time_written
from hosting.kubernetes.resources import Manifest, ResourceType
from hosting.settings import FaultsError, check
from parley.testing import (
    FakeCluster,
    FakeInformer,
    FakeInformers,
    amount,
    assert_rejected,
    assert_success,
    node,
    pod,
    with_permit,
)
from protocol.values import Bounds, Resources
from scheduler.placing.core.handle import ExtendedHandle
from scheduler.placing.core.objects import NodeInfo, NodeSnapshot, PodInfo
from scheduler.placing.core.values import (
    ActionType,
    Code,
    EventResource,
    QueueingHint,
    RejectionClass,
    SchedulingEvent,
    Status,
    code_of,
)
from scheduler.placing.cycle.context import CycleState
from scheduler.placing.plugins.load_aware.args import LoadAwareSchedulingArgs
from scheduler.placing.plugins.load_aware.core import NodeReport, PodReport
from scheduler.placing.plugins.load_aware.plugin import LoadAwareScheduling
from scheduler.placing.plugins.load_aware.reading import pod_load, report_of
from tests.support.evictions import pod as pod_state

MI = 1024 * 1024
NOW = datetime(2026, 11, 27, 12, 0, tzinfo=UTC).timestamp()
USUAL = LoadAwareSchedulingArgs()
ARGS = {"apiVersion": "kubescheduler.config.k8s.io/v1", "kind": "LoadAwareSchedulingArgs"}


def written(ago_s: float) -> str:
    return time_written(datetime.fromtimestamp(NOW - ago_s, UTC))


def resources(cpu: str | None = None, memory: str | None = None) -> dict[str, Any]:
    found = {"cpu": cpu, "memory": memory}
    return {"resources": {name: text for name, text in found.items() if text is not None}}


def metric(
    name: str = "a",
    cpu: str = "0",
    memory: str = "0",
    *,
    ago_s: float | None = 10,
    windows: Mapping[str, str] | None = None,
    pods: Mapping[str, Mapping[str, Any]] | None = None,
    **info: Any,
) -> Manifest:
    """A NodeMetric; `windows` has the p95 of CPU by duration, `pods` their entries by name."""
    aggregated = [
        {"duration": duration, "usage": {"p95": resources(text)}}
        for duration, text in (windows or {}).items()
    ]
    return {
        "apiVersion": NODE_METRICS.api_version,
        "kind": NODE_METRICS.kind,
        "metadata": {"name": name},
        "status": {
            **({"updateTime": written(ago_s)} if ago_s is not None else {}),
            "nodeMetric": {"nodeUsage": resources(cpu, memory), "aggregatedNodeUsages": aggregated, **info},
            "podsMetric": [
                {"namespace": "default", "name": key, **each} for key, each in (pods or {}).items()
            ],
        },
    }


def bound(found: PodInfo, ago_s: float = 3600, **conditions: float) -> PodInfo:
    """The pod as it is once it was scheduled so long ago; more conditions by type."""
    told = {"PodScheduled": ago_s, **conditions}
    conditions_ = [
        {"type": type_, "status": "True", "lastTransitionTime": written(each)} for type_, each in told.items()
    ]
    return replace(found, manifest={**found.manifest, "status": {"conditions": conditions_}})


@dataclass
class Bench:
    """The plugin with its handle."""

    args: Mapping[str, Any] | None = None
    informers: FakeInformers = field(default_factory=FakeInformers)
    nodes: dict[str, NodeInfo] = field(default_factory=dict)
    now: float = NOW

    def __post_init__(self) -> None:
        self.plugin = LoadAwareScheduling(self.args, cast("ExtendedHandle", self), wall=lambda: self.now)

    def shared_informer(self, type_: ResourceType) -> FakeInformer:
        return self.informers.informer(type_)

    def node_info_snapshot(self) -> NodeSnapshot:
        return NodeSnapshot(self.nodes)

    def filter(self, asking: PodInfo, where: NodeInfo) -> Status | None:
        context = CycleState()
        _, status = self.plugin.pre_filter(context, asking, [where])
        return status if status is not None else self.plugin.filter(context, asking, where)

    def score(self, asking: PodInfo, where: NodeInfo) -> int:
        context = CycleState()
        self.plugin.pre_filter(context, asking, [where])
        found, status = self.plugin.score(context, asking, where)
        assert_success(status)
        return found


def bench(*metrics: Manifest, **args: Any) -> Bench:
    made = Bench({**ARGS, **args})
    for each in metrics:
        made.informers.put(NODE_METRICS, each)
    return made


A = node("a", "100", "100Gi")
WEB = pod("web", "4", "8Gi")
"""Estimated with 3400 milli-CPU."""


# ------------------------------------------------------------ args


def test_defaults_are_the_published_ones() -> None:
    read = check(ARGS, LoadAwareSchedulingArgs)
    assert read.filter_expired_node_metrics
    assert not read.enable_schedule_when_node_metrics_expired
    assert read.node_metric_expiration_seconds == 180
    assert read.weights == {"cpu": 1, "memory": 1}
    assert read.factors == {"cpu": 85, "memory": 70}
    assert read.resources == ("cpu", "memory")
    assert (read.stale_metrics, read.aggregated) == (None, None)


def test_the_dominant_weight_alone_leaves_the_others_empty() -> None:
    assert check({"dominantResourceWeight": 1}, LoadAwareSchedulingArgs).weights == {}


def test_factors_are_filled_in_for_each_missing_resource() -> None:
    read = check({"estimatedScalingFactors": {"cpu": 50, "gpu": 10}}, LoadAwareSchedulingArgs)
    assert read.factors == {"cpu": 50, "memory": 70, "gpu": 10}
    assert read.resources == ("cpu", "memory", "gpu")


def test_all_faults_are_told_at_once() -> None:
    wrong = {
        "kind": "ElasticQuotaArgs",
        "nodeMetricExpirationSeconds": 0,
        "staleMetrics": "Ignore",
        "resourceWeights": {"cpu": 101, "gpu": 1},
        "usageThresholds": {"cpu": -1},
        "estimatedScalingFactors": {"cpu": 0},
        "aggregated": {
            "usageThresholds": {"cpu": 50},
            "usageAggregatedDuration": "5 minutes",
            "scoreAggregationType": "p42",
        },
        "tresholds": 1,
    }
    with pytest.raises(FaultsError) as told:
        check(wrong, LoadAwareSchedulingArgs)
    assert sorted({each.partition(":")[0] for each in told.value.faults}) == [
        "aggregated.scoreAggregationType",
        "aggregated.usageAggregatedDuration",
        "aggregated.usageAggregationType",
        "estimatedScalingFactors.cpu",
        "kind",
        "nodeMetricExpirationSeconds",
        "resourceWeights.cpu",
        "staleMetrics",
        "tresholds",
        "usageThresholds.cpu",
    ]


def test_what_is_weighed_must_be_estimated() -> None:
    with pytest.raises(
        FaultsError, match="estimatedScalingFactors: must have gpu, which resourceWeights names"
    ):
        check({"resourceWeights": {"gpu": 1}}, LoadAwareSchedulingArgs)


# ------------------------------------------------------------ the estimate of a pod


def limited(**limits: str) -> PodInfo:
    found = pod("x", "1", "1Gi")
    container = {"name": "main", "resources": {"requests": {"cpu": "1", "memory": "1Gi"}, "limits": limits}}
    return replace(found, manifest={**found.manifest, "spec": {"containers": [container]}})


def classed(name: str, pod_name: str = "x", **more: str) -> PodInfo:
    return pod(
        pod_name,
        labels={PRIORITY_CLASS: f"koord-{name}"},
        more={f"kubernetes.io/{k}": v for k, v in more.items()},
    )


@pytest.mark.parametrize(
    ("asking", "cpu", "memory"),
    [
        (WEB, 3400, 8 * 1024 * MI * 70 // 100),
        (pod("x", "1", "100"), 850, 70),
        (limited(cpu="4"), 3400, 1024 * MI * 7 // 10 + 1),
        (limited(cpu="500m"), 500, 1024 * MI * 7 // 10 + 1),
        (classed("prod"), 250, 200 * MI),
        (pod("x"), 250, 200 * MI),
        (classed("batch", **{"batch-cpu": "2000", "batch-memory": "1000"}), 1700, 700),
        (classed("batch"), 250, 200 * MI),
        (classed("mid", **{"mid-cpu": "2000"}), 1700, 0),
        (classed("mid"), 0, 0),
        (pod("vm", "2", "1000", grows_to=amount("8", "32Gi")), 1700, 700),
    ],
    ids=[
        "its request",
        "of memory 70 %",
        "its limit, if that is larger",
        "never more than its limit",
        "no request",
        "best effort",
        "batch",
        "batch without a request",
        "mid",
        "mid has no default",
        "a VM by what it is permitted",
    ],
)
def test_the_estimate_of_a_pod(asking: PodInfo, cpu: int, memory: int) -> None:
    assert pod_load(asking, USUAL).estimate == {"cpu": cpu, "memory": memory}


def own(**annotations: str) -> PodInfo:
    prefix = "scheduling.koordinator.sh/load-estimated-"
    names = {key.replace("_", "-"): value for key, value in annotations.items()}
    found = pod("x", "1", "1Gi", annotations={prefix + key: value for key, value in names.items()})
    return bound(found, 100, Initialized=50)


@pytest.mark.parametrize(
    ("asking", "args", "cpu", "deadline_ago"),
    [
        (own(), {}, 850, None),
        (own(), {"estimatedSecondsAfterPodScheduled": 30}, 850, 70),
        (own(), {"estimatedSecondsAfterPodScheduled": 30, "estimatedSecondsAfterInitialized": 20}, 850, 30),
        (own(scaling_factors='{"cpu": 50}', seconds_after_pod_scheduled="40"), {}, 850, None),
        (
            own(scaling_factors='{"cpu": 50}', seconds_after_pod_scheduled="40"),
            {"allowCustomizeEstimation": True},
            500,
            60,
        ),
        (own(seconds_after_initialized="7"), {"allowCustomizeEstimation": True}, 850, 43),
        (own(scaling_factors="much"), {"allowCustomizeEstimation": True}, 850, None),
        (own(scaling_factors='{"cpu": 0}'), {"allowCustomizeEstimation": True}, 850, None),
    ],
    ids=[
        "none",
        "after it was scheduled",
        "after it was initialised",
        "annotations need the flag",
        "annotations",
        "annotation after it was initialised",
        "no JSON",
        "out of range",
    ],
)
def test_until_when_a_pod_is_estimated(
    asking: PodInfo, args: dict[str, Any], cpu: int, deadline_ago: float | None
) -> None:
    found = pod_load(asking, check(args, LoadAwareSchedulingArgs))
    assert found.estimate["cpu"] == cpu
    assert found.deadline_at == (NOW - deadline_ago if deadline_ago is not None else None)


# ------------------------------------------------------------ reports


def test_the_report_of_our_agent_is_read_as_it_was_meant() -> None:
    a, b = (
        replace(pod_state("a"), priority_class="koord-prod"),
        replace(pod_state("b"), priority_class="koord-mid"),
    )
    window = {Aggregation.P95: Usage(2.25, 3e9), Aggregation.AVG: Usage(1.0, 1e9)}
    found = Measured(
        Usage(1.5, 2e9),
        Usage(0.25, 1e9),
        {a.uid: Usage(0.125, 5e8), b.uid: Usage(0.0005, 1.0)},
        {300.0: window, 1800.0: window},
    )
    status = status_of(found, [a, b], {a.uid: Resources(1500, 1 << 30)}, written(10))
    by = {"cpu": 2250, "memory": 3_000_000_000}
    read = report_of({"metadata": {"name": "a"}, "status": status})
    assert read.updated_at == NOW - 10
    assert read.node == {"cpu": 1500, "memory": 2_000_000_000}
    assert read.system == {"cpu": 250, "memory": 1_000_000_000}
    assert read.aggregated["p95"] == ((300.0, by), (1800.0, by))
    assert read.pods == {
        ("default", "a"): PodReport(
            {"cpu": 125, "memory": 500_000_000}, True, {"cpu": 1500, "memory": 1 << 30}
        ),
        ("default", "b"): PodReport({"cpu": 1, "memory": 1}, False),
    }


@pytest.mark.parametrize(
    ("manifest", "interval_s"),
    [
        ({}, 60),
        ({"spec": {"metricCollectPolicy": {"reportIntervalSeconds": 20}}, "status": {"nodeMetric": {}}}, 20),
    ],
)
def test_a_report_may_be_empty(manifest: dict[str, Any], interval_s: float) -> None:
    assert report_of(manifest) == NodeReport(interval_s=interval_s)


# ------------------------------------------------------------ the filter


@pytest.mark.parametrize(
    ("reported", "args", "text"),
    [
        (metric(cpu="61"), {}, None),
        (metric(cpu="62100m"), {}, "node(s) cpu usage exceed threshold"),
        (metric(cpu="62100m"), {"usageThresholds": {"cpu": 70}}, None),
        (metric(memory="90Gi"), {}, "node(s) memory usage exceed threshold"),
        (metric(cpu="90", memory="99Gi"), {}, "node(s) cpu usage exceed threshold, node(s) memory usage"),
        (
            metric(cpu="10", windows={"5m": "90", "10m": "20"}),
            {
                "aggregated": {
                    "usageThresholds": {"cpu": 60},
                    "usageAggregationType": "p95",
                    "usageAggregatedDuration": "5m",
                }
            },
            "node(s) cpu aggregated usage exceed threshold",
        ),
        (
            metric(cpu="10", windows={"5m0s": "90", "10m0s": "20"}),
            {"aggregated": {"usageThresholds": {"cpu": 60}, "usageAggregationType": "p95"}},
            None,
        ),
        (
            metric(cpu="10", windows={"5m0s": "90"}),
            {
                "aggregated": {
                    "usageThresholds": {"cpu": 60},
                    "usageAggregationType": "p95",
                    "usageAggregatedDuration": "30m",
                }
            },
            "node(s) cpu aggregated usage exceed threshold",
        ),
    ],
    ids=[
        "not too busy",
        "too busy",
        "with another threshold",
        "memory",
        "both",
        "a percentile",
        "of the longest window",
        "of a shorter window after a restart of the agent",
    ],
)
def test_the_filter_goes_by_what_is_used(reported: Manifest, args: dict[str, Any], text: str | None) -> None:
    status = bench(reported, **args).filter(WEB, A)
    if text is None:
        assert_success(status)
    else:
        assert_rejected(status, text, rejection=RejectionClass.CAPACITY)


def test_pods_of_daemon_sets_pass_and_others_do_not() -> None:
    owners = [{"kind": "DaemonSet", "name": "d", "controller": True}]
    metadata = {**WEB.manifest["metadata"], "ownerReferences": owners}
    of_a_daemon_set = replace(WEB, manifest={**WEB.manifest, "metadata": metadata})
    made = bench(metric(cpu="99"))
    assert code_of(made.filter(of_a_daemon_set, A)) == Code.SKIP
    assert_rejected(made.filter(WEB, A), "cpu usage")


def test_prod_pods_may_have_thresholds_of_their_own() -> None:
    reported = metric(
        cpu="50",
        pods={
            "p": {"priority": "koord-prod", "podUsage": resources("38")},
            "b": {"priority": "koord-batch", "podUsage": resources("12")},
        },
    )
    there = node("a", "100", "100Gi", bound(pod("p", "40")), bound(classed("batch", "b")))
    made = bench(reported, prodUsageThresholds={"cpu": 40}, usageThresholds={"cpu": 60})
    assert_rejected(made.filter(WEB, there), "node(s) cpu usage exceed threshold")
    assert_success(made.filter(classed("batch"), there))
    assert_success(bench(reported, prodUsageThresholds={"cpu": 42}).filter(WEB, there))
    with_system = bench(reported, prodUsageThresholds={"cpu": 42}, prodUsageIncludeSys=True)
    with_system.informers.put(
        NODE_METRICS, metric(cpu="50", systemUsage=resources("4"), pods={"p": {"podUsage": resources("38")}})
    )
    assert_rejected(with_system.filter(WEB, there), "node(s) cpu usage exceed threshold")


@pytest.mark.parametrize(
    ("annotations", "rejects"),
    [
        ({}, True),
        ({"usageThresholds": {"cpu": 95}}, False),
        ({"prodUsageThresholds": {"cpu": 95}}, False),
        ({"aggregatedUsage": {"usageThresholds": {"cpu": 50}, "usageAggregationType": "p95"}}, False),
        ({"usageThresholds": {"cpu": "many"}}, True),
    ],
    ids=["none", "plain", "prod", "aggregated", "nonsense"],
)
def test_a_node_may_have_thresholds_of_its_own(annotations: dict[str, Any], rejects: bool) -> None:
    text = json.dumps(annotations)
    there = node("a", "100", "100Gi", annotations={"scheduling.koordinator.sh/usage-thresholds": text})
    status = bench(metric(cpu="80", windows={"5m": "10"})).filter(WEB, there)
    assert (code_of(status) is Code.UNSCHEDULABLE) is rejects


def test_capacity_is_that_before_amplification() -> None:
    raw = {"node.koordinator.sh/raw-allocatable": '{"cpu": "50"}'}
    made = bench(metric(cpu="50"))
    assert_success(made.filter(WEB, A))
    assert_rejected(made.filter(WEB, node("a", "100", "100Gi", annotations=raw)), "cpu usage")


# ------------------------------------------------------------ stale metrics

FLAG = "enableScheduleWhenNodeMetricsExpired"
EXPIRED, MISSING = "node(s) nodeMetric expired", "node(s) nodeMetric missing"


@pytest.mark.parametrize(
    ("args", "ago_s", "text", "score"),
    [
        ({}, None, None, 0),
        ({}, 180, EXPIRED, 0),
        ({}, 179, None, 94),
        ({FLAG: True}, 180, None, 0),
        ({"filterExpiredNodeMetrics": False}, 180, None, 0),
        ({"nodeMetricExpirationSeconds": 300}, 180, None, 94),
        ({"staleMetrics": "Reject"}, None, MISSING, 0),
        ({"staleMetrics": "Reject", FLAG: True}, 180, EXPIRED, 0),
        ({"staleMetrics": "ScoreLow"}, None, None, 0),
        ({"staleMetrics": "ScoreLow"}, 180, None, 0),
        ({"staleMetrics": "Admit"}, None, None, 95),
        ({"staleMetrics": "Admit"}, 180, None, 95),
        ({"staleMetrics": "Reject"}, 179, None, 94),
    ],
)
def test_metrics_that_are_stale(
    args: dict[str, Any], ago_s: float | None, text: str | None, score: int
) -> None:
    reported = [metric(cpu="2", ago_s=ago_s)] if ago_s is not None else []
    made = bench(*reported, **args)
    status = made.filter(WEB, A)
    if text is None:
        assert_success(status)
    else:
        assert_rejected(status, text, rejection=RejectionClass.STALE)
    assert made.score(WEB, A) == score


def test_metrics_of_any_age_count_where_expired_ones_are_not_filtered() -> None:
    made = bench(metric(cpu="90", ago_s=9999), filterExpiredNodeMetrics=False)
    assert_rejected(made.filter(WEB, A), "cpu usage", rejection=RejectionClass.CAPACITY)


def test_a_page_tells_how_often_there_was_nothing_to_go_by() -> None:
    made = bench(metric(ago_s=500))
    for where in (A, node("b", "1", "1Gi"), node("c", "1", "1Gi")):
        made.filter(WEB, where)
    made.score(WEB, A)
    (page,) = (each for each in made.plugin.endpoints() if each.path == "/freshness")
    assert page.read({}) == {
        "staleMetrics": None,
        "hasSynced": True,
        "missing": {"admitted": 2},
        "expired": {"rejected": 1, "scoredLow": 1},
    }


@pytest.mark.parametrize("policy", [None, "Admit", "Reject", "ScoreLow"])
def test_before_metrics_were_read_a_pod_waits_unless_it_may_do_without(policy: str | None) -> None:
    made = bench(**({"staleMetrics": policy} if policy is not None else {}))
    made.informers.informer(NODE_METRICS).has_synced = False
    status = made.filter(WEB, A)
    if policy in {None, "Reject"}:
        assert_rejected(status, "not read yet", Code.ERROR)
    else:
        assert_success(status)


def test_a_report_that_makes_no_sense_leaves_the_last_one_until_that_is_too_old() -> None:
    made = bench(metric(cpu="90"))
    with pytest.raises(ValueError, match="much"):
        made.informers.put(NODE_METRICS, metric(cpu="much"))
    assert_rejected(made.filter(WEB, A), "cpu usage")
    made.now += 200
    assert_rejected(made.filter(WEB, A), EXPIRED)


def test_a_report_goes_with_its_object() -> None:
    reported = metric(cpu="90")
    made = bench(reported)
    assert_rejected(made.filter(WEB, A), "cpu usage")
    made.informers.delete(NODE_METRICS, reported)
    assert_success(made.filter(WEB, A))


# ------------------------------------------------------------ pods that the report cannot show


def test_pods_that_come_and_go_between_two_reports() -> None:
    """Issue 490 of the published plugin: a pod that ended must leave the estimate."""
    made, new = bench(metric(cpu="60")), pod("new", "4")
    with_new = node("a", "100", "100Gi", new)
    assert_success(made.filter(WEB, A))
    assert_rejected(made.filter(WEB, with_new), "cpu usage")
    assert_success(made.filter(WEB, A))
    made.informers.put(NODE_METRICS, metric(cpu="61", pods={"new": {"podUsage": resources("1")}}))
    assert_rejected(made.filter(WEB, with_new), "cpu usage")
    seen = node("a", "100", "100Gi", bound(new, 100))
    assert_success(made.filter(WEB, seen))


def test_the_pod_itself_does_not_count_where_it_has_room_already() -> None:
    made = bench(metric(cpu="62"))
    assert_success(made.filter(WEB, A))
    assert_success(made.filter(WEB, node("a", "100", "100Gi", WEB)))


def test_a_vm_counts_with_what_it_was_permitted_since_it_was_measured() -> None:
    vm = bound(pod("vm", "10", "10Gi", grows_to=amount("40", "40Gi")))
    there = node("a", "100", "100Gi", vm)
    held = {"cpu": "10", "memory": "10Gi"}
    entry = {"podUsage": resources("8", "2Gi"), "extensions": {"parley.dev/held": held}}
    made = bench(metric(cpu="38", memory="10Gi", pods={"vm": entry}))
    assert made.score(WEB, there) == (58 + 84) // 2
    assert_success(made.filter(WEB, there))
    grown = with_permit(there, vm, amount("40", "10Gi"))
    grown = replace(grown, pods=(replace(vm, amount=amount("40", "10Gi")),))
    assert_rejected(made.filter(WEB, grown), "node(s) cpu usage exceed threshold")  # 38 - 8 + 34 + 3.4
    made.informers.put(
        NODE_METRICS,
        metric(cpu="38", pods={"vm": {**entry, "extensions": {"parley.dev/held": {"cpu": "40"}}}}),
    )
    assert_success(made.filter(WEB, grown))


def test_a_pod_that_begins_to_grow_is_read_anew() -> None:
    fixed = bound(pod("vm", "40", "10Gi"))
    made = bench(metric(cpu="38", pods={"vm": {"podUsage": resources("8")}}))
    there = node("a", "100", "100Gi", fixed)
    assert_success(made.filter(WEB, there))
    growing = replace(fixed, bounds=Bounds(amount("1", "1Gi"), amount("40", "40Gi")))
    assert_rejected(made.filter(WEB, replace(there, pods=(growing,))), "cpu usage")


def test_a_vm_counts_with_its_permit_where_reports_do_not_say_what_it_held() -> None:
    vm = bound(pod("vm", "40", "10Gi", grows_to=amount("40", "40Gi")))
    made = bench(metric(cpu="38", pods={"vm": {"podUsage": resources("8")}}))
    assert_rejected(made.filter(WEB, node("a", "100", "100Gi", vm)), "cpu usage")


# ------------------------------------------------------------ scores


@pytest.mark.parametrize(
    ("reported", "args", "found"),
    [
        (metric(cpu="30", memory="20Gi"), {}, (66 + 74) // 2),
        (metric(cpu="30", memory="20Gi"), {"resourceWeights": {"cpu": 1}}, 66),
        (metric(cpu="30", memory="20Gi"), {"dominantResourceWeight": 1}, 66),
        (
            metric(cpu="30", memory="20Gi"),
            {"resourceWeights": {"memory": 1}, "dominantResourceWeight": 1},
            70,
        ),
        (metric(cpu="97"), {"resourceWeights": {"cpu": 1}}, 0),
        (
            metric(cpu="30", windows={"5m": "50", "10m": "70"}),
            {
                "resourceWeights": {"cpu": 1},
                "aggregated": {"scoreAggregationType": "p95", "scoreAggregatedDuration": "300s"},
            },
            46,
        ),
        (
            metric(cpu="50", pods={"p": {"podUsage": resources("10")}}),
            {"resourceWeights": {"cpu": 1}, "scoreAccordingProdUsage": True},
            86,
        ),
    ],
    ids=["both", "CPU", "the scarcest", "memory and the scarcest", "no room", "a percentile", "prod"],
)
def test_scores(reported: Manifest, args: dict[str, Any], found: int) -> None:
    pods = [bound(pod(each["name"], "10")) for each in reported["status"]["podsMetric"]]
    assert bench(reported, **args).score(WEB, node("a", "100", "100Gi", *pods)) == found


# ------------------------------------------------------------ pages, events, and the whole


def test_a_page_tells_of_a_node() -> None:
    made = bench(metric(cpu="30", memory="1000"))
    made.nodes["a"] = node("a", "100", "1000000", pod("new", "1", "100"))
    (page,) = (each for each in made.plugin.endpoints() if each.path == "/node/{nodeName}")
    assert page.read({"nodeName": "b"}) is None
    found = page.read({"nodeName": "a"})
    assert json.loads(json.dumps(found)) == {
        "nodeMetric": "fresh",
        "updateTime": written(10),
        "capacity": {"cpu": 100_000, "memory": 1_000_000, "pods": 110},
        "thresholds": {"cpu": 65, "memory": 95},
        "prodThresholds": {"cpu": 65, "memory": 95},
        "nodeUsage": {"cpu": 30_000, "memory": 1000},
        "prodUsage": {},
        "notMeasuredYet": {"default/new": {"cpu": 850, "memory": 70}},
        "existing": {"cpu": 30_850, "memory": 1070},
    }


def test_it_waits_for_reports_for_pods_that_go_and_for_nodes() -> None:
    found = bench().plugin.events_to_register()
    assert [(each.resource, each.action) for each in found] == [
        (NODE_METRICS, ActionType.ALL),
        (EventResource.POD, ActionType.DELETE),
        (EventResource.NODE, ActionType.ADD | ActionType.UPDATE),
    ]


@pytest.mark.parametrize(
    ("cpu", "asking", "hint"),
    [
        ("50", WEB, QueueingHint.QUEUE),
        ("80", WEB, QueueingHint.SKIP),
        ("80", classed("batch"), QueueingHint.QUEUE),
    ],
    ids=["room", "too busy for any pod", "judged by other thresholds"],
)
def test_a_report_of_a_node_that_is_too_busy_wakes_none_up(
    cpu: str, asking: PodInfo, hint: QueueingHint
) -> None:
    reported = metric(cpu=cpu, pods={"p": {"podUsage": resources(cpu)}})
    made = bench(reported, usageThresholds={"cpu": 90}, prodUsageThresholds={"cpu": 60})
    made.nodes["a"] = node("a", "100", "100Gi", bound(pod("p", "40")))
    (waited, *_) = made.plugin.events_to_register()
    assert waited.hint is not None
    assert waited.hint(asking, SchedulingEvent(NODE_METRICS, ActionType.UPDATE, reported, reported)) is hint
    gone = SchedulingEvent(NODE_METRICS, ActionType.DELETE, reported, None)
    unknown = SchedulingEvent(NODE_METRICS, ActionType.ADD, None, metric("new"))
    assert {waited.hint(asking, each) for each in (gone, unknown)} == {QueueingHint.QUEUE}


async def test_pods_are_spread_by_what_is_measured_and_by_those_before_them() -> None:
    cluster = FakeCluster(node("a", "100", "100Gi"), node("b", "100", "100Gi"))
    moment = datetime.fromtimestamp(time.time(), UTC)
    for name, cpu in (("a", "10"), ("b", "20")):
        reported = metric(name, cpu)
        reported["status"]["updateTime"] = time_written(moment)
        cluster.informers.put(NODE_METRICS, reported)
    framework = cluster.framework({"LoadAwareScheduling": None}, {"LoadAwareScheduling": ARGS})
    for index in range(3):
        assert await cluster.schedule(framework, pod(f"p{index}", "10", "10Gi")) is None
    assert [cluster.bound[f"default/p{index}"] for index in range(3)] == ["a", "b", "a"]
