"""Evictions through the API server: from the threads of strategies, once, and told as Events."""

import asyncio
import json
from dataclasses import replace

import pytest

from agent.node.qos.core.actions import EvictOutcome, EvictResult
from agent.node.qos.evictor import CALL_DEADLINE_S, REPEAT_S, EventType, PodEvictor
from hosting import logs
from hosting.kubernetes.connection import ApiCall
from hosting.kubernetes.resources import PODS, Manifest
from hosting.threads import in_own_thread
from tests.support.evictions import pod
from tests.support.kube_api import FakeApiServer, writes
from tests.support.virtual_time import now_s, virtually

MANIFEST: Manifest = {"metadata": {"name": "a", "namespace": "default"}, "spec": {"containers": []}}


class Bench:
    """An evictor at an API server that has pod `a`. Made inside the loop."""

    def __init__(self, deadline_s: float = 60) -> None:
        self.server = FakeApiServer()
        made = self.server.put(PODS, MANIFEST)
        self.pod = replace(pod("a"), uid=made["metadata"]["uid"])
        self.told: list[tuple[EventType, str, str]] = []
        self.evictor = PodEvictor(
            self.server.api(), self, clock=now_s, log=logs.logger("test"), deadline_s=deadline_s
        )

    def record(self, regarding: Manifest, type_: EventType, reason: str, action: str, note: str) -> None:
        assert (regarding["kind"], regarding["metadata"]["uid"], action) == ("Pod", self.pod.uid, "Evict")
        self.told.append((type_, reason, note))

    @property
    def sent(self) -> int:
        """How many evictions the server was asked for."""
        return sum(map(writes, self.server.calls))

    @property
    def is_there(self) -> bool:
        return self.server.store.find(PODS, ("default", "a")) is not None


@virtually
async def test_a_pod_is_evicted_once_in_two_minutes() -> None:
    bench = Bench()
    assert await bench.evictor.send(bench.pod, "memory") == EvictOutcome(EvictResult.EVICTED)
    assert not bench.is_there
    await asyncio.sleep(REPEAT_S - 1)
    again = await bench.evictor.send(bench.pod, "memory")
    assert (again.result, bench.sent) == (EvictResult.EVICTED, 1)
    await asyncio.sleep(1)
    assert (await bench.evictor.send(bench.pod, "memory")).result is EvictResult.GONE
    assert bench.told == [("Warning", "Evicted", "memory")]


@virtually
async def test_two_strategies_at_once_send_one_eviction() -> None:
    bench = Bench()
    bench.server.fail("slow", writes, seconds=1)
    found = await asyncio.gather(*(bench.evictor.send(bench.pod, each) for each in ("memory", "cpu")))
    assert [each.result for each in found] == [EvictResult.EVICTED] * 2
    assert (bench.sent, len(bench.told)) == (1, 1)


@pytest.mark.parametrize("when", ["before", "meanwhile"])
def test_another_pod_under_the_name_stays(when: str) -> None:
    @virtually
    async def story() -> None:
        bench = Bench()

        def replaced(call: ApiCall | None = None) -> None:
            if call is None or writes(call):
                bench.server.delete(PODS, "default", "a")
                bench.server.put(PODS, MANIFEST)

        if when == "before":
            replaced()
        else:
            bench.server.hooks.append(replaced)
        assert (await bench.evictor.send(bench.pod, "memory")).result is EvictResult.GONE
        assert (bench.is_there, bench.told, bench.sent) == (True, [], int(when == "meanwhile"))

    story()


def budget() -> str:
    cause = {"reason": "DisruptionBudget", "message": "The disruption budget one needs 1 healthy pods"}
    return json.dumps({"reason": "TooManyRequests", "message": "no", "details": {"causes": [cause]}})


@pytest.mark.parametrize(
    ("status", "text", "result", "event"),
    [
        (429, budget(), EvictResult.REFUSED, "EvictionRefused"),
        (403, "forbidden", EvictResult.REFUSED, "EvictionRefused"),
        (500, "several budgets", EvictResult.REFUSED, "EvictionRefused"),
        (429, '{"details": {"causes": "none"}}', EvictResult.FAILED, "EvictionFailed"),
        (503, "later", EvictResult.FAILED, "EvictionFailed"),
    ],
    ids=["budget", "no right", "a fault of this pod", "overload", "not now"],
)
def test_a_clear_no_is_a_refusal_and_anything_else_is_not_known(
    status: int, text: str, result: EvictResult, event: str
) -> None:
    @virtually
    async def story() -> None:
        bench = Bench()
        bench.server.fail("status", writes, status=status, text=text)
        assert (await bench.evictor.send(bench.pod, "memory")).result is result
        assert [(type_, reason) for type_, reason, _ in bench.told] == [("Warning", event)]
        assert bench.told[0][2].endswith("(wanted because of memory)")
        assert (
            await bench.evictor.send(bench.pod, "memory")
        ).result is EvictResult.EVICTED  # nothing was remembered

    story()


@virtually
async def test_a_server_that_hangs_is_not_waited_for() -> None:
    bench = Bench()
    bench.server.fail("hang")
    began_s = now_s()
    first, second = await asyncio.gather(*(bench.evictor.send(bench.pod, "memory") for _ in range(2)))
    assert now_s() - began_s == CALL_DEADLINE_S
    assert {first.result, second.result} == {EvictResult.FAILED}
    assert bench.is_there


def test_a_strategys_thread_is_answered_from_the_loop() -> None:
    async def story() -> None:
        bench = Bench()
        found = await in_own_thread(lambda: bench.evictor.evict(bench.pod, "memory"))
        assert (found.result, bench.is_there) == (EvictResult.EVICTED, False)
        with pytest.raises(RuntimeError, match="another thread"):
            bench.evictor.evict(bench.pod, "memory")

    asyncio.run(story())


def test_a_recommendation_is_an_event_and_nothing_else() -> None:
    async def story() -> None:
        bench = Bench()
        found = await in_own_thread(lambda: bench.evictor.recommend(bench.pod, "memory"))
        await asyncio.sleep(0)
        assert (found.result, bench.is_there) == (EvictResult.RECOMMENDED, True)
        assert bench.told == [("Normal", "EvictionRecommended", "memory")]

    asyncio.run(story())


def test_when_the_loop_does_not_answer_the_strategy_goes_on() -> None:
    with asyncio.Runner() as runner:

        async def made() -> Bench:
            return Bench(deadline_s=0)

        bench = runner.run(made())
        assert bench.evictor.evict(bench.pod, "memory").result is EvictResult.FAILED
    assert bench.evictor.evict(bench.pod, "memory").result is EvictResult.UNAVAILABLE
    assert bench.evictor.recommend(bench.pod, "memory").result is EvictResult.UNAVAILABLE
    assert bench.is_there


@virtually
async def test_without_an_api_server_nobody_is_evicted() -> None:
    evictor = PodEvictor(None, None, clock=now_s, log=logs.logger("test"))
    assert (await evictor.send(pod("a"), "memory")).result is EvictResult.UNAVAILABLE
