"""One story for each bug that lets a VM take more of its pool than was admitted, or refuses it what is there.

The numbers are those of `tests.machines.mutants`. The node has room for 20 CPU / 20Gi and bears two VMs of 1 CPU / 1Gi at
first, a and b. Both belong to the pool "pool" with units of 1 CPU / 1Gi, where nothing else is said; no limit but those
of pools binds.
"""

from tests.machines.core_port import POOL
from tests.machines.pool_models import OTHER
from tests.scenarios.stories import Story
from tests.support.amounts import cu


def _begin(story: Story, *, pool_of_b: str = POOL) -> None:
    """Node n1 with the VMs a and b, both known to the scheduler from birth, and their agents a1 and b1."""
    story.node("n1", cu(20))
    story.scheduler_starts()
    story.vm("a", "n1", most=cu(8), pool=POOL)
    story.vm("b", "n1", most=cu(8), pool=pool_of_b)
    story.agent_starts("a1", "a")
    story.agent_starts("b1", "b")


def _edited(story: Story) -> None:
    """Somebody makes a four times as large; the scheduler and the agent have seen it."""
    story.edited_behind_our_back("a", cu(4))
    story.vm_reaches_target("a")
    story.vm_is_read("a")
    story.agent_observes("a1")


def story_20_others_forgotten_at_commit(story: Story) -> None:
    """Four units are admitted for the pool, and the VM that asked takes them all, beside its neighbour's one."""
    _begin(story)
    story.agent_asks("a1", cu(4))
    story.pool_answers("a", 4)
    story.agent_holds("a1", cu(3))


def story_21_verdict_for_another_generation(story: Story) -> None:
    """Five units were admitted when a unit was half as large."""
    _begin(story)
    story.agent_asks("a1", cu(4))
    story.pool_verdict_is_formed("a", 5, "old")
    story.pool_is_changed(POOL, unit=cu(2))
    story.pool_verdict_is_told("old")
    story.agent_holds("a1", cu(1))


def story_22_births_not_counted(story: Story) -> None:
    """A neighbour that was born into the pool has not grown yet, and so takes nothing of it."""
    _begin(story)
    story.agent_asks("a1", cu(3))
    story.pool_answers("a", 3)
    story.agent_holds("a1", cu(2))


def story_23_label_leaves_units_behind(story: Story) -> None:
    """A neighbour came by its label, and its unit stays in the pool that it left."""
    _begin(story, pool_of_b=OTHER)
    story.vm_is_labelled("b", POOL)
    story.agent_asks("a1", cu(3))
    story.pool_answers("a", 3)
    story.agent_holds("a1", cu(2))


def story_24_pending_counts_in_the_pool(story: Story) -> None:
    """Two VMs wait for the one unit that is left, and each is refused because of what the other one waits for."""
    _begin(story)
    story.agent_asks("a1", cu(3))
    story.agent_asks("b1", cu(3))
    story.pool_verdict_is_formed("a", 3, "for a")
    story.pool_verdict_is_formed("b", 3, "for b")
    story.pool_verdict_is_told("for a")
    story.agent_holds("a1", cu(2))
    story.pool_verdict_is_told("for b")
    story.agent_holds("b1", cu(1))


def story_25_own_limits_not_looked_at_again(story: Story) -> None:
    """The pool is limited while a VM waits; its chain, asked after that, minds other things."""
    _begin(story)
    story.agent_asks("a1", cu(4))
    story.pool_is_changed(POOL, max_units=3)
    story.pool_answers("a", 5)
    story.agent_holds("a1", cu(2))


def story_26_floor_needs_no_verdict(story: Story) -> None:
    """A use that an edit brought about counts, and makes no permit: the pool refuses that."""
    _begin(story)
    _edited(story)
    story.agent_asks("a1", cu(4))
    story.pool_answers("a", 0)
    story.agent_holds("a1", cu(1))


def story_27_growth_in_a_pool_that_is_above(story: Story) -> None:
    """An edit lifts the pool to five units where three are admitted, and then a permit makes that the rule."""
    _begin(story)
    _edited(story)
    story.agent_asks("a1", cu(4))
    story.pool_answers("a", 3)
    story.agent_holds("a1", cu(1))


def story_28_verdict_of_the_pool_it_left(story: Story) -> None:
    """A VM is labelled with another pool while it waits, and grows there by the verdict of the first one."""
    _begin(story)
    story.agent_asks("a1", cu(4))
    story.pool_verdict_is_formed("a", 5, "of the first")
    story.vm_is_labelled("a", OTHER)
    story.pool_verdict_is_told("of the first")
    story.agent_holds("a1", cu(1))
