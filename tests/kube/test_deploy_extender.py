"""The component `deploy/components/extender` adds the right to bind, warnings for pods that kube-scheduler would place without asking, and the
configuration of kube-scheduler."""

import json
import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import pytest
import trustme
import yaml

from hosting.kubernetes import names
from hosting.kubernetes.resources import PODS, Manifest
from labs.clusters.programs import Programs
from tests.support.kube.deployed import DEPLOY, TEAM, Deployed, started_deployment
from tests.support.kube.objects import pod

EXTENDER: Final = DEPLOY / "components/extender"


@pytest.fixture(scope="module")
def deployed(programs: Programs, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployed]:
    with started_deployment(programs, tmp_path_factory.mktemp("deployed")) as found:
        yield found


def _conditions(type_: str) -> Manifest:
    return {"conditions": [{"type": type_, "status": "True"}]}


ROOM: Final = _conditions(names.ROOM_FREED)
STATUSES: Final[list[tuple[str, Manifest, Manifest, str]]] = [
    ("waiting", {}, ROOM, ""),
    ("waiting", {}, _conditions("PodScheduled"), ""),
    ("waiting", {}, _conditions("Ready"), "conditions PodScheduled and those whose type begins"),
    ("waiting", {}, {"phase": "Failed"}, "conditions PodScheduled and those whose type begins"),
    ("waiting", {}, {"nominatedNodeName": "any"}, "conditions PodScheduled and those whose type begins"),
    ("waiting", {"labels": {"app": "web"}}, ROOM, "may not change its labels"),
    ("on-{here}", {}, ROOM, "pods that have no node only"),
]
"""The writes to a pod's status by a scheduler with the right to bind, and why they are refused."""


def test_an_overlay_may_have_the_extender(deployed: Deployed, tmp_path: Path) -> None:
    """The API server takes every object of it. By itself a scheduler binds nothing; and RBAC alone decides."""
    overlay = {
        "apiVersion": "kustomize.config.k8s.io/v1beta1",
        "kind": "Kustomization",
        "resources": [os.path.relpath(DEPLOY / "base", tmp_path)],
        "components": [os.path.relpath(EXTENDER, tmp_path)],
    }
    (tmp_path / "kustomization.yaml").write_text(json.dumps(overlay))
    built = deployed.plane.kubectl("kustomize", str(tmp_path))
    how = ("--server-side", "--force-conflicts", "--dry-run=server", "--validate=strict")
    taken = deployed.plane.kubectl("apply", *how, "--filename=-", stdin=built)
    assert "service/parley-extender serverside-applied (server dry run)" in taken

    waiting = pod("waiting")
    waiting["spec"]["schedulerName"] = "nobody"
    deployed.plane.call("POST", PODS.path(TEAM), waiting)
    scheduler = deployed.as_pod_of("parley-scheduler", deployed.pods_of("parley-scheduler")[0])
    path = f"/api/v1/namespaces/{TEAM}/pods/waiting/binding?dryRun=All"
    binding = {
        "apiVersion": "v1",
        "kind": "Binding",
        "metadata": {"name": "waiting"},
        "target": {"kind": "Node", "name": deployed.here},
    }
    assert scheduler.call("POST", path, binding)[0] == 403
    rights = str(EXTENDER / "rbac.yaml")
    deployed.plane.kubectl("apply", f"--filename={rights}")
    deployed.system.shown("the right", lambda: scheduler.call("POST", path, binding)[0] == 201 or None)
    assert scheduler.call("GET", f"/api/v1/namespaces/{TEAM}/pods/waiting", None)[0] == 200
    for name, metadata, status, refusal in STATUSES:
        path = f"/api/v1/namespaces/{TEAM}/pods/{name.format(here=deployed.here)}/status?dryRun=All"
        code, text = scheduler.call("PATCH", path, {"metadata": metadata, "status": status})
        assert (code, refusal in text) == (422 if refusal else 200, True), (name, metadata, status, text)
    deployed.plane.kubectl("delete", f"--filename={rights}")


SCALED: Final = {"parley.dev/enabled": "true"}
SELECTED: Final = {"app": "web", "tier": "front"}
WARNED: Final = {
    "by its label": (SCALED, {}, "scaled by its label parley.dev/enabled"),
    "by a policy": (SELECTED, {}, "the ScalingPolicy front scales this pod"),
    "not by a policy that finds others": ({"app": "web", "tier": "back"}, {}, ""),
    "not by a policy that is off": ({"app": "off"}, {}, ""),
    "not by a policy, says the label": ({**SELECTED, "parley.dev/enabled": "false"}, {}, ""),
    "not with the resource": ({**SCALED, **SELECTED}, {"parley.dev/managed": "1"}, ""),
}


