"""The programs of Parley's deployed pods, run beside hollow nodes, which run no containers.

The surroundings of a container are taken from its pod: the command line, the environment, the files of ConfigMaps and Secrets, a token
of the service account that is bound to the pod, and the pod's address to listen on. So the kubelet's probes, the Service and RBAC meet
the real programs. Four things differ from a node. Paths of volumes lie in a directory of the test. The programs run as the user of the
test. The pod has no network of its own, so the address of the pod stands for all of its addresses. A pod is gone, and its token void,
as soon as its end is asked for, because the kubelet waits for no program.
"""

import base64
import os
import shutil
import subprocess
import sys
import threading
import urllib.error
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from hosting.kubernetes.resources import Manifest
from labs.clusters.control_plane import ControlPlane
from labs.clusters.programs import ClusterError
from tests.support.kube.objects import Objects
from tests.support.short_paths import short_directory
from tests.tidy.repository import ROOT

MODULES: Final = {"parley-agent": "agent", "parley-scheduler": "scheduler", "parley-informant": "informant"}
SECRETS: Final = "/var/run/secrets/kubernetes.io/serviceaccount"
LOOPBACK: Final = "127.0.0.1"
LOOK_S: Final = 0.2
_ENTER: Final = (
    "mount -t tmpfs tmpfs /run && mkdir -p /run/secrets/kubernetes.io"
    ' && ln -s "$1" /run/secrets/kubernetes.io/serviceaccount && shift && exec "$@"'
)
"""In a mount namespace of its own, the program finds its token in the same place as in every container."""


