"""The API server takes every object of `deploy/`, which gives each program what it needs and no more.

The programs' rights are tried by acting as them: with tokens of their service accounts that are bound to their pods, as the kubelet's are.
"""

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from agent.node.qos.core.node_metric import AGGREGATIONS, Measured, Usage, status_of
from hosting.kubernetes.koordinator import NODE_METRICS
from hosting.kubernetes.names import PREDICTED
from hosting.kubernetes.resources import Manifest
from labs.clusters.programs import Programs
from protocol.values import Resources
from scheduler.clusters.kubernetes.placeholders import body_of
from scheduler.permits.core.placeholders import NodePool, Placeholder, PlaceholderRules
from tests.support.evictions import pod as pod_state
from tests.support.kube.deployed import (
    DEPLOY,
    MACHINES,
    NAMESPACE,
    OVERLAYS,
    TEAM,
    Caller,
    Deployed,
    started_deployment,
)
from tests.support.kube.objects import pod


@pytest.fixture(scope="module")
def deployed(programs: Programs, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployed]:
    with started_deployment(programs, tmp_path_factory.mktemp("deployed")) as found:
        yield found


MEASURED_POD: Final = pod_state("a")

# ------------------------------------------------------------ the manifests


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_the_api_server_takes_every_object(deployed: Deployed, overlay: str) -> None:
    """Fields that are unknown or come twice are refused; so is what its validation dislikes."""
    built = deployed.plane.kubectl("kustomize", str(DEPLOY / overlay))
    how = ("--server-side", "--force-conflicts", "--dry-run=server", "--validate=strict")
    taken = deployed.plane.kubectl("apply", *how, "--filename=-", stdin=built)
    assert len(taken.splitlines()) == len([line for line in built.splitlines() if line.startswith("kind:")])


def test_an_overlay_may_let_agents_evict(deployed: Deployed, tmp_path: Path) -> None:
    """By itself nobody may; and RBAC alone decides."""
    victim = f"/api/v1/namespaces/{TEAM}/pods/on-{deployed.there}/eviction?dryRun=All"
    eviction = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": f"on-{deployed.there}"}}
    agent = deployed.agent(deployed.there)
    assert agent.call("POST", victim, eviction)[0] == 403
    rights = str(DEPLOY / "components/eviction/rbac.yaml")
    deployed.plane.kubectl("apply", f"--filename={rights}")
    deployed.system.shown("the right", lambda: agent.call("POST", victim, eviction)[0] == 201 or None)
    deployed.plane.kubectl("delete", f"--filename={rights}")


def test_an_overlay_may_let_agents_write_the_node_metric_of_their_node(deployed: Deployed) -> None:
    kind = str(DEPLOY / "koordinator/nodemetrics.yaml")
    deployed.plane.kubectl("apply", f"--filename={kind}")
    deployed.plane.kubectl("wait", "--for=condition=Established", f"--filename={kind}", "--timeout=30s")
    folder = DEPLOY / "components/node-metric"
    files = [f"--filename={folder / name}" for name in ("rbac.yaml", "admission-policy.yaml")]
    deployed.plane.kubectl("apply", "--server-side", "--validate=strict", *files)
    agent, metrics = deployed.agent("deployed-0"), "/apis/slo.koordinator.sh/v1alpha1/nodemetrics"
    use = Usage(1.5, 1e9)
    found = Measured(use, use, {MEASURED_POD.uid: use}, {300.0: dict.fromkeys(AGGREGATIONS, use)})
    held = {MEASURED_POD.uid: Resources(1, 1)}
    report = {"status": status_of(found, [MEASURED_POD], held, "2026-11-27T12:00:00Z")}

    def made(name: str) -> Manifest:
        return {
            "apiVersion": NODE_METRICS.api_version,
            "kind": NODE_METRICS.kind,
            "metadata": {"name": name},
        }

    strict = "fieldValidation=Strict"
    deployed.system.shown(
        "the right",
        lambda: agent.call("POST", f"{metrics}?{strict}", made("deployed-0"))[0] in {201, 409} or None,
    )
    deployed.system.shown(
        "the policy", lambda: agent.call("POST", metrics, made("deployed-1"))[0] == 422 or None
    )
    assert agent.call("PATCH", f"{metrics}/deployed-0/status?{strict}", report) == (200, "")
    deployed.plane.kubectl("create", "--filename=-", stdin=json.dumps(made("deployed-1")))
    status, said = agent.call("PATCH", f"{metrics}/deployed-1/status", report)
    assert (status, "may not write the NodeMetric deployed-1" in said) == (422, True)
    for method, path in (("PATCH", "deployed-0"), ("DELETE", "deployed-0"), ("GET", "")):
        assert agent.call(method, f"{metrics}/{path}", {})[0] == 403
    deployed.plane.kubectl("delete", f"--filename={kind}", *files)


