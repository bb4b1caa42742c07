"""The `Cluster` port over list and watch of the API server's objects.

Changes are collected while the watches run, and told with the next `refresh` or `read`. A read lists the pods that are asked
about by name: unlike a watch, a list says up to which version it is whole, even if it is empty.
"""

import random
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial, reduce
from typing import Final, TypeAlias

from hosting.kubernetes import objects
from hosting.kubernetes.annotations import Valid
from hosting.kubernetes.api import KubernetesApi, KubernetesError
from hosting.kubernetes.core.known import Change, Key, Known, key_of
from hosting.kubernetes.reflector import Reflector
from hosting.kubernetes.resources import (
    NODES,
    PODS,
    SCALING_POLICIES,
    VIRTUAL_MACHINES,
    Manifest,
    ResourceType,
)
from hosting.kubernetes.scaling import ScalingPolicy
from hosting.kubernetes.virtual_machines import UnreadableVmError, VirtualMachine, machine_of
from hosting.logs import Logger
from hosting.supervisor import Child
from protocol.values import ZERO, Observation, Resources
from protocol.wire import PodName
from scheduler.clusters.kubernetes import reading
from scheduler.clusters.kubernetes.calls import in_time, list_by_name
from scheduler.clusters.kubernetes.reading import Description, FoundVm, PodContext
from scheduler.permits.core import events
from scheduler.permits.core.model import NodeSpec
from scheduler.ports import ClusterUnreachableError

WITH_A_NODE: Final = "spec.nodeName!="
"""Pods count from when they have a node."""


@dataclass(frozen=True, slots=True)
class Reported:
    """The last description that was told of a pod, and the reading behind it."""

    description: Description
    reading: Observation | None

    @property
    def uid(self) -> str:
        return self.description.found.spec.uid


TellFault: TypeAlias = Callable[[ResourceType, Manifest, str], object]
IsServed: TypeAlias = Callable[[VirtualMachine, str], bool]
"""Whether a published agent may serve a VirtualMachine on a node."""
OnChanged: TypeAlias = Callable[[ResourceType, Collection[Key], tuple[Change, ...]], object]
"""Is told of objects that were changed, and how; without a change it is their surroundings that were."""


