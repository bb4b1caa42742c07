"""The world of the tests of the extender: the service over a real ledger and the real framework, with a plugin and an API server that
do as told. Tests run in virtual time."""

import itertools
import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any
from uuid import UUID

from hosting.kubernetes import objects
from hosting.kubernetes.resources import Manifest
from hosting.metrics import Family
from hosting.server import HangUp, Reply, Request
from protocol.reasons import Reason
from protocol.values import Resources
from protocol.wire import PodName
from scheduler.permits.core import events
from scheduler.permits.core.core import Core
from scheduler.permits.core.model import Holder, NodeSpec, PodSpec
from scheduler.permits.core.state import SchedulerConfig
from scheduler.placing.core.objects import NodeInfo, NodeSnapshot, PodInfo, RowInfo
from scheduler.placing.core.profile import EnabledPlugin, PluginSet, Profile
from scheduler.placing.cycle.assembly import of_profile
from scheduler.placing.cycle.framework import SchedulingFramework
from scheduler.placing.cycle.hooks import ExtenderPorts, SharedHooks
from scheduler.placing.kube_extender.service import PREFIX, ExtenderService
from scheduler.placing.plugins.ledger_fit import DefaultBinder, LedgerFit
from scheduler.placing.plugins.registry import Registry
from scheduler.ports import ClusterUnreachableError, NotBound, NotLeadingError
from tests.support.amounts import cu
from tests.support.virtual_time import now_s
from tests.unit.hosting.raw_peers import recorded

Says = Callable[[PodInfo, str], Any]


class Obedient:
    """A plugin at every point, which says at each what the test has put into `says`; Success else. `weight` of its scores is 2."""

    def __init__(self, says: Mapping[str, Says], called: list[str]) -> None:
        self._says = says
        self._called = called

    def name(self) -> str:
        return "Obedient"

    def less(self, first: Any, second: Any) -> bool:
        return bool(first.since_s < second.since_s)

    def _answer(self, point: str, pod: PodInfo, where: str = "", *, default: Any = None) -> Any:
        self._called.append(point)
        return self._says[point](pod, where) if point in self._says else default

    def pre_filter(self, context: Any, pod: PodInfo, nodes: Any) -> Any:
        return self._answer("pre_filter", pod, default=(None, None))

    def filter(self, context: Any, pod: PodInfo, node: NodeInfo) -> Any:
        return self._answer("filter", pod, node.name)

    def remove_pod(self, context: Any, pod: PodInfo, other: PodInfo, node: NodeInfo) -> Any:
        return self._answer("remove_pod", pod, other.pod.name)

    def add_pod(self, context: Any, pod: PodInfo, other: PodInfo, node: NodeInfo) -> None:
        raise AssertionError("nobody adds pods on trial here")

    def score(self, context: Any, pod: PodInfo, node: NodeInfo) -> Any:
        return self._answer("score", pod, node.name, default=(0, None))

    def reserve(self, context: Any, pod: PodInfo, node_name: str) -> Any:
        return self._answer("reserve", pod, node_name)

    def unreserve(self, context: Any, pod: PodInfo, node_name: str) -> Any:
        return self._answer("unreserve", pod, node_name)

    def permit(self, context: Any, pod: PodInfo, node_name: str) -> Any:
        return self._answer("permit", pod, node_name, default=(None, 0.0))

    def pre_bind(self, context: Any, pod: PodInfo, node_name: str) -> Any:
        return self._answer("pre_bind", pod, node_name)

    def post_bind(self, context: Any, pod: PodInfo, node_name: str) -> Any:
        return self._answer("post_bind", pod, node_name)


class NoBirths:
    """Nobody has a say."""

    async def admit(self, pod: Mapping[str, Any], pool: str, amount: Resources, deadline_s: float) -> None:
        """Every pod."""


class ApiServer:
    """The pods that there are, and the port `Binder`: `when_bound` says what becomes of a request to bind."""

    def __init__(self) -> None:
        self.pods: dict[PodName, Manifest] = {}
        self.reads = 0
        self.is_reachable = True
        self.sent: list[tuple[str, str]] = []
        """The requests to bind, by names of pod and node."""
        self.when_bound: Callable[[PodName, str], Awaitable[NotBound | None]] = self.binds

    async def bind(
        self, pod: PodName, uid: str, node: str, annotations: Mapping[str, str]
    ) -> NotBound | None:
        self.sent.append((pod.name, node))
        return await self.when_bound(pod, node)

    async def binds(self, pod: PodName, node: str) -> NotBound | None:
        """Bind a pod that is on no node, and say where one is that is on another one."""
        found = self.pods.get(pod)
        if found is None:
            return NotBound(f'404 NotFound: pods "{pod.name}" not found')
        on = found["spec"].setdefault("nodeName", node)
        return (
            None if on == node else NotBound(f"409 Conflict: pod {pod.name} is already assigned to node {on}")
        )


