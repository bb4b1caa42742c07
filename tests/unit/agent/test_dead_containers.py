"""A pod whose container is dead is not resized, what it needs is remembered; and one whose control groups differ from its size is mended."""

from typing import Final

import pytest
from msgspec.structs import replace

from agent.core import events
from agent.core.condition import Condition, Health, condition
from agent.core.model import ContainersSeen, PodObservation, Vm, VmKind
from agent.core.owner_notices import Matters, Topic, look, present
from agent.runner.stats import RunnerStats
from protocol.reasons import Reason, ReasonCode
from protocol.values import Resources
from tests.support.amounts import cu
from tests.unit.agent.driver import APART, CHANCE, TIMING, Driver, grant

POD: Final = replace(APART, kind=VmKind.POD)
DEAD: Final = "container main does not run (CrashLoopBackOff)"
BEHIND: Final = "the pod's control group allows 1 of memory where 4 is in force"


class PodDriver(Driver):
    """A runner of a pod. `containers` is what a look shows of the pod's containers, `real` what its groups allow. While the size moves,
    for `busy_s` after a resize, nobody compares the groups."""

    def __init__(self, size: Resources, vm: Vm = POD) -> None:
        self.containers = ContainersSeen(is_judged=True)
        self.busy_s = 0.0
        self._busy_until_resized_s = 0.0
        self.real: Resources | None = None
        self.mends = True
        self._size_before = size
        super().__init__(size, vm=vm)

    def observation(self) -> PodObservation:
        seen = super().observation()
        if self.now_s < self._busy_until_resized_s:
            moving = replace(self.containers, mismatch="", mismatched=(), is_judged=False)
            return PodObservation(self._size_before, seen.target, seen.begun_s, None, moving)
        size = seen.size if self.real is None else self.real
        return PodObservation(size, seen.target, seen.begun_s, seen.refusal, self.containers)

    def dies(self) -> "PodDriver":
        self.containers = replace(self.containers, waits=DEAD)
        self.tell(events.VmMoved())
        return self

    def runs(self) -> "PodDriver":
        """A look shows that it runs again."""
        self.containers = replace(self.containers, waits="", restarts=self.containers.restarts + 1)
        self.tell(events.VmMoved())
        return self

    def falls_behind(self, real: Resources, *resources: str) -> "PodDriver":
        """A look shows that the groups allow less; the next resize of a running container mends that, if it `mends`."""
        self.real = real
        self.containers = replace(self.containers, mismatch=BEHIND, mismatched=resources)
        self.tell(events.VmMoved())
        return self

    def _outcome(self, action: events.Action) -> tuple[events.Event, ...]:
        before = self.size
        found = super()._outcome(action)
        if isinstance(action, events.Resize):
            self._size_before, self._busy_until_resized_s = before, self.now_s + self.busy_s
        if isinstance(action, events.Resize) and self.mends:
            self.real, self.containers = None, replace(self.containers, mismatch="", mismatched=())
        return found

    def now(self) -> Condition:
        return condition(self.state, self.plan(), self.now_s, TIMING)


def settled(units: int = 2) -> PodDriver:
    driver = PodDriver(cu(units))
    driver.load(units).memory(units)
    driver.wait(20)
    assert driver.size == cu(units)
    driver.forget()
    return driver


# ---------------------------------------------------------------- nothing is sent while a container is dead


def test_what_a_dead_container_needs_is_permitted_and_sent_when_it_runs() -> None:
    driver = settled()
    driver.dies().load(5)
    driver.wait(60)
    assert (driver.resizes(), driver.held().vcpu_milli) == ([], 5000)
    driver.runs()
    assert driver.resizes() == [cu(5, 2)]


def test_a_dead_container_is_not_shrunk_although_it_uses_nothing() -> None:
    driver = settled(4)
    driver.dies().load(1).memory(1)
    driver.wait(60)
    assert (driver.resizes(), driver.of(events.AskDownscale)) == ([], [])


