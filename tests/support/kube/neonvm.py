"""A stand-in for NeonVM's controllers in tests: runner pods, sizes that follow targets, migrations."""

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, Final

from hosting.kubernetes import objects
from hosting.kubernetes.api import KubernetesApi, KubernetesError
from hosting.kubernetes.names import NEON_VM_NAME
from hosting.kubernetes.resources import MIGRATIONS, PODS, VIRTUAL_MACHINES, Manifest, ResourceType
from labs.clusters.control_plane import ControlPlane
from tests.support.kube.objects import pod as pod_manifest
from tests.support.waiting import shown_blocking

CRDS: Final = Path(__file__).parents[2] / "kube" / "crds" / "vm.neon.tech.yaml"
PASS_S: Final = 0.02


def install(plane: ControlPlane) -> None:
    """Make NeonVM's types known, and wait until they are served."""
    plane.kubectl("apply", "--server-side", f"--filename={CRDS}")
    for type_ in (VIRTUAL_MACHINES, MIGRATIONS):
        shown_blocking(f"{type_.kind} is served", partial(plane.call, "GET", type_.path()))


def machine(name: str, cpus: dict[str, Any], slots: dict[str, int], **metadata: Any) -> Manifest:
    guest = {"cpus": cpus, "memorySlotSize": "1Gi", "memorySlots": slots}
    return {
        "apiVersion": VIRTUAL_MACHINES.api_version,
        "kind": VIRTUAL_MACHINES.kind,
        "metadata": {"name": name, **metadata},
        "spec": {"guest": guest},
    }


class NeonVm:
    """The controllers of one namespace. A VM starts on the first of `nodes`, and each migration moves it to the next one."""

    def __init__(self, api: KubernetesApi, namespace: str, nodes: Sequence[str]) -> None:
        self._api = api
        self._namespace = namespace
        self._nodes = nodes
        self._pods = 0
        self.moves = asyncio.Event()
        """Migrations go on only while this is set."""
        self.moves.set()
        self.is_over = False

    async def run(self) -> None:
        """Play until it is over. A step that fails, because others change objects or the server is away, is done in the next pass."""
        while not self.is_over:
            for type_, see_to in ((VIRTUAL_MACHINES, self._machine), (MIGRATIONS, self._migration)):
                with suppress(KubernetesError):
                    for found in (await self._api.list(type_, self._namespace))["items"]:
                        await see_to(found)
            await asyncio.sleep(PASS_S)

    async def _machine(self, found: Manifest) -> None:
        guest, status = found["spec"]["guest"], found.get("status") or {}
        size = {"cpus": guest["cpus"]["use"], "memorySize": f"{guest['memorySlots']['use']}Gi"}
        if "podName" not in status:
            runner = await self._runner(objects.name(found), self._nodes[0])
            await self._tell(
                VIRTUAL_MACHINES, found, phase="Running", podName=runner, node=self._nodes[0], **size
            )
        elif status["phase"] in {"Running", "Scaling"} and size.items() - status.items():
            is_scaling = status["phase"] == "Scaling"
            await self._tell(
                VIRTUAL_MACHINES,
                found,
                **({"phase": "Running", **size} if is_scaling else {"phase": "Scaling"}),
            )

    async def _migration(self, found: Manifest) -> None:
        status = found.get("status") or {}
        vm = await self._api.get(VIRTUAL_MACHINES, self._namespace, found["spec"]["vmName"])
        now = vm["status"]
        if not self.moves.is_set() or status.get("phase") in {"Succeeded", "Failed"}:
            return
        if "phase" not in status:
            node = self._nodes[self._nodes.index(now["node"]) + 1]
            target = await self._runner(objects.name(vm), node)
            await self._tell(VIRTUAL_MACHINES, vm, phase="Migrating")
            await self._tell(
                MIGRATIONS,
                found,
                phase="Running",
                sourcePodName=now["podName"],
                targetPodName=target,
                targetNode=node,
            )
            self.moves.clear()
            return
        await self._tell(
            VIRTUAL_MACHINES, vm, phase="Running", podName=status["targetPodName"], node=status["targetNode"]
        )
        await self._tell(MIGRATIONS, found, phase="Succeeded")
        body = {"gracePeriodSeconds": 0}
        await self._api.delete(PODS, self._namespace, status["sourcePodName"], body=body)

    async def _runner(self, vm: str, node: str) -> str:
        self._pods += 1
        name = f"{vm}-{self._pods}"
        requests = {"cpu": "100m", "memory": "64Mi"}
        body = pod_manifest(name, node=node, requests=requests, labels={NEON_VM_NAME: vm})
        await self._api.create(PODS, self._namespace, body)
        return name

    async def _tell(self, type_: ResourceType, found: Manifest, **status: object) -> None:
        await self._api.patch(
            type_, self._namespace, objects.name(found), {"status": status}, subresource="status"
        )
