"""The back end of pods against a real API server and real kubelets over a made-up runtime: what they answer, and what is read from it."""

import asyncio
import math
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any, TypeVar

import pytest

from agent.backends.change_log import ChangeLog, LoggedSizes
from agent.backends.pod.backend import PodBackend
from agent.backends.pod.containers import DivisionRules
from agent.core.model import Vm, VmKind
from agent.core.ports import BackendError, FencedOffError, Fencing, ResizeRefusedError
from hosting.kubernetes import objects as found
from hosting.kubernetes.api import ApiCredentials, KubernetesApi
from hosting.kubernetes.resources import Manifest
from hosting.kubernetes.scaling import Share
from labs.clusters.control_plane import ControlPlane
from labs.clusters.hollow_nodes import HollowFaults, HollowNodes, NodeSize
from protocol.values import Bounds, ComputeUnit, Observation, Resources
from protocol.wire import PodName
from tests.support.amounts import GIB, MIB
from tests.support.kube.fixtures import MakeHollowNodes
from tests.support.kube.objects import Objects, pod
from tests.support.waiting import shown

T = TypeVar("T")

SMALL = NodeSize(cpu="2", memory="2Gi", allocatable_cpu="1500m", allocatable_memory="1536Mi")
SIZE = Resources(500, 256 * MIB)
TWICE = Resources(1000, 512 * MIB)


class CountingApi(KubernetesApi):
    """Counts the calls that it makes."""

    def __init__(self, credentials: ApiCredentials) -> None:
        super().__init__(credentials, user_agent="test")
        self.methods: list[str] = []

    async def call(self, method: str, path: str, **more: Any) -> Manifest:
        self.methods.append(method)
        return await super().call(method, path, **more)


class PodUnderTest:
    """One pod and a life that commands it, for tests without an event loop."""

    def __init__(
        self, run: Callable[[Coroutine[Any, Any, Any]], Any], api: CountingApi, log: ChangeLog
    ) -> None:
        self._run = run
        self.api = api
        self._log = log
        self.rules = DivisionRules()
        self.backend = self.life()
        self.vm: Vm | None = None
        self.fencing: Fencing | None = None

    def life(self) -> PodBackend:
        """A back end as another process would have it."""
        return PodBackend(self.api, LoggedSizes(self._log), lambda _: self.rules)

    def adopt(self, manifest: Manifest) -> Observation:
        """Fence the pod, and look at it."""
        step = Resources(250, 256 * MIB)
        self.vm = Vm(
            PodName(found.name(manifest), found.namespace(manifest)),
            found.uid(manifest),
            Bounds(step, step * 8),
            ComputeUnit(step, is_apart=True),
            GIB,
            VmKind.POD,
        )
        self.fencing = self._run(self.backend.fence(self.vm))
        return self.look()

    def look(self) -> Observation:
        assert self.vm is not None
        seen: Observation = self._run(self.backend.observe(self.vm))
        return seen

    def resize(self, target: Resources, backend: PodBackend | None = None) -> None:
        assert self.vm is not None
        assert self.fencing is not None
        stands = self.look().target
        call = (backend or self.backend).resize(
            self.vm, target, self.fencing, seen=stands, not_after_s=math.inf
        )
        self._run(call)

    def shows(self, what: str, holds: Callable[[Observation], object]) -> Observation:
        """The first look of which something holds."""
        vm = self.vm
        assert vm is not None

        async def look() -> Observation | None:
            seen = await self.backend.observe(vm)
            return seen if holds(seen) else None

        seen: Observation = self._run(shown(what, look))
        return seen

    def rests(self, at: Resources) -> Observation:
        return self.shows(f"at rest at {at}", lambda seen: seen.is_at_rest and seen.size == at)


@pytest.fixture
def tested(control_plane: ControlPlane, tmp_path: Path) -> Iterator[PodUnderTest]:
    api = CountingApi(ApiCredentials(control_plane.kubeconfig))
    with asyncio.Runner() as runner, ChangeLog(tmp_path, "node") as log:
        runner.run(api.__aenter__())
        yield PodUnderTest(runner.run, api, log)
        runner.run(api.__aexit__())


