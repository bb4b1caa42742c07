"""How a pod's target is divided among its containers: exactly, by shares or requests, without a change of the QoS class."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.backends.pod.containers import DivisionRules, NotDivisibleError, divided, limit_for, resize_patch
from hosting.kubernetes import pods
from hosting.kubernetes.resources import Manifest
from hosting.kubernetes.scaling import Share
from protocol.values import Resources
from tests.support.amounts import MIB


def _container(
    name: str, requests: dict[str, str], limits: dict[str, str] | None = None, restarts: str = ""
) -> Manifest:
    found: Manifest = {"name": name, "resources": {"requests": requests}}
    if limits is not None:
        found["resources"]["limits"] = limits
    if restarts:
        found["resizePolicy"] = [{"resourceName": restarts, "restartPolicy": "RestartContainer"}]
    return found


def _pod(*containers: Manifest, **spec: Any) -> Manifest:
    return {"metadata": {"name": "p"}, "spec": {"containers": list(containers), **spec}}


def _both(cpu: str, memory: str) -> dict[str, str]:
    return {"cpu": cpu, "memory": memory}


ONE = _pod(_container("a", _both("500m", "256Mi"), _both("500m", "256Mi")))
TWO = _pod(
    _container("a", _both("300m", "192Mi"), _both("600m", "192Mi")), _container("b", _both("100m", "64Mi"))
)


@pytest.mark.parametrize(
    ("pod", "target", "rules", "expected"),
    [
        pytest.param(
            ONE,
            Resources(750, 256 * MIB),
            DivisionRules(),
            {"a": {"requests": {"cpu": "750m"}, "limits": {"cpu": "750m"}}},
            id="what stays is left out",
        ),
        pytest.param(
            TWO,
            Resources(800, 512 * MIB),
            DivisionRules(),
            {
                "a": {"requests": _both("600m", "384Mi"), "limits": _both("1200m", "384Mi")},
                "b": {"requests": _both("200m", "128Mi")},
            },
            id="in proportion to the requests, limits in theirs",
        ),
        pytest.param(
            TWO,
            Resources(402, 256 * MIB),
            DivisionRules({"a": Share(1, 1), "b": Share(1, 1)}),
            {
                "a": {"requests": {"cpu": "201m"}, "limits": {"cpu": "402m"}},
                "b": {"requests": {"cpu": "201m"}},
            },
            id="by shares",
        ),
        pytest.param(
            TWO,
            Resources(500, 256 * MIB),
            DivisionRules({"a": Share(1, 1)}),
            {"a": {"requests": {"cpu": "400m"}, "limits": {"cpu": "800m"}}},
            id="a container without a share keeps its size",
        ),
        pytest.param(
            _pod(_container("a", _both("1", "256Mi")), overhead={"cpu": "50m"}),
            Resources(1550, 256 * MIB),
            DivisionRules(),
            {"a": {"requests": {"cpu": "1500m"}}},
            id="overhead is not the containers'",
        ),
        pytest.param(
            _pod(_container("a", _both("100m", "64Mi")), _container("b", {"memory": "64Mi"})),
            Resources(200, 256 * MIB),
            DivisionRules(),
            {"a": {"requests": _both("200m", "128Mi")}, "b": {"requests": {"memory": "128Mi"}}},
            id="no request is added",
        ),
        pytest.param(
            _pod(_container("a", _both("990m", "64Mi")), _container("b", _both("20m", "64Mi"))),
            Resources(101, 128 * MIB),
            DivisionRules(),
            {"a": {"requests": {"cpu": "91m"}}, "b": {"requests": {"cpu": "10m"}}},
            id="no container becomes too small to live",
        ),
        pytest.param(
            _pod(_container("a", _both("1", "64Mi"), restarts="memory"), _container("b", _both("1", "64Mi"))),
            Resources(2000, 256 * MIB),
            DivisionRules(),
            {"b": {"requests": {"memory": "192Mi"}}},
            id="a container that would restart keeps its size",
        ),
        pytest.param(
            _pod(_container("a", _both("1", "64Mi"), restarts="memory"), _container("b", _both("1", "64Mi"))),
            Resources(2000, 256 * MIB),
            DivisionRules(may_restart=True),
            {"a": {"requests": {"memory": "128Mi"}}, "b": {"requests": {"memory": "128Mi"}}},
            id="unless it may be restarted",
        ),
    ],
)
def test_a_target_is_divided(
    pod: Manifest, target: Resources, rules: DivisionRules, expected: dict[str, Any]
) -> None:
    patch = resize_patch(pod, target, rules)
    assert {each["name"]: each["resources"] for each in patch["spec"]["containers"]} == expected


@pytest.mark.parametrize(
    ("pod", "target", "why"),
    [
        (
            _pod(_container("a", {"cpu": "1"})),
            Resources(1000, 64 * MIB),
            "memory may change: a: it requests no memory",
        ),
        (
            _pod(_container("a", _both("1", "64Mi"), restarts="cpu")),
            Resources(2000, 64 * MIB),
            "resizePolicy restarts it for cpu",
        ),
        (TWO, Resources(15, 256 * MIB), "would have 15m of cpu together, and need 20m"),
    ],
)
def test_what_cannot_be_divided_is_told(pod: Manifest, target: Resources, why: str) -> None:
    with pytest.raises(NotDivisibleError, match=why):
        resize_patch(pod, target, DivisionRules())


WEIGHTS = st.lists(st.tuples(st.integers(1, 10**12), st.integers(0, 10**6)), min_size=1, max_size=6)


@given(WEIGHTS, st.integers(0, 10**13))
def test_parts_add_up_are_never_below_their_least_and_are_proportional_else(
    pairs: list[tuple[int, int]], more: int
) -> None:
    weights, least = [weight for weight, _ in pairs], [low for _, low in pairs]
    parts = divided(sum(least) + more, weights, least)
    assert sum(parts) == sum(least) + more
    assert all(part >= low for part, low in zip(parts, least, strict=True))
    free = [(part, weight) for part, weight, low in zip(parts, weights, least, strict=True) if part > low + 1]
    for part, weight in free:
        for other, other_weight in free:
            assert abs(part * other_weight - other * weight) <= weight + other_weight


@given(st.integers(1, 10**12), st.integers(0, 10**12), st.integers(1, 10**12))
def test_a_limit_stays_equal_or_larger_and_keeps_its_ratio(request: int, more: int, new: int) -> None:
    limit = limit_for(request, request + more, new)
    assert (limit == new) == (more == 0)
    assert limit > new or not more
    assert abs(limit * request - (request + more) * new) <= max(request, request // 2 + 1)


@given(st.integers(0, 3000), st.integers(0, 2**33), st.booleans())
def test_the_patched_pod_has_the_target(more_cpu: int, more_memory: int, has_shares: bool) -> None:
    rules = DivisionRules({"a": Share(2, 1), "b": Share(1, 5)} if has_shares else {})
    target = Resources(20 + more_cpu, 16 * MIB + more_memory)
    after = {
        each["name"]: each["resources"]["requests"]
        for each in resize_patch(TWO, target, rules)["spec"]["containers"]
    }
    merged = _pod(
        *(
            _container(each["name"], {**each["resources"]["requests"], **after.get(each["name"], {})})
            for each in TWO["spec"]["containers"]
        )
    )
    assert pods.target(merged) == target
