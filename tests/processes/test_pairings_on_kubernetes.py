"""Published agents and our scheduler over the API server: who leads, and where a VM is, is known later than agents ask.

A published agent whose first request fails asks nothing more until the scheduler's pod comes anew (tests/peers/README.md).
"""

import asyncio
import json
import urllib.error
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest

from hosting.kubernetes import names, objects
from hosting.kubernetes.resources import LEASES, NODES, PODS, VIRTUAL_MACHINES, Manifest
from tests.peers.published_agent import VM, PublishedAgent
from tests.peers.published_informant import PublishedInformant
from tests.peers.published_watches import SchedulerPods, arrival
from tests.peers.resources import Resources
from tests.peers.support import running
from tests.processes.pairings import MOST, UNIT, knobs, quick, units
from tests.support.kube_api import FakeApiServer, serving
from tests.support.our_programs import Ours
from tests.support.processes import write_json
from tests.support.waiting import until

SYSTEM, NAMESPACE, POD = "parley-system", "d", "scheduler"
LABELS = {names.ROLE: names.LEADER, "name": "autoscale-scheduler"}
LEASE_S = 3


@pytest.fixture(autouse=True)
def in_its_pod(monkeypatch: pytest.MonkeyPatch) -> None:
    """The scheduler knows its pod by these."""
    monkeypatch.setenv("POD_NAMESPACE", SYSTEM)
    monkeypatch.setenv("POD_NAME", POD)


class PodHouse:
    """An API server with two nodes, a VM in the pod `a`, and the scheduler's pod, which a crash has left with its label; a kubelet that
    looks at `/readyz`; one published agent with its informant."""

    def __init__(self, directory: Path, load: float) -> None:
        self.server = FakeApiServer()
        for name in ("n1", "n2"):
            capacity = {"allocatable": {"cpu": "8", "memory": "8Gi"}}
            self.server.put(NODES, {"metadata": {"name": name}, "status": capacity})
        self._pod(SYSTEM, POD, "n2", LABELS)
        self.runner_pod("a", "n1")
        self._show(units(2), "a", "n1")
        dead = {"holderIdentity": "dead", "leaseDurationSeconds": LEASE_S, "leaseTransitions": 7}
        self.server.put(LEASES, {"metadata": {"namespace": SYSTEM, "name": "lease"}, "spec": dead})
        self.directory = directory
        self.watch = SchedulerPods()
        self.informant = PublishedInformant(knobs(load))
        vm = VM(UNIT, MOST, units(2), NAMESPACE, "a", on_patch=lambda use: self._show(use, *self.place))
        self.agent = PublishedAgent(vm, "", quick(metrics_period=0.1))
        self.place = ("a", "n1")

    def _pod(self, namespace: str, name: str, node: str, labels: dict[str, str]) -> None:
        resources = {"requests": {"cpu": "100m", "memory": "64Mi"}}
        spec = {"nodeName": node, "containers": [{"name": "main", "resources": resources}]}
        metadata = {"namespace": namespace, "name": name, "labels": labels}
        self.server.put(PODS, {"metadata": metadata, "spec": spec, "status": {"phase": "Running"}})

    def runner_pod(self, name: str, node: str) -> None:
        self._pod(NAMESPACE, name, node, {names.NEON_VM_NAME: "vm"})

    def _show(self, use: Resources, pod: str, node: str) -> None:
        cpus, slots = ({"min": 1, "max": 4, "use": amount} for amount in (use.cpu, use.mem))
        guest = {"cpus": cpus, "memorySlots": slots, "memorySlotSize": "1Gi"}
        size = {"cpus": use.cpu, "memorySize": f"{use.mem}Gi"}
        status = {"phase": "Running", "podName": pod, "node": node, **size}
        metadata = {"namespace": NAMESPACE, "name": "vm", "labels": {names.NEON_ENABLED: "true"}}
        self.server.put(VIRTUAL_MACHINES, {"metadata": metadata, "spec": {"guest": guest}, "status": status})

    def moves(self, pod: str, node: str) -> None:
        """The VM is in another pod now."""
        self.place = (pod, node)
        found = self.server.get(VIRTUAL_MACHINES, NAMESPACE, "vm")["spec"]["guest"]
        self._show(Resources(found["cpus"]["use"], found["memorySlots"]["use"]), pod, node)

    @asynccontextmanager
    async def lives(self) -> AsyncIterator["PodHouse"]:
        """Everybody at work. The agent begins when the scheduler's pod is ready for the first time."""
        async with serving(self.server) as url, running(self.informant):
            kubeconfig = {
                "clusters": [{"name": "c", "cluster": {"server": url}}],
                "users": [{"name": "u", "user": {}}],
                "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
                "current-context": "x",
            }
            where = write_json(self.directory / "kubeconfig", kubeconfig)
            unit = {"nodeDefaults": {"computeUnit": {"cpu": 1, "memory": "1Gi"}}}
            config = write_json(self.directory / "config.yaml", unit)
            lease = ("--lease", f"{SYSTEM}/lease", "--lease-duration", str(LEASE_S))
            served = ("--published-agents", "*", "--scheduler-name", LABELS["name"], "--config", str(config))
            scheduler = Ours(
                "scheduler", self.directory, "--kubernetes", "--kubeconfig", str(where), *lease, *served
            )
            self.agent.informant = self.informant.address
            kubelet = asyncio.create_task(self._kubelet(scheduler))
            try:
                async with running(self.agent), scheduler:
                    yield self
                    assert self.agent.panicked is None
            finally:
                kubelet.cancel()
                await asyncio.wait([kubelet])

    async def _kubelet(self, scheduler: Ours) -> None:
        """Shows whether the scheduler's pod is ready; every change of the pod is told to the agents."""

        def tell(pod: Manifest) -> None:
            ready = objects.condition(pod, "Ready") or {}
            is_labelled = LABELS.items() <= objects.labels(pod).items()
            self.watch.seen(
                POD, scheduler.address, is_labelled=is_labelled, is_ready=ready.get("status") == "True"
            )

        self.server.store.on_change.append(lambda _: tell(self.server.get(PODS, SYSTEM, POD)))
        await until(lambda: self.agent.server is not None)
        self.watch.begin(self.agent)
        while True:
            with suppress(OSError, urllib.error.URLError):
                await scheduler.page("/readyz")
                pod = json.loads(json.dumps(self.server.get(PODS, SYSTEM, POD)))
                pod["status"]["conditions"] = [{"type": "Ready", "status": "True"}]
                if objects.condition(self.server.get(PODS, SYSTEM, POD), "Ready") is None:
                    self.server.put(PODS, pod)
            await asyncio.sleep(0.02)

    def statuses(self, agent: PublishedAgent) -> list[int]:
        """How an agent's requests were answered; 0 where the connection was closed."""
        return [each.status or 0 for each in agent.journal.sent("POST /")]


