"""The metric cache: what is refused, what a query sees, what is forgotten; and its agreement with plain lists over random use."""

import gc
import math
import threading
import tracemalloc
from collections.abc import Mapping
from dataclasses import dataclass, field

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from agent.node.qos.core.metrics import (
    CONTAINER_CPU_USAGE,
    NODE_BE,
    NODE_CPU_USAGE,
    OUT_OF_ORDER_S,
    POD_CPU_USAGE,
    POD_MEMORY_USAGE,
    PSI,
    Aggregate,
    Aggregation,
    MetricError,
    MetricKind,
    MetricSample,
    aggregate,
)
from agent.node.qos.metric_cache import TimeSeriesCache

NOW_S = 10_000.0


@dataclass
class World:
    """A cache whose time the test sets."""

    now_s: float = NOW_S
    max_series: int = 8
    max_samples: int = 100
    cache: TimeSeriesCache = field(init=False)

    def __post_init__(self) -> None:
        self.cache = TimeSeriesCache(
            max_series=self.max_series, max_samples=self.max_samples, clock=lambda: self.now_s
        )

    def node(self, *values: float) -> None:
        """A sample of the node's CPU each second, the last one now."""
        first_s = self.now_s - len(values) + 1
        self.cache.append(
            MetricSample(NODE_CPU_USAGE, first_s + index, value) for index, value in enumerate(values)
        )

    def pod(self, uid: str, value: float = 1.0, kind: MetricKind = POD_CPU_USAGE) -> None:
        self.cache.append([MetricSample(kind, self.now_s, value, {"pod_uid": uid})])


@pytest.fixture
def world() -> World:
    return World()


def test_a_window_holds_what_is_not_older_with_how_much_backs_it(world: World) -> None:
    world.node(1.0, 2.0, 3.0, 6.0)
    assert world.cache.query(NODE_CPU_USAGE, 2.0) == Aggregate(11 / 3, 3, 2.0)
    world.now_s += 2.0
    assert world.cache.query(NODE_CPU_USAGE, 2.0, Aggregation.LAST) == Aggregate(6.0, 1, 0.0)
    world.now_s += 1.0
    with pytest.raises(MetricError, match=r"^node_cpu_usage, the last 2 s: there is no sample, so no last$"):
        world.cache.query(NODE_CPU_USAGE, 2.0, Aggregation.LAST)
    assert world.cache.query(NODE_CPU_USAGE, 2.0, Aggregation.COUNT) == Aggregate(0.0, 0, 0.0)


def test_a_sample_counts_until_it_is_as_old_as_the_window(world: World) -> None:
    world.pod("a", 4.0)
    world.now_s += 20.0
    assert world.cache.query(POD_CPU_USAGE, 20.0, Aggregation.LAST, {"pod_uid": "a"}).value == 4.0
    world.now_s += 0.1
    with pytest.raises(MetricError, match="pod_cpu_usage pod_uid=a, the last 20 s: there is no sample"):
        world.cache.query(POD_CPU_USAGE, 20.0, Aggregation.LAST, {"pod_uid": "a"})


def test_a_query_may_leave_properties_open(world: World) -> None:
    found = (
        ("cpu", "usage", 1.0),
        ("cpu", "request", 2.0),
        ("memory", "usage", 5.0),
        ("memory", "request", 6.0),
    )
    for resource, allocation, value in found:
        properties = {"be_resource": resource, "be_allocation": allocation}
        world.cache.append([MetricSample(NODE_BE, world.now_s, value, properties)])
    assert world.cache.query(NODE_BE, 1.0, properties={"be_resource": "cpu"}) == Aggregate(1.5, 2, 0.0)
    assert world.cache.query(NODE_BE, 1.0).value == 3.5
    each = world.cache.query_each(NODE_BE, 1.0)
    assert {key: one.value for key, one in each.items()} == {
        (left, right): value for left, right, value in found
    }


def sample(
    kind: MetricKind = NODE_CPU_USAGE,
    at_s: float = NOW_S,
    value: float = 1.0,
    properties: Mapping[str, str] | None = None,
) -> MetricSample:
    return MetricSample(kind, at_s, value, properties or {})