@pytest.fixture
def nodes(hollow_nodes: MakeHollowNodes) -> HollowNodes:
    return hollow_nodes(size=SMALL)


def _amounts(manifest: Manifest) -> dict[str, Any]:
    return {each["name"]: each["resources"] for each in manifest["spec"]["containers"]}


def test_a_pod_grows_and_shrinks_with_one_write_each(
    objects: Objects, nodes: HollowNodes, tested: PodUnderTest
) -> None:
    (node,) = nodes.names
    seen = tested.adopt(objects.create_pod(pod("p", node=node)))
    assert (seen.size, seen.target, seen.refusal) == (SIZE, SIZE, None)
    for target in (TWICE, Resources(250, 128 * MIB)):
        tested.api.methods.clear()
        tested.resize(target)
        tested.rests(target)
        assert tested.api.methods.count("PATCH") == 1
    container = objects.get("pods", "p")["status"]["containerStatuses"][0]
    assert (container["restartCount"], container["resources"]["limits"]) == (
        0,
        {"cpu": "250m", "memory": "128Mi"},
    )


def test_containers_get_their_shares_and_limits_keep_their_ratio(
    objects: Objects, nodes: HollowNodes, tested: PodUnderTest
) -> None:
    (node,) = nodes.names
    manifest = pod(
        "p",
        node=node,
        requests={"cpu": "200m", "memory": "128Mi"},
        limits={"cpu": "300m", "memory": "256Mi"},
    )
    (first,) = manifest["spec"]["containers"]
    helper = {**first, "name": "helper", "resources": {"requests": {"cpu": "100m", "memory": "64Mi"}}}
    fixed = {**first, "name": "fixed", "resources": {"limits": {"cpu": "50m", "memory": "64Mi"}}}
    manifest["spec"]["containers"] += [helper, fixed]
    tested.rules = DivisionRules({"main": Share(3, 1), "helper": Share(1, 1)})
    running = objects.create_pod(manifest)
    assert tested.adopt(running).size == Resources(350, 256 * MIB)
    target = Resources(450, 320 * MIB)
    tested.resize(target)
    tested.rests(target)
    assert _amounts(objects.get("pods", "p")) == {
        "main": {
            "requests": {"cpu": "300m", "memory": "128Mi"},
            "limits": {"cpu": "450m", "memory": "256Mi"},
        },
        "helper": {"requests": {"cpu": "100m", "memory": "128Mi"}},
        "fixed": _amounts(running)["fixed"],
    }


@pytest.mark.parametrize(
    ("target", "refusal"),
    [
        pytest.param(Resources(1000, 256 * MIB), "Deferred: Node didn't have enough resource: cpu", id="now"),
        pytest.param(
            Resources(5000, 256 * MIB), "Infeasible: Node didn't have enough capacity: cpu", id="ever"
        ),
    ],
)
def test_growth_without_room_is_told_and_can_be_taken_back(
    objects: Objects, nodes: HollowNodes, tested: PodUnderTest, target: Resources, refusal: str
) -> None:
    (node,) = nodes.names
    objects.create_pod(pod("other", node=node, requests={"cpu": "800m", "memory": "256Mi"}))
    tested.adopt(objects.create_pod(pod("p", node=node)))
    tested.resize(target)
    seen = tested.shows("the refusal", lambda seen: seen.refusal)
    assert (seen.size, seen.target) == (SIZE, target)
    assert str(seen.refusal).startswith(refusal)
    tested.resize(SIZE)
    assert tested.rests(SIZE).refusal is None


def test_a_memory_limit_below_use_keeps_the_size_and_is_told(
    objects: Objects, nodes: HollowNodes, tested: PodUnderTest
) -> None:
    (node,) = nodes.names
    tested.adopt(objects.create_pod(pod("p", node=node)))
    nodes.set_usage(node, f"{objects.namespace}/p", "main", 100, 200 * MIB)
    small = Resources(500, 128 * MIB)
    tested.resize(small)
    looks: list[Observation] = []

    def is_refused(seen: Observation) -> bool:
        looks.append(seen)
        return seen.refusal is not None

    seen = tested.shows("the refusal", is_refused)
    sizes = {each.size for each in looks}
    assert (sizes, seen.target) == ({SIZE}, small), (
        "the old limit is in force although the allocation is small"
    )
    assert str(seen.refusal).startswith("Error: ")
    assert "below current usage" in str(seen.refusal)
    tested.resize(SIZE)
    tested.rests(SIZE)


