"""`Coscheduling` and `DeviceShare` with a real API server: two gangs of 20 that do not fit together, and shares of described devices."""

import asyncio
import json
import random
import signal
import time
from collections import Counter
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any, Final

import pytest

from agent.node.qos.device_writer import DeviceInventoryWriter
from hosting import logs
from hosting.kubernetes import names
from hosting.kubernetes import objects as fields
from hosting.kubernetes.api import ApiCredentials, KubernetesApi
from hosting.kubernetes.devices import ALLOCATED, CORE, MEMORY, RATIO
from hosting.kubernetes.koordinator import DEVICES, POD_GROUPS
from hosting.kubernetes.resources import Manifest
from labs.clusters.control_plane import ControlPlane
from labs.clusters.programs import Programs
from scheduler.placing.plugins.coscheduling.core import GANG, POD_GROUP
from tests.support.kube.growing import GrowingCrowd, GrowingPod, RoomWatch
from tests.support.kube.objects import pod
from tests.support.kube.placing import PlacingScene, started_kubeless_plane
from tests.support.waiting import shown_blocking
from tests.tidy.repository import ROOT

TYPES: Final = ROOT / "deploy/koordinator"
CONFIG: Final = """
scheduling:
  profiles:
    - plugins: {multiPoint: {enabled: [{name: Coscheduling}, {name: DeviceShare}]}}
      pluginConfig:
        - name: Coscheduling
          args: {apiVersion: kubescheduler.config.k8s.io/v1, kind: CoschedulingArgs, defaultTimeout: 60s}
        - name: NodeResources
          args: {ignoredResourceGroups: [koordinator.sh]}
"""
MEMBERS: Final = 20
INVENTORY: Final = f"""
devices:
  - {{type: gpu, minor: 0, resources: {{{CORE}: 100, {RATIO}: 100, {MEMORY}: 16Gi}}}}
  - {{type: gpu, minor: 1, resources: {{{CORE}: 100, {RATIO}: 100, {MEMORY}: 16Gi}}}}
"""


