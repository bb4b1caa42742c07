"""The scheduler's own objects, which it reads or writes: its ConfigMap, Pools, ScalingPolicies, the leader's label."""

import json
from pathlib import Path
from typing import Any, Final

import pytest

from hosting.kubernetes import names
from hosting.kubernetes.resources import EVENTS, LEASES, POOLS, RESERVATIONS, SCALING_POLICIES, Manifest
from scheduler.clusters.kubernetes.pools import FINALIZER
from tests.support.kube.asking import Holdings, PodAgent
from tests.support.kube.objects import MERGE, Objects, pod
from tests.support.kube.parley import ParleyPrograms
from tests.support.kube.schedulers import create_pod, leads, start_scheduler
from tests.support.processes import fetch
from tests.support.waiting import shown_blocking

CHAIN: Final = """
pools:
  plugins:
    - name: quota
      args:
        computeUnit: {cpu: 1, memory: 1Gi}
        tenants: [{name: ci, limit: 6}]
"""


def _conditions(manifest: Manifest) -> dict[str, tuple[str, str]]:
    found = (manifest.get("status") or {}).get("conditions", [])
    return {each["type"]: (each["status"], each["reason"]) for each in found}


def _write_rules(objects: Objects, text: str) -> None:
    objects.apply(
        {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": "rules"},
            "data": {"config.yaml": text},
        }
    )


