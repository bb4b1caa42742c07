"""The definition of ElasticQuota in `deploy/koordinator`: what one object has wrong by itself is refused with the rule."""

import json
from pathlib import Path
from typing import Final

import pytest

from hosting.kubernetes.resources import Manifest
from labs.clusters.control_plane import ControlPlane
from labs.clusters.programs import ClusterError

DEFINITION: Final = Path(__file__).parents[2] / "deploy/koordinator/elasticquotas.yaml"


@pytest.fixture(scope="module")
def taught(control_plane: ControlPlane) -> ControlPlane:
    control_plane.kubectl("apply", f"--filename={DEFINITION}")
    control_plane.kubectl("wait", "--for=condition=Established", f"--filename={DEFINITION}")
    return control_plane


@pytest.mark.parametrize(
    ("spec", "why"),
    [
        ({}, ""),
        ({"max": {"cpu": 4, "memory": "8Gi", "nvidia.com/gpu": "2"}}, ""),
        ({"min": {"cpu": "500m"}, "max": {"cpu": 1}}, ""),
        ({"min": {"cpu": 2}, "max": {"cpu": "1500m"}}, "spec.min: Invalid value: must not exceed max"),
        ({"min": {"gpu": 2}, "max": {"cpu": 1}}, "must name only resources that max names"),
        ({"max": {"cpu": -1}}, "must be a quantity from 0"),
        ({"max": {"cpu": "many"}}, "must be a quantity from 0"),
    ],
)
def test_an_elastic_quota_is_judged_by_itself(taught: ControlPlane, spec: Manifest, why: str) -> None:
    made = {
        "apiVersion": "scheduling.sigs.k8s.io/v1alpha1",
        "kind": "ElasticQuota",
        "metadata": {"name": "q", "namespace": "default"},
        "spec": spec,
    }
    complaint = ""
    try:
        taught.kubectl(
            "create", "--dry-run=server", "--validate=strict", "--filename=-", stdin=json.dumps(made)
        )
    except ClusterError as error:
        complaint = str(error)
    assert why in complaint
    assert bool(why) == bool(complaint)