@pytest.fixture(scope="module")
def warned(deployed: Deployed, programs: Programs) -> Callable[[dict[str, str], dict[str, str]], str]:
    """The warnings for somebody who creates a Deployment whose pods have these labels and limits, in a cluster with the admission policies of the extender, and two ScalingPolicies."""

    def say(labels: dict[str, str], limits: dict[str, str]) -> str:
        command = (
            programs.path("kubectl"),
            f"--kubeconfig={deployed.plane.kubeconfig}",
            "create",
            "--dry-run=server",
            "--filename=-",
        )
        made = json.dumps(_deployment(labels, limits))
        return subprocess.run(
            command, input=made, text=True, check=True, capture_output=True, timeout=30
        ).stderr

    deployed.plane.kubectl("apply", f"--filename={EXTENDER / 'admission-policy.yaml'}")
    front = {
        "matchLabels": {"app": "web"},
        "matchExpressions": [
            {"key": "tier", "operator": "In", "values": ["front"]},
            {"key": "old", "operator": "DoesNotExist"},
        ],
    }
    for name, spec in (
        ("front", {"selector": front}),
        ("off", {"selector": {"matchLabels": {"app": "off"}}, "enabled": False}),
    ):
        made = {
            "apiVersion": "parley.dev/v1alpha1",
            "kind": "ScalingPolicy",
            "metadata": {"name": name, "namespace": TEAM},
            "spec": spec,
        }
        deployed.plane.kubectl("apply", "--filename=-", stdin=json.dumps(made))
    deployed.team.shown("the first policy", lambda: "its label" in say(SCALED, {}) or None)
    deployed.team.shown("the second policy", lambda: "front" in say(SELECTED, {}) or None)
    return say


def _deployment(labels: dict[str, str], limits: dict[str, str]) -> Manifest:
    container = {"name": "main", "image": "any", "resources": {"limits": limits}}
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "web", "namespace": TEAM},
        "spec": {
            "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": {"containers": [container]}},
        },
    }


@pytest.mark.parametrize(("labels", "limits", "text"), WARNED.values(), ids=WARNED)
def test_pods_that_are_scaled_behind_kube_schedulers_back_are_warned_of(
    warned: Callable[[dict[str, str], dict[str, str]], str],
    labels: dict[str, str],
    limits: dict[str, str],
    text: str,
) -> None:
    said = warned(labels, limits)
    assert (text in said) if text else said == ""


def test_kube_scheduler_takes_the_shipped_configuration(
    deployed: Deployed, programs: Programs, tmp_path: Path
) -> None:
    """With the files that it names. kube-scheduler writes what it made of it."""
    authority = trustme.CA()
    issued = authority.issue_cert("parley-extender.parley-system.svc")
    authority.cert_pem.write_to_path(str(tmp_path / "ca.crt"))
    issued.private_key_pem.write_to_path(str(tmp_path / "tls.key"))
    issued.cert_chain_pems[0].write_to_path(str(tmp_path / "tls.crt"))
    text = (EXTENDER / "kube-scheduler.yaml").read_text()
    text = text.replace("/etc/kubernetes/parley", str(tmp_path)).replace(
        "/etc/kubernetes/scheduler.conf", str(deployed.plane.kubeconfig)
    )
    (tmp_path / "config.yaml").write_text(text)
    written = tmp_path / "written.yaml"
    command = [
        programs.path("kube-scheduler"),
        f"--config={tmp_path / 'config.yaml'}",
        f"--write-config-to={written}",
    ]
    subprocess.run(command, check=True, capture_output=True, timeout=60)
    (extender,) = yaml.safe_load(written.read_text())["extenders"]
    assert {key: extender[key] for key in ("filterVerb", "prioritizeVerb", "preemptVerb", "bindVerb")} == {
        f"{verb}Verb": verb for verb in ("filter", "prioritize", "preempt", "bind")
    }
    assert extender["managedResources"] == [{"name": "parley.dev/managed", "ignoredByScheduler": True}]
    assert (extender["nodeCacheCapable"], extender.get("ignorable", False)) == (True, False)