def test_an_overlay_may_let_schedulers_note_what_they_give_to_pods(deployed: Deployed) -> None:
    """In annotations of pods without a node, of one group; nothing else of pods that are not theirs."""
    folder = str(DEPLOY / "components/koordinator/rbac.yaml")
    own, _ = deployed.pods_of("parley-scheduler")
    caller = deployed.as_pod_of("parley-scheduler", own)
    waiting = {**pod("waits-for-a-node"), "apiVersion": "v1", "kind": "Pod"}
    waiting["spec"]["schedulerName"] = "nobody"
    deployed.team.apply(waiting)
    given = {"metadata": {"annotations": {"scheduling.koordinator.sh/resource-status": "{}"}}}
    path = _pod("waits-for-a-node")
    assert caller.call("PATCH", path, given)[0] == 403
    deployed.plane.kubectl("apply", "--server-side", "--validate=strict", f"--filename={folder}")
    deployed.system.shown("the right", lambda: caller.call("PATCH", path, given)[0] == 200 or None)
    for change, why in (
        ({"metadata": {"annotations": {"a": "b"}}}, "may change pods of schedulers only"),
        ({"metadata": {**given["metadata"], "labels": {"a": "b"}}}, "may change pods of schedulers only"),
        (
            {"metadata": {**given["metadata"], "finalizers": ["a.example/b"]}},
            "may change pods of schedulers only",
        ),
        ({**given, "spec": {"activeDeadlineSeconds": 1}}, "may not change the spec"),
    ):
        status, said = caller.call("PATCH", path, change)
        assert (status, why in said) == (422, True), said
    status, said = caller.call("PATCH", _pod(OWN_POD), given)
    assert (status, "may change pods of schedulers only" in said) == (422, True), (
        "it has a node, and no CPUs of its own"
    )
    note = ("annotate", "pod", f"--namespace={deployed.team.namespace}", OWN_POD)
    deployed.plane.kubectl(*note, "scheduling.koordinator.sh/resource-status={}")
    others = {"metadata": {"annotations": {"scheduling.koordinator.sh/resource-status": '{"cpuset": "2"}'}}}
    assert caller.call("PATCH", _pod(OWN_POD), others)[0] == 200, "it grows"
    for notes in (
        {"scheduling.koordinator.sh/resource-status": None},
        {
            "scheduling.koordinator.sh/resource-status": "{}",
            "scheduling.koordinator.sh/device-allocated": "{}",
        },
    ):
        status, said = caller.call("PATCH", _pod(OWN_POD), {"metadata": {"annotations": notes}})
        assert (status, "may change pods of schedulers only" in said) == (422, True), said
    deployed.plane.kubectl(*note, "scheduling.koordinator.sh/resource-status-")
    deployed.plane.kubectl("delete", f"--filename={folder}")
    deployed.team.delete("pods", "waits-for-a-node")


def test_an_overlay_may_let_prometheus_in(deployed: Deployed) -> None:
    policies = str(DEPLOY / "components/monitoring/network-policy.yaml")
    how = ("--server-side", "--dry-run=server", "--validate=strict")
    taken = deployed.plane.kubectl("apply", *how, f"--filename={policies}")
    assert len(taken.splitlines()) == 2


def test_the_service_finds_whoever_leads(deployed: Deployed) -> None:
    """A scheduler puts the label on its own pod; whoever leads next takes it off, where the first one cannot."""
    first, second = deployed.pods_of("parley-scheduler")
    path = f"/api/v1/namespaces/{NAMESPACE}/pods/{first['metadata']['name']}"
    selector = deployed.system.get("services", "parley-scheduler")["spec"]["selector"]
    found = f"--selector={','.join(f'{key}={value}' for key, value in selector.items())}"
    listed = ("get", "pods", f"--namespace={NAMESPACE}", "--output=name", found)
    assert deployed.plane.kubectl(*listed) == ""
    assert deployed.as_pod_of("parley-scheduler", first).call("PATCH", path, LEADER) == (200, "")
    assert deployed.plane.kubectl(*listed).split() == [f"pod/{first['metadata']['name']}"]
    nobody = {"metadata": {"labels": {"parley.dev/role": None, "name": None}}}
    assert deployed.as_pod_of("parley-scheduler", second).call("PATCH", path, nobody) == (200, "")
    assert deployed.plane.kubectl(*listed) == ""


# ------------------------------------------------------------ what an agent may do

