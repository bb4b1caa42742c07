"""The `Cluster` port over list and watch of the API server's objects.

What changed is collected while the watches run, and told with the next `refresh` or `read`. A read lists the pods that are asked
about by name: unlike a watch, a list says up to which version it is whole, also where nothing is there.
"""

import asyncio
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass
from itertools import groupby
from typing import Final

from hosting.kubernetes import objects
from hosting.kubernetes.resources import Manifest
from hosting.kubernetes.scaling import ScalingPolicy
from hosting.kubernetes.virtual_machines import VirtualMachine, machine_of
from hosting.logs import Logger
from protocol.values import Observation, Resources
from protocol.wire import PodName
from scheduler.clusters.kubernetes import reading
from scheduler.clusters.kubernetes.feed import Feed, FeedError, Feeds
from scheduler.clusters.kubernetes.reading import Description, FoundVm, Surroundings
from scheduler.clusters.kubernetes.versions import Key, Known, key_of, uid_of
from scheduler.core import events
from scheduler.core.model import NodeSpec
from scheduler.ports import LOOK_DEADLINE_S, ClusterUnreachableError

MAX_BY_NAME: Final = 8
"""More objects of a namespace are listed together rather than each by its name."""


@dataclass(frozen=True, slots=True)
class Told:
    """What was told last of a pod, and why it was told so."""

    description: Description
    reading: Observation | None

    @property
    def uid(self) -> str:
        return self.description.found.spec.uid


