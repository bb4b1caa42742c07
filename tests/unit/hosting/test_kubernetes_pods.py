"""How large a pod is, as agent and scheduler count it alike. Cases from reference/kubernetes.md 4.2."""

from typing import Any

import pytest

from hosting.kubernetes import pods
from hosting.kubernetes.resources import PODS, Manifest
from protocol.quantities import QuantityError
from protocol.values import Resources

MIB = 1024**2


def _amount(cpu: str | None, memory: str | None) -> dict[str, str]:
    return {name: text for name, text in (("cpu", cpu), ("memory", memory)) if text is not None}


def _container(name: str, cpu: str | None = "200m", memory: str | None = "64Mi", **more: Any) -> Manifest:
    return {"name": name, "resources": {"requests": _amount(cpu, memory)}, **more}


def _pod(
    *containers: Manifest, init: tuple[Manifest, ...] = (), status: Manifest | None = None, **spec: Any
) -> Manifest:
    return {
        "metadata": {"name": "a", "namespace": "n", "uid": "u"},
        "spec": {"containers": list(containers), "initContainers": list(init), **spec},
        "status": status or {},
    }


def _status(name: str, allocated: str, actual: str) -> Manifest:
    return {
        "name": name,
        "allocatedResources": _amount(allocated, "64Mi"),
        "resources": {"requests": _amount(actual, "64Mi")},
    }


def test_a_path_names_a_type_of_objects() -> None:
    assert PODS.path() == "/api/v1/pods"
    assert PODS.path("n", "a", "resize") == "/api/v1/namespaces/n/pods/a/resize"


@pytest.mark.parametrize(
    ("pod", "target", "size", "holds"),
    [
        pytest.param(_pod(_container("a"), _container("b")), 400, 400, 400, id="nothing told yet"),
        pytest.param(
            _pod(_container("a", "500m"), status={"containerStatuses": [_status("a", "200m", "200m")]}),
            500,
            200,
            500,
            id="growth is not allocated yet",
        ),
        pytest.param(
            _pod(_container("a", "100m"), status={"containerStatuses": [_status("a", "100m", "500m")]}),
            100,
            500,
            500,
            id="a shrink is allocated and not in force",
        ),
        pytest.param(
            _pod(
                _container("a", "900m"),
                status={
                    "containerStatuses": [_status("a", "200m", "200m")],
                    "conditions": [{"type": "PodResizePending", "reason": "Infeasible"}],
                },
            ),
            900,
            200,
            200,
            id="an infeasible spec holds nothing",
        ),
        pytest.param(
            _pod(
                _container("a"),
                init=(_container("s", "100m", restartPolicy="Always"), _container("i", "900m")),
            ),
            300,
            300,
            1000,
            id="sidecars go on, init containers end",
        ),
        pytest.param(_pod(_container("a"), overhead={"cpu": "50m"}), 250, 250, 250, id="overhead"),
        pytest.param(
            _pod(_container("a", None), resources={"requests": {"cpu": "2"}}), 0, 0, 2000, id="pod level"
        ),
        pytest.param(_pod(_container("a"), status={"phase": "Failed"}), 200, 200, 0, id="ended"),
    ],
)
def test_sizes(pod: Manifest, target: int, size: int, holds: int) -> None:
    found = (pods.target(pod), pods.size(pod), pods.holds(pod))
    assert tuple(amount.vcpu_milli for amount in found) == (target, size, holds)


def _limited(spec: str, allocated: str, limit_in_force: str, limit: str | None = None) -> Manifest:
    """A pod whose memory request is `spec`, with a limit of as much, and of which the node tells that much memory."""
    container = _container("a", memory=spec)
    container["resources"]["limits"] = _amount(None, limit or spec)
    told = _amount("200m", allocated)
    status = {
        "name": "a",
        "allocatedResources": told,
        "resources": {"requests": told, "limits": _amount(None, limit_in_force)},
    }
    return _pod(container, status={"containerStatuses": [status]})


@pytest.mark.parametrize(
    ("pod", "size"),
    [
        pytest.param(_limited("64Mi", "64Mi", "64Mi"), 64, id="at rest"),
        pytest.param(_limited("64Mi", "64Mi", "256Mi"), 256, id="a limit that could not be lowered"),
        pytest.param(_limited("256Mi", "256Mi", "64Mi"), 64, id="a limit that is not raised yet"),
        pytest.param(
            _limited("64Mi", "64Mi", "256Mi", limit="128Mi"), 128, id="counts in the ratio of the spec"
        ),
        pytest.param(_limited("256Mi", "64Mi", "256Mi"), 64, id="in force still, and not allocated again"),
        pytest.param(_limited("64Mi", "256Mi", "64Mi"), 256, id="an earlier growth is allocated"),
    ],
)
def test_a_size_is_what_is_done(pod: Manifest, size: int) -> None:
    assert pods.size(pod).memory_bytes == size * MIB