def pod(name: str, cpus: float = 1, **spec: Any) -> Manifest:
    """A pod of the namespace `default`, as kube-scheduler sends it: without kind and apiVersion. It needs as many GiB as CPUs."""
    metadata = {"name": name, "namespace": "default", "uid": f"uid-{name}"}
    return {"metadata": metadata, "spec": {"cpus": cpus, **spec}, "status": {"phase": "Pending"}}


def binding(pod: Manifest, node: str) -> dict[str, str]:
    metadata = pod["metadata"]
    return {
        "PodName": metadata["name"],
        "PodNamespace": metadata["namespace"],
        "PodUID": metadata["uid"],
        "Node": node,
    }


class World:
    """Nodes `a`, `b` and `c` with 4 CPUs and 4 GiB each; pods that need one of both. It is the service's `Scheduling`, its guard,
    and the ledger of the plugins."""

    def __init__(self, *, timeout_s: float = 5.0) -> None:
        self.core = Core(SchedulerConfig(UUID(int=1), is_first_start=True))
        self._tickets = itertools.count(1)
        for name in "abc":
            self.core.apply(events.NodeSeen(NodeSpec(name, cu(4))))
        self.says: dict[str, Says] = {}
        self.called: list[str] = []
        self.api = ApiServer()
        self.on_node: dict[str, PodInfo] = {}
        """The pods that are, or are about to be, on a node."""
        self.migrating: set[str] = set()
        self.forgotten: list[str] = []
        self.gone_unseen: list[PodSpec] = []
        """Pods that have gone, which the ledger does not know yet."""
        self.caught_up = 0
        self.asked_of: list[str] = []
        """The profiles that were used."""
        self.leader: str | None = None
        """The process that leads instead of us."""
        log, self.lines = recorded()
        self.shared = SharedHooks(ExtenderPorts(self, NoBirths(), now_s, binder=self.api), log)
        self.profiles = {name: self._framework(name, self.shared) for name in ("default-scheduler", "spread")}
        self.service = ExtenderService(self, self, now_s, log, timeout_s=timeout_s)

    def _framework(self, name: str, shared: SharedHooks) -> SchedulingFramework:
        registry = Registry()
        registry.register("Obedient", lambda *_: Obedient(self.says, self.called))
        registry.register("LedgerFit", LedgerFit)
        registry.register("DefaultBinder", DefaultBinder)
        enabled = (EnabledPlugin("LedgerFit"), EnabledPlugin("Obedient", 2), EnabledPlugin("DefaultBinder"))
        return SchedulingFramework(
            of_profile(Profile(name, multi_point=PluginSet(enabled)), registry), shared
        )

    # ------------------------------------------------------------ calls

    async def call(self, verb: str, body: Any) -> Reply:
        """A verb's answer to a body: bytes, or a value that becomes JSON."""
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        (route,) = [each for each in self.service.routes() if each.path == f"{PREFIX}/{verb}"]
        answer = await route.answer(Request("POST", route.path, content))
        assert not isinstance(answer, HangUp)
        return answer

    async def ask(self, verb: str, body: Any) -> Any:
        """The JSON that a verb answers with, with the status 200."""
        answer = await self.call(verb, body)
        assert answer.status == 200, answer
        return json.loads(answer.body)

    async def filter(self, pod: Manifest, *nodes: str) -> Any:
        return await self.ask("filter", {"Pod": pod, "Nodes": None, "NodeNames": list(nodes)})

    async def prioritize(self, pod: Manifest, *nodes: str) -> dict[str, int]:
        answer = await self.ask("prioritize", {"Pod": pod, "Nodes": None, "NodeNames": list(nodes)})
        return {each["Host"]: each["Score"] for each in answer}

    def binds(self) -> dict[str, float]:
        """The metric of binds, by state."""
        (family,) = [
            each for each in self.service.families() if each.name == "parley_scheduler_extender_binds"
        ]
        assert isinstance(family, Family)
        return {state: value for (state,), value in family.samples}

    async def bind(self, pod: Manifest, node: str) -> str:
        """The error; empty for success."""
        answer = await self.ask("bind", binding(pod, node))
        return str(answer["Error"])

    # ------------------------------------------------------------ what is where

    def create(self, name: str, cpus: float = 1, **spec: Any) -> Manifest:
        """A pod of the API server."""
        made = pod(name, cpus, **spec)
        self.api.pods[PodName(name, "default")] = made
        return made

    def place(self, name: str, node: str, cpus: float = 1) -> Manifest:
        """A pod that the cluster shows on a node."""
        made = self.create(name, cpus, nodeName=node)
        self._show(self.pod_info(made), node)
        return made

    def see(self, *names: str) -> None:
        """The cluster is read: of pods on the way to a node, those of these names are shown there."""
        for info in list(self.on_node.values()):
            if info.pod.name in names:
                self._show(info, self.node_of(info.pod.name) or "")
        self.core.apply(events.ClusterRead(now_s()))

    def _show(self, info: PodInfo, node: str) -> None:
        self.on_node[info.uid] = info
        self.core.apply(events.PodSeen(PodSpec(info.pod, info.uid, node, info.amount)))

    def node_of(self, name: str) -> str | None:
        """The node on which the ledger keeps room for a pod."""
        for account in self.core.ledger.nodes():
            if any(row.holder.uid == f"uid-{name}" for row in account.rows.values()):
                return account.capacity.name
        return None

    # ------------------------------------------------------------ Scheduling

    def framework_of(self, scheduler_name: str) -> SchedulingFramework:
        found = self.profiles.get(scheduler_name, self.profiles["default-scheduler"])
        self.asked_of.append(found.profile.scheduler_name)
        return found

    def snapshot(self) -> NodeSnapshot:
        nodes = {}
        for account in self.core.ledger.nodes():
            rows = {
                row.holder: RowInfo(
                    row.holder, row.name, row.reserved, is_migrating=row.holder.uid in self.migrating
                )
                for row in account.rows.values()
            }
            pods = tuple(self.on_node[holder.uid] for holder in rows if holder.uid in self.on_node)
            capacity = account.capacity
            nodes[capacity.name] = NodeInfo(capacity.name, capacity.reservable, account.reserved, rows, pods)
        return NodeSnapshot(nodes)

    def pod_info(self, manifest: Manifest) -> PodInfo:
        name = PodName(objects.name(manifest), objects.namespace(manifest))
        if manifest.get("spec", {}).get("overhead") == "unreadable":
            raise ValueError("spec.overhead: must be an object")
        return PodInfo(name, objects.uid(manifest), cu(manifest["spec"].get("cpus", 1)), manifest=manifest)

    async def read_pod(self, pod: PodName) -> Manifest | None:
        self.api.reads += 1
        if not self.api.is_reachable:
            raise ClusterUnreachableError("connection refused")
        return self.api.pods.get(pod)

    async def catch_up(self) -> None:
        self.caught_up += 1
        for pod in self.gone_unseen:
            self.core.apply(events.PodGone(pod))
        self.gone_unseen.clear()

    def assume_pod(self, pod: PodInfo, node_name: str) -> None:
        self.on_node[pod.uid] = pod

    def forget_pod(self, pod: PodInfo, node_name: str) -> None:
        self.forgotten.append(pod.pod.name)
        self.on_node.pop(pod.uid, None)
        self.forget(pod.holder)

    # ------------------------------------------------------------ Placements, LeadershipGuard

    def assume(
        self, holder: Holder, name: str, node: str, amount: Resources, *, until_s: float, **_: Any
    ) -> Reason | None:
        self.check(0)
        assumed = events.PlacementAssumed(
            next(self._tickets), holder, name, node, amount, until_s=until_s, now_s=now_s()
        )
        answer = self.core.apply(assumed)[0]
        return answer.reason if isinstance(answer, events.NotPlaced) else None

    def forget(self, holder: Holder) -> None:
        self.core.apply(events.PlacementForgotten(holder))

    def ask_back(self, quota: str, excess: Resources, uids: Sequence[str]) -> None:
        raise AssertionError("no quota here has borrowed anything")

    def headroom(self, node: str, holder: Holder) -> Resources:
        return self.core.ledger.headroom(node, holder)

    def check(self, seen_epoch: int, witness: tuple[str, ...] | None = None) -> None:
        del seen_epoch
        if self.leader is not None:
            raise NotLeadingError(self.leader)