REFUSED = {
    "not a number": (sample(value=math.nan), r"node_cpu_usage: value nan must be a number from 0 to 2\^63"),
    "negative": (sample(value=-0.5), r"value -0\.5 must be"),
    "infinite": (sample(value=math.inf), r"value inf must be"),
    "time is no number": (
        sample(at_s=math.nan),
        "time stamp nan must be from 300 s before now to 60 s after",
    ),
    "far in the future": (sample(at_s=NOW_S + 61), r"time stamp 10061\.0 must be"),
    "older than anything kept": (sample(at_s=NOW_S - 301), r"time stamp 9699\.0 must be"),
    "out of order": (
        sample(at_s=NOW_S - 61),
        r"9939\.0 is more than 60 s before the newest of its series, 1",
    ),
    "property missing": (
        sample(PSI, properties={"psi_degree": "some", "psi_resource": "cpu"}),
        r"^psi: property 'psi_precision' is missing \(the kind has psi_resource, psi_precision, psi_degree\)$",
    ),
    "property unknown": (
        sample(properties={"pod_uid": "a"}),
        r"^node_cpu_usage: property 'pod_uid' is unknown \(the kind has none\)$",
    ),
    "property misspelt": (
        sample(POD_CPU_USAGE, properties={"pod": "a"}),
        "'pod' is unknown; property 'pod_uid' is missing",
    ),
    "names too long": (
        sample(POD_CPU_USAGE, properties={"pod_uid": "a" * 244}),
        "257 characters in 1 properties: at most 256 in 8",
    ),
    "too many properties": (
        sample(MetricKind("wide", tuple("abcdefghi")), properties=dict.fromkeys("abcdefghi", "")),
        "4 characters in 9 properties",
    ),
}


@pytest.mark.parametrize(("wrong", "why"), REFUSED.values(), ids=REFUSED)
def test_a_batch_with_one_bad_sample_is_refused_as_a_whole(
    wrong: MetricSample, why: str, world: World
) -> None:
    world.node(7.0)
    with pytest.raises(MetricError, match=why):
        world.cache.append([sample(POD_MEMORY_USAGE, properties={"pod_uid": "b"}), sample(value=9.0), wrong])
    assert world.cache.query(NODE_CPU_USAGE, 300.0, Aggregation.LAST) == Aggregate(7.0, 1, 0.0)
    assert len(world.cache) == 1


def test_all_faults_of_a_batch_are_told_up_to_a_few(world: World) -> None:
    with pytest.raises(MetricError, match=r"value -1\.0 .*; .*value -5\.0 [^;]*; and 2 more$"):
        world.cache.append(sample(value=-float(each)) for each in range(8))


def test_order_is_judged_within_a_batch_too(world: World) -> None:
    with pytest.raises(MetricError, match="more than 60 s before the newest"):
        world.cache.append([sample(), sample(at_s=NOW_S - 61)])
    world.cache.append([sample(), sample(at_s=NOW_S - OUT_OF_ORDER_S, value=3.0)])
    assert world.cache.query(NODE_CPU_USAGE, 60.0) == Aggregate(2.0, 2, 60.0)


@pytest.mark.parametrize(
    ("kind", "window_s", "properties", "why"),
    [
        (NODE_CPU_USAGE, 1.0, {"pod_uid": "a"}, "property 'pod_uid' is unknown"),
        (POD_CPU_USAGE, 1.0, {"pod": "a"}, r"'pod' is unknown \(the kind has pod_uid\)"),
        (NODE_CPU_USAGE, 0.0, {}, r"the window is 0\.0 s: it must be above 0"),
        (NODE_CPU_USAGE, math.nan, {}, "the window is nan s"),
    ],
)
def test_a_query_that_does_not_fit_is_an_error(
    kind: MetricKind, window_s: float, properties: Mapping[str, str], why: str, world: World
) -> None:
    world.node(1.0)
    with pytest.raises(MetricError, match=why):
        world.cache.query(kind, window_s, properties=properties)


