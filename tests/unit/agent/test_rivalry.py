"""Two daemons that serve one VM without a common lock step back from each other, and say so."""

from msgspec.structs import replace

from agent.core import events
from agent.core.condition import Health, condition
from agent.core.state import RunnerState
from agent.core.timing import FORGIVEN_S, WAITS, Rivalry
from tests.support.amounts import cu
from tests.unit.agent.driver import LIFE, TIMING, VM, steady


def test_the_wait_doubles_from_seconds_to_minutes() -> None:
    rivalry, longest, shortest = Rivalry(), [], []
    for _ in range(9):
        shortest.append(rivalry.superseded(2.0, 100.0, 1.0).wait_until_s - 100.0)
        rivalry = rivalry.superseded(2.0, 100.0, 0.0)
        longest.append(rivalry.wait_until_s - 100.0)
    assert longest == [5.0, 10.0, 20.0, 40.0, 80.0, 160.0, 300.0, 300.0, 300.0]
    assert [round(each, 6) for each in shortest[:2]] == [1.0, 2.0]


def test_a_life_that_was_left_alone_for_long_is_forgiven() -> None:
    rivalry = Rivalry(count=7)
    assert rivalry.superseded(FORGIVEN_S, 0.0, 0.0).count == 1
    assert rivalry.superseded(FORGIVEN_S - 1, 0.0, 0.0).count == 8


def test_two_rivals_end_with_a_life_in_minutes_and_never_both_forgive() -> None:
    """Each takes the VM over when its wait is over, which begins the other one's wait."""
    rivals, began_s, now_s, lives = [Rivalry(), Rivalry()], 0.0, 0.0, 0
    owner = 0
    while now_s < 6 * 3600:
        other = 1 - owner
        now_s = max(now_s + 0.5, rivals[other].wait_until_s)
        rivals[owner] = rivals[owner].superseded(now_s - began_s, now_s, (lives * 0.37) % 1)
        owner, began_s, lives = other, now_s, lives + 1
    assert lives < 6 * 3600 / (0.2 * WAITS.cap_s) + 20
    assert min(each.count for each in rivals) > 8


def test_a_runner_that_is_superseded_again_and_again_says_so_in_every_state() -> None:
    beaten = Rivalry(count=3, wait_until_s=140.0)
    dormant = replace(RunnerState(VM, LIFE, rivalry=beaten), superseded_at_ms=5)
    found = condition(dormant, None, 100.0, TIMING)
    assert found.health is Health.DORMANT
    assert "asks for it again in 40 s" in found.reasons[0]
    assert "3 times in a row" in found.reasons[1]
    alive = condition(RunnerState(VM, LIFE, began_s=100.0, rivalry=beaten), None, 100.0, TIMING)
    assert "a second agent" in alive.reasons[-1]
    long_s = 100.0 + FORGIVEN_S
    assert not any(
        "second agent" in why
        for why in condition(RunnerState(VM, LIFE, 100.0, rivalry=beaten), None, long_s, TIMING).reasons
    )
    once = condition(replace(dormant, rivalry=Rivalry(1, 140.0)), None, 100.0, TIMING)
    assert len(once.reasons) == 1, "a hand-over between daemons is nothing to worry about"


def test_a_life_that_is_fenced_off_begins_anew_though_nobody_supersedes_it() -> None:
    """A daemon that started, fenced the VM and died before its first request leaves the older life without effect."""
    driver = steady(cu(2))
    driver.by_hand = {events.Resize}
    driver.load(5)
    driver.wait(TIMING.metrics_s)
    driver.finish(events.Resize, events.FencedOff())
    assert driver.state.superseded_at_ms == LIFE.started_at_ms
    assert driver.plan().actions == ()
