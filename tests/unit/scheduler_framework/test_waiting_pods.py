"""Pods that wait for their permit: signals, timers, cancellation, one UID twice."""

import asyncio

import pytest

from protocol.wire import PodName
from scheduler.placing.core.handle import WaitingPod
from scheduler.placing.core.objects import PodInfo
from scheduler.placing.core.waiting import PermitAllowed, PermitRejected, PermitTimedOut
from scheduler.placing.cycle.context import WaitingPods
from tests.support.virtual_time import now_s, turns, virtually


def pod(uid: str) -> PodInfo:
    return PodInfo(PodName(namespace="ns", name=f"pod-{uid}"), uid)


@virtually
async def test_a_wait_without_a_plugin_is_refused() -> None:
    pods = WaitingPods()
    with pytest.raises(ValueError, match="one plugin at least"):
        pods.add(pod("1"), {})
    assert pods.get("1") is None


@virtually
async def test_each_plugin_has_its_own_time_and_the_first_that_is_over_ends_the_wait() -> None:
    pods = WaitingPods()
    entry = pods.add(pod("1"), {"long": 7200.0, "short": 5.0, "middle": 10.0})
    assert entry.allow("short")
    assert await pods.wait(entry) == PermitTimedOut("middle", 10.0)
    assert now_s() == 10.0
    assert await pods.wait(pods.add(pod("1"), {"long": 7200.0})) == PermitTimedOut("long", 900.0)


@virtually
async def test_a_signal_that_comes_before_anybody_waits_is_kept_and_the_first_one_counts() -> None:
    pods = WaitingPods()
    allowed, rejected = (pods.add(pod(uid), {"a": 5.0, "b": 5.0}) for uid in "12")
    assert [allowed.allow(), allowed.allow(), allowed.reject("late"), allowed.allow("a")] == [
        True, False, False, False,
    ]  # fmt: skip
    assert [rejected.reject("no", "b"), rejected.reject("late"), rejected.allow()] == [True, False, False]
    await asyncio.sleep(60)
    assert await pods.wait(allowed) == PermitAllowed()
    assert await pods.wait(rejected) == PermitRejected("no", "b")


@virtually
async def test_a_plugin_allows_for_itself_alone_and_only_once() -> None:
    pods = WaitingPods()
    entry = pods.add(pod("1"), {"b": 5.0, "a": 5.0})
    assert entry.pending_plugins() == ("a", "b")
    assert [entry.allow("stranger"), entry.allow("a"), entry.allow("a")] == [False, True, False]
    assert entry.pending_plugins() == ("b",)
    assert entry.reject("no", "stranger"), "anybody may reject"
    assert entry.pending_plugins() == ("b",)
    assert await pods.wait(entry) == PermitRejected("no", "stranger")


@virtually
async def test_a_time_out_is_kept_until_somebody_waits_for_it() -> None:
    pods = WaitingPods()
    entry = pods.add(pod("1"), {"a": 5.0})
    await asyncio.sleep(6)
    assert pods.get("1") is entry
    assert not entry.allow()
    assert await pods.wait(entry) == PermitTimedOut("a", 5.0)
    assert pods.get("1") is None


@pytest.mark.parametrize("is_settled", [False, True])
@virtually
async def test_a_cancelled_wait_leaves_nothing_behind(is_settled: bool) -> None:
    pods = WaitingPods()
    entry = pods.add(pod("1"), {"a": 5.0})
    waiting = asyncio.create_task(pods.wait(entry))
    await turns()
    if is_settled:
        assert entry.allow()
    waiting.cancel()
    await turns()
    assert waiting.cancelled()
    assert pods.get("1") is None
    assert not entry.reject("late")


@virtually
async def test_the_end_of_a_pod_leaves_a_later_one_of_its_uid() -> None:
    pods = WaitingPods()
    first = pods.add(pod("1"), {"a": 5.0})
    second = pods.add(pod("1"), {"a": 50.0})
    assert pods.get("1") is second
    assert await pods.wait(first) == PermitTimedOut("a", 5.0)
    assert pods.get("1") is second
    pods.discard(second)
    assert pods.get("1") is None


@virtually
async def test_nobody_waits_for_ever_for_a_pod_that_is_discarded() -> None:
    pods = WaitingPods()
    entry = pods.add(pod("1"), {"a": 5.0})
    waiting = asyncio.create_task(pods.wait(entry))
    await turns()
    pods.discard(entry)
    with pytest.raises(RuntimeError, match="discarded"):
        await waiting


@virtually
async def test_what_a_callback_adds_and_ends_does_not_disturb_the_iteration() -> None:
    pods, seen = WaitingPods(), []
    entries = [pods.add(pod(uid), {"a": 5.0}) for uid in "123"]

    def callback(each: WaitingPod) -> None:
        seen.append(each.get_pod().uid)
        pods.add(pod(f"{each.get_pod().uid}0"), {"a": 5.0})
        pods.discard(entries[-1])

    pods.iterate(callback)
    assert seen == ["1", "2", "3"]
    assert pods.get("10") is not None
