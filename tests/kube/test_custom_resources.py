"""The custom resources of `deploy/`: objects that make sense are taken, all others are refused with the field and the rule."""

import json
from pathlib import Path
from typing import Final

import pytest

from hosting.kubernetes.resources import Manifest
from labs.clusters.control_plane import ControlPlane
from labs.clusters.programs import ClusterError

CRDS: Final = Path(__file__).parents[2] / "deploy/base/crds"

CPU_RULE: Final = "must be CPUs in whole milli-CPU above zero, such as 2, 1.5 or 250m"
MEMORY_RULE: Final = "must be memory in whole bytes above zero, such as 4Gi or 512Mi"
SELECTOR: Final = {"selector": {"matchLabels": {"app": "web"}}}
WINDOW: Final = {"name": "office", "from": "0 8 * * MON-FRI", "until": "0 18 * * MON-FRI"}

GOOD_POLICIES: Final[list[Manifest]] = [
    {"selector": {}},
    {
        "selector": {
            "matchExpressions": [
                {"key": "tier", "operator": "In", "values": ["a"]},
                {"key": "x", "operator": "Exists"},
            ]
        }
    },
    {
        **SELECTOR,
        "enabled": False,
        "bounds": {"min": {"cpu": "250m"}, "max": {"cpu": 4, "memory": "8Gi"}},
        "unit": {"cpu": "250m", "memory": "512Mi"},
        "tied": True,
        "policies": [{"name": "utilisation", "args": {"cpuTarget": 0.7}}, {"name": "pressure"}],
        "windows": [
            {**WINDOW, "zone": "Europe/Berlin", "floor": {"cpu": 2}, "ceiling": {"cpu": 2, "memory": 8}}
        ],
        "shares": {"main": {"cpu": 3, "memory": 1}, "helper": {"cpu": 1}},
        "restart": "Allowed",
        "evictWhenStuck": True,
        "pool": "ci-runners",
    },
]
BAD_POLICIES: Final[list[tuple[Manifest, str]]] = [
    ({}, "spec.selector: Required value"),
    ({"selector": {"matchExpressions": [{"key": "a", "operator": "In"}]}}, "In and NotIn need values"),
    (
        {"selector": {"matchExpressions": [{"key": "a", "operator": "Exists", "values": ["b"]}]}},
        "Exists and DoesNotExist must have none",
    ),
    ({"selector": {"matchExpressions": [{"key": "a", "operator": "Is"}]}}, 'Unsupported value: "Is"'),
    ({**SELECTOR, "bounds": {}}, "spec.bounds in body should have at least 1 properties"),
    (
        {**SELECTOR, "bounds": {"min": {"cpu": "1500m"}, "max": {"cpu": 1}}},
        "spec.bounds.min.cpu: Invalid value: must not exceed max.cpu",
    ),
    (
        {**SELECTOR, "bounds": {"min": {"memory": "1Gi"}, "max": {"memory": "1G"}}},
        "spec.bounds.min.memory: Invalid value: must not exceed max.memory",
    ),
    ({**SELECTOR, "bounds": {"max": {"cpu": "four"}}}, CPU_RULE),
    ({**SELECTOR, "bounds": {"max": {"cpu": -1}}}, CPU_RULE),
    ({**SELECTOR, "unit": {"cpu": "0.0005"}}, CPU_RULE),
    ({**SELECTOR, "unit": {"memory": "0"}}, MEMORY_RULE),
    ({**SELECTOR, "unit": {"memory": "4 GB"}}, MEMORY_RULE),
    ({**SELECTOR, "unit": {"memory": "0.5"}}, MEMORY_RULE),
    ({**SELECTOR, "unit": {"gpu": 1}}, 'unknown field "spec.unit.gpu"'),
    ({**SELECTOR, "restart": "sometimes"}, 'Unsupported value: "sometimes"'),
    ({**SELECTOR, "pool": "CI"}, "spec.pool in body should match"),
    ({**SELECTOR, "policies": []}, "spec.policies in body should have at least 1 items"),
    (
        {**SELECTOR, "policies": [{"name": "pressure"}, {"name": "pressure"}]},
        "spec.policies[1]: Duplicate value",
    ),
    ({**SELECTOR, "windows": [WINDOW]}, "needs a floor or a ceiling"),
    (
        {**SELECTOR, "windows": [{**WINDOW, "until": WINDOW["from"], "floor": {"cpu": 1}}]},
        "the window would never be open",
    ),
    (
        {**SELECTOR, "windows": [{**WINDOW, "floor": {"cpu": 3}, "ceiling": {"cpu": 2}}]},
        "must not be above the ceiling",
    ),
    (
        {**SELECTOR, "windows": [{**WINDOW, "from": "8 o'clock", "floor": {"cpu": 3}}]},
        "spec.windows[0].from in body should match",
    ),
    (
        {**SELECTOR, "shares": {"main": {"cpu": 1}}},
        "at least one container needs a weight above zero for cpu, and one for memory",
    ),
    ({**SELECTOR, "shares": {"main": {"cpu": 1001, "memory": 1}}}, "should be less than or equal to 1000"),
]
UNIT: Final = {"computeUnit": {"cpu": 1, "memory": "4Gi"}}
GOOD_POOLS: Final[list[Manifest]] = [
    UNIT,
    {"computeUnit": {"cpu": "250m", "memory": "1Gi"}, "limits": {"maxUnits": 0}},
    {**UNIT, "limits": {"maxUnits": 4, "maxUnitsPerVm": 8, "minUnits": 4}},
]
BAD_POOLS: Final[list[tuple[str, Manifest, str]]] = [
    ("p", {}, "spec.computeUnit: Required value"),
    ("p", {"computeUnit": {"cpu": 1}}, "spec.computeUnit.memory: Required value"),
    ("p", {"computeUnit": {"cpu": 0, "memory": "1Gi"}}, CPU_RULE),
    ("p", {"computeUnit": {"cpu": 1, "memory": "-1Gi"}}, MEMORY_RULE),
    (
        "p",
        {**UNIT, "limits": {"maxUnits": 3, "minUnits": 4}},
        "spec.limits.minUnits: Invalid value: must not exceed maxUnits",
    ),
    ("p", {**UNIT, "limits": {"maxUnitsPerVm": 0}}, "should be greater than or equal to 1"),
    ("p", {**UNIT, "limits": {"maxUnits": 2**31}}, "should be less than or equal to 2147483647"),
    ("p", {**UNIT, "replicas": 1}, 'unknown field "spec.replicas"'),
    ("p" * 64, UNIT, "the name must have at most 63 characters"),
]
FOUR: Final = {"resources": {"cpu": 4, "memory": "8Gi"}}
GOOD_RESERVATIONS: Final[list[Manifest]] = [
    {**FOUR, "owners": []},
    {
        "nodeName": "node-7",
        "resources": {"cpu": "500m", "memory": "512Mi"},
        "owners": [{"namespace": "ci", "labelSelector": {"matchLabels": {"job": "nightly"}}}, {}],
        "allocateOnce": False,
        "order": 3,
        "ttlSeconds": 3600,
    },
]
BAD_RESERVATIONS: Final[list[tuple[Manifest, str]]] = [
    (FOUR, "spec.owners: Required value"),
    ({"owners": []}, "spec.resources: Required value"),
    ({"resources": {"cpu": 0, "memory": "1Gi"}, "owners": []}, CPU_RULE),
    ({"resources": {"cpu": 1, "memory": "lots"}, "owners": []}, MEMORY_RULE),
    ({**FOUR, "owners": [], "ttlSeconds": 0}, "should be greater than or equal to 1"),
    ({**FOUR, "owners": [], "order": -1}, "should be greater than or equal to 0"),
    ({**FOUR, "owners": [{"labels": {"a": "b"}}]}, 'unknown field "spec.owners[0].labels"'),
]


