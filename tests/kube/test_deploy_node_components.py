"""`deploy/components/node-plugins` and `qos` add folders of the node for the agent, which the API server takes, and settings that name them."""

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from agent.daemon.settings import AgentSettings
from hosting.settings import load
from labs.clusters.programs import Programs
from tests.support.kube.deployed import DEPLOY, Deployed, started_deployment

COMPONENTS: Final = ("device-plugin", "node-metric", "node-plugins", "node-topology", "qos", "eviction")
SETTINGS: Final = """
plugins: {directory: /var/lib/parley/plugins_registry}
qos: {featureGates: {CPUSetAllocator: true, CPUSuppress: true, MemoryEvict: true}, nodeMetric: true, nodeTopology: true, cgroupRoot: /host/cgroup}
"""


@pytest.fixture(scope="module")
def deployed(programs: Programs, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployed]:
    with started_deployment(programs, tmp_path_factory.mktemp("deployed")) as found:
        yield found


def overlay(directory: Path) -> Path:
    """An overlay with all components and settings of its own."""
    (directory / "agent.yaml").write_text((DEPLOY / "base/agent/agent.yaml").read_text() + SETTINGS)
    content = {
        "apiVersion": "kustomize.config.k8s.io/v1beta1",
        "kind": "Kustomization",
        "namespace": "parley-system",
        "resources": [os.path.relpath(DEPLOY / "base", directory)],
        "components": [os.path.relpath(DEPLOY / "components" / each, directory) for each in COMPONENTS],
        "configMapGenerator": [{"name": "parley-agent", "behavior": "merge", "files": ["agent.yaml"]}],
    }
    (directory / "kustomization.yaml").write_text(json.dumps(content))
    return directory


def test_an_overlay_may_have_plugins_and_strategies(
    deployed: Deployed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The folders that the settings name are mounted, and nothing else of the host can be written."""
    built = deployed.plane.kubectl("kustomize", str(overlay(tmp_path)))
    how = ("--server-side", "--force-conflicts", "--dry-run=server", "--validate=strict")
    taken = deployed.plane.kubectl("apply", *how, "--filename=-", stdin=built)
    assert "daemonset.apps/parley-agent serverside-applied (server dry run)" in taken

    objects: list[dict[str, Any]] = list(yaml.safe_load_all(built))
    (daemon_set,) = (
        each for each in objects if each["kind"] == "DaemonSet" and each["metadata"]["name"] == "parley-agent"
    )
    container, informant = daemon_set["spec"]["template"]["spec"]["containers"]
    monkeypatch.setenv("NODE_NAME", "any")
    settings = load(tmp_path / "agent.yaml", AgentSettings)
    assert settings.qos is not None
    written = {each["mountPath"] for each in container["volumeMounts"] if not each.get("readOnly")}
    named = {
        settings.state_directory,
        settings.plugins.directory,
        settings.qos.cgroup_root,
        Path("/run/parley"),
    }
    assert written == {str(each) for each in named}
    assert container["securityContext"]["capabilities"] == {"drop": ["ALL"], "add": ["DAC_OVERRIDE"]}
    assert informant["securityContext"]["capabilities"] == {"drop": ["ALL"]}, "it stays as it was"
