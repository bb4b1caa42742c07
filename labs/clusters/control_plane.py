"""A control plane on loopback: etcd, kube-apiserver with TLS and RBAC, kube-controller-manager, kube-scheduler."""

import http.client
import json
import secrets
import signal
import ssl
import subprocess
import urllib.error
import urllib.request
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, Self

from labs.clusters.programs import ClusterError, ClusterProcess, Programs, await_answer

NODE_LIFECYCLE: Final = "node-lifecycle-controller"
CONTROLLERS: Final = (
    "serviceaccount-controller",
    "root-ca-certificate-publisher-controller",
    "clusterrole-aggregation-controller",
    "namespace-controller",
    "garbage-collector-controller",
    "deployment-controller",
    "replicaset-controller",
    "statefulset-controller",
    "daemonset-controller",
    "endpointslice-controller",
    "disruption-controller",
    "resourcequota-controller",
    NODE_LIFECYCLE,  # takes the taint "not ready" from nodes that are ready
)
NEEDED: Final = (
    "etcd",
    "openssl",
    "setpriv",
    "kube-apiserver",
    "kube-scheduler",
    "kube-controller-manager",
    "kubectl",
)
KUBECTL_S: Final = 30.0
CALL_S: Final = 10.0


class ControlPlane:
    """A control plane whose files are below `directory`. `free_port` gives ports of loopback that nobody else takes.

    `controllers` are those that run: without the node-lifecycle controller a node needs no kubelet to be, and to stay, ready.
    """

    def __init__(
        self,
        programs: Programs,
        directory: Path,
        free_port: Callable[[], int],
        controllers: Sequence[str] = CONTROLLERS,
    ) -> None:
        self._programs = programs
        self._controllers = controllers
        self.directory = directory
        self.logs = directory / "logs"
        self._etcd_port, self._port = free_port(), free_port()
        self._peer_port = free_port()
        self._token = secrets.token_urlsafe()
        self._processes: dict[str, ClusterProcess] = {}
        self.url = f"https://127.0.0.1:{self._port}"
        self.authority = directory / "pki" / "apiserver.crt"
        self.kubeconfig = directory / "admin.kubeconfig"

    # ------------------------------------------------------------ start and end

    def start(self) -> Self:
        """Start everything and wait until the API server is ready: 3 s. Raises `ClusterError`."""
        self._programs.check(NEEDED)
        self.logs.mkdir(parents=True)
        (self.directory / "pki").mkdir()
        self._write_secrets()
        self._run("etcd", *self._etcd())
        self.start_api_server()
        self.kubeconfig.write_text(json.dumps(self._kubeconfig()))
        self.start_scheduler()
        self.start_controllers()
        return self

    def stop(self) -> None:
        """End everything. The API server goes first: without etcd it would wait."""
        for name in reversed(list(self._processes)):
            self._processes.pop(name).end(signal.SIGKILL)

    def start_api_server(self) -> None:
        """Start the API server, also again after `kill_api_server`, and wait until it is ready."""
        process = self._run("kube-apiserver", *self._api_server())
        await_answer("the API server", self._is_ready, process, self._processes["etcd"])

    def kill_api_server(self) -> None:
        """kill -9. Its memory of past changes is gone with it; the objects are in etcd."""
        self._processes["kube-apiserver"].end(signal.SIGKILL)

    def pause_api_server(self) -> None:
        """Stop the API server with SIGSTOP: connections stay open, and nobody answers."""
        self._processes["kube-apiserver"].send(signal.SIGSTOP)

    def resume_api_server(self) -> None:
        self._processes["kube-apiserver"].send(signal.SIGCONT)

    def start_scheduler(self, *options: str, calls_per_second: int = 200, **settings: Any) -> None:
        """Start kube-scheduler, also again after `stop_scheduler`; it makes no more calls to the API server than that.

        `options` go to its command line; `settings` are further fields of its KubeSchedulerConfiguration, such as `extenders`.
        """
        file = self.directory / "kube-scheduler.yaml"
        connection = {
            "kubeconfig": str(self.kubeconfig),
            "qps": calls_per_second,
            "burst": 2 * calls_per_second,
        }
        configuration = {
            "apiVersion": "kubescheduler.config.k8s.io/v1",
            "kind": "KubeSchedulerConfiguration",
            "clientConnection": connection,
            "leaderElection": {"leaderElect": False},
            **settings,
        }
        file.write_text(json.dumps(configuration))  # JSON is YAML too
        self._run("kube-scheduler", f"--config={file}", "--secure-port=0", *options)

    def stop_scheduler(self) -> None:
        """From now on pods stay pending unless they name their node."""
        self._processes["kube-scheduler"].end(signal.SIGKILL)

    def start_controllers(self) -> None:
        self._run(
            "kube-controller-manager",
            f"--kubeconfig={self.kubeconfig}",
            f"--controllers={','.join(self._controllers)}",
            f"--root-ca-file={self.authority}",
            "--leader-elect=false",
            "--secure-port=0",
            "--kube-api-qps=200",
            "--kube-api-burst=400",
            "--node-monitor-grace-period=10s",
        )

    def _run(self, name: str, *arguments: str) -> ClusterProcess:
        process = ClusterProcess(name, (self._programs.path(name), *arguments), self.logs)
        self._processes[name] = process
        return process

    def _write_secrets(self) -> None:
        key = self.directory / "pki" / "service-accounts.key"
        command = [self._programs.path("openssl"), "ecparam", "-name", "prime256v1", "-genkey", "-noout"]
        subprocess.run([*command, "-out", str(key)], check=True, capture_output=True)
        (self.directory / "tokens.csv").write_text(f"{self._token},admin,admin,system:masters\n")

    def _etcd(self) -> tuple[str, ...]:
        url, peers = f"http://127.0.0.1:{self._etcd_port}", f"http://127.0.0.1:{self._peer_port}"
        return (
            f"--data-dir={self.directory / 'etcd'}",
            f"--listen-client-urls={url}",
            f"--advertise-client-urls={url}",
            f"--listen-peer-urls={peers}",
            f"--initial-advertise-peer-urls={peers}",
            f"--initial-cluster=default={peers}",
            "--log-level=warn",
        )

    def _api_server(self) -> tuple[str, ...]:
        pki = self.directory / "pki"
        return (
            f"--etcd-servers=http://127.0.0.1:{self._etcd_port}",
            "--bind-address=127.0.0.1",
            "--advertise-address=127.0.0.1",  # else the API server looks for a default route
            f"--secure-port={self._port}",
            f"--cert-dir={pki}",
            f"--token-auth-file={self.directory / 'tokens.csv'}",
            "--authorization-mode=RBAC",
            "--service-account-issuer=https://kubernetes.default.svc",
            f"--service-account-signing-key-file={pki / 'service-accounts.key'}",
            f"--service-account-key-file={pki / 'service-accounts.key'}",
            "--service-cluster-ip-range=10.96.0.0/16",
            "--endpoint-reconciler-type=none",  # an address on loopback is refused as an endpoint
            "--allow-privileged=true",
            "--watch-cache=true",
            "--etcd-compaction-interval=0",  # tests compact by themselves
        )

    def _is_ready(self) -> bool:
        try:
            return self.call("GET", "/readyz") == b"ok"
        except (urllib.error.HTTPError, ssl.SSLError):
            return False

    # ------------------------------------------------------------ use

    def call(
        self,
        method: str,
        path: str,
        body: object = None,
        content: str = "application/json",
        within_s: float = CALL_S,
    ) -> bytes:
        """One call as the administrator, with a body of the type `content`. Raises `OSError`, for refusals `HTTPError`."""
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.url + path, data, method=method)
        request.add_header("Authorization", f"Bearer {self._token}")
        request.add_header("Content-Type", content)
        trust = ssl.create_default_context(cafile=str(self.authority))
        with urllib.request.urlopen(request, timeout=within_s, context=trust) as response:
            try:
                answer: bytes = response.read()
            except (
                http.client.HTTPException
            ) as error:  # the API server was killed in the middle of its answer
                raise ConnectionResetError(f"{method} {path}: {error!r}") from None
            return answer

    def ready_nodes(self) -> set[str]:
        """The names of the nodes that are ready. Raises `OSError`."""
        return {
            node["metadata"]["name"]
            for node in json.loads(self.call("GET", "/api/v1/nodes"))["items"]
            for condition in node["status"].get("conditions", ())
            if condition["type"] == "Ready" and condition["status"] == "True"
        }

    def kubectl(self, *arguments: str, stdin: str | None = None, kubeconfig: Path | None = None) -> str:
        """Run kubectl; its output. Raises `ClusterError` with what kubectl complains about."""
        done = subprocess.run(
            [self._programs.path("kubectl"), f"--kubeconfig={kubeconfig or self.kubeconfig}", *arguments],
            input=stdin,
            capture_output=True,
            text=True,
            timeout=KUBECTL_S,
            check=False,
        )
        if done.returncode != 0:
            raise ClusterError(f"kubectl {' '.join(arguments)}: {done.stderr.strip()}")
        return done.stdout

    def token(self, namespace: str, service_account: str) -> str:
        return self.kubectl(
            "create", "token", service_account, f"--namespace={namespace}", "--duration=1h"
        ).strip()

    def forget_history(self) -> None:
        """Compact etcd up to now and restart the API server: to watch from an older version is answered with 410."""
        url = f"http://127.0.0.1:{self._etcd_port}/v3/kv"

        def asked(path: str, body: object) -> dict[str, Any]:
            request = urllib.request.Request(f"{url}/{path}", json.dumps(body).encode(), method="POST")
            with urllib.request.urlopen(request, timeout=10) as response:
                answer: dict[str, Any] = json.load(response)
                return answer

        revision = asked("range", {"key": "AA=="})["header"]["revision"]
        with suppress(urllib.error.HTTPError):  # it is compacted up to there already
            asked("compaction", {"revision": revision, "physical": True})
        self.kill_api_server()
        self.start_api_server()

    def _kubeconfig(self) -> dict[str, Any]:
        """The administrator's."""
        cluster = {"server": self.url, "certificate-authority": str(self.authority)}
        return {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "local", "cluster": cluster}],
            "users": [{"name": "admin", "user": {"token": self._token}}],
            "contexts": [{"name": "local", "context": {"cluster": "local", "user": "admin"}}],
            "current-context": "local",
        }
