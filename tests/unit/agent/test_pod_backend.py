"""The back end of pods makes few calls, leaves nothing that may still arrive unseen, and tells refusals in their words.

That it keeps the port's promises is told by tests/conformance, and what real kubelets answer by tests/kube.
"""

import asyncio
import math
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any, Final

import pytest

from agent.backends.change_log import ChangeLog, LoggedSizes
from agent.backends.factories import KubernetesBackend
from agent.backends.pod import containers
from agent.backends.pod.backend import TRUSTED_AFTER_S, PodBackend
from agent.backends.pod.containers import DivisionRules
from agent.core.model import Vm, VmKind, containers_of
from agent.core.ports import BackendError, Fencing, NotNowError, ResizeRefusedError
from hosting.kubernetes.connection import ApiCall
from hosting.kubernetes.resources import PODS, Manifest
from protocol.informant_pages import GroupAllowance, PodCgroups
from protocol.values import Bounds, ComputeUnit, Resources
from protocol.wire import PodName
from tests.support.amounts import GIB, cu
from tests.support.kube_api import FakeApiServer, writes
from tests.support.virtual_time import now_s, virtually

KEY: Final = ("n", "p")


def _pod(size: Resources, **more: Any) -> Manifest:
    both = {"requests": size.written(), "limits": size.written()}
    container = {
        "name": "c",
        "containerID": "containerd://one",
        "state": {"running": {}},
        "allocatedResources": size.written(),
        "resources": both,
    }
    status = {
        "phase": "Running",
        "qosClass": "Guaranteed",
        "observedGeneration": 1,
        "containerStatuses": [container],
    }
    return {
        "metadata": {"namespace": KEY[0], "name": KEY[1]},
        "spec": {"containers": [{"name": "c", "resources": both}]} | more.pop("spec", {}),
        "status": status | more,
    }


class _Life:
    """A life that has fenced its pod."""

    def __init__(self, server: FakeApiServer, backend: PodBackend, vm: Vm, cgroups: "_Groups") -> None:
        self.server, self.backend, self.vm, self.cgroups = server, backend, vm, cgroups
        self.fencing: Fencing

    async def resize(self, target: Resources, seen: Resources) -> None:
        await self.backend.resize(self.vm, target, self.fencing, seen=seen, not_after_s=math.inf)

    def sent(self) -> list[str]:
        """The calls since the last time, as `PATCH resize`."""
        calls = [f"{call.method} {_subresource(call)}".strip() for call in self.server.calls]
        self.server.calls.clear()
        return calls

    def container(self, **change: Any) -> None:
        self.status(lambda status: status | {"containerStatuses": [status["containerStatuses"][0] | change]})

    def status(self, change: Callable[[Manifest], Manifest]) -> None:
        pod = self.server.get(PODS, *KEY)
        self.server.store.update(PODS, KEY, pod | {"status": change(pod["status"])}, "status")


class _Groups:
    """The node informant: the control groups of the pod as `told`, which `reads` has a say in; nothing is known at first."""

    def __init__(self) -> None:
        self.told: PodCgroups | None = None
        self.reads: Callable[[], None] = lambda: None

    def says(self, pod: Resources, **running: Resources) -> None:
        groups = {name: _allowance(size) for name, size in running.items()}
        self.told = PodCgroups(_allowance(pod), groups)

    async def __call__(self, vm: Vm) -> PodCgroups | None:
        del vm
        self.reads()
        return self.told


def _allowance(size: Resources) -> GroupAllowance:
    return GroupAllowance(size.vcpu_milli, size.memory_bytes)


def _subresource(call: ApiCall) -> str:
    return call.path.removeprefix(PODS.path(*KEY)).removeprefix("/")


def _is_resize(call: ApiCall) -> bool:
    return _subresource(call) == "resize"


@asynccontextmanager
async def _life(directory: Path, pod: Manifest | None = None) -> AsyncIterator[_Life]:
    server = FakeApiServer()
    uid = server.put(PODS, pod or _pod(cu(2)))["metadata"]["uid"]
    vm = Vm(PodName(KEY[1], KEY[0]), uid, Bounds(cu(1), cu(8)), ComputeUnit(cu(1)), GIB, VmKind.POD)
    with ChangeLog(directory, "node") as log:
        async with server.api() as api:
            groups = _Groups()
            rules = DivisionRules()
            backend = PodBackend(api, LoggedSizes(log), lambda _: rules, now_s, now_s, cgroups=groups)
            life = _Life(server, backend, vm, groups)
            life.fencing = await backend.fence(vm)
            life.sent()
            yield life


