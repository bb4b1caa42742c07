"""Plants of pods: the fake API server with one pod, and a node, on a clock that moves only when a test says so.

The node reads the spec after a while, allocates it, puts it into force later, and writes its status each time. What API server and node
do besides is in a `PodProfile`.
"""

import copy
import json
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from agent.backends.change_log import FILE_NAME, ChangeLog, LoggedSizes
from agent.backends.pod.backend import PodBackend
from agent.backends.pod.containers import DivisionRules
from agent.core.ports import VmBackend
from hosting.kubernetes import pods
from hosting.kubernetes.api import ApiCredentials, KubernetesApi, UnreachableError
from hosting.kubernetes.resources import PODS, Manifest
from protocol.values import ZERO, Observation, Resources
from tests.conformance.vm_backend_clauses import BackendPlant, Traits
from tests.conformance.vm_backend_simulated import Virtual
from tests.support.amounts import cu
from tests.support.kube_api import FakeApiServer
from tests.support.kube_patches import patched
from tests.support.kube_store import Change, RefusalError
from tests.unit.agent.driver import VM

KEY: Final = ("default", "pod-a")
RESIZING: Final = {"type": pods.IN_PROGRESS, "status": "True"}


@dataclass(frozen=True, slots=True)
class PodProfile:
    """The behaviour of API server and node. Seconds: `there` and `back` of each call, until the node reads a spec (`reads`), from then
    until what was read is in force (`acts`), and from each of them until the pod's status tells it (`tells`). Chances: a call is cut before or after its effect, a write arrives `travels` seconds
    after its sender gave up. `chatters`: the node writes its status that often for no reason."""

    there: float = 0.0
    back: float = 0.0
    reads: float = 0.2
    acts: float = 0.2
    tells: float = 0.0
    cut_before: float = 0.0
    cut_after: float = 0.0
    travels: float = 0.0
    chatters: float = 0.0


PROFILES: Final[dict[str, PodProfile]] = {
    "at once": PodProfile(reads=0.0, acts=0.0),
    "with delay": PodProfile(),
    "latency": PodProfile(there=0.15, back=0.1),
    "slow node": PodProfile(reads=0.05, acts=0.6, tells=0.5, there=0.05),
    "failing": PodProfile(cut_before=0.2, cut_after=0.2, there=0.1),
    "late": PodProfile(there=0.2, travels=3.0, cut_before=0.4),
    "a node that writes all the time": PodProfile(there=0.1, back=0.1, chatters=0.35),
}


def _pod(size: Resources) -> Manifest:
    amount = size.written()
    both = {"requests": amount, "limits": amount}
    container = {"name": "c", "allocatedResources": amount, "resources": both}
    return {
        "metadata": {"name": KEY[1], "namespace": KEY[0]},
        "spec": {"containers": [{"name": "c", "resources": both}]},
        "status": {
            "phase": "Running",
            "qosClass": "Guaranteed",
            "observedGeneration": 1,
            "containerStatuses": [container],
        },
    }


class PodWorld:
    """The API server's pod and its node. `in_force` is what the kernel has."""

    def __init__(self, virtual: Virtual, profile: PodProfile, rng: random.Random, size: Resources) -> None:
        self.virtual = virtual
        self.profile = profile
        self.rng = rng
        self.server = FakeApiServer()
        self.server.put(PODS, _pod(size))["metadata"]["uid"] = VM.pod_uid
        self.in_force = self._heads_for = size
        self._generation = 1
        self._last = Observation(size, size, 0.0)
        self._is_spoilt = False
        self._moments: list[tuple[float, Callable[[], None]]] = []
        self.server.store.on_change.append(self._changed)
        if profile.chatters:
            self.at(profile.chatters, self._chatter)

    @property
    def pod(self) -> Manifest:
        return self.server.get(PODS, *KEY)

    def settle(self) -> None:
        """Everything whose moment has come has happened."""
        while self._moments and min(self._moments, key=lambda each: each[0])[0] <= self.virtual.now_s:
            moment = min(self._moments, key=lambda each: each[0])
            self._moments.remove(moment)
            moment[1]()

    def at(self, delay_s: float, action: Callable[[], None]) -> None:
        """Let something happen later."""
        self._moments.append((self.virtual.now_s + delay_s, action))

    def spoil(self) -> None:
        """Nobody can read the pod any more."""
        self._last, self._is_spoilt = self.truth(), True
        spoilt = {"containers": [{"name": "c", "resources": {"requests": {"cpu": "much"}}}]}
        self.server.store.update(PODS, KEY, self.pod | {"spec": spoilt})

    def truth(self) -> Observation:
        """Size and target as they are: what the kernel has, and what the node is at, whatever the spec says by now."""
        self.settle()
        if self._is_spoilt:
            return self._last
        target, is_on_its_way = pods.target(self.pod), self._generation != pods.generation(self.pod)
        size = self.in_force
        if is_on_its_way:
            size = size.max(self._heads_for)
        elif size == target:  # at rest when the status says so
            size = pods.size(self.pod)
        return Observation(size, target, self.virtual.now_s)

    # ---------------------------------------------------------------- the node

    def _changed(self, change: Change) -> None:
        assert change.now is not None
        assert change.before is not None
        if not self._is_spoilt and pods.generation(change.now) != pods.generation(change.before):
            self.at(self.profile.reads, self._read)

    def _write_status(self, status: Manifest) -> None:
        self.server.store.update(PODS, KEY, self.pod | {"status": self.pod["status"] | status}, "status")

    def _chatter(self) -> None:
        self._write_status({"chatter": self.virtual.now_s})
        self.at(self.profile.chatters, self._chatter)

    def _read(self) -> None:
        generation, wanted = pods.generation(self.pod), pods.target(self.pod)
        if generation == self._generation:
            return
        self._generation, self._heads_for = generation, wanted
        allocated = {"allocatedResources": wanted.written()}
        self.at(self.profile.tells, lambda: self._tell(generation, allocated, [RESIZING]))
        self.at(self.profile.acts, lambda: self._act(generation, wanted))

    def _act(self, generation: int, wanted: Resources) -> None:
        if generation != self._generation:
            return
        self.in_force = wanted
        actual = {"resources": {"requests": wanted.written(), "limits": wanted.written()}}
        self.at(self.profile.tells, lambda: self._tell(generation, actual, []))

    def _tell(self, generation: int, found: Manifest, conditions: list[Manifest]) -> None:
        (container,) = self.pod["status"]["containerStatuses"]
        self._write_status(
            {
                "observedGeneration": generation,
                "containerStatuses": [container | found],
                "conditions": conditions,
            }
        )


