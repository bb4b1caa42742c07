"""The news of plugins and strategies about the node and its pods: Events if the agent is on Kubernetes, and log lines."""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from agent.daemon.announcer import Recorder
from agent.node.qos.core.states import PodState
from agent.sources.described import Found
from agent.sources.kubernetes import Stores
from hosting.kubernetes.resources import NODES, PODS, Manifest
from hosting.logs import Logger

if TYPE_CHECKING:  # the client library is an extra
    from hosting.kubernetes.api import KubernetesApi

STRATEGY_ACTION: Final = "Strategy"


@dataclass(frozen=True, slots=True)
class ClusterNode:
    """The node as the API server shows it, the writer of Events about it, and the pods of the node that are to be scaled:
    `found` gives None before the first look."""

    api: "KubernetesApi"
    stores: Stores
    recorder: Recorder
    found: Callable[[], Mapping[str, Found] | None]

    def manifest(self) -> Manifest | None:
        """The Node object; None before it was read."""
        return next(iter(self.stores.node.objects().values()), None)


class NodeEvents:
    """Made in the daemon's loop. `cluster` is None if there is no API server, or no node in it."""

    def __init__(self, cluster: ClusterNode | None, log: Logger) -> None:
        self._cluster = cluster
        self._log = log
        self._loop = asyncio.get_running_loop()

    def tell(self, is_warning: bool, reason: str, action: str, text: str) -> None:
        """Tell of the node. Called in the loop."""
        write = self._log.warning if is_warning else self._log.info
        write("node", reason=reason, text=text)
        node = self._cluster.manifest() if self._cluster is not None else None
        if node is not None:
            head: Manifest = {"apiVersion": NODES.api_version, "kind": NODES.kind}
            self._record(head | {"metadata": node["metadata"]}, is_warning, reason, action, text)

    def record(self, pod: PodState | None, reason: str, message: str, *, is_warning: bool) -> None:
        """As strategies tell (`EventPort`): from any thread, and never blocking."""
        try:
            self._loop.call_soon_threadsafe(self._told, pod, reason, message, is_warning)
        except RuntimeError:  # the loop has ended
            self._log.info("not told any more", reason=reason, text=message)

    def _told(self, pod: PodState | None, reason: str, message: str, is_warning: bool) -> None:
        if pod is None:
            self.tell(is_warning, reason, STRATEGY_ACTION, message)
            return
        self._log.info("told a pod's owner", pod=pod.full_name, reason=reason, text=message)
        metadata = {"namespace": pod.namespace, "name": pod.name, "uid": pod.uid}
        head: Manifest = {"apiVersion": PODS.api_version, "kind": PODS.kind, "metadata": metadata}
        self._record(head, is_warning, reason, STRATEGY_ACTION, message)

    def _record(self, regarding: Manifest, is_warning: bool, reason: str, action: str, text: str) -> None:
        if self._cluster is not None:
            self._cluster.recorder.record(
                regarding, "Warning" if is_warning else "Normal", reason, action, text
            )
