"""Every container of deploy/ is held to the level `restricted` of the Pod Security Standards, and to a read-only root: by kubectl's own rendering.

Each exception is in `EXCEPTIONS`, with its reason. One that is not needed any more fails, too.
"""

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from labs.clusters import programs
from tests.tidy.repository import ROOT

DEPLOY: Final = ROOT / "deploy"
OVERLAYS: Final = ("base", "overlays/kind", "overlays/production")

_CHOWN: Final = (
    "the kubelet makes a directory of the host as root's; this step gives it to the agent and ends"
)
_DEVICES: Final = "the kubelet's sockets and the runtime's folder are root's"
_CGROUPS: Final = "control groups of the host are root's, and files of the state directory are the old user's"

EXCEPTIONS: Final = {
    ("parley-agent", "state-directory", "root"): _CHOWN,
    ("parley-agent", "state-directory", "capability CHOWN"): _CHOWN,
    ("parley-agent", "plugins-directory", "root"): f"component node-plugins: {_CHOWN}",
    ("parley-agent", "plugins-directory", "capability CHOWN"): f"component node-plugins: {_CHOWN}",
    ("parley-agent", "agent", "root"): f"component qos: {_CGROUPS}",
    ("parley-agent", "agent", "capability DAC_OVERRIDE"): f"component qos: {_CGROUPS}",
    ("parley-agent", "", "hostPath /var/lib/parley-agent"): "the node lock and the change log outlive the pod",
    ("parley-agent", "", "hostPath /sys/fs/cgroup"): "the node informant reads the load of pods",
    ("parley-agent", "", "hostPath /var/lib/parley/plugins_registry"): "component node-plugins: sockets of plugins",
    ("parley-device-plugin", "device-plugin", "root"): _DEVICES,
    ("parley-device-plugin", "", "hostPath /var/lib/kubelet/plugins_registry"): "where the kubelet finds device plugins",
    ("parley-device-plugin", "", "hostPath /var/lib/kubelet/pod-resources"): "which pod got which device",
    ("parley-device-plugin", "", "hostPath /var/run/cdi"): "what the runtime is to put into containers",
}  # fmt: skip
"""By the workload, the container (none: the pod) and what it has."""


def _kubectl() -> str:
    found = shutil.which("kubectl") or shutil.which("kubectl", path=str(programs.folder_of_programs()))
    if found is None:
        pytest.skip("no kubectl here; `make kube-assets` builds one")
    return found


