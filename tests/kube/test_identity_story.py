"""A labelled pod with access control on: agents by bound tokens over TLS. Certificates and tokens are renewed in the middle."""

import http.client
import json
import ssl
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hosting.kubernetes import names, pods
from hosting.kubernetes.resources import Manifest
from labs.clusters.control_plane import ControlPlane
from labs.clusters.hollow_nodes import NodeSize
from protocol.extension import AGENT_HEADER
from tests.support.kube.fixtures import MakeHollowNodes
from tests.support.kube.objects import Objects, pod
from tests.support.kube.parley import NAMESPACE, ParleyPrograms, parley_programs
from tests.support.processes import free_port
from tests.support.waiting import shown_blocking
from tests.unit.hosting.test_tls import Authority
from tests.unit.scheduler_permits.service_worlds import ask

ACCOUNT = "parley-agent"
ACCESS = f"""
tls: {{{{certificate: {{0}}/tls.crt, key: {{0}}/tls.key, clientCa: {{1}}}}}}
callers:
- {{{{serviceAccount: {NAMESPACE}/{ACCOUNT}, scopes: [permits]}}}}
- {{{{certificate: viewer.parley, scopes: [pages, metrics]}}}}
"""


class Secured:
    """A scheduler with an access file, and callers with tokens or certificates."""

    def __init__(self, parley: ParleyPrograms, directory: Path) -> None:
        self.parley = parley
        self.system = Objects(parley.plane, NAMESPACE)
        self.directory = directory / "tls"
        self.authority = Authority(self.directory, "authority")
        self.authority.issue(self.directory)
        access = directory / "access.yaml"
        access.write_text(ACCESS.format(self.directory, self.authority.ca))
        self.system.apply({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": ACCOUNT}})
        options = ("--first-start", "--lease-duration", "2", "--access", str(access))
        self.port = parley.scheduler("scheduler", *options)
        self.viewer = self.authority.issue(directory / "viewer", "viewer.parley")

    def agent_pod(self, name: str, node: str) -> Manifest:
        """The pod that an agent of this node would be in."""
        manifest = pod(name, node=node)
        manifest["spec"]["serviceAccountName"] = ACCOUNT
        return self.system.create_pod(manifest)

    def token(self, bound_to: Manifest | None, audience: str = "parley-scheduler") -> str:
        """A token of the agents' account, as the kubelet asks for it."""
        spec: dict[str, Any] = {"audiences": [audience], "expirationSeconds": 600}
        if bound_to is not None:
            meta = bound_to["metadata"]
            spec["boundObjectRef"] = {
                "apiVersion": "v1",
                "kind": "Pod",
                "name": meta["name"],
                "uid": meta["uid"],
            }
        path = f"/api/v1/namespaces/{NAMESPACE}/serviceaccounts/{ACCOUNT}/token"
        body = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": spec}
        found = json.loads(self.parley.plane.call("POST", path, body))
        return str(found["status"]["token"])

    def call(
        self, method: str, path: str, *, token: str = "", body: bytes | None = None
    ) -> tuple[int, bytes]:
        """Call the scheduler with a token, or with the viewer's certificate; status 0: no answer."""
        context = ssl.create_default_context(cafile=str(self.authority.ca))
        headers = {AGENT_HEADER: "00000000-0000-0000-0000-000000000009"}
        if token:
            headers["Authorization"] = f"Bearer {token}"
        else:
            assert self.viewer.certificate is not None
            context.load_cert_chain(self.viewer.certificate, self.viewer.key)
        wire = http.client.HTTPSConnection("127.0.0.1", self.port, timeout=10, context=context)
        try:
            wire.request(method, path, body, headers)
            answer = wire.getresponse()
            return answer.status, answer.read()
        except OSError:
            return 0, b""
        finally:
            wire.close()

    def ask(self, token: str, found: Manifest) -> tuple[int, str]:
        """Ask for a pod's growth as an agent with this token: the status, and the code of a refusal."""
        meta = found["metadata"]
        body = ask(
            meta["name"],
            1,
            agentID="00000000-0000-0000-0000-000000000009",
            podUID=meta["uid"],
            pod={"name": meta["name"], "namespace": meta["namespace"]},
            schedulerInstance=None,
        )
        status, content = self.call("POST", "/", token=token, body=body)
        return status, "" if status in (0, 200) else json.loads(content)["code"]

    def refused(self, right: str, reason: str) -> float:
        """How often the scheduler has refused so, by its metrics."""
        _, page = self.call("GET", "/metrics")
        name = f'parley_http_refused_total{{reason="{reason}",right="{right}"}}'
        return sum(float(line.split()[-1]) for line in page.decode().splitlines() if line.startswith(name))


@pytest.fixture
def secured(control_plane: ControlPlane, tmp_path: Path) -> Iterator[Secured]:
    with parley_programs(control_plane, tmp_path) as found:
        yield Secured(found, tmp_path)


def test_a_labelled_pod_grows_while_certificates_and_tokens_are_renewed(
    secured: Secured, hollow_nodes: MakeHollowNodes, objects: Objects, tmp_path: Path
) -> None:
    """And nobody else gets room for it: neither another node's agent, nor a token without a pod, of a pod that has gone, or for the API server."""
    nodes = hollow_nodes(2, NodeSize("4", "8Gi"))
    (node, other), port, parley = nodes.names, free_port(), secured.parley
    first, stranger = secured.agent_pod("agent-1", node), secured.agent_pod("agent-other", other)
    tokens = tmp_path / "token"
    old = secured.token(first)
    tokens.write_text(old)
    annotations = {names.INFORMANT: str(port)}
    busy = objects.create_pod(pod("busy", node=node, labels={names.ENABLED: "true"}, annotations=annotations))
    parley.load(busy, port, cpus=0.2)
    where = {"url": f"https://127.0.0.1:{secured.port}/", "tokenFile": str(tokens)}
    tls = {"ca": str(secured.authority.ca)}
    parley.agent(node, [secured.port], scheduler=where, otherSchedulers=[], tls=tls)

    def cpu_milli() -> int:
        found = objects.get("pods", "busy")
        return pods.size(found).vcpu_milli if pods.size(found) == pods.target(found) else 0

    parley.load(busy, port, cpus=1.2)
    shown_blocking("the pod has grown", lambda: cpu_milli() >= 1250)

    assert secured.ask(secured.token(stranger), busy) == (403, "wrong-node")
    assert secured.ask(secured.token(None), busy) == (403, "wrong-node")
    assert secured.ask(secured.token(first, "https://kubernetes.default.svc"), busy) == (401, "unauthorised")
    assert secured.ask(f"{old[:-4]}AAAA", busy) == (401, "unauthorised")
    assert secured.refused("permits", "wrong-node") == 2
    assert secured.refused("permits", "token") == 2

    # The certificate is renewed, by another authority; and the agent's pod is another one, so that the token of the first opens nothing.
    believed = secured.authority.ca.read_bytes()
    renewed = Authority(secured.directory / "renewed", "renewed")
    secured.authority.ca.write_bytes(believed + b"\n" + renewed.ca.read_bytes())
    shown_blocking("the agent has read it", lambda: "certificates read again" in parley.text(f"agent-{node}"))
    renewed.issue(secured.directory)
    shown_blocking("the scheduler has read it", lambda: "certificates read again" in parley.text("scheduler"))
    second = secured.agent_pod("agent-2", node)
    tokens.write_text(secured.token(second))
    secured.system.delete("pods", "agent-1")

    shown_blocking("the old token opens nothing", lambda: secured.ask(old, busy)[0] == 401)
    parley.load(busy, port, cpus=2.4)
    shown_blocking("the pod grows on", lambda: cpu_milli() >= 2500)
    faults = parley.vms(node)[f"{objects.namespace}/busy"]["faults"]
    assert faults == []
    said = parley.text("scheduler") + parley.text(f"agent-{node}")
    assert all(each not in said for each in (old, tokens.read_text()))
