"""A command to a NeonVM rests on a look at the object, some commands are refused before they are sent, and the next look
settles the outcome of one that had no answer."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import pytest
from msgspec.structs import replace

from agent.backends.change_log import ChangeLog, LoggedSizes
from agent.backends.neonvm import NeonVmBackend
from agent.core.model import VmKind
from agent.core.ports import BackendError, FencedOffError, ResizeRefusedError
from hosting.kubernetes.connection import ApiCall
from hosting.kubernetes.names import FENCE
from hosting.kubernetes.resources import VIRTUAL_MACHINES, Manifest
from protocol.values import Resources
from tests.support.amounts import GIB, cu
from tests.support.kube_api import FakeApiServer, writes
from tests.unit.agent.driver import VM as POD_VM

VM: Final = replace(POD_VM, kind=VmKind.NEONVM, virtual_machine="vm-a")
KEY: Final = ("default", "vm-a")
BEGAN_S: Final = 1_700_000_000.0


def _server(**cpus: object) -> FakeApiServer:
    server = FakeApiServer()
    guest = {
        "cpus": {"min": "250m", "max": 8, "use": 2, **cpus},
        "memorySlots": {"min": 1, "max": 8, "use": 2},
    }
    status = {"phase": "Running", "podName": VM.pod.name, "node": "node-a", "cpus": 2, "memorySize": "2Gi"}
    metadata = {"namespace": "default", "name": "vm-a"}
    server.put(VIRTUAL_MACHINES, {"metadata": metadata, "spec": {"guest": guest}, "status": status})
    return server


def _backend(
    server: FakeApiServer, directory: Path, unix_clock: Callable[[], float] = lambda: BEGAN_S
) -> NeonVmBackend:
    sizes = LoggedSizes(ChangeLog(directory, "node-a"))
    return NeonVmBackend(server.api(), sizes, lambda: 100.0, unix_clock)


def _use(server: FakeApiServer) -> tuple[Any, Any]:
    guest = server.get(VIRTUAL_MACHINES, *KEY)["spec"]["guest"]
    return guest["cpus"]["use"], guest["memorySlots"]["use"]


def _changed(manifest: Manifest, path: str, value: object) -> Manifest:
    head, _, rest = path.partition(".")
    return {**manifest, head: _changed(manifest.get(head, {}), rest, value) if rest else value}


def _edit(server: FakeApiServer, path: str, value: object) -> None:
    found = _changed(server.get(VIRTUAL_MACHINES, *KEY), path, value)
    server.store.update(VIRTUAL_MACHINES, KEY, found, "status" if path.startswith("status") else "")


def _fence_of_another(server: FakeApiServer) -> None:
    _edit(server, "metadata.annotations", {FENCE: f"{int(BEGAN_S) + 1}.0"})


def _made_anew(server: FakeApiServer) -> None:
    found = server.get(VIRTUAL_MACHINES, *KEY)
    server.delete(VIRTUAL_MACHINES, *KEY)
    server.put(VIRTUAL_MACHINES, _changed(found, "metadata.resourceVersion", ""))


@pytest.mark.parametrize(
    ("meanwhile", "error"),
    [
        pytest.param(lambda server: _edit(server, "spec.guest.cpus.use", 1), BackendError, id="CPU by hand"),
        pytest.param(
            lambda server: _edit(server, "spec.guest.memorySlots.use", 1), BackendError, id="memory by hand"
        ),
        pytest.param(lambda server: _edit(server, "status.podName", "pod-b"), BackendError, id="has moved"),
        pytest.param(_fence_of_another, FencedOffError, id="a later life"),
        pytest.param(
            lambda server: _edit(server, "metadata.annotations", {}), FencedOffError, id="mark removed"
        ),
        pytest.param(_made_anew, BackendError, id="made anew"),
    ],
)
async def test_what_changes_between_read_and_write_makes_the_command_void(
    meanwhile: Callable[[FakeApiServer], None], error: type[Exception], tmp_path: Path
) -> None:
    server = _server()
    backend = _backend(server, tmp_path)
    fencing = await backend.fence(VM)

    def before(call: ApiCall) -> None:
        if writes(call):
            server.hooks.clear()
            meanwhile(server)
            left.append(_use(server))

    left: list[tuple[Any, Any]] = []
    server.hooks.append(before)
    with pytest.raises(error) as caught:
        await backend.resize(VM, cu(4), fencing, seen=cu(2), not_after_s=math.inf)
    assert type(caught.value) is error
    assert [_use(server)] == left


@pytest.mark.parametrize(
    ("target", "written"),
    [
        (cu(4), (4, 4)),
        (Resources(250, GIB), ("250m", 1)),
        (Resources(1500, 8 * GIB), ("1500m", 8)),
    ],
)
async def test_a_target_is_written_as_every_release_reads_it(
    target: Resources, written: tuple[object, object], tmp_path: Path
) -> None:
    server = _server(use="2000m")
    backend = _backend(server, tmp_path)
    fencing = await backend.fence(VM)
    await backend.resize(VM, target, fencing, seen=cu(2), not_after_s=math.inf)
    assert _use(server) == written
    assert (await backend.observe(VM)).target == target


@pytest.mark.parametrize(
    ("target", "phase", "text", "error"),
    [
        (Resources(1000, GIB + 1), "Running", "whole slots of 1Gi", ResizeRefusedError),
        (cu(9, 2), "Running", "must lie within spec.guest", ResizeRefusedError),
        (cu(0.2, 2), "Running", "must lie within spec.guest", ResizeRefusedError),
        (cu(4), "PreMigrating", "is being migrated", BackendError),
        (cu(1), "Migrating", "is being migrated", BackendError),
    ],
)
async def test_what_neonvm_would_refuse_is_not_sent(
    target: Resources, phase: str, text: str, error: type[Exception], tmp_path: Path
) -> None:
    server = _server()
    backend = _backend(server, tmp_path)
    fencing = await backend.fence(VM)
    _edit(server, "status.phase", phase)
    sent = len(server.calls)
    with pytest.raises(BackendError, match=text) as caught:
        await backend.resize(VM, target, fencing, seen=cu(2), not_after_s=math.inf)
    assert type(caught.value) is error
    assert not any(map(writes, server.calls[sent:]))


@pytest.mark.parametrize(
    ("status", "error"),
    [(403, ResizeRefusedError), (422, ResizeRefusedError), (429, BackendError), (503, BackendError)],
)
async def test_only_a_refusal_of_the_target_itself_lasts(
    status: int, error: type[Exception], tmp_path: Path
) -> None:
    server = _server()
    backend = _backend(server, tmp_path)
    fencing = await backend.fence(VM)
    server.fail("status", writes, status=status)
    with pytest.raises(BackendError) as caught:
        await backend.resize(VM, cu(4), fencing, seen=cu(2), not_after_s=math.inf)
    assert type(caught.value) is error
    await backend.observe(VM)
    await backend.resize(VM, cu(3), fencing, seen=cu(2), not_after_s=math.inf)
    assert _use(server) == (3, 3)


async def test_a_look_makes_void_what_may_still_be_on_its_way(tmp_path: Path) -> None:
    """The API server was paused, and takes the command long after its sender has given it up."""
    server = _server()
    backend = _backend(server, tmp_path)
    fencing = await backend.fence(VM)
    server.fail("cut", writes)
    with pytest.raises(BackendError):
        await backend.resize(VM, cu(8), fencing, seen=cu(2), not_after_s=math.inf)
    paused = server.calls[-1]
    assert (await backend.observe(VM)).target == cu(2)
    assert (await server.open(paused)).status == 422
    assert _use(server) == (2, 2)
    await backend.resize(VM, cu(4), fencing, seen=cu(2), not_after_s=math.inf)
    assert _use(server) == (4, 4)


async def test_a_command_that_was_accepted_without_an_answer_is_seen(tmp_path: Path) -> None:
    server = _server()
    backend = _backend(server, tmp_path)
    fencing = await backend.fence(VM)
    server.fail("cut", writes, after=True)
    with pytest.raises(BackendError):
        await backend.resize(VM, cu(8), fencing, seen=cu(2), not_after_s=math.inf)
    written = len(list(filter(writes, server.calls)))
    assert (await backend.observe(VM)).target == cu(8)
    assert len(list(filter(writes, server.calls))) == written, "there is nothing left to be made void"


async def test_a_resize_is_one_read_and_one_write(tmp_path: Path) -> None:
    server = _server()
    backend = _backend(server, tmp_path)
    fencing = await backend.fence(VM)
    sent = len(server.calls)
    await backend.resize(VM, cu(4), fencing, seen=cu(2), not_after_s=math.inf)
    await backend.resize(VM, cu(4), fencing, seen=cu(2), not_after_s=math.inf)
    assert [call.method for call in server.calls[sent:]] == ["GET", "PATCH", "GET"]


async def test_generations_go_on_rising_where_the_mark_is_removed(tmp_path: Path) -> None:
    server, times = _server(), iter((BEGAN_S, BEGAN_S, BEGAN_S + 9))
    backend = _backend(server, tmp_path, lambda: next(times))
    first, second = await backend.fence(VM), await backend.fence(VM)
    _edit(server, "metadata.annotations", {})
    third = await backend.fence(VM)
    assert first.generation < second.generation < third.generation


async def test_a_vm_without_a_size_or_a_pod_cannot_be_looked_at(tmp_path: Path) -> None:
    server = _server()
    backend = _backend(server, tmp_path)
    _edit(server, "status", {"podName": VM.pod.name, "phase": "Pending"})
    with pytest.raises(BackendError, match="no size yet, it is Pending"):
        await backend.observe(VM)
    _edit(server, "status", {})
    with pytest.raises(BackendError, match="the VM is in no pod"):
        await backend.observe(VM)