SIZE: Final = {"requests": {"cpu": "600m", "memory": "256Mi"}, "limits": {"cpu": "600m", "memory": "256Mi"}}
RESIZE: Final = {"spec": {"containers": [{"name": "main", "resources": SIZE}]}}
DENIED: Final = {
    "type": "parley.dev/Denied",
    "status": "True",
    "reason": "NodeHeadroom",
    "message": "the node is full",
    "lastTransitionTime": "2026-01-01T00:00:00Z",
}
READY: Final = {**DENIED, "type": "Ready"}
EVENT: Final = {
    "apiVersion": "events.k8s.io/v1",
    "kind": "Event",
    "metadata": {"name": "an-event", "namespace": TEAM},
    "eventTime": "2026-01-01T00:00:00.000000Z",
    "type": "Warning",
    "reason": "Denied",
    "action": "Grow",
    "note": "the node is full",
    "reportingController": "parley.dev/agent",
    "reportingInstance": "one",
    "regarding": {"apiVersion": "v1", "kind": "Pod", "namespace": TEAM, "name": "some-pod"},
}
NODE_EVENT: Final = {
    **EVENT,
    "metadata": {"name": "of-a-node", "namespace": "default"},
    "regarding": {"apiVersion": "v1", "kind": "Node", "name": "deployed-0", "uid": "any"},
}
ANOTHER_POD: Final = pod("another")


def _pod(name: str, subresource: str = "") -> str:
    rest = f"/{subresource}" if subresource else ""
    return f"/api/v1/namespaces/{TEAM}/pods/{name}{rest}?dryRun=All"


def _machine(name: str) -> str:
    return f"{MACHINES}/{name}?dryRun=All"


OWN_POD: Final = "on-deployed-0"
MARK: Final = {"metadata": {"annotations": {"parley.dev/fence": "7.1"}}}
OTHERS_POD: Final = "on-deployed-1"

AGENT_MAY: Final = [
    ("GET", "/api/v1/pods?fieldSelector=spec.nodeName%3Ddeployed-0", None),
    ("GET", "/api/v1/nodes/deployed-0", None),
    ("GET", "/apis/parley.dev/v1alpha1/scalingpolicies", None),
    ("GET", f"/apis/discovery.k8s.io/v1/namespaces/{NAMESPACE}/endpointslices", None),
    ("PATCH", _pod(OWN_POD, "resize"), RESIZE),
    ("PATCH", _pod(OWN_POD, "status"), {"status": {"conditions": [DENIED]}}),
    ("PATCH", _pod(OWN_POD, "status"), MARK),
    ("PATCH", _pod(OWN_POD, "status"), {"metadata": {"annotations": {PREDICTED: "{}"}}}),
    (
        "PATCH",
        _machine("on-deployed-0"),
        {"spec": {"guest": {"cpus": {"use": 2}, "memorySlots": {"use": 2}}}},
    ),
    ("PATCH", _machine("on-deployed-0"), MARK),
    ("GET", MACHINES, None),
    ("GET", f"/api/v1/namespaces/{TEAM}/limitranges", None),
    ("GET", f"/api/v1/namespaces/{TEAM}/resourcequotas", None),
    ("POST", f"/apis/events.k8s.io/v1/namespaces/{TEAM}/events?dryRun=All", EVENT),
    ("POST", "/apis/events.k8s.io/v1/namespaces/default/events?dryRun=All", NODE_EVENT),
]


@pytest.mark.parametrize(("method", "path", "body"), AGENT_MAY, ids=[f"{m} {p}" for m, p, _ in AGENT_MAY])
def test_an_agent_may(deployed: Deployed, method: str, path: str, body: object) -> None:
    status, said = deployed.agent("deployed-0").call(method, path, body)
    assert status in {200, 201}, said


