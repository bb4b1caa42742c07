"""A plugin written with our SDK registers with the real kubelet: as a device plugin, whose devices pods can ask for."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

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
