"""The rules of eviction choose the pods and the amount to release: the published rules, and ours where these differ from
latent bugs of the published code."""

from dataclasses import replace

import pytest

from agent.node.qos.core.evict_tasks import (
    BestEffortCpu,
    CpuFigures,
    EvictRules,
    EvictThresholds,
    SatisfactionRules,
    TakenAmount,
    cpu_tasks,
    memory_tasks,
    pressure_task,
)
from agent.node.qos.core.evicting import (
    LAST,
    Evictable,
    EvictionMarks,
    EvictionTask,
    ReleaseTarget,
    best_effort_order,
    priority_order,
)
from agent.node.qos.core.states import NodeState, QosClass, VmState
from agent.node.qos.pods import marks_of
from protocol.values import ZERO, Resources
from tests.support.evictions import ENABLED, GIB, NODE, pod, using

LS = QosClass.LATENCY_SENSITIVE


def rules(*tasks: str, upper: int = 70, lower: int = 68, allocatable: int = 100) -> EvictRules:
    return EvictRules(
        tasks, EvictThresholds(upper, lower), EvictThresholds(allocatable, allocatable - 10), 1000, 0
    )


def taken(
    whole: int, amount: int | None, *, was_releasing: bool = False, is_strict: bool = False
) -> EvictionTask:
    return pressure_task(
        "MemoryEvict",
        ReleaseTarget.MEMORY_USED,
        TakenAmount(amount, whole, "memory in use"),
        EvictThresholds(70, 68),
        was_releasing=was_releasing,
        is_strict=is_strict,
    )


@pytest.mark.parametrize(
    ("whole", "amount", "was_releasing", "to_release", "is_calm"),
    [
        (1000, 699, False, 0, True),
        (1000, 700, False, 20, False),
        (1000, 690, True, 10, False),
        (1000, 680, True, 0, True),
        (1000, 690, False, 0, True),
        (1000, 1000, False, 320, False),
        pytest.param(999, 700, False, 21, False, id="rounded up: 68 % of 999 is 679.32"),
        pytest.param(
            1000, 709, False, 29, False, id="exact: the published code releases by whole per cent, 20"
        ),
        pytest.param(1000, None, True, 0, False, id="no metric: what was decided stays"),
        pytest.param(1000, None, False, 0, True, id="no metric: nothing begins"),
        pytest.param(1, 1, False, 1, False, id="the smallest capacity"),
        pytest.param(0, 5, False, 0, True, id="no capacity"),
    ],
)
def test_releasing_begins_at_the_upper_threshold_and_ends_at_the_lower(
    whole: int, amount: int | None, was_releasing: bool, to_release: int, is_calm: bool
) -> None:
    task = taken(whole, amount, was_releasing=was_releasing)
    assert (task.amount, task.is_calm) == (to_release, is_calm)
    assert task.is_known == (amount is not None and whole > 0)


def test_the_message_says_where_the_hysteresis_stands() -> None:
    said = [
        taken(1000, each, was_releasing=was).message
        for each, was in ((699, False), (705, False), (690, True))
    ]
    assert said == [
        "memory in use 69.9 % (begins at 70 %)",
        "memory in use 70.5 % (releasing until 68 %)",
        "memory in use 69.0 % (begun at 70 %, releasing until 68 %)",
    ]


def test_requests_may_reach_their_threshold_and_use_may_not() -> None:
    assert taken(1000, 700, is_strict=True).is_calm
    assert not taken(1000, 700).is_calm


def names(found: tuple[object, ...]) -> str:
    return " ".join(each.name for each in found)  # type: ignore[attr-defined]  # pods


def memory(found: Evictable) -> int | None:
    return found.memory_used_bytes


def marked(**given: object) -> EvictionMarks:
    return EvictionMarks(**{"is_enabled": True, **given})  # type: ignore[arg-type]  # as named


