"""What `ElasticQuota` writes: status, annotations, conditions and evictions; its pages, and how it follows a pod."""

import copy
from typing import Any, cast

from hosting.kubernetes.koordinator import ELASTIC_QUOTAS
from hosting.kubernetes.resources import PODS, Manifest
from parley.testing import FakeInformers, node, quota
from protocol.values import Resources
from scheduler.placing.core.objects import NodeInfo, NodeSnapshot
from scheduler.placing.plugins.base import MAY_BE_BOUND
from scheduler.placing.plugins.elastic_quota.plugin import ElasticQuota
from scheduler.ports import BINDING_SETTLES_S
from tests.unit.scheduler_framework.plugin_worlds import Notes
from tests.unit.scheduler_plugins.test_elastic_quota import CI, PREFIX, of


class ApiAsTold:
    """The client of the API server, as far as the plugin uses it."""

    def __init__(self) -> None:
        self.evicted: list[str] = []
        self.patched: list[tuple[str, str, Any]] = []

    async def evict(self, namespace: str, name: str, uid: str) -> bool:
        self.evicted.append(f"{namespace}/{name}/{uid}")
        return True

    async def patch(
        self, type_: object, namespace: str | None, name: str, body: Any, *, subresource: str = ""
    ) -> Manifest:
        assert type_ is ELASTIC_QUOTAS
        self.patched.append((f"{namespace}/{name}", subresource, body))
        return {}


class QuotaHandle:
    """A handle with nodes, objects and an API server. Those with the same `placements` are of profiles over one ledger."""

    def __init__(self, *nodes: NodeInfo, placements: object = None) -> None:
        self.placements = placements or self
        self.informers, self.api, self.time_s = FakeInformers(), ApiAsTold(), 0.0
        self.nodes = NodeSnapshot({each.name: each for each in nodes})
        self.asked_back: list[tuple[str, Resources, list[str]]] = []

    def shared_informer(self, type_: Any) -> Any:
        return self.informers.informer(type_)

    def client_set(self) -> ApiAsTold:
        return self.api

    def register_forget_pod_handler(self, handler: object) -> None:
        del handler

    def node_info_snapshot(self) -> NodeSnapshot:
        return self.nodes

    nodes_now = node_info_snapshot

    def now_s(self) -> float:
        return self.time_s

    def ask_back(self, quota_name: str, excess: Resources, uids: list[str]) -> None:
        self.asked_back.append((quota_name, excess, uids))


def plugin(told: QuotaHandle, args: Any = None) -> ElasticQuota:
    return ElasticQuota(args, cast("Any", told))


async def test_victims_are_evicted_where_settings_say_so() -> None:
    told = QuotaHandle(node("a", "10", "1Gi", of("ci", "low", "8", priority=1)))
    told.informers.put(ELASTIC_QUOTAS, CI)
    made, notes, wanted = plugin(told, {"evictVictims": True}), Notes(), of("ci", "new", "2", priority=5)
    made.pre_filter(notes, wanted, ())
    result, after = await made.post_filter(notes, wanted, {})
    assert result is None
    assert after is not None
    assert after.message == "evicted from quota ci: default/low"
    assert told.api.evicted == ["default/low/uid-low"]


async def test_a_quota_that_uses_too_much_for_long_is_brought_back() -> None:
    pods = [of("ci", name, "4", priority=priority) for name, priority in (("low", 1), ("high", 2))]
    told = QuotaHandle(node("a", "10", "1Gi", *pods))
    told.informers.put(ELASTIC_QUOTAS, quota("ci", most={"cpu": "4"}))
    made = plugin(told, {"monitorAllQuotas": True, "delayEvictTime": "10s"})
    made.pre_filter(Notes(), of("ci", "other", "1"), ())
    for told.time_s in (0.0, 10.0):
        await made.writer.revoke()
    assert told.api.evicted == []
    told.time_s = 10.1
    await made.writer.revoke()
    assert told.api.evicted == ["default/low/uid-low"]


def test_pods_of_a_quota_that_uses_too_much_are_asked_to_shrink_before_anybody_is_evicted() -> None:
    pods = [of("ci", name, "4", priority=priority) for name, priority in (("high", 2), ("low", 1))]
    told = QuotaHandle(node("a", "10", "1Gi", *pods))
    told.informers.put(ELASTIC_QUOTAS, quota("ci", most={"cpu": "5"}))
    made = plugin(told)
    asked = ("ci", Resources(3000, 0), ["uid-low", "uid-high"])
    made.writer.ask_back()
    assert told.asked_back == [asked]
    told.nodes = NodeSnapshot(
        {"a": node("a", "10", "1Gi", *(of("ci", "high", "4"), of("ci", "low", "1")))}, 2
    )
    made.writer.ask_back()
    assert len(told.asked_back) == 1, "the pods have shrunk, whether or not a cycle has seen it"


