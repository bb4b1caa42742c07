"""Stories of one agent, each with the exact order of what it does."""

import pytest

from protocol.reasons import ReasonCode
from tests.scenarios.agent_stories import AgentStory
from tests.scenarios.telling import StoryBrokenError

FIRST_WORDS = ("fences the VM", "registers", "asks for 2", "tells the guest of 2")


def at_rest(units: int = 2, *, policy: str = "utilisation") -> AgentStory:
    """A story whose agent has said its first words, and has read the metrics once at 0 s and once at 5 s."""
    story = AgentStory(units, policy=policy)
    story.passes(5.5)
    story.then("fences the VM", "registers", f"asks for {units}", f"tells the guest of {units}")
    return story


def test_up() -> None:
    """Scheduler, then VM, then guest."""
    story = at_rest()
    story.load_becomes(5)
    story.passes(5)
    story.then("asks for 5", "resizes to 5", "tells the guest of 5")
    story.vm_has(5)
    story.holds(5)
    story.says("ok")


def test_down() -> None:
    """Guest, then VM, then scheduler, unit by unit; each only after it has happened."""
    story = at_rest(4)
    story.load_becomes(2)
    story.passes(15)
    story.then(
        "asks the guest to live with 3",
        "resizes to 3",
        "asks for 3",
        "asks the guest to live with 2",
        "resizes to 2",
        "asks for 2",
    )
    story.vm_has(2)
    story.holds(2)


def test_denied() -> None:
    """Asked again after two seconds, or as the reason says; nothing else is done, and the reason is shown."""
    story = at_rest()
    story.node_has_room_for(2)
    story.load_becomes(5)
    story.passes(5)
    story.then("asks for 5")
    story.says("denied", "node-headroom")
    story.refuses_for(ReasonCode.POOL, "the pool is full", retry_after_s=9.0)
    story.passes(10)
    story.then("asks for 5")
    story.vm_has(2)
    story.node_has_room_for(8)
    story.passes(10)
    story.then("asks for 5", "resizes to 5", "tells the guest of 5")
    story.vm_has(5)


def test_partial() -> None:
    """The permitted part is used at once, and the rest asked for again."""
    story = at_rest()
    story.node_has_room_for(4)
    story.load_becomes(6)
    story.passes(5)
    story.then("asks for 6", "resizes to 4", "tells the guest of 4")
    story.vm_has(4)
    story.says("denied", "node-headroom")
    story.node_has_room_for(8)
    story.passes(2)
    story.then("asks for 6", "resizes to 6", "tells the guest of 6")
    story.vm_has(6)


def test_a_refused_downscale() -> None:
    """The guest is asked again after a cool-down, and the VM keeps its size until then."""
    story = at_rest(4)
    story.guest_needs(4)
    story.load_becomes(2)
    story.passes(15)
    story.then(
        "asks the guest to live with 3",
        "asks for 4",
        "asks the guest to live with 3",
        "asks the guest to live with 3",
    )
    story.vm_has(4)
    story.guest_needs(1)
    story.passes(6)
    story.then(
        "asks the guest to live with 3",
        "resizes to 3",
        "asks for 3",
        "asks the guest to live with 2",
        "resizes to 2",
        "asks for 2",
    )
    story.vm_has(2)


def test_a_pivot() -> None:
    """Up, and while the scheduler refuses it the load falls: the growth is forgotten, and the VM shrinks instead."""
    story = at_rest(3)
    story.node_has_room_for(3)
    story.load_becomes(6)
    story.passes(5)
    story.then("asks for 6")
    story.load_becomes(2)
    story.passes(11)
    story.then("asks for 6", "asks for 6", "asks the guest to live with 2", "resizes to 2", "asks for 2")
    story.node_has_room_for(8)
    story.passes(15)
    story.then("asks for 2")
    story.vm_has(2)


def test_a_pivot_after_an_approval() -> None:
    """The guest has approved less, and more is needed before the VM has shrunk: the guest is told, nothing is asked."""
    story = at_rest(4)
    story.load_becomes(2)
    story.passes(9.6)
    story.then(
        "asks the guest to live with 3",
        "resizes to 3",
        "asks for 3",
        "asks the guest to live with 2",
        "resizes to 2",
        "asks for 2",
    )
    story.load_becomes(4)
    story.passes(10)
    story.then("asks for 4", "resizes to 4", "tells the guest of 4")
    story.vm_has(4)


