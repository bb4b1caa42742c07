"""The clauses that every `VmBackend` keeps, each from a sentence of the design (held, back ends, observer).

A clause knows the port and a `BackendPlant` only, and what a plant says of itself: whether others change targets there, and
whether sizes arrive. It raises where the sentence is not kept. `CLAUSES` holds all, by name.
"""

import asyncio
import math
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, TypeVar

from agent.core.model import Vm
from agent.core.ports import BackendError, FencedOffError, Fencing, VmBackend
from protocol.values import ZERO, Bounds, ComputeUnit, Observation, Resources
from protocol.wire import PodName
from tests.support.amounts import UNIT, cu
from tests.unit.agent.driver import VM

T = TypeVar("T")
Clause = Callable[["BackendPlant"], Coroutine[Any, Any, None]]

ABSENT: Final = Vm(
    PodName("absent", "default"), "uid-b", Bounds(UNIT, UNIT * 8), ComputeUnit(UNIT), VM.slot_bytes
)
STEP_S: Final = 0.1
CUTS: Final = 6
CLAUSES: Final[dict[str, Clause]] = {}


@dataclass(frozen=True, slots=True)
class Traits:
    """The known traits of a plant: `keeps_targets`, nobody else changes them; `arrives`, sizes reach their targets;
    `is_slow`, not at once."""

    keeps_targets: bool = True
    arrives: bool = True
    is_slow: bool = True


