"""The files of `deploy/` agree with the programs: their settings files are read, and the image is the release's.

That the API server takes the manifests is told by tests/kube/test_deploy.py.
"""

from typing import Any

import pytest
import yaml

from agent.daemon.settings import AgentSettings
from hosting.kubernetes import names
from hosting.settings import load
from parley.reach.installation import LIST_PODS, PORT_WITH_TLS, PORTS, PROXY, VIEWER_ROLE
from parley.reach.kubernetes import TOKEN_SECRET
from scheduler.permits.service.config_file import ConfigFile
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


def test_viewers_may_do_what_the_command_does_and_nothing_else() -> None:
    (role,) = documents("base/viewer-role.yaml")
    granted = {
        (verb, resource, name)
        for rule in role["rules"]
        for verb in rule["verbs"]
        for resource in rule["resources"]
        for name in rule.get("resourceNames", [""])
    }
    rights = {("get", "secrets", TOKEN_SECRET)} | {
        (right.verb, "/".join(filter(None, (right.resource, right.subresource))), "")
        for right in (LIST_PODS, PROXY)
    }
    assert (role["metadata"]["name"], granted) == (VIEWER_ROLE, rights)


def test_prometheus_is_let_in_where_the_programs_listen() -> None:
    """The component `monitoring` chooses the pods, and the names of ports, of the base's own network policies."""
    let_in = {
        policy["metadata"]["name"].removesuffix("-monitoring"): policy["spec"]
        for policy in documents("components/monitoring/network-policy.yaml")
    }
    for name, spec in let_in.items():
        (base,) = documents(f"base/{name.removeprefix('parley-')}/network-policy.yaml")
        assert spec["podSelector"] == base["spec"]["podSelector"]
        assert spec["ingress"][0]["ports"] == base["spec"]["ingress"][0]["ports"]
    assert set(let_in) == {"parley-scheduler", "parley-agent"}


def test_the_api_server_is_let_in_at_every_port_that_viewers_ask() -> None:
    """The component `viewers` names the ports that `kubectl parley` looks for in the pods of all programs that it asks."""
    (policy,) = documents("components/viewers/network-policy.yaml")
    (rule,) = policy["spec"]["ingress"]
    (chosen,) = policy["spec"]["podSelector"]["matchExpressions"]
    assert {each["port"] for each in rule["ports"]} == {*(name for name, _ in PORTS.values()), PORT_WITH_TLS}
    assert set(chosen["values"]) == set(PORTS)