class KubernetesCluster:
    """A view of the cluster. It is up to date while its `children` run."""

    def __init__(
        self,
        api: KubernetesApi,
        clock: Callable[[], float],
        rng: random.Random,
        log: Logger,
        tell_fault: TellFault | None = None,
        is_served: IsServed = lambda *_: False,
        placeholders_in: str = "",
    ) -> None:
        """`tell_fault` is told of an object that cannot be read. `is_served` says which VirtualMachines count as VMs although their label
        does not say so. The placeholders in the namespace `placeholders_in` hold nothing."""
        self._api = api
        self._clock = clock
        self._log = log
        self._changed: dict[ResourceType, set[Key]] = {}
        """The objects that may have to be told."""
        self._listeners: list[OnChanged] = []

        def watch(type_: ResourceType, selector: str = "", *, is_optional: bool = False) -> Reflector:
            self._changed[type_] = set()
            return Reflector(
                api,
                type_,
                field_selector=selector,
                clock=clock,
                rng=rng,
                log=log,
                on_change=partial(self._note, type_),
                is_optional=is_optional,
            )

        self._of_nodes = watch(NODES)
        self._of_pods = watch(PODS, WITH_A_NODE)
        self._of_machines = watch(VIRTUAL_MACHINES, is_optional=True)
        self._of_policies = watch(SCALING_POLICIES, is_optional=True)
        self._all = (self._of_nodes, self._of_pods, self._of_machines, self._of_policies)
        self._reported: dict[Key, Reported] = {}
        self._nodes: dict[str, NodeSpec] = {}
        self._largest_room = ZERO
        self._policies: dict[Key, ScalingPolicy] = {}
        self._of_namespace: dict[str, list[ScalingPolicy]] = {}
        self._valid_of_machines: dict[str, Valid | None] = {}
        """The valid annotations of each VirtualMachine, by its UID."""
        self._in_machine: dict[Key, set[Key]] = {}
        """The pods that name a VirtualMachine."""
        self._faults: dict[str, tuple[str, ...]] = {}
        self._tell_fault = tell_fault
        self._is_served = is_served
        self._placeholders_in = placeholders_in

    def children(self) -> Mapping[str, Child]:
        return {
            "watch of nodes": self._of_nodes.run,
            "watch of pods": self._of_pods.run,
            "watch of VirtualMachines": self._of_machines.run,
            "watch of ScalingPolicies": self._of_policies.run,
        }

    def policies(self) -> Mapping[Key, Manifest]:
        return self._of_policies.objects()

    @property
    def faults(self) -> dict[str, tuple[str, ...]]:
        """The faults of objects, by kind, namespace and name."""
        return self._faults

    def descriptions(self) -> Iterator[tuple[Key, Description]]:
        """Every pod as it was told last."""
        return ((key, reported.description) for key, reported in self._reported.items())

    # ------------------------------------------------------------ what placing goes by

    def listen(self, listener: OnChanged) -> None:
        """Call `listener` whenever objects have changed. It must not wait and must not fail."""
        self._listeners.append(listener)

    def nodes(self) -> Mapping[Key, Manifest]:
        return self._of_nodes.objects()

    def pods(self) -> Mapping[Key, Manifest]:
        return self._of_pods.objects()

    def described(self, key: Key, uid: str) -> Description | None:
        """The pod of that UID as it was told last; None if it was not told."""
        reported = self._reported.get(key)
        return reported.description if reported is not None and reported.uid == uid else None

    def describe(self, pod: Manifest) -> Description:
        """The description of a pod that was not told. Raises `ValueError`, also if its VirtualMachine is not known.

        A pod without a node that is scaled without bounds may grow to the largest node.
        """
        node = self._nodes.get(reading.node_name(pod))
        room = node.allocatable if node is not None else self._largest_room
        try:
            around = self._around(pod, room)
            description = reading.describe(pod, around)
        except reading.MALFORMED as error:
            why = f"there is no {error}" if isinstance(error, KeyError) else str(error) or repr(error)
            raise ValueError(f"the pod cannot be read: {why}") from None
        if around.machine_name is not None and around.machine is None:
            raise ValueError(f"there is no VirtualMachine {around.machine_name}")
        return description

    def _note(self, type_: ResourceType, changes: tuple[Change, ...]) -> None:
        self._note_keys(type_, {key_of(change.manifest) for change in changes}, changes)

    def _note_keys(
        self, type_: ResourceType, keys: Collection[Key], changes: tuple[Change, ...] = ()
    ) -> None:
        self._changed[type_].update(keys)
        for listener in self._listeners:
            listener(type_, keys, changes)

    # ------------------------------------------------------------ the port

    async def refresh(self) -> tuple[events.Input, ...]:
        """The changes since the last call. Raises `ClusterUnreachableError` if one of the watches does not run."""
        await in_time(*map(self._mark, self._all))
        faults = [each.fault for each in self._watches() if each.fault]
        if faults:
            raise ClusterUnreachableError("; ".join(faults))
        return self._tell(())

    async def prove_readable(self) -> None:
        """List everything once, whether the children run or not. Raises `ClusterUnreachableError`."""
        for watch in self._all:
            try:
                await watch.caught_up(self._clock())
            except KubernetesError as error:
                if not watch.is_missing:
                    raise ClusterUnreachableError(str(error)) from None

    async def read(self, pods: Collection[PodName]) -> tuple[events.Input, ...]:
        """Lists by name. Raises `ClusterUnreachableError`."""
        keys = [(pod.namespace, pod.name) for pod in pods]
        await in_time(self._look_at(keys))
        return self._tell(keys)

    async def _look_at(self, keys: Collection[Key]) -> None:
        await list_by_name(self._of_pods, keys)
        if not self._of_machines.is_missing:
            await list_by_name(self._of_machines, [*self._machines_of(keys)])

    async def _mark(self, watch: Reflector) -> None:
        """Learn which version is at hand. Of a type that is missing there are no objects."""
        if watch.is_missing and not watch.has_synced:
            return
        try:
            await watch.mark()
        except KubernetesError:
            if not watch.is_missing:
                raise
        else:
            await watch.synced()

    def _watches(self) -> Iterator[Reflector]:
        """Those of types that there are."""
        return (watch for watch in self._all if not watch.is_missing)

    def look(self, pod: PodName) -> events.Look:
        """The state of the pod that was told last."""
        reported = self._reported.get(key := (pod.namespace, pod.name))
        if reported is None or reported.description.found.spec.terminal:
            return events.Look(found=False)
        if reported.reading is None:
            arrival = self._arrival(pod, reported.description)
            return events.Look(arrival is not None, arrival=arrival)
        # The name of a NeonVM's pod is drawn anew for each pod. Under another one a new pod may ask that no watch has shown yet.
        machine = reported.description.machine
        is_behind = key in self._changed[PODS] or (pod.namespace, machine) in self._changed[VIRTUAL_MACHINES]
        has_fault = self._of_pods.fault or self._of_machines.fault
        is_watched = machine is not None and not is_behind and not has_fault
        return events.Look(True, reported.reading, is_watched=is_watched)

    def _arrival(self, pod: PodName, described: Description) -> events.Arrival | None:
        """The migration that ends in a pod. One that its VM has left is older than the one where the VM is."""
        if described.vm_pod is None:
            return None
        here = self._of_pods.objects().get((pod.namespace, pod.name))
        there = self._of_pods.objects().get((pod.namespace, described.vm_pod))
        if here is None or there is None or objects.created(here) < objects.created(there):
            return None
        return events.Arrival(PodName(described.vm_pod, pod.namespace), described.found.spec.node)

    # ------------------------------------------------------------ what is told

    def _tell(self, asked: Collection[Key]) -> tuple[events.Input, ...]:
        """The pods that differ from what was told, and those that were asked about. Nobody may come between this and the caller."""
        nodes_gone, nodes_seen = self._tell_nodes()
        self._note_policies()
        self._note_machines()
        gone: list[events.Input] = []
        seen: list[events.Input] = []
        keys = self._changed[PODS] | set(asked)
        for key in sorted(keys):
            self._tell_pod(key, gone, seen, is_asked=key in asked)
        self._note_keys(PODS, keys)
        self._changed[PODS].clear()
        whole = []
        if all(watch.has_synced for watch in self._watches()):
            whole = [events.ClusterRead(min(watch.known_at_s for watch in self._watches()))]
        return (*gone, *nodes_gone, *nodes_seen, *seen, *whole)

    def _tell_pod(
        self, key: Key, gone: list[events.Input], seen: list[events.Input], *, is_asked: bool
    ) -> None:
        known, reported = self._of_pods.known.find(key), self._reported.get(key)
        manifest = known.manifest if known is not None else None
        description = self._describe(key, manifest, reported) if manifest is not None else None
        is_new = known is not None and known.is_new and (reported is None or reported.uid != _uid(manifest))
        if reported is not None and not _is_same_row(reported, description):
            gone.append(self._ended(reported))
            del self._reported[key]
            if description is None:
                self._forget(key, reported)
            reported = None
        if known is None or description is None:
            return
        is_changed = reported is None or reported.description.found != description.found
        if not is_changed and not is_asked:
            self._reported[key] = Reported(description, reported.reading if reported is not None else None)
            return
        found = description.found
        if not isinstance(found, FoundVm):
            self._reported[key] = Reported(description, None)
            if is_changed:
                seen.append(events.PodSeen(found.spec))
            return
        observation = Observation(found.size, found.target, self._begun_s(key, known, reported, description))
        self._reported[key] = Reported(description, observation)
        seen.append(events.VmSeen(found.spec, observation, self._clock(), is_new and reported is None))

    def _ended(self, reported: Reported) -> events.Input:
        found = reported.description.found
        if isinstance(found, FoundVm):
            return events.VmGone(found.spec.pod, found.spec.uid, self._clock())
        return events.PodGone(found.spec)

    def _forget(self, key: Key, reported: Reported) -> None:
        self._note_faults("pod", key, ())
        if reported.description.machine is not None:
            pods = self._in_machine.get((key[0], reported.description.machine), set())
            pods.discard(key)
            if not pods:
                self._in_machine.pop((key[0], reported.description.machine), None)

    def _begun_s(self, key: Key, known: Known, reported: Reported | None, description: Description) -> float:
        """No change of the pod, or of its VirtualMachine, that was accepted before this moment is missing."""
        if description.is_old and reported is not None and reported.reading is not None:
            return reported.reading.begun_s
        begun_s = max(known.begun_s, self._of_pods.known_at_s)
        if description.machine is not None:
            machine = self._of_machines.known.find((key[0], description.machine))
            whole_s = self._of_machines.known_at_s
            begun_s = min(begun_s, max(machine.begun_s, whole_s) if machine is not None else whole_s)
        return begun_s

    # ------------------------------------------------------------ what pods are

    def _describe(self, key: Key, pod: Manifest, reported: Reported | None) -> Description:
        """The pod. If it cannot be read, its last description still counts; if there is none, it holds the whole node."""
        room: Resources | None = None
        around = PodContext(None)
        try:
            name = reading.node_name(pod)
            node = self._nodes.get(name)
            room = node.allocatable if node is not None else None
            last = (
                reported.description.valid
                if reported is not None and reported.uid == objects.uid(pod)
                else None
            )
            around = replace(self._around(pod, room), last=last, placeholders_in=self._placeholders_in)
            description = reading.describe(pod, around)
            if around.machine_name is not None and around.machine is None:
                # Its owner may be deleted before the pod is, which still holds what the VM has.
                description = _kept(pod, reported, description.faults) or description
        except reading.MALFORMED as error:
            text = self._cannot_be_read(PODS, pod, error)
            description = _kept(pod, reported, (text,)) or Description(
                reading.unreadable(pod, room, around.machine_holds), (text,), machine=machine_of(pod)
            )
        if description.machine is not None:
            self._in_machine.setdefault((key[0], description.machine), set()).add(key)
        self._note_faults("pod", key, description.faults)
        return description

    def _around(self, pod: Manifest, room: Resources | None) -> PodContext:
        namespace, name = objects.namespace(pod), machine_of(pod)
        policies = self._of_namespace.get(namespace, ())
        known = self._of_machines.known.find((namespace, name)) if name is not None else None
        if known is None or known.manifest is None:
            return PodContext(room, policies, machine_name=name)
        uid = objects.uid(known.manifest)
        try:
            machine = VirtualMachine.read(known.manifest, self._valid_of_machines.get(uid))
            self._valid_of_machines[uid] = machine.valid
            is_served = self._is_served(machine, reading.node_name(pod))
            return PodContext(room, policies, name, machine, is_served=is_served)
        except reading.MALFORMED as error:
            text = f"VirtualMachine {name}: {error}"
            holds = error.holds if isinstance(error, UnreadableVmError) else None
            return PodContext(room, policies, name, machine_fault=text, machine_holds=holds)

    # ------------------------------------------------------------ what pods rest on

    def _tell_nodes(self) -> tuple[list[events.Input], list[events.Input]]:
        nodes, gone, seen = self._of_nodes.objects(), list[events.Input](), list[events.Input]()
        others: set[str] = set()
        for key in sorted(self._changed[NODES]):
            found, name = nodes.get(key), key[1]
            if found is None:
                self._note_faults("node", key, ())
                if self._nodes.pop(name, None) is not None:
                    gone.append(events.NodeGone(name))
                continue
            try:
                spec = reading.node_of(found)
            except reading.MALFORMED as error:
                # Its last description still counts. A node that was never told takes no growth.
                self._note_faults("node", key, (self._cannot_be_read(NODES, found, error),))
                continue
            self._note_faults("node", key, ())
            if self._nodes.get(name) != spec:
                self._nodes[name] = spec
                others.add(name)
                seen.append(events.NodeSeen(spec))
        self._changed[NODES].clear()
        if others:
            self._look_again(lambda pod: reading.node_name(pod) in others)
        if gone or seen:
            rooms = (spec.allocatable for spec in self._nodes.values())
            self._largest_room = reduce(Resources.max, rooms, ZERO)
        return gone, seen

    def _note_policies(self) -> None:
        policies, namespaces = self._of_policies.objects(), set[str]()
        for key in self._changed[SCALING_POLICIES]:
            before, found, faults = self._policies.pop(key, None), policies.get(key), tuple[str, ...]()
            if found is not None:
                try:
                    self._policies[key] = ScalingPolicy.read(found)
                except reading.MALFORMED as error:
                    faults = (self._cannot_be_read(SCALING_POLICIES, found, error),)
                    if before is not None:
                        self._policies[key] = before
            self._note_faults("ScalingPolicy", key, faults)
            if self._policies.get(key) != before:  # else only its status was written
                namespaces.add(key[0])
        self._changed[SCALING_POLICIES].clear()
        for namespace in namespaces:
            self._of_namespace[namespace] = [
                policy for key, policy in self._policies.items() if key[0] == namespace
            ]
        if namespaces:
            self._look_again(lambda pod: objects.namespace(pod) in namespaces)

    def _note_machines(self) -> None:
        if self._changed[VIRTUAL_MACHINES]:
            there = {objects.uid(each) for each in self._of_machines.objects().values()}
            for uid in self._valid_of_machines.keys() - there:
                del self._valid_of_machines[uid]
        for key in self._changed[VIRTUAL_MACHINES]:
            self._note_keys(PODS, self._in_machine.get(key, set()))
        self._changed[VIRTUAL_MACHINES].clear()

    def _look_again(self, is_concerned: Callable[[Manifest], bool]) -> None:
        """Describe some pods anew, because what they rest on has changed."""
        self._note_keys(PODS, {key for key, pod in self._of_pods.objects().items() if is_concerned(pod)})

    def _machines_of(self, keys: Iterable[Key]) -> Iterator[Key]:
        for key in keys:
            pod = self._of_pods.objects().get(key)
            name = machine_of(pod) if pod is not None else None
            if name is not None:
                yield key[0], name

    # ------------------------------------------------------------ faults

    def _cannot_be_read(self, type_: ResourceType, manifest: Manifest, error: Exception) -> str:
        text = f"cannot be read: {error if str(error) else repr(error)}"
        if self._tell_fault is not None:
            self._tell_fault(type_, manifest, text)
        return text

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


def _uid(manifest: Manifest | None) -> str | None:
    return objects.uid(manifest) if manifest is not None else None


def _is_same_row(reported: Reported, description: Description | None) -> bool:
    """Whether the pod is the holder that was told: the same UID, scaled then and now, or not."""
    if description is None:
        return False
    before, now = reported.description.found, description.found
    return before.spec.uid == now.spec.uid and type(before) is type(now)


def _kept(pod: Manifest, reported: Reported | None, faults: tuple[str, ...]) -> Description | None:
    """A VM as it was told last; None if the pod was told as none."""
    if reported is None or not isinstance(reported.description.found, FoundVm) or reported.uid != _uid(pod):
        return None
    last = reported.description
    return replace(last, faults=faults, is_old=True)
