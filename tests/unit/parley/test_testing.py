"""What authors test their plugins with: the framework is the real one, and the cluster adds up."""

import asyncio

import pytest

from hosting.kubernetes.koordinator import ELASTIC_QUOTAS
from hosting.kubernetes.resources import Manifest
from parley.testing import (
    FakeCluster,
    amount,
    assert_not_placed,
    assert_rejected,
    assert_success,
    node,
    pod,
    quota,
    rows_of,
    with_permit,
)
from scheduler.placing.core.handle import ExtendedHandle
from scheduler.placing.core.objects import PodInfo
from scheduler.placing.core.plugin import CycleContext
from scheduler.placing.core.values import Code, RejectionClass, Status, new_status, rejected


class OneForEachQuota:
    """Rejects a pod while there are fewer quotas than pods that were bound before."""

    def __init__(self, args: object, handle: ExtendedHandle) -> None:
        del args
        self.quotas: set[str] = set()
        self.bound = 0
        handle.shared_informer(ELASTIC_QUOTAS).add_event_handler(self._heard)

    def name(self) -> str:
        return "OneForEachQuota"

    def _heard(self, before: Manifest | None, after: Manifest | None) -> None:
        for manifest, change in ((before, self.quotas.discard), (after, self.quotas.add)):
            if manifest is not None:
                change(manifest["metadata"]["name"])

    def pre_filter(self, context: CycleContext, pod: PodInfo, nodes: object) -> tuple[None, Status | None]:
        if len(self.quotas) > self.bound:
            return None, None
        return None, rejected(RejectionClass.POLICY, Code.UNSCHEDULABLE, "no quota is left")

    def post_bind(self, context: CycleContext, pod: PodInfo, node_name: str) -> None:
        self.bound += 1


def test_pods_are_bound_as_long_as_plugins_and_room_allow() -> None:
    async def story() -> None:
        cluster = FakeCluster(node("a", "2", "4Gi"), node("b", "1", "4Gi"))
        cluster.informers.put(ELASTIC_QUOTAS, quota("one", most={"cpu": "1"}))
        framework = cluster.framework({"OneForEachQuota": OneForEachQuota})
        big, small = pod("big", "2", "1Gi"), pod("small", "1", "1Gi")
        assert await cluster.schedule(framework, big) is None
        assert cluster.bound == {"default/big": "a"}
        failure = await cluster.schedule(framework, small)
        assert failure is not None
        assert_rejected(failure.status, "no quota is left", rejection=RejectionClass.POLICY)
        cluster.informers.put(ELASTIC_QUOTAS, quota("two", most={"cpu": "1"}))
        cluster.informers.put(ELASTIC_QUOTAS, quota("three", most={"cpu": "1"}))
        assert await cluster.schedule(framework, small) is None
        assert cluster.bound["default/small"] == "b"
        failure = await cluster.schedule(framework, pod("late", "1"))
        assert failure is not None
        assert "Insufficient cpu" in failure.text
        cluster.removed(small)
        assert await cluster.schedule(framework, pod("late", "1")) is None

    asyncio.run(story())


def test_builders_say_what_the_ledger_and_the_manifests_say() -> None:
    vm = pod("vm", "1", "1Gi", grows_to=amount("4", "4Gi"), more={"example.org/gpu": "1"})
    grown = with_permit(node("a", "8", "8Gi", vm, more={"example.org/gpu": "2"}), vm, amount("3", "2Gi"))
    assert (grown.free, vm.holder.kind.value) == (amount("5", "6Gi"), "vm")
    assert [row.reserved for row in rows_of(grown)] == [amount("3", "2Gi")]
    assert vm.manifest["spec"]["containers"][0]["resources"]["requests"] == {
        "cpu": "1",
        "memory": "1Gi",
        "example.org/gpu": "1",
    }


def test_assertions_fail_with_the_words_of_the_status() -> None:
    assert_success(None)
    with pytest.raises(AssertionError, match="Unschedulable: full"):
        assert_success(new_status(Code.UNSCHEDULABLE, "full"))
    with pytest.raises(AssertionError, match="Success: "):
        assert_rejected(None, "full")
    with pytest.raises(AssertionError, match="class None"):
        assert_rejected(new_status(Code.UNSCHEDULABLE, "full"), "full", rejection=RejectionClass.STALE)


def test_an_attempt_without_a_node_says_why() -> None:
    cluster = FakeCluster(node("a", "1", "1Gi"))
    failure = asyncio.run(cluster.schedule(cluster.framework({}), pod("big", "2")))
    assert_not_placed(failure, "Insufficient cpu", RejectionClass.CAPACITY)
    with pytest.raises(AssertionError, match="it is of the class capacity"):
        assert_not_placed(failure, "Insufficient cpu", RejectionClass.POLICY)
    with pytest.raises(AssertionError, match="it was bound"):
        assert_not_placed(None, "")