@pytest.mark.parametrize(
    ("found", "order"),
    [
        ([using(pod("a", priority=2), 1), using(pod("b", priority=1), 1)], "b a"),
        ([using(pod("a"), 1), using(pod("b"), 9)], "b a"),
        ([using(pod("a")), using(pod("b"), 1)], "b a"),
        ([using(pod("a", priority=1)), using(pod("b", priority=2), 9)], "a b"),
        ([using(pod("a"), 1), using(pod("b"), 1)], "b a"),
        ([using(pod("a", qos=LS), 1)], ""),
        ([using(pod("a", priority=1001), 1), using(pod("b", priority=1000), 1)], "b"),
        ([using(pod("a"), 1, marks=EvictionMarks())], "a"),
        ([using(pod("a"), 1, marks=marked(is_enabled=False))], ""),
        ([using(pod("a", is_finished=True), 1), using(pod("b", is_ending=True), 1)], ""),
        ([using(pod("a"), 1, marks=marked(obstacle="static"))], ""),
        ([using(pod("a"), 1, marks=marked(tasks=frozenset({"MemoryEvict"})))], ""),
        ([using(pod("a"), 1, marks=marked(tasks=frozenset({"BEMemoryEvict"})))], "a"),
    ],
    ids=[
        "the lowest priority first",
        "then the largest use",
        "without a metric last",
        "within a priority only",
        "ties by name from the end",
        "best effort only",
        "up to a priority: pods of the system may be best effort, too",
        "nobody need allow it",
        "but may forbid it",
        "neither finished nor ending",
        "no obstacle",
        "not with other tasks only",
        "with this task",
    ],
)
def test_the_order_of_best_effort_pods(found: list[Evictable], order: str) -> None:
    assert names(best_effort_order(found, "BEMemoryEvict", memory, 1000)) == order


@pytest.mark.parametrize(
    ("found", "order"),
    [
        ([using(pod("a", priority=1), 1, marks=marked(order=2)), using(pod("b", priority=9), 1)], "b a"),
        ([using(pod("a", priority=9), 1), using(pod("b", priority=1), 1)], "b a"),
        (
            [
                using(pod("a"), 1, marks=marked(sub_priority=7)),
                using(pod("b"), 1, marks=marked(sub_priority=3)),
            ],
            "b a",
        ),
        (
            [using(pod("a", priority=5), 1, marks=marked(sub_priority=6)), using(pod("b", priority=5), 1)],
            "b a",
        ),
        ([using(pod("a"), 1), using(pod("b"), 9)], "b a"),
        ([using(pod("a"), 1), using(pod("b"), 1)], "b a"),
        ([using(pod("a", priority=1001), 1), using(pod("b", priority=1000), 1)], "b"),
        ([using(pod("a"), 1, marks=EvictionMarks()), using(pod("b", qos=LS), 1)], "b"),
        ([using(pod("a"))], ""),
        ([using(pod("a", is_finished=True), 1), using(pod("b", is_ending=True), 1)], ""),
    ],
    ids=[
        "the owners' order first",
        "then priority",
        "then the label's priority",
        "which is the priority where left out",
        "then the largest use",
        "then the name from the end",
        "up to a priority",
        "only where the owner allows it",
        "only with a metric",
        "neither finished nor ending",
    ],
)
def test_the_order_by_priority(found: list[Evictable], order: str) -> None:
    assert names(priority_order(found, "MemoryEvict", memory, 1000)) == order


def test_the_tasks_of_memory_look_at_use_and_at_requests() -> None:
    asks = Resources(0, 50 * GIB)
    found = [
        using(pod("be", requests=asks), 10),
        using(pod("ls", qos=LS, requests=asks), 20),
        using(pod("above", qos=LS, priority=1, requests=asks), 20),
    ]
    chosen = rules("BEMemoryEvict", "MemoryAllocatableEvict", "MemoryEvict")
    best_effort, allocatable, priority = memory_tasks(chosen, NODE, found, 75 * GIB, ())
    assert (best_effort.amount, names(best_effort.victims)) == (7 * GIB, "be")
    assert (priority.amount, names(priority.victims)) == (7 * GIB, "ls be above")
    assert (allocatable.amount, names(allocatable.victims)) == (100 * GIB - 72 * GIB, "ls be")
    assert allocatable.shares == {"u-be": 50 * GIB, "u-ls": 50 * GIB, "u-above": 0}


def test_the_tasks_of_cpu_look_at_use_and_at_requests() -> None:
    found = [using(pod("a", requests=Resources(9_000, 0)), None, 2_000), using(pod("b"), None, 5_000)]
    chosen = rules("CPUAllocatableEvict", "CPUEvict")
    figures = CpuFigures(7_000, None, None)
    allocatable, used = cpu_tasks(chosen, SatisfactionRules(40, 60, 90), NODE, found, figures, ())
    assert (allocatable.amount, names(allocatable.victims)) == (1_800, "a b")
    assert (used.amount, names(used.victims)) == (200, "b a")


