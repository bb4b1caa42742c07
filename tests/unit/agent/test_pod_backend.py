"""What the back end of pods sends and reads: few calls, nothing that may still arrive unseen, and refusals with their words.

That it keeps the port's promises is told by tests/conformance, and what real kubelets answer by tests/kube.
"""

import asyncio
import math
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any, Final

import pytest

from agent.backends.change_log import ChangeLog
from agent.backends.kubernetes import KubernetesBackend
from agent.backends.logged_sizes import LoggedSizes
from agent.backends.pod.backend import PodBackend
from agent.backends.pod.distribution import DivisionRules
from agent.core.model import Vm, VmKind
from agent.core.ports import BackendError, Fencing, ResizeRefusedError
from hosting.kubernetes.connection import ApiCall
from hosting.kubernetes.resources import PODS, Manifest
from protocol.values import Bounds, ComputeUnit, Resources
from protocol.wire import PodName
from tests.support.amounts import GIB, cu
from tests.support.kube_api import FakeApiServer, writes
from tests.support.virtual_time import now_s, virtually

KEY: Final = ("n", "p")


def _pod(size: Resources, **more: Any) -> Manifest:
    both = {"requests": size.written(), "limits": size.written()}
    container = {"name": "c", "allocatedResources": size.written(), "resources": both}
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

    def __init__(self, server: FakeApiServer, backend: PodBackend, vm: Vm, fencing: Fencing) -> None:
        self.server, self.backend, self.vm, self.fencing = server, backend, vm, fencing

    async def resize(self, target: Resources, seen: Resources) -> None:
        await self.backend.resize(self.vm, target, self.fencing, seen=seen, not_after_s=math.inf)

    def sent(self) -> list[str]:
        """The calls since the last time, as `PATCH resize`."""
        calls = [f"{call.method} {_subresource(call)}".strip() for call in self.server.calls]
        self.server.calls.clear()
        return calls

    def status(self, change: Callable[[Manifest], Manifest]) -> None:
        """The node writes the status."""
        pod = self.server.get(PODS, *KEY)
        self.server.store.update(PODS, KEY, pod | {"status": change(pod["status"])}, "status")


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
            backend = PodBackend(api, LoggedSizes(log), lambda _: DivisionRules(), now_s, now_s)
            life = _Life(server, backend, vm, await backend.fence(vm))
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
