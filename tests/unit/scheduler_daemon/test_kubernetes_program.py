"""A scheduler on Kubernetes takes requests and reads its ConfigMap before it leads: against a fake API server, on a real
socket."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast

import pytest

from hosting import lifecycle
from hosting.addresses import Advertised
from hosting.backoff import Backoff
from hosting.client import Answered, HttpClient, Outcome
from hosting.kubernetes import names
from hosting.kubernetes.connection import ApiCall
from hosting.kubernetes.resources import CONFIG_MAPS, EVENTS, LEASES, NODES, PODS, VIRTUAL_MACHINES, Manifest
from scheduler.daemon import leader
from scheduler.daemon.leader import KubernetesProgram
from scheduler.daemon.term import KubernetesOptions
from tests.support.access import local_access
from tests.support.kube_api import FakeApiServer
from tests.support.kube_store import Selector
from tests.support.processes import free_port, post, write_json
from tests.support.waiting import until
from tests.unit.scheduler_daemon.test_serving import OPTIONS

RULES = ("ns", "rules")


def _options(**given: Any) -> KubernetesOptions:
    found = {
        **OPTIONS,
        "published_agents": ("*",),
        "listener": None,
        "host": "127.0.0.1",
        "port": free_port(),
        "advertised": Advertised("127.0.0.1"),
        "kubeconfig": None,
        "context": None,
        "lease": ("ns", "lease"),
        "lease_duration_s": 15.0,
        "config": None,
        "config_map": None,
        "scheduler_name": None,
        "pod": None,
        "page_routes": (),
        "mode": "permits",
        **given,
    }
    return cast("KubernetesOptions", found)


@asynccontextmanager
async def _running(server: FakeApiServer, options: KubernetesOptions) -> AsyncIterator[None]:
    stop = lifecycle.Stop()
    async with server.api() as api:
        running = asyncio.create_task(KubernetesProgram(options, api, local_access()).run(stop))
        try:
            yield
        finally:
            stop.request()
            assert await running == 0


def _machine(server: FakeApiServer) -> None:
    server.put(NODES, {"metadata": {"name": "n"}, "status": {"allocatable": {"cpu": "8", "memory": "8Gi"}}})
    resources = {"requests": {"cpu": "100m", "memory": "64Mi"}}
    pod = {"namespace": "d", "name": "a", "labels": {names.NEON_VM_NAME: "vm"}}
    spec = {"nodeName": "n", "containers": [{"name": "main", "resources": resources}]}
    server.put(PODS, {"metadata": pod, "spec": spec, "status": {"phase": "Running"}})
    amounts = {"min": 1, "max": 4, "use": 2}
    guest = {"cpus": amounts, "memorySlots": amounts, "memorySlotSize": "1Gi"}
    status = {"phase": "Running", "podName": "a", "node": "n", "cpus": 2, "memorySize": "2Gi"}
    labels = {names.NEON_ENABLED: "true"}
    metadata = {"namespace": "d", "name": "vm", "labels": labels}
    server.put(VIRTUAL_MACHINES, {"metadata": metadata, "spec": {"guest": guest}, "status": status})


FIRST: Manifest = {
    "protoVersion": 2,
    "pod": {"namespace": "d", "name": "a"},
    "resources": {"vCPUs": 2, "mem": 2},
    "metrics": None,
}


async def test_a_first_request_that_comes_before_the_lease_is_free_is_answered_once_this_process_leads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its caller knows the address already, as that of a pod that was ready under the last leader."""
    # A busy machine may take longer than a published caller would wait.
    monkeypatch.setattr(leader, "AWAITED_S", 60.0)
    monkeypatch.setattr("hosting.server.SWEEP_S", 60.0)
    unit = {"nodeDefaults": {"computeUnit": {"cpu": 1, "memory": "1Gi"}}}
    server, options = FakeApiServer(), _options(config=write_json(tmp_path / "config.yaml", unit))
    _machine(server)
    released = {"holderIdentity": "", "leaseDurationSeconds": 1, "leaseTransitions": 7}
    server.put(LEASES, {"metadata": {"namespace": "ns", "name": "lease"}, "spec": released})

    def asks_for_the_lease(call: ApiCall) -> bool:
        return "/leases/" in call.path

    server.fail("slow", asks_for_the_lease, seconds=0.3)
    async with _running(server, options):
        await until(lambda: any(map(asks_for_the_lease, server.calls)))
        asked = asyncio.create_task(asyncio.to_thread(post, options["port"], json.dumps(FIRST).encode()))
        done, _ = await asyncio.wait([asked], timeout=0.1)
        assert not done, "nobody leads"
        status, body = await asked
    assert (status, json.loads(body)["permit"]) == (200, {"vCPUs": 2, "mem": 2})


async def test_agents_listen_while_this_process_leads_and_are_answered_at_once_when_it_ends() -> None:
    server, options = FakeApiServer(), _options()
    url = f"http://127.0.0.1:{options['port']}"
    async with HttpClient() as client:

        async def get(path: str) -> Outcome:
            return await client.call("GET", url + path, deadline_s=60.0)

        async def shows(figure: str) -> None:
            page: Outcome | None = None
            while not isinstance(page, Answered) or f"\n{figure}\n" not in page.body.decode():
                page = await get("/metrics")

        async with asyncio.timeout(60.0), _running(server, options):
            await shows("parley_scheduler_leading 1.0")
            poll = asyncio.create_task(get("/v1/notices?agent=n1"))
            await shows("parley_scheduler_notice_polls 1.0")
        answer = await poll
    assert isinstance(answer, Answered)
    assert (answer.status, json.loads(answer.body)["notices"]) == (200, [])


async def test_a_config_map_with_faults_is_told_of_at_the_start_once_for_each_text(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    server, options = FakeApiServer(), _options(config_map=RULES)
    monkeypatch.setattr(leader, "RETRY", Backoff(base_s=0.01, cap_s=0.01))

    def written(text: str) -> None:
        metadata = {"namespace": "ns", "name": "rules"}
        server.put(CONFIG_MAPS, {"metadata": metadata, "data": {"config.yaml": text}})

    def notes() -> list[tuple[str, str]]:
        return [
            (each["regarding"]["name"], each["note"]) for each in server.store.select(EVENTS, "", Selector())
        ]

    def tries() -> int:
        return sum("/configmaps" in call.path for call in server.calls)

    written("growth: {stop: flase}")
    async with _running(server, options):
        await until(notes)
        seen = tries()
        await until(lambda: tries() > seen + 5)
        ((name, text),) = notes()
        assert name == "rules"
        assert text.startswith("not taken up, this scheduler does not lead until that is mended: ")
        assert "growth.stop" in text
        written("growth: {stopp: true}")
        await until(lambda: len(notes()) == 2)
