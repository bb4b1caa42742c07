"""Tells of the scaling of pods and VirtualMachines, and of plugins and strategies of the node: in the log, as Events, in the status of pods,
and on the status page.

The notices to owners of pods, and their moments, are decided by `agent.core.owner_notices`.
"""

import asyncio
import functools
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, Literal

from agent.core.condition import Condition
from agent.core.owner_notices import (
    NO_NEWS,
    NO_PREDICTION,
    AskedSizeChange,
    Matters,
    OwnerNotice,
    Prediction,
    SizeNews,
    Standings,
    Topic,
    look,
    present,
)
from agent.core.ports import VmDescription
from agent.daemon import evictor
from agent.daemon.controllers import Controllers
from agent.daemon.evictor import Evictor
from agent.node.qos.core.states import PodState
from agent.node.qos.evictor import Recorder
from agent.runner.runner import Runner
from agent.runner.runner_log import without_ids
from agent.sources.described import Found
from agent.sources.kubernetes import Stores
from hosting.fault_log import FaultLog
from hosting.kubernetes import objects, pods
from hosting.kubernetes.errors import KubernetesError, RefusedError
from hosting.kubernetes.names import CGROUP_MISMATCH, DENIED, PREDICTED
from hosting.kubernetes.resources import NODES, PODS, STRATEGIC_PATCH, VIRTUAL_MACHINES, Manifest
from hosting.logs import Logger

if TYPE_CHECKING:  # the client library is an extra
    from hosting.kubernetes.api import KubernetesApi

AFTER_FAULT_S: Final = 60.0
TYPES: Final[Mapping[Topic, str]] = {Topic.DENIED: DENIED, Topic.MISMATCH: CGROUP_MISMATCH}
"""The topics that are told as conditions, by their types."""


@dataclass(frozen=True, slots=True)
class PodMark:
    """The condition of a pod for a topic of `TYPES`: `told` says why it is so, None if it is not. `predicted` is the annotation of the pod's
    predicted requests, which goes with the condition of a denial; None for none."""

    pod: Manifest
    topic: Topic
    told: str | None = None
    predicted: str | None = None

    @property
    def differs(self) -> bool:
        return self._condition_differs or bool(self.annotations)

    @property
    def annotations(self) -> dict[str, str | None]:
        """The annotations to change. One on a pod whose condition does not stand is another's, and stays."""
        stands = objects.annotations(self.pod).get(PREDICTED)
        if self.topic is not Topic.DENIED or stands == self.predicted:
            return {}
        return {PREDICTED: self.predicted} if self.predicted is not None or self._is_true else {}

    @property
    def _is_true(self) -> bool:
        stands = objects.condition(self.pod, TYPES[self.topic])
        return stands is not None and stands.get("status") == "True"

    @property
    def _condition_differs(self) -> bool:
        stands = objects.condition(self.pod, TYPES[self.topic]) or {}
        return self._is_true is (self.told is None) or (
            self.told is not None and stands.get("message") != self.told
        )

    def patch(self) -> Manifest:
        """The strategic merge patch of the pod's status."""
        metadata: Manifest = {"uid": objects.uid(self.pod)}
        if self.annotations:
            metadata["annotations"] = self.annotations
        found: Manifest = {"metadata": metadata}
        if self._condition_differs:
            condition = {
                "type": TYPES[self.topic],
                "status": "False" if self.told is None else "True",
                "reason": self.topic.value.over if self.told is None else self.topic.value.reason,
                "message": self.told or "",
                "lastTransitionTime": objects.time_written(datetime.now(UTC)),
            }
            found["status"] = {"conditions": [condition]}
        return found