@pytest.mark.parametrize("is_called_off", [False, True])
def test_the_wish_after_an_oom_kill_is_kept_until_the_container_runs(is_called_off: bool) -> None:
    """The back-off of a kubelet is longer than a wish counts otherwise, and an empty group is short of nothing."""
    driver = settled()
    driver.by_hand = {events.Resize}
    driver.try_upscale(memory=True)
    driver.finish(events.Resize, events.ResizePostponed(DEAD, CHANCE))
    driver.by_hand = set()
    driver.dies().memory(0.2)
    if is_called_off:
        driver.try_upscale()
    driver.forget()
    driver.wait(6 * TIMING.try_upscale_s)
    assert driver.resizes() == []
    driver.runs()
    (resize, *_) = driver.resizes()
    assert resize.memory_bytes > cu(2).memory_bytes
    driver.wait(3 * TIMING.try_upscale_s)
    assert driver.size.memory_bytes == cu(1).memory_bytes, "it is no wish for ever"


def test_a_look_that_is_older_than_the_end_sends_the_resize_again_in_vain_and_not_at_once() -> None:
    """The node's status is late: looks still say that the container runs, and each try finds that it does not."""
    driver = settled()
    driver.by_hand = {events.Resize}
    driver.load(5)
    driver.wait(6)
    for _ in range(3):
        before_s = driver.now_s
        driver.finish(events.Resize, events.ResizePostponed(DEAD, CHANCE))
        assert driver.state.backend.sent is None, "nothing is on its way"
        assert not driver.is_flying(events.Resize)
        driver.wait(TIMING.retry_base_s)
        assert driver.is_flying(events.Resize)
        assert driver.now_s - before_s >= TIMING.retry_base_s / 2
    assert driver.now().health is Health.OK


def test_a_dead_container_is_looked_at_as_often_as_what_does_not_move() -> None:
    driver = settled()
    driver.dies()
    driver.forget()
    driver.wait(60)
    assert 5 <= len(driver.of(events.Observe)) <= 8


def test_the_condition_of_a_dead_container_says_so() -> None:
    driver = settled().dies()
    assert DEAD in driver.now().reasons


# ---------------------------------------------------------------- groups that differ


def test_what_the_groups_allow_is_the_size_and_the_target_counts() -> None:
    driver = settled(4)
    driver.by_hand = {events.RequestPermit, events.Resize}
    driver.falls_behind(cu(4, 1), "memory")
    assert driver.state.backend.observation is not None
    assert driver.state.backend.observation.size == cu(4, 1)
    assert driver.state.in_use() == cu(4), "the target may come into force at any time"


def test_groups_that_allow_more_than_the_target_are_in_use() -> None:
    driver = settled(4)
    driver.by_hand = {events.RequestPermit, events.Resize}
    driver.falls_behind(cu(4, 6), "memory")
    assert driver.state.in_use() == cu(4, 6)


def test_a_step_more_mends_the_groups_of_running_containers() -> None:
    driver = settled(4)
    driver.falls_behind(cu(4, 1), "memory")
    driver.wait(60)
    assert driver.resizes() == [cu(4, 5), cu(4)], "the step is given back"
    assert driver.real is None


@pytest.mark.parametrize("why", ["maximum", "denied"])
def test_where_it_cannot_grow_a_step_less_mends_them(why: str) -> None:
    driver = settled(8 if why == "maximum" else 4)
    size = driver.size
    full = (Reason(ReasonCode.NODE_HEADROOM, "the node is full"),)
    if why == "denied":
        driver.scheduler = lambda request: grant(
            request, request.resources.min(size), sent_s=driver.now_s, reasons=full
        )
    driver.falls_behind(Resources(size.vcpu_milli, cu(1).memory_bytes), "memory")
    assert driver.resizes()[0] == Resources(size.vcpu_milli, size.memory_bytes - cu(1).memory_bytes)
    driver.wait(60)
    assert (driver.size, driver.real) == (size, None)


