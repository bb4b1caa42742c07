"""CPU burst: the published arithmetic and table of operations, the budget, and the strategy over a tree of files."""

import json
import random
from pathlib import Path

import pytest

from agent.node.qos.core.actions import UNLIMITED
from agent.node.qos.core.cpu_burst import (
    BurstBudgets,
    BurstOperation,
    BurstPolicy,
    BurstReason,
    BurstRule,
    BurstSetting,
    SharePool,
    burst_us,
    choose_operation,
    may_burst,
    next_quota,
    pod_setting,
    rule_of,
    share_pool,
)
from agent.node.qos.core.metrics import (
    CONTAINER_CPU_THROTTLED,
    CONTAINER_CPU_USAGE,
    NODE_CPU_USAGE,
    POD_CPU_USAGE,
)
from agent.node.qos.core.states import VmState
from agent.node.qos.strategies.cpu_burst import CPUBurst
from hosting.settings import FaultsError
from protocol.values import Resources
from tests.unit.agent_qos.group_trees import GroupTree, RefusingExecutor
from tests.unit.agent_qos.strategy_worlds import (
    DirectClient,
    SetMetrics,
    SetStates,
    container,
    node,
    pod,
    ready,
)

UP, DOWN, REMAIN, RESET = (
    BurstOperation.UP,
    BurstOperation.DOWN,
    BurstOperation.REMAIN,
    BurstOperation.RESET,
)
IDLE, COOLING, OVERLOAD, UNKNOWN = SharePool.IDLE, SharePool.COOLING, SharePool.OVERLOAD, SharePool.UNKNOWN
UID = "1f0c5d2e-3b4a-4c5d-8e9f-0a1b2c3d4e5f"


@pytest.mark.parametrize(
    ("limit_milli", "policy", "percent", "burst"),
    [
        (1000, BurstPolicy.AUTO, 100, 100_000),
        (1500, BurstPolicy.CPU_BURST_ONLY, 50, 75_000),
        (1000, BurstPolicy.AUTO, 1000, 100_000),  # published as 1,000,000, which the kernel refuses
        (0, BurstPolicy.AUTO, 100, 0),
        (1000, BurstPolicy.QUOTA_BURST_ONLY, 100, 0),
        (1000, BurstPolicy.NONE, 100, 0),
    ],
)
def test_a_container_saves_a_part_of_its_limit(
    limit_milli: int, policy: BurstPolicy, percent: int, burst: int
) -> None:
    assert burst_us(limit_milli, BurstRule(policy, percent)) == burst


@pytest.mark.parametrize(
    ("used", "pool"),
    [(4000, OVERLOAD), (3999, COOLING), (3600, COOLING), (3599, IDLE), (0, IDLE), (None, UNKNOWN)],
)
def test_the_shared_cpus_are_judged_by_the_threshold(used: int | None, pool: SharePool) -> None:
    assert share_pool(used, 8000, 50) is pool


@pytest.mark.parametrize(
    ("pool", "is_throttled", "is_allowed", "operation"),
    [
        (IDLE, True, True, UP),
        (IDLE, False, True, REMAIN),
        (IDLE, True, False, DOWN),
        (COOLING, True, True, REMAIN),
        (COOLING, False, True, REMAIN),
        (COOLING, True, False, DOWN),
        (OVERLOAD, True, True, DOWN),
        (OVERLOAD, False, True, DOWN),
        (UNKNOWN, True, True, REMAIN),
        (UNKNOWN, True, False, DOWN),
    ],
)
def test_the_operation_follows_throttling_budget_and_node(
    pool: SharePool, is_throttled: bool, is_allowed: bool, operation: BurstOperation
) -> None:
    found = choose_operation(BurstRule(), pool, is_throttled=is_throttled, is_allowed=is_allowed)
    assert found is operation
    off = BurstRule(BurstPolicy.CPU_BURST_ONLY)
    assert choose_operation(off, pool, is_throttled=is_throttled, is_allowed=is_allowed) is RESET


