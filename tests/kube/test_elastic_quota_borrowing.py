"""ElasticQuota on a real API server: a quota borrows by growth, and gives back as the VM shrinks, without an eviction."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from hosting.kubernetes import names
from hosting.kubernetes.koordinator import ELASTIC_QUOTAS
from hosting.kubernetes.resources import Manifest
from labs.clusters.control_plane import ControlPlane
from labs.clusters.programs import Programs
from tests.support.kube.asking import Holdings, PodAgent
from tests.support.kube.objects import pod
from tests.support.kube.placing import PlacingScene, started_kubeless_plane
from tests.support.waiting import shown_blocking

DEFINITION: Final = Path(__file__).parents[2] / "deploy/koordinator/elasticquotas.yaml"
PREFIX: Final = "quota.scheduling.koordinator.sh/"
ROOM_MILLI: Final = 8000
PROFILE: Final = """
scheduling:
  profiles:
    - schedulerName: parley-scheduler
      plugins: {multiPoint: {enabled: [{name: ElasticQuota}]}}
      pluginConfig:
        - name: ElasticQuota
          args: {apiVersion: kubescheduler.config.k8s.io/v1, kind: ElasticQuotaArgs}
"""


@pytest.fixture(scope="module")
def control_plane(programs: Programs, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    with started_kubeless_plane(programs, tmp_path_factory.mktemp("kubeless")) as plane:
        plane.kubectl("apply", f"--filename={DEFINITION}")
        plane.kubectl("wait", "--for=condition=Established", f"--filename={DEFINITION}")
        yield plane


def _quota(name: str) -> Manifest:
    return {
        "apiVersion": ELASTIC_QUOTAS.api_version,
        "kind": ELASTIC_QUOTAS.kind,
        "metadata": {"name": name},
        "spec": {"min": {"cpu": "4"}, "max": {"cpu": "8"}},
    }


def _of(quota: str, name: str, milli: int, **more: Any) -> Manifest:
    labels = {f"{PREFIX}name": quota, **more.pop("labels", {})}
    manifest = pod(name, requests={"cpu": f"{milli}m", "memory": "64Mi"}, labels=labels, **more)
    manifest["spec"] |= {"schedulerName": "parley-scheduler", "terminationGracePeriodSeconds": 0}
    return manifest


def test_a_quota_borrows_by_growth_and_gives_back_without_an_eviction(
    scene: PlacingScene, tmp_path: Path
) -> None:
    """`ci` grows to 5.5 of its 4 CPUs while nobody asks. As `dev` asks for its 4, `ci` has no room for another pod, and its pod that grew is
    asked to shrink; when it does, everybody has room."""
    (node,) = scene.add_nodes(1, ROOM_MILLI)
    scene.objects.apply(_quota("ci"), _quota("dev"))
    (created,) = scene.create(_of("ci", "grown", 500, node=node, labels={names.ENABLED: "true"}))
    (tmp_path / "profile.yaml").write_text(PROFILE)
    scene.start_parley("--mode", "full", "--handover", "60", "--config", str(tmp_path / "profile.yaml"))
    agent = PodAgent(created, [scene.port], Holdings(ROOM_MILLI), 500)
    agent.spare_milli = 4000

    def is_grown() -> bool:
        agent.ask(5500)
        return agent.held == 5500

    shown_blocking("the pod is permitted to grow", is_grown)
    wanted = [f"dev-{number}" for number in range(4)]
    scene.create(*(_of("dev", name, 1000) for name in wanted))
    shown_blocking(
        "what is left of the node is given away",
        lambda: sum(bool(scene.node_of(name)) for name in wanted) == 2,
    )
    scene.create(_of("ci", "late", 500))
    why = scene.refused("late", "Insufficient quotas")
    assert "quotaName: ci, runtime: cpu:4, used: cpu:5500m, pod's request: cpu:500m" in why

    assert agent.ask(5500), "it tells what it can spare while others wait"

    def is_asked() -> bool:
        page = scene.explained("grown")
        told = [limit["message"] for each in page["decisions"] for limit in each["limits"]]
        return "asked to give back 1500m CPUs for the lenders of quota ci" in told

    shown_blocking("the pod that grew is asked for what its quota has borrowed", is_asked)
    agent.spare_milli = 0
    agent.ask(500)
    assert {scene.placed(name) for name in (*wanted, "late")} == {node}
    assert {each["metadata"]["name"] for each in scene.objects.list("pods")} == {*wanted, "late", "grown"}
    assert scene.audit() == []

    def is_told() -> bool:
        path = ELASTIC_QUOTAS.path(scene.objects.namespace, "ci")
        found = json.loads(scene.plane.call("GET", path))
        annotations = found["metadata"].get("annotations", {})
        used = (found.get("status") or {}).get("used")
        return used == {"cpu": "1"} and annotations.get(f"{PREFIX}request") == '{"cpu":"1"}'

    shown_blocking("status and annotations tell of it", is_told)
