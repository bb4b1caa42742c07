"""The cluster file: all faults at once, and changes told in an order that never mistakes one pod for another."""

import os
from pathlib import Path
from typing import Any

import pytest

from hosting import settings
from hosting.settings import SettingsError
from protocol.values import Bounds, Observation
from protocol.wire import PodName
from scheduler.clusters.file import ClusterFile, FileCluster
from scheduler.permits.core import events
from scheduler.permits.core.model import NodeSpec, PodSpec, VmSpec
from scheduler.ports import ClusterUnreachableError
from tests.support.amounts import GIB, cu

NODE_SPEC = NodeSpec("n1", cu(10, 40), cu(1, 2), cu(1, 4))
NODE = """
nodes:
- name: n1
  allocatable: {cpu: 10, memory: 40Gi}
  system: {cpu: 1, memory: 4Gi}
  computeUnit: {cpu: 1, memory: 2Gi}
"""
SIZED = "size: {cpu: 2, memory: 4Gi}"


def vm(name: str = "a", uid: str = "u1", node: str = "n1", more: str = SIZED) -> str:
    bounds = "min: {cpu: 1, memory: 2Gi}, max: {cpu: 4, memory: 8Gi}"
    return (
        f"- {{namespace: d, name: {name}, uid: {uid}, node: {node}, {bounds}{', ' + more if more else ''}}}\n"
    )


def pod(name: str = "p", uid: str = "u9") -> str:
    return f"- {{namespace: d, name: {name}, uid: {uid}, node: n1, requests: {{cpu: 1, memory: 1Gi}}}}\n"