def rendered(directory: Path) -> list[dict[str, Any]]:
    done = subprocess.run(
        [_kubectl(), "kustomize", str(directory)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return list(yaml.safe_load_all(done.stdout))


@pytest.fixture(scope="module")
def objects(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """Those of each overlay, and of the base with all its components."""
    everything = tmp_path_factory.mktemp("everything")
    components = sorted(each.parent for each in (DEPLOY / "components").glob("*/kustomization.yaml"))
    overlay = {
        "apiVersion": "kustomize.config.k8s.io/v1beta1",
        "kind": "Kustomization",
        "resources": [os.path.relpath(DEPLOY / "base", everything)],
        "components": [os.path.relpath(each, everything) for each in components],
    }
    (everything / "kustomization.yaml").write_text(json.dumps(overlay))
    directories = (*(DEPLOY / each for each in OVERLAYS), everything)
    return [each for directory in directories for each in rendered(directory)]


def pods(objects: list[dict[str, Any]]) -> Iterator[tuple[str, dict[str, Any]]]:
    for each in objects:
        if each["kind"] in {"Deployment", "DaemonSet", "StatefulSet", "Job"}:
            yield each["metadata"]["name"], each["spec"]["template"]["spec"]
        elif each["kind"] in {"Pod", "CronJob"}:
            raise AssertionError(f"{each['kind']}: this test does not look into it")


def of_pod(pod: dict[str, Any]) -> Iterator[str]:
    for key in ("hostNetwork", "hostPID", "hostIPC"):
        if pod.get(key):
            yield key
    for volume in pod.get("volumes", ()):
        if "hostPath" in volume:
            yield f"hostPath {volume['hostPath']['path']}"
    if pod.get("securityContext", {}).get("sysctls"):
        yield "sysctls"


def of_container(pod: dict[str, Any], container: dict[str, Any]) -> Iterator[str]:
    """What it has beyond `restricted` and a read-only root."""
    own = container.get("securityContext", {})
    context = {**pod.get("securityContext", {}), **own}
    if context.get("runAsNonRoot") is not True or context.get("runAsUser", 0) == 0:
        yield "root"
    if context.get("seccompProfile") != {"type": "RuntimeDefault"}:
        yield "seccomp"
    if own.get("readOnlyRootFilesystem") is not True:
        yield "writable root"
    if own.get("allowPrivilegeEscalation") is not False:
        yield "privilege escalation"
    if own.get("privileged"):
        yield "privileged"
    if own.get("capabilities", {}).get("drop") != ["ALL"]:
        yield "capabilities not dropped"
    for added in own.get("capabilities", {}).get("add", ()):
        yield f"capability {added}"
    for port in container.get("ports", ()):
        if "hostPort" in port:
            yield f"hostPort {port['hostPort']}"


def test_no_container_has_more_than_its_exceptions(objects: list[dict[str, Any]]) -> None:
    found = set()
    for workload, pod in pods(objects):
        found |= {(workload, "", each) for each in of_pod(pod)}
        for container in (*pod.get("initContainers", ()), *pod["containers"]):
            found |= {(workload, container["name"], each) for each in of_container(pod, container)}
    assert found - EXCEPTIONS.keys() == set(), "say why in EXCEPTIONS, or do without"
    assert EXCEPTIONS.keys() - found == set(), "not needed any more"


def test_without_components_the_programs_are_not_root_and_have_no_capabilities() -> None:
    for workload, pod in pods(rendered(DEPLOY / "base")):
        for container in pod["containers"]:
            assert list(of_container(pod, container)) == [], (workload, container["name"])


def test_no_pod_gets_a_token_of_the_api_server_unasked(objects: list[dict[str, Any]]) -> None:
    """The account says no by default, and a pod that needs one mounts it or says so."""
    accounts = {
        each["metadata"]["name"]: each.get("automountServiceAccountToken")
        for each in objects
        if each["kind"] == "ServiceAccount"
    }
    assert {name: told for name, told in accounts.items() if told is not False} == {}
    asked = {name for name, pod in pods(objects) if pod.get("automountServiceAccountToken")}
    assert asked == {"parley-scheduler", "parley-device-plugin"}


def test_every_workload_is_behind_a_network_policy(objects: list[dict[str, Any]]) -> None:
    chosen = [
        each["spec"]["podSelector"].get("matchLabels", {})
        for each in objects
        if each["kind"] == "NetworkPolicy" and "Ingress" in each["spec"]["policyTypes"]
    ]
    for each in objects:
        if each["kind"] in {"Deployment", "DaemonSet"}:
            labels = each["spec"]["template"]["metadata"]["labels"].items()
            assert any(selector and selector.items() <= labels for selector in chosen), each["metadata"][
                "name"
            ]


def test_secrets_are_mounted_read_only_and_not_for_everybody(objects: list[dict[str, Any]]) -> None:
    for workload, pod in pods(objects):
        secrets = {each["name"]: each["secret"] for each in pod.get("volumes", ()) if "secret" in each}
        for name, secret in secrets.items():
            assert secret.get("defaultMode") == 0o440, (workload, name)
        for container in pod["containers"]:
            for mount in container.get("volumeMounts", ()):
                assert mount["name"] not in secrets or mount.get("readOnly"), (workload, mount)


def test_what_listens_beyond_its_pod_in_the_clear_says_so(objects: list[dict[str, Any]]) -> None:
    """Only the agents' port for informants in guests: the scheduler has none, and its access file serves no published agents."""
    plain = {
        (name, container["name"])
        for name, pod in pods(objects)
        for container in pod["containers"]
        if "--plain-http" in container.get("args", ())
    }
    assert plain == {("parley-agent", "agent")}
    for name, pod in pods(objects):
        if name == "parley-scheduler":
            (container,) = pod["containers"]
            assert "--access=/etc/parley/access.yaml" in container["args"]
            probes = [container[f"{kind}Probe"]["httpGet"] for kind in ("startup", "liveness", "readiness")]
            assert {probe["scheme"] for probe in probes} == {"HTTPS"}