class Conditions:
    """Writes conditions into the status of pods whose needs are denied, or whose control groups differ from their size: for `kubectl get`,
    `kubectl wait` and other controllers; and the predicted requests beside them. The pods are compared with the present state at each
    look, so that a restart of the agent leaves nothing behind."""

    def __init__(self, api: "KubernetesApi", log: Logger) -> None:
        self._api = api
        self._faults = FaultLog(
            log, "conditions of pods cannot be written", "conditions of pods can be written again"
        )
        self._not_before_s = 0.0
        self._refused: dict[str, float] = {}
        """The pods whose condition was refused, by UID, and until when it is not tried again."""

    async def write(self, wanted: Iterable[PodMark], now_s: float) -> None:
        """Write those that differ. One that is refused rests for a while; after another fault, all do. Never raises for the API server's
        sake."""
        if now_s < self._not_before_s:
            return
        self._refused = {uid: until_s for uid, until_s in self._refused.items() if now_s < until_s}
        for mark in wanted:
            uid = objects.uid(mark.pod)
            if uid in self._refused or not mark.differs:
                continue
            try:
                await self._write(mark)
            except KubernetesError as error:
                if isinstance(error, RefusedError) and (error.is_not_found or error.is_conflict):
                    continue  # another pod has its name by now
                self._faults.failed(error)
                if not isinstance(error, RefusedError) or error.is_overloaded or error.status >= 500:
                    self._not_before_s = now_s + AFTER_FAULT_S
                    return
                self._refused[uid] = now_s + AFTER_FAULT_S
            else:
                if not self._refused:
                    self._faults.worked()

    async def _write(self, mark: PodMark) -> None:
        await self._api.patch(
            PODS,
            objects.namespace(mark.pod),
            objects.name(mark.pod),
            mark.patch(),
            content_type=STRATEGIC_PATCH,
            subresource="status",
        )


if TYPE_CHECKING:  # the client library is an extra
    from hosting.kubernetes.api import KubernetesApi


LOOK_S: Final = 5.0
NO_CHANGES: Final[Mapping[str, Sequence[AskedSizeChange]]] = MappingProxyType({})


Find = Callable[[], Mapping[str, Found]]
Faults = Callable[[VmDescription], list[str]]


@dataclass(frozen=True, slots=True)
class _Known:
    """The knowledge of one object. `faults` are those of its annotations as the runner reads them."""

    found: Found
    faults: tuple[str, ...] = ()
    standings: Standings = field(default_factory=dict)
    sizes: SizeNews = NO_NEWS
    prediction: Prediction = NO_PREDICTION


@dataclass(frozen=True, slots=True)
class DenialSettings:
    """After how many seconds a denial is told, and whether the size that the pod should have is foretold beside it."""

    after_s: float = Topic.DENIED.value.patience_s
    are_predicted: bool = False


DEFAULT_DENIALS: Final = DenialSettings()