class Cluster:
    """A cluster file that is rewritten, a clock that is set, and the adapter over them."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.now_s = 100.0
        self.file = FileCluster(path, lambda: self.now_s, unix_offset_s=-100.0)  # its first file is of 100 s
        self._writes = 0

    def write(self, text: str) -> None:
        self._writes += 1
        self.path.write_text(text)
        os.utime(self.path, ns=(self._writes, self._writes))

    async def refresh(self, text: str | None = None) -> list[Any]:
        """The changes, when all of it was read now."""
        if text is not None:
            self.write(text)
        *changes, read = await self.file.refresh()
        assert read == events.ClusterRead(self.now_s)
        return changes


@pytest.fixture
def cluster(tmp_path: Path) -> Cluster:
    return Cluster(tmp_path / "cluster.yaml")


def kinds(found: list[Any]) -> list[str]:
    return [type(each).__name__ for each in found]


def faults(text: str) -> list[str]:
    with pytest.raises(SettingsError) as caught:
        settings.parse(Path("c.yaml"), text.encode(), ClusterFile)
    return caught.value.faults


async def test_a_good_file_becomes_events(cluster: Cluster) -> None:
    found = await cluster.refresh(NODE + "vms:\n" + vm() + vm("b", "u2", more="") + "pods:\n" + pod())
    bounds = Bounds(cu(1, 2), cu(4, 8))
    size = cu(2, 4)
    first = VmSpec(PodName("a", "d"), "u1", "n1", bounds)
    second = VmSpec(PodName("b", "d"), "u2", "n1", bounds)
    reading = Observation(size, size, 100.0)
    assert found == [
        events.NodeSeen(NODE_SPEC),
        events.PodSeen(PodSpec(PodName("p", "d"), "u9", "n1", cu(1))),
        events.VmSeen(first, reading, 100.0),
        events.VmSeen(second, None, 100.0),
    ]
    assert cluster.file.look(first.pod) == events.Look(found=True, reading=reading)
    assert cluster.file.look(second.pod) == events.Look(found=True)
    assert cluster.file.look(PodName("z", "d")) == events.Look(found=False)


@pytest.mark.parametrize(
    ("more", "slot", "is_tied"),
    [("", None, False), (", slotSize: 512Mi", GIB // 2, False), (", tied: true", None, True)],
    ids=["", "slot", "tied"],
)
@pytest.mark.parametrize(
    ("target", "cpus"), [("", 2), (", target: {cpu: 3, memory: 4Gi}", 3)], ids=["", "target"]
)
async def test_a_vm_has_the_slot_the_kind_and_the_target_that_it_names(
    cluster: Cluster, more: str, slot: int | None, is_tied: bool, target: str, cpus: int
) -> None:
    (_, seen) = await cluster.refresh(NODE + "vms:\n" + vm(more=SIZED + target + more))
    assert (seen.vm.slot_bytes, seen.vm.is_tied) == (slot, is_tied)
    assert seen.reading == Observation(cu(2, 4), cu(cpus, 4), 100.0)


def test_a_compute_unit_larger_than_its_node_is_a_fault() -> None:
    text = NODE.replace("computeUnit: {cpu: 1,", "computeUnit: {cpu: 9500m,") + "vms:\n"
    text += vm("a", "u1", more="computeUnit: {cpu: 1, memory: 41Gi}, colour: red")
    text += vm("b", "u2", more="computeUnit: {cpu: 10, memory: 1Gi}")
    assert faults(text) == [
        "nodes[0].computeUnit: must fit in what the node has for VMs: 9500m CPU / 2Gi does not fit in 9 CPU / 36Gi",
        "vms[0].colour: there is no such setting",
        "vms[0].computeUnit: must fit in the node 'n1': 1 CPU / 41Gi does not fit in 10 CPU / 40Gi",
    ]


@pytest.mark.parametrize("written", ["namespace: d", "name: a", "node: n1"])
def test_a_name_with_control_characters_is_a_fault(written: str) -> None:
    key = written.partition(":")[0]
    found = faults(NODE + "vms:\n" + vm().replace(written, f'{key}: "a\\tb"'))
    assert found[0] == (
        f"vms[0].{key}: must be a name of 1 to 253 printable characters without blanks and /, such as db-0 (found 'a\\tb')"
    )


FAULTY = f"""
nodes:
- {{name: n1, allocatable: {{cpu: 1, memory: 1Gi}}, system: {{cpu: 2, memory: 1Gi}}}}
- {{name: n1, allocatable: {{cpu: x, memory: 1Gi}}}}
- {{name: n2, allocatable: {{cpu: 1, memory: 1Gi}}, computeUnit: {{cpu: 0, memory: 1Gi}}}}
vms:
{vm()}{vm("a", "u1", "nowhere")}{vm("c", "u3", more="target: {cpu: 1, memory: 2Gi}")}
- {{namespace: d, name: "", uid: u4, node: n2, min: {{cpu: 4, memory: 1Gi}}, max: {{cpu: 1, memory: 1Gi}}, colour: red}}
pods:
{pod("c", "u3")}
"""


def test_every_fault_is_told_at_once() -> None:
    found = faults(FAULTY)
    for path in (
        "nodes[0].system: must not exceed allocatable in either resource: 2 CPU / 1Gi does not fit in 1 CPU / 1Gi",
        "nodes[1].allocatable.cpu: ",
        "nodes[2].computeUnit: must be above zero in both resources",
        "nodes[0].name: node name 'n1' is used more than once",
        "nodes[1].name: node name 'n1' is used more than once",
        "vms[0].name: pod 'd/a' is used more than once",
        "vms[1].uid: UID 'u1' is used more than once",
        "vms[1].node: there is no node 'nowhere' in this file",
        "vms[2].target: needs a size beside it",
        "vms[3].name: must be a name of 1 to 253 printable characters without blanks and /, such as db-0 (found '')",
        "vms[3].min: must not exceed max in either resource: 4 CPU / 1Gi does not fit in 1 CPU / 1Gi",
        "vms[3].colour: there is no such setting",
        "pods[0].uid: UID 'u3' is used more than once",
        "pods[0].name: pod 'd/c' is used more than once",
    ):
        assert any(fault.startswith(path) for fault in found), (path, found)


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("", "nodes: is required"),
        ("nodes: []", "nodes: must not be empty (found 0)"),
        ("nodes: [5]", "nodes[0]: must be a mapping (found 5)"),
        (NODE + "vms:\n" + vm(uid="5"), "vms[0].uid: must be a text (found 5)"),
        (NODE + "vms:\n" + vm().replace("cpu: 1,", "cpu: 9,"), "vms[0].min: must not exceed max"),
        ("nodes: {a: b}", "nodes: must be a list"),
        ("nodes: n\nvms: 5\npods: [[]]", "nodes: must be a list"),
        ("- a", "(file): must be a mapping"),
        ("nodes: [{name: [a]}]", "nodes[0].name: must be a text"),
    ],
)
def test_a_fault_is_told_with_its_place(text: str, fault: str) -> None:
    assert faults(text)[0].startswith(fault)


@pytest.mark.parametrize(("is_kept", "begun_s"), [(True, 200.0), (False, 100.0)], ids=["kept", "left alone"])
async def test_a_file_shows_sizes_as_of_now_once_somebody_has_written_it_since_our_start(
    cluster: Cluster, is_kept: bool, begun_s: float
) -> None:
    text = NODE + "vms:\n" + vm() + vm("b", "u2", more="")
    await cluster.refresh(text)
    if is_kept:
        await cluster.refresh(text)
    cluster.now_s = 200.0
    assert await cluster.refresh() == []
    seen, sizeless, whole = await cluster.file.read([PodName(name, "d") for name in "abz"])
    assert whole == events.ClusterRead(200.0)
    assert isinstance(sizeless, events.VmSeen)
    assert (sizeless.vm.uid, sizeless.reading) == ("u2", None)
    assert isinstance(seen, events.VmSeen)
    assert (seen.vm.uid, seen.now_s) == ("u1", 200.0)
    assert seen.reading is not None
    assert seen.reading.begun_s == pytest.approx(begun_s)
    assert cluster.file.look(seen.vm.pod).reading == seen.reading


async def test_a_file_from_before_our_start_shows_what_was_then(cluster: Cluster) -> None:
    cluster.now_s = 300.0
    (_, seen) = await cluster.refresh(NODE + "vms:\n" + vm())
    assert (seen.now_s, seen.reading.begun_s) == (300.0, pytest.approx(100.0))


async def test_what_is_no_longer_in_the_file_is_gone_before_what_is_new_is_seen(cluster: Cluster) -> None:
    two = NODE + "- {name: n2, allocatable: {cpu: 1, memory: 1Gi}}\n"
    await cluster.refresh(two + "vms:\n" + vm() + vm("b", "u2") + "pods:\n" + pod())
    found = await cluster.refresh(NODE + "vms:\n" + vm() + vm("b", "u3"))
    assert kinds(found) == ["VmGone", "PodGone", "NodeGone", "VmSeen"]
    assert found[0] == events.VmGone(PodName("b", "d"), "u2", 100.0)
    assert found[2] == events.NodeGone("n2")
    assert (found[3].vm.uid, found[3].is_new) == ("u3", True)


async def test_while_the_file_cannot_be_used_the_old_one_stays_in_force(cluster: Cluster) -> None:
    with pytest.raises(ClusterUnreachableError, match="cannot be read"):
        await cluster.refresh()
    await cluster.refresh(NODE + "vms:\n" + vm())
    for _ in range(2):
        with pytest.raises(SettingsError, match="no such setting"):
            await cluster.refresh(NODE + "more: 1\n")
        assert cluster.file.look(PodName("a", "d")).found
    cluster.path.unlink()
    with pytest.raises(ClusterUnreachableError):
        await cluster.refresh()
    assert cluster.file.look(PodName("a", "d")).found
    assert kinds(await cluster.refresh(NODE)) == ["VmGone"]


async def test_what_others_wrote_as_it_was_is_not_shown_before_it_is_told(cluster: Cluster) -> None:
    text = NODE + "vms:\n" + vm()
    (_, told) = await cluster.refresh(text)
    cluster.now_s = 200.0
    assert await cluster.refresh(text) == []
    assert cluster.file.look(told.vm.pod).reading == told.reading
    again, _ = await cluster.file.read([told.vm.pod])
    assert isinstance(again, events.VmSeen)
    assert again.reading == Observation(told.reading.size, told.reading.target, 200.0)
    assert cluster.file.look(told.vm.pod).reading == again.reading
