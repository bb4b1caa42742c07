"""Each story is fine with the real core, and breaks the law that it names when its bug is put in."""

from collections.abc import Callable
from typing import Final

import pytest

from tests.machines.mutants import MUTANTS, handover_dies_with_the_scheduler
from tests.scenarios import beyond_pools, kept_for_a_while, overcommits, tied_or_apart
from tests.scenarios.stories import Story
from tests.scenarios.telling import StoryBrokenError
from tests.support.amounts import cu

OVERCOMMITTED: Final = "n1 is overcommitted"
LAWS: Final = {
    2: r"expected 5 CPU / 5Gi, found 1 CPU / 1Gi",
    9: "a bystander got",
    20: "pool pool holds 5 of 4 units that were admitted",
    21: "the verdict was not formed for what pool pool is now",
    22: "pool pool holds 4 of 3 units that were admitted",
    23: "pool pool holds 4 of 3 units that were admitted",
    24: "is permitted 1 CPU / 1Gi of 3 CPU / 3Gi, and is owed 2 CPU / 2Gi",
    25: "pool pool holds 5 of at most 3 units",
    26: "nobody asked pool pool",
    27: "pool pool holds 5 of 3 units that were admitted",
    28: "the verdict was not formed for what pool other is now",
    31: "a request lifted the reserved cpu from 2000 to 6000 of 3000",
    32: "a request lifted the reserved memory from 2147483648 to 7516192768 of 6442450944",
    33: "pool pool holds 7 of 5 units that were admitted",
    34: "expected 2 CPU / 2Gi, found 2 CPU / 5Gi",
    35: "expected 2 CPU / 5Gi, found 2 CPU / 2Gi",
    36: "pool pool holds 5 of 3 units that were admitted",
    37: "nobody asked pool pool",
    38: "expected 3 CPU / 3Gi, found 1 CPU / 3Gi",
    39: "expected 2 CPU / 2Gi, found 2 CPU / 5Gi",
    40: "a retry of a is told another kind than at first",
    44: "its published agent was told 3 CPU / 3Gi, its row keeps 1 CPU / 1Gi",
    46: "a: 5 CPU / 5Gi may be in use, but its row keeps 1 CPU / 1Gi",
    47: "a: 5 CPU / 5Gi may be in use, but its row keeps 1 CPU / 1Gi",
}
"""The laws that break, for the stories in which it is not the sum of what may be in use."""

STRICT: Final = frozenset({24, 44, 46, 47})
"""The stories that break the law of what a permit is, or what a row keeps, which is not checked in the others."""

PREFIX: Final = "story_"
STORIES: Final = {
    int(name.removeprefix(PREFIX).partition("_")[0]): story
    for room in (overcommits, beyond_pools, tied_or_apart, kept_for_a_while)
    for name, story in vars(room).items()
    if name.startswith(PREFIX)
}
NUMBERS: Final = sorted(STORIES)


def _name(number: int) -> str:
    told: Callable[[Story], None] = STORIES[number]
    return told.__name__.removeprefix(PREFIX)


def test_every_bug_has_a_story() -> None:
    assert [mutant.number for mutant in MUTANTS] == NUMBERS


@pytest.mark.parametrize("number", NUMBERS, ids=_name)
def test_a_story_is_fine_without_its_bug(number: int) -> None:
    story = Story(is_strict=number in STRICT)
    STORIES[number](story)
    story.ends()


@pytest.mark.parametrize("number", NUMBERS, ids=_name)
def test_a_story_breaks_with_its_bug(number: int) -> None:
    (mutant,) = (mutant for mutant in MUTANTS if mutant.number == number)
    story = Story(is_strict=number in STRICT)
    with mutant.patch(), pytest.raises(StoryBrokenError) as broken:
        STORIES[number](story)
    what, *steps = str(broken.value).splitlines()
    assert LAWS.get(number, OVERCOMMITTED) in what
    assert steps == story.steps


@pytest.mark.parametrize("number", [29, 48, 49], ids=_name)
def test_every_life_that_settles_a_row_without_a_proof_overcommits(number: int) -> None:
    """A later life that was not heard, one that was served long ago, and one that was superseded without hearing of it."""
    with handover_dies_with_the_scheduler(), pytest.raises(StoryBrokenError, match=OVERCOMMITTED):
        STORIES[number](Story())


def test_a_broken_story_tells_its_steps() -> None:
    story = Story()
    story.node("n1", cu(6))
    story.scheduler_starts()
    story.vm("a", "n1", most=cu(8))
    story.agent_starts("a1", "a")
    story.agent_asks("a1", cu(3), answer_held_back="x")
    story.time_passes(4.0)
    story.answer_arrives("x")
    with pytest.raises(StoryBrokenError) as broken:
        story.agent_holds("a1", cu(3))
    held_back = ', and the network holds back the answer as "x"'
    assert str(broken.value).splitlines() == [
        "expected 3 CPU / 3Gi, found 0 CPU / 0",
        " 1. at 0.0 s: node n1 has 6 CPU / 6Gi for VMs",
        " 2. at 0.0 s: the scheduler starts",
        " 3. at 0.0 s: VM a of 1 CPU / 1Gi begins on n1, may have 8 CPU / 8Gi",
        " 4. at 0.0 s: agent a1 starts for VM a, fences it and looks at it",
        " 5. at 0.0 s: agent a1 asks for 3 CPU / 3Gi and is permitted 3 CPU / 3Gi" + held_back,
        " 6. at 0.0 s: 4 s pass",
        ' 7. at 4.0 s: the answer "x" arrives at its agent',
        " 8. at 4.0 s: agent a1 must hold 3 CPU / 3Gi",
    ]
