"""`ElasticQuota` in the real framework: args, whose a pod is, what counts, messages, and who would go."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

import pytest

from hosting.kubernetes.koordinator import ELASTIC_QUOTAS
from hosting.kubernetes.resources import PODS, Manifest
from hosting.settings import FaultsError, check
from parley.testing import FakeCluster, amount, assert_rejected, node, pod, quota, with_permit
from scheduler.placing.core.objects import PodInfo
from scheduler.placing.core.values import RejectionClass
from scheduler.placing.cycle.context import CycleState
from scheduler.placing.cycle.framework import SchedulingFramework
from scheduler.placing.plugins.elastic_quota import plugin
from scheduler.placing.plugins.elastic_quota.args import ElasticQuotaArgs
from scheduler.quotas.faults import QuotaKey
from scheduler.quotas.values import QuotaFault

HOME = "koordinator-system"
PREFIX = "quota.scheduling.koordinator.sh/"
PUBLISHED = {
    "apiVersion": "kubescheduler.config.k8s.io/v1",
    "kind": "ElasticQuotaArgs",
    "delayEvictTime": "2m0s",
    "revokePodInterval": "1s",
    "defaultQuotaGroupMax": {"cpu": "4", "memory": "8Gi"},
    "systemQuotaGroupMax": {"cpu": "2500m"},
    "quotaGroupNamespace": "koordinator-system",
    "monitorAllQuotas": True,
    "enableCheckParentQuota": True,
    "enableRuntimeQuota": True,
    "enableMinQuotaScale": True,
    "disableDefaultQuotaPreemption": True,
    "enableQueueHint": False,
    "quotaSnapshotUpdateInterval": "120s",
    "hookPlugins": [],
}


# ------------------------------------------------------------ args


def test_published_args_are_taken_as_they_are() -> None:
    args = check(PUBLISHED, ElasticQuotaArgs)
    assert (args.delay_evict_time, args.revoke_pod_interval) == (120, 1)
    assert args.default_quota_group_max == {"cpu": 4000, "memory": 8 * 2**30}
    assert args.system_quota_group_max == {"cpu": 2500}


def test_the_published_defaults() -> None:
    args = check(None, ElasticQuotaArgs)
    assert (args.delay_evict_time, args.revoke_pod_interval) == (120, 1)
    assert args.default_quota_group_max == {"cpu": (2**63 - 1) // 5 * 1000, "memory": (2**63 - 1) // 5}
    assert (args.monitor_all_quotas, args.enable_check_parent_quota, args.evict_victims) == (False,) * 3
    assert args.enable_runtime_quota
    assert args.enable_min_quota_scale
    assert args.disable_default_quota_preemption


def test_all_faults_at_once() -> None:
    wrong = {
        "kind": "CoschedulingArgs",
        "delayEvictTime": "-1s",
        "revokePodInterval": 1,
        "defaultQuotaGroupMax": {"cpu": -1},
        "systemQuotaGroupMax": {"cpu": "many"},
        "hookPlugins": [{"key": "a"}],
    }
    with pytest.raises(FaultsError) as caught:
        check(wrong, ElasticQuotaArgs)
    assert sorted(line.split(": ")[0] for line in caught.value.faults) == sorted(wrong)


# ------------------------------------------------------------ a cluster


class Quotas:
    """A cluster of one node of 10 CPUs and 8 GPUs, with quotas and the plugin."""

    def __init__(self, *quotas: Manifest, args: Any = None) -> None:
        self.cluster = FakeCluster(node("a", "10", "100Gi", more={"gpu": "8"}))
        for each in quotas:
            self.cluster.informers.put(ELASTIC_QUOTAS, each)
        self.framework: SchedulingFramework = self.cluster.framework(
            {"ElasticQuota": None}, {"ElasticQuota": args} if args is not None else None
        )

    async def place(self, wanted: PodInfo) -> str:
        """Why the pod was not bound; empty if it was."""
        failure = await self.cluster.schedule(self.framework, wanted)
        return failure.text if failure is not None else ""

    def faults(self) -> Mapping[QuotaKey, Sequence[QuotaFault]]:
        made = self.framework.plugins["ElasticQuota"]
        assert isinstance(made, plugin.ElasticQuota)
        return made.faults(made.account())

    def wait(self, *pods: PodInfo) -> None:
        """Pods that the API server shows without a node."""
        for each in pods:
            self.cluster.informers.put(PODS, cast("Manifest", each.manifest))


def of(quota_name: str, name: str, cpu: str, **more: Any) -> PodInfo:
    labels = {f"{PREFIX}name": quota_name, **more.pop("labels", {})}
    return pod(name, cpu, labels=labels, **more)


CI = quota("ci", least={"cpu": "4"}, most={"cpu": "8"})
DEV = quota("dev", least={"cpu": "4"}, most={"cpu": "8"})


async def test_a_quota_borrows_what_others_do_not_ask_for() -> None:
    world = Quotas(CI, DEV)
    assert await world.place(of("ci", "1", "6")) == ""
    assert await world.place(of("ci", "2", "2")) == ""
    found = await world.place(of("ci", "3", "1"))
    text = "Insufficient quotas, quotaName: ci, runtime: cpu:8, used: cpu:8, pod's request: cpu:1, exceedDimensions: [cpu]"
    assert text in found


async def test_and_gives_back_as_others_ask() -> None:
    """With `dev` asking for 5, the 2 CPUs beyond both minimums go 1 to 1: `ci` may use 5."""
    world = Quotas(CI, DEV)
    world.wait(of("dev", "d", "5"), of("ci", "2", "4"))
    assert await world.place(of("ci", "1", "4")) == ""
    assert "runtime: cpu:5, used: cpu:4" in await world.place(of("ci", "2", "4"))
    assert await world.place(of("dev", "d", "5")) == ""


async def test_a_refusal_is_a_matter_of_policy() -> None:
    world, context, wanted = Quotas(CI), CycleState(), of("ci", "1", "9")
    world.framework.begin_cycle(context, wanted)
    world.framework.set_snapshot(world.cluster.snapshot())
    nodes = tuple(world.cluster.snapshot().values())
    _, status = await world.framework.run_pre_filter_plugins(context, wanted, nodes)
    assert_rejected(status, "quotaName: ci", rejection=RejectionClass.POLICY)


async def test_permits_count_and_not_only_requests() -> None:
    world = Quotas(CI)
    vm = of("ci", "vm", "2", memory="1Gi", grows_to=amount("8", "1Gi"))
    assert await world.place(vm) == ""
    assert await world.place(of("ci", "1", "4")) == ""
    grown = with_permit(world.cluster.nodes["a"], vm, amount("4", "1Gi"))
    world.cluster.nodes["a"] = grown
    assert "used: cpu:8" in await world.place(of("ci", "2", "1"))
    world.cluster.nodes["a"] = with_permit(grown, vm, amount("1", "1Gi"))
    assert await world.place(of("ci", "2", "1")) == ""


async def test_pods_without_a_quota_count_against_the_default_one() -> None:
    world = Quotas(args={"defaultQuotaGroupMax": {"cpu": "2"}})
    assert await world.place(pod("1", "2")) == ""
    found = await world.place(pod("2", "1", priority=9))
    assert "quotaName: koordinator-default-quota, runtime: cpu:2" in found
    assert "would have room" not in found


@pytest.mark.parametrize(("namespace", "name"), [("team", "team"), ("lent", "ci")])
async def test_a_quota_like_the_namespace_and_one_that_lists_it(namespace: str, name: str) -> None:
    here = quota("team", most={"cpu": "1"}, namespace="team")
    lists = quota("ci", most={"cpu": "1"}, annotations={f"{PREFIX}namespaces": '["lent"]'})
    assert f"quotaName: {name}," in await Quotas(here, lists).place(pod("1", "2", namespace=namespace))


async def test_a_quota_that_changes_counts_at_once() -> None:
    world = Quotas(CI)
    assert await world.place(of("ci", "1", "9")) != ""
    more = quota("ci", most={"cpu": "9"})
    world.cluster.informers.put(ELASTIC_QUOTAS, more)
    assert await world.place(of("ci", "1", "9")) == ""
    world.cluster.informers.delete(ELASTIC_QUOTAS, more)
    assert await world.place(of("ci", "2", "1")) == ""


@pytest.mark.parametrize("text", ["[" * 100_000, '{"cpu": ' + "9" * 5_000 + "}", "5"])
async def test_an_annotation_that_nobody_can_read_counts_as_if_it_were_not_there(text: str) -> None:
    world = Quotas(quota("ci", most={"cpu": "8"}, annotations={f"{PREFIX}guaranteed": text}))
    assert await world.place(of("ci", "1", "8")) == ""
    (reason,) = [fault.reason for fault in world.faults()["default", "ci"]]
    assert reason == "Unreadable"


async def test_quotas_that_could_not_be_read_are_read_again(monkeypatch: pytest.MonkeyPatch) -> None:
    world = Quotas(CI)
    with monkeypatch.context() as broken:
        broken.setattr(plugin, "quota_of", lambda *_, **__: 1 / 0)
        assert "division" in await world.place(of("ci", "1", "9"))
    assert "quotaName: ci" in await world.place(of("ci", "1", "9"))


@pytest.mark.parametrize(
    ("namespace", "created", "counts"),
    [("z", "2026-01-01T00:00:00Z", "z"), ("z", "2026-01-03T00:00:00Z", "a"), (HOME, "2026-01-03T00:00:00Z", HOME)],
    ids=["the oldest", "not a later one", "that of quotaGroupNamespace"],
)  # fmt: skip
async def test_of_quotas_with_one_name_one_counts_and_the_other_is_told(
    namespace: str, created: str, counts: str
) -> None:
    other, here = (quota("ci", most={"cpu": "1"}, namespace=each) for each in ("a", namespace))
    other["metadata"]["creationTimestamp"] = "2026-01-02T00:00:00Z"
    here["metadata"]["creationTimestamp"] = created
    faults = Quotas(other, here).faults()
    text = f"the quota of that name in namespace {counts} counts"
    assert [[fault.text for fault in each] for each in faults.values()] == [[text]]
    assert (counts, "ci") not in faults


async def test_a_device_is_shared_to_the_last_one() -> None:
    world = Quotas(*(quota(name, least={"gpu": "4"}, most={"gpu": "8"}) for name in ("a", "b")))
    first, second = (of(name, name, "1", more={"gpu": "4"}) for name in ("a", "b"))
    world.wait(first, second)
    assert await world.place(first) == ""
    assert await world.place(second) == ""


async def test_room_comes_back_when_pods_go() -> None:
    world, first = Quotas(CI), of("ci", "1", "8")
    assert await world.place(first) == ""
    assert await world.place(of("ci", "2", "8")) != ""
    world.cluster.removed(first)
    assert await world.place(of("ci", "2", "8")) == ""


@pytest.mark.parametrize("is_deleted", [False, True])
async def test_pods_that_end_before_the_next_cycle_give_their_room_back(is_deleted: bool) -> None:
    world = Quotas(CI)
    for number in range(3):
        job = of("ci", str(number), "8")
        world.wait(job)
        assert await world.place(job) == ""
        world.cluster.removed(job)
        manifest = cast("Manifest", job.manifest)
        if is_deleted:
            world.cluster.informers.delete(PODS, manifest)
        else:
            world.cluster.informers.put(PODS, {**manifest, "status": {"phase": "Succeeded"}})


async def test_a_reservation_takes_nothing_of_a_quota() -> None:
    world = Quotas(CI)
    made, context = world.framework.plugins["ElasticQuota"], CycleState()
    assert isinstance(made, plugin.ElasticQuota)
    for cpu in ("8", "9"):
        reservation = replace(of("ci", f"r{cpu}", cpu), is_reservation=True)
        assert made.pre_filter(context, reservation, ()) == (None, None)
        assert made.reserve(context, reservation, "a") is None
    assert await world.place(of("ci", "1", "8")) == ""


async def test_parents_are_checked_where_settings_say_so() -> None:
    org = quota("org", least={"cpu": "4"}, most={"cpu": "4"}, labels={f"{PREFIX}is-parent": "true"})
    below = [
        quota(name, least={"cpu": "2"}, most={"cpu": "4"}, labels={f"{PREFIX}parent": "org"})
        for name in ("x", "y")
    ]
    world = Quotas(org, *below, args={"enableCheckParentQuota": True, "enableRuntimeQuota": False})
    assert await world.place(of("x", "1", "3")) == ""
    assert "quotaNameTopo: [org y], max: cpu:4, used: cpu:3" in await world.place(of("y", "2", "2"))


async def test_a_pod_that_is_not_preemptible_stays_within_min() -> None:
    world, fixed = Quotas(CI), {f"{PREFIX}preemptible": "false"}
    assert await world.place(of("ci", "1", "4", labels=fixed)) == ""
    found = await world.place(of("ci", "2", "1", labels=fixed))
    text = "Insufficient non-preemptible quotas, quotaName: ci, min: cpu:4, nonPreemptibleUsed: cpu:4"
    assert text in found
    assert await world.place(of("ci", "2", "1")) == ""


async def test_victims_are_named() -> None:
    world = Quotas(CI)
    assert await world.place(of("ci", "low", "4", priority=1)) == ""
    assert await world.place(of("ci", "high", "4", priority=9)) == ""
    found = await world.place(of("ci", "new", "2", priority=5))
    assert "quota ci would have room without default/low (evictVictims is false)" in found
    assert "would have room" not in await world.place(of("ci", "new", "2", priority=1))
