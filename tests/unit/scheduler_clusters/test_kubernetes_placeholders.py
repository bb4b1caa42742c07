"""Placeholders as pods at a fake API server: their shape, their life, and what the API server's faults do to them."""

import asyncio
import random
from collections.abc import Callable
from typing import Any

import pytest

from hosting.kubernetes import names, objects
from hosting.kubernetes.connection import ApiCall
from hosting.kubernetes.core.known import Key
from hosting.kubernetes.resources import PODS, Manifest
from protocol.values import Resources
from scheduler.clusters.kubernetes.placeholders import (
    END_DEADLINE_S,
    IMAGE,
    LOOK_S,
    Placeholders,
    PlaceholderSources,
    body_of,
    pool_node,
)
from scheduler.clusters.kubernetes.reading import FoundPod, PodContext, describe
from scheduler.permits.core.placeholders import NodePool, Placeholder, PlaceholderRules, PoolNode
from scheduler.ports import NotLeadingError, SoleScheduler
from tests.support.amounts import GIB, cu
from tests.support.kube_api import FakeApiServer, writes
from tests.support.kube_store import Selector
from tests.support.manifests import node_manifest
from tests.support.servers import QUIET
from tests.support.virtual_time import now_s, virtually
from tests.unit.scheduler_core.core_worlds import World

RULES = PlaceholderRules(30, ("pool", "group"), "low", 5, cu(8), Resources(500, GIB))
POOL = NodePool("pool", "blue")
PLACEHOLDER = Placeholder(POOL, Resources(2000, 0), (("gpu", "yes", "NoSchedule"),), RULES)


def node(name: str, labels: dict[str, str], *taints: dict[str, str]) -> Manifest:
    found = node_manifest(name, "16", "16Gi")
    found["metadata"]["labels"] = labels
    found["spec"] = {"taints": list(taints)}
    return found


def test_the_pool_of_a_node_is_that_of_the_first_label_that_it_has() -> None:
    gpu = {"key": "gpu", "effect": "NoSchedule"}
    passing = {"key": "node.kubernetes.io/not-ready", "effect": "NoExecute"}
    found = pool_node(node("n", {"group": "g", "pool": "p"}, gpu, passing), RULES.labels)
    assert found == PoolNode(NodePool("pool", "p"), cu(16), frozenset({("gpu", "", "NoSchedule")}))
    assert pool_node(node("n", {"group": "g"}), RULES.labels).pool == NodePool("group", "g")
    assert pool_node(node("n", {"other": "g"}), RULES.labels).pool == NodePool()


def test_a_placeholder_asks_for_what_is_denied_on_a_node_of_the_pool_and_for_nothing_else() -> None:
    body = body_of(PLACEHOLDER, "ns")
    spec = body["spec"]
    assert body["metadata"]["namespace"] == "ns"
    assert body["metadata"]["labels"] == {names.PLACEHOLDER: "true"}
    assert spec["nodeSelector"] == {"pool": "blue"}
    assert spec["tolerations"] == [
        {"key": "gpu", "operator": "Equal", "value": "yes", "effect": "NoSchedule"}
    ]
    assert (spec["priorityClassName"], spec["automountServiceAccountToken"]) == ("low", False)
    (container,) = spec["containers"]
    assert (container["image"], container["resources"]) == (IMAGE, {"requests": {"cpu": "2"}})
    assert "schedulerName" not in spec, "kube-scheduler places it"


def test_the_template_is_merged_and_does_not_change_what_makes_it_a_placeholder() -> None:
    template: dict[str, Any] = {
        "metadata": {"labels": {"team": "x", names.PLACEHOLDER: "no"}, "annotations": {"note": "y"}},
        "spec": {
            "priorityClassName": "high",
            "nodeSelector": {"disk": "ssd", "pool": "red"},
            "tolerations": [{"operator": "Exists"}],
            "containers": [
                {
                    "name": "placeholder",
                    "image": "mine",
                    "resources": {"limits": {"cpu": "3"}, "requests": {"cpu": "9"}},
                },
                {"name": "second", "image": "other"},
            ],
        },
    }
    rules = PlaceholderRules(30, ("pool",), "low", 5, cu(8), cu(1), template)
    body = body_of(Placeholder(POOL, cu(2), (), rules), "ns")
    spec = body["spec"]
    assert body["metadata"]["labels"] == {"team": "x", names.PLACEHOLDER: "true"}
    assert body["metadata"]["annotations"]["note"] == "y"
    assert spec["priorityClassName"] == "low"
    assert spec["nodeSelector"] == {"disk": "ssd", "pool": "blue"}
    assert spec["tolerations"] == [{"operator": "Exists"}]
    first, second = spec["containers"]
    assert (first["image"], second) == ("mine", {"name": "second", "image": "other"})
    assert first["resources"] == {"limits": {"cpu": "3"}, "requests": {"cpu": "2", "memory": "2Gi"}}
    assert first["securityContext"]["allowPrivilegeEscalation"] is False


def test_without_a_pool_it_may_go_anywhere() -> None:
    assert "nodeSelector" not in body_of(Placeholder(NodePool(), cu(1), (), RULES), "ns")["spec"]