def test_what_is_late_or_fails_is_not_done_until_it_is(
    objects: Objects, nodes: HollowNodes, tested: PodUnderTest
) -> None:
    (node,) = nodes.names
    tested.adopt(objects.create_pod(pod("p", node=node)))
    nodes.set_faults(node, HollowFaults(update_error="no such luck"))
    tested.resize(TWICE)
    seen = tested.shows("the error", lambda seen: seen.refusal)
    assert (seen.size, seen.target) == (SIZE, TWICE)
    assert "no such luck" in str(seen.refusal)
    nodes.set_faults(node, HollowFaults(update_delay_ms=1500))
    tested.rests(TWICE)


def test_a_node_without_its_kubelet_has_done_nothing(
    objects: Objects, nodes: HollowNodes, tested: PodUnderTest
) -> None:
    (node,) = nodes.names
    tested.adopt(objects.create_pod(pod("p", node=node)))
    nodes.kill()
    tested.resize(TWICE)
    tested.resize(SIZE)
    seen = tested.look()
    assert (seen.size, seen.target) == (TWICE, SIZE), "it may read the larger spec yet"
    assert (seen.is_at_rest, seen.refusal) == (False, None)


def test_no_command_of_an_earlier_life_takes_effect_after_a_fence(
    objects: Objects, nodes: HollowNodes, tested: PodUnderTest
) -> None:
    (node,) = nodes.names
    tested.adopt(objects.create_pod(pod("p", node=node)))
    old, vm, first = tested.backend, tested.vm, tested.fencing
    assert vm is not None
    assert first is not None
    stale = objects.get("pods", "p")
    tested.backend = tested.life()
    tested.adopt(stale)
    assert tested.fencing is not None
    assert tested.fencing.generation > first.generation
    with pytest.raises(FencedOffError):
        tested._run(old.resize(vm, TWICE, first, seen=SIZE, not_after_s=math.inf))
    assert tested.look().target == SIZE
    assert objects.get("pods", "p")["metadata"]["generation"] == 1


def test_what_the_api_server_forbids_is_a_refusal_with_its_words(
    objects: Objects, nodes: HollowNodes, tested: PodUnderTest
) -> None:
    (node,) = nodes.names
    quota = {
        "apiVersion": "v1",
        "kind": "ResourceQuota",
        "metadata": {"name": "tight"},
        "spec": {"hard": {"requests.cpu": "600m"}},
    }
    objects.apply(quota)
    objects.shown("the quota counts", lambda: objects.get("resourcequotas", "tight")["status"].get("used"))
    tested.adopt(objects.create_pod(pod("p", node=node)))
    with pytest.raises(ResizeRefusedError, match="exceeded quota: tight"):
        tested.resize(TWICE)
    assert tested.look().target == SIZE


def test_a_container_that_would_restart_is_resized_only_if_that_is_allowed(
    objects: Objects, nodes: HollowNodes, tested: PodUnderTest
) -> None:
    (node,) = nodes.names
    manifest = pod("p", node=node)
    manifest["spec"]["containers"][0]["resizePolicy"] = [
        {"resourceName": "memory", "restartPolicy": "RestartContainer"}
    ]
    tested.adopt(objects.create_pod(manifest))
    with pytest.raises(ResizeRefusedError, match="resizePolicy restarts it"):
        tested.resize(TWICE)
    tested.resize(Resources(1000, 256 * MIB))
    tested.rests(Resources(1000, 256 * MIB))
    tested.rules = DivisionRules(may_restart=True)
    tested.resize(TWICE)
    tested.rests(TWICE)
    assert objects.get("pods", "p")["status"]["containerStatuses"][0]["restartCount"] == 1


def test_a_pod_that_is_gone_is_an_error(objects: Objects, nodes: HollowNodes, tested: PodUnderTest) -> None:
    (node,) = nodes.names
    tested.adopt(objects.create_pod(pod("p", node=node)))
    objects.delete("pods", "p")
    with pytest.raises(BackendError, match="no pod"):
        tested.look()