@virtually
async def test_a_resize_after_a_look_is_one_call(tmp_path: Path) -> None:
    async with _life(tmp_path) as life:
        await life.backend.observe(life.vm)
        life.sent()
        await life.resize(cu(4), cu(2))
        assert life.sent() == ["PATCH resize"]


@virtually
async def test_a_write_that_meets_a_newer_version_reads_and_tries_again(tmp_path: Path) -> None:
    async with _life(tmp_path) as life:
        await life.backend.observe(life.vm)
        life.sent()
        life.status(lambda status: status | {"podIP": "127.0.0.1"})
        await life.resize(cu(4), cu(2))
        assert life.sent() == ["PATCH resize", "GET", "PATCH resize"]


@pytest.mark.parametrize("kind", ["cut", "hang", "cancelled"])
@virtually
async def test_a_write_without_an_answer_is_made_void_before_the_next_look_is_told(
    kind: str, tmp_path: Path
) -> None:
    async with _life(tmp_path) as life:
        await life.backend.observe(life.vm)
        life.server.fail("cut" if kind == "cut" else "hang", _is_resize)
        sending = asyncio.create_task(life.resize(cu(4), cu(2)))
        await asyncio.sleep(1.0)
        if kind == "cancelled":
            sending.cancel()
        with suppress(BackendError, asyncio.CancelledError):
            await sending
        (late,) = (call for call in life.server.calls if _is_resize(call))
        life.sent()
        assert (await life.backend.observe(life.vm)).target == cu(2)
        assert life.sent() == ["GET", "PATCH status", "GET"]
        late_answer = await life.server.open(late)
        assert late_answer.status == 409, "it may still be accepted"
        await life.backend.observe(life.vm)
        assert life.sent()[1:] == ["GET"], "once is enough"


@virtually
async def test_a_write_that_was_accepted_without_an_answer_needs_no_other(tmp_path: Path) -> None:
    async with _life(tmp_path) as life:
        life.server.fail("cut", _is_resize, after=True)
        with pytest.raises(BackendError, match="may have been accepted"):
            await life.resize(cu(4), cu(2))
        life.sent()
        assert (await life.backend.observe(life.vm)).target == cu(4)
        assert life.sent() == ["GET"]


@virtually
async def test_what_was_replaced_counts_until_the_node_knows_the_present_spec(tmp_path: Path) -> None:
    async with _life(tmp_path) as life:
        await life.resize(cu(6), cu(2))
        await life.resize(cu(3), cu(6))
        seen = await life.backend.observe(life.vm)
        assert (seen.size, seen.target) == (cu(6), cu(3))
        life.status(lambda status: status | {"observedGeneration": 3})
        assert (await life.backend.observe(life.vm)).size == cu(2)


@pytest.mark.parametrize(
    ("status", "kind", "why"),
    [
        (403, ResizeRefusedError, "put in"),
        (422, ResizeRefusedError, "put in"),
        (404, ResizeRefusedError, "has no pods/resize"),
        (429, BackendError, "takes no resize"),
        (500, BackendError, "failed"),
    ],
)
@virtually
async def test_answers_to_a_write(status: int, kind: type[BackendError], why: str, tmp_path: Path) -> None:
    async with _life(tmp_path) as life:
        life.server.fail("status", writes, status=status)
        with pytest.raises(BackendError, match=why) as raised:
            await life.resize(cu(4), cu(2))
        assert type(raised.value) is kind


@pytest.mark.parametrize(
    ("pod", "why"),
    [
        (_pod(cu(2), qosClass="BestEffort"), "BestEffort"),
        (_pod(cu(2), spec={"resources": {"requests": {"cpu": "2"}}}), "resources of its own"),
        (_pod(cu(2), observedGeneration=None), "1.34 or newer"),
    ],
)
@virtually
async def test_what_can_never_be_resized_says_so_in_each_look(
    pod: Manifest, why: str, tmp_path: Path
) -> None:
    async with _life(tmp_path, pod) as life:
        seen = await life.backend.observe(life.vm)
        assert why in str(seen.refusal)
        life.sent()
        with pytest.raises(ResizeRefusedError, match=why):
            await life.resize(cu(4), cu(2))
        assert life.sent() in ([], ["GET"])