RBAC: Final = "is forbidden: User"
AGENT_MAY_NOT: Final[list[tuple[str, str, Any, str]]] = [
    (
        "PATCH",
        _pod(OTHERS_POD, "resize"),
        RESIZE,
        "agent of node deployed-0 may not change what is on node deployed-1",
    ),
    (
        "PATCH",
        _pod(OTHERS_POD, "status"),
        {"status": {"conditions": [DENIED]}},
        "not change what is on node deployed-1",
    ),
    (
        "PATCH",
        _pod(OWN_POD, "status"),
        {"status": {"conditions": [READY]}},
        "conditions whose type begins with parley.dev/ only",
    ),
    (
        "PATCH",
        _pod(OWN_POD, "status"),
        {"status": {"phase": "Failed"}},
        "conditions whose type begins with parley.dev/ only",
    ),
    ("PATCH", _pod(OWN_POD, "status"), {"metadata": {"labels": {"a": "b"}}}, "may not change labels"),
    (
        "PATCH",
        _pod(OWN_POD, "status"),
        {"metadata": {"annotations": {"parley.dev/bounds": "{}"}}},
        "parley.dev/fence and autoscaling.k8s.io/predicted-pod-requests only",
    ),
    ("PATCH", _machine("on-deployed-1"), MARK, "not change what is on node deployed-1"),
    ("PATCH", _machine("on-deployed-0"), {"metadata": {"annotations": {"a": "b"}}}, "parley.dev/fence only"),
    ("PATCH", _machine("on-deployed-0"), {"spec": {"guest": {"cpus": {"max": 8}}}}, "memorySlots.use only"),
    ("PATCH", _machine("on-deployed-0"), {"spec": {"guest": {"image": "other"}}}, "memorySlots.use only"),
    ("PATCH", _machine("on-deployed-0"), {"spec": {"schedulerName": None}}, "memorySlots.use only"),
    ("PATCH", f"{MACHINES}/on-deployed-0/status?dryRun=All", {"status": {"node": "deployed-1"}}, RBAC),
    ("DELETE", _machine("on-deployed-0"), None, RBAC),
    ("PATCH", _pod(OWN_POD), MARK, RBAC),
    ("DELETE", _pod(OWN_POD), None, RBAC),
    ("POST", f"/api/v1/namespaces/{TEAM}/pods?dryRun=All", ANOTHER_POD, RBAC),
    ("POST", _pod(OWN_POD, "binding"), {}, RBAC),
    ("GET", f"/api/v1/namespaces/{TEAM}/pods/{OWN_POD}/exec?command=true", None, RBAC),
    ("GET", f"/api/v1/namespaces/{NAMESPACE}/secrets", None, RBAC),
    ("GET", f"/api/v1/namespaces/{NAMESPACE}/configmaps/parley-scheduler", None, RBAC),
    ("POST", "/apis/authentication.k8s.io/v1/tokenreviews", {}, RBAC),
    ("GET", f"/api/v1/namespaces/{NAMESPACE}/secrets/parley-scheduler-tls", None, RBAC),
    ("GET", f"/api/v1/namespaces/{NAMESPACE}/secrets/parley-agent-tls", None, RBAC),
    ("GET", f"/apis/discovery.k8s.io/v1/namespaces/{TEAM}/endpointslices", None, RBAC),
    ("GET", f"/apis/coordination.k8s.io/v1/namespaces/{NAMESPACE}/leases/parley-scheduler", None, RBAC),
    ("PATCH", "/api/v1/nodes/deployed-0?dryRun=All", {"metadata": {"labels": {"a": "b"}}}, RBAC),
    ("PATCH", "/api/v1/nodes/deployed-0/status?dryRun=All", {}, RBAC),
    ("GET", "/apis/parley.dev/v1alpha1/pools", None, RBAC),
    ("POST", f"/api/v1/namespaces/{NAMESPACE}/serviceaccounts/parley-agent/token", {}, RBAC),
]


@pytest.mark.parametrize(
    ("method", "path", "body", "why"), AGENT_MAY_NOT, ids=[f"{each[0]} {each[1]}" for each in AGENT_MAY_NOT]
)
def test_an_agent_may_not(deployed: Deployed, method: str, path: str, body: object, why: str) -> None:
    status, said = deployed.agent("deployed-0").call(method, path, body)
    assert status in {403, 422}, said
    assert why in said


def test_a_token_that_names_no_node_changes_nothing(deployed: Deployed) -> None:
    """Such as one that was made by hand for the service account."""
    caller = Caller(deployed.plane, deployed.plane.token(NAMESPACE, "parley-agent"))
    status, said = caller.call("PATCH", _pod(OWN_POD, "resize"), RESIZE)
    assert (status, "this token of an agent is not bound to a node" in said) == (422, True)


# ------------------------------------------------------------ what a scheduler may do

LEASE: Final = {
    "apiVersion": "coordination.k8s.io/v1",
    "kind": "Lease",
    "metadata": {"name": "parley-scheduler", "namespace": NAMESPACE},
    "spec": {"holderIdentity": "one", "leaseDurationSeconds": 15},
}
LEASES: Final = f"/apis/coordination.k8s.io/v1/namespaces/{NAMESPACE}/leases"
REVIEWS: Final = "/apis/authentication.k8s.io/v1/tokenreviews"
REVIEW: Final = {
    "apiVersion": "authentication.k8s.io/v1",
    "kind": "TokenReview",
    "spec": {"token": "any", "audiences": ["parley-scheduler"]},
}
POOL: Final = {
    "apiVersion": "parley.dev/v1alpha1",
    "kind": "Pool",
    "metadata": {"name": "ci"},
    "spec": {"computeUnit": {"cpu": 1, "memory": "4Gi"}},
}
POLICY: Final = {
    "apiVersion": "parley.dev/v1alpha1",
    "kind": "ScalingPolicy",
    "metadata": {"name": "web", "namespace": TEAM},
    "spec": {"selector": {"matchLabels": {"app": "web"}}},
}
RESERVATION: Final = {
    "apiVersion": "parley.dev/v1alpha1",
    "kind": "Reservation",
    "metadata": {"name": "kept"},
    "spec": {"resources": {"cpu": 1, "memory": "4Gi"}, "owners": []},
}
KEPT: Final = "/apis/parley.dev/v1alpha1/reservations/kept"
CI: Final = "/apis/parley.dev/v1alpha1/pools/ci?dryRun=All"
LEADER: Final = {"metadata": {"labels": {"parley.dev/role": "leader", "name": "parley-scheduler"}}}