@pytest.mark.parametrize(
    ("usage", "limit", "asked", "was_releasing", "lacking"),
    [
        (2_000, 2_000, 10_000, False, 4_000),
        (4_000, 4_000, 10_000, False, 2_000),
        (4_100, 4_100, 10_000, False, 0),
        (4_100, 4_100, 10_000, True, 1_900),
        (6_000, 6_000, 10_000, True, 0),
        (1_799, 2_000, 10_000, False, 0),
        (1_800, 2_000, 10_000, False, 4_000),
        (0, 999, 10_000, False, 5_001),
        (100, 0, 10_000, False, 0),
        (100, 100, 0, False, 0),
    ],
    ids=[
        "a fifth of the requests",
        "at the lower percentage",
        "above it",
        "above it, but begun",
        "at the upper percentage",
        "the limit is not used",
        "the limit is used",
        "a small limit, whatever is used",
        "no limit to speak of",
        "nothing is requested",
    ],
)
def test_satisfaction_of_best_effort_pods(
    usage: int, limit: int, asked: int, was_releasing: bool, lacking: int
) -> None:
    chosen = SatisfactionRules(40, 60, 90)
    assert BestEffortCpu(usage, limit, asked).lacking(chosen, was_releasing=was_releasing) == lacking


def test_satisfaction_must_be_low_over_the_window_and_now() -> None:
    short, fine = BestEffortCpu(2_000, 2_000, 10_000), BestEffortCpu(5_000, 9_000, 10_000)
    asks = Resources(3_000, 0)
    found = [
        using(pod("be", batch_requests=asks), marks=EvictionMarks()),
        using(pod("ls", qos=LS, batch_requests=asks, kubernetes_class="BestEffort")),
        using(pod("label", requests=asks, batch_requests=asks, kubernetes_class="Burstable")),
    ]

    def amount(average: BestEffortCpu | None, last: BestEffortCpu | None) -> EvictionTask:
        figures = CpuFigures(None, average, last)
        (task,) = cpu_tasks(rules("BECPUEvict"), SatisfactionRules(40, 60, 90), NODE, found, figures, ())
        return task

    task = amount(short, BestEffortCpu(3_000, 3_000, 10_000))
    assert (task.amount, names(task.victims)) == (3_000, "be label")
    assert task.shares == {"u-be": 3_000, "u-ls": 3_000, "u-label": 0}, "who is not held back is none of it"
    assert (amount(short, fine).amount, amount(fine, short).amount) == (0, 0)
    assert not amount(short, None).is_known


UNKNOWN = NodeState("n1", Resources(10_000, 100 * GIB), Resources(0, 0))