@pytest.mark.parametrize(("namespace", "held"), [("ns", 0), ("others", 2000)])
def test_a_placeholder_with_a_node_holds_nothing_and_the_label_means_nothing_elsewhere(
    namespace: str, held: int
) -> None:
    pod = body_of(PLACEHOLDER, namespace)
    pod["metadata"]["uid"] = "u"
    pod["spec"]["nodeName"] = "n1"
    found = describe(pod, PodContext(cu(16), placeholders_in="ns")).found
    assert isinstance(found, FoundPod)
    assert (found.spec.node, found.spec.requests.vcpu_milli) == ("n1", held)


class NotLeading:
    def check(self, seen_epoch: int, witness: tuple[str, ...] | None = None) -> None:
        raise NotLeadingError("another")


class Here:
    """Placeholders of a world whose node `n1` of the pool blue denies the VM 2 units."""

    def __init__(self, guard: Any = None) -> None:
        self.server = FakeApiServer()
        self.world = World(cu(5))
        self.world.vm("vm", cu(4))
        self.ask(7)
        self.nodes: dict[Key, Manifest] = {("", "n1"): node("n1", {"pool": "blue"})}
        self.placeholders = self.new(guard)
        self.placeholders.use(RULES)

    def new(self, guard: Any = None) -> Placeholders:
        sources = PlaceholderSources(self.world.core.state, lambda: self.nodes, guard or SoleScheduler())
        return Placeholders(self.server.api(), "ns", sources, clock=now_s, rng=random.Random(1), log=QUIET)

    def ask(self, units: int) -> None:
        self.world.permit(self.world.request("vm", cu(units)))

    def pods(self) -> list[Manifest]:
        return self.server.store.select(PODS, "ns", Selector())


async def after(here: Here, seconds: float, done: Callable[[], object] = lambda: None) -> list[Manifest]:
    """The pods after `seconds` of running."""
    running = asyncio.create_task(here.placeholders.run())
    await asyncio.sleep(seconds)
    done()
    await asyncio.sleep(2 * LOOK_S)
    running.cancel()
    await asyncio.wait([running])
    return here.pods()


@virtually
async def test_a_pod_pends_while_growth_is_denied_and_goes_with_the_denial() -> None:
    here = Here()
    (pod,) = await after(here, 40)
    assert pod["spec"]["containers"][0]["resources"] == {"requests": {"cpu": "2", "memory": "2Gi"}}
    assert await after(here, 10, lambda: here.ask(4)) == []


@virtually
async def test_a_pod_that_got_a_node_is_deleted() -> None:
    here = Here()
    (pod,) = await after(here, 40)

    def placed() -> None:
        here.server.store.bind(
            ("ns", objects.name(pod)), {"metadata": {"uid": objects.uid(pod)}, "target": {"name": "n1"}}
        )

    assert await after(here, 1, placed) == []


@virtually
async def test_the_next_leader_owns_what_stands_and_the_last_act_of_one_is_to_delete_it() -> None:
    here = Here()
    (pod,) = await after(here, 40)
    here.placeholders = here.new()
    here.placeholders.use(RULES)
    (same,) = await after(here, 100)
    assert objects.uid(same) == objects.uid(pod)
    await here.placeholders.end()
    assert here.pods() == []


@virtually
async def test_what_is_left_is_deleted_if_placeholders_are_off_and_then_nothing_is_asked() -> None:
    here = Here()
    await after(here, 40)
    stranger = {"metadata": {"namespace": "ns", "name": "stranger"}, "spec": {}}
    here.server.put(PODS, stranger)
    here.placeholders = here.new()
    assert [objects.name(each) for each in await after(here, 1)] == ["stranger"]
    count = len(here.server.calls)
    await after(here, 60)
    assert len(here.server.calls) == count


@virtually
async def test_a_pod_that_cannot_be_made_is_tried_again_later_and_later() -> None:
    """Without the component of the deployment a scheduler may not make pods."""
    here = Here()
    here.server.fail("status", writes, times=1000, status=403, reason="Forbidden")
    assert await after(here, 600) == []
    assert 5 < sum(map(writes, here.server.calls)) < 25
    here.server.heal()
    assert len(await after(here, 100)) == 1


@virtually
async def test_a_process_that_does_not_lead_makes_none() -> None:
    here = Here(NotLeading())
    assert await after(here, 100) == []
    assert not any(map(writes, here.server.calls))


@virtually
async def test_an_end_does_not_wait_for_an_api_server_that_does_not_answer() -> None:
    here = Here()
    await after(here, 40)
    here.server.fail("hang", writes, times=9)
    began_s = now_s()
    await here.placeholders.end()
    assert now_s() - began_s == END_DEADLINE_S


@virtually
async def test_a_pod_under_the_name_that_is_not_ours_stays() -> None:
    here = Here()
    (pod,) = await after(here, 40)
    here.server.delete(PODS, "ns", objects.name(pod))
    stranger = {"metadata": {"namespace": "ns", "name": objects.name(pod)}, "spec": {}}
    here.server.put(PODS, stranger)
    (left,) = await after(here, 100)
    assert objects.labels(left) == {}


def deletions(call: ApiCall) -> bool:
    return call.method == "DELETE"


@virtually
async def test_only_the_pod_that_was_seen_is_deleted() -> None:
    here = Here()
    await after(here, 40)
    await after(here, 1, lambda: here.ask(4))
    (call,) = filter(deletions, here.server.calls)
    assert call.body["preconditions"]["uid"]