@pytest.mark.parametrize(
    ("operation", "limit_milli", "current", "percent", "quota"),
    [
        (UP, 1000, 100_000, 300, 120_000),
        (UP, 1000, 290_000, 300, 300_000),
        (UP, 1000, 100_000, 100, 100_000),  # no more than the limit: not on
        (UP, 1000, 100_000, 50, 100_000),
        (DOWN, 1000, 300_000, 300, 240_000),
        (DOWN, 1000, 110_000, 300, 100_000),
        (REMAIN, 1000, 240_000, 300, 240_000),
        (REMAIN, 1000, 240_000, 200, 200_000),  # the ceiling was lowered
        (RESET, 1000, 240_000, 300, 100_000),
        (UP, 1000, UNLIMITED, 300, None),
        (UP, 0, 240_000, 300, None),
        (UP, 1000, None, 300, None),
        (REMAIN, 1000, 50_000, 300, None),  # a resize is on its way
    ],
)
def test_the_quota_moves_between_the_limit_and_the_ceiling(
    operation: BurstOperation, limit_milli: int, current: int | None, percent: int, quota: int | None
) -> None:
    assert next_quota(operation, limit_milli, current, BurstRule(quota_percent=percent)) == quota


def test_a_pod_gets_its_limit_and_what_its_containers_have_beyond_theirs() -> None:
    inside = [(1000, BurstSetting(120_000, 50_000)), (500, BurstSetting(None, 50_000))]
    assert pod_setting(1500, 150_000, inside) == BurstSetting(170_000, 100_000)
    assert pod_setting(1500, UNLIMITED, inside) == BurstSetting(None, 100_000)
    assert pod_setting(900, 90_000, inside) == BurstSetting(110_000, 90_000)


def test_the_budget_is_spent_above_the_limit_and_saved_below_three_fifths() -> None:
    rule = BurstRule(quota_percent=300, period_s=10)  # 10 s of 200 % beyond the limit
    budgets, rng = BurstBudgets(), random.Random(1)
    first = random.Random(1).randint(0, 1_000_000)
    assert budgets.spend("c", rule, 100, 0, rng) is (first > 0)
    assert budgets.spend("c", rule, 300, first / 200_000 - 0.01, rng) is True
    assert budgets.spend("c", rule, 300, first / 200_000 + 0.01, rng) is False
    at_s = first / 200_000 + 0.01
    assert budgets.spend("c", rule, 60, at_s + 1, rng) is False, "60 % neither spends nor saves"
    assert budgets.spend("c", rule, 0, at_s + 2, rng) is True
    assert budgets.spend("c", rule, 1000, at_s + 1000, rng) is False
    assert budgets.spend("c", rule, 0, at_s + 1021, rng) is True, "more than 20 s are never owed"
    budgets.forget(at_s + 1042)
    assert budgets._budgets == {}


@pytest.mark.parametrize(("period_s", "allowed"), [(-1, True), (0, False)])
def test_the_length_of_a_burst_can_be_without_limit_or_nothing(period_s: int, allowed: bool) -> None:
    assert BurstBudgets().spend("c", BurstRule(period_s=period_s), 0, 0, random.Random(1)) is allowed


def test_the_rule_of_a_pod_lies_over_that_of_the_node_and_all_faults_are_told() -> None:
    assert rule_of({"policy": "none", "cfsQuotaBurstPercent": 150}, BurstRule()) == BurstRule(
        BurstPolicy.NONE, quota_percent=150
    )
    wrong = {"policy": "never", "cpuBurstPercent": -1, "cfsQuotaBurstPeriodSeconds": True, "other": 1}
    with pytest.raises(ValueError, match=r"policy.*cpuBurstPercent.*cfsQuotaBurstPeriodSeconds.*other"):
        rule_of(wrong, BurstRule())
    with pytest.raises(ValueError, match="must be an object"):
        rule_of([], BurstRule())


def test_best_effort_never_bursts() -> None:
    assert [may_burst(pod("x", kind)) for kind in ("BestEffort", "Burstable", "Guaranteed")] == [
        False,
        True,
        True,
    ]


