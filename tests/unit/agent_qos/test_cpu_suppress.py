"""CPU suppress: the published arithmetic, which CPUs are chosen, and the strategy over a tree of files and a node that is made up."""

import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic.alias_generators import to_camel

from agent.node.qos.core.actions import UNLIMITED
from agent.node.qos.core.cpu_suppress import (
    BestEffortShare,
    CpuPlace,
    NodeCpuUse,
    SuppressReason,
    SuppressRule,
    best_effort_uids,
    choose_count,
    choose_cpus,
    choose_quota,
    share_by_use,
)
from agent.node.qos.core.metrics import NODE_CPU_USAGE, POD_CPU_USAGE, milli
from agent.node.qos.core.states import VmState
from agent.node.qos.executor import ResourceExecutor
from agent.node.qos.node_topology import read_cpus
from agent.node.qos.strategies.cpu_suppress import CPUSuppress
from hosting.settings import FaultsError
from protocol.values import Resources
from tests.unit.agent_qos.group_trees import GroupTree, RefusingExecutor, faults
from tests.unit.agent_qos.strategy_worlds import (
    DirectClient,
    SetMetrics,
    SetStates,
    container,
    node,
    pod,
    ready,
)

BE = frozenset({"be"})
GROUP = "kubepods/besteffort"


@pytest.mark.parametrize(
    ("use", "rule", "share", "system"),
    [
        # Published: 16 CPUs, 70 %, 12 in use.
        (NodeCpuUse(16_000, 0, 12_000, {"ls": 8000, "be": 2000}), SuppressRule(70), 1200, 2000),
        (NodeCpuUse(16_000, 0, 12_000, {"nobody knows": 8000, "be": 4000}), SuppressRule(70), 3200, 0),
        # What the node reserves is the system's, used or not.
        (NodeCpuUse(16_000, 3000, 12_000, {"ls": 8000, "be": 2000}), SuppressRule(70), 200, 3000),
        (NodeCpuUse(16_000, 0, 1000, {"ls": 8000}), SuppressRule(70), 3200, 0),  # pods were measured later
        (NodeCpuUse(16_000, 0, 16_000, {"ls": 16_000}), SuppressRule(70), 0, 0),
        (NodeCpuUse(16_000, 0, 16_000, {"ls": 16_000}), SuppressRule(70, 5), 800, 0),
        (NodeCpuUse(1999, 0, 0, {}), SuppressRule(65), 1299, 0),  # integer division
    ],
)
def test_the_share_is_what_others_and_system_leave_of_the_threshold(
    use: NodeCpuUse, rule: SuppressRule, share: int, system: int
) -> None:
    found = share_by_use(use, BE, rule)
    assert (found.share_milli, found.system_milli) == (share, system)


@pytest.mark.parametrize(
    ("share_milli", "current_us", "quota_us", "reason"),
    [
        (1200, 1_500_000, 120_000, SuppressReason.SUPPRESSED),
        (1200, UNLIMITED, 120_000, SuppressReason.SUPPRESSED),
        (1200, None, 120_000, SuppressReason.SUPPRESSED),
        (10_000, 120_000, 280_000, SuppressReason.GROWTH_LIMITED),
        (2800, 120_000, 280_000, SuppressReason.SUPPRESSED),
        (1200, 135_999, None, SuppressReason.UNCHANGED),  # less than 1 % of 1,600,000
        (1200, 136_000, 120_000, SuppressReason.SUPPRESSED),
        (1200, 104_001, None, SuppressReason.UNCHANGED),
        (0, 900_000, 2000, SuppressReason.SUPPRESSED),
        (0, 3000, 2000, SuppressReason.SUPPRESSED),  # the least is reached, however small the change
        (0, 2000, None, SuppressReason.UNCHANGED),
    ],
)
def test_the_quota_follows_the_share_and_grows_slowly(
    share_milli: int, current_us: int | None, quota_us: int | None, reason: SuppressReason
) -> None:
    choice = choose_quota(BestEffortShare(share_milli, 0, 0, 16_000), current_us)
    assert (choice.quota_us, choice.reason) == (quota_us, reason)


