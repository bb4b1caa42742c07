"""Laws of every round of evictions, whatever the pods, their marks and the pressure."""

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from agent.node.qos.core.actions import EvictResult
from agent.node.qos.core.evict_tasks import MEMORY_TASKS, EvictRules, EvictThresholds, memory_tasks
from agent.node.qos.core.evicting import Evictable, EvictionEngine, EvictionLimits, EvictionMarks, may_go
from agent.node.qos.core.states import NodeState, PodState, QosClass
from protocol.values import Resources

MAX_PRIORITY = 2
marks = st.builds(
    EvictionMarks,
    is_enabled=st.sampled_from([None, True, True, False]),
    order=st.integers(-1, 1),
    sub_priority=st.none() | st.integers(0, 2),
    tasks=st.none() | st.frozensets(st.sampled_from(MEMORY_TASKS)),
    obstacle=st.sampled_from(["", "", "", "static"]),
)


@st.composite
def evictables(draw: st.DrawFn) -> list[Evictable]:
    found = []
    for number in range(draw(st.integers(0, 8))):
        state = draw(st.sampled_from(["running", "running", "running", "ending", "finished"]))
        pod = PodState(
            "default",
            f"p{number}",
            f"u{number}",
            draw(st.sampled_from(QosClass)),
            "Burstable",
            draw(st.integers(0, 4)),
            Resources(0, draw(st.integers(0, 500))),
            Resources(0, 0),
            is_ending=state == "ending",
            is_finished=state == "finished",
        )
        used = draw(st.none() | st.integers(0, 400))
        found.append(Evictable(pod, draw(marks), memory_used_bytes=used))
    return found


@st.composite
def rules(draw: st.DrawFn) -> EvictRules:
    upper, allocatable = draw(st.integers(1, 100)), draw(st.integers(1, 100))
    return EvictRules(
        tuple(draw(st.lists(st.sampled_from(MEMORY_TASKS), min_size=1, unique=True))),
        EvictThresholds(upper, draw(st.integers(0, upper - 1))),
        EvictThresholds(allocatable, draw(st.integers(0, allocatable - 1))),
        MAX_PRIORITY,
        MAX_PRIORITY,
    )


nodes = st.builds(
    NodeState,
    st.just("n"),
    st.builds(Resources, st.just(0), st.integers(1, 2000)),
    st.just(Resources(0, 1000)),
)


def picked(
    engine: EvictionEngine, pods: Sequence[PodState], results: Sequence[EvictResult], now_s: float
) -> list[tuple[PodState, int, EvictResult]]:
    """The pods that are picked at one time, each with what was lacking before."""
    found: list[tuple[PodState, int, EvictResult]] = []
    while (pick := engine.pick(now_s)) is not None:
        assert pick.pod in pods
        assert pick.lacking > 0
        result = results[len(found) % len(results)]
        engine.ended(pick, result, now_s, 0.5)
        found.append((pick.pod, pick.lacking, result))
    return found


@given(
    evictables(),
    rules(),
    nodes,
    st.integers(0, 2500),
    st.frozensets(st.sampled_from(MEMORY_TASKS)),
    st.integers(1, 10),
    st.lists(st.sampled_from(EvictResult), min_size=1, max_size=5),
)
def test_a_round_takes_whom_it_needs_and_nobody_else(
    found: list[Evictable],
    chosen: EvictRules,
    node: NodeState,
    used: int,
    releasing: frozenset[str],
    max_victims: int,
    results: list[EvictResult],
) -> None:
    tasks = memory_tasks(chosen, node, found, used, releasing)
    engine = EvictionEngine(EvictionLimits(4, max_victims, 120, 10))
    pods = [each.pod for each in found]
    by_uid = {each.pod.uid: each for each in found}
    engine.begin(pods, tasks, 0)
    went = picked(engine, pods, results, 0)
    # Each is eligible for a task that lacks something, and none comes twice.
    assert len({pod.uid for pod, _, _ in went}) == len(went) <= max_victims
    for pod, _, _ in went:
        names = [task.name for task in tasks if task.amount and pod in task.victims]
        assert any(may_go(by_uid[pod.uid], name) for name in names)
        assert (pod.is_ending, pod.is_finished, by_uid[pod.uid].marks.obstacle) == (False, False, "")
        assert by_uid[pod.uid].marks.is_enabled is not False
        assert by_uid[pod.uid].marks.is_enabled or "BEMemoryEvict" in names
    # Below the thresholds nobody goes.
    upper, lower = chosen.used.upper_percent, chosen.used.lower_percent
    for task in tasks:
        if task.name != "MemoryAllocatableEvict":
            is_high = used * 100 >= upper * node.capacity.memory_bytes
            is_above = used * 100 > lower * node.capacity.memory_bytes
            assert (task.amount > 0) == (is_high or (is_above and task.name in releasing))
    if not any(task.amount for task in tasks):
        assert went == []
    # What was lacking is released, or nobody is left who may go, or the round is at its end.
    has_failed = any(result in {EvictResult.FAILED, EvictResult.UNAVAILABLE} for _, _, result in went)
    asked = {pod.uid for pod, _, _ in went}
    for task in tasks:
        left = [each for each in task.victims if each.uid not in asked and task.shares[each.uid] > 0]
        assert not engine.lacking(task) or not left or engine.is_at_bound or has_failed


@given(evictables(), rules(), nodes, st.integers(0, 2500))
def test_victims_are_the_first_of_their_order_and_the_last_of_them_was_needed(
    found: list[Evictable], chosen: EvictRules, node: NodeState, used: int
) -> None:
    (task, *_) = memory_tasks(chosen, node, found, used, ())
    engine = EvictionEngine(EvictionLimits(4, 100, 120, 10))
    pods = [each.pod for each in found]
    engine.begin(pods, (task,), 0)
    pending = task.amount - engine.lacking(task)
    went = [pod for pod, _, _ in picked(engine, pods, [EvictResult.EVICTED], 0)]
    useful = [pod for pod in task.victims if task.shares[pod.uid] > 0]
    assert went == useful[: len(went)]
    if went:
        before = sum(task.shares[pod.uid] for pod in went[:-1])
        assert pending + before < task.amount


@given(evictables(), rules(), nodes, st.integers(0, 2500), st.lists(st.integers(1, 9), max_size=12))
def test_between_two_evictions_lies_the_cool_down(
    found: list[Evictable], chosen: EvictRules, node: NodeState, used: int, steps_s: list[int]
) -> None:
    engine = EvictionEngine(EvictionLimits(4, 1, 120, 10))
    pods, now_s, evicted_s = [each.pod for each in found], 0, -4
    for step_s in [0, *steps_s]:
        now_s += step_s
        used += 100
        engine.begin(pods, memory_tasks(chosen, node, found, used, ()), now_s)
        went = picked(engine, pods, [EvictResult.EVICTED], now_s)
        assert len(went) <= 1
        if went:
            assert now_s - evicted_s >= 4
            evicted_s = now_s
