"""The files of `deploy/` agree with the programs: their settings files are read, and the image is the release's.

That the API server takes the manifests is told by tests/kube/test_deploy.py.
"""

from typing import Any

import pytest
import yaml

from agent.daemon.settings import AgentSettings
from hosting.access import AccessScope
from hosting.kubernetes import names
from hosting.settings import load
from parley.certs.names import KUBE_SCHEDULER
from parley.reach.installation import LIST_PODS, PORT_WITH_TLS, PORTS, PROXY, VIEWER_ROLE
from parley.reach.kubernetes import TOKEN_SECRET
from scheduler.access.settings import AccessSettings
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


def _pod_spec(name: str) -> dict[str, Any]:
    (found,) = documents(name)
    spec: dict[str, Any] = found["spec"]["template"]["spec"]
    return spec


PODS = {"parley-scheduler": "base/scheduler/deployment.yaml", "parley-agent": "base/agent/daemonset.yaml"}


def test_prometheus_is_let_in_where_the_programs_serve_metrics() -> None:
    """The component `monitoring` chooses the pods of the base's own network policies, and the ports with TLS."""
    let_in = {
        policy["metadata"]["name"].removesuffix("-monitoring"): policy["spec"]
        for policy in documents("components/monitoring/network-policy.yaml")
    }
    for name, spec in let_in.items():
        (base,) = documents(f"base/{name.removeprefix('parley-')}/network-policy.yaml")
        assert spec["podSelector"] == base["spec"]["podSelector"]
        assert spec["ingress"][0]["ports"] == [{"port": PORT_WITH_TLS}]
    assert set(let_in) == set(PODS)


def test_the_api_server_is_let_in_at_every_port_that_viewers_ask() -> None:
    """The component `viewers` names the port with TLS, which `kubectl parley` asks before any other; all programs have it."""
    (policy,) = documents("components/viewers/network-policy.yaml")
    (rule,) = policy["spec"]["ingress"]
    (chosen,) = policy["spec"]["podSelector"]["matchExpressions"]
    assert [each["port"] for each in rule["ports"]] == [PORT_WITH_TLS]
    assert set(chosen["values"]) == set(PORTS) == set(PODS)
    for file in PODS.values():
        ports = _pod_spec(file)["containers"][0]["ports"]
        assert PORT_WITH_TLS in {each["name"] for each in ports}


def test_the_schedulers_access_file_is_read_and_its_files_are_mounted() -> None:
    access = load(DEPLOY / "base/scheduler/access.yaml", AccessSettings)
    assert access.tls is not None
    assert access.published is None
    pod = _pod_spec(PODS["parley-scheduler"])
    mounted = {each["mountPath"]: each["name"] for each in pod["containers"][0]["volumeMounts"]}
    secrets = {each["name"]: each["secret"]["secretName"] for each in pod["volumes"] if "secret" in each}
    named = [access.tls.certificate, access.tls.key, access.tls.client_ca]
    named += [each.token_file for each in access.callers if each.token_file is not None]
    where = [secrets[mounted[str(path.parent)]] for path in named if path is not None]
    assert where == ["parley-scheduler-tls"] * 3 + [TOKEN_SECRET, "parley-metrics"]


def test_nobody_but_agents_has_the_right_to_permits() -> None:
    access = load(DEPLOY / "base/scheduler/access.yaml", AccessSettings)
    with_permits = [each for each in access.callers if AccessScope.PERMITS in each.scopes]
    assert [each.service_account for each in with_permits] == ["parley-system/parley-agent"]
    assert not any(AccessScope.WRITE in each.scopes for each in access.callers)
    assert not any(each.addresses for each in access.callers)


def test_agents_show_a_short_token_for_the_scheduler_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NODE_NAME", "any")
    settings = load(DEPLOY / "base/agent/agent.yaml", AgentSettings)
    access = load(DEPLOY / "base/scheduler/access.yaml", AccessSettings)
    pod = _pod_spec(PODS["parley-agent"])
    (volume,) = (each for each in pod["volumes"] if each["name"] == "scheduler-token")
    (source,) = volume["projected"]["sources"]
    token = source["serviceAccountToken"]
    assert (token["audience"], token["expirationSeconds"]) == (access.tokens.audience, 600)
    (mount,) = (each for each in pod["containers"][0]["volumeMounts"] if each["name"] == "scheduler-token")
    assert str(settings.scheduler.token_file) == f"{mount['mountPath']}/{token['path']}"
    assert settings.scheduler.scheme == "https"
    assert settings.tls.ca is not None
    (port,) = (each for each in pod["containers"][0]["ports"] if each["name"] == PORT_WITH_TLS)
    assert port["containerPort"] == settings.tls.port


def test_cert_manager_makes_the_secrets_that_the_pods_wait_for() -> None:
    made = {
        each["spec"]["secretName"]: each["spec"]
        for each in documents("components/cert-manager/certificates.yaml")
    }
    wanted = {
        each["secret"]["secretName"]
        for file in PODS.values()
        for each in _pod_spec(file)["volumes"]
        if "secret" in each and not each["secret"].get("optional")
    }
    assert wanted == {"parley-scheduler-tls", "parley-agent-tls"}
    assert made.keys() == {*wanted, "parley-kube-scheduler-tls"}
    agent = yaml.safe_load((DEPLOY / "base/agent/agent.yaml").read_text())
    assert agent["scheduler"]["serverName"] in made["parley-scheduler-tls"]["dnsNames"]
    (extender,) = documents("components/extender/kube-scheduler.yaml")[0]["extenders"]
    assert extender["tlsConfig"]["serverName"] in made["parley-scheduler-tls"]["dnsNames"]
    assert made["parley-kube-scheduler-tls"]["dnsNames"] == [KUBE_SCHEDULER]
    # A certificate that is on every node, or that servers show, gives nobody a right at the scheduler.
    access = load(DEPLOY / "base/scheduler/access.yaml", AccessSettings)
    known = {each.certificate for each in access.callers}
    for secret in wanted:
        assert known.isdisjoint(made[secret]["dnsNames"])
    for spec in made.values():
        assert spec["privateKey"] == {"algorithm": "ECDSA", "size": 256, "rotationPolicy": "Always"}
