"""Parley's programs and a NeonVM: the VM grows, is moved to another node by the scheduler, and its new agent shrinks it there."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from hosting.kubernetes.api import ApiCredentials, KubernetesApi
from hosting.kubernetes.names import NEON_ENABLED
from hosting.kubernetes.resources import MIGRATIONS, PODS, VIRTUAL_MACHINES, Manifest
from hosting.kubernetes.virtual_machines import ALWAYS_MIGRATE
from labs.clusters.control_plane import ControlPlane
from labs.clusters.hollow_nodes import NodeSize
from tests.support.kube.fixtures import MakeHollowNodes
from tests.support.kube.neonvm import NeonVm, install, machine
from tests.support.kube.objects import Objects
from tests.support.kube.parley import ParleyPrograms, parley_programs
from tests.support.waiting import shown, until

INFORMANT = 10301


@pytest.fixture
def parley(control_plane: ControlPlane, tmp_path: Path) -> Iterator[ParleyPrograms]:
    install(control_plane)
    with parley_programs(control_plane, tmp_path) as found:
        yield found


@asynccontextmanager
async def _playing(neonvm: NeonVm) -> AsyncIterator[None]:
    task = asyncio.create_task(neonvm.run(), name="NeonVM")
    try:
        yield
    finally:
        neonvm.is_over = True
        await task


async def test_a_vm_grows_moves_and_shrinks_where_it_went(
    parley: ParleyPrograms, hollow_nodes: MakeHollowNodes, objects: Objects, tmp_path: Path
) -> None:
    first, second = hollow_nodes(2, NodeSize("4", "8Gi")).names
    config = tmp_path / "config.yaml"
    config.write_text("migration: {enabled: true}\n")
    credentials = ApiCredentials(objects.plane.kubeconfig)
    async with KubernetesApi(credentials, user_agent="test") as api:
        neonvm = NeonVm(api, objects.namespace, (first, second))

        async def vm() -> Manifest:
            return await api.get(VIRTUAL_MACHINES, objects.namespace, "vm-a")

        async def in_pod(node: str) -> Manifest | None:
            status = (await vm()).get("status") or {}
            if status.get("node") != node:
                return None
            found = await api.get(PODS, objects.namespace, status["podName"])
            return found if found["status"].get("podIP") else None

        async def has(cpus: int) -> bool:
            found = await vm()
            return bool(found["spec"]["guest"]["cpus"]["use"] == found["status"]["cpus"] == cpus)

        async def rows(node: str) -> list[dict[str, Any]]:
            shown_of_node = parley.page("scheduler", f"/v1/nodes/{node}")
            return [row for row in shown_of_node["rows"] if "vm-a" in row["name"]]

        async def label(value: str | None) -> None:
            change = {"metadata": {"labels": {ALWAYS_MIGRATE: value}}}
            await api.patch(VIRTUAL_MACHINES, objects.namespace, "vm-a", change)

        async with _playing(neonvm):
            bounds = {"min": 1, "max": 3}
            body = machine("vm-a", {**bounds, "use": 1}, {**bounds, "use": 1}, labels={NEON_ENABLED: "true"})
            await api.create(VIRTUAL_MACHINES, objects.namespace, body)
            here = await shown("the VM runs", lambda: in_pod(first))
            parley.load(here, INFORMANT, cpus=3)
            scheduler = parley.scheduler(
                "scheduler", "--first-start", "--lease-duration", "3", "--config", str(config)
            )
            for node in (first, second):
                parley.agent(node, [scheduler])
            await shown("the VM has grown", lambda: has(3))

            await label("true")
            await until(lambda: not neonvm.moves.is_set())
            (row,) = await shown("the VM is leaving", lambda: rows(first))
            assert row["kind"] == "vm"

            async def is_kept() -> bool:
                kept = await rows(second)
                return [(each["kind"], each["reserved"]["cpu"]) for each in kept] == [("pod", "3")]

            await shown("its room on the other node is kept", is_kept)
            await label(None)
            neonvm.moves.set()
            there = await shown("the VM on the other node", lambda: in_pod(second))
            parley.load(there, INFORMANT, cpus=0.1)
            await shown("the VM has shrunk", lambda: has(1))

            async def is_tidy() -> bool:
                left = (await api.list(MIGRATIONS, objects.namespace))["items"]
                return not left and not await rows(first)

            await shown("nothing is left of the move", is_tidy)
            name = there["metadata"]["name"]
            assert set(parley.vms(second)) == {f"{objects.namespace}/{name}"}
            assert parley.vms(first) == {}
