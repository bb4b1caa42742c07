"""Other controllers at work on a pod."""

from typing import Any

import pytest

from agent.daemon.controllers import OfNamespace, editors_of, others_of
from protocol.values import Bounds
from tests.support.amounts import cu
from tests.support.manifests import pod_manifest

BOUNDS = Bounds(cu(0.5), cu(4))
POD = pod_manifest(
    "web-7d9-x",
    labels={"pod-template-hash": "7d9"},
    ownerReferences=[{"kind": "ReplicaSet", "name": "web-7d9", "controller": True}],
)


def named(spec: dict[str, Any]) -> tuple[dict[str, Any], ...]:
    return ({"metadata": {"name": "x"}, "spec": spec},)


def autoscaler(kind: str, name: str, mode: str | None = None) -> OfNamespace:
    policy = {} if mode is None else {"updatePolicy": {"updateMode": mode}}
    return OfNamespace(autoscalers=named({"targetRef": {"kind": kind, "name": name}, **policy}))


def limits(type_: str, **cut: Any) -> OfNamespace:
    return OfNamespace(ranges=named({"limits": [{"type": type_, **cut}]}))


@pytest.mark.parametrize(
    ("found", "told"),
    [
        (OfNamespace(), None),
        (
            autoscaler("Deployment", "web"),
            "VerticalPodAutoscaler x (updateMode Auto) sizes Deployment web too",
        ),
        (autoscaler("ReplicaSet", "web-7d9", "Recreate"), "(updateMode Recreate) sizes ReplicaSet web-7d9"),
        (autoscaler("Deployment", "web", "Off"), None),
        (autoscaler("Deployment", "other"), None),
        (autoscaler("StatefulSet", "web"), None),
        (
            OfNamespace(quotas=named({"hard": {"requests.cpu": "10", "pods": "5", "limits.memory": "9Gi"}})),
            "ResourceQuota x bounds what the namespace may have: limits.memory 9Gi, requests.cpu 10",
        ),
        (OfNamespace(quotas=named({"hard": {"pods": "5"}})), None),
        (
            limits("Container", max={"cpu": "2"}),
            "LimitRange x forbids a part of the bounds, for each Container: max cpu 2",
        ),
        (limits("Pod", min={"memory": "1Gi"}), "for each Pod: min memory 1Gi"),
        (limits("Container", max={"cpu": "4"}, min={"memory": "512Mi"}), None),
        (limits("PersistentVolumeClaim", max={"storage": "1Gi"}), None),
        (limits("Container", max={"cpu": "many"}), None),
    ],
)
def test_who_is_at_work_on_the_pod(found: OfNamespace, told: str | None) -> None:
    texts = others_of(POD, BOUNDS, found)
    assert len(texts) == (told is not None)
    assert told is None or told in texts[0]


def test_a_resize_by_somebody_else_is_told_by_its_manager() -> None:
    def field(manager: str, subresource: str) -> dict[str, str]:
        return {"manager": manager, "subresource": subresource, "time": "2026-01-01T00:00:00Z"}

    managed = [field("kubectl", "resize"), field("parley-agent", "resize"), field("kubelet", "status")]
    pod = pod_manifest("a", managedFields=managed)
    assert editors_of(pod, "parley-agent") == ("kubectl has resized the pod at 2026-01-01T00:00:00Z",)