class PodsApi(KubernetesApi):
    """Calls that arrive in a `PodWorld`, with its delays and faults."""

    def __init__(self, world: PodWorld) -> None:
        super().__init__(ApiCredentials(), user_agent="test", connection=world.server)
        self._world = world

    async def call(self, method: str, path: str, *, deadline_s: float = 5.0, **more: Any) -> Manifest:
        world, profile = self._world, self._world.profile
        is_cut, is_lost = world.rng.random() < profile.cut_before, world.rng.random() < profile.cut_after
        is_impatient = deadline_s < profile.there
        if method == "PATCH" and (is_impatient or (profile.travels > 0 and is_cut)):
            sent = copy.deepcopy(more)
            world.at(profile.travels or profile.there, lambda: self._arrive(path, **sent))
        await self._pause(min(profile.there, deadline_s))
        if is_cut or is_impatient:
            raise UnreachableError("cut before")
        world.settle()
        answer = copy.deepcopy(await super().call(method, path, **more))
        await self._pause(profile.back)
        if is_lost:
            raise UnreachableError("cut after")
        return answer

    async def _pause(self, seconds: float) -> None:
        if seconds > 0:
            await self._world.virtual.clock().sleep(seconds)

    def _arrive(self, path: str, *, body: Any, content_type: str, **_: Any) -> None:
        """The effect of a write whose sender has given up."""
        store, change = self._world.server.store, patched(self._world.pod, body, content_type)
        with suppress(RefusalError):
            store.update(PODS, KEY, change, path.removeprefix(PODS.path(*KEY)).removeprefix("/"))


class UseLog(ChangeLog):
    """A change log that is compared with the truth at every line: max(size, target) is never above it."""

    def __init__(self, directory: Path, look: Callable[[], Observation]) -> None:
        super().__init__(directory, "node-a")
        self._look = look
        self.shown = {"size": ZERO, "target": ZERO}
        self.faults: list[str] = []

    def size(self, vm: str, amount: Resources) -> None:
        super().size(vm, amount)
        self.shown["size"] = amount
        self.compare(f"after size {amount}")

    def target(self, vm: str, amount: Resources) -> None:
        super().target(vm, amount)
        self.shown["target"] = amount
        self.compare(f"after target {amount}")

    def gone(self, vm: str) -> None:
        super().gone(vm)
        self.shown = {"size": ZERO, "target": ZERO}

    def compare(self, moment: str) -> None:
        truth, shown = self._look(), self.shown["size"].max(self.shown["target"])
        if ZERO not in self.shown.values() and not truth.use.fits_in(shown):
            self.faults.append(f"{moment}: {truth.size} to {truth.target}, logged {self.shown}")


@contextmanager
def planted(
    directory: Path, profile: PodProfile, seed: int = 0, kind: type[PodBackend] = PodBackend
) -> Iterator[BackendPlant]:
    """A plant whose back ends are of `kind`."""
    virtual, rng = Virtual(), random.Random(seed)
    directory.mkdir(exist_ok=True)
    world = PodWorld(virtual, profile, rng, cu(2))
    with UseLog(directory, world.truth) as log:

        def opened() -> VmBackend:
            now_s = virtual.clock().now_s
            return kind(PodsApi(world), LoggedSizes(log), lambda _: DivisionRules(), now_s, now_s)

        async def look() -> Observation:
            log.compare("at a look")
            return world.truth()

        yield BackendPlant(
            Traits(is_slow=profile.reads > 0 and not profile.cut_before),
            opened,
            look,
            world.spoil,
            lambda: [json.loads(line) for line in (directory / FILE_NAME).read_text().splitlines()],
            lambda: log.faults,
            lambda: virtual.now_s,
            virtual.go_on,
            virtual.wait,
        )
