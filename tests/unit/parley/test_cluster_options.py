"""Which cluster, as whom, and in which namespace: as kubectl finds it."""

import json
import logging
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner

import hosting.kubernetes
from hosting.kubernetes.resources import PODS
from parley.reach import ways
from parley.reach.ports import Got, NoAnswer
from parley.reach.ways import NO_EXTRA, ByCluster
from tests.support.kube_api import FakeApiServer, serving

WAY = ByCluster()


def write(
    path: Path, contexts: Mapping[str, str], *, server: str = "http://127.0.0.1:9", current: str = ""
) -> Path:
    """A kubeconfig with a cluster and these contexts, with their namespaces."""
    name = path.name
    content: dict[str, Any] = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": name, "cluster": {"server": server}}],
        "users": [{"name": name, "user": {}}],
        "contexts": [
            {
                "name": each,
                "context": {"cluster": name, "user": name} | ({"namespace": space} if space else {}),
            }
            for each, space in contexts.items()
        ],
    }
    if current:
        content["current-context"] = current
    path.write_text(json.dumps(content))
    return path


def options(**given: Any) -> dict[str, Any]:
    """The options that click hands over."""
    return {"kubeconfig": None, "context": None, "parley_namespace": "parley-system"} | given


@pytest.fixture(autouse=True)
def at_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Nothing of the user who runs the tests counts."""
    home = tmp_path / "home"
    (home / ".kube").mkdir(parents=True)
    monkeypatch.setenv("HOME", str(home))
    for name in ("KUBECONFIG", "KUBERNETES_SERVICE_HOST"):
        monkeypatch.delenv(name, raising=False)
    return home


def test_the_options_are_kubectls() -> None:
    seen: list[dict[str, Any]] = []
    command = click.command()(WAY.options(lambda **given: seen.append(given)))
    assert CliRunner().invoke(command, ["--context", "a", "--kubeconfig", "b"]).exit_code == 0
    assert CliRunner().invoke(command, []).exit_code == 0
    assert seen == [options(context="a", kubeconfig=Path("b")), options()]


def test_the_namespace_is_that_of_the_context(tmp_path: Path) -> None:
    path = write(tmp_path / "config", {"dev": "", "prod": "shop"}, current="dev")
    assert WAY.namespace(options(kubeconfig=path)) == "default"
    assert WAY.namespace(options(kubeconfig=path, context="prod")) == "shop"


def test_the_kubeconfig_is_the_option_or_the_variable_or_the_usual_file(
    tmp_path: Path, at_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(at_home / ".kube/config", {"a": "usual"}, current="a")
    assert WAY.namespace(options()) == "usual"
    first = write(tmp_path / "first", {"b": "first"}, current="b")
    second = write(tmp_path / "second", {"b": "not read", "c": "second"})
    missing = tmp_path / "missing"
    monkeypatch.setenv("KUBECONFIG", f"{missing}::{first}:{second}")
    assert WAY.namespace(options()) == "first"
    assert WAY.namespace(options(context="c")) == "second"
    third = write(tmp_path / "third", {"d": "third"}, current="d")
    assert WAY.namespace(options(kubeconfig=third)) == "third"


@pytest.mark.parametrize(
    ("contexts", "current", "context", "said"),
    [
        ({"a": ""}, "", None, "Expected key current-context"),
        ({"a": ""}, "b", None, "Expected object with name b"),
        ({"a": ""}, "a", "c", "Expected object with name c"),
    ],
)
def test_a_context_that_is_missing_is_told(
    tmp_path: Path, contexts: dict[str, str], current: str, context: str | None, said: str
) -> None:
    path = write(tmp_path / "config", contexts, current=current)
    with pytest.raises(click.ClickException, match=said) as caught:
        WAY.namespace(options(kubeconfig=path, context=context))
    assert caught.value.exit_code == 2


def test_a_kubeconfig_that_is_missing_is_told(at_home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(click.ClickException, match=rf"there is no file {at_home}/\.kube/config"):
        WAY.reach(options())
    monkeypatch.setenv("KUBECONFIG", "/none/a:/none/b")
    with pytest.raises(click.ClickException, match="there is no file /none/a nor /none/b"):
        WAY.reach(options())


def test_in_a_pod_the_service_account_will_do(
    at_home: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.96.0.1")
    monkeypatch.setattr(ways, "SERVICE_ACCOUNT", tmp_path)
    assert WAY.namespace(options()) == "default"
    (tmp_path / "namespace").write_text("tools")
    assert WAY.namespace(options()) == "tools"
    with pytest.raises(click.ClickException, match="--context prod: there is no kubeconfig") as caught:
        WAY.reach(options(context="prod"))
    assert caught.value.exit_code == 2
    write(at_home / ".kube/config", {"a": "usual"}, current="a")
    assert WAY.namespace(options()) == "usual"


def test_without_the_client_library_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(hosting.kubernetes, "connection", raising=False)
    monkeypatch.delitem(sys.modules, "hosting.kubernetes.connection", raising=False)
    monkeypatch.setitem(sys.modules, "kubernetes_asyncio", None)
    with pytest.raises(click.ClickException) as caught:
        WAY.reach(options())
    assert caught.value.message == NO_EXTRA


async def test_the_programs_are_reached_with_what_the_options_say(tmp_path: Path) -> None:
    server = FakeApiServer()
    labels = {"app.kubernetes.io/name": "parley-scheduler", "parley.dev/role": "leader"}
    metadata = {"namespace": "elsewhere", "name": "s-1", "labels": labels}
    status = {"phase": "Running", "podIP": "10.0.0.1"}
    server.put(PODS, {"metadata": metadata, "spec": {}, "status": status})
    server.programs["http:s-1:10299"] = lambda call, path: (
        200,
        json.dumps({"path": path, "query": dict(call.query), "agent": call.headers["User-Agent"]}).encode(),
    )
    async with serving(server) as address:
        path = write(tmp_path / "config", {"test": ""}, server=address, current="test")
        async with WAY.reach(options(kubeconfig=path, parley_namespace="elsewhere")) as reach:
            answer = await reach.scheduler("/v1/explain/shop/web-1?n=5&after=a%2Fb")
            assert answer == Got(
                {
                    "path": "/v1/explain/shop/web-1",
                    "query": {"n": "5", "after": "a/b"},
                    "agent": "kubectl-parley",
                },
                "scheduler s-1",
            )
        async with WAY.reach(options(kubeconfig=path)) as reach:
            failed = await reach.scheduler("/v1/nodes")
    assert isinstance(failed, NoAnswer)
    assert failed.fault.startswith("context test: there is no scheduler in the namespace parley-system")


async def test_a_program_for_credentials_that_fails_is_quoted(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        logging.getLogger(), "handlers", []
    )  # a command has none; other tests may have left one
    path = write(tmp_path / "config", {"prod": ""}, current="prod")
    config = json.loads(path.read_text())
    failing = {"command": "sh", "args": ["-c", "echo log in first >&2; exit 3"]}
    config["users"][0]["user"] = {"exec": {"apiVersion": "client.authentication.k8s.io/v1", **failing}}
    path.write_text(json.dumps(config))
    async with WAY.reach(options(kubeconfig=path)) as reach:
        failed = await reach.scheduler("/v1/nodes")
    assert isinstance(failed, NoAnswer)
    assert failed.fault.startswith("context prod: the credentials for Kubernetes cannot be used: exec: ")
    assert "log in first" in failed.fault
    assert capfd.readouterr().err == "", "it is said once"
