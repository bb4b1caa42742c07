"""What `deploy/` says agrees with the programs: their settings files are read, and the image is the release's.

That the API server takes the manifests is told by tests/kube/test_deploy.py.
"""

from typing import Any

import pytest
import yaml

from agent.daemon.settings import AgentSettings
from hosting.kubernetes import names
from hosting.settings import load
from scheduler.permits.config_file import ConfigFile
from tests.tidy.repository import ROOT, pyproject

DEPLOY = ROOT / "deploy"


def documents(name: str) -> list[dict[str, Any]]:
    """The objects of a file."""
    return list(yaml.safe_load_all((DEPLOY / name).read_text()))


def test_the_agents_settings_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NODE_NAME", "any")  # as the DaemonSet does
    settings = load(DEPLOY / "base/agent/agent.yaml", AgentSettings)
    (daemon_set,) = documents("base/agent/daemonset.yaml")
    mounts = daemon_set["spec"]["template"]["spec"]["containers"][0]["volumeMounts"]
    assert settings.is_on_kubernetes
    assert str(settings.state_directory) in {each["mountPath"] for each in mounts}


async def test_the_schedulers_rules_are_read() -> None:
    found = await ConfigFile(DEPLOY / "base/scheduler/config.yaml", migrator_present=False).refresh()
    assert found is not None
    assert not found.rules.growth.stopped


def test_the_image_is_that_of_the_release() -> None:
    (production,) = documents("overlays/production/kustomization.yaml")
    assert [each["newTag"] for each in production["images"]] == [pyproject()["project"]["version"]]


def test_the_service_selects_the_label_that_the_leader_takes() -> None:
    (service,) = documents("base/scheduler/service.yaml")
    (deployment,) = documents("base/scheduler/deployment.yaml")
    labels = deployment["spec"]["template"]["metadata"]["labels"]
    assert service["spec"]["selector"] == {**labels, names.ROLE: names.LEADER}
    assert names.ROLE not in labels