@pytest.mark.parametrize(
    ("published", "task", "amount"),
    [
        pytest.param(
            "used bytes count a thousandfold, as if they were CPU",
            memory_tasks(rules("MemoryEvict"), NODE, [using(pod("a"), 3)], 70 * GIB, ())[0],
            2 * GIB,
            id="bytes are bytes",
        ),
        pytest.param(
            "everything is released where allocatable is missing",
            memory_tasks(
                rules("MemoryAllocatableEvict"),
                UNKNOWN,
                [using(pod("a", requests=Resources(1, GIB)), 3)],
                0,
                (),
            )[0],
            0,
            id="what is not known evicts nobody",
        ),
        pytest.param(
            "the use is cut to whole per cent first: 0.99 % of the node stay",
            memory_tasks(rules("MemoryEvict"), NODE, [using(pod("a"), 3)], 70 * GIB + GIB // 2, ())[0],
            2 * GIB + GIB // 2,
            id="exact amounts",
        ),
        pytest.param(
            "the lower threshold of requests is 0 unless set: everything goes",
            memory_tasks(
                rules("MemoryAllocatableEvict"),
                NODE,
                [using(pod("a", requests=Resources(1, 90 * GIB)), 3)],
                0,
                (),
            )[0],
            18 * GIB,
            id="down to the lower threshold",
        ),
    ],
)
def test_latent_bugs_of_the_published_code_are_not_here(
    published: str, task: EvictionTask, amount: int
) -> None:
    """`published` says what the published code does (reference/koordinator.md 3.3 and 6)."""
    assert published
    assert task.amount == amount
    assert all(share in {3 * GIB, GIB, 90 * GIB} for share in task.shares.values())


@pytest.mark.parametrize(
    ("labels", "annotations", "marks"),
    [
        ({}, {}, EvictionMarks()),
        ({"parley.dev/eviction-enabled": "true"}, {}, EvictionMarks(True)),
        ({}, {"parley.dev/eviction-enabled": "false"}, EvictionMarks(False)),
        ({"koordinator.sh/eviction-enabled": "true"}, {}, EvictionMarks(True)),
        (
            {"koordinator.sh/eviction-enabled": "true"},
            {"parley.dev/eviction-enabled": "false"},
            EvictionMarks(False),
        ),
        ({}, {"koordinator.sh/eviction-priority": "-3"}, EvictionMarks(order=-3)),
        ({}, {"parley.dev/eviction-priority": "5"}, EvictionMarks(order=5)),
        ({"koordinator.sh/priority": "12"}, {}, EvictionMarks(sub_priority=12)),
        (
            {},
            {"koordinator.sh/eviction-policy": '["MemoryEvict"]'},
            EvictionMarks(tasks=frozenset({"MemoryEvict"})),
        ),
        ({}, {"koordinator.sh/eviction-policy": "[]"}, EvictionMarks(tasks=frozenset())),
    ],
)
def test_what_owners_say_is_read_by_our_names_and_the_published_ones(
    labels: dict[str, str], annotations: dict[str, str], marks: EvictionMarks
) -> None:
    assert marks_of(pod("a", labels=labels, annotations=annotations), None) == marks


@pytest.mark.parametrize(
    ("name", "text", "marks"),
    [
        ("parley.dev/eviction-enabled", "yes", EvictionMarks(False)),
        ("parley.dev/eviction-priority", "soon", EvictionMarks(order=LAST)),
        ("koordinator.sh/eviction-priority", "1" * 19, EvictionMarks(order=LAST)),
        ("parley.dev/priority", "--1", EvictionMarks(sub_priority=LAST)),
        ("parley.dev/eviction-policy", "MemoryEvict", EvictionMarks(tasks=frozenset())),
        ("parley.dev/eviction-policy", '{"MemoryEvict": 1}', EvictionMarks(tasks=frozenset())),
        ("parley.dev/eviction-policy", '["MemoryEvict", 1]', EvictionMarks(tasks=frozenset())),
    ],
)
def test_what_cannot_be_read_protects_the_pod_and_is_a_fault(
    name: str, text: str, marks: EvictionMarks
) -> None:
    found = marks_of(pod("a", annotations={name: text}), None)
    assert replace(found, faults=()) == marks
    assert [fault.partition(": ")[0] for fault in found.faults] == [name]
    assert f"(found {text})" in found.faults[0]


def test_an_unreadable_priority_goes_after_the_largest_that_can_be_read() -> None:
    def share(each: Evictable) -> int | None:
        return 1

    marks = {
        "soon": {"parley.dev/eviction-priority": "soon"},
        "most": {"parley.dev/eviction-priority": "9" * 18},
    }
    found = [
        Evictable(made, marks_of(made, None))
        for made in (pod(name, labels=ALLOWED, annotations=each) for name, each in marks.items())
    ]
    assert [each.name for each in priority_order(found, "MemoryEvict", share, 2**31)] == ["most", "soon"]


ALLOWED = {"parley.dev/eviction-enabled": "true"}
STUCK = {"parley.dev/evict-when-stuck": "true"}


@pytest.mark.parametrize(
    ("labels", "annotations", "kind", "is_evictable"),
    [
        ({}, {}, "ReplicaSet", True),
        ({}, {}, "", True),
        (ALLOWED, {"kubernetes.io/config.mirror": "x"}, "Node", False),
        (ALLOWED, {}, "Node", False),
        ({**ALLOWED, "app.kubernetes.io/name": "parley-agent"}, {}, "DaemonSet", False),
        ({}, {}, "DaemonSet", False),
        (ALLOWED, {}, "DaemonSet", True),
        ({"parley.dev/enabled": "true"}, {}, "ReplicaSet", False),
        ({"parley.dev/enabled": "True"}, {}, "ReplicaSet", False),
        ({"parley.dev/enabled": "true", **ALLOWED}, {}, "ReplicaSet", True),
        ({"parley.dev/enabled": "true", **ALLOWED}, STUCK, "ReplicaSet", False),
        ({"parley.dev/enabled": "false"}, STUCK, "ReplicaSet", True),
        ({"vm.neon.tech/name": "vm"}, {}, "", False),
    ],
    ids=[
        "any other",
        "without a controller",
        "mirror",
        "static",
        "the agent",
        "of a DaemonSet",
        "of a DaemonSet whose owner allows it",
        "a VM of Parley",
        "perhaps a VM of Parley",
        "a VM whose owner allows it",
        "a VM that the agent evicts by itself",
        "no VM",
        "a NeonVM",
    ],
)
def test_some_pods_are_never_evicted(
    labels: dict[str, str], annotations: dict[str, str], kind: str, is_evictable: bool
) -> None:
    found = pod("a", labels=labels, annotations=annotations, controller_kind=kind)
    assert (marks_of(found, None).obstacle == "") == is_evictable


def test_a_pod_that_a_policy_has_scaled_is_a_vm_too() -> None:
    vm = VmState("default/a", "u-a", ZERO, ZERO, ZERO, ZERO)
    stuck = replace(vm, is_evicted_when_stuck=True)
    assert marks_of(pod("a"), vm).obstacle
    assert marks_of(pod("a", labels=ALLOWED), vm) == ENABLED
    assert marks_of(pod("a", labels=ALLOWED), stuck).obstacle, "one mechanism for one pod: the agent's own"
