"""A load that is set from outside: the workload `load` does what a file on this machine says."""

from pathlib import Path
from typing import Any, Final

from labs.clusters.node.images import LOAD

INSIDE: Final = "/load"


class LoadFile:
    """The work of the containers that read this folder's file. At first they do nothing."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._said = (-1, -1)
        folder.mkdir(parents=True, exist_ok=True)
        self.set()

    def set(self, cpu_milli: int = 0, memory_mib: int = 0) -> None:
        """Use so much CPU and memory from now on, as far as a container's limits let it."""
        if self._said != (cpu_milli, memory_mib):
            written = self._folder / ".next"
            written.write_text(f"{cpu_milli} {memory_mib}\n")
            written.replace(self._folder / "load")
            self._said = (cpu_milli, memory_mib)

    def given_to(self, pod: dict[str, Any]) -> dict[str, Any]:
        """Make the only container of a pod's manifest do what the file says."""
        (container,) = pod["spec"]["containers"]
        container |= {"image": LOAD, "imagePullPolicy": "Never", "args": [f"{INSIDE}/load"]}
        container["volumeMounts"] = [{"name": "load", "mountPath": INSIDE}]
        pod["spec"]["volumes"] = [{"name": "load", "hostPath": {"path": str(self._folder)}}]
        return pod