@pytest.fixture(scope="module")
def control_plane(programs: Programs, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    with started_kubeless_plane(programs, tmp_path_factory.mktemp("kubeless")) as plane:
        for name in ("podgroups", "devices"):
            plane.kubectl("apply", "--server-side", f"--filename={TYPES}/{name}.yaml")
        for type_ in (POD_GROUPS, DEVICES):
            shown_blocking(f"{type_.kind} is served", partial(plane.call, "GET", type_.path()))
        yield plane


def start(scene: PlacingScene, directory: Path) -> None:
    config = directory / "scheduler.yaml"
    config.write_text(CONFIG)
    scene.start_parley("--mode", "full", "--config", str(config))


def ours(name: str, labels: dict[str, str] | None = None, ratio: str = "") -> Manifest:
    """A pod that names Parley's scheduler, with a share of a GPU or without."""
    share = {RATIO: ratio} if ratio else {}
    manifest = pod(name, requests={"cpu": "1", "memory": "64Mi", **share}, labels=labels)
    manifest["spec"] |= {"schedulerName": "parley-scheduler", "terminationGracePeriodSeconds": 0}
    return manifest


def group(name: str, minimum: int) -> Manifest:
    return {
        "apiVersion": POD_GROUPS.api_version,
        "kind": POD_GROUPS.kind,
        "metadata": {"name": name},
        "spec": {"minMember": minimum},
    }


def test_of_two_gangs_one_is_placed_and_then_the_other(scene: PlacingScene, tmp_path: Path) -> None:
    scene.add_nodes(10, 2000)
    start(scene, tmp_path)
    scene.objects.apply(group("a", MEMBERS), group("b", MEMBERS))
    scene.create(*(ours(f"{gang}{number}", {POD_GROUP: gang}) for number in range(MEMBERS) for gang in "ab"))

    def placed() -> Counter[str]:
        return Counter(
            fields.name(each)[0] for each in scene.objects.list("pods") if each["spec"].get("nodeName")
        )

    shown_blocking("one of the gangs has its nodes", lambda: MEMBERS in placed().values())
    (first,) = placed()
    second = "b" if first == "a" else "a"
    shown_blocking("the other one is told why", lambda: len(scene.refusals()) == MEMBERS)
    assert any("Insufficient cpu" in text for text in scene.refusals().values())
    assert placed() == {first: MEMBERS}

    def phase(name: str) -> str:
        path = POD_GROUPS.path(scene.objects.namespace, name)
        found: dict[str, Any] = json.loads(scene.plane.call("GET", path))
        return str(found.get("status", {}).get("phase", ""))

    shown_blocking("the first is scheduled", lambda: phase(first) == "Scheduled")
    shown_blocking("the second is not", lambda: phase(second) == "PreScheduling")
    for number in range(MEMBERS):
        scene.objects.delete("pods", f"{first}{number}")
    shown_blocking("the second has its nodes", lambda: placed() == {second: MEMBERS})
    scene.await_right_ledger()


def growing(name: str, node: str) -> Manifest:
    """A pod on a node that an agent scales."""
    requests = {"cpu": "100m", "memory": "64Mi"}
    return pod(name, node=node, requests=requests, labels={names.ENABLED: "true"})


def test_room_of_members_that_wait_stays_theirs_while_others_grow(
    scene: PlacingScene, tmp_path: Path
) -> None:
    """Two of three have room and wait; the third is larger than the node, until it is made anew."""
    (node,) = scene.add_nodes(1, 4000)
    room = RoomWatch(scene.plane, scene.objects.namespace, 4000)
    start(scene, tmp_path)
    vms = scene.create(*(growing(f"vm-{number}", node) for number in range(3)))
    lax = group("a", 3)
    lax["metadata"]["annotations"] = {f"{GANG}mode": "NonStrict"}
    lax["spec"]["scheduleTimeoutSeconds"] = 600
    scene.objects.apply(lax)
    members = scene.create(*(ours(f"a{number}", {POD_GROUP: "a"}) for number in range(2)))
    uids = [fields.uid(each) for each in members]
    large = ours("a2", {POD_GROUP: "a"})
    large["spec"]["containers"][0]["resources"] = {"requests": {"cpu": "5", "memory": "64Mi"}}
    scene.create(large)

    def kept() -> list[int]:
        rows = scene.rows(node)
        return [rows.get(uid, 0) for uid in uids]

    shown_blocking("two wait", lambda: kept() == [1000, 1000])
    with GrowingCrowd(4000, 4) as crowd:
        for each in vms:
            crowd.adopt(GrowingPod(scene.objects, each, room, [scene.port]))
        shown_blocking("VMs go on growing", lambda: crowd.changes > 30)
        assert kept() == [1000, 1000]
    assert (crowd.failures, room.faults) == ([], [])
    assert not any(scene.node_of(f"a{number}") for number in range(3))
    scene.objects.delete("pods", "a2")
    small = ours("a2", {POD_GROUP: "a"})
    small["spec"]["containers"][0]["resources"] = {"requests": {"cpu": "0", "memory": "1Mi"}}
    scene.create(small)
    for number in range(3):
        assert scene.placed(f"a{number}") == node
    assert scene.audit() == []


async def tell(plane: ControlPlane, name: str, file: Path) -> None:
    """As the agent of that node does."""
    node = json.loads(plane.call("GET", f"/api/v1/nodes/{name}"))
    async with KubernetesApi(ApiCredentials(plane.kubeconfig, None), user_agent="test") as api:
        writer = DeviceInventoryWriter(
            api, lambda: node, file, logs.logger("test"), random.Random(0), time.monotonic
        )
        assert await writer.write()


def test_shares_of_devices_are_given_once_also_over_a_restart(scene: PlacingScene, tmp_path: Path) -> None:
    (name,) = scene.add_nodes(1, 16_000)
    start(scene, tmp_path)
    scene.create(ours("first", ratio="60"))
    assert "missing Device" in scene.refused("first", "missing Device")
    (tmp_path / "devices.yaml").write_text(INVENTORY)
    asyncio.run(tell(scene.plane, name, tmp_path / "devices.yaml"))
    assert scene.placed("first") == name, "it is tried again when the agent has told"

    def minor(pod_name: str) -> int:
        notes = fields.annotations(scene.objects.get("pods", pod_name))
        (given,) = json.loads(notes[ALLOCATED])["gpu"]
        return int(given["minor"])

    scene.create(ours("second", ratio="60"))
    scene.placed("second")
    assert {minor("first"), minor("second")} == {0, 1}
    scene.parley.running.pop("a").end(signal.SIGKILL)
    scene.parley.again("a")
    scene.await_parley()
    scene.create(ours("third", ratio="60"))
    assert "Insufficient gpu devices" in scene.refused("third", "Insufficient gpu devices")
    freed = minor("first")
    scene.objects.delete("pods", "first")
    assert scene.placed("third") == name
    assert minor("third") == freed
    scene.await_right_ledger()
