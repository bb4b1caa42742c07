"""Writing control groups: both versions' files and units, the order of nested groups, what is refused, and who wrote last."""

import random
import shutil
import tempfile
import threading
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent.node.qos.core.actions import UNLIMITED, CgroupResource, CgroupUpdate, WriteResult
from agent.node.qos.core.cgroup_values import shares_of, weight_of
from agent.node.qos.executor import ResourceExecutor
from protocol.cpu_lists import cpu_list
from protocol.pages import GroupWrite
from tests.unit.agent_qos.group_trees import GroupTree, RefusingExecutor, faults

QUOTA, BURST, SHARES, CPUS, MINIMUM, HIGH = (
    CgroupResource.CPU_QUOTA_US,
    CgroupResource.CPU_BURST_US,
    CgroupResource.CPU_SHARES,
    CgroupResource.CPUSET_CPUS,
    CgroupResource.MEMORY_MIN_BYTES,
    CgroupResource.MEMORY_HIGH_BYTES,
)
WRITTEN, UNCHANGED, GONE, UNSUPPORTED, FAILED = (
    WriteResult.WRITTEN,
    WriteResult.UNCHANGED,
    WriteResult.GONE,
    WriteResult.UNSUPPORTED,
    WriteResult.FAILED,
)
GROUPS = ("a", "a/b", "a/b/c", "a/b/d", "a/e")


def update(group: str, resource: CgroupResource, value: int | str) -> CgroupUpdate:
    """An update whose reason does not matter."""
    return CgroupUpdate(group, resource, value, "test")


@pytest.mark.parametrize(
    ("is_v2", "resource", "value", "name", "before", "after"),
    [
        (False, QUOTA, 40_000, "cpu.cfs_quota_us", "-1", "40000"),
        (False, QUOTA, UNLIMITED, "cpu.cfs_quota_us", "5000", "-1"),
        (False, BURST, 7000, "cpu.cfs_burst_us", "0", "7000"),
        (False, SHARES, 2048, "cpu.shares", "1024", "2048"),
        (False, CPUS, "3,2,5", "cpuset.cpus", "0-7", "2-3,5"),
        (True, QUOTA, 40_000, "cpu.max", "max 100000", "40000 100000"),
        (True, QUOTA, 40_000, "cpu.max", "max 50000", "20000 50000"),
        (True, QUOTA, 1000, "cpu.max", "max 50000", "1000 50000"),  # the kernel takes no less
        (True, QUOTA, UNLIMITED, "cpu.max", "9000 50000", "max 50000"),
        (True, BURST, 7000, "cpu.max.burst", "0", "7000"),
        (True, SHARES, 1024, "cpu.weight", "7", "100"),
        (True, CPUS, "2-3,5", "cpuset.cpus", "", "2-3,5"),
        (True, CPUS, "", "cpuset.cpus", "3", ""),
        (True, MINIMUM, 8193, "memory.min", "0", "8192"),
        (True, HIGH, UNLIMITED, "memory.high", "8192", "max"),
    ],
)
def test_a_value_is_written_as_each_version_has_it_and_not_written_again(
    tmp_path: Path,
    is_v2: bool,
    resource: CgroupResource,
    value: int | str,
    name: str,
    before: str,
    after: str,
) -> None:
    tree = GroupTree(tmp_path, is_v2=is_v2)
    tree.make("a")
    tree.set("a", name, before)
    executor = ResourceExecutor(tmp_path)
    (outcome,) = executor.write([update("a", resource, value)])
    assert (outcome.result, outcome.found) == (WRITTEN, after)
    tree.file("a", name).chmod(0o444)
    changed_at = tree.file("a", name).stat().st_mtime_ns
    (outcome,) = executor.write([update("a", resource, value)])
    assert (outcome.result, tree.file("a", name).stat().st_mtime_ns) == (UNCHANGED, changed_at)


@pytest.mark.parametrize(
    ("is_v2", "resource", "name", "text", "value"),
    [
        (False, QUOTA, "cpu.cfs_quota_us", "-1", UNLIMITED),
        (False, QUOTA, "cpu.cfs_quota_us", "nonsense", None),
        (False, CPUS, "cpuset.cpus", "0,1,2", "0-2"),
        (False, MINIMUM, "cpu.shares", "1024", None),
        (True, QUOTA, "cpu.max", "20000 50000", 40_000),
        (True, QUOTA, "cpu.max", "max 100000", UNLIMITED),
        (True, CPUS, "cpuset.cpus", "", "0-7"),  # what the group around it has
        (True, SHARES, "cpu.weight", "100", 1024),
        (True, HIGH, "memory.high", "max", UNLIMITED),
    ],
)
def test_a_value_is_read_from_each_version(
    tmp_path: Path, is_v2: bool, resource: CgroupResource, name: str, text: str, value: int | str | None
) -> None:
    tree = GroupTree(tmp_path, is_v2=is_v2)
    tree.make("a")
    tree.set("a", name, text)
    executor = ResourceExecutor(tmp_path)
    assert executor.read("a", resource) == value
    assert executor.read("gone", resource) is None