@virtually
async def test_a_pod_that_does_not_run_is_not_resized_for_now(tmp_path: Path) -> None:
    async with _life(tmp_path, _pod(cu(2), phase="Pending")) as life:
        with pytest.raises(BackendError, match="Pending") as raised:
            await life.resize(cu(4), cu(2))
        assert not isinstance(raised.value, ResizeRefusedError)


@virtually
async def test_another_pod_of_the_name_is_not_commanded(tmp_path: Path) -> None:
    async with _life(tmp_path) as life:
        life.server.delete(PODS, *KEY)
        life.server.put(PODS, _pod(cu(2)))
        for call in (life.backend.observe(life.vm), life.backend.fence(life.vm), life.resize(cu(4), cu(2))):
            with pytest.raises(BackendError, match="another pod"):
                await call
        assert life.server.get(PODS, *KEY)["metadata"]["generation"] == 1


@virtually
async def test_a_vm_of_a_cluster_is_resized_by_the_back_end_of_its_kind(tmp_path: Path) -> None:
    async with _life(tmp_path) as life:
        backend = KubernetesBackend({VmKind.POD: life.backend})
        assert backend.capabilities == life.backend.capabilities
        fencing = await backend.fence(life.vm)
        await backend.resize(life.vm, cu(3), fencing, seen=cu(2), not_after_s=math.inf)
        assert (await backend.observe(life.vm)).target == cu(3)
        simulated = Vm(life.vm.pod, life.vm.pod_uid, life.vm.bounds, life.vm.unit, GIB)
        with pytest.raises(BackendError, match="kind simulated"):
            await backend.fence(simulated)


# ---------------------------------------------------------------- dead containers

KILLED: Final = {"terminated": {"reason": "OOMKilled", "exitCode": 137, "containerID": "containerd://one"}}
BACK_OFF: Final = {"waiting": {"reason": "CrashLoopBackOff"}}


@pytest.mark.parametrize(
    ("state", "word"), [(KILLED, "OOMKilled, exit code 137"), (BACK_OFF, "CrashLoopBackOff")]
)
@virtually
async def test_a_pod_whose_container_is_dead_is_not_resized(
    state: Manifest, word: str, tmp_path: Path
) -> None:
    async with _life(tmp_path) as life:
        await life.backend.observe(life.vm)
        life.container(state=state)  # after the look: the write would meet a newer version
        life.sent()
        with pytest.raises(NotNowError, match=word):
            await life.resize(cu(4), cu(2))
        assert life.sent() == ["PATCH resize", "GET"], "the precondition refused the write"
        assert word in containers_of(await life.backend.observe(life.vm)).waits
        life.sent()
        with pytest.raises(NotNowError, match=word):
            await life.resize(cu(4), cu(2))
        assert "PATCH resize" not in life.sent()
        life.container(state={"running": {}}, restartCount=1)
        await life.resize(cu(4), cu(2))
        assert containers_of(await life.backend.observe(life.vm)).waits == ""


@pytest.mark.parametrize(
    ("policy", "code", "waits"),
    [("Always", 0, True), ("OnFailure", 1, True), ("OnFailure", 0, False), ("Never", 1, False)],
)
def test_a_container_that_is_not_started_again_is_not_waited_for(policy: str, code: int, waits: bool) -> None:
    ended = {"name": "a", "containerID": "x://ended", "state": {"terminated": {"exitCode": code}}}
    pod: Manifest = {
        "spec": {"restartPolicy": policy, "containers": [{"name": "a"}, {"name": "b"}]},
        "status": {"containerStatuses": [ended]},
    }
    assert bool(containers.seen(pod, {"a", "b"}).waits) is waits
    assert bool(containers.why_dead(pod, {"a", "b"}, PodCgroups(GroupAllowance(), {}, ()))) is waits
    pod["spec"]["containers"] = [{"name": "a", "restartPolicy": "Never"}]
    assert containers.seen(pod, {"a"}).waits == ""


@virtually
async def test_what_the_kernel_knows_of_an_end_counts_before_the_status_tells_it(tmp_path: Path) -> None:
    """After an OOM kill the wish for memory is here before the kubelet has looked at its containers."""
    async with _life(tmp_path) as life:
        await life.backend.observe(life.vm)
        life.cgroups.says(cu(2), pause=cu(2))
        life.sent()
        with pytest.raises(NotNowError, match="no process any more"):
            await life.resize(cu(4), cu(2))
        assert life.sent() == []
        life.cgroups.says(cu(2), pause=cu(2), one=cu(2))
        await life.resize(cu(4), cu(2))


