"""Stories of what is kept for a while: what published agents were told, hand-overs, gates of VMs that went.

The numbers are those of `tests.machines.mutants`. Every node has room for 6 CPU / 6Gi, where nothing else is said, and bears two
VMs of 1 CPU / 1Gi at first.
"""

from tests.machines.core_port import SAFE_HANDOVER_S
from tests.scenarios.overcommits import begin
from tests.scenarios.stories import Story
from tests.support.amounts import cu


def story_42_told_floor_ends_before_the_deadline(story: Story) -> None:
    """A read begun after a published agent was told less ends what is kept, while its predecessor's resize is under way."""
    begin(story, serves_published=True)
    story.published_starts("p1", "a")
    story.published_asks("p1", cu(1))
    story.published_asks("p1", cu(5))
    story.published_dies("p1")
    story.time_passes(2.0)
    story.published_starts("p2", "a")
    story.published_asks("p2", cu(1))
    story.time_passes(2.0)
    story.vm_is_read("a")
    story.agent_asks("b1", cu(5))
    story.agent_holds("b1", cu(1))
    story.command_lands("p1")


def story_43_smaller_told_floor_replaces_a_larger(story: Story) -> None:
    """The permit of a second published agent takes the place of that of the first, whose resize may still land."""
    begin(story, serves_published=True)
    for agent, wanted in (("p1", cu(5)), ("p2", cu(3))):
        story.published_starts(agent, "a")
        story.published_asks(agent, cu(1))
        story.published_asks(agent, wanted)
        story.published_dies(agent)
    story.published_starts("p3", "a")
    story.published_asks("p3", cu(1))
    story.agent_asks("b1", cu(5))
    story.agent_holds("b1", cu(1))
    story.command_lands("p1")


def story_44_told_floor_ends_after_a_short_silence(story: Story) -> None:
    """The permit of a bystander is given away when it was silent for some seconds, though it may go up to that at any time.

    Two kinds of agent on one VM are a documented cause, which excuses the sum: the law is what a published agent was told.
    """
    begin(story, serves_published=True)
    story.agent_starts("a1", "a")
    story.agent_grows("a1", cu(3))
    story.published_starts("p1", "a")
    story.published_asks("p1", cu(3))
    story.agent_shrinks("a1", cu(1))
    story.time_passes(5.0)
    story.time_passes(5.0)
    story.vm_is_read("a")
    story.published_holds("p1", cu(3))


def story_45_floors_end_early(story: Story) -> None:
    """With the shortest hand-over that is safe, the floor of a superseded life ends before the lease of that life."""
    story.node("n1", cu(6))
    story.scheduler_starts(handover_s=SAFE_HANDOVER_S)
    story.vm("a", "n1", most=cu(8))
    story.vm("b", "n1", most=cu(8))
    story.agent_starts("b1", "b")
    story.agent_starts("a1", "a")
    story.agent_asks("a1", cu(5))
    story.time_passes(1.0)
    story.agent_starts("a2", "a")
    story.agent_asks("a2", cu(1))
    story.time_passes(SAFE_HANDOVER_S / 2)
    story.agent_holds("a1", cu(5))
    story.agent_asks("b1", cu(5))
    story.agent_holds("b1", cu(1))


def story_46_hand_over_keeps_the_permit_only(story: Story) -> None:
    """A life that holds more than its row's permit is superseded: what its claim kept beside that is given away.

    What the VM had before it went is excused on its node, because others may have it: the law is the one of rows.
    """
    begin(story)
    story.agent_starts("a1", "a")
    story.agent_asks("a1", cu(5))
    story.time_passes(1.0)
    story.vm_vanishes("a")
    story.vm_returns("a")
    story.growth_is_stopped()
    story.agent_asks("a1", cu(5), answer_lost=True)
    story.agent_starts("a2", "a")
    story.agent_asks("a2", cu(1))
    story.agent_holds("a1", cu(5))


def story_47_gate_is_forgotten(story: Story) -> None:
    """A late packet settles a VM that went and came back at what its agent had long ago.

    What the VM had before it went is excused on its node, because others may have it: the law is the one of rows.
    """
    begin(story)
    story.agent_starts("a1", "a")
    story.agent_asks("a1", cu(1))
    story.agent_asks("a1", cu(1), held_back="old")
    story.agent_asks("a1", cu(5))
    story.vm_vanishes("a")
    story.vm_returns("a")
    story.packet_arrives("old")
    story.agent_holds("a1", cu(5))


def story_48_unheard_life_by_age(story: Story) -> None:
    """A life that began long ago asks for the first time, at a new scheduler: the one before it was served until just now."""
    begin(story)
    story.agent_starts("a1", "a")
    story.agent_starts("a2", "a")
    story.time_passes(61.0)
    story.agent_asks("a1", cu(5))
    story.agent_asks("b1", cu(1))
    story.scheduler_restarts()
    for agent in ("a2", "b1"):
        story.agent_asks(agent, cu(1))
        story.agent_asks(agent, cu(1))
    story.agent_asks("b1", cu(5))
    story.agent_holds("b1", cu(1))
    story.agent_holds("a1", cu(5))


def story_49_fence_not_looked_at(story: Story) -> None:
    """A life that was superseded without hearing of it settles its row after a restart, while the later one sleeps on what it got.

    On a node of 10 both VMs use 2. The first life has been served for 80 s, so that every lease of those before it is over. The
    later one is granted 6 and stops before it resizes.
    """
    story.node("n1", cu(10))
    story.scheduler_starts()
    for vm in ("a", "b"):
        story.vm(vm, "n1", most=cu(8))
    for agent, vm in (("b1", "b"), ("d1", "a")):
        story.agent_starts(agent, vm)
        story.agent_grows(agent, cu(2))
    for _ in range(4):
        story.time_passes(20.0)
        story.agent_asks("d1", cu(2))
        story.agent_asks("b1", cu(2))
    story.agent_starts("d2", "a")
    story.agent_asks("d2", cu(6))
    story.scheduler_restarts()
    for agent in ("d1", "b1"):
        story.agent_asks(agent, cu(2))
        story.agent_asks(agent, cu(2))
    story.agent_asks("b1", cu(8))
    story.agent_holds("b1", cu(2))
    story.agent_resizes("d2", cu(6))
    story.command_lands("d2")
    story.vm_has("b", cu(2))