@pytest.mark.parametrize(
    ("shares", "weight"), [(2, 1), (102, 17), (1024, 100), (2048, 174), (262_144, 10_000)]
)
def test_shares_become_the_weight_that_container_runtimes_publish(shares: int, weight: int) -> None:
    assert weight_of(shares) == weight
    assert weight_of(shares_of(weight)) == weight


@pytest.mark.parametrize(
    ("resource", "value", "rule"),
    [
        (QUOTA, 999, "at least 1000"),
        (QUOTA, "3", "a whole number"),
        (QUOTA, True, "a whole number"),
        (SHARES, 1, "from 2 to 262144"),
        (BURST, -1, "at least 0"),
        (CPUS, 3, "a list such as"),
        (CPUS, "3-1", "no list of CPUs"),
        (CPUS, "9999", "below 8192"),
    ],
)
def test_a_value_that_no_file_can_hold_is_refused_with_the_rule(
    tmp_path: Path, resource: CgroupResource, value: int | str, rule: str
) -> None:
    GroupTree(tmp_path).make("a")
    (outcome,) = ResourceExecutor(tmp_path).write([update("a", resource, value)])
    assert outcome.result is FAILED
    assert rule in outcome.error


def test_nothing_outside_the_root_is_reached(tmp_path: Path) -> None:
    outside, root = GroupTree(tmp_path / "outside"), GroupTree(tmp_path / "root")
    outside.make("a")
    root.make("a")
    (root.root / "cpu" / "link").symlink_to(outside.root / "cpu" / "a")
    root.file("a", "cpu.cfs_quota_us").unlink()
    root.file("a", "cpu.cfs_quota_us").symlink_to(outside.file("a", "cpu.cfs_quota_us"))
    (root.root / "cpuset").rename(root.root / "gone")
    (root.root / "cpuset").symlink_to(outside.root / "cpuset")
    executor = ResourceExecutor(root.root)
    tried = ["../../outside/cpu/a", "/etc", "a/../a", "a//b", "./a", "a\0b", "", "link", "a"]
    outcomes = executor.write(
        [update(group, QUOTA, 5000) for group in tried]
        + [update("a", CPUS, "1"), update("link/a", QUOTA, 5000)]
    )
    assert {outcome.result for outcome in outcomes} == {FAILED}
    assert outside.text("a", "cpu.cfs_quota_us") == "-1"
    assert outside.text("a", "cpuset.cpus") == "0-7"
    with pytest.raises(ValueError, match="is no group"):
        executor.read("../outside", QUOTA)


def test_a_hierarchy_may_be_a_link_inside_the_root(tmp_path: Path) -> None:
    tree = GroupTree(tmp_path)
    tree.make("a")
    (tmp_path / "cpu").rename(tmp_path / "cpu,cpuacct")
    (tmp_path / "cpu").symlink_to("cpu,cpuacct")
    assert ResourceExecutor(tmp_path).write([update("a", QUOTA, 5000)])[0].result is WRITTEN


def test_each_update_has_its_outcome_whatever_becomes_of_the_others(tmp_path: Path) -> None:
    tree = GroupTree(tmp_path)
    tree.make("a")
    tree.file("a", "cpu.cfs_burst_us").unlink()
    outcomes = ResourceExecutor(tmp_path).write(
        [
            update("a", QUOTA, 5000),
            update("gone/b", QUOTA, 5000),
            update("a", BURST, 5000),
            update("a", MINIMUM, 5000),
            update("a", QUOTA, 6000),
        ]
    )
    assert [each.result for each in outcomes] == [FAILED, GONE, UNSUPPORTED, UNSUPPORTED, WRITTEN]
    assert "later update" in outcomes[0].error
    assert tree.text("a", "cpu.cfs_quota_us") == "6000"


def test_all_cpus_of_the_group_around_are_those_it_will_have(tmp_path: Path) -> None:
    tree = GroupTree(tmp_path)
    tree.make("a", "a/b")
    tree.set("a", "cpuset.cpus", "0-3")
    tree.set("a/b", "cpuset.cpus", "1")
    RefusingExecutor(tree).write([update("a/b", CPUS, ""), update("a", CPUS, "0-5")])
    assert tree.text("a/b", "cpuset.cpus") == "0-5"