@virtually
async def test_a_runtime_that_names_its_groups_otherwise_is_believed_after_a_while(tmp_path: Path) -> None:
    async with _life(tmp_path) as life:
        life.cgroups.says(cu(2), sandbox=cu(2))
        for _ in range(2):
            with pytest.raises(NotNowError):
                await life.resize(cu(4), cu(2))
            await asyncio.sleep(TRUSTED_AFTER_S / 2)
        await life.resize(cu(4), cu(2))


@virtually
async def test_ends_and_restarts_are_told_with_their_reasons(tmp_path: Path) -> None:
    async with _life(tmp_path) as life:
        life.container(lastState=KILLED, restartCount=3)
        found = containers_of(await life.backend.observe(life.vm))
        assert (found.restarts, found.ends) == (3, (("containerd://one", "OOMKilled"),))
        assert found.last_end == "container c ended: OOMKilled, exit code 137"


# ---------------------------------------------------------------- control groups that differ


@pytest.mark.parametrize(
    ("pod", "container", "size", "mismatched"),
    [
        (cu(4), cu(4), cu(4), ()),
        (cu(4, 1), cu(4), cu(4, 1), ("memory",)),  # the kubelet has left the pod's group behind
        (cu(1, 4), cu(4), cu(1, 4), ("cpu",)),
        (cu(4, 6), cu(4), cu(4), ()),  # the containers' own limits hold
        (cu(4, 6), cu(4, 6), cu(4, 6), ("memory",)),
        (cu(6, 4), cu(6, 4), cu(4), ()),  # CPU time that a strategy lends
        (Resources(3995, cu(4).memory_bytes - 4096), cu(4), cu(4), ()),  # rounded
    ],
)
@virtually
async def test_a_pod_at_rest_has_what_its_groups_allow(
    pod: Resources, container: Resources, size: Resources, mismatched: tuple[str, ...], tmp_path: Path
) -> None:
    async with _life(tmp_path, _pod(cu(4))) as life:
        life.cgroups.says(pod, one=container)
        seen = await life.backend.observe(life.vm)
        assert (seen.size, seen.target) == (size, cu(4))
        assert containers_of(seen).mismatched == mismatched
        assert bool(containers_of(seen).mismatch) == bool(mismatched)


@virtually
async def test_a_pod_whose_container_never_starts_is_judged_by_its_own_group(tmp_path: Path) -> None:
    async with _life(tmp_path, _pod(cu(4))) as life:
        life.container(state={"waiting": {"reason": "RunContainerError"}})
        life.cgroups.says(cu(1, 4), pause=cu(8))
        found = containers_of(await life.backend.observe(life.vm))
        assert (found.mismatched, "RunContainerError" in found.waits) == (("cpu",), True)
        assert (
            found.mismatch
            == "the pod's control group allows 1000m of cpu where 4000m is in force by its status"
        )


@virtually
async def test_of_a_dead_container_only_what_its_pods_group_allows_is_written(tmp_path: Path) -> None:
    async with _life(tmp_path, _pod(cu(4))) as life:
        life.container(state={"waiting": {"reason": "RunContainerError"}})
        life.cgroups.says(cu(1, 4))
        for target in (cu(5, 4), cu(2, 4), cu(1)):
            with pytest.raises(NotNowError):
                await life.resize(target, cu(4))
        await life.resize(cu(1, 4), cu(4))
        assert "PATCH resize" in life.sent()


@virtually
async def test_a_pod_that_is_being_resized_is_not_judged(tmp_path: Path) -> None:
    """Its groups are on the way to a spec that came after they were looked at, or before."""
    async with _life(tmp_path, _pod(cu(4))) as life:
        life.cgroups.says(cu(1), one=cu(1))

        def patched() -> None:
            pod = life.server.get(PODS, *KEY)
            both = {"requests": cu(1).written(), "limits": cu(1).written()}
            life.server.store.update(
                PODS, KEY, pod | {"spec": {"containers": [{"name": "c", "resources": both}]}}
            )

        life.cgroups.reads = patched
        seen = await life.backend.observe(life.vm)
        assert (seen.size, seen.target, containers_of(seen).mismatch) == (cu(4), cu(1), "")
        life.sent()
        await life.backend.observe(life.vm)
        assert life.sent() == ["GET"]
