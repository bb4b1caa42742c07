"""A whole scheduler in this process with an access file: TLS, agents by certificate and by token, a kube-scheduler, viewers."""

import asyncio
import base64
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hosting import lifecycle
from hosting.client import Answered, HttpClient
from hosting.tls import TlsFiles
from protocol.extension import AGENT_HEADER
from scheduler.access.callers import TokenIdentity
from scheduler.access.gate import ReviewError
from scheduler.access.ports import Access
from scheduler.permits.core import journal, snapshots
from scheduler.program import Program
from tests.support.access import access_by
from tests.support.processes import amount, free_port, write_json
from tests.support.waiting import until
from tests.unit.hosting.raw_peers import recorded
from tests.unit.hosting.test_tls import Authority, loaded
from tests.unit.scheduler_permits.service_worlds import ask

AUDIENCE = "parley-scheduler"
FILE = """
tls: {{certificate: {0.certificate}, key: {0.key}, clientCa: {1}}}
callers:
- {{certificate: "{{node}}.agents.parley", scopes: [permits]}}
- {{certificate: kube-scheduler.parley, scopes: [extender]}}
- {{certificate: viewer.parley, scopes: [pages]}}
- {{serviceAccount: parley-system/parley-agent, scopes: [permits]}}
- {{serviceAccount: monitoring/prometheus, scopes: [metrics]}}
"""


def token(subject: str, *, audience: str = AUDIENCE, until_s: float = 4e9) -> str:
    """Text in the form of a service account's token. Who it is of is only known to the `FakeReviewer`."""
    parts = ({"alg": "RS256"}, {"aud": [audience], "exp": until_s, "sub": subject})
    texts = [base64.urlsafe_b64encode(json.dumps(part).encode()).decode().rstrip("=") for part in parts]
    return ".".join((*texts, "c2lnbmF0dXJl"))


@dataclass
class FakeReviewer:
    """The API server's word on tokens."""

    known: dict[str, TokenIdentity] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)
    is_down: bool = False

    async def review(self, token: str) -> TokenIdentity | None:
        self.asked.append(token)
        if self.is_down:
            raise ReviewError("no answer within 5 s")
        return self.known.get(token)


@dataclass(slots=True)
class ProtectedScheduler:
    """A scheduler with VM `d/a` on node n1 and `d/b` on n2, each of 1 to 4 units, as callers see it."""

    program: Program
    access: Access
    port: int
    authority: Authority
    servers: Authority
    directory: Path
    reviewer: FakeReviewer
    lines: list[dict[str, Any]]

    def credentials(self, name: str, authority: Authority | None = None, **validity: Any) -> TlsFiles:
        """Files of a client with a certificate of this name."""
        files = (authority or self.authority).issue(self.directory / f"client-{name}", name, **validity)
        return TlsFiles(files.certificate, files.key, self.servers.ca)

    @property
    def nobody(self) -> TlsFiles:
        return TlsFiles(ca=self.servers.ca)

    def state(self) -> str:
        """All that the core knows, but for the time, and that the cluster was read again."""
        snapshot = json.loads(journal.snapshot_line(snapshots.snapshot_of(self.program._serving.core)))
        for name in ("now_s", "serving_since_s"):
            snapshot["snapshot"].pop(name, None)
        return json.dumps(snapshot)

    def refused(self) -> dict[tuple[str, str], int]:
        """The refusals that were counted, by right and reason."""
        return dict(self.access.refusals.counts)

    async def call(
        self,
        files: TlsFiles,
        method: str,
        path: str,
        body: bytes | None = None,
        headers: Mapping[str, str] = {},
    ) -> tuple[int, Any]:
        """Status and content of an answer; status 0 with the failure if there was none."""
        async with HttpClient(tls=loaded(files), max_answer_bytes=1 << 20) as client:
            url = f"https://127.0.0.1:{self.port}{path}"
            found = await client.call(method, url, body=body, headers=headers, deadline_s=20)
        if not isinstance(found, Answered):
            return 0, found.kind
        try:
            return found.status, json.loads(found.body)
        except ValueError:
            return found.status, found.body

    async def permit(
        self,
        files: TlsFiles,
        name: str = "a",
        cpus: int = 2,
        *,
        bearer: str | None = None,
        number: int = 1,
        **changes: Any,
    ) -> tuple[int, str]:
        """Ask for a permit: its status, and the CPUs or the code of the refusal."""
        headers = {AGENT_HEADER: "00000000-0000-0000-0000-000000000001"}
        if bearer is not None:
            headers["Authorization"] = f"Bearer {bearer}"
        instance = str(self.program._serving.core.config.instance)
        body = ask(name, cpus, number, schedulerInstance=instance, **changes)
        status, content = await self.call(files, "POST", "/", body, headers)
        if not isinstance(content, dict):
            return status, str(content)
        return status, content["raw"]["permit"]["cpu"] if status == 200 else content["code"]


def cluster(path: Path) -> Path:
    vms = [
        {
            "namespace": "d",
            "name": name,
            "uid": f"uid-{name}",
            "node": node,
            "min": amount(1),
            "max": amount(4),
        }
        for name, node in (("a", "n1"), ("b", "n2"))
    ]
    nodes = [{"name": name, "allocatable": amount(8), "computeUnit": amount(1)} for name in ("n1", "n2")]
    return write_json(path, {"nodes": nodes, "vms": vms})


@asynccontextmanager
async def protected(directory: Path, text: str = FILE) -> AsyncIterator[ProtectedScheduler]:
    """A scheduler that runs until the end of the block."""
    log, lines = recorded()
    servers, authority = Authority(directory, "servers"), Authority(directory, "clients")
    issued = servers.issue(directory / "server")
    access = access_by(directory / "access.yaml", text.format(issued, authority.ca), log, on_kubernetes=True)
    reviewer = FakeReviewer()
    access.review_by(lambda _: reviewer)
    port, stop = free_port(), lifecycle.Stop()
    program = Program(
        {
            "published_agents": access.published_nodes(),
            "trust_published": False,
            "handover_s": 60.0,
            "rest_s": 60.0,
            "first_start": True,
            "journal": None,
            "state": None,
            "cluster": cluster(directory / "cluster.yaml"),
            "config": None,
            "host": "127.0.0.1",
            "port": port,
            "page_routes": (),
        },
        access,
    )
    running = asyncio.create_task(program.run(stop))
    try:
        await until(program._serving.supervisor.names, beside=running)
        yield ProtectedScheduler(program, access, port, authority, servers, directory, reviewer, lines)
    finally:
        stop.request()
        assert await running == 0