def test_of_a_dead_container_the_size_is_taken_back_that_its_pods_group_does_not_allow() -> None:
    """In the old size it can start; what it needs comes when it runs."""
    driver = settled(4)
    driver.memory(4)
    driver.dies().falls_behind(cu(4, 1), "memory")
    assert driver.resizes() == [cu(4, 1)]
    driver.wait(120)
    assert driver.resizes() == [cu(4, 1)]
    driver.runs()
    assert driver.resizes() == [cu(4, 1), cu(4)]


def test_a_group_that_allows_more_is_no_reason_to_resize_a_dead_container() -> None:
    driver = settled(4)
    driver.dies().falls_behind(cu(4, 6), "memory")
    driver.wait(60)
    assert driver.resizes() == []


@pytest.mark.parametrize("busy_s", [0.0, 1.5])
def test_what_does_not_help_is_tried_less_and_less_often(busy_s: float) -> None:
    driver = settled(4)
    driver.mends, driver.busy_s = False, busy_s
    driver.falls_behind(cu(4, 1), "memory")
    driver.wait(600)
    assert 3 <= len(driver.resizes()) <= 20
    assert max(each.memory_bytes for each in driver.resizes()) <= cu(6).memory_bytes, "it does not creep up"


def test_the_owner_is_told_of_groups_that_differ_and_not_of_a_denial() -> None:
    driver = settled(4)
    driver.mends = False
    driver.falls_behind(cu(4, 1), "memory")
    found = driver.now()
    assert (found.health, found.mismatch) == (Health.DENIED, BEHIND)
    assert list(present(found, Matters())) == [Topic.MISMATCH]


def test_what_was_found_last_is_told_while_nobody_compares() -> None:
    driver = settled(4)
    driver.mends, driver.busy_s = False, 1.5
    driver.falls_behind(cu(4, 1), "memory")
    driver.wait(0.5)
    assert (driver.resizes() != [], driver.state.backend.containers.mismatch) == (True, "")
    assert driver.now().mismatch == BEHIND


def test_groups_that_differ_and_a_silent_peer_end_no_denial() -> None:
    """Nobody can tell meanwhile whether more is denied still."""
    denied = Condition(Health.DENIED, ("the node is full",))
    standings, _ = look({}, present(denied, Matters()), 0.0)
    standings, told = look(standings, present(denied, Matters()), 31.0)
    assert [notice.reason for notice in told] == ["GrowthDenied"]
    for at_s, now in (
        (40.0, Condition(Health.DENIED, (BEHIND,), mismatch=BEHIND)),
        (50.0, Condition(Health.STUCK, ("scheduler: silent",), ("scheduler",), BEHIND)),
        (60.0, Condition(Health.DENIED, (BEHIND,), mismatch=BEHIND)),
    ):
        standings, told = look(standings, present(now, Matters()), at_s)
        assert {notice.reason for notice in told} <= {"CgroupMismatch"}
    _, told = look(standings, present(Condition(Health.OK), Matters()), 70.0)
    assert {notice.reason for notice in told} == {"GrowthPermitted", "CgroupsMatch"}


# ---------------------------------------------------------------- counts


def test_restarts_and_ends_are_counted_once_each() -> None:
    driver, stats = settled(), RunnerStats()
    first, second = ("containerd://1", "OOMKilled"), ("containerd://2", "Error")
    for restarts, ends in ((0, (first,)), (1, (first,)), (2, (second, first)), (2, (second, first))):
        driver.containers = ContainersSeen(restarts=restarts, ends=ends)
        driver.tell(events.VmMoved())
    for _, each in driver.transitions:
        stats.note(each)
    assert (stats.restarts, stats.ends) == (2, {"OOMKilled": 1, "Error": 1})