def test_a_change_of_bounds() -> None:
    """A lower maximum is reached through the guest; a higher one is asked for first."""
    story = at_rest(5)
    story.bounds_become(1, 3)
    story.then(
        "asks the guest to live with 4",
        "resizes to 4",
        "asks for 4",
        "asks the guest to live with 3",
        "resizes to 3",
        "asks for 3",
    )
    story.vm_has(3)
    story.holds(3)
    story.bounds_become(1, 8)
    story.then("asks for 5", "resizes to 5", "tells the guest of 5")
    story.vm_has(5)
    story.bounds_become(6, 8)
    story.then("asks for 6", "resizes to 6", "tells the guest of 6")
    story.vm_has(6)


def test_a_lost_reply() -> None:
    """The same request, with the same number, until it is answered; nothing grows meanwhile."""
    story = at_rest()
    story.replies_are_lost()
    story.load_becomes(5)
    story.passes(5)
    story.then("asks for 5")
    story.deadline_passes()
    story.passes(0.6)
    story.then("asks for 5 again")
    story.vm_has(2)
    story.replies_are_lost(are_lost=False)
    story.deadline_passes()
    story.passes(1.1)
    story.then("asks for 5 again", "resizes to 5", "tells the guest of 5")
    story.vm_has(5)


def test_a_scheduler_that_restarts() -> None:
    """It is told what is held, the VM is looked at, and only then named: then it permits growth again."""
    story = at_rest()
    story.tells_of_everything()
    story.then()
    story.scheduler_restarts()
    story.load_becomes(5)
    story.passes(4.6)
    story.then(
        "looks at the VM",
        "reads the metrics",
        "asks for 5",
        "looks at the VM",
        "asks for 5",
        "resizes to 5",
        "looks at the VM",
        "tells the guest of 5",
    )
    story.vm_has(5)


def test_an_informant_that_restarts() -> None:
    """It is registered with anew, and told of the size; nothing shrinks while it is away."""
    story = at_rest(4)
    story.load_becomes(2)
    story.informant_ends()
    story.passes(5)
    story.informant_refuses_connections()
    story.then()
    story.passes(2)
    story.informant_refuses_connections()
    story.then("registers")
    story.vm_has(4)
    story.informant_is_back()
    story.passes(12)
    story.then(
        "registers",
        "tells the guest of 4",
        "asks for 4",
        "asks the guest to live with 3",
        "resizes to 3",
        "asks for 3",
        "asks the guest to live with 2",
        "resizes to 2",
        "asks for 2",
    )
    story.vm_has(2)


def test_supersession() -> None:
    """Another agent of this VM began later: this one does nothing, visibly, until a new life may begin."""
    story = at_rest()
    story.scheduler_knows_another_agent()
    story.load_becomes(5)
    story.passes(5)
    story.then("asks for 5")
    story.says("dormant", "superseded by another agent of this VM")
    story.passes(60)
    story.then()
    story.new_life_begins()
    story.passes(6)
    story.then(
        "fences the VM",
        "registers",
        "asks for 2",
        "tells the guest of 2",
        "asks for 5",
        "resizes to 5",
        "tells the guest of 5",
    )
    story.vm_has(5)


def test_a_migration() -> None:
    """Neither more nor less while the VM is moved away; what is in use is reported. It grows when that has failed."""
    story = at_rest()
    story.migration(is_on=True)
    story.passes(15)
    story.then("asks for 2")
    story.says("migrating")
    story.load_becomes(5)
    story.passes(15)
    story.then("asks for 2")
    story.vm_has(2)
    story.migration(is_on=False)
    story.passes(15)
    story.then("asks for 2", "asks for 5", "resizes to 5", "tells the guest of 5")
    story.vm_has(5)


