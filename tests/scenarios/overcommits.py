"""One story for each bug that overcommits a node. Each is fine as long as the bug is not there.

The numbers are those of `tests.machines.mutants`. Every node has room for 6 CPU / 6Gi and bears two VMs of 1 CPU / 1Gi
at first, so that one of them may grow to 5 CPU / 5Gi, and not both.
"""

from tests.machines.core_port import POOL
from tests.scenarios.stories import Story
from tests.support.amounts import cu


def begin(story: Story, *, serves_published: bool = False) -> None:
    """Node n1 with the VMs a and b, both known to the scheduler from birth; b has the agent b1."""
    story.node("n1", cu(6), serves_published=serves_published)
    story.scheduler_starts()
    story.vm("a", "n1", most=cu(8))
    story.vm("b", "n1", most=cu(8))
    story.agent_starts("b1", "b")


def story_01_grant_before_the_reserve(story: Story) -> None:
    """A permit that is told before the ledger keeps it lets the next request be granted the same room."""
    begin(story)
    story.agent_starts("a1", "a")
    story.agent_asks("a1", cu(5))
    story.agent_asks("b1", cu(5))
    story.agent_holds("b1", cu(1))


def story_02_lost_release(story: Story) -> None:
    """An amount that an agent gave back is never released, so that its neighbour is refused for ever.

    Nothing is overcommitted by that: the law is that the neighbour reaches its goal.
    """
    begin(story)
    story.agent_starts("a1", "a")
    story.agent_grows("a1", cu(5))
    story.agent_shrinks("a1", cu(1))
    for _ in range(3):
        story.time_passes(20.0)
        story.agent_asks("a1", cu(1))
        story.agent_grows("b1", cu(5))
    story.vm_has("b", cu(5))


def story_03_reply_remembered_too_long(story: Story) -> None:
    """A retry gets the permit of long ago, though the silent agent's row has fallen and its room is another's now."""
    begin(story)
    story.agent_starts("a1", "a")
    story.agent_asks("a1", cu(5), answer_lost=True)
    story.time_passes(60.0)
    story.vm_is_read("a")
    story.agent_asks("b1", cu(5))
    story.agent_holds("b1", cu(5))
    story.agent_asks_again("a1")
    story.agent_holds("a1", cu(1))


def story_04_supersession_by_arrival(story: Story) -> None:
    """Late packets of a dead life take the VM back from its successor, until nothing is kept of what that one holds.

    The second take-over keeps a floor for what the successor's own late packet has asked for, in place of the first.
    """
    begin(story)
    story.agent_starts("a1", "a")
    story.agent_asks("a1", cu(1), held_back="first of a1")
    story.agent_asks("a1", cu(1), held_back="second of a1")
    story.agent_dies("a1")
    story.time_passes(2.0)
    story.agent_starts("a2", "a")
    story.agent_asks("a2", cu(1), held_back="first of a2")
    story.agent_asks("a2", cu(5))
    story.agent_holds("a2", cu(5))
    story.time_passes(1.0)
    story.packet_arrives("first of a1")
    story.packet_arrives("first of a2")
    story.packet_arrives("second of a1")
    story.agent_asks("b1", cu(5))
    story.agent_holds("b1", cu(1))


def story_05_buffer_subtracted_twice(story: Story) -> None:
    """The amount that a row keeps above its permit leaves the node's sum twice when it ends, so that the node looks emptier."""
    begin(story)
    story.agent_starts("a1", "a")
    story.scheduler_restarts()
    for agent in ("a1", "b1"):
        story.agent_asks(agent, cu(1))
        story.agent_asks(agent, cu(1))
    story.agent_asks("a1", cu(5))
    story.agent_asks("b1", cu(5))
    story.agent_holds("b1", cu(1))


def story_06_settled_by_anybody(story: Story) -> None:
    """A packet from before the restart settles the row at its old claim, less than the agent was permitted since."""
    begin(story)
    story.agent_starts("a1", "a")
    story.agent_asks("a1", cu(1))
    story.time_passes(61.0)
    story.agent_asks("a1", cu(1), held_back="old")
    story.agent_asks("a1", cu(5))
    story.agent_holds("a1", cu(5))
    story.time_passes(1.0)
    story.scheduler_restarts()
    story.packet_arrives("old")
    story.agent_asks("b1", cu(1))
    story.agent_asks("b1", cu(5))
    story.agent_holds("b1", cu(1))


