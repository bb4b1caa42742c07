"""Pods resized in place, through the subresource `pods/resize` (Kubernetes 1.34 or newer). Source: reference/kubernetes.md 4.

No write is blind: each rests on one reading of the pod and names its resourceVersion, so that the API server refuses the write once
anything has changed. A fence marks the pod with the generation of the new life, which makes void all writes of an earlier life.
A write without an answer is doubtful: before the next look is told, either the pod has changed since, or it is marked again.

A pod is not resized while a container that is scaled is dead (docs/decisions/0038-a-dead-container-is-not-resized.md). The pod's status is up to seconds
late to tell of an end, so the node informant is asked right before the write.
"""

import dataclasses
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from agent.backends.change_log import LoggedSizes
from agent.backends.mark import Mark
from agent.backends.pod import containers
from agent.backends.pod.containers import (
    DivisionRules,
    KnownPod,
    NotDivisibleError,
    resize_patch,
    why_never,
    why_not_now,
)
from agent.core.model import PodObservation, Vm
from agent.core.ports import (
    BackendError,
    BoundedMemo,
    Capabilities,
    Fencing,
    NotNowError,
    ResizeRefusedError,
    check_moment,
    other_target,
)
from hosting.kubernetes import objects, pods
from hosting.kubernetes.errors import KubernetesError, RefusedError
from hosting.kubernetes.resources import PODS, STRATEGIC_PATCH, Manifest
from protocol.informant_pages import PodCgroups
from protocol.values import Observation, Resources

if TYPE_CHECKING:
    from hosting.kubernetes.api import KubernetesApi

WRITE_DEADLINE_S: Final = 4.0
"""How long the API server may take for a resize, counted there; after it a write is not accepted any more."""
COMMAND_DEADLINE_S: Final = WRITE_DEADLINE_S + 1.0
LOOK_EVERY_S: Final = 0.25
"""A kubelet looks at its containers once a second, so a resize takes one to two seconds. Each look is a call to the API server."""
LOOK_AT_REST_EVERY_S: Final = 30.0
"""A pod whose size nobody changes is read for nothing, and there are many. The agent's own write needs no fresh reading: it is refused if
somebody else was quicker."""
TRUSTED_AFTER_S: Final = 30.0
"""A container that has no process by its control group, and runs by the pod's status for so long, runs: some runtimes name their groups otherwise."""
ATTEMPTS: Final = 4
"""So often a write is tried that meets a newer version of the pod: the node writes its status at any time."""


@dataclass(slots=True)
class _Account:
    """The knowledge of this process about one pod. `doubtful` is the resourceVersion on which a write without an answer rests. `unseen` are
    containers without a process that run by the pod's status, and since when that is known."""

    known: KnownPod | None = None
    doubtful: str | None = None
    unseen: tuple[str, float] = ("", 0.0)


async def nothing_known(_: Vm) -> PodCgroups | None:
    """There is no node informant."""
    return None