@pytest.mark.parametrize(
    ("share_milli", "current", "count"),
    [(3001, 16, 4), (3000, 16, 3), (0, 16, 2), (16_000, 4, 6), (16_000, None, 16), (99_000, 15, 16)],
)
def test_the_count_of_cpus_follows_the_share_and_grows_slowly(
    share_milli: int, current: int | None, count: int
) -> None:
    assert choose_count(BestEffortShare(share_milli, 0, 0, 16_000), 16, current)[0] == count


TWO_NODES = tuple(
    CpuPlace(cpu, cpu // 2, socket=cpu // 4, numa_node=cpu // 8) for cpu in range(16)
)  # published
SPLIT_THREADS = tuple(
    CpuPlace(cpu, cpu % 4, socket=0, numa_node=0) for cpu in range(8)
)  # siblings 0 and 4, 1 and 5, ...
UNEQUAL = tuple(CpuPlace(cpu, cpu, socket=0, numa_node=int(cpu >= 2)) for cpu in range(6))


@pytest.mark.parametrize(
    ("places", "count", "chosen"),
    [
        (TWO_NODES, 2, {0, 1}),
        (TWO_NODES, 4, {0, 1, 4, 5}),
        (TWO_NODES, 5, {0, 1, 4, 5, 2}),
        (TWO_NODES, 10, {0, 1, 4, 5, 8, 9, 12, 13, 2, 3}),
        (SPLIT_THREADS, 4, {0, 4, 1, 5}),
        (SPLIT_THREADS, 3, {0, 4, 1}),
        (UNEQUAL, 3, {2, 0, 3}),  # the larger bucket first
        (TWO_NODES, 99, set(range(16))),
        ((), 2, set()),
    ],
)
def test_cpus_are_spread_and_cores_kept_whole(
    places: tuple[CpuPlace, ...], count: int, chosen: set[int]
) -> None:
    assert choose_cpus(places, count) == chosen


def test_the_topology_is_read_as_the_kernel_tells_it(tmp_path: Path) -> None:
    at = tmp_path / "devices" / "system" / "cpu"
    for cpu, core, socket in ((0, "0", "0"), (10, "4", "1")):
        (at / f"cpu{cpu}" / "topology").mkdir(parents=True)
        (at / f"cpu{cpu}" / f"node{socket}").mkdir()
        (at / f"cpu{cpu}" / "topology" / "core_id").write_text(f"{core}\n")
        (at / f"cpu{cpu}" / "topology" / "physical_package_id").write_text(f"{socket}\n")
    for name in ("cpu3", "cpufreq", "cpu4/topology"):
        (at / name).mkdir(parents=True)
    (at / "cpu4" / "topology" / "core_id").write_text("-1\n")
    assert read_cpus(tmp_path) == (
        CpuPlace(0, 0, 0, 0),
        CpuPlace(3, 3, 0, 0),
        CpuPlace(4, 4, 0, 0),
        CpuPlace(10, 4, 1, 1),
    )


def test_best_effort_is_what_the_group_holds_back_and_no_vm() -> None:
    amount = Resources(0, 0)
    pods = [pod("be"), pod("vm"), pod("ls", "Burstable")]
    assert best_effort_uids(pods, [VmState("default/v", "vm", amount, amount, amount, amount)]) == {"be"}


class World:
    """A node of 8 CPUs with one kubelet's tree, one pod that spins in best effort and one other pod."""

    def __init__(self, root: Path, group: str = GROUP, **args: object) -> None:
        self.now_s = 0.0
        self.tree = GroupTree(root)
        self.group = group
        around = group.rpartition("/")[0]
        self.tree.make(around, f"{around}/pod-of-others", group, f"{group}/podx", f"{group}/podx/c")
        self.client = DirectClient(RefusingExecutor(self.tree))
        self.metrics = SetMetrics()
        self.states = SetStates(node(), (pod("be"), pod("ls", "Burstable", [container(requests_milli=1000)])))
        self.plugin = CPUSuppress(
            clock=lambda: self.now_s,
            topology=lambda: [CpuPlace(cpu, cpu // 2, 0, 0) for cpu in range(8)],
        )
        ready(self.plugin, self.client, self.metrics, self.states, **args)

    def use(self, *, ls: float, be: float, system: float = 0.0) -> None:
        """Set what is used, in CPUs."""
        self.metrics.values = {
            NODE_CPU_USAGE: {(): ls + be + system},
            POD_CPU_USAGE: {("ls",): ls, ("be",): be},
        }

    def round(self) -> SuppressReason:
        """One round, and why it ended as it did."""
        self.plugin.round()
        return SuppressReason(self.client.last.reason)

    @property
    def quota_us(self) -> int:
        return int(self.tree.text(self.group, "cpu.cfs_quota_us"))

    def cpus(self, group: str = "") -> str:
        """The CPUs of the best-effort group, or of one inside."""
        return self.tree.text(f"{self.group}{group}", "cpuset.cpus")


@pytest.mark.parametrize(
    "group", [GROUP, "root/kubepods/besteffort", "a.slice/a-kubepods.slice/a-kubepods-besteffort.slice"]
)
def test_the_group_is_held_to_the_share_grows_slowly_and_is_freed(tmp_path: Path, group: str) -> None:
    world = World(tmp_path, group)
    world.use(ls=3, be=5)
    assert (world.round(), world.quota_us) == (SuppressReason.SUPPRESSED, 220_000)
    assert world.client.last.is_action
    assert world.client.last.inputs["share_milli"] == 2200
    assert (world.round(), world.client.last.is_action) == (SuppressReason.UNCHANGED, False)
    world.use(ls=0.5, be=2.2)
    assert (world.round(), world.quota_us) == (SuppressReason.GROWTH_LIMITED, 300_000)
    world.plugin.stop()
    assert (world.client.last.reason, world.quota_us) == (SuppressReason.RECOVERED, UNLIMITED)


def test_cpus_are_taken_and_given_back_with_the_groups_inside(tmp_path: Path) -> None:
    world = World(tmp_path, policy="cpuset")
    world.tree.set(GROUP, "cpu.cfs_quota_us", "5000")  # of an earlier run with the other policy
    world.use(ls=2, be=5)
    assert (world.round(), world.quota_us) == (SuppressReason.SUPPRESSED, UNLIMITED)
    assert {world.cpus(), world.cpus("/podx"), world.cpus("/podx/c")} == {"0-3"}
    world.use(ls=0, be=4)
    assert (world.round(), world.cpus()) == (SuppressReason.GROWTH_LIMITED, "0-4")
    world.plugin.stop()
    assert {world.cpus(), world.cpus("/podx"), world.cpus("/podx/c")} == {"0-7"}
    assert faults(world.tree) == []


def test_cpus_that_the_kubelet_has_given_away_are_left_out(tmp_path: Path) -> None:
    world = World(tmp_path, policy="cpuset")
    uid = "1f0c5d2e-3b4a-4c5d-8e9f-0a1b2c3d4e5f"
    own = container("f00", requests_milli=2000, limit_milli=2000)
    world.states.pods = (*world.states.pods, pod(uid, "Guaranteed", [own]))
    world.tree.make(f"kubepods/pod{uid}", f"kubepods/pod{uid}/f00")
    world.tree.set(f"kubepods/pod{uid}/f00", "cpuset.cpus", "0-1")
    world.tree.set(f"{GROUP}/podx/c", "cpuset.cpus", "2-7")  # as the kubelet's static policy has it
    world.use(ls=3, be=5)
    world.round()
    assert (world.cpus(), world.cpus("/podx"), world.cpus("/podx/c")) == ("0-7", "0-7", "2-4")
    world.plugin.stop()
    assert world.cpus("/podx/c") == "2-7"


def test_without_metrics_the_limit_stays_and_later_requests_count(tmp_path: Path) -> None:
    world = World(tmp_path)
    assert world.round() is SuppressReason.FROZEN
    assert world.quota_us == UNLIMITED
    world.use(ls=5, be=3)
    assert (world.round(), world.quota_us) == (SuppressReason.SUPPRESSED, 20_000)
    world.metrics.values[POD_CPU_USAGE].pop(("be",))  # its use would count as the system's
    found = []
    for now_s in range(0, 100, 10):
        world.now_s = now_s
        found.append((world.round(), world.quota_us))
    assert found[:3] == [(SuppressReason.FROZEN, 20_000)] * 3
    assert {reason for reason, _ in found[3:]} == {SuppressReason.BY_REQUESTS}
    assert [quota for _, quota in found[3:]] == [
        100_000,
        180_000,
        260_000,
        340_000,
        420_000,
        420_000,
        420_000,
    ]


@pytest.mark.parametrize(
    ("groups", "state", "reason"),
    [
        ((GROUP, "other/kubepods/besteffort"), node(), SuppressReason.NO_TREE),
        ((), node(), SuppressReason.NO_TREE),
        ((GROUP,), None, SuppressReason.NOT_SYNCED),
    ],
)
def test_a_node_that_is_not_understood_is_left_alone(
    tmp_path: Path, groups: tuple[str, ...], state: object, reason: SuppressReason
) -> None:
    tree = GroupTree(tmp_path)
    for group in groups:
        tree.make(group.rpartition("/")[0], group)
    client, plugin = DirectClient(ResourceExecutor(tmp_path)), CPUSuppress()
    ready(plugin, client, SetMetrics(), SetStates(node() if state else None))
    plugin.round()
    assert (client.last.reason, client.last.is_action) == (reason, False)


def test_a_write_that_fails_is_told(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.use(ls=3, be=5)
    world.tree.file(GROUP, "cpu.cfs_quota_us").unlink()
    assert world.round() is SuppressReason.WRITE_FAILED
    assert "no such file" in world.client.last.message


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("threshold_percent", 101),
        ("min_percent", -1),
        ("policy", "?"),
        ("group", "../x"),
    ],
)
def test_args_out_of_range_are_refused(name: str, value: object, tmp_path: Path) -> None:
    client = DirectClient(ResourceExecutor(tmp_path))
    with pytest.raises(FaultsError, match=to_camel(name)):
        ready(CPUSuppress(), client, SetMetrics(), SetStates(), **{name: value})


@settings(max_examples=30)
@given(loads=st.lists(st.tuples(st.floats(0, 8), st.floats(0, 1), st.floats(0, 8)), min_size=1, max_size=12))
def test_best_effort_never_has_more_than_the_share_of_the_last_measurement(
    loads: list[tuple[float, float, float]],
) -> None:
    """Best effort uses what it wants and its quota allows; the others use what they want. Each round follows one measurement: then the
    quota is not above the share, but for what is too small to be written; the others are never held back; and in the end all is free."""
    with tempfile.TemporaryDirectory() as directory:
        world = World(Path(directory))
        before = UNLIMITED
        for others, system, wanted in loads:
            allowed = 8.0 if before == UNLIMITED else before / 100_000
            world.use(ls=others, be=min(wanted, allowed, max(0.0, 8 - others - system)), system=system)
            assert world.round() is not SuppressReason.FROZEN
            measured = world.metrics.values[NODE_CPU_USAGE][()], world.metrics.values[POD_CPU_USAGE]
            rest = (
                5200
                - milli(measured[1][("ls",)])
                - max(0, milli(measured[0]) - milli(measured[1][("ls",)]) - milli(measured[1][("be",)]))
            )
            assert world.quota_us <= max(2000, rest * 100) + 8000
            assert before == UNLIMITED or world.quota_us - before <= 80_000
            assert world.tree.text("kubepods/pod-of-others", "cpu.cfs_quota_us") == "-1"
            before = world.quota_us
        world.plugin.stop()
        assert world.quota_us == UNLIMITED
