"""A cluster on which `deploy/` was applied, and callers that act as its programs: with tokens that are bound to their pods, as the
kubelet's are."""

import json
import ssl
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from hosting.kubernetes.resources import Manifest
from labs.clusters.control_plane import ControlPlane
from labs.clusters.hollow_nodes import HollowNodes
from labs.clusters.programs import Programs
from tests.support.kube.objects import MERGE, STRATEGIC, Objects, pod
from tests.support.processes import free_port

DEPLOY: Final = Path(__file__).parents[3] / "deploy"
OVERLAYS: Final = ("base", "overlays/production", "overlays/kind")
NAMESPACE: Final = "parley-system"
TEAM: Final = "team"
NEONVM: Final = Path(__file__).parents[2] / "kube/crds/vm.neon.tech.yaml"
MACHINES: Final = f"/apis/vm.neon.tech/v1/namespaces/{TEAM}/virtualmachines"


@dataclass(frozen=True, slots=True)
class Caller:
    """Somebody with a token."""

    plane: ControlPlane
    token: str

    def call(self, method: str, path: str, body: object = None) -> tuple[int, str]:
        """The status of the answer, and the message of a refusal. A body that is patched is merged with what is there."""
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.plane.url + path, data, method=method)
        request.add_header("Authorization", f"Bearer {self.token}")
        strategic = path.startswith("/api/v1/")  # custom resources know merge patches only
        patch = STRATEGIC if strategic else MERGE
        kind = patch if method == "PATCH" else "application/json"
        request.add_header("Content-Type", kind)
        trust = ssl.create_default_context(cafile=str(self.plane.authority))
        try:
            with urllib.request.urlopen(request, timeout=10, context=trust) as response:
                return response.status, ""
        except urllib.error.HTTPError as error:
            return error.code, json.loads(error.read())["message"]


@dataclass(frozen=True, slots=True)
class Deployed:
    """A cluster in which each overlay was applied, the last one `kind`, with two hollow nodes."""

    plane: ControlPlane
    here: str
    there: str
    system: Objects
    team: Objects

    def as_pod_of(self, program: str, found: Manifest) -> Caller:
        metadata = found["metadata"]
        bound = (
            "--bound-object-kind=Pod",
            f"--bound-object-name={metadata['name']}",
            f"--bound-object-uid={metadata['uid']}",
        )
        token = self.plane.kubectl("create", "token", program, f"--namespace={NAMESPACE}", *bound)
        return Caller(self.plane, token.strip())

    def agent(self, node: str) -> Caller:
        (found,) = (each for each in self.pods_of("parley-agent") if each["spec"]["nodeName"] == node)
        return self.as_pod_of("parley-agent", found)

    def pods_of(self, program: str) -> list[Manifest]:
        return [
            each
            for each in self.system.list("pods")
            if each["metadata"]["labels"].get("app.kubernetes.io/name") == program
            and "deletionTimestamp" not in each["metadata"]
            and each["spec"]["containers"][0]["image"] == "parley:dev"
        ]


@contextmanager
def started_deployment(programs: Programs, directory: Path) -> Iterator[Deployed]:
    """A control plane for the length of a `with` block: the DaemonSet puts a pod on every node that there is."""
    plane = ControlPlane(programs, directory, free_port).start()
    nodes = HollowNodes(programs, plane, free_port, count=2, prefix="deployed-")
    try:
        for overlay in OVERLAYS:  # before there are nodes, so that nothing runs that is replaced
            plane.kubectl("apply", "--validate=strict", f"--kustomize={DEPLOY / overlay}")
        plane.kubectl("apply", f"--filename={NEONVM}")
        plane.kubectl("wait", "--for=condition=Established", f"--filename={NEONVM}")
        nodes.start()
        here, there = nodes.names
        team = Objects(plane, TEAM)
        plane.call(
            "POST",
            "/api/v1/namespaces",
            {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": TEAM}},
        )
        team.shown("the service account", lambda: team.get("serviceaccounts", "default"))
        found = Deployed(plane, here, there, Objects(plane, NAMESPACE), team)
        team.shown("an agent on each node", lambda: len(found.pods_of("parley-agent")) == 2 or None)
        team.shown("two schedulers", lambda: len(found.pods_of("parley-scheduler")) == 2 or None)
        for node in nodes.names:
            team.create_pod(pod(f"on-{node}", node=node))
            _make_machine(plane, node)
        yield found
    finally:
        nodes.kill()
        plane.stop()


def _make_machine(plane: ControlPlane, node: str) -> None:
    """A VirtualMachine `on-NODE` that runs on that node."""
    guest = {"cpus": {"min": 1, "max": 4, "use": 1}, "memorySlots": {"min": 1, "max": 4, "use": 1}}
    made = {
        "apiVersion": "vm.neon.tech/v1",
        "kind": "VirtualMachine",
        "metadata": {"name": f"on-{node}", "labels": {"autoscaling.neon.tech/enabled": "true"}},
        "spec": {"guest": guest, "schedulerName": "any"},
    }
    plane.call("POST", MACHINES, made)
    plane.call("PATCH", f"{MACHINES}/on-{node}/status", {"status": {"node": node}}, MERGE)