def test_a_config_map_and_policies_are_read_and_shown(
    parley: ParleyPrograms, objects: Objects, bare_nodes: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The label of the leader comes and goes with the leadership, too."""
    plane = objects.plane
    _write_rules(objects, "growth: {stop: true}")
    objects.apply(
        {
            "apiVersion": SCALING_POLICIES.api_version,
            "kind": SCALING_POLICIES.kind,
            "metadata": {"name": "web"},
            "spec": {"selector": {"matchLabels": {"app": "web"}}, "bounds": {"max": {"cpu": 3}}},
        }
    )
    created = create_pod(objects, pod("p", node=bare_nodes[0], labels={"app": "web"}))
    create_pod(objects, pod("scheduler", node=bare_nodes[1]))
    monkeypatch.setenv("POD_NAMESPACE", objects.namespace)
    monkeypatch.setenv("POD_NAME", "scheduler")
    port = start_scheduler(parley, objects, "a", "--config-map", f"{objects.namespace}/rules")
    agent = PodAgent(created, [port], Holdings(4000), 500)

    def permit(reason: str) -> bool:
        answer = agent.ask(2000)
        return answer is not None and [each["code"] for each in answer["reasons"]][:1] == [reason]

    shown_blocking("growth is stopped", lambda: permit("stopped"))
    _write_rules(objects, "growth: {stop: true, colour: red}")
    shown_blocking("the fault is told", lambda: "growth.colour" in parley.text("a"))
    told = EVENTS.path(objects.namespace)
    shown_blocking("an Event tells it, too", lambda: "growth.colour" in plane.call("GET", told).decode())
    assert "growth.colour" in json.loads(fetch(port, "/v1/nodes"))["configurationFault"]
    assert permit("stopped")
    _write_rules(objects, "growth: {stop: false}")
    shown_blocking("it has grown", lambda: agent.ask(2000) is not None and agent.held == 2000)

    path = SCALING_POLICIES.path(objects.namespace, "web")
    shown_blocking(
        "the policy shows its pod", lambda: json.loads(plane.call("GET", path))["status"]["matchedPods"] == 1
    )

    def labels() -> Any:
        return objects.get("pods", "scheduler")["metadata"].get("labels") or {}

    shown_blocking("the leader has its label", lambda: labels().get(names.ROLE) == names.LEADER)
    assert parley.running["a"].end() == 0
    assert names.ROLE not in labels()


def test_who_cannot_use_the_profiles_does_not_stand_for_election(
    parley: ParleyPrograms, objects: Objects, tmp_path: Path
) -> None:
    """A leader that could not would keep all others from leading."""
    rules = tmp_path / "config.yaml"
    rules.write_text("scheduling: {profiles: [{plugins: {multiPoint: {enabled: [{name: Ghost}]}}}]}")
    port = start_scheduler(parley, objects, "a", "--config", str(rules))
    shown_blocking("the fault is told", lambda: "Ghost" in parley.text("a"))
    assert json.loads(objects.plane.call("GET", LEASES.path(objects.namespace)))["items"] == []
    rules.write_text("growth: {stop: false}")
    shown_blocking("it leads", lambda: leads(port))


def test_a_pool_is_an_object(parley: ParleyPrograms, objects: Objects, bare_nodes: list[str]) -> None:
    plane, name = objects.plane, f"{objects.namespace}-bank"
    pool: Manifest = {
        "apiVersion": POOLS.api_version,
        "kind": POOLS.kind,
        "metadata": {"name": name, "labels": {"parley.dev/tenant": "ci"}},
        "spec": {"computeUnit": {"cpu": 1, "memory": "1Gi"}, "limits": {"maxUnits": 2}},
    }
    _write_rules(objects, CHAIN)
    objects.apply(pool)
    labels = {names.ENABLED: "true", names.POOL: name}
    created = create_pod(objects, pod("p", node=bare_nodes[0], labels=labels))
    port = start_scheduler(parley, objects, "a", "--config-map", f"{objects.namespace}/rules")
    agent = PodAgent(created, [port], Holdings(4000), 500)

    def shown() -> Manifest:
        found: Manifest = json.loads(plane.call("GET", POOLS.path(name=name)))
        return found

    def is_at(milli: int, reason: str) -> bool:
        answer = agent.ask(4000)
        codes = [each["code"] for each in answer["reasons"]] if answer is not None else []
        return agent.held == milli and reason in codes

    shown_blocking("it grows to the pool's limit", lambda: is_at(2000, "pool"))
    shown_blocking("its finalizer", lambda: shown()["metadata"].get("finalizers") == [FINALIZER])
    shown_blocking("the status tells it", lambda: shown()["status"]["replicas"] == 2)
    assert _conditions(shown())["Accepted"] == ("True", "Counts")

    objects.apply(pool | {"spec": {**pool["spec"], "limits": {"maxUnits": 3}}})
    shown_blocking("it grows to the new limit", lambda: is_at(3000, "pool"))
    wrong = {"metadata": {"labels": {"parley.dev/tenant": "nobody"}}}
    plane.call("PATCH", POOLS.path(name=name), wrong, MERGE)
    shown_blocking("a hook refuses it", lambda: _conditions(shown())["Accepted"] == ("False", "Refused"))

    listed = EVENTS.path("default")
    shown_blocking("an Event tells it", lambda: name in plane.call("GET", listed).decode())

    plane.call("DELETE", POOLS.path(name=name))
    pools = POOLS.path()
    shown_blocking("it is gone", lambda: name not in plane.call("GET", pools).decode())
    shown_blocking("and counts no more", lambda: name not in fetch(port, "/v1/pools").decode())


def test_a_reservation_keeps_room_from_a_pod_that_grows(
    parley: ParleyPrograms, objects: Objects, bare_nodes: list[str]
) -> None:
    """Until it is deleted. Its status says so."""
    plane, name = objects.plane, f"{objects.namespace}-kept"
    path = RESERVATIONS.path(name=name)
    reservation: Manifest = {
        "apiVersion": RESERVATIONS.api_version,
        "kind": RESERVATIONS.kind,
        "metadata": {"name": name},
        "spec": {"resources": {"cpu": 2, "memory": "1Gi"}, "owners": [{}]},
    }
    objects.apply(reservation)
    created = create_pod(objects, pod("p", node=bare_nodes[0], labels={names.ENABLED: "true"}))
    agent = PodAgent(created, [start_scheduler(parley, objects, "a")], Holdings(4000), 500)

    def phase() -> tuple[str, str]:
        found: Manifest = json.loads(plane.call("GET", path))
        status, reason = _conditions(found).get("Ready", ("", ""))
        return (found.get("status") or {}).get("phase", ""), f"{status} {reason}"

    def is_at(milli: int) -> bool:
        agent.ask(4000)
        return agent.held == milli

    shown_blocking("it has no node yet", lambda: phase() == ("Pending", "False NoNode"))
    plane.call("PATCH", path, {"spec": {"nodeName": bare_nodes[0]}}, MERGE)
    shown_blocking("its room is kept", lambda: phase() == ("Available", "True Available"))
    shown_blocking("the pod has the rest", lambda: is_at(2000))
    plane.call("DELETE", path)
    shown_blocking("the room is the pod's", lambda: is_at(4000))
