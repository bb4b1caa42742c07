"""`kubectl parley` on a real API server, with Parley installed from `deploy/` and its real programs behind the proxy: nothing is forwarded."""

import ssl
import urllib.error
import urllib.request
from collections.abc import Iterator
from typing import Any, Final

import pytest

from hosting.kubernetes import names
from labs.clusters.programs import Programs
from tests.support.kube.node_of_programs import SYSTEM, NodeOfPrograms, make_certificates, node_of_programs
from tests.support.kube.objects import Objects, pod
from tests.support.kube.plugin import Kubectl, kubectl
from tests.support.own_network import own_network
from tests.support.waiting import shown_blocking
from tests.tidy.repository import ROOT

pytestmark = pytest.mark.timeout(
    300
)  # each command is a program of its own, and some are typed again and again
TOKEN: Final = "a-token-for-all-viewers"
VIEWER: Final = "viewer"
STRANGER: Final = "stranger"


@pytest.fixture(scope="module")
def pod_network() -> Iterator[str]:
    """Addresses that are none of loopback: the API server's proxy goes to none of those."""
    with own_network() as network:
        yield network


@pytest.fixture(scope="module")
def cluster(
    programs: Programs, pod_network: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[NodeOfPrograms]:
    """Two nodes with an agent each, and a pod on each that wants to grow: `busy` in `default`, and `busy` in `shop`."""
    made = (tmp_path_factory.mktemp(name) for name in ("seen", "logs", "cgroup"))
    with node_of_programs(programs, pod_network, *made, prefix="seen-", count=2) as found:
        make_certificates(found.plane, tmp_path_factory.mktemp("certs"))
        found.plane.kubectl("apply", f"--kustomize={ROOT / 'deploy/overlays/kind'}")
        found.plane.kubectl("create", "namespace", "shop")
        for account in (VIEWER, STRANGER):
            found.plane.kubectl("create", "serviceaccount", account, f"--namespace={SYSTEM}")
        binding = ("create", "rolebinding", "parley-viewers", "--role=parley-viewer")
        found.plane.kubectl(*binding, f"--serviceaccount={SYSTEM}:{VIEWER}", f"--namespace={SYSTEM}")
        for namespace, node in zip(("default", "shop"), found.nodes.names, strict=True):
            objects = Objects(found.plane, namespace)
            objects.shown("the service account", lambda: objects.get("serviceaccounts", "default"))  # noqa: B023 - called at once
            labels = {names.ENABLED: "true"}
            requests = {"cpu": "200m", "memory": "64Mi"}
            objects.create_pod(pod("busy", node=node, labels=labels, requests=requests))
        shown_blocking("a scheduler leads", found.leader)
        yield found


@pytest.fixture(scope="module")
def typed(cluster: NodeOfPrograms, programs: Programs, tmp_path_factory: pytest.TempPathFactory) -> Kubectl:
    """kubectl of a viewer, with further contexts: of somebody without rights, and with a token that is void."""
    users = {name: cluster.plane.token(SYSTEM, name) for name in (VIEWER, STRANGER)} | {"expired": "void"}
    return kubectl(tmp_path_factory.mktemp("bin"), programs, cluster.plane, users)


@pytest.fixture(scope="module")
def secret(cluster: NodeOfPrograms, typed: Kubectl) -> None:
    missing = "who have a token: the Secret parley-viewers in parley-system is missing"
    shown_blocking("what is missing", lambda: missing in typed("parley", "explain", "busy").faults)
    made = ("create", "secret", "generic", "parley-viewers", f"--from-literal=token={TOKEN}")
    cluster.plane.kubectl(*made, f"--namespace={SYSTEM}")


def _asked(typed: Kubectl, *words: str) -> Any:
    done = typed("parley", *words, "--output=json")
    return done.document() if done.code == 0 else None


def test_the_scheduler_is_found_and_lists_nodes_and_vms(
    secret: None, cluster: NodeOfPrograms, typed: Kubectl
) -> None:
    shown_blocking(
        "both pods", lambda: len(typed("parley", "vms", "-A", "--no-headers").printed.splitlines()) == 2
    )
    nodes = typed("parley", "nodes", "--no-headers")
    assert (nodes.code, nodes.faults) == (0, "")
    assert [line.split()[0] for line in nodes.printed.splitlines()] == list(cluster.nodes.names)
    first, second = cluster.nodes.names
    for words, node in (((), first), (("-n", "shop"), second)):
        listed = typed("parley", "vms", "--no-headers", *words)
        assert [line.split()[:2] for line in listed.printed.splitlines()] == [["busy", node]], listed
    assert typed("parley", "pools").code == 0


def test_decisions_are_listed_and_watched(secret: None, cluster: NodeOfPrograms, typed: Kubectl) -> None:
    """Both pods want more than they were made with, so the scheduler permits each of them something."""
    grown = ("permitted", "partial")

    def decided() -> list[list[str]]:
        done = typed("parley", "history", "shop/busy", "--no-headers")
        lines = [line.split() for line in done.printed.splitlines()] if done.code == 0 else []
        return [cells for cells in lines if cells[1] == "scheduler" and cells[2] in grown]

    assert shown_blocking("a permit for more", decided)
    options = ("-n", "shop", "--since-start", "--count", "1", "--output", "json")
    outcomes = (f"--outcome={each}" for each in grown)
    done = typed("parley", "watch", "busy", *options, *outcomes)
    assert done.code == 0, done
    told = done.document()
    assert (told["vm"], told["node"]) == ("shop/busy", cluster.nodes.names[1])
    assert told["outcome"] in grown


def test_explain_and_status_have_the_agents_words_once_there_is_the_secret(
    secret: None, cluster: NodeOfPrograms, typed: Kubectl
) -> None:
    """The agents take the Secret up without a new start."""

    def explained() -> Any:
        found = _asked(typed, "explain", "shop/busy")
        return found if found is not None and found["agent"] else None

    found = shown_blocking("the agent's part", explained)
    assert found["scheduler"]["vm"] == "shop/busy"
    done = typed("parley", "explain", "busy", "-n", "shop")
    assert done.code == 0
    assert TOKEN not in done.printed + done.faults
    told = typed("parley", "status", "-A")
    assert (told.code, told.faults) == (0, "")
    assert [
        line for line in told.printed.splitlines() if line.startswith(("seen-", "default/", "shop/"))
    ] == [
        line
        for node, vm in zip(cluster.nodes.names, ("default/busy", "shop/busy"), strict=True)
        for line in told.printed.splitlines()
        if line == f"{node}:" or line.startswith(f"{vm}: ")
    ]
    (only,) = _asked(typed, "status", cluster.nodes.names[1], "-n", "shop")["agents"]
    assert [each["vm"] for each in only["vms"]] == ["shop/busy"]


def test_whoever_has_no_right_is_told_which_one_and_how_it_is_checked(typed: Kubectl) -> None:
    done = typed("parley", "nodes", "--context", STRANGER)
    right = "list pods in parley-system is missing; the Role parley-viewer there gives it."
    check = "kubectl auth can-i list pods --namespace parley-system --context stranger"
    assert done.code == 1
    assert (
        f"context stranger: the right of system:serviceaccount:{SYSTEM}:{STRANGER} to {right}" in done.faults
    )
    assert done.faults.rstrip().endswith(check)
    assert typed(*check.split()[1:]).printed.strip() == "no"
    assert typed(*check.replace(STRANGER, VIEWER).split()[1:]).printed.strip() == "yes"


def test_the_checks_that_are_named_tell_the_truth(
    secret: None, cluster: NodeOfPrograms, typed: Kubectl
) -> None:
    """With some of the rights, the next one that is missing is named."""
    plane, role = cluster.plane, "some-rights"
    try:
        plane.kubectl("create", "role", role, f"--namespace={SYSTEM}", "--verb=list", "--resource=pods")
        account = f"--serviceaccount={SYSTEM}:{STRANGER}"
        plane.kubectl("create", "rolebinding", role, f"--namespace={SYSTEM}", f"--role={role}", account)
        proxy = "kubectl auth can-i get pods --subresource proxy --namespace parley-system --context stranger"
        shown_blocking(
            "the next right",
            lambda: proxy in typed("parley", "nodes", "--context", STRANGER).faults,
        )
        for context, may in ((STRANGER, "no"), (VIEWER, "yes")):
            assert typed(*proxy.replace(STRANGER, context).split()[1:]).printed.strip() == may
            secrets = ("auth", "can-i", "get", "secrets/parley-viewers", f"--namespace={SYSTEM}")
            assert typed(*secrets, f"--context={context}").printed.strip() == may
    finally:
        for kind in ("rolebinding", "role"):
            plane.kubectl("delete", kind, role, f"--namespace={SYSTEM}")


def test_credentials_that_have_expired_are_told(typed: Kubectl) -> None:
    done = typed("parley", "nodes", "--context=expired")
    assert done.code == 1
    assert "context expired: the API server does not accept the credentials (401)" in done.faults


def test_kubectl_completes_the_plugins_words(typed: Kubectl) -> None:
    done = typed("__complete", "parley", "ex")
    assert done.printed.splitlines()[0].startswith("explain\t"), done
    assert done.printed.splitlines()[-1] == ":36"
    assert "--context" in typed("__complete", "parley", "vms", "--con").printed


def test_help_speaks_as_kubectl_is_called(typed: Kubectl) -> None:
    assert typed("parley", "--help").printed.startswith("Usage: kubectl parley [OPTIONS] COMMAND")
    assert typed("parley", "vms", "-h").printed.startswith("Usage: kubectl parley vms")
    wrong = typed("parley", "vms", "--wrong")
    assert (wrong.code, wrong.faults.splitlines()[0]) == (
        2,
        "Usage: kubectl parley vms [OPTIONS] [[NAMESPACE/]NAME]...",
    )


def test_a_viewer_reads_and_cannot_ask_for_growth(secret: None, cluster: NodeOfPrograms) -> None:
    """The proxy lets GET through and nothing else; and of an agent nothing without the token."""
    plane = cluster.plane
    token = plane.token(SYSTEM, VIEWER)

    def status(method: str, where: str, path: str, **headers: str) -> int:
        url = f"{plane.url}/api/v1/namespaces/{SYSTEM}/pods/https:{where}/proxy{path}"
        body = b"{}" if method == "POST" else None
        request = urllib.request.Request(url, body, method=method)
        for name, value in {"Authorization": f"Bearer {token}", **headers}.items():
            request.add_header(name.replace("_", "-"), value)
        trust = ssl.create_default_context(cafile=str(plane.authority))
        try:
            with urllib.request.urlopen(request, timeout=20, context=trust) as response:
                return int(response.status)
        except urllib.error.HTTPError as error:
            return error.code

    scheduler = f"{cluster.leader().removeprefix('pod/')}:10299"
    shown_blocking(
        "the token at the scheduler", lambda: status("GET", scheduler, "/v1/nodes", Parley_Token=TOKEN) == 200
    )
    assert status("GET", scheduler, "/v1/nodes") == 401
    for path in ("/", "/batch", "/v1/pools"):
        assert status("POST", scheduler, path) == 403
    label = "--selector=app.kubernetes.io/name=parley-agent"
    agents = plane.kubectl("get", "pods", f"--namespace={SYSTEM}", label, "--output=name").split()
    agent = f"{agents[0].removeprefix('pod/')}:10303"
    shown_blocking("the token", lambda: status("GET", agent, "/v1/vms", Parley_Token=TOKEN) == 200)
    assert status("GET", agent, "/v1/vms") == 401
    assert status("GET", agent, "/v1/vms", Parley_Token=f"{TOKEN}s") == 401