@pytest.fixture(scope="module")
def taught(control_plane: ControlPlane) -> ControlPlane:
    control_plane.kubectl("apply", f"--filename={CRDS}")
    control_plane.kubectl("wait", "--for=condition=Established", f"--filename={CRDS}")
    return control_plane


def _applied(plane: ControlPlane, kind: str, name: str, spec: Manifest) -> str:
    """The API server's complaint about an object; empty if it is taken."""
    made = {"apiVersion": "parley.dev/v1alpha1", "kind": kind, "metadata": {"name": name}, "spec": spec}
    try:
        plane.kubectl(
            "create", "--dry-run=server", "--validate=strict", "--filename=-", stdin=json.dumps(made)
        )
    except ClusterError as error:
        return str(error)
    return ""


@pytest.mark.parametrize("spec", GOOD_POLICIES)
def test_a_scaling_policy_that_makes_sense_is_taken(taught: ControlPlane, spec: Manifest) -> None:
    assert _applied(taught, "ScalingPolicy", "p", spec) == ""


@pytest.mark.parametrize(("spec", "why"), BAD_POLICIES, ids=[why for _, why in BAD_POLICIES])
def test_a_scaling_policy_that_makes_none_is_refused_with_the_rule(
    taught: ControlPlane, spec: Manifest, why: str
) -> None:
    assert why in _applied(taught, "ScalingPolicy", "p", spec)


@pytest.mark.parametrize("spec", GOOD_POOLS)
def test_a_pool_that_makes_sense_is_taken(taught: ControlPlane, spec: Manifest) -> None:
    assert _applied(taught, "Pool", "p", spec) == ""


@pytest.mark.parametrize(("name", "spec", "why"), BAD_POOLS, ids=[why for _, _, why in BAD_POOLS])
def test_a_pool_that_makes_none_is_refused_with_the_rule(
    taught: ControlPlane, name: str, spec: Manifest, why: str
) -> None:
    assert why in _applied(taught, "Pool", name, spec)


@pytest.mark.parametrize("spec", GOOD_RESERVATIONS)
def test_a_reservation_that_makes_sense_is_taken(taught: ControlPlane, spec: Manifest) -> None:
    assert _applied(taught, "Reservation", "r", spec) == ""


@pytest.mark.parametrize(("spec", "why"), BAD_RESERVATIONS, ids=[why for _, why in BAD_RESERVATIONS])
def test_a_reservation_that_makes_none_is_refused_with_the_rule(
    taught: ControlPlane, spec: Manifest, why: str
) -> None:
    assert why in _applied(taught, "Reservation", "r", spec)