class World:
    """A node of 8 CPUs with one pod of two containers, one of them without a limit unless `limits` says else."""

    def __init__(self, root: Path, limits: tuple[int, int] = (1000, 500), **args: object) -> None:
        self.now_s = 0.0
        self.tree = GroupTree(root)
        self.group = f"kubepods/burstable/pod{UID}"
        self.names = ("aaa", "cri-containerd-bbb.scope")
        self.tree.make(*(f"{self.group}/{name}" for name in self.names))
        for path, limit in zip(self.paths, (sum(limits) if all(limits) else 0, *limits), strict=True):
            self.tree.set(path, "cpu.cfs_quota_us", str(limit * 100 or -1))
        inside = [container("aaa", limit_milli=limits[0]), container("bbb", limit_milli=limits[1], name="b")]
        self.client = DirectClient(RefusingExecutor(self.tree))
        self.metrics = SetMetrics()
        self.states = SetStates(node(), (pod(UID, "Burstable", inside),))
        self.plugin = CPUBurst(lambda: self.now_s, random.Random(1))
        ready(self.plugin, self.client, self.metrics, self.states, **args)

    @property
    def paths(self) -> tuple[str, ...]:
        return (self.group, *(f"{self.group}/{name}" for name in self.names))

    def see(self, node_cpus: float, throttled: float) -> None:
        """Set what the node uses, and how much the first container is throttled."""
        self.metrics.values = {
            NODE_CPU_USAGE: {(): node_cpus},
            POD_CPU_USAGE: {(UID,): 1.0},
            CONTAINER_CPU_USAGE: {("aaa",): 1.0, ("bbb",): 0.1},
            CONTAINER_CPU_THROTTLED: {("aaa",): throttled, ("bbb",): 0.0},
        }

    def round(self) -> tuple[int, ...]:
        """One round; the quotas of the pod and its containers after it."""
        self.plugin.round()
        return self.quotas

    @property
    def quotas(self) -> tuple[int, ...]:
        return tuple(int(self.tree.text(path, "cpu.cfs_quota_us")) for path in self.paths)

    @property
    def bursts(self) -> tuple[int, ...]:
        return tuple(int(self.tree.text(path, "cpu.cfs_burst_us")) for path in self.paths)


