"""Plants of pods: an API server and a node in memory, on a clock that moves only when a test says so.

The API server keeps one pod, with resourceVersion, generation and the two subresources that the back end writes. The node reads the
spec after a while, allocates it, puts it into force later, and writes its status each time. What the node does besides is in a
`PodProfile`.
"""

import copy
import json
import random
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from agent.backends.change_log import FILE_NAME, ChangeLog
from agent.backends.logged_sizes import LoggedSizes
from agent.backends.pod.backend import PodBackend
from agent.backends.pod.distribution import DivisionRules
from agent.core.ports import VmBackend
from hosting.kubernetes import pods
from hosting.kubernetes.api import ApiCredentials, KubernetesApi, RefusedError, UnreachableError
from hosting.kubernetes.resources import Manifest
from protocol import quantities
from protocol.values import ZERO, Observation, Resources
from tests.conformance.vm_backend_clauses import BackendPlant, Traits
from tests.conformance.vm_backend_simulated import Virtual
from tests.support.amounts import cu

PATH: Final = "/api/v1/namespaces/default/pods/pod-a"


@dataclass(frozen=True, slots=True)
class PodProfile:
    """What API server and node do. Seconds: `there` and `back` of each call, until the node reads a spec (`reads`), and until
    what was read is in force (`acts`). Chances: a call is cut before or after its effect, a write arrives `travels` seconds
    after its sender gave up. `chatters`: the node writes its status that often for no reason."""

    there: float = 0.0
    back: float = 0.0
    reads: float = 0.2
    acts: float = 0.2
    cut_before: float = 0.0
    cut_after: float = 0.0
    travels: float = 0.0
    chatters: float = 0.0


PROFILES: Final[dict[str, PodProfile]] = {
    "at once": PodProfile(reads=0.0, acts=0.0),
    "with delay": PodProfile(),
    "latency": PodProfile(there=0.15, back=0.1),
    "slow node": PodProfile(reads=0.7, acts=0.6, there=0.05),
    "failing": PodProfile(cut_before=0.2, cut_after=0.2, there=0.1),
    "late": PodProfile(there=0.2, travels=3.0, cut_before=0.4),
    "a node that writes all the time": PodProfile(there=0.1, back=0.1, chatters=0.35),
}


def _written(amount: Resources) -> dict[str, str]:
    return amount.written()


def _pod(size: Resources) -> Manifest:
    """A Guaranteed pod of one container."""
    amount = _written(size)
    return {
        "metadata": {
            "name": "pod-a",
            "namespace": "default",
            "uid": "uid-a",
            "resourceVersion": "1",
            "generation": 1,
        },
        "spec": {"containers": [{"name": "c", "resources": {"requests": amount, "limits": amount}}]},
        "status": {
            "phase": "Running",
            "qosClass": "Guaranteed",
            "observedGeneration": 1,
            "containerStatuses": [
                {
                    "name": "c",
                    "allocatedResources": amount,
                    "resources": {"requests": amount, "limits": amount},
                }
            ],
        },
    }