def test_the_series_of_what_is_gone_end(world: World) -> None:
    for uid in ("gone", "stays"):
        world.pod(uid)
        world.pod(uid, kind=POD_MEMORY_USAGE)
    world.cache.append([sample(CONTAINER_CPU_USAGE, properties={"container_id": "gone"})])
    world.cache.end("pod_uid", "gone")
    assert list(world.cache.query_each(POD_CPU_USAGE, 10.0)) == [("stays",)]
    assert list(world.cache.query_each(POD_MEMORY_USAGE, 10.0)) == [("stays",)]
    assert list(world.cache.query_each(CONTAINER_CPU_USAGE, 10.0)) == [("gone",)]


def test_no_more_series_than_there_is_room_for_until_old_ones_have_aged_out(world: World) -> None:
    for number in range(8):
        world.pod(f"pod-{number}")
    with pytest.raises(MetricError, match="there are 8 series, and 1 more would be above 8"):
        world.cache.append([sample(POD_CPU_USAGE, properties={"pod_uid": "pod-0"}), sample()])
    world.now_s += 30.0
    world.pod("pod-7")
    world.now_s += 271.0
    world.pod("pod-8")
    assert list(world.cache.query_each(POD_CPU_USAGE, 300.0)) == [("pod-7",), ("pod-8",)]
    assert len(world.cache) == 2, "series without a young sample are swept"


def test_memory_stays_below_the_promised_bound_whatever_comes() -> None:
    world, kind = World(max_series=16), MetricKind("wide", tuple("abcdefgh"))
    gc.collect()
    tracemalloc.start()
    try:
        for number in range(16):
            long = {name: f"{name}{number:02}" + "\N{SNOWMAN}" * 28 for name in kind.properties}
            world.cache.append(
                MetricSample(kind, world.now_s - second / 2, 1.5, long) for second in range(100, -20, -1)
            )
        gc.collect()
        taken_bytes, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(world.cache) == 16
    assert 16 * 100 * 16 < taken_bytes < world.cache.bound_bytes


def test_batches_of_several_threads_are_seen_whole() -> None:
    cache = TimeSeriesCache(max_samples=64, clock=lambda: NOW_S)
    done = threading.Event()
    torn = []

    def write(number: int) -> None:
        for value in range(200):
            pair = ("cpu", "memory")
            cache.append(
                sample(NODE_BE, NOW_S, float(value), {"be_resource": each, "be_allocation": str(number)})
                for each in pair
            )
            cache.end("be_allocation", str(number))

    def read() -> None:
        while not done.is_set():
            count = cache.query(NODE_BE, 1.0, Aggregation.COUNT).value
            if count > 8:
                torn.append(count)
            cache.query_each(NODE_BE, 1.0, Aggregation.P99)

    writers = [threading.Thread(target=write, args=(number,)) for number in range(4)]
    readers = [threading.Thread(target=read) for _ in range(2)]
    for each in (*writers, *readers):
        each.start()
    for each in writers:
        each.join()
    done.set()
    for each in readers:
        each.join()
    assert (torn, len(cache)) == ([], 0)


KINDS = (NODE_CPU_USAGE, POD_CPU_USAGE, NODE_BE)
VALUES = st.sampled_from(["a", "b"])
SAMPLES = st.builds(
    lambda kind, age_s, value, names: (kind, age_s, value, dict(zip(kind.properties, names, strict=False))),
    st.sampled_from(KINDS),
    st.sampled_from([0.0, 0.0, 1.0, 5.0, 59.0, 61.0, 299.0, 301.0, -1.0, -61.0]),
    st.one_of(st.floats(0, 100), st.sampled_from([math.nan, -1.0])),
    st.tuples(VALUES, VALUES),
)