MIGRATIONS: Final = f"/apis/vm.neon.tech/v1/namespaces/{TEAM}/virtualmachinemigrations"
MIGRATION: Final = {
    "apiVersion": "vm.neon.tech/v1",
    "kind": "VirtualMachineMigration",
    "metadata": {"name": "moving", "namespace": TEAM},
    "spec": {"vmName": "on-deployed-0"},
}

SCHEDULER_MAY: Final = [
    ("POST", REVIEWS, REVIEW),
    ("GET", "/api/v1/pods", None),
    ("GET", "/api/v1/nodes", None),
    ("GET", "/apis/parley.dev/v1alpha1/pools", None),
    ("GET", "/apis/parley.dev/v1alpha1/reservations", None),
    ("GET", "/apis/parley.dev/v1alpha1/scalingpolicies", None),
    ("PATCH", f"{KEPT}/status", {"status": {"phase": "Available"}}),
    ("PATCH", CI, {"metadata": {"finalizers": ["parley.dev/pool"]}}),
    ("PATCH", "/apis/parley.dev/v1alpha1/pools/ci/status", {"status": {"replicas": 3}}),
    (
        "PATCH",
        f"/apis/parley.dev/v1alpha1/namespaces/{TEAM}/scalingpolicies/web/status",
        {"status": {"matchedPods": 3}},
    ),
    ("POST", f"{LEASES}?dryRun=All", {**LEASE, "metadata": {"name": "another", "namespace": NAMESPACE}}),
    ("GET", f"{LEASES}/parley-scheduler", None),
    ("GET", MACHINES, None),
    ("POST", f"{MIGRATIONS}?dryRun=All", {**MIGRATION, "metadata": {"name": "another"}}),
    ("DELETE", f"{MIGRATIONS}/moving?dryRun=All", None),
    (
        "GET",
        f"/api/v1/namespaces/{NAMESPACE}/configmaps?fieldSelector=metadata.name%3Dparley-scheduler",
        None,
    ),
    ("PATCH", f"/api/v1/namespaces/{NAMESPACE}/pods/OWN?dryRun=All", LEADER),
    ("POST", f"/apis/events.k8s.io/v1/namespaces/{TEAM}/events?dryRun=All", EVENT),
]
SCHEDULER_MAY_NOT: Final[list[tuple[str, str, Any, str]]] = [
    (
        "PATCH",
        f"/api/v1/namespaces/{NAMESPACE}/pods/OTHER?dryRun=All",
        LEADER,
        "the labels parley.dev/role and name may only be taken",
    ),
    (
        "PATCH",
        f"/api/v1/namespaces/{NAMESPACE}/pods/OWN?dryRun=All",
        {"metadata": {"labels": {"a": "b"}}},
        "not a",
    ),
    (
        "PATCH",
        f"/api/v1/namespaces/{NAMESPACE}/pods/OWN?dryRun=All",
        {"spec": {"activeDeadlineSeconds": 1}},
        "may not change the spec",
    ),
    ("PATCH", _pod(OWN_POD), {"metadata": {"labels": {"a": "b"}}}, RBAC),
    ("PATCH", _pod(OWN_POD, "resize"), RESIZE, RBAC),
    ("PATCH", _pod(OWN_POD, "status"), {"status": {"conditions": [DENIED]}}, RBAC),
    ("DELETE", _pod(OWN_POD), None, RBAC),
    ("GET", f"/api/v1/namespaces/{NAMESPACE}/configmaps", None, RBAC),
    ("GET", f"/api/v1/namespaces/{NAMESPACE}/secrets", None, RBAC),
    ("GET", f"/api/v1/namespaces/{NAMESPACE}/secrets/parley-scheduler-tls", None, RBAC),
    ("GET", f"/api/v1/namespaces/{NAMESPACE}/configmaps/parley-access", None, RBAC),
    ("POST", f"/api/v1/namespaces/{NAMESPACE}/serviceaccounts/parley-agent/token", {}, RBAC),
    ("POST", "/apis/authorization.k8s.io/v1/subjectaccessreviews", {}, RBAC),
    ("POST", _pod(OWN_POD, "binding"), {}, RBAC),
    ("GET", f"{LEASES}/another", None, RBAC),
    ("DELETE", f"{LEASES}/parley-scheduler", None, RBAC),
    ("POST", f"/apis/coordination.k8s.io/v1/namespaces/{TEAM}/leases?dryRun=All", LEASE, RBAC),
    ("DELETE", "/apis/parley.dev/v1alpha1/pools/ci", None, RBAC),
    ("PATCH", KEPT, {"spec": {"order": 1}}, RBAC),
    ("PATCH", _machine("on-deployed-0"), MARK, RBAC),
    ("PATCH", CI, {"metadata": {"labels": {"a": "b"}}}, "not a"),
    ("PATCH", CI, {"metadata": {"annotations": {"a": "b"}}}, "may not change annotations"),
    ("PATCH", CI, {"spec": {"limits": {"maxUnits": 1}}}, "may not change the spec of a pod or a pool"),
    (
        "PATCH",
        f"/api/v1/namespaces/{NAMESPACE}/pods/AGENT?dryRun=All",
        LEADER,
        "may change pods of schedulers only",
    ),
    ("PATCH", "/api/v1/nodes/deployed-0?dryRun=All", {"metadata": {"labels": {"a": "b"}}}, RBAC),
]


