"""One story for each bug that takes resources which are tied for apart, the reverse, or one of them for the other.

The numbers are those of `tests.machines.mutants`. Every node bears two VMs of 1 CPU / 1Gi at first, a and b; where nothing
else is said, it has room for 3 CPU / 6Gi, so that a may have 2 CPUs, and 5Gi only where its resources are apart.
"""

from protocol.values import Resources
from tests.machines.core_port import POOL
from tests.scenarios.stories import Story
from tests.support.amounts import cu


def _begin(
    story: Story,
    *,
    room: Resources | None = None,
    pool: str | None = None,
    apart: bool = True,
    serves_published: bool = False,
) -> None:
    """Node n1 with the VMs a and b, both known to the scheduler from birth. a has the agent a1 unless it is published."""
    story.node("n1", room or cu(3, 6), serves_published=serves_published)
    story.scheduler_starts()
    story.vm("a", "n1", most=cu(8), pool=pool)
    story.vm("b", "n1", most=cu(8), pool=pool)
    if not serves_published:
        story.agent_starts("a1", "a", apart=apart)


def story_31_limit_of_the_other_resource(story: Story) -> None:
    """Few CPUs are left and much memory: they bound the memory, and the memory bounds the CPUs."""
    _begin(story)
    story.agent_asks("a1", cu(5))
    story.agent_holds("a1", cu(2, 5))


def story_32_permit_counted_by_the_smaller(story: Story) -> None:
    """A request for two CPUs and six GiB counts as two units, and no limit is that small."""
    _begin(story, room=cu(6), apart=False)
    story.agent_asks("a1", cu(2, 6))
    story.agent_holds("a1", cu(2, 5))


def story_33_pool_counted_by_the_smaller(story: Story) -> None:
    """A VM with much memory and one CPU counts as one unit, so that its pool seems to have room."""
    _begin(story, room=cu(20), pool=POOL)
    story.agent_starts("b1", "b")
    story.agent_asks("a1", cu(1, 4))
    story.pool_answers("a", 5)
    story.agent_holds("a1", cu(1, 4))
    story.agent_asks("b1", cu(3))
    story.pool_answers("b", 5)
    story.agent_holds("b1", cu(1))


def story_34_tied_vm_treated_as_apart(story: Story) -> None:
    """A VM becomes tied while its agent runs: from then on it grows by whole units, whatever is asked for."""
    _begin(story)
    story.vm_is_tied("a")
    story.agent_asks("a1", cu(5))
    story.agent_holds("a1", cu(2))


def story_35_apart_vm_treated_as_tied(story: Story) -> None:
    """The node has no more CPUs, and so a VM gets no memory, of which there is enough."""
    _begin(story)
    story.agent_asks("a1", cu(5))
    story.agent_holds("a1", cu(2, 5))


def story_36_pool_limits_one_resource(story: Story) -> None:
    """Three units are admitted: CPU is cut to what they leave, and memory is not."""
    _begin(story, room=cu(20), pool=POOL)
    story.agent_asks("a1", cu(4))
    story.pool_answers("a", 3)
    story.agent_holds("a1", cu(2))


def story_37_memory_asks_nobody(story: Story) -> None:
    """A VM grows in memory alone, takes more of its pool by that, and the pool has no say."""
    _begin(story, room=cu(20), pool=POOL)
    story.agent_asks("a1", cu(1, 4))
    story.pool_answers("a", 2)
    story.agent_holds("a1", cu(1))


def story_38_refused_pool_refuses_what_it_counts(story: Story) -> None:
    """A VM with much memory wants more of both. Its pool admits nothing more, and counts three units of it already."""
    story.node("n1", cu(20))
    story.scheduler_starts()
    story.vm("a", "n1", most=cu(8), size=cu(1, 3), pool=POOL)
    story.agent_starts("a1", "a", apart=True)
    story.agent_asks("a1", cu(4))
    story.pool_answers("a", 0)
    story.agent_holds("a1", cu(3))


def story_39_published_caller_treated_as_apart(story: Story) -> None:
    """A caller without the extension cannot say that its resources are tied: they are, always."""
    _begin(story, serves_published=True)
    story.published_starts("p1", "a")
    story.published_asks("p1", cu(1))
    story.published_asks("p1", cu(5))
    story.published_holds("p1", cu(2))


def story_40_retry_told_the_kind_of_now(story: Story) -> None:
    """The answer was lost, and the VM becomes tied before the retry, which is told how it was counted."""
    _begin(story)
    story.agent_asks("a1", cu(5), answer_lost=True)
    story.vm_is_tied("a")
    story.agent_asks_again("a1")
    story.agent_holds("a1", cu(2, 5))


def story_41_floors_kept_as_a_whole(story: Story) -> None:
    """A life holds much memory, and the next one takes many CPUs instead: the memory is kept for the first one as well."""
    _begin(story, room=cu(6))
    story.agent_starts("b1", "b", apart=True)
    story.agent_asks("a1", cu(1, 4))
    story.agent_starts("a2", "a", apart=True)
    story.agent_asks("a2", cu(4, 1))
    story.agent_holds("a1", cu(1, 4))
    story.agent_asks("b1", cu(1, 5))
    story.agent_holds("b1", cu(1, 2))
