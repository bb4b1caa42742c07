"""VMs as the API server shows them: the pods and VirtualMachines of this node that somebody wants scaled.

The reflectors keep the objects up to date and are run by the maker of this source, which reads their stores.
"""

import asyncio
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Final, Protocol

from agent.core.ports import VmChange, VmDescription, VmSourceError
from agent.sources.described import (
    AgentChecks,
    Fixed,
    Found,
    NodeFacts,
    changes_between,
    describe,
    describe_machine,
    room_of,
)
from hosting.kubernetes import objects
from hosting.kubernetes.annotations import Valid
from hosting.kubernetes.resources import Manifest
from hosting.kubernetes.scaling import ScalingPolicy

CHECK_S: Final = 2.0
"""How often faults of the reflectors are looked for."""
GRACE_S: Final = 5.0
"""A fault is told once it has lasted so long: a watch that is begun anew is none."""
SYNC_S: Final = 10.0
"""How long the first call waits for the lists."""


class Store(Protocol):
    """The objects of one type, as a reflector keeps them."""

    def objects(self) -> Mapping[tuple[str, str], Manifest]:
        """All of them, by namespace and name."""

    async def synced(self) -> None:
        """Return when a whole list has been seen."""

    @property
    def fault(self) -> str:
        """Why the objects may be out of date; empty if they are not."""


@dataclass(frozen=True, slots=True)
class Stores:
    """The watched objects: the node's pods, the node itself, every ScalingPolicy, and every VirtualMachine if there are any."""

    pods: Store
    node: Store
    policies: Store
    machines: Store | None = None

    def by_name(self) -> Iterator[tuple[str, Store]]:
        """Each store with the name of its objects."""
        yield "pods", self.pods
        yield "node", self.node
        yield "ScalingPolicies", self.policies
        if self.machines is not None:
            yield "VirtualMachines", self.machines


class KubernetesSource:
    """The VMs of `node`. `informant` is the URL of its informant; `fixed` names the resources of a pod that may not be changed, `checks`
    are the agent's own checks of annotations. `note_change` is to be called whenever a store has changed."""

    def __init__(
        self, node: str, stores: Stores, informant: str, fixed: Fixed, checks: AgentChecks | None = None
    ) -> None:
        self._node = node
        self._stores = stores
        self._informant = informant
        self._fixed = fixed
        self._checks = checks or AgentChecks()
        self._changed = asyncio.Event()
        self._told: dict[str, VmDescription] | None = None
        self._is_faulty = False
        self._good_s = 0.0
        """When the stores were without faults last."""
        self._found: dict[str, Found] = {}
        self._facts: NodeFacts | None = None
        self._policies: dict[tuple[str, str], ScalingPolicy] = {}
        """As they were read last."""

    def note_change(self, _: object = None) -> None:
        self._changed.set()

    @property
    def has_looked(self) -> bool:
        """Whether the stores were read at least once."""
        return self._told is not None

    def found(self) -> Mapping[str, Found]:
        """The objects to be scaled, by `namespace/name` of the pod, or of the VirtualMachine that has none here. As of the last look."""
        return self._found

    async def changes(self) -> tuple[VmChange, ...]:
        while True:
            is_first, was_faulty = self._told is None, self._is_faulty
            if was_faulty or not is_first:
                await self._something()
            try:
                if is_first:
                    await self._first_lists()
                news = self._news()
            except VmSourceError:
                self._is_faulty = True
                raise
            self._is_faulty = False
            if news or was_faulty or is_first:
                return news

    async def _first_lists(self) -> None:
        for name, store in self._stores.by_name():
            try:
                async with asyncio.timeout(SYNC_S):
                    await store.synced()
            except TimeoutError:
                raise VmSourceError(f"{name}: {store.fault or 'not listed yet'}") from None

    async def _something(self) -> None:
        """Wait for a change, or until faults are to be looked for."""
        with suppress(TimeoutError):
            async with asyncio.timeout(CHECK_S):
                await self._changed.wait()
        self._changed.clear()

    def _news(self) -> tuple[VmChange, ...]:
        """The changes by the stores, told from now on. Nothing is awaited between this and the return. Raises `VmSourceError`."""
        self._check()
        facts = self._read_facts()
        last = {objects.uid(each.manifest): each.valid for each in self._found.values()}
        found = dict(self._pods(facts, last))
        found |= self._machines(last)
        now = {name: each.description for name, each in found.items() if each.description is not None}
        before, self._told, self._found, self._facts = self._told or {}, now, found, facts
        return tuple(changes_between(before, now))

    def _check(self) -> None:
        """Raises `VmSourceError` if the stores may have been out of date for a while."""
        faults = [f"{name}: {store.fault}" for name, store in self._stores.by_name() if store.fault]
        now_s = asyncio.get_running_loop().time()
        if not faults:
            self._good_s = now_s
        elif now_s - self._good_s >= GRACE_S:
            raise VmSourceError("; ".join(faults))

    def _pods(self, facts: NodeFacts, last: Mapping[str, Valid | None]) -> Iterator[tuple[str, Found]]:
        for (namespace, name), pod in self._stores.pods.objects().items():
            known = self._found.get(f"{namespace}/{name}")
            is_same = known is not None and known.manifest is pod and facts == self._facts
            described = known if is_same else describe(pod, facts, last.get(objects.uid(pod)))
            if described is not None:
                yield f"{namespace}/{name}", described

    def _machines(self, last: Mapping[str, Valid | None]) -> Iterator[tuple[str, Found]]:
        if self._stores.machines is None:
            return
        pods = self._stores.pods.objects()
        for (namespace, name), manifest in self._stores.machines.objects().items():
            valid = last.get(objects.uid(manifest))
            described = describe_machine(manifest, self._node, pods, valid, self._checks.of_machines)
            if described is not None:
                spec = described.description
                yield spec.vm.name if spec is not None else f"{namespace}/{name}", described

    def _read_facts(self) -> NodeFacts:
        nodes = self._stores.node.objects().values()
        try:
            room = room_of(next(iter(nodes)))
        except StopIteration:
            raise VmSourceError("the API server knows no such node") from None
        except ValueError as error:
            raise VmSourceError(str(error)) from None
        policies, faults = self._read_policies()
        return NodeFacts(room, self._informant, policies, self._fixed, self._checks.of_pods, faults)

    def _read_policies(self) -> tuple[tuple[ScalingPolicy, ...], tuple[tuple[str, str], ...]]:
        """The ScalingPolicies, and the faults of those that cannot be read, each with its namespace. The last good reading of one counts on."""
        before, self._policies = self._policies, {}
        faults: list[tuple[str, str]] = []
        for key, manifest in sorted(self._stores.policies.objects().items()):
            try:
                self._policies[key] = ScalingPolicy.read(manifest)
            except ValueError as error:
                faults.append((key[0], f"ScalingPolicy {key[1]} cannot be read: {error}"))
                if key in before:
                    self._policies[key] = before[key]
        return tuple(self._policies.values()), tuple(faults)