@pytest.fixture(scope="module")
def scheduler(deployed: Deployed) -> tuple[Caller, dict[str, str]]:
    """One of the schedulers, with the names of pods; there is an object of each type that schedulers write."""
    for made in (POOL, RESERVATION, POLICY, LEASE, MIGRATION):
        deployed.team.plane.kubectl("apply", "--filename=-", stdin=json.dumps(made))
    own, other = deployed.pods_of("parley-scheduler")
    agent = deployed.pods_of("parley-agent")[0]
    pods = {"OWN": own, "OTHER": other, "AGENT": agent}
    names = {word: found["metadata"]["name"] for word, found in pods.items()}
    return deployed.as_pod_of("parley-scheduler", own), names


def _named(path: str, names: dict[str, str]) -> str:
    for word, name in names.items():
        path = path.replace(f"/{word}?", f"/{name}?")
    return path


@pytest.mark.parametrize(
    ("method", "path", "body"), SCHEDULER_MAY, ids=[f"{m} {p}" for m, p, _ in SCHEDULER_MAY]
)
def test_a_scheduler_may(
    scheduler: tuple[Caller, dict[str, str]], method: str, path: str, body: object
) -> None:
    caller, names = scheduler
    status, said = caller.call(method, _named(path, names), body)
    assert status in {200, 201}, said


def test_a_scheduler_renews_its_lease(deployed: Deployed, scheduler: tuple[Caller, dict[str, str]]) -> None:
    caller, _ = scheduler
    lease = json.loads(deployed.plane.call("GET", f"{LEASES}/parley-scheduler"))
    lease["spec"]["holderIdentity"] = "two"
    assert caller.call("PUT", f"{LEASES}/parley-scheduler", lease) == (200, "")


@pytest.mark.parametrize(
    ("method", "path", "body", "why"),
    SCHEDULER_MAY_NOT,
    ids=[f"{each[0]} {each[1]}" for each in SCHEDULER_MAY_NOT],
)
def test_a_scheduler_may_not(
    scheduler: tuple[Caller, dict[str, str]], method: str, path: str, body: object, why: str
) -> None:
    caller, names = scheduler
    status, said = caller.call(method, _named(path, names), body)
    assert status in {403, 422}, said
    assert why in said


# ------------------------------------------------------------ placeholders

OWN_PODS: Final = f"/api/v1/namespaces/{NAMESPACE}/pods"
PLACEHOLDER: Final = body_of(
    Placeholder(
        NodePool("pool", "blue"),
        Resources(1000, 0),
        (),
        PlaceholderRules(30, ("pool",), "parley-placeholder", 1, Resources(1000, 1), Resources(1000, 1)),
    ),
    NAMESPACE,
)


@pytest.fixture(scope="module")
def with_placeholders(deployed: Deployed) -> Iterator[Caller]:
    """A scheduler with the component's rights; it has none of them before."""
    own, _ = deployed.pods_of("parley-scheduler")
    caller = deployed.as_pod_of("parley-scheduler", own)
    status, said = caller.call("POST", f"{OWN_PODS}?dryRun=All", PLACEHOLDER)
    assert (status, RBAC in said) == (403, True)
    rights = str(DEPLOY / "components/placeholder")
    deployed.plane.kubectl("apply", "--validate=strict", f"--kustomize={rights}")
    deployed.system.shown(
        "the right", lambda: caller.call("POST", f"{OWN_PODS}?dryRun=All", PLACEHOLDER)[0] == 201 or None
    )
    yield caller
    deployed.plane.kubectl("delete", f"--kustomize={rights}")


def _other(**changes: Any) -> Manifest:
    return {**PLACEHOLDER, "spec": {**PLACEHOLDER["spec"], **changes}}


def _with_container(**changes: Any) -> Manifest:
    (container,) = PLACEHOLDER["spec"]["containers"]
    return _other(containers=[{**container, **changes}])


@pytest.mark.parametrize(
    ("body", "why"),
    [
        ({**PLACEHOLDER, "metadata": {"name": "any"}}, "neither create nor delete pods"),
        (_other(priorityClassName=None), "a placeholder has a negative priority"),
        (_other(priorityClassName="parley-agent"), "a placeholder has a negative priority"),
        (_other(serviceAccountName="parley-agent"), "the service account default"),
        (_other(automountServiceAccountToken=None), "without a token"),
        (_other(hostNetwork=True), "nothing of its host"),
        (_other(hostPID=True), "nothing of its host"),
        (_other(nodeName="deployed-0"), "no node"),
        (_other(volumes=[{"name": "v", "secret": {"secretName": "parley-viewers"}}]), "no volumes"),
        (_other(initContainers=PLACEHOLDER["spec"]["containers"]), ""),
        (_with_container(env=[{"name": "A", "value": "b"}]), "no environment"),
        (_with_container(securityContext={"privileged": True}), "no privileges"),
    ],
)
def test_a_scheduler_makes_no_pod_but_a_placeholder(
    with_placeholders: Caller, body: Manifest, why: str
) -> None:
    status, said = with_placeholders.call("POST", f"{OWN_PODS}?dryRun=All", body)
    assert status in {403, 422}, said
    assert why in said