async def test_a_runner_that_begins_before_a_restarted_scheduler_leads_is_served(tmp_path: Path) -> None:
    """Its pod is ready before the dead process's Lease has run out, and bears the label of its last life."""
    house = PodHouse(tmp_path, load=4.0)
    async with house.lives() as it:
        await until(lambda: it.agent.vm.use == MOST)
        assert set(it.statuses(it.agent)) == {200}
        assert not it.agent.journal.noted("asks no more")


async def test_the_runner_where_a_vm_arrives_is_served_before_and_after_the_switch(tmp_path: Path) -> None:
    """The pod is ready before `status.podName` names it: until then it gets what the VM has, and afterwards the VM grows there."""
    house = PodHouse(tmp_path, load=1.5)
    async with house.lives() as it:
        await until(lambda: len(it.statuses(it.agent)) > 2)
        it.runner_pod("b", "n2")
        there = arrival(it.agent, "b")
        async with running(there):
            it.watch.begin(there)
            await until(lambda: it.statuses(there))
            assert it.statuses(there) == [200]
            assert [note["permit"] for note in there.journal.noted("permit")] == [str(units(2))]
            it.moves("b", "n2")
            await it.agent.stop()
            it.server.delete(PODS, NAMESPACE, "a")
            it.informant.knobs.load = (4.0, 4.0)
            await until(lambda: there.vm.use == MOST)
            assert set(it.statuses(there)) == {200}
            assert there.panicked is None