def story_07_one_hand_over_floor(story: Story) -> None:
    """The floor of a second hand-over takes the place of the first one's, while the first life still holds its permit."""
    begin(story)
    story.agent_starts("a1", "a")
    story.agent_asks("a1", cu(5))
    story.time_passes(1.0)
    story.agent_starts("a2", "a")
    story.agent_asks("a2", cu(1))
    story.time_passes(1.0)
    story.agent_starts("a3", "a")
    story.agent_asks("a3", cu(1))
    story.agent_holds("a1", cu(5))
    story.agent_asks("b1", cu(5))
    story.agent_holds("b1", cu(1))


def story_08_bounds_cut_below_use(story: Story) -> None:
    """A maximum that fell cuts a request below what is in use, and the difference is granted to somebody else.

    The request wants more memory, which waits for the pool's verdict; the CPUs that the bug takes away are free at once.
    """
    story.node("n1", cu(6))
    story.scheduler_starts()
    story.vm("a", "n1", most=cu(8), pool=POOL)
    story.vm("b", "n1", most=cu(8))
    story.agent_starts("a1", "a")
    story.agent_starts("b1", "b")
    story.agent_asks("a1", cu(4))
    story.pool_answers("a", None)
    story.bounds_change("a", cu(2, 8))
    story.vm_is_read("a")
    story.agent_resizes("a1", cu(4))
    story.command_lands("a1")
    story.vm_reaches_target("a")
    story.agent_observes("a1")
    story.agent_asks("a1", cu(4, 5))
    story.agent_asks("b1", cu(3, 1))
    story.agent_holds("b1", cu(2, 1))
    story.pool_answers("a", None)
    story.agent_holds("a1", cu(4, 5))


def story_09_bystander_gets_what_is_pending(story: Story) -> None:
    """A bystander is told what waits for the pool's verdict, and keeps it when the pool refuses.

    Two kinds of agent on one VM are a documented cause, which excuses the sum, and the VM has left its pool by then: the
    law is the one of bystanders.
    """
    story.node("n1", cu(6), serves_published=True)
    story.scheduler_starts()
    story.vm("a", "n1", most=cu(8), pool=POOL)
    story.agent_starts("a1", "a")
    story.agent_asks("a1", cu(1))
    story.published_starts("p1", "a")
    story.published_asks("p1", cu(1))
    story.agent_asks("a1", cu(5))
    story.vm_is_labelled("a", None)
    story.published_asks("p1", cu(5))
    story.published_holds("p1", cu(1))
    story.pool_answers("a", 1)
    story.agent_holds("a1", cu(1))


def story_10_decrease_believed_at_once(story: Story) -> None:
    """A read made at once after a published agent was told less ends what is kept, while an old resize is under way."""
    begin(story, serves_published=True)
    story.published_starts("p1", "a")
    story.published_asks("p1", cu(1))
    story.published_asks("p1", cu(5))
    story.published_dies("p1")
    story.time_passes(2.0)
    story.published_starts("p2", "a")
    story.published_asks("p2", cu(1))
    story.vm_is_read("a")
    story.agent_asks("b1", cu(5))
    story.agent_holds("b1", cu(1))
    story.command_lands("p1")


def story_11_targets_left_out(story: Story) -> None:
    """A VM that is on its way to more counts with its size only, so that the rest is granted to somebody else."""
    begin(story)
    story.edited_behind_our_back("a", cu(5))
    story.vm_is_read("a")
    story.agent_asks("b1", cu(5))
    story.agent_holds("b1", cu(1))
    story.vm_reaches_target("a")


def story_12_sent_resize_left_out(story: Story) -> None:
    """An agent that forgets the resize it sent asks for less than the VM is about to have."""
    begin(story)
    story.agent_starts("a1", "a")
    story.agent_asks("a1", cu(5))
    story.agent_resizes("a1", cu(5))
    story.agent_asks("a1", cu(1))
    story.agent_asks("b1", cu(5))
    story.agent_holds("b1", cu(1))
    story.command_lands("a1")


def story_13_no_fence(story: Story) -> None:
    """A dead life's resize that was under way for a minute lands after the hand-over to its successor is over."""
    begin(story)
    story.agent_starts("a1", "a")
    story.agent_asks("a1", cu(5))
    story.agent_resizes("a1", cu(5))
    story.agent_dies("a1")
    story.agent_starts("a2", "a")
    story.agent_asks("a2", cu(1))
    story.time_passes(61.0)
    story.agent_asks("a2", cu(1))
    story.agent_asks("b1", cu(5))
    story.agent_holds("b1", cu(5))
    story.command_lands("a1")