def test_a_scheduler_deletes_placeholders_and_nothing_else(
    deployed: Deployed, with_placeholders: Caller
) -> None:
    assert with_placeholders.call("POST", OWN_PODS, PLACEHOLDER) == (201, "")
    path = f"{OWN_PODS}/{PLACEHOLDER['metadata']['name']}"
    status, said = with_placeholders.call("PATCH", path, {"metadata": {"labels": {"a": "b"}}})
    assert (status, "may change pods of schedulers only" in said) == (422, True)
    assert with_placeholders.call("DELETE", path) == (200, "")
    for program in ("parley-scheduler", "parley-agent"):
        name = deployed.pods_of(program)[0]["metadata"]["name"]
        status, said = with_placeholders.call("DELETE", f"{OWN_PODS}/{name}?dryRun=All")
        assert (status, "neither create nor delete pods" in said) == (422, True), said
    elsewhere = {**PLACEHOLDER, "metadata": {**PLACEHOLDER["metadata"], "namespace": TEAM}}
    status, said = with_placeholders.call("POST", f"/api/v1/namespaces/{TEAM}/pods?dryRun=All", elsewhere)
    assert (status, RBAC in said) == (403, True)


# ------------------------------------------------------------ what a viewer may do

SYSTEM_PODS: Final = f"/api/v1/namespaces/{NAMESPACE}/pods"
VIEWER_MAY: Final = [
    SYSTEM_PODS,
    f"{SYSTEM_PODS}/http:AGENT:10300/proxy/v1/vms",
    f"{SYSTEM_PODS}/http:OWN:10299/proxy/v1/nodes",
    f"/api/v1/namespaces/{NAMESPACE}/secrets/parley-viewers",
]
VIEWER_MAY_NOT: Final = [
    ("POST", f"{SYSTEM_PODS}/http:OWN:10299/proxy/"),
    ("PUT", f"{SYSTEM_PODS}/http:OWN:10299/proxy/v1/scheduling/debug"),
    ("DELETE", f"{SYSTEM_PODS}/http:OWN:10299/proxy/v1/pools/a"),
    ("GET", f"/api/v1/namespaces/{NAMESPACE}/services/http:parley-scheduler:10299/proxy/v1/nodes"),
    ("GET", f"{SYSTEM_PODS}/AGENT?"),
    ("GET", f"{SYSTEM_PODS}/AGENT/log"),
    ("GET", f"{SYSTEM_PODS}/AGENT/portforward"),
    ("GET", f"{SYSTEM_PODS}/AGENT/exec?command=true"),
    ("GET", f"/api/v1/namespaces/{NAMESPACE}/secrets"),
    ("GET", f"/api/v1/namespaces/{NAMESPACE}/secrets/another"),
    ("GET", f"/api/v1/namespaces/{NAMESPACE}/configmaps/parley-scheduler"),
    ("DELETE", f"{SYSTEM_PODS}/AGENT?"),
    ("GET", "/api/v1/pods"),
    ("GET", f"/api/v1/namespaces/{TEAM}/pods"),
    ("GET", f"/api/v1/namespaces/{TEAM}/pods/{OWN_POD}/proxy/"),
    ("GET", "/api/v1/nodes"),
]


@pytest.fixture(scope="module")
def viewer(deployed: Deployed) -> tuple[Caller, dict[str, str]]:
    """Somebody with the Role, and the names of pods."""
    plane, where = deployed.plane, f"--namespace={NAMESPACE}"
    secret = ("create", "secret", "generic", "parley-viewers", "--from-literal=token=0123456789abcdef")
    plane.kubectl(*secret, where)
    plane.kubectl("create", "serviceaccount", "viewer", where)
    account = f"--serviceaccount={NAMESPACE}:viewer"
    plane.kubectl("create", "rolebinding", "viewers", "--role=parley-viewer", account, where)
    found = {"OWN": deployed.pods_of("parley-scheduler")[0], "AGENT": deployed.pods_of("parley-agent")[0]}
    caller = Caller(plane, plane.token(NAMESPACE, "viewer"))
    deployed.system.shown("the right", lambda: caller.call("GET", SYSTEM_PODS)[0] == 200 or None)
    return caller, {word: each["metadata"]["name"] for word, each in found.items()}


