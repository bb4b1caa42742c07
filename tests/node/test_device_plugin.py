"""Device plugins with the real kubelet: one written with our SDK, whose devices pods can ask for, and the agent's, which gives the devices
that a scheduler has told the pod of.

Since containerd 1.7 a runtime looks up the devices in the files that the plugin writes. That of this node may be older, so the files are looked at.
"""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from hosting.kubernetes.devices import ALLOCATED, CORE, DeviceGrant, DeviceType, written_grants
from labs.clusters.node.images import BUSYBOX
from labs.clusters.node.real_node import RealNode
from tests.support.kube.objects import Objects, pod
from tests.support.processes import Program, running
from tests.support.waiting import shown_blocking

RESOURCE = "test.parley.dev/dongle"


@contextmanager
def device_plugin(node: RealNode, count: int, output: Path) -> Iterator[Program]:
    """The plugin, at a socket in the kubelet's own registry."""
    socket = node.plugins_registry / "dongle.sock"
    with running("tests.node.device_plugin", str(socket), RESOURCE, str(count), output=output) as program:
        shown_blocking("the registration", lambda: "registered" in program.text().splitlines())
        yield program


def test_devices_of_an_sdk_plugin_show_in_the_nodes_status_until_the_plugin_ends(
    objects: Objects, real_node: RealNode, tmp_path: Path
) -> None:
    def offered() -> tuple[str | None, str | None]:
        status = json.loads(objects.plane.call("GET", f"/api/v1/nodes/{real_node.name}"))["status"]
        return status["capacity"].get(RESOURCE), status["allocatable"].get(RESOURCE)

    with device_plugin(real_node, 3, tmp_path / "output") as program:
        shown_blocking("the devices", lambda: offered() == ("3", "3"))
        asks = pod(
            "p",
            node=real_node.name,
            requests={"cpu": "50m", "memory": "32Mi", RESOURCE: "1"},
            image=BUSYBOX,
            command=("/bin/sh", "-c", 'test -n "$DEVICE"'),
        )
        asks["spec"]["restartPolicy"] = "Never"
        objects.apply(asks)
        objects.shown("the pod's end", lambda: objects.get("pods", "p")["status"]["phase"] == "Succeeded")
        assert program.end() == 0
        shown_blocking("the end of the devices", lambda: offered()[1] == "0")
    assert not (real_node.plugins_registry / "dongle.sock").exists()


def test_the_kubelets_pods_get_the_devices_that_they_were_told_of(
    objects: Objects, real_node: RealNode, tmp_path: Path
) -> None:
    """Two pods that are alike for the kubelet."""
    inventory, cdi = tmp_path / "devices.yaml", tmp_path / "cdi"
    lines = [f"  - {{type: gpu, minor: {minor}, resources: {{{CORE}: 100}}}}" for minor in (0, 1)]
    inventory.write_text("\n".join(("devices:", *lines)))
    kubelet = real_node.directory / "kubelet"
    options = {
        "inventory": inventory,
        "resource": CORE,
        "registry": real_node.plugins_registry,
        "pod-resources": kubelet / "pod-resources" / "kubelet.sock",
        "cdi": cdi,
        "kubeconfig": objects.plane.kubeconfig,
    }
    given = [f"--{name}={value}" for name, value in options.items()]

    def offered() -> bool:
        found = json.loads(objects.plane.call("GET", f"/api/v1/nodes/{real_node.name}"))
        return bool(found["status"]["allocatable"].get(CORE) == "200")

    def is_running(name: str) -> bool:
        return bool(objects.get("pods", name)["status"]["phase"] == "Running")

    def written() -> list[str]:
        specs = [json.loads(file.read_text()) for file in cdi.glob("*.json")]
        return sorted(spec["devices"][0]["containerEdits"]["env"][0] for spec in specs)

    with running("agent", "device-plugin", *given, output=tmp_path / "output") as program:
        shown_blocking("the devices", offered)
        for name, minor in (("p1", 1), ("p0", 0), ("untold", None)):
            asks = pod(
                name,
                node=real_node.name,
                requests={"cpu": "50m", "memory": "32Mi", CORE: "50"},
                image=BUSYBOX,
                command=("/bin/sh", "-c", "sleep 1000"),
            )
            if minor is not None:
                grants = (DeviceGrant(DeviceType.GPU, minor, {CORE: 50}),)
                asks["metadata"].setdefault("annotations", {})[ALLOCATED] = written_grants(grants)
            objects.apply(asks)
        for name in ("p1", "p0"):
            objects.shown(f"{name} runs", partial(is_running, name))
        assert written() == ["PARLEY_GPU_MINORS=0", "PARLEY_GPU_MINORS=1"]
        shown_blocking("the refusal", lambda: "untold: the pod was given no gpu" in program.text())
        assert objects.get("pods", "untold")["status"]["phase"] == "Pending"
        assert program.end() == 0