class PodWorld:
    """The API server's pod and its node. `read` is the spec that the node is at, `in_force` what the kernel has."""

    def __init__(self, virtual: Virtual, profile: PodProfile, rng: random.Random, size: Resources) -> None:
        self.virtual = virtual
        self.profile = profile
        self.rng = rng
        self.pod = _pod(size)
        self.in_force = size
        self.is_spoilt = False
        self._read = 1
        self._moments: list[tuple[float, Callable[[], None]]] = []
        if profile.chatters:
            self._at(profile.chatters, self._chatter)

    # ---------------------------------------------------------------- the node

    def settle(self) -> None:
        """Everything whose moment has come has happened."""
        while self._moments and min(self._moments, key=lambda each: each[0])[0] <= self.virtual.now_s:
            moment = min(self._moments, key=lambda each: each[0])
            self._moments.remove(moment)
            moment[1]()

    def _at(self, delay_s: float, action: Callable[[], None]) -> None:
        self._moments.append((self.virtual.now_s + delay_s, action))

    def _changed(self) -> None:
        self.pod["metadata"]["resourceVersion"] = str(int(self.pod["metadata"]["resourceVersion"]) + 1)

    def _chatter(self) -> None:
        self.pod["status"]["chatter"] = self.virtual.now_s
        self._changed()
        self._at(self.profile.chatters, self._chatter)

    def _read_spec(self) -> None:
        generation = self.pod["metadata"]["generation"]
        if self._read >= generation:
            return
        self._read = generation
        wanted = pods.target(self.pod)
        status = self.pod["status"]
        status["observedGeneration"] = generation
        status["containerStatuses"][0]["allocatedResources"] = _written(wanted)
        status["conditions"] = [{"type": pods.IN_PROGRESS, "status": "True"}]
        self._changed()
        self._at(self.profile.acts, lambda: self._act(generation, wanted))

    def _act(self, generation: int, wanted: Resources) -> None:
        if self._read != generation:
            return
        self.in_force = wanted
        status = self.pod["status"]
        status["containerStatuses"][0]["resources"] = {
            "requests": _written(wanted),
            "limits": _written(wanted),
        }
        status["conditions"] = []
        self._changed()

    # ---------------------------------------------------------------- the API server

    def get(self) -> Manifest:
        self.settle()
        return {"kind": "garbage"} if self.is_spoilt else copy.deepcopy(self.pod)

    def patch(self, path: str, body: Mapping[str, Any]) -> Manifest:
        self.settle()
        if self.is_spoilt:
            raise RefusedError(500, "InternalError", "it is spoilt")
        if body["metadata"]["resourceVersion"] != self.pod["metadata"]["resourceVersion"]:
            raise RefusedError(409, "Conflict", "the object has been modified")
        if path.endswith("/status"):
            found = self.pod["metadata"].setdefault("annotations", {})
            found.update(body["metadata"]["annotations"])
            self._changed()
        else:
            self._resize(body)
        return copy.deepcopy(self.pod)

    def _resize(self, body: Mapping[str, Any]) -> None:
        resources = self.pod["spec"]["containers"][0]["resources"]
        after = {key: dict(value) for key, value in resources.items()}
        for each in body["spec"]["containers"]:
            for key, value in each["resources"].items():
                after[key].update(value)
        if after["requests"] != after["limits"]:
            raise RefusedError(422, "Invalid", "Pod QOS Class may not change as a result of resizing")
        if after == resources:
            return
        self.pod["spec"]["containers"][0]["resources"] = after
        self.pod["metadata"]["generation"] += 1
        self._changed()
        self._at(self.profile.reads, self._read_spec)
        self.settle()

    def truth(self) -> Observation:
        """Size and target as they are: what the kernel has, and what it will be given next, whatever the spec says by now."""
        self.settle()
        allocated = self.pod["status"]["containerStatuses"][0]["allocatedResources"]
        read = Resources(
            quantities.parse(allocated["cpu"]).milli_value(), quantities.parse(allocated["memory"]).value()
        )
        target = pods.target(self.pod)
        size = self.in_force if read == target else self.in_force.max(read)
        return Observation(size, target, self.virtual.now_s)


class PodsApi(KubernetesApi):
    """Calls that arrive in a `PodWorld`."""

    def __init__(self, world: PodWorld) -> None:
        super().__init__(ApiCredentials(), user_agent="test")
        self._world = world

    async def call(
        self, method: str, path: str, *, body: Any = None, deadline_s: float = 5.0, **_: Any
    ) -> Manifest:
        world, profile = self._world, self._world.profile
        if not path.startswith(PATH):
            raise RefusedError(404, "NotFound", "there is no such pod")
        is_cut, is_lost = world.rng.random() < profile.cut_before, world.rng.random() < profile.cut_after
        is_impatient = deadline_s < profile.there
        if method == "PATCH" and (is_impatient or (profile.travels > 0 and is_cut)):
            sent = copy.deepcopy(body)
            world._at(profile.travels or profile.there, lambda: _silently(world, path, sent))
        await self._pause(min(profile.there, deadline_s))
        if is_cut or is_impatient:
            raise UnreachableError("cut before")
        answer = world.get() if method == "GET" else world.patch(path, body)
        await self._pause(profile.back)
        if is_lost:
            raise UnreachableError("cut after")
        return answer

    async def _pause(self, seconds: float) -> None:
        if seconds > 0:
            await self._world.virtual.clock().sleep(seconds)


def _silently(world: PodWorld, path: str, body: Mapping[str, Any]) -> None:
    with suppress(RefusedError):
        world.patch(path, body)


class _UseLog(ChangeLog):
    """A change log that is compared with the truth at every line: max(size, target) is never above it."""

    def __init__(self, directory: Path, world: PodWorld) -> None:
        super().__init__(directory, "node-a")
        self._world = world
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

    def compare(self, moment: str) -> None:
        truth, shown = self._world.truth(), self.shown["size"].max(self.shown["target"])
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
    with _UseLog(directory, world) as log:

        def opened() -> VmBackend:
            now_s = virtual.clock().now_s
            return kind(PodsApi(world), LoggedSizes(log), lambda _: DivisionRules(), now_s, now_s)

        async def look() -> Observation:
            log.compare("at a look")
            return world.truth()

        def spoil() -> None:
            world.is_spoilt = True

        yield BackendPlant(
            Traits(is_slow=profile.reads > 0 and not profile.cut_before),
            opened,
            look,
            spoil,
            lambda: [json.loads(line) for line in (directory / FILE_NAME).read_text().splitlines()],
            lambda: log.faults,
            lambda: virtual.now_s,
            virtual.go_on,
            virtual.wait,
        )
