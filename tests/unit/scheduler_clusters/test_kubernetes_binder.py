"""Binding pods through the API server: what is definite, and what nobody knows."""

import asyncio
from collections.abc import Callable

import pytest

from hosting.kubernetes import names
from hosting.kubernetes.resources import PODS
from protocol.wire import PodName
from scheduler.clusters.kubernetes.binder import BIND_DEADLINE_S, KubernetesBinder
from scheduler.ports import BINDING_SETTLES_S, NotBound
from tests.support.kube_api import FakeApiServer, lists, writes
from tests.support.virtual_time import now_s, virtually
from tests.unit.scheduler_clusters.kube_manifests import pod

POD = PodName("a", "default")


def _server() -> FakeApiServer:
    """With the pod `a`, which has no node."""
    server = FakeApiServer()
    server.put(PODS, pod("a", nodeName=""))
    return server


def _bound(server: FakeApiServer, node: str) -> None:
    server.store.bind(("default", "a"), {"metadata": {}, "target": {"name": node}})


def _made_anew(server: FakeApiServer) -> None:
    server.delete(PODS, "default", "a")
    server.put(PODS, pod("a", nodeName=""))


def _unreadable(server: FakeApiServer) -> None:
    _bound(server, "n1")
    server.fail("status", lists, status=503)


def _overloaded(server: FakeApiServer) -> None:
    _bound(server, "n1")
    server.fail("status", writes, status=429)


@pytest.mark.parametrize(
    ("before", "outcome"),
    [
        (lambda _: None, None),
        (lambda server: _bound(server, "n1"), None),
        (lambda server: server.fail("cut", writes, after=True), NotBound("", may_be_bound=True)),
        (lambda server: server.fail("cut", writes), NotBound("", may_be_bound=True)),
        (lambda server: server.fail("hang", writes), NotBound("no answer within 3 s", may_be_bound=True)),
        (lambda server: server.fail("status", writes, status=500), NotBound("", may_be_bound=True)),
        (lambda server: server.fail("status", writes, status=403), NotBound("403")),
        (lambda server: server.fail("status", writes, status=429), NotBound("429")),
        (lambda server: _bound(server, "n2"), NotBound("it is on node n2 already")),
        (_made_anew, NotBound("another pod has that name now")),
        (lambda server: server.delete(PODS, "default", "a"), NotBound('404 NotFound: pods "a" not found')),
        (_unreadable, NotBound("409 Conflict", may_be_bound=True)),
        (_overloaded, None),
    ],
    ids=[
        "bound now", "bound before", "answer lost", "call lost", "no answer", "server failed", "forbidden", "overloaded",
        "bound elsewhere", "another pod", "pod gone", "conflict that cannot be read", "bound before, and now refused",
    ],
)  # fmt: skip
def test_what_becomes_of_a_binding(before: Callable[[FakeApiServer], None], outcome: NotBound | None) -> None:
    @virtually
    async def story() -> None:
        server = _server()
        uid = server.get(PODS, "default", "a")["metadata"]["uid"]
        before(server)
        found = await KubernetesBinder(server.api()).bind(POD, uid, "n1", {})
        assert now_s() <= BIND_DEADLINE_S
        if outcome is None or found is None:
            assert found is outcome
            assert server.get(PODS, "default", "a")["spec"]["nodeName"] == "n1"
        else:
            assert found.may_be_bound is outcome.may_be_bound
            assert outcome.message in found.message

    story()


@virtually
async def test_a_pod_is_told_by_an_annotation_which_reservation_it_uses() -> None:
    server = _server()
    uid = server.get(PODS, "default", "a")["metadata"]["uid"]
    assert await KubernetesBinder(server.api()).bind(POD, uid, "n1", {names.RESERVATION: "r"}) is None
    assert server.get(PODS, "default", "a")["metadata"]["annotations"][names.RESERVATION] == "r"


@pytest.mark.parametrize("ends", ["its deadline", "its caller"])
@virtually
async def test_a_refusal_says_nothing_of_a_request_that_may_still_be_carried_out(ends: str) -> None:
    """Until then, however often it is refused meanwhile."""
    server = _server()
    uid = server.get(PODS, "default", "a")["metadata"]["uid"]
    binder = KubernetesBinder(server.api())
    server.fail("hang", writes)
    call = asyncio.create_task(binder.bind(POD, uid, "n1", {}))
    await asyncio.sleep(1.0)
    if ends == "its caller":
        call.cancel()
    await asyncio.wait([call])
    lost_s = now_s()
    for waits_s, in_doubt in ((0, True), (30, True), (BINDING_SETTLES_S - 30, False)):
        await asyncio.sleep(waits_s)
        server.fail("status", writes, status=403)
        refused = await binder.bind(POD, uid, "n1", {})
        assert refused is not None
        assert refused.may_be_bound is in_doubt, now_s() - lost_s