def story_14_late_event_ends_claim(story: Story) -> None:
    """A read from before an edit, told late, ends what is kept for the edit that only the agent has seen."""
    story.node("n1", cu(6))
    story.scheduler_starts()
    story.vm("a", "n1", most=cu(2))
    story.vm("b", "n1", most=cu(8))
    story.agent_starts("a1", "a")
    story.agent_starts("b1", "b")
    story.read_begins("a", "old")
    story.edited_behind_our_back("a", cu(5))
    story.vm_reaches_target("a")
    story.agent_observes("a1")
    story.agent_asks("a1", cu(5))
    story.agent_observes("a1")
    story.read_is_told("old")
    story.agent_asks("b1", cu(4))
    story.agent_holds("b1", cu(1))


def story_15_new_right_after_a_start(story: Story) -> None:
    """A VM that comes back after a restart is taken for newborn, and what its agent was permitted is not kept."""
    begin(story)
    story.agent_starts("a1", "a")
    story.agent_asks("a1", cu(5))
    story.time_passes(61.0)
    story.agent_asks("a1", cu(5))
    story.agent_asks("b1", cu(1))
    story.vm_vanishes("a")
    story.scheduler_restarts()
    story.time_passes(1.0)
    story.vm_returns("a")
    story.agent_asks("b1", cu(1))
    story.agent_asks("b1", cu(5))
    story.agent_holds("b1", cu(1))


def story_16_no_lease(story: Story) -> None:
    """An agent that was cut off goes on holding its permit after the scheduler has given it to somebody else."""
    begin(story)
    story.agent_starts("a1", "a")
    story.agent_asks("a1", cu(5))
    story.time_passes(60.0)
    story.vm_is_read("a")
    story.agent_asks("b1", cu(5))
    story.agent_holds("b1", cu(5))
    story.agent_holds("a1", cu(0))


def story_17_own_floor_is_headroom(story: Story) -> None:
    """A VM grows into what is kept for its own past after a restart, though its neighbour holds that room."""
    begin(story, serves_published=True)
    story.agent_asks("b1", cu(5))
    story.scheduler_restarts()
    story.published_starts("p1", "a")
    story.published_asks("p1", cu(1))
    story.published_asks("p1", cu(5))
    story.published_holds("p1", cu(1))


def story_18_resize_forgotten_at_its_deadline(story: Story) -> None:
    """An agent takes a resize for failed because its time is over, and gives back what the VM has."""
    begin(story)
    story.agent_starts("a1", "a")
    story.agent_asks("a1", cu(5))
    story.agent_resizes("a1", cu(5))
    story.command_lands("a1")
    story.vm_reaches_target("a")
    story.time_passes(5.0)
    story.agent_asks("a1", cu(1))
    story.agent_asks("b1", cu(5))
    story.agent_holds("b1", cu(1))


def story_19_old_event_ends_silence(story: Story) -> None:
    """A read from before the silence lets a silent row fall, though the VM has grown since that read."""
    begin(story)
    story.agent_starts("a1", "a")
    story.agent_asks("a1", cu(5))
    story.read_begins("a", "old")
    story.time_passes(29.0)
    story.agent_resizes("a1", cu(5))
    story.command_lands("a1")
    story.vm_reaches_target("a")
    story.time_passes(32.0)
    story.read_is_told("old")
    story.agent_asks("b1", cu(5))
    story.agent_holds("b1", cu(1))


def story_29_handover_dies_with_the_scheduler(story: Story) -> None:
    """After a restart a new life settles at what it holds, while the one before it still holds what it was permitted."""
    begin(story)
    story.agent_starts("a1", "a")
    story.time_passes(61.0)
    story.agent_asks("a1", cu(5))
    story.agent_asks("b1", cu(1))
    story.agent_starts("a2", "a")
    story.scheduler_restarts()
    for agent in ("a2", "b1"):
        story.agent_asks(agent, cu(1))
        story.agent_asks(agent, cu(1))
    story.agent_asks("b1", cu(5))
    story.agent_holds("b1", cu(1))
    story.agent_holds("a1", cu(5))


def story_30_blind_write(story: Story) -> None:
    """An agent that was cut off sets what its guest approved, over what somebody has lowered since its last look."""
    begin(story)
    story.agent_starts("a1", "a")
    story.agent_grows("a1", cu(5))
    story.time_passes(61.0)
    story.edited_behind_our_back("a", cu(1))
    story.vm_reaches_target("a")
    story.vm_is_read("a")
    story.agent_grows("b1", cu(5))
    story.agent_resizes("a1", cu(4))
    story.agent_holds("b1", cu(5))
