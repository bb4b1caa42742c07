"""A pod's readings from made-up files of both versions: use, limits, what was held back, and containers that come and go."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from hosting.cgroups.tree import CgroupTree
from informant.core.containers import POD
from informant.guest.pod import PodSource, node_bytes
from protocol.informant_pages import GroupAllowance, PodCgroups
from protocol.values import Resources
from protocol.wire import MoreResources
from tests.unit.informant.pod_trees import MIB, UID, MadeGroup, made_pod

NODE_BYTES = 2**34
NOTHING = MoreResources(cpu=False, memory=False)


@dataclass
class World:
    """A made-up pod, the source that reads it, and the time."""

    pod: MadeGroup
    source: PodSource = field(init=False)
    now_s: float = 100.0

    def __post_init__(self) -> None:
        group = CgroupTree(self.pod.root).find(UID)
        assert group is not None
        self.source = PodSource(group, NODE_BYTES, lambda: self.now_s)

    @property
    def app(self) -> MadeGroup:
        return self.pod.inside("app")


@pytest.fixture(params=[True, False], ids=["v2", "v1"])
def world(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[World]:
    made = World(made_pod(tmp_path, is_v2=request.param))
    yield made
    made.source.close()


def limited(world: World) -> None:
    """Both groups have the same limits, as the kubelet writes them for a pod with one container."""
    for group in (world.pod, world.app):
        group.cpu(limit=0.5)
        group.memory(100, 50, limit=256)


def test_a_reading_has_what_is_used_of_the_limits(world: World) -> None:
    limited(world)
    world.pod.cpu(12.5, 0.5, throttled=3, throttled_s=0.25)
    reading = world.source.read()
    assert (reading.cpu_busy_s, reading.cpus) == (12.5, 0.5)
    assert (reading.memory_total_bytes, reading.memory_available_bytes) == (256 * MIB, 156 * MIB)
    assert reading.pod is not None
    assert (reading.pod.limit_bytes, reading.pod.current_bytes) == (256 * MIB, 150 * MIB)
    pod, app = reading.pod.groups[POD], reading.pod.groups["app"]
    assert (pod.periods, pod.throttled, pod.throttled_s, pod.period_s) == (99, 3, 0.25, 0.1)
    assert (app.quota_cpus, app.used_bytes) == (0.5, 100 * MIB)


def test_load_is_what_was_used_and_what_was_held_back(world: World) -> None:
    limited(world)
    assert world.source.read().load1 == 0
    world.now_s += 60
    world.pod.cpu(60, 1, throttled_s=60)
    assert world.source.read().load1 == pytest.approx(2 * (1 - 2.718281828**-1), rel=1e-6)


def test_without_a_limit_a_pod_has_the_memory_of_its_size(world: World) -> None:
    world.pod.memory(100, 50)
    before = world.source.read()
    assert (before.memory_total_bytes, before.memory_available_bytes) == (NODE_BYTES, NODE_BYTES - 100 * MIB)
    assert before.pod is not None
    assert (before.pod.limit_bytes, "app" in before.pod.groups) == (None, False)
    world.source.resized(Resources(1000, 256 * MIB))
    assert world.source.read().memory_total_bytes == 256 * MIB
    world.pod.memory(300)
    over = world.source.read()
    assert (over.memory_total_bytes, over.memory_available_bytes) == (300 * MIB, 0)


def test_a_container_with_a_limit_of_its_own_is_read_by_itself(world: World) -> None:
    limited(world)
    world.app.memory(60, 1, limit=64)
    reading = world.source.read()
    assert reading.pod is not None
    app = reading.pod.groups["app"]
    assert (app.max_bytes, app.used_bytes) == (64 * MIB, 60 * MIB)


def test_what_limits_have_held_back_is_noticed_from_few_files(world: World) -> None:
    limited(world)
    world.source.read()
    assert [world.source.changed(), world.source.changed()] == [NOTHING, NOTHING]
    world.pod.cpu(99.0, 0.5)
    assert world.source.changed() == NOTHING
    world.app.cpu(99.0, 0.5, throttled=1)
    assert world.source.changed() == MoreResources(cpu=True, memory=False)
    world.app.events(hits=1)
    if world.pod.is_v2:  # the kernel tells the pod's group, too
        world.pod.write("", "memory.events", "low 0\nhigh 0\nmax 1\noom 0\noom_kill 0\n")
    assert world.source.changed() == MoreResources(cpu=False, memory=True)
    assert world.source.changed() == NOTHING


def test_kills_are_counted_over_containers_that_are_restarted(world: World) -> None:
    limited(world)
    world.source.read()
    world.app.events(hits=1, kills=1)
    world.pod.events(kills=1 if world.pod.is_v2 else 0)
    assert world.source.read().oom_kills == 1
    world.app.remove()
    again = world.pod.inside("again").make()
    again.memory(1, limit=256)
    assert world.source.read().oom_kills == 1
    world.pod.events(hits=1, kills=2 if world.pod.is_v2 else 0)  # v1 has lost the count with the group
    again.remove()
    assert world.source.read().oom_kills == 2


def test_a_pod_that_is_gone_is_not_there(world: World) -> None:
    assert world.source.is_there()
    world.pod.remove()
    assert not world.source.is_there()


def test_pressure_is_told_where_the_kernel_does(tmp_path: Path) -> None:
    world = World(made_pod(tmp_path))
    world.pod.waited("memory", 1.5)
    assert world.source.read().pressure_s["memory_waiting"] == 1.5
    assert World(made_pod(tmp_path / "v1", is_v2=False)).source.read().pressure_s == {}


@pytest.mark.parametrize(
    ("text", "wanted"), [("MemTotal:  16 kB\n", 16384), ("MemFree: 1 kB\nMemTotal: 2 kB\n", 2048)]
)
def test_the_nodes_memory_is_known(text: str, wanted: int, tmp_path: Path) -> None:
    (tmp_path / "meminfo").write_text(text)
    assert node_bytes(tmp_path / "meminfo") == wanted


def test_a_node_that_tells_no_memory_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "meminfo").write_text("Nothing: 1 kB\n")
    with pytest.raises(ValueError, match="MemTotal"):
        node_bytes(tmp_path / "meminfo")


ID: str = "ab" * 32


@pytest.mark.parametrize("name", [ID, f"cri-containerd-{ID}.scope", f"crio-{ID}.scope"])
def test_the_groups_of_containers_with_processes_are_told_by_their_ids(name: str, world: World) -> None:
    limited(world)
    container = world.pod.inside(name).make()
    container.cpu(limit=0.25)
    container.memory(1, limit=64)
    for group, is_so in ((container, True), (world.app, False)):
        group.populated(is_so=is_so)
    told = world.source.cgroups()
    assert told.containers == {ID: GroupAllowance(250, 64 * MIB)}
    assert told.pod == GroupAllowance(500, 256 * MIB)


def test_a_group_without_limits_allows_no_certain_amount(world: World) -> None:
    world.app.populated(is_so=True)
    assert world.source.cgroups() == PodCgroups(GroupAllowance(), {"app": GroupAllowance()})


@pytest.mark.parametrize(
    ("cpus", "mib", "names"), [(0.5, 256, ()), (0.5, 512, ("memory",)), (0.75, 256, ("cpu",))]
)
def test_a_pods_group_that_was_left_behind_is_told(
    cpus: float, mib: int, names: tuple[str, ...], world: World
) -> None:
    limited(world)
    world.app.cpu(limit=cpus)
    world.app.memory(100, limit=mib)
    world.app.populated(is_so=True)
    assert world.source.cgroups().behind == names


def test_a_pod_that_cannot_start_is_compared_with_the_size_that_was_announced(world: World) -> None:
    limited(world)
    world.app.remove()
    world.source.resized(Resources(750, 256 * MIB))
    assert world.source.cgroups().behind == ("cpu",)