@dataclass(frozen=True, slots=True)
class BackendPlant:
    """A place with `VM`, made with 2 units, that outlives back ends, and the clock that it goes by.

    `open` makes a back end as a new process would, `look` shows the truth, `spoil` makes the VM unreadable. `go_on` lets
    time pass until something happens, `wait` for so many seconds. `faults` are the lines after which the log showed less
    than the VM had.
    """

    traits: Traits
    open: Callable[[], VmBackend]
    look: Callable[[], Awaitable[Observation]]
    spoil: Callable[[], None]
    log_lines: Callable[[], list[dict[str, Any]]]
    faults: Callable[[], list[str]]
    now_s: Callable[[], float]
    go_on: Callable[[], Awaitable[None]]
    wait: Callable[[float], Awaitable[None]]

    async def begin(self, call: Coroutine[Any, Any, T], cut: int = 0) -> asyncio.Task[T]:
        """Start a call and go on `cut` times, or until it has ended."""
        task = asyncio.create_task(call)
        await self.wait(0.0)
        for _ in range(cut):
            if not task.done():
                await self.go_on()
        return task

    async def end(self, task: asyncio.Task[T]) -> T:
        """The outcome of a call."""
        while not task.done():
            await self.go_on()
        return task.result()

    async def call(self, call: Coroutine[Any, Any, T]) -> T:
        """Make a call and let as much time pass as it takes."""
        return await self.end(await self.begin(call))

    async def insist(self, make: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Repeat a call that may fail until it succeeds."""
        last = ""
        for _ in range(200):
            try:
                return await self.call(make())
            except BackendError as error:
                last = str(error)
            await self.wait(0.3)
        raise AssertionError(f"it fails for ever: {last}")

    async def is_fenced_off(self, make: Callable[[], Coroutine[Any, Any, object]]) -> bool:
        """Repeat a call until it says that it never will succeed, because a later life has fenced the VM; or does."""
        for _ in range(200):
            try:
                await self.call(make())
            except FencedOffError:
                return True
            except BackendError:
                await self.wait(0.3)
            else:
                return False
        raise AssertionError("it fails for ever, and does not say why")

    async def fence(self, backend: VmBackend) -> Fencing:
        return await self.insist(lambda: backend.fence(VM))

    async def resize(self, backend: VmBackend, target: Resources, fencing: Fencing) -> None:
        async def write() -> None:
            await self.write(backend, target, fencing)

        await self.insist(write)

    async def write(self, backend: VmBackend, target: Resources, fencing: Fencing) -> None:
        """Command a target, with the one that stands there as the one that was seen and all the time in the world."""
        stands = (await self.look()).target
        await backend.resize(VM, target, fencing, seen=stands, not_after_s=math.inf)

    async def observe(self, backend: VmBackend) -> Observation:
        return await self.insist(lambda: backend.observe(VM))

    async def life(self) -> tuple[VmBackend, Fencing]:
        backend = self.open()
        fencing = await self.fence(backend)
        await self.rest()
        return backend, fencing

    async def rest(self) -> Observation:
        """The VM when it has reached its target, or can be expected to do nothing more."""
        seen = await self.look()
        for _ in range(200):
            if seen.is_at_rest:
                return seen
            await self.wait(STEP_S)
            seen = await self.look()
        assert not self.traits.arrives, "it never reaches its target"
        return seen

    async def watched(self, seconds: float) -> AsyncIterator[Observation]:
        """The truth every little while."""
        for _ in range(math.ceil(seconds / STEP_S)):
            yield await self.look()
            await self.wait(STEP_S)
        yield await self.look()

    async def stays_covered(self, seconds: float) -> None:
        """While nobody commands anything, max(size, target) never rises: it covers what the VM may reach."""
        bound = use(await self.look())
        async for seen in self.watched(seconds):
            assert use(seen).fits_in(bound), f"{seen} after {bound}"
            bound = use(seen)

    def shows(self, seen: Observation, target: Resources) -> bool:
        """Whether the VM moves to `target`, or did until somebody took a growth back."""
        return seen.target == target or (not self.traits.keeps_targets and seen.target.fits_in(target))


def use(seen: Observation) -> Resources:
    """The amount that counts as in use after a look."""
    return seen.size.max(seen.target)


def clause(function: Clause) -> Clause:
    """Make a function part of the suite."""
    CLAUSES[function.__name__] = function
    return function


async def killed(task: "asyncio.Task[Any]") -> None:
    """End a call as the death of its process would."""
    task.cancel()
    await asyncio.wait([task])


async def refused(plant: BackendPlant, call: Coroutine[Any, Any, Any]) -> str:
    """The text of the error that a call ends with."""
    try:
        outcome = await plant.call(call)
    except BackendError as error:
        return str(error)
    raise AssertionError(f"no error of the back end, but {outcome}")


# ---------------------------------------------------------------- looks and targets


@clause
async def observe_returns_size_and_target(plant: BackendPlant) -> None:
    backend, fencing = await plant.life()
    seen = await plant.observe(backend)
    assert (seen.size, seen.target) == (cu(2), cu(2))
    for target in (cu(4), cu(1), cu(3, 2), cu(2, 3)):
        await plant.resize(backend, target, fencing)
        assert plant.shows(await plant.observe(backend), target)
        await plant.rest()
        seen, truth = await plant.observe(backend), await plant.look()
        assert (seen.size, seen.target) == (truth.size, truth.target)
        assert plant.shows(seen, target)


@clause
async def resize_returns_when_the_target_is_accepted_not_when_it_is_reached(plant: BackendPlant) -> None:
    backend, fencing = await plant.life()
    for target in (cu(4), cu(1), cu(8)):
        before = await plant.rest()
        await plant.resize(backend, target, fencing)
        seen = await plant.look()
        assert plant.shows(seen, target)
        assert seen.size.fits_in(before.size.max(target))
        if plant.traits.is_slow and plant.traits.keeps_targets:
            assert seen.size != target


@clause
async def what_is_observed_is_not_older_than_the_look(plant: BackendPlant) -> None:
    backend, fencing = await plant.life()
    for cut in range(CUTS):
        await plant.rest()
        called_s = plant.now_s()
        looking = await plant.begin(backend.observe(VM), cut)
        target = cu(3 + cut % 2)
        other = plant.open()
        await plant.resize(other, target, fencing)
        accepted_s = plant.now_s()
        await plant.wait(STEP_S)
        try:
            seen = await plant.end(looking)
        except BackendError:
            continue
        assert called_s <= seen.begun_s <= plant.now_s()
        assert plant.shows(seen, target) or seen.begun_s <= accepted_s, "an old look with a new date"
        later = await plant.observe(backend)
        assert plant.shows(later, target), "a look that began later shows what was before"


@clause
async def repeating_a_resize_changes_nothing(plant: BackendPlant) -> None:
    backend, fencing = await plant.life()
    await plant.resize(backend, cu(4), fencing)
    first = await plant.look()
    for _ in range(60):
        await plant.resize(backend, first.target, fencing)
        await plant.wait(STEP_S)
    if plant.traits.keeps_targets:
        assert (await plant.look()).target == cu(4)
        assert not plant.traits.arrives or (await plant.look()).size == cu(4), "each repetition begins anew"
        await plant.rest()
        before = plant.log_lines()
        await plant.resize(backend, cu(4), fencing)
        await plant.look()
        assert plant.log_lines() == before


@clause
async def max_of_size_and_target_covers_what_the_vm_may_reach(plant: BackendPlant) -> None:
    backend, fencing = await plant.life()
    for target in (cu(8), cu(1), cu(6, 2), cu(2, 6), cu(5)):
        before = await plant.rest()
        await plant.resize(backend, target, fencing)
        assert use(await plant.look()).fits_in(use(before).max(target))
        await plant.stays_covered(4.0)


@clause
async def after_a_replacement_the_size_never_exceeds_the_size_and_the_new_target(plant: BackendPlant) -> None:
    """Or the larger target counts until the back end is idle: it shows as the target until then."""
    backend, fencing = await plant.life()
    pairs = ((cu(8), cu(3)), (cu(1), cu(6)), (cu(8, 1), cu(1, 8)), (cu(6), cu(7)), (cu(7), cu(1, 7)))
    for delay in range(4):
        for first, second in pairs:
            await plant.resize(backend, first, fencing)
            await plant.wait(delay * 1.5 * STEP_S)
            before = use(await plant.look())
            await plant.resize(backend, second, fencing)
            after = await plant.look()
            assert use(after).fits_in(before.max(second))
            assert second.fits_in(use(after)) or not plant.traits.keeps_targets
            await plant.stays_covered(4.0)
            assert plant.shows(await plant.rest(), second)


@clause
async def a_resize_that_fails_takes_effect_whole_or_not_at_all(plant: BackendPlant) -> None:
    backend, fencing = await plant.life()
    for number in range(12):
        before, target = await plant.rest(), cu(3 + number % 5)
        try:
            await plant.call(plant.write(backend, target, fencing))
        except BackendError:
            await plant.wait(backend.capabilities.command_deadline_s)
        seen = await plant.look()
        assert seen.target == before.target or plant.shows(seen, target)


# ---------------------------------------------------------------- conditions of a write


@clause
async def a_write_fails_where_another_target_stands_than_the_one_that_was_seen(plant: BackendPlant) -> None:
    """An operator's lowering is never undone by a decision that does not know of it."""
    backend, fencing = await plant.life()
    deadline_s = backend.capabilities.command_deadline_s
    for target in (cu(4), cu(8), cu(1)):
        await plant.resize(backend, cu(5), fencing)
        before = await plant.rest()
        seen = before.target
        await plant.resize(plant.open(), cu(2), fencing)
        stands = (await plant.look()).target
        if stands in (seen, target):
            continue  # somebody else has changed it to just that
        assert await refused(plant, backend.resize(VM, target, fencing, seen=seen, not_after_s=math.inf))
        async for now in plant.watched(deadline_s + 1):
            assert plant.shows(now, cu(2)), f"{now.target} was written over {cu(2)}, and {seen} was seen"


@clause
async def of_two_writes_that_rest_on_one_look_at_most_one_succeeds(plant: BackendPlant) -> None:
    backend, fencing = await plant.life()
    for cut in range(2 * CUTS):
        seen = (await plant.rest()).target
        first = await plant.begin(
            backend.resize(VM, cu(4 + cut % 3), fencing, seen=seen, not_after_s=math.inf), cut % CUTS
        )
        second = await plant.begin(
            plant.open().resize(VM, cu(7, 1), fencing, seen=seen, not_after_s=math.inf)
        )
        while not (first.done() and second.done()):
            await plant.go_on()
        failed = [each.exception() for each in (first, second)]
        assert all(error is None or isinstance(error, BackendError) for error in failed)
        if plant.traits.keeps_targets and seen not in (cu(4 + cut % 3), cu(7, 1)):
            assert any(failed), "the second one did not look at what the first one has written"


@clause
async def a_repeated_write_finds_its_own_target(plant: BackendPlant) -> None:
    backend, fencing = await plant.life()
    seen = (await plant.rest()).target
    await plant.resize(backend, cu(6), fencing)
    if (await plant.look()).target == cu(6):
        await plant.insist(lambda: backend.resize(VM, cu(6), fencing, seen=seen, not_after_s=math.inf))


@clause
async def a_write_is_never_late(plant: BackendPlant) -> None:
    """A process that was paused between decision and write does not write."""
    backend, fencing = await plant.life()
    deadline_s = backend.capabilities.command_deadline_s
    for number in range(2 * CUTS):
        target = cu(3 + number % 5)
        before = await plant.rest()
        seen, late_s = before.target, STEP_S * (number % 3 - 1) / 2
        if target == seen:
            continue
        not_after_s = plant.now_s() + late_s
        call = backend.resize(VM, target, fencing, seen=seen, not_after_s=not_after_s)
        task = await plant.begin(call)
        await plant.wait(max(late_s, 0.0) + deadline_s)
        shown = (await plant.look()).target
        assert late_s >= 0 or shown == seen, "written after its moment"
        async for now in plant.watched(2 * deadline_s + 3):
            assert now.target == shown or not plant.traits.keeps_targets, "sent after its moment"
        await asyncio.wait([task])
        assert task.exception() is None or isinstance(task.exception(), BackendError)


# ---------------------------------------------------------------- fences and lives


@clause
async def a_fence_may_be_repeated(plant: BackendPlant) -> None:
    backend = plant.open()
    first, second = await plant.fence(backend), await plant.fence(backend)
    assert second.generation > first.generation
    await plant.resize(backend, cu(3), second)
    assert plant.shows(await plant.look(), cu(3))


@clause
async def a_fence_changes_neither_size_nor_target(plant: BackendPlant) -> None:
    for target in (cu(4), cu(2), cu(6, 1)):
        backend, fencing = await plant.life()
        before = await plant.look()
        await plant.resize(backend, target, fencing)
        await plant.fence(backend)
        seen = await plant.look()
        assert plant.shows(seen, target)
        assert seen.size.fits_in(before.size.max(target))
        assert (
            not plant.traits.keeps_targets or not plant.traits.arrives or (await plant.rest()).size == target
        )


@clause
async def commands_of_an_earlier_life_are_refused(plant: BackendPlant) -> None:
    old, fencing = await plant.life()
    new = plant.open()
    await plant.fence(new)
    before = await plant.look()
    for target in (before.target, cu(3), cu(8)):
        assert await plant.is_fenced_off(partial(plant.write, old, target, fencing)), "an old life is obeyed"
    await plant.wait(old.capabilities.command_deadline_s + 1)
    assert (await plant.look()).target == before.target


@clause
async def when_fence_returns_no_command_of_an_earlier_life_can_take_effect_any_more(
    plant: BackendPlant,
) -> None:
    for is_dead in (True, False):
        for cut in range(CUTS):
            old, fencing = await plant.life()
            target = cu(8 - cut) if (await plant.look()).target != cu(8 - cut) else cu(1)
            task = await plant.begin(plant.write(old, target, fencing), cut)
            if is_dead:
                await killed(task)
            await plant.fence(plant.open())
            before = await plant.look()
            async for seen in plant.watched(2 * old.capabilities.command_deadline_s + 3):
                assert plant.shows(seen, before.target), f"{before.target}, and after the fence {seen.target}"
            assert task.done(), "a call without end"
            await asyncio.wait([task])
            if not task.cancelled():
                task.exception()


@clause
async def after_the_command_deadline_a_command_can_no_longer_be_accepted(plant: BackendPlant) -> None:
    """A command dies with its sender if the deadline is 0."""
    backend, fencing = await plant.life()
    deadline_s = backend.capabilities.command_deadline_s
    for number in range(3 * CUTS):
        target = cu(3 + number % 5)
        task = await plant.begin(plant.write(backend, target, fencing), number % CUTS)
        await killed(task)
        if not task.cancelled():
            task.exception()
        await plant.wait(deadline_s)
        before = await plant.look()
        async for seen in plant.watched(2 * deadline_s + 3):
            assert plant.shows(seen, before.target), f"{seen.target} after the deadline"


@clause
async def targets_outlive_the_agent(plant: BackendPlant) -> None:
    backend, fencing = await plant.life()
    await plant.resize(backend, cu(5), fencing)
    del backend
    again = plant.open()
    await plant.fence(again)
    assert plant.shows(await plant.observe(again), cu(5))
    seen = await plant.rest()
    assert not (plant.traits.arrives and plant.traits.keeps_targets) or seen.size == cu(5)


@clause
async def generations_outlive_the_agent(plant: BackendPlant) -> None:
    first = await plant.fence(plant.open())
    assert (await plant.fence(plant.open())).generation > first.generation


@clause
async def a_call_that_is_cut_off_leaves_the_vm_whole(plant: BackendPlant) -> None:
    for cut in range(CUTS):
        for kind in range(3):
            backend, fencing = await plant.life()
            calls: tuple[Callable[[], Coroutine[Any, Any, object]], ...] = (
                partial(backend.fence, VM),
                partial(backend.observe, VM),
                partial(plant.write, backend, cu(3 + cut), fencing),
            )
            await killed(await plant.begin(calls[kind](), cut))
            again, now_fencing = await plant.life()
            await plant.resize(again, cu(2), now_fencing)
            assert plant.shows(await plant.observe(again), cu(2))


# ---------------------------------------------------------------- errors and capabilities


@clause
async def an_unknown_vm_is_an_error_of_the_back_end(plant: BackendPlant) -> None:
    backend, fencing = await plant.life()
    assert await refused(plant, backend.fence(ABSENT))
    assert await refused(plant, backend.observe(ABSENT))
    assert await refused(plant, backend.resize(ABSENT, cu(2), fencing, seen=cu(2), not_after_s=math.inf))


@clause
async def a_vm_that_cannot_be_read_is_an_error_of_the_back_end(plant: BackendPlant) -> None:
    backend, fencing = await plant.life()
    plant.spoil()
    assert await refused(plant, backend.fence(VM))
    assert await refused(plant, backend.observe(VM))
    assert await refused(plant, plant.write(backend, cu(3), fencing))


@clause
async def a_target_of_nothing_is_refused(plant: BackendPlant) -> None:
    backend, fencing = await plant.life()
    for target in (ZERO, Resources(0, 1), Resources(1, 0), Resources(-1, 1)):
        assert await refused(plant, plant.write(backend, target, fencing))
    assert (await plant.look()).target == cu(2)


@clause
async def capabilities_never_change(plant: BackendPlant) -> None:
    backend, fencing = await plant.life()
    first = backend.capabilities
    await plant.resize(backend, cu(3), fencing)
    assert backend.capabilities == first == plant.open().capabilities
    assert 0 <= first.command_deadline_s < math.inf


# ---------------------------------------------------------------- the change log


@clause
async def a_raise_is_logged_before_the_fact_and_a_lowering_after_it(plant: BackendPlant) -> None:
    """Folded line by line, the log is at or above the truth at every moment, and equal to it in the end."""
    backend, fencing = await plant.life()
    for target in (cu(4), cu(2), cu(3, 1), cu(1, 3), cu(8), cu(5)):
        await plant.resize(backend, target, fencing)
        await plant.wait(STEP_S)
        await plant.observe(backend)
        await plant.resize(backend, cu(3), fencing)
        seen = await plant.observe(backend)
        for _ in range(40):
            await plant.wait(STEP_S)
            seen = await plant.observe(backend)
        logged = {line["kind"]: Resources(line["cpu"], line["memory"]) for line in plant.log_lines()}
        assert (logged["size"], logged["target"]) == (seen.size, seen.target)
    assert plant.faults() == []