class KubernetesCluster:
    """A view of the cluster. The feeds keep themselves up to date; their owner runs them."""

    def __init__(self, feeds: Feeds, clock: Callable[[], float], log: Logger) -> None:
        self._feeds = feeds
        self._clock = clock
        self._log = log
        self._told: dict[Key, Told] = {}
        self._nodes: dict[str, NodeSpec] = {}
        self._policies: dict[Key, ScalingPolicy] = {}
        self._of_namespace: dict[str, list[ScalingPolicy]] = {}
        self._in_machine: dict[Key, set[Key]] = {}
        """The pods that name a VirtualMachine."""
        self._faults: dict[str, tuple[str, ...]] = {}

    @property
    def faults(self) -> dict[str, tuple[str, ...]]:
        """What is wrong with objects, by kind, namespace and name."""
        return self._faults

    def descriptions(self) -> Iterator[tuple[Key, Description]]:
        """Every pod as it was told last."""
        return ((key, told.description) for key, told in self._told.items())

    # ------------------------------------------------------------ the port

    async def refresh(self) -> tuple[events.Input, ...]:
        """What changed. Raises `ClusterUnreachableError` where one of the watches does not run."""
        try:
            async with asyncio.timeout(LOOK_DEADLINE_S):
                await asyncio.gather(*(feed.synced() for feed in self._feeds))
                await asyncio.gather(*(feed.mark() for feed in self._feeds))
        except TimeoutError:
            raise ClusterUnreachableError(self._fault() or "no answer in time") from None
        except FeedError as error:
            raise ClusterUnreachableError(str(error)) from None
        if self._fault():
            raise ClusterUnreachableError(self._fault())
        return self._tell(())

    async def read(self, pods: Collection[PodName]) -> tuple[events.Input, ...]:
        """Lists by name. Raises `ClusterUnreachableError`."""
        keys = [(pod.namespace, pod.name) for pod in pods]
        try:
            async with asyncio.timeout(LOOK_DEADLINE_S):
                await _list(self._feeds.pods, keys)
                await _list(self._feeds.machines, [*self._machines_of(keys)])
        except TimeoutError:
            raise ClusterUnreachableError("no answer in time") from None
        except FeedError as error:
            raise ClusterUnreachableError(str(error)) from None
        return self._tell(keys)

    def look(self, pod: PodName) -> events.Look:
        """What was told last."""
        told = self._told.get((pod.namespace, pod.name))
        if told is None or told.reading is None or told.description.found.spec.terminal:
            return events.Look(found=False)
        return events.Look(True, told.reading)

    # ------------------------------------------------------------ what is told

    def _tell(self, asked: Collection[Key]) -> tuple[events.Input, ...]:
        """What differs from what was told, and those that were asked about. Nobody may come between this and the caller."""
        nodes_gone, nodes_seen = self._tell_nodes()
        self._note_policies()
        self._note_machines()
        gone: list[events.Input] = []
        seen: list[events.Input] = []
        changed = self._feeds.pods.known.changed
        for key in sorted(changed | set(asked)):
            self._tell_pod(key, gone, seen, is_asked=key in asked)
        changed.clear()
        whole = []
        if all(feed.has_begun for feed in self._feeds):
            whole = [events.ClusterRead(min(feed.begun_s for feed in self._feeds))]
        return (*gone, *nodes_gone, *nodes_seen, *seen, *whole)

    def _tell_pod(
        self, key: Key, gone: list[events.Input], seen: list[events.Input], *, is_asked: bool
    ) -> None:
        known, told = self._feeds.pods.known.find(key), self._told.get(key)
        manifest = known.manifest if known is not None else None
        description = self._describe(key, manifest, told) if manifest is not None else None
        is_new = known is not None and known.is_new and (told is None or told.uid != uid_of(manifest))
        if told is not None and not _is_same_row(told, description):
            gone.append(self._ended(told))
            del self._told[key]
            if description is None:
                self._forget(key, told)
            told = None
        if known is None or description is None:
            return
        is_changed = told is None or told.description.found != description.found
        if not is_changed and not is_asked:
            self._told[key] = Told(description, told.reading if told is not None else None)
            return
        found = description.found
        if not isinstance(found, FoundVm):
            self._told[key] = Told(description, None)
            if is_changed:
                seen.append(events.PodSeen(found.spec))
            return
        observation = Observation(found.size, found.target, self._begun_s(key, known, told, description))
        self._told[key] = Told(description, observation)
        seen.append(events.VmSeen(found.spec, observation, self._clock(), is_new and told is None))

    def _ended(self, told: Told) -> events.Input:
        found = told.description.found
        if isinstance(found, FoundVm):
            return events.VmGone(found.spec.pod, found.spec.uid, self._clock())
        return events.PodGone(found.spec)

    def _forget(self, key: Key, told: Told) -> None:
        self._note_faults("pod", key, ())
        if told.description.machine is not None:
            pods = self._in_machine.get((key[0], told.description.machine), set())
            pods.discard(key)
            if not pods:
                self._in_machine.pop((key[0], told.description.machine), None)

    def _begun_s(self, key: Key, known: Known, told: Told | None, description: Description) -> float:
        """No change of the pod, or of its VirtualMachine, that was accepted before this moment is missing."""
        if description.is_old and told is not None and told.reading is not None:
            return told.reading.begun_s
        begun_s = max(known.begun_s, self._feeds.pods.known.begun_s)
        if description.machine is not None:
            machines = self._feeds.machines
            machine = machines.known.find((key[0], description.machine))
            begun_s = min(begun_s, max(machine.begun_s if machine is not None else 0.0, machines.begun_s))
        return begun_s

    # ------------------------------------------------------------ what pods are

    def _describe(self, key: Key, pod: Manifest, told: Told | None) -> Description:
        """The pod. Where that cannot be told, what was told of it last counts on; else it holds the whole node."""
        room: Resources | None = None
        try:
            name = reading.node_name(pod)
            node = self._nodes.get(name)
            room = node.allocatable if node is not None else None
            around = self._around(pod, room)
            description = reading.describe(pod, around)
            if around.machine_name is not None and around.machine is None:
                # Its owner may be deleted before the pod is, which still holds what the VM has.
                description = _kept(pod, told, description.faults) or description
        except reading.MALFORMED as error:
            text = f"cannot be read: {error!r}" if not str(error) else f"cannot be read: {error}"
            description = _kept(pod, told, (text,)) or Description(
                reading.unreadable(pod, room), (text,), machine=machine_of(pod)
            )
        if description.machine is not None:
            self._in_machine.setdefault((key[0], description.machine), set()).add(key)
        self._note_faults("pod", key, description.faults)
        return description

    def _around(self, pod: Manifest, room: Resources | None) -> Surroundings:
        namespace, name = objects.namespace(pod), machine_of(pod)
        policies = self._of_namespace.get(namespace, ())
        known = self._feeds.machines.known.find((namespace, name)) if name is not None else None
        if known is None or known.manifest is None:
            return Surroundings(room, policies, machine_name=name)
        try:
            return Surroundings(room, policies, name, VirtualMachine.read(known.manifest))
        except reading.MALFORMED as error:
            return Surroundings(room, policies, name, machine_fault=f"VirtualMachine {name}: {error}")

    # ------------------------------------------------------------ what pods rest on

    def _tell_nodes(self) -> tuple[list[events.Input], list[events.Input]]:
        known, gone, seen = self._feeds.nodes.known, list[events.Input](), list[events.Input]()
        others: set[str] = set()
        for key in sorted(known.changed):
            found, name = known.find(key), key[1]
            if found is None or found.manifest is None:
                self._note_faults("node", key, ())
                if self._nodes.pop(name, None) is not None:
                    gone.append(events.NodeGone(name))
                continue
            try:
                spec = reading.node_of(found.manifest)
            except reading.MALFORMED as error:
                # What was told counts on. A node that was never told takes no growth.
                self._note_faults("node", key, (f"cannot be read: {error}",))
                continue
            self._note_faults("node", key, ())
            if self._nodes.get(name) != spec:
                self._nodes[name] = spec
                others.add(name)
                seen.append(events.NodeSeen(spec))
        known.changed.clear()
        if others:
            self._look_again(lambda pod: reading.node_name(pod) in others)
        return gone, seen

    def _note_policies(self) -> None:
        known, namespaces = self._feeds.policies.known, set[str]()
        for key in known.changed:
            found = known.find(key)
            namespaces.add(key[0])
            self._policies.pop(key, None)
            self._note_faults("ScalingPolicy", key, ())
            if found is None or found.manifest is None:
                continue
            try:
                self._policies[key] = ScalingPolicy.read(found.manifest)
            except reading.MALFORMED as error:
                self._note_faults("ScalingPolicy", key, (f"cannot be read: {error}",))
        known.changed.clear()
        for namespace in namespaces:
            self._of_namespace[namespace] = [
                policy for key, policy in self._policies.items() if key[0] == namespace
            ]
        if namespaces:
            self._look_again(lambda pod: objects.namespace(pod) in namespaces)

    def _note_machines(self) -> None:
        known = self._feeds.machines.known
        for key in known.changed:
            self._feeds.pods.known.changed |= self._in_machine.get(key, set())
        known.changed.clear()

    def _look_again(self, is_concerned: Callable[[Manifest], bool]) -> None:
        """Describe some pods anew, because what they rest on has changed."""
        known = self._feeds.pods.known
        known.changed |= {key_of(pod) for pod in known.there() if is_concerned(pod)}

    def _machines_of(self, keys: Iterable[Key]) -> Iterator[Key]:
        for key in keys:
            known = self._feeds.pods.known.find(key)
            name = machine_of(known.manifest) if known is not None and known.manifest is not None else None
            if name is not None:
                yield key[0], name

    # ------------------------------------------------------------ faults

    def _note_faults(self, kind: str, key: Key, faults: tuple[str, ...]) -> None:
        about = f"{kind} {key[0]}/{key[1]}" if key[0] else f"{kind} {key[1]}"
        if self._faults.get(about, ()) == faults:
            return
        if faults:
            self._faults[about] = faults
            self._log.warning("object with faults", object=about, faults=list(faults))
        else:
            del self._faults[about]
            self._log.info("object without faults again", object=about)

    def _fault(self) -> str:
        return "; ".join(feed.fault for feed in self._feeds if feed.fault)


def _is_same_row(told: Told, description: Description | None) -> bool:
    """Whether the pod is the holder that was told: the same UID, scaled then and now, or not."""
    if description is None:
        return False
    before, now = told.description.found, description.found
    return before.spec.uid == now.spec.uid and type(before) is type(now)


def _kept(pod: Manifest, told: Told | None, faults: tuple[str, ...]) -> Description | None:
    """A VM as it was told last; None where the pod was told as none."""
    if told is None or not isinstance(told.description.found, FoundVm) or told.uid != uid_of(pod):
        return None
    last = told.description
    return Description(last.found, faults, last.policy, last.machine, is_old=True)


async def _list(feed: Feed, keys: Collection[Key]) -> None:
    """Consistent lists of these objects: by name, or of whole namespaces."""
    by_namespace = {
        namespace: {name for _, name in found}
        for namespace, found in groupby(sorted(keys), key=lambda key: key[0])
    }
    calls = []
    for namespace, names in by_namespace.items():
        if len(names) > MAX_BY_NAME:
            calls.append(feed.list_namespace(namespace, names))
        else:
            calls += [feed.list_one(namespace, name) for name in sorted(names)]
    await asyncio.gather(*calls)