class Announcer:
    """Looks at the objects that the source has found (`find`), and at its runners. `pods_of_node` has every pod of the node, once it is
    known which of them are scaled."""

    def __init__(  # noqa: PLR0913 - what it reads, and the ways in which it tells
        self,
        find: Find,
        recorder: Recorder,
        controllers: Controllers,
        evictor_: Evictor,
        conditions: Conditions,
        log: Logger,
        *,
        pods_of_node: Callable[[], Iterable[Manifest]] = tuple,
        denials: DenialSettings = DEFAULT_DENIALS,
    ) -> None:
        self._find = find
        self._pods_of_node = pods_of_node
        self._denials = denials
        self._recorder = recorder
        self._controllers = controllers
        self._evictor = evictor_
        self._conditions = conditions
        self._log = log
        self._known: dict[str, _Known] = {}

    async def run(self, runner_of: Callable[[str], Runner | None], faults_of: Faults) -> None:
        """Look for ever. `runner_of` finds a runner by its VM's name; `faults_of` gives the faults in the annotations of a description."""
        clock = asyncio.get_running_loop().time
        while True:
            found = dict(self._find())
            runners = {name: runner for name in found if (runner := runner_of(name)) is not None}
            conditions = {name: runner.condition(clock()) for name, runner in runners.items()}
            changes = {name: runner.take_size_changes() for name, runner in runners.items()}
            self.look(found, conditions, faults_of, clock(), changes)
            await self._conditions.write(self.told_in_status(conditions), clock())
            await self._evictor.look(found, conditions, clock(), self.tell_of_eviction)
            await asyncio.sleep(LOOK_S)

    def look(
        self,
        found: Mapping[str, Found],
        conditions: Mapping[str, Condition],
        faults_of: Faults,
        now_s: float,
        changes: Mapping[str, Sequence[AskedSizeChange]] = NO_CHANGES,
    ) -> None:
        """Tell the notices that are due now. `changes` are those of sizes since the last look."""
        before, self._known = self._known, {}
        for name, each in found.items():
            known = _renewed(before.get(objects.uid(each.manifest)), each, faults_of)
            matters = self._matters(known)
            condition = conditions.get(name)
            standings, notices = look(
                known.standings, present(condition, matters), now_s, self._denials.after_s
            )
            prediction = known.prediction.after(standings, condition, now_s)
            sizes, news = functools.reduce(SizeNews.heard, changes.get(name, ()), known.sizes).told(now_s)
            self._known[objects.uid(each.manifest)] = replace(
                known, standings=standings, sizes=sizes, prediction=prediction
            )
            for notice in (*notices, *((news,) if news is not None else ())):
                self.tell(each, notice)

    def _matters(self, known: _Known) -> Matters:
        found = known.found
        more = evictor.fault(found)
        faults = dict.fromkeys((*found.faults, *known.faults, *([more] if more else ())))
        return Matters(found.obstacles, tuple(faults), self._controllers.of(found))

    def tell(self, found: Found, notice: OwnerNotice) -> None:
        """One notice, in the log and as an Event."""
        name = f"{objects.namespace(found.manifest)}/{objects.name(found.manifest)}"
        text = without_ids(notice.text)
        write = self._log.warning if notice.is_warning else self._log.info
        write("told the owner", vm=name, reason=notice.reason, text=text)
        type_: Literal["Normal", "Warning"] = "Warning" if notice.is_warning else "Normal"
        of = VIRTUAL_MACHINES if found.scaling is None else PODS  # items of a list do not say it themselves
        head = {"apiVersion": of.api_version, "kind": of.kind, "metadata": found.manifest["metadata"]}
        self._recorder.record(head, type_, notice.reason, notice.topic.value.action, text)

    def tell_of_eviction(self, found: Found, is_asked: bool, text: str) -> None:
        """A pod is to be evicted, or that was refused."""
        self.tell(found, OwnerNotice(Topic.EVICTION if is_asked else Topic.NO_EVICTION, text))

    def told_in_status(self, conditions: Mapping[str, Condition]) -> Iterator[PodMark]:
        """The conditions of pods with a runner at work, by the text that was told of each topic; and none of pods that are not scaled, or not
        any more."""
        for known in self._known.values():
            spec = known.found.description
            if known.found.scaling is None or spec is None or spec.vm.name not in conditions:
                continue
            for topic in TYPES:
                standing = known.standings.get(topic)
                if standing is None or standing.told_s is not None:
                    text = without_ids(standing.told) if standing is not None else None
                    yield PodMark(known.found.manifest, topic, text, self._predicted(known))
        for pod in self._pods_of_node():
            one = self._known.get(objects.uid(pod))
            if one is None or one.found.obstacles:
                yield from (PodMark(pod, topic) for topic in TYPES)

    def _predicted(self, known: _Known) -> str | None:
        size = known.prediction.size
        if size is None or not self._denials.are_predicted:
            return None
        return json.dumps(pods.requests_of(known.found.manifest, size).written())

    def warnings(self) -> dict[str, tuple[str, ...]]:
        """The ignored parts of the annotations of each scaled VM, and the other controllers at work on it."""
        return {
            known.found.description.vm.name: (*matters.faults, *matters.others)
            for known in self._known.values()
            if known.found.description is not None
            and ((matters := self._matters(known)).faults or matters.others)
        }

    def not_scaled(self) -> dict[str, tuple[str, ...]]:
        """The objects that cannot be scaled although somebody wants it, by namespace and name, and why."""
        return {
            f"{objects.namespace(each.manifest)}/{objects.name(each.manifest)}": each.obstacles
            for each in self._find().values()
            if each.obstacles
        }


def _renewed(known: _Known | None, found: Found, faults_of: Faults) -> _Known:
    if known is not None and known.found is found:
        return known
    faults = () if found.description is None else tuple(faults_of(found.description))
    if known is None:
        return _Known(found, faults)
    return replace(known, found=found, faults=faults)


STRATEGY_ACTION: Final = "Strategy"


@dataclass(frozen=True, slots=True)
class ClusterNode:
    """The node as the API server shows it, the recorder of Events about it, and the pods of the node that are to be scaled: `found` gives None
    before the first look."""

    api: "KubernetesApi"
    stores: Stores
    recorder: Recorder
    found: Callable[[], Mapping[str, Found] | None]

    def manifest(self) -> Manifest | None:
        """The Node object; None before it was read."""
        return next(iter(self.stores.node.objects().values()), None)


class NodeEvents:
    """Made in the daemon's loop. `cluster` is None without an API server, or without the node in it."""

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