def test_a_group_that_could_not_be_widened_keeps_those_inside_from_it(tmp_path: Path) -> None:
    tree = GroupTree(tmp_path)
    tree.make("a", "a/b", "a/b/c")
    for group in ("a", "a/b", "a/b/c"):
        tree.set(group, "cpu.cfs_quota_us", "5000")
    executor = RefusingExecutor(tree)
    executor.broken.add("a/b")
    updates = [update(group, QUOTA, 9000) for group in ("a/b/c", "a/b", "a")]
    outcomes = executor.write([*updates, update("a/b/c", SHARES, 2048)])
    assert [each.result for each in outcomes] == [FAILED, FAILED, WRITTEN, WRITTEN]
    assert executor.tried == ["a", "a/b", "a/b/c"], "the shares of the last one, but not its quota"
    assert outcomes[0].error == "a/b around it was not widened"


def test_whose_value_was_replaced_is_told_and_shown(tmp_path: Path) -> None:
    GroupTree(tmp_path).make("a")
    executor = ResourceExecutor(tmp_path)
    told = [
        executor.write([update("a", QUOTA, value)], writer)[0].displaced
        for value, writer in ((5000, "one"), (6000, "one"), (6000, "other"), (7000, "one"), (8000, "other"))
    ]
    assert told == ["", "", "", "other", "one"]
    executor.write([update("a", QUOTA, 1), update("a", BURST, -1)], "one")
    assert executor.last_writes() == (
        GroupWrite(group="a", resource=QUOTA.value, value=8000, strategy="other"),
    )
    shutil.rmtree(tmp_path / "cpu" / "a")
    executor.write([update("a", QUOTA, 9000)], "one")
    assert executor.last_writes() == ()


def test_writes_of_two_threads_do_not_mix(tmp_path: Path) -> None:
    """One thread's group inside is never wider than the other's group around it, which a mixture of both would refuse."""
    tree = GroupTree(tmp_path)
    tree.make("a", "a/b")
    executor = RefusingExecutor(tree)
    found: list[WriteResult] = []

    def work(quota: int) -> None:
        for _ in range(50):
            found.extend(
                each.result
                for each in executor.write([update("a/b", QUOTA, quota), update("a", QUOTA, quota)])
            )

    threads = [threading.Thread(target=work, args=(quota,)) for quota in (5000, 9000)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert len(found) == 200
    assert FAILED not in found


# ------------------------------------------------------------ the law of nested groups


@st.composite
def valid_trees(draw: st.DrawFn) -> dict[str, tuple[int, int, frozenset[int]]]:
    """Quota, burst and CPUs of each group, none wider than the group around it."""
    found: dict[str, tuple[int, int, frozenset[int]]] = {}
    limits = {"": (90_000, frozenset(range(8)))}
    for group in GROUPS:
        most, cpus = limits[group.rpartition("/")[0]]
        quota = draw(st.sampled_from([UNLIMITED, *range(1000, most + 1, 4000)]))
        burst = draw(st.integers(0, most if quota == UNLIMITED else quota))
        own = draw(st.sets(st.sampled_from(sorted(cpus)), min_size=1))
        found[group] = quota, burst, frozenset(own)
        limits[group] = (most if quota == UNLIMITED else quota, frozenset(own))
    return found


@settings(max_examples=20)
@given(before=valid_trees(), after=valid_trees(), broken=st.sets(st.sampled_from(GROUPS)), order=st.randoms())
def test_after_each_single_write_no_group_is_wider_than_the_group_around_it(
    before: dict[str, tuple[int, int, frozenset[int]]],
    after: dict[str, tuple[int, int, frozenset[int]]],
    broken: set[str],
    order: random.Random,
) -> None:
    with tempfile.TemporaryDirectory() as directory:
        tree = GroupTree(Path(directory))
        tree.make(*GROUPS)
        for group, (quota, burst, cpus) in before.items():
            tree.set(group, "cpu.cfs_quota_us", str(quota))
            tree.set(group, "cpu.cfs_burst_us", str(burst))
            tree.set(group, "cpuset.cpus", cpu_list(cpus))
        updates = [
            update(group, resource, value)
            for group, (quota, burst, cpus) in after.items()
            for resource, value in ((QUOTA, quota), (BURST, burst), (CPUS, cpu_list(cpus)))
        ]
        order.shuffle(updates)
        assert faults(tree) == []
        states: list[list[str]] = []
        executor = RefusingExecutor(tree, lambda: states.append(faults(tree)))
        executor.broken = broken
        with_faults = executor.write(updates)
        assert [each.update for each in with_faults] == updates
        assert all(each.result in {WRITTEN, UNCHANGED, FAILED} for each in with_faults)
        executor.broken = set()
        # Nothing is broken any more: from wherever that has ended all of it is reached, and nothing is ever refused.
        assert {each.result for each in executor.write(updates)} <= {WRITTEN, UNCHANGED}
        assert [each for each in states if each] == []
        for group, (quota, burst, cpus) in after.items():
            assert tree.text(group, "cpu.cfs_quota_us") == str(quota)
            assert tree.text(group, "cpu.cfs_burst_us") == str(burst)
            assert tree.text(group, "cpuset.cpus") == cpu_list(cpus)