def test_try_upscale() -> None:
    """At once and without any metrics; it stands for a while, and what is not needed after it is given back.

    When it expires, or the guest says that it can wait again, what came stays until metrics could show what it is needed for. What is
    wished for again soon after it was given back stays longer.
    """
    story = at_rest()
    story.guest_cannot_wait(cpu=True)
    story.then("asks for 3", "resizes to 3", "tells the guest of 3")
    story.vm_has(3)
    story.passes(14)
    story.then()
    story.load_becomes(1.75)
    story.passes(6)
    story.then("asks for 3", "asks the guest to live with 2", "resizes to 2", "asks for 2")
    story.vm_has(2)
    story.guest_cannot_wait(cpu=True)
    story.then("asks for 3", "resizes to 3", "tells the guest of 3")
    story.guest_cannot_wait()
    story.then()
    story.passes(10)
    story.then()
    story.vm_has(3)


def test_missing_metrics() -> None:
    """The size is kept: a goal that is old is not followed downwards. Who cannot be read is tried with back-off."""
    story = at_rest(4)
    story.tells_of_everything()
    story.then()
    story.load_becomes(2)
    story.exporter_fails()
    story.passes(5)
    for _ in range(4):
        story.reading_fails()
        story.passes(5)
    story.reading_fails()
    story.then(
        "looks at the VM",
        "reads the metrics",
        "asks for 4",
        "reads the metrics",
        "looks at the VM",
        "reads the metrics",
        "reads the metrics",
        "looks at the VM",
        "asks for 4",
        "reads the metrics",
    )
    story.says("ok", "the metrics are stale")
    story.passes(5)
    story.reading_fails()
    story.says("stuck", "metrics: status 500")
    story.vm_has(4)
    story.exporter_fails(is_failing=False)
    story.passes(7)
    story.then(
        "reads the metrics",
        "looks at the VM",
        "reads the metrics",
        "asks the guest to live with 3",
        "resizes to 3",
        "looks at the VM",
        "asks for 3",
        "asks the guest to live with 2",
        "resizes to 2",
        "looks at the VM",
        "asks for 2",
    )
    story.vm_has(2)


def test_use_outside_the_bounds() -> None:
    """A size that somebody else made is named first, then brought back within the bounds."""
    story = at_rest()
    story.somebody_resizes(10)
    story.passes(5)
    story.then("asks for 10", "resizes to 2", "asks for 2")
    story.passes(12)
    story.then()
    story.vm_has(2)


def test_a_lease_that_runs_out() -> None:
    """Without any answer the VM may shrink, and grow back up to what is held; after 30 s nothing is held any more."""
    story = at_rest(4)
    story.replies_are_lost()
    story.load_becomes(2)
    story.passes(11)
    story.then(
        "asks the guest to live with 3",
        "resizes to 3",
        "asks for 3",
        "asks the guest to live with 2",
        "resizes to 2",
    )
    story.vm_has(2)
    story.holds(3)
    story.load_becomes(4)
    story.passes(5)
    story.then("resizes to 3", "tells the guest of 3")
    story.vm_has(3)
    story.load_becomes(2)
    story.passes(9)
    story.then("asks the guest to live with 2", "resizes to 2")
    story.load_becomes(4)
    story.passes(5)
    story.then()
    story.holds(0)
    story.vm_has(2)
    story.replies_are_lost(are_lost=False)
    story.deadline_passes()
    story.passes(1)
    story.then("asks for 4", "resizes to 4", "tells the guest of 4")
    story.vm_has(4)


def test_the_published_policy_doubles() -> None:
    """By the load average: twice as much, then half of it."""
    story = at_rest(policy="load-average")
    story.load_becomes(4)
    story.passes(5)
    story.then("asks for 4", "resizes to 4", "tells the guest of 4")
    story.vm_has(4)


def test_a_broken_story_tells_its_steps() -> None:
    story = AgentStory()
    story.passes(1)
    story.then(*FIRST_WORDS)
    with pytest.raises(StoryBrokenError) as broken:
        story.vm_has(3)
    assert str(broken.value).splitlines() == [
        "expected 3 CPU / 3Gi, found 2 CPU / 2Gi",
        " 1. at 0.0 s: an agent begins for a VM of 2 CPU / 2Gi",
        " 2. at 0.0 s: 1 s pass",
        " 3. at 1.0 s: the agent " + ", ".join(FIRST_WORDS),
        " 4. at 1.0 s: the VM must have 3 CPU / 3Gi",
    ]
