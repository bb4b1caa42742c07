"""Plugins hear of the end of a search: each question has one, whatever became of it."""

from dataclasses import dataclass, field

from scheduler.pools.core.errors import new_internal, new_invalid_spec
from scheduler.pools.core.values import ADMITTED, Admission, ProbeEnd
from tests.support.virtual_time import virtually
from tests.unit.scheduler_permits.service_worlds import permit
from tests.unit.scheduler_pools.pool_worlds import Doorman, PoolWorld, raises


@dataclass(eq=False)
class Listener(Doorman):
    most: int = 10**6
    delay_s: float = 0.0
    ends: list[ProbeEnd] = field(default_factory=list)
    fault: BaseException | None = None

    def __post_init__(self) -> None:
        super().__init__(self.most, self.delay_s)

    def probe_ended(self, end: ProbeEnd) -> None:
        self.ends.append(end)
        if self.fault is not None:
            raise self.fault

    @property
    def figures(self) -> list[tuple[int, int, int, int]]:
        """Of each end: asked, admitted, committed, held."""
        return [(end.asked, end.admitted, end.committed, end.pool.replicas) for end in self.ends]

    @property
    def has_one_end_for_each_question(self) -> bool:
        asked = list(dict.fromkeys(question.ctx.question for question in self.heard))
        return asked == [end.question for end in self.ends] and "" not in asked


@virtually
async def test_what_was_admitted_and_committed_is_told_once_for_each_search() -> None:
    listener = Listener(10)
    world = await PoolWorld(listener).open()
    world.born("a", "b")
    await world.grow("a", 4)
    await world.grow("b", 20)
    assert listener.figures == [(5, 5, 3, 5), (24, 10, 5, 10)]
    assert listener.has_one_end_for_each_question


@virtually
async def test_refusals_and_failures_commit_nothing() -> None:
    listener = Listener(1)
    world = await PoolWorld(listener).open()
    world.born("a")
    await world.grow("a", 3)
    await world.change()
    for error in (new_internal("x"), new_invalid_spec("x")):
        listener.says = raises(error)
        await world.grow("a", 3)
    assert listener.figures == [(3, 1, 0, 1)] * 3
    assert listener.has_one_end_for_each_question


@virtually
async def test_a_search_that_begins_anew_ends_twice() -> None:
    """The pool was changed while the chain was asked: the first verdict counts for nothing."""
    listener = Listener(100, 0.1)
    world = await PoolWorld(listener).open()
    world.born("a")
    task = await world.growing("a", 5)
    await world.change()
    assert permit(await task) == (5, [])
    assert listener.figures == [(5, 5, 0, 1), (5, 5, 4, 5)]
    assert listener.has_one_end_for_each_question


@virtually
async def test_a_listener_that_fails_costs_nobody_anything() -> None:
    listener = Listener()
    listener.fault = SystemExit(1)
    world = await PoolWorld(listener).open()
    world.born("a")
    assert await world.grow("a", 4) == (4, [])


@virtually
async def test_nobody_is_named_a_question_where_nobody_listens() -> None:
    doorman = Doorman()
    doorman.says = lambda ctx, _: ADMITTED if ctx.question == "" else Admission(admitted=0)
    world = await PoolWorld(doorman).open()
    world.born("a")
    assert await world.grow("a", 4) == (4, [])