async def test_the_controllers_of_one_profile_go_by_the_cycles_of_all() -> None:
    told = QuotaHandle()
    other = QuotaHandle(placements=told.placements)
    for each in (told, other):
        each.informers.put(ELASTIC_QUOTAS, quota("ci", most={"cpu": "4"}))
    first, second = plugin(told, {"monitorAllQuotas": True, "delayEvictTime": "1s"}), plugin(other)
    pods = [of("ci", name, "4", priority=priority) for name, priority in (("low", 1), ("high", 2))]
    other.nodes = NodeSnapshot({"a": node("a", "10", "1Gi", *pods)}, 1)
    second.pre_filter(Notes(), of("ci", "other", "1"), ())
    for told.time_s in (0.0, 2.0):
        await first.writer.revoke()
    assert told.api.evicted == ["default/low/uid-low"]


def test_nobody_is_evicted_unless_settings_say_so() -> None:
    told = QuotaHandle()
    assert [each.name for each in plugin(told).new_controllers()] == ["status", "ask-back"]
    both = plugin(told, {"monitorAllQuotas": True}).new_controllers()
    assert [each.name for each in both] == ["status", "ask-back", "revoke"]


async def test_status_and_annotations_are_written_where_they_differ() -> None:
    told = QuotaHandle(node("a", "10", "1Gi", of("ci", "1", "2")))
    told.informers.put(ELASTIC_QUOTAS, CI)
    made = plugin(told)
    await made.writer.write_statuses()
    names = ("runtime", "request", "child-request")
    annotations = {f"{PREFIX}{name}": '{"cpu":"2"}' for name in names}
    assert told.api.patched == [
        ("default/ci", "", {"metadata": {"annotations": annotations}}),
        ("default/ci", "status", {"status": {"used": {"cpu": "2"}}}),
    ]
    told.api.patched.clear()
    written = copy.deepcopy(CI)
    written["metadata"]["annotations"] = annotations
    written["status"] = {"used": {"cpu": "2"}}
    told.informers.put(ELASTIC_QUOTAS, written)
    told.time_s = 60.0
    await made.writer.write_statuses()
    assert told.api.patched == []


async def test_broken_rules_are_told_as_a_condition_until_they_are_kept() -> None:
    told = QuotaHandle(node("a", "10", "1Gi"))
    broken = quota("ci", least={"cpu": "9"}, most={"cpu": "8"}, annotations={f"{PREFIX}namespaces": "{"})
    told.informers.put(ELASTIC_QUOTAS, broken)
    made = plugin(told)
    await made.writer.write_statuses()
    (condition,) = told.api.patched[-1][2]["status"]["conditions"]
    assert (condition["type"], condition["status"], condition["reason"]) == ("Valid", "False", "Unreadable")
    assert "min exceeds max in cpu" in condition["message"]
    mended = copy.deepcopy(CI)
    mended["status"] = {"conditions": [{"type": "Other"}, condition]}
    told.informers.put(ELASTIC_QUOTAS, mended)
    told.time_s = 60.0
    await made.writer.write_statuses()
    other, condition = told.api.patched[-1][2]["status"]["conditions"]
    assert (other["type"], condition["status"], condition["reason"]) == ("Other", "True", "NoFault")


def test_the_page_shows_the_tree() -> None:
    told = QuotaHandle(node("a", "10", "1Gi", of("ci", "1", "2")))
    told.informers.put(ELASTIC_QUOTAS, CI)
    listed, one = plugin(told).endpoints()
    names = [each["name"] for each in listed.read({})]
    assert names == ["koordinator-default-quota", "koordinator-system-quota", "ci"]
    shown = one.read({"name": "ci"})
    assert (shown["used"], shown["limit"], shown["parent"]) == (
        {"cpu": "2"},
        {"cpu": "2"},
        "koordinator-root-quota",
    )
    assert one.read({"name": "nobody"}) is None


def test_a_pod_is_counted_once_on_its_way() -> None:
    told = QuotaHandle(node("a", "10", "1Gi"))
    told.informers.put(ELASTIC_QUOTAS, CI)
    made, wanted, notes = plugin(told), of("ci", "1", "2"), Notes()
    manifest = cast("Manifest", wanted.manifest)
    told.informers.put(PODS, manifest)

    def counted() -> tuple[int, int]:
        account = made.account()
        return account.shares["ci"].request.get("cpu", 0), account.used["ci"].get("cpu", 0)

    assert counted() == (2000, 0)
    assert made.reserve(notes, wanted, "a") is None
    assert counted() == (2000, 2000)
    notes.write(MAY_BE_BOUND, True)
    made.unreserve(notes, wanted, "a")
    assert counted() == (2000, 2000), "the pod may be bound"
    told.time_s = BINDING_SETTLES_S
    assert counted() == (2000, 0), "the nodes would show it by now"
    notes.delete(MAY_BE_BOUND)
    made.reserve(notes, wanted, "a")
    made.unreserve(notes, wanted, "a")
    assert counted() == (2000, 0)
    made.reserve(notes, wanted, "a")
    told.nodes = NodeSnapshot({"a": node("a", "10", "1Gi", wanted)}, 1)
    placed = {**manifest, "spec": {**manifest["spec"], "nodeName": "a"}}
    told.informers.put(PODS, placed)
    assert counted() == (2000, 2000)
    earlier = told.nodes
    told.nodes = NodeSnapshot({"a": node("a", "10", "1Gi")}, 2)
    told.informers.delete(PODS, placed)
    assert counted() == (0, 0)
    told.nodes = earlier
    assert counted() == (0, 0), "a cycle that began earlier sees the nodes as they were"