def _resizing(type_: str, reason: str, about: int | None, **status: Any) -> Manifest:
    found = {"type": type_, "status": "True", "reason": reason, "message": "no room"}
    if about is not None:
        found["observedGeneration"] = about  # type: ignore[assignment] # a number beside texts
    manifest = _pod(_container("a"), status={"conditions": [found], **status})
    manifest["metadata"]["generation"] = 3
    return manifest


@pytest.mark.parametrize(
    ("pod", "why"),
    [
        (_resizing("PodResizePending", "Deferred", 3), "Deferred: no room"),
        (_resizing("PodResizePending", "Infeasible", 3), "Infeasible: no room"),
        (_resizing("PodResizeInProgress", "Error", 3), "Error: no room"),
        (_resizing("PodResizeInProgress", "", 3), None),
        (_resizing("PodResizePending", "Deferred", 2), None),
        (_resizing("PodResizePending", "Deferred", None, observedGeneration=3), "Deferred: no room"),
        (_resizing("PodResizePending", "Deferred", None), None),
    ],
)
def test_a_refusal_is_one_of_the_present_spec(pod: Manifest, why: str | None) -> None:
    assert pods.refusal(pod) == why


def test_a_limit_is_the_request_where_there_is_none() -> None:
    container = {
        "name": "a",
        "resources": {"limits": {"cpu": "1", "memory": "1Gi"}, "requests": {"cpu": "250m"}},
    }
    assert pods.target(_pod(container)) == Resources(250, 1024 * MIB)


def test_restart_policies_are_by_resource() -> None:
    container = _container(
        "a", resizePolicy=[{"resourceName": "memory", "restartPolicy": "RestartContainer"}]
    )
    assert pods.containers(_pod(container))[0].restarts == {"memory"}


def test_an_amount_that_is_none_is_refused() -> None:
    with pytest.raises(QuantityError, match="much"):
        pods.size(_pod(_container("a", "much")))


def _with_limits(name: str, cpu: str | None = None, memory: str | None = None, **more: Any) -> Manifest:
    return {"name": name, "resources": {"limits": _amount(cpu, memory)}, **more}


@pytest.mark.parametrize(
    ("pod", "limits"),
    [
        pytest.param(
            _pod(_with_limits("a", "1", "64Mi"), _with_limits("b", "2", "32Mi")),
            {"cpu": 3000, "memory": 96 * MIB},
            id="all have limits",
        ),
        pytest.param(
            _pod(_with_limits("a", "1", "64Mi"), _with_limits("b", None, "32Mi")),
            {"memory": 96 * MIB},
            id="one has no CPU limit",
        ),
        pytest.param(_pod(_container("a")), {}, id="none has a limit"),
        pytest.param(
            _pod(
                _with_limits("a", "1", "64Mi"),
                init=(
                    _with_limits("s", "500m", "16Mi", restartPolicy="Always"),
                    _with_limits("i", "2", "8Mi"),
                ),
            ),
            {"cpu": 2500, "memory": 80 * MIB},
            id="an init container beside a sidecar needs more than what runs later",
        ),
        pytest.param(
            _pod(_with_limits("a", "1", "64Mi"), init=(_with_limits("i", None, "128Mi"),)),
            {"memory": 128 * MIB},
            id="an init container without a limit leaves the pod without one",
        ),
        pytest.param(
            _pod(
                _with_limits("a", "1"),
                resources={"limits": {"cpu": "500m", "memory": "1Gi"}},
                overhead={"cpu": "100m", "memory": "10Mi"},
            ),
            {"cpu": 600, "memory": 1034 * MIB},
            id="those of the pod as a whole, and overhead",
        ),
        pytest.param(_pod(_container("a"), overhead={"cpu": "100m"}), {}, id="overhead alone is no limit"),
    ],
)
def test_the_limits_of_a_pod_are_those_that_the_kubelet_sets(pod: Manifest, limits: dict[str, int]) -> None:
    assert pods.limits(pod) == limits