def test_a_throttled_container_gets_more_until_the_node_is_busy(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.see(1, 0.5)
    assert world.round() == (170_000, 120_000, 50_000)
    assert (world.client.last.reason, world.bursts) == (BurstReason.ADJUSTED, (150_000, 100_000, 50_000))
    assert world.round() == (194_000, 144_000, 50_000)
    world.see(1, 0)
    assert world.round() == (194_000, 144_000, 50_000)
    assert world.client.last.reason == BurstReason.UNCHANGED
    world.see(4, 0.5)
    assert world.round() == (165_200, 115_200, 50_000)
    assert world.round() == (150_000, 100_000, 50_000)
    assert not any(each.reason == BurstReason.WRITE_FAILED for each in world.client.decisions)
    world.see(1, 0.5)
    world.round()
    world.plugin.stop()
    assert (world.quotas, world.bursts) == ((150_000, 100_000, 50_000), (0, 0, 0))


def test_a_pod_without_a_limit_is_left_alone_and_its_limited_container_bursts(tmp_path: Path) -> None:
    world = World(tmp_path, limits=(1000, 0))
    world.see(1, 0.5)
    assert (world.round(), world.bursts) == ((-1, 120_000, -1), (100_000, 100_000, 0))


def test_what_is_not_known_raises_nothing(tmp_path: Path) -> None:
    world = World(tmp_path)
    assert (world.round(), world.client.last.inputs["shared_milli"]) == ((150_000, 100_000, 50_000), 0)
    world.states.node = None
    world.round()
    assert world.client.last.reason == BurstReason.NOT_SYNCED


@pytest.mark.parametrize("by", ["label", "vm"])
def test_vms_are_left_alone_unless_they_are_included(tmp_path: Path, by: str) -> None:
    for included in (False, True):
        world = World(tmp_path / str(included), include_vms=included)
        found = world.states.pods[0]
        amount = Resources(0, 0)
        if by == "vm":
            world.states.vms = (VmState("default/v", UID, amount, amount, amount, amount),)
        else:
            world.states.pods = (
                pod(UID, "Burstable", found.containers, labels={"parley.dev/enabled": "true"}),
            )
        world.see(1, 0.5)
        assert world.round()[1] == (120_000 if included else 100_000)


OURS, PUBLISHED = "parley.dev/cpu-burst", "koordinator.sh/cpuBurst"


@pytest.mark.parametrize(
    ("annotations", "quota", "told"),
    [
        ({OURS: json.dumps({"policy": "none"})}, 100_000, ""),
        ({PUBLISHED: json.dumps({"cfsQuotaBurstPercent": 110})}, 110_000, ""),
        ({PUBLISHED: "nonsense", OURS: json.dumps({"cfsQuotaBurstPercent": 110})}, 110_000, ""),
        ({OURS: "nonsense"}, 100_000, f"annotation {OURS} has faults, the pod does not burst"),
        (
            {PUBLISHED: json.dumps({"policy": "?"})},
            100_000,
            f"annotation {PUBLISHED} has faults, the pod does not burst",
        ),
        (
            {OURS: json.dumps({"policy": ["none"]})},
            100_000,
            f"annotation {OURS} has faults, the pod does not burst",
        ),
        ({OURS: 100_000 * "["}, 100_000, f"annotation {OURS} has faults, the pod does not burst"),
    ],
)
def test_a_pod_may_have_its_own_rule_and_a_wrong_one_is_told_once(
    tmp_path: Path, annotations: dict[str, str], quota: int, told: str
) -> None:
    world = World(tmp_path)
    found = world.states.pods[0]
    world.states.pods = (pod(UID, "Burstable", found.containers, annotations=annotations),)
    world.see(1, 0.5)
    assert world.round()[1] == quota
    world.round()
    assert [message.partition(":")[0] for _, message in world.client.events] == ([told] if told else [])


def test_a_rule_with_faults_leaves_the_one_before_it_in_force(tmp_path: Path) -> None:
    world = World(tmp_path)
    found = world.states.pods[0]
    world.see(1, 0.5)
    quotas = []
    for text in (json.dumps({"cfsQuotaBurstPercent": 110}), "{", json.dumps({"policy": "none"}), "{"):
        world.states.pods = (pod(UID, "Burstable", found.containers, annotations={OURS: text}),)
        quotas.append(world.round()[1])
    assert quotas == [110_000, 110_000, 100_000, 100_000]


def test_what_a_killed_agent_has_left_is_put_back_by_a_strategy_that_only_ends(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.see(1, 0.5)
    world.round()
    world.plugin = CPUBurst(lambda: world.now_s, random.Random(1))
    ready(world.plugin, world.client, world.metrics, world.states)
    world.plugin.stop()
    assert (world.quotas, world.bursts) == ((150_000, 100_000, 50_000), (0, 0, 0))


def test_a_pod_that_becomes_a_vm_gets_its_limit_back(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.see(1, 0.5)
    world.round()
    found = world.states.pods[0]
    labels = {"parley.dev/enabled": "true"}
    world.states.pods = (pod(UID, "Burstable", found.containers, labels=labels),)
    assert (world.round(), world.bursts) == ((150_000, 100_000, 50_000), (0, 0, 0))
    world.tree.set(world.group, "cpu.cfs_quota_us", "160000")
    assert world.round()[0] == 160_000


def test_a_burst_that_somebody_else_has_changed_is_set_again_after_a_while(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.see(1, 0)
    world.round()
    world.tree.set(world.paths[1], "cpu.cfs_burst_us", "7")
    for world.now_s, burst in ((29.0, 7), (30.0, 7), (31.0, 100_000)):
        world.round()
        assert world.bursts[1] == burst


def test_a_resize_that_is_on_its_way_is_waited_for(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.tree.set(world.paths[1], "cpu.cfs_quota_us", "20000")
    world.tree.set(world.group, "cpu.cfs_quota_us", "70000")
    world.see(1, 0.5)
    assert (world.round(), world.bursts) == ((70_000, 20_000, 50_000), (0, 0, 0))


def test_args_out_of_range_are_refused(tmp_path: Path) -> None:
    with pytest.raises(FaultsError, match="quotaPercent"):
        World(tmp_path, quota_percent=-5)