class AgainstLists(RuleBasedStateMachine):
    """The cache does what plain lists of samples would do, with the same rules written in the plainest way."""

    def __init__(self) -> None:
        super().__init__()
        self.now_s = NOW_S
        self.cache = TimeSeriesCache(max_series=4, max_samples=5, max_age_s=300.0, clock=lambda: self.now_s)
        self.model: dict[tuple[MetricKind, tuple[str, ...]], list[tuple[float, float]]] = {}

    @rule(seconds=st.sampled_from([0.0, 1.0, 30.0, 200.0, 301.0]))
    def time_passes(self, seconds: float) -> None:
        self.now_s += seconds

    @rule(batch=st.lists(SAMPLES, min_size=1, max_size=4))
    def append(self, batch: list[tuple[MetricKind, float, float, dict[str, str]]]) -> None:
        samples = [
            MetricSample(kind, self.now_s - age_s, value, names) for kind, age_s, value, names in batch
        ]
        after = self._appended(samples)
        try:
            self.cache.append(samples)
        except MetricError:
            assert after is None, "refused what fits"
        else:
            assert after is not None, "took what does not fit"
            self.model = after

    def _appended(
        self, samples: list[MetricSample]
    ) -> dict[tuple[MetricKind, tuple[str, ...]], list[tuple[float, float]]] | None:
        young = {key: list(found) for key, found in self.model.items()}
        for each in samples:
            key = (each.kind, tuple(each.properties[name] for name in each.kind.properties))
            found = young.setdefault(key, [])
            newest_s = max((at_s for at_s, _ in found), default=each.at_s)
            is_bad = math.isnan(each.value) or each.value < 0
            if is_bad or not self.now_s - 300 <= each.at_s <= self.now_s + 60 or each.at_s < newest_s - 60:
                return None
            found[:] = sorted([*(one for one in found if one[0] != each.at_s), (each.at_s, each.value)])
            newest_s = found[-1][0]
            found[:] = [one for one in found if one[0] >= newest_s - 300][-5:]
        old = [key for key, found in young.items() if found[-1][0] < self.now_s - 300]
        for key in old:
            del young[key]
        return young if len(young) <= 4 else None

    @rule(value=VALUES)
    def a_pod_is_gone(self, value: str) -> None:
        self.cache.end("pod_uid", value)
        self.model.pop((POD_CPU_USAGE, (value,)), None)

    @rule(
        kind=st.sampled_from(KINDS),
        window_s=st.sampled_from([0.5, 1.0, 30.0, 300.0, 1000.0]),
        aggregation=st.sampled_from(Aggregation),
        names=st.tuples(st.none() | VALUES, st.none() | VALUES),
    )
    def query(
        self,
        kind: MetricKind,
        window_s: float,
        aggregation: Aggregation,
        names: tuple[str | None, str | None],
    ) -> None:
        properties = {
            name: value for name, value in zip(kind.properties, names, strict=False) if value is not None
        }
        window = [
            one
            for (of, key), found in sorted(self.model.items(), key=lambda entry: entry[0][1])
            if of == kind and properties.items() <= dict(zip(kind.properties, key, strict=True)).items()
            for one in found
            if self.now_s - min(window_s, 300.0) <= one[0] <= self.now_s
        ]
        try:
            answer: Aggregate | str = self.cache.query(kind, window_s, aggregation, properties)
        except MetricError:
            answer = "none"
        if not window and aggregation is not Aggregation.COUNT:
            assert answer == "none"
            return
        moments, values = [one[0] for one in window], [one[1] for one in window]
        expected = aggregate(moments, values, aggregation)
        assert isinstance(answer, Aggregate)
        assert (answer.count, answer.span_s) == (expected.count, expected.span_s)
        if aggregation is Aggregation.LAST:
            newest_s = max(moments)
            assert answer.value in {value for at_s, value in window if at_s == newest_s}
        else:
            assert answer.value == expected.value

    @invariant()
    def each_series_answers_for_itself(self) -> None:
        for kind in KINDS:
            found = self.cache.query_each(kind, 400.0, Aggregation.COUNT)
            expected = {
                key: len(inside)
                for (of, key), every in self.model.items()
                if of == kind
                and (inside := [at_s for at_s, _ in every if self.now_s - 300 <= at_s <= self.now_s])
            }
            assert {key: each.count for key, each in found.items()} == expected


TestAgainstLists = AgainstLists.TestCase
TestAgainstLists.settings = settings(max_examples=40, stateful_step_count=40)