@dataclass(eq=False, slots=True)
class PodBackend:
    """The `VmBackend` port over `pods/resize`. `rules` says how the pod `namespace/name` is divided among its containers; `cgroups` reads
    its control groups, and gives None if they are unknown."""

    api: "KubernetesApi"
    sizes: LoggedSizes
    rules: Callable[[str], DivisionRules]
    clock: Callable[[], float] = time.monotonic
    unix_clock: Callable[[], float] = time.time
    cgroups: Callable[[Vm], Awaitable[PodCgroups | None]] = nothing_known
    _accounts: BoundedMemo[_Account] = field(default_factory=lambda: BoundedMemo(_Account), init=False)

    @property
    def capabilities(self) -> Capabilities:
        """The API server ends a write after its deadline."""
        return Capabilities(COMMAND_DEADLINE_S, LOOK_EVERY_S, LOOK_AT_REST_EVERY_S)

    async def fence(self, vm: Vm) -> Fencing:
        """Mark the pod: every write that rests on an earlier version is refused from now on."""
        for _ in range(ATTEMPTS):
            pod = await self._read(vm)
            mark = Mark.after(Mark.of(pod), self.unix_clock())
            if await self._marked(vm, pod, mark):
                return Fencing(mark.generation)
        raise BackendError("the pod changes too often to be marked")

    async def observe(self, vm: Vm) -> Observation:
        """The pod's size and target, and its containers. The size of a pod at rest is the amount that its control groups allow."""
        known, seen = await self._look(vm)
        found = containers.seen(known.pod, self.rules(vm.name).names(known.pod))
        look = PodObservation(seen.size, seen.target, seen.begun_s, seen.refusal, found)
        cgroups = await self.cgroups(vm) if seen.is_at_rest else None
        if cgroups is None:
            return look
        if not containers.judged(known.pod, seen, cgroups).mismatched:
            return dataclasses.replace(look, containers=replace(found, is_judged=True))
        # The groups were read after the pod: a newer spec may be in force by now.
        again, seen = await self._look(vm)
        if pods.generation(again.pod) != pods.generation(known.pod):
            return dataclasses.replace(
                look, size=seen.size, target=seen.target, begun_s=seen.begun_s, refusal=seen.refusal
            )
        judged = containers.judged(again.pod, seen, cgroups)
        told = replace(found, mismatched=judged.mismatched, mismatch=judged.text, is_judged=True)
        return dataclasses.replace(look, size=judged.size, containers=told)

    async def _look(self, vm: Vm) -> tuple[KnownPod, Observation]:
        """The pod as it is, and as a look shows it."""
        account = self._account(vm)
        for _ in range(ATTEMPTS):
            begun_s = self.clock()
            pod = await self._read(vm)
            if objects.version(pod) == account.doubtful:
                await self._marked(vm, pod, (Mark.of(pod) or Mark(0)).next())
                continue
            if account.doubtful is not None:
                account.doubtful = None
                self.sizes.settled(vm.name)
            assert account.known is not None
            return account.known, account.known.seen(begun_s)
        raise BackendError("a write without an answer may still be accepted")

    async def resize(
        self, vm: Vm, target: Resources, fencing: Fencing, *, seen: Resources, not_after_s: float
    ) -> None:
        """Set the requests of the pod's containers, and their limits with them. Raises `ResizeRefusedError` if the API server
        will not have that size."""
        if not target.is_positive():
            raise BackendError(f"a pod cannot have {target}")
        known = self._account(vm).known
        pod = known.pod if known is not None and known.pod["metadata"]["uid"] == vm.pod_uid else None
        for attempt in range(ATTEMPTS):
            if pod is None or attempt or not _rests_on(pod, fencing, seen, target) or self._dead(vm, pod):
                pod = await self._read(vm)
                _check(pod, fencing, seen, target)
            if pods.target(pod) == target:
                return
            await self._check_running(vm, pod, target)
            if await self._written(vm, pod, target, not_after_s):
                return
        raise BackendError("the pod changes too often to be resized")

    def _dead(self, vm: Vm, pod: Manifest) -> str:
        """Which containers that are scaled do not run by the pod's status; empty if all do."""
        return containers.seen(pod, self.rules(vm.name).names(pod)).waits

    async def _check_running(self, vm: Vm, pod: Manifest, target: Resources) -> None:
        """Raise `NotNowError` while a container that is scaled is dead, by the pod's status or by its control groups.

        The amount that the pod's group allows may be written all the same if it is less than the present target: that takes back growth
        that the kubelet has not done.
        """
        cgroups = await self.cgroups(vm)
        why = self._dead(vm, pod) or (self._unseen(vm, pod, cgroups) if cgroups is not None else "")
        if not why:
            return
        if cgroups is not None:
            judged = containers.judged(pod, KnownPod(pod).seen(0.0), cgroups)
            if judged.mismatched and target == judged.size and target.fits_in(pods.target(pod)):
                return
        raise NotNowError(why)

    def _unseen(self, vm: Vm, pod: Manifest, cgroups: PodCgroups) -> str:
        """Which scaled containers have no process, unless their status has said for long that they run."""
        why = containers.why_dead(pod, self.rules(vm.name).names(pod), cgroups)
        account, now_s = self._account(vm), self.clock()
        if why != account.unseen[0]:
            account.unseen = (why, now_s)
        return "" if now_s - account.unseen[1] >= TRUSTED_AFTER_S else why

    # ---------------------------------------------------------------- calls

    async def _read(self, vm: Vm) -> Manifest:
        number = self.sizes.begin()
        try:
            pod = await self.api.get(PODS, vm.pod.namespace, vm.pod.name)
        except RefusedError as error:
            if error.is_not_found:
                raise BackendError(f"there is no pod {vm.name} any more") from None
            raise BackendError(f"the pod cannot be read: {error}") from None
        except KubernetesError as error:
            raise BackendError(f"the pod cannot be read: {error}") from None
        self._learn(vm, pod, number)
        return pod

    async def _marked(self, vm: Vm, pod: Manifest, mark: Mark) -> bool:
        """Mark the pod; whether it still had the version of the reading."""
        patch, number = mark.patch(objects.version(pod)), self.sizes.begin()
        try:
            marked = await self.api.patch(PODS, vm.pod.namespace, vm.pod.name, patch, subresource="status")
        except RefusedError as error:
            if error.is_conflict:
                return False
            raise BackendError(f"the pod cannot be marked: {error}") from None
        except KubernetesError as error:
            raise BackendError(f"the pod cannot be marked: {error}") from None
        self._learn(vm, marked, number)
        return True

    async def _written(self, vm: Vm, pod: Manifest, target: Resources, not_after_s: float) -> bool:
        """Write the target; whether the pod still had the version of the reading."""
        account, patch = self._account(vm), self._patch(vm, pod, target)
        now_s = self.clock()
        check_moment(now_s, not_after_s)
        before, account.doubtful = account.doubtful, objects.version(pod)
        self.sizes.commanding(vm.name, target)
        try:
            answer = await self.api.patch(
                PODS,
                vm.pod.namespace,
                vm.pod.name,
                patch,
                content_type=STRATEGIC_PATCH,
                subresource="resize",
                query={"timeout": f"{WRITE_DEADLINE_S:g}s"},
                deadline_s=min(WRITE_DEADLINE_S, not_after_s - now_s),
            )
        except RefusedError as error:
            if error.status >= 500:
                raise BackendError(f"the API server failed: {error}") from None
            account.doubtful = before  # this write is not on its way any more; an earlier one may be
            if before is None:
                self.sizes.settled(vm.name)
            if error.is_conflict:
                return False
            raise await self._refusal(vm, error) from None
        except KubernetesError as error:
            raise BackendError(f"the resize may have been accepted: {error}") from None
        account.doubtful = None  # nothing else that rests on that version can be accepted any more
        self.sizes.settled(vm.name)
        self._learn(vm, answer, self.sizes.begin())
        return True

    async def _refusal(self, vm: Vm, error: RefusedError) -> BackendError:
        """The error for a write that the API server has not accepted."""
        if error.is_not_found or error.status == 405:
            await self._read(vm)  # raises if the pod is gone
            return ResizeRefusedError("the API server has no pods/resize: Kubernetes 1.34 or newer is needed")
        if error.is_overloaded or error.status == 401:
            return BackendError(f"the API server takes no resize: {error}")
        return ResizeRefusedError(f"the API server refuses the size: {error.message or error}")

    def _patch(self, vm: Vm, pod: Manifest, target: Resources) -> Manifest:
        why = why_not_now(pod)
        if why is not None:
            raise BackendError(why)
        why = why_never(pod)
        if why is not None:
            raise ResizeRefusedError(why)
        try:
            patch = resize_patch(pod, target, self.rules(vm.name))
        except NotDivisibleError as error:
            raise ResizeRefusedError(str(error)) from None
        return patch | {"metadata": {"resourceVersion": objects.version(pod)}}

    # ---------------------------------------------------------------- knowledge

    def _account(self, vm: Vm) -> _Account:
        return self._accounts.of(vm.name)

    def _learn(self, vm: Vm, pod: Manifest, number: int) -> None:
        """Keep the state that the look of that number, or the answer to a write, showed. Raises `BackendError` for another pod of that
        name."""
        account = self._account(vm)
        try:
            if objects.uid(pod) != vm.pod_uid:
                raise BackendError(f"{vm.name} is another pod by now")
            if pods.is_terminal(pod):
                raise BackendError("the pod has ended")
            before = account.known
            is_same = before is not None and objects.uid(before.pod) == vm.pod_uid
            known = before.then(pod) if before is not None and is_same else KnownPod(pod)
            found = known.seen(0.0)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise BackendError(f"the pod's object cannot be understood: {error!r}") from None
        account.known = known
        self.sizes.seen(vm.name, found.size, found.target, number)


def _rests_on(pod: Manifest, fencing: Fencing, seen: Resources, target: Resources) -> bool:
    """Whether a write may rest on an earlier reading: the API server refuses it if the pod has changed since."""
    mark, stands = Mark.of(pod), pods.target(pod)
    return mark is not None and mark.generation == fencing.generation and stands == seen != target


def _check(pod: Manifest, fencing: Fencing, seen: Resources, target: Resources) -> None:
    """Raise if this life may not replace the present target."""
    Mark.owned(pod, fencing)
    if (stands := pods.target(pod)) not in (seen, target):
        raise other_target(stands, seen)