def _proxied(path: str, names: dict[str, str]) -> str:
    for word, name in names.items():
        path = path.replace(f":{word}:", f":{name}:").replace(f"/{word}", f"/{name}")
    return path


@pytest.mark.parametrize("path", VIEWER_MAY)
def test_a_viewer_may_read(viewer: tuple[Caller, dict[str, str]], path: str) -> None:
    """Nothing runs here, so the proxy reaches nobody: but it tries."""
    caller, names = viewer
    status, said = caller.call("GET", _proxied(path, names))
    reached_nobody = "/proxy/" in path and ("address not allowed" in said or "error trying to reach" in said)
    assert status == 200 or reached_nobody, said


@pytest.mark.parametrize(
    ("method", "path"), VIEWER_MAY_NOT, ids=[f"{method} {path}" for method, path in VIEWER_MAY_NOT]
)
def test_a_viewer_may_not(viewer: tuple[Caller, dict[str, str]], method: str, path: str) -> None:
    caller, names = viewer
    status, said = caller.call(method, _proxied(path, names))
    assert (status, RBAC in said) == (403, True), said


def test_nobody_is_a_viewer_unasked(deployed: Deployed) -> None:
    bindings = json.loads(
        deployed.plane.kubectl("get", "rolebindings", f"--namespace={NAMESPACE}", "--output=json")
    )
    bound = [
        subject["name"]
        for each in bindings["items"]
        if each["roleRef"]["name"] == "parley-viewer"
        for subject in each["subjects"]
    ]
    assert set(bound) <= {"viewer"}, "only what this test itself has bound"


def test_the_component_for_viewers_is_taken(deployed: Deployed, tmp_path: Path) -> None:
    """With the patch that its policy tells of."""
    overlay = tmp_path / "overlay"
    overlay.mkdir()
    patch = [
        {"op": "replace", "path": "/spec/ingress/0/from/0/ipBlock/cidr", "value": "10.1.0.1/32"},
        {"op": "add", "path": "/spec/ingress/0/from/-", "value": {"ipBlock": {"cidr": "10.1.0.2/32"}}},
    ]
    target = {"kind": "NetworkPolicy", "name": "parley-viewers"}
    kustomization = {
        "apiVersion": "kustomize.config.k8s.io/v1beta1",
        "kind": "Kustomization",
        "components": [os.path.relpath(DEPLOY / "components/viewers", overlay)],
        "patches": [{"target": target, "patch": json.dumps(patch)}],
    }
    (overlay / "kustomization.yaml").write_text(json.dumps(kustomization))
    built = deployed.plane.kubectl("kustomize", "--load-restrictor=LoadRestrictionsNone", str(overlay))
    how = ("--dry-run=server", "--validate=strict", "--output=json", "--filename=-")
    taken = json.loads(deployed.plane.kubectl("apply", *how, stdin=built))
    let_in = [each.get("ipBlock", {}).get("cidr") for each in taken["spec"]["ingress"][0]["from"]]
    assert let_in == ["10.1.0.1/32", None, "10.1.0.2/32"]


AS_AGENT: Final = f"system:serviceaccount:{NAMESPACE}:parley-agent"


def test_an_agents_token_for_the_scheduler_says_its_node_and_opens_nothing_at_the_api_server(
    deployed: Deployed, scheduler: tuple[Caller, dict[str, str]]
) -> None:
    (found,) = (each for each in deployed.pods_of("parley-agent") if each["spec"]["nodeName"] == "deployed-0")
    token = deployed.plane.kubectl(
        "create", "token", "parley-agent", f"--namespace={NAMESPACE}", "--audience=parley-scheduler",
        "--bound-object-kind=Pod", f"--bound-object-name={found['metadata']['name']}",
        f"--bound-object-uid={found['metadata']['uid']}",
    ).strip()  # fmt: skip
    caller = Caller(deployed.plane, token)
    assert caller.call("GET", "/api/v1/nodes/deployed-0")[0] == 401
    review = {**REVIEW, "spec": {"token": token, "audiences": ["parley-scheduler"]}}
    status = json.loads(deployed.plane.call("POST", REVIEWS, review))["status"]
    assert (status["authenticated"], status["user"]["username"]) == (True, AS_AGENT)
    assert status["user"]["extra"]["authentication.kubernetes.io/node-name"] == ["deployed-0"]
    assert scheduler[0].call("POST", REVIEWS, review)[0] == 201


def test_pods_that_are_open_to_their_node_are_told_of_in_the_audit_log(deployed: Deployed) -> None:
    """The namespace lets the agents' pods in, and marks what is not `restricted`."""
    labels = json.loads(deployed.plane.call("GET", f"/api/v1/namespaces/{NAMESPACE}"))["metadata"]["labels"]
    found = {key: value for key, value in labels.items() if key.startswith("pod-security.kubernetes.io/")}
    assert found == {
        "pod-security.kubernetes.io/enforce": "privileged",
        "pod-security.kubernetes.io/audit": "restricted",
    }