class DeployedContainers:
    """Starts the containers of `parley-system` as processes, and ends them with their pods. `cgroups` is what the host shows as
    its tree of cgroups, `short` a directory with a short path."""

    def __init__(
        self, plane: ControlPlane, system: Objects, directory: Path, short: Path, cgroups: Path
    ) -> None:
        self._plane = plane
        self._short = short
        self._system = system
        self._directory = directory
        self._cgroups = cgroups
        self._running: dict[tuple[str, str], subprocess.Popen[bytes]] = {}
        self._ended: list[subprocess.Popen[bytes]] = []
        self._is_over = threading.Event()

    def follow(self) -> None:
        """Start and end what is due, until `stop`."""
        while not self._is_over.wait(LOOK_S):
            with suppress(OSError, ClusterError):  # what went meanwhile is not there the next time
                self._look()

    def _look(self) -> None:
        found = {each["metadata"]["uid"]: each for each in self._system.list("pods")}
        for key in [key for key in self._running if key[0] not in found or _is_going(found[key[0]])]:
            self._ended.append(self._running.pop(key))
            self._ended[-1].terminate()
        for pod in found.values():
            if not pod["status"].get("podIP") or _is_going(pod):
                continue
            for container in pod["spec"]["containers"]:
                key = (pod["metadata"]["uid"], container["name"])
                if key not in self._running:
                    self._running[key] = self._start(pod, container)
            for volume in pod["spec"].get("volumes", ()):
                if "secret" in volume:
                    self._write_secret(pod, volume)

    def stop(self) -> None:
        """Let `follow` return."""
        self._is_over.set()

    def end(self) -> None:
        """End everything, once `follow` has returned."""
        for process in (*self._running.values(), *self._ended):
            process.kill()
            process.wait()

    def log(self) -> str:
        return "\n".join(file.read_text(errors="replace") for file in sorted(self._directory.glob("*.log")))

    # ------------------------------------------------------------ one container

    def _start(self, pod: Manifest, container: Manifest) -> subprocess.Popen[bytes]:
        name = f"{pod['metadata']['name']}.{container['name']}"
        environment = _environment(pod, container)
        mounts = {each["mountPath"]: self._volume(pod, each) for each in container.get("volumeMounts", ())}
        self._write_config_maps(pod, container, mounts)
        module = MODULES[container["command"][0]]
        arguments = [_argument(each, pod, environment, mounts) for each in container.get("args", ())]
        command = [sys.executable, "-m", module, *arguments]
        if SECRETS in mounts:
            command = ["unshare", "--mount", "sh", "-ec", _ENTER, "enter", str(mounts[SECRETS]), *command]
        server = urlsplit(self._plane.url)
        own = {
            "KUBERNETES_SERVICE_HOST": str(server.hostname),
            "KUBERNETES_SERVICE_PORT": str(server.port),
            "PYTHONPATH": str(ROOT),
            "PATH": os.environ["PATH"],
        }
        with (self._directory / f"{name}.log").open("ab") as output:
            return subprocess.Popen(
                command,
                env={**own, **environment},
                cwd=self._directory,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
            )

    def _volume(self, pod: Manifest, mount: Mapping[str, Any]) -> Path:
        path = self._directory / str(pod["metadata"]["name"]) / str(mount["name"])
        if mount["mountPath"] == SECRETS:
            return self._secrets(pod, path)
        (volume,) = (each for each in pod["spec"]["volumes"] if each["name"] == mount["name"])
        if volume.get("hostPath", {}).get("path") == "/sys/fs/cgroup":
            return Path(self._cgroups)
        if "emptyDir" in volume:  # with room for the paths of sockets
            path = self._short / f"{pod['metadata']['uid'][:8]}-{mount['name']}"
        if "hostPath" in volume:  # it outlives the pod
            path = self._directory / str(pod["spec"]["nodeName"]) / str(mount["name"])
        path.mkdir(parents=True, exist_ok=True)
        if "secret" in volume:
            self._write_secret(pod, volume)
        for source in volume.get("projected", {}).get("sources", ()):
            asked = source["serviceAccountToken"]
            (path / asked["path"]).write_text(self._token(pod, f"--audience={asked['audience']}"))
        return path

    def _write_config_maps(self, pod: Manifest, container: Manifest, mounts: Mapping[str, Path]) -> None:
        """The files of ConfigMaps, which name addresses and paths as they are in the container."""
        volumes = {each["name"]: each for each in pod["spec"]["volumes"]} if mounts else {}
        for mount in container.get("volumeMounts", ()):
            named = volumes[mount["name"]].get("configMap")
            data = self._system.get("configmaps", named["name"])["data"] if named else {}
            for name, text in data.items():
                told = _here(text.replace(LOOPBACK, pod["status"]["podIP"]), mounts)
                (mounts[mount["mountPath"]] / name).write_text(told)

    def _write_secret(self, pod: Manifest, volume: Mapping[str, Any]) -> None:
        """The files of a Secret, as they are now; none if the pod does without it. A kubelet takes up to a minute for that."""
        path = self._directory / str(pod["metadata"]["name"]) / str(volume["name"])
        path.mkdir(parents=True, exist_ok=True)
        try:
            data = self._system.get("secrets", volume["secret"]["secretName"])["data"]
        except urllib.error.HTTPError as error:
            if error.code != 404 or not volume["secret"].get("optional"):
                raise
            data = {}
        for file in path.iterdir():
            if file.name not in data:
                file.unlink()
        for name, text in data.items():
            content = base64.b64decode(text)
            if not (path / name).is_file() or (path / name).read_bytes() != content:
                (path / f".{name}").write_bytes(content)
                (path / f".{name}").replace(path / name)

    def _secrets(self, pod: Manifest, path: Path) -> Path:
        """The files that the kubelet puts into a pod with a service account."""
        path.mkdir(parents=True, exist_ok=True)
        (path / "token").write_text(self._token(pod))
        (path / "namespace").write_text(pod["metadata"]["namespace"])
        shutil.copyfile(self._plane.authority, path / "ca.crt")
        return path

    def _token(self, pod: Manifest, *options: str) -> str:
        """A token of the pod's service account that is bound to the pod."""
        metadata = pod["metadata"]
        bound = (
            "--bound-object-kind=Pod",
            f"--bound-object-name={metadata['name']}",
            f"--bound-object-uid={metadata['uid']}",
        )
        account, namespace = pod["spec"]["serviceAccountName"], metadata["namespace"]
        return self._plane.kubectl(
            "create", "token", account, f"--namespace={namespace}", *bound, *options
        ).strip()


def _is_going(pod: Manifest) -> bool:
    return "deletionTimestamp" in pod["metadata"]


def _environment(pod: Manifest, container: Manifest) -> dict[str, str]:
    """The container's `env`, with fields of the pod by their path."""
    found = {}
    for each in container.get("env", ()):
        value: Any = pod
        for part in each["valueFrom"]["fieldRef"]["fieldPath"].split("."):
            value = value[part]
        found[each["name"]] = str(value)
    return found


def _argument(text: str, pod: Manifest, environment: Mapping[str, str], mounts: Mapping[str, Path]) -> str:
    for name, value in environment.items():
        text = text.replace(f"$({name})", value)
    return _here(text.replace("0.0.0.0", pod["status"]["podIP"]), mounts)


def _here(text: str, mounts: Mapping[str, Path]) -> str:
    for there in sorted(mounts, key=len, reverse=True):  # one may be the beginning of another
        text = text.replace(there, str(mounts[there]))
    return text


@contextmanager
def deployed_containers(
    plane: ControlPlane, system: Objects, directory: Path, cgroups: Path
) -> Iterator[DeployedContainers]:
    """The programs of the deployed pods, for the length of a `with` block."""
    with short_directory() as short:
        found = DeployedContainers(plane, system, directory, short, cgroups)
        thread = threading.Thread(target=found.follow, name="containers", daemon=True)
        thread.start()
        try:
            yield found
        finally:
            found.stop()
            thread.join()
            found.end()
