"""The clauses that every `Cluster` adapter keeps, each from a sentence of the port (versions, `begun_s`).

A clause knows the port and a `ClusterPlant` only. Each tells a story; the auditor (`cluster_truth.py`) compares every word that
is told meanwhile with what is true. `CLAUSES` holds all, by name.
"""

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Any, Final

from hosting.settings import SettingsError
from scheduler.permits.core import events
from scheduler.ports import LOOK_DEADLINE_S, Cluster, ClusterUnreachableError
from tests.conformance.cluster_api_server import Pace
from tests.conformance.cluster_truth import NODE, Audit, Kind, World
from tests.support.virtual_time import now_s

Clause = Callable[["ClusterPlant"], Coroutine[Any, Any, None]]

CUTS: Final = 10
"""How far a question has come when something else happens: on its way, with its answer on its way, or in between; a
source may have to be asked twice for an answer."""
SLOW_S: Final = 0.3
AGE_S: Final = 5.0
CLAUSES: Final[dict[str, Clause]] = {}
UNREADABLE: Final = (ClusterUnreachableError, SettingsError)


@dataclass(frozen=True, slots=True)
class ClusterPlant:
    """A world, how fast its source answers, and adapters for it: `open` makes one as a new process would.

    `cut` ends what an adapter keeps open, and what it would have shown is forgotten. `grow_unnoticed` gives a VM another size
    that is written down only where the source is part of the cluster: `is_current`.
    """

    world: World
    pace: Pace
    open: Callable[[], AbstractAsyncContextManager[Cluster]]
    cut: Callable[[], None]
    grow_unnoticed: Callable[[str], None]
    is_current: bool

    @asynccontextmanager
    async def audited(self) -> AsyncIterator[Audit]:
        """A node, a VM `a` and a pod `p`; time passes; then an adapter that has told them."""
        self.world.put("node", NODE)
        self.world.put("pod", "p")
        self.world.put("vm", "a")
        await asyncio.sleep(AGE_S)
        async with self.unasked() as audit:
            await self.settle(audit)
            yield audit

    @asynccontextmanager
    async def unasked(self) -> AsyncIterator[Audit]:
        """An adapter that has told nothing yet."""
        async with self.open() as cluster:
            yield Audit(cluster, self.world, is_current=self.is_current)

    async def settle(self, audit: Audit) -> None:
        """Let everything arrive: then all is told as it is, and is known to be."""
        self.pace.quick()
        for _ in range(100):
            await asyncio.sleep(0.2)
            try:
                await audit.refresh()
            except UNREADABLE:
                continue
            if audit.begun_s > self.world.last_s:
                break
        assert audit.begun_s > self.world.last_s, "it never says that everything was told"
        audit.compare_all()

    def dawdle(self) -> None:
        """Questions and answers take a while, and what is shown of itself longer."""
        self.pace.ask_s = self.pace.answer_s = (SLOW_S, SLOW_S)
        self.pace.show_s = (3 * SLOW_S, 3 * SLOW_S)


def clause(function: Clause) -> Clause:
    """Make a function part of the suite."""
    CLAUSES[function.__name__] = function
    return function


async def begun(call: Coroutine[Any, Any, Any], cut: int) -> "asyncio.Task[Any]":
    """A call that has come so far."""
    task = asyncio.create_task(call)
    await asyncio.sleep(cut * SLOW_S / 2 + SLOW_S / 4)
    return task


async def unreadable(call: Coroutine[Any, Any, Any]) -> None:
    """A call fails as the port has it."""
    try:
        outcome = await call
    except UNREADABLE:
        return
    raise AssertionError(f"no error, but {outcome}")


def kinds(batch: tuple[events.Input, ...]) -> list[str]:
    return [type(event).__name__ for event in batch]


# ---------------------------------------------------------------- versions


@clause
async def an_older_description_is_never_told_after_a_newer_one(plant: ClusterPlant) -> None:
    async with plant.audited() as audit:
        for cut in range(CUTS):
            plant.dawdle()
            plant.world.put("vm", "a")
            older = await begun(audit.refresh(), cut)
            plant.world.put("vm", "a")
            plant.pace.ask_s = plant.pace.answer_s = (0.0, 0.0)
            await audit.read(
                ["a"]
            )  # overtakes the refresh where the adapter lets it, and what the watch shows
            await older
            for _ in range(6):
                await asyncio.sleep(SLOW_S)
                await audit.refresh()
            await plant.settle(audit)


@clause
async def the_end_of_an_object_is_told_before_another_takes_its_name_and_never_after(
    plant: ClusterPlant,
) -> None:
    async with plant.audited() as audit:
        for cut in range(CUTS):
            plant.dawdle()
            older = await begun(audit.refresh(), cut)
            plant.world.replace("vm", "a")
            plant.world.replace("pod", "p")
            plant.pace.ask_s = plant.pace.answer_s = (0.0, 0.0)
            await audit.read(["a"])  # shows the new one while the deletion of the old one is on its way
            await older
            for _ in range(8):
                await asyncio.sleep(SLOW_S)
                await audit.refresh()
            await plant.settle(audit)


@clause
async def what_went_does_not_come_back(plant: ClusterPlant) -> None:
    async with plant.audited() as audit:
        for cut in range(CUTS):
            name = f"b{cut}"
            plant.dawdle()
            plant.world.put("vm", name)
            reading = await begun(audit.read([name]), cut)
            plant.world.remove("vm", name)
            await reading
            plant.pace.ask_s = plant.pace.answer_s = (0.0, 0.0)
            await audit.read([name])
            for _ in range(8):
                await asyncio.sleep(SLOW_S)
                await audit.refresh()
            await plant.settle(audit)


@clause
async def what_was_told_is_not_told_again_where_nothing_has_changed(plant: ClusterPlant) -> None:
    async with plant.audited() as audit:
        plant.pace.repeats, begun_s = 0.5, audit.begun_s
        for _ in range(3):
            await asyncio.sleep(1)
            assert kinds(await audit.refresh()) == ["ClusterRead"]
        assert audit.begun_s > begun_s, "it never says that nothing has changed"
        plant.world.touch("vm", "a")
        plant.cut()
        for _ in range(5):
            await asyncio.sleep(1)
            with suppress(*UNREADABLE):
                assert kinds(await audit.refresh()) == ["ClusterRead"]
        await plant.settle(audit)


@clause
async def what_changed_while_nothing_was_shown_is_told(plant: ClusterPlant) -> None:
    async with plant.audited() as audit:
        plant.world.put("vm", "b")
        plant.world.put("vm", "c")
        await plant.settle(audit)
        plant.world.remove("vm", "b")
        plant.world.replace("vm", "c")
        plant.world.put("pod", "p", has_ended=True)
        plant.world.put("vm", "a", has_ended=True)
        plant.world.put("node", "n2")
        plant.cut()
        await plant.settle(audit)
        plant.world.remove("node", "n2")
        plant.cut()
        await plant.settle(audit)


# ---------------------------------------------------------------- moments


@clause
async def begun_s_lies_before_whatever_is_missing(plant: ClusterPlant) -> None:
    async with plant.audited() as audit:
        for cut in range(CUTS):
            plant.dawdle()
            reading = await begun(audit.read(["a"]), cut)
            plant.world.put("vm", "a")  # in time for the answer, or not
            await reading
            plant.world.put("vm", "a")
            for _ in range(6):
                await asyncio.sleep(SLOW_S)
                plant.world.put("vm", "a")  # what is shown of it is old when it comes
                await audit.refresh()
            await plant.settle(audit)


@clause
async def a_read_of_one_object_says_nothing_of_another(plant: ClusterPlant) -> None:
    async with plant.audited() as audit:
        plant.world.put("vm", "b")
        await plant.settle(audit)
        for _ in range(3):
            plant.pace.show_s = (3 * SLOW_S, 3 * SLOW_S)
            plant.world.put("vm", "a")
            await asyncio.sleep(SLOW_S)
            plant.world.put("vm", "a")
            await asyncio.sleep(SLOW_S / 10)
            await audit.read(
                ["b"]
            )  # it has not changed for long: its version is older than those of the other
            for _ in range(8):
                await asyncio.sleep(SLOW_S / 2)
                await audit.refresh()
            await plant.settle(audit)


@clause
async def begun_s_of_sizes_lies_before_the_start_where_nobody_has_written_since(plant: ClusterPlant) -> None:
    plant.world.put("node", NODE)
    plant.world.put("vm", "a")
    await asyncio.sleep(AGE_S)
    plant.grow_unnoticed("a")
    await asyncio.sleep(AGE_S)
    async with plant.unasked() as audit:
        for _ in range(3):
            await audit.refresh()
            await audit.read(["a"])
            await asyncio.sleep(1)
        plant.world.put("vm", "a")
        await plant.settle(audit)
        await asyncio.sleep(1)
        await audit.read(["a"])


@clause
async def begun_s_never_goes_back(plant: ClusterPlant) -> None:
    async with plant.audited() as audit:
        for cut in range(CUTS):
            plant.dawdle()
            older = await begun(audit.read(["a"]), cut)
            plant.pace.ask_s = plant.pace.answer_s = (0.0, 0.0)
            await audit.read(["a"])
            await older
            await audit.read(["a"])
            plant.world.put("vm", "a")
            await plant.settle(audit)


@clause
async def cluster_read_comes_last_when_everything_before_it_was_told(plant: ClusterPlant) -> None:
    async with plant.audited() as audit:
        for cut in range(CUTS):
            plant.dawdle()
            older = await begun(audit.refresh(), cut)
            for kind in ("vm", "pod"):
                plant.world.put(kind, f"{kind}{cut}")
            await older
            for _ in range(6):
                await asyncio.sleep(SLOW_S)
                await audit.refresh()
                await audit.read(["a", f"vm{cut}"])
            await plant.settle(audit)


@clause
async def a_read_begins_after_the_call(plant: ClusterPlant) -> None:
    async with plant.audited() as audit:
        plant.world.touch("vm", "a")  # from now on a file is known to be kept
        await plant.settle(audit)
        for cut in range(CUTS):
            plant.dawdle()
            older = await begun(audit.refresh(), cut)
            plant.world.put("vm", "a")
            await asyncio.sleep(0.01)
            await audit.read(["a", "absent"])
            await older
            await audit.read(["a"])
            await plant.settle(audit)


@clause
async def is_new_is_what_a_list_after_the_beginning_did_not_hold(plant: ClusterPlant) -> None:
    plant.world.put("node", NODE)
    was_there = {plant.world.put("vm", "a").uid}
    await asyncio.sleep(AGE_S)
    plant.dawdle()
    async with plant.unasked() as audit:
        older = await begun(audit.refresh(), 1)
        was_there.add(plant.world.put("vm", "b").uid)  # before the list was made, or while it was on its way
        await older
        await plant.settle(audit)
        news = {plant.world.put("vm", "c").uid, plant.world.replace("vm", "a").uid}
        await plant.settle(audit)
        plant.cut()
        news.add(plant.world.put("vm", "d").uid)
        await plant.settle(audit)
        read = plant.world.put("vm", "e").uid
        await audit.read(["e"])
        await plant.settle(audit)
        assert audit.news - was_there == news | {read}, "what came later is new"


# ---------------------------------------------------------------- errors


@clause
async def errors_leave_what_was_told_in_force_and_lose_nothing(plant: ClusterPlant) -> None:
    async with plant.audited() as audit:
        plant.world.put("vm", "b")
        plant.world.remove("pod", "p")
        await asyncio.sleep(SLOW_S)
        plant.pace.fails = True
        for _ in range(3):
            await asyncio.sleep(SLOW_S)
            await unreadable(audit.refresh())
            await unreadable(audit.read(["a"]))
            audit.look()
        await plant.settle(audit)


@clause
async def a_source_that_hangs_is_unreachable_in_time(plant: ClusterPlant) -> None:
    async with plant.audited() as audit:
        plant.world.put("vm", "a")
        for make in (audit.refresh, lambda: audit.read(["a"])):
            plant.pace.ask_s = (2.5 * LOOK_DEADLINE_S, 2.5 * LOOK_DEADLINE_S)
            called_s = now_s()
            await unreadable(make())
            assert now_s() <= called_s + LOOK_DEADLINE_S + 0.01, "it waits for too long"
            audit.look()
            await plant.settle(audit)
        plant.pace.ask_s = (2.5 * LOOK_DEADLINE_S, 2.5 * LOOK_DEADLINE_S)
        called_s = now_s()
        await asyncio.gather(unreadable(audit.refresh()), unreadable(audit.read(["a"])))
        assert now_s() <= called_s + 2 * LOOK_DEADLINE_S + 0.01, "it waits for too long behind another"
        await plant.settle(audit)


@clause
async def whoever_gives_up_waiting_costs_no_change(plant: ClusterPlant) -> None:
    async with plant.audited() as audit:
        for cut in range(CUTS):
            plant.dawdle()
            plant.world.put("vm", "a")
            plant.world.put("pod", f"p{cut}")
            for make in (audit.refresh, lambda: audit.read(["a"])):
                call = await begun(make(), cut)
                call.cancel()
                await asyncio.wait([call])
                audit.look()
            await plant.settle(audit)


@clause
async def look_shows_what_was_told_last(plant: ClusterPlant) -> None:
    async with plant.audited() as audit:
        for change in (
            lambda: plant.world.put("vm", "a"),
            lambda: plant.world.touch("vm", "a"),
            lambda: plant.world.put("vm", "b"),
            lambda: plant.world.put("vm", "b", has_ended=True),
            lambda: plant.world.replace("vm", "a"),
            lambda: plant.world.remove("vm", "a"),
        ):
            change()
            for _ in range(3):
                await asyncio.sleep(SLOW_S)
                audit.look()
            await audit.refresh()
            await audit.read(["b"])
            await plant.settle(audit)


# ---------------------------------------------------------------- whatever happens


@clause
async def any_schedule_keeps_all_of_them(plant: ClusterPlant) -> None:
    rng = plant.pace.rng
    async with plant.audited() as audit:
        calls: set[asyncio.Task[Any]] = set()
        for _ in range(60):
            _happen(plant, rng)
            if len(calls) < 4:
                make = audit.refresh if rng.random() < 0.5 else lambda: audit.read(rng.sample("abc", 2))
                calls.add(asyncio.create_task(make()))
            await asyncio.sleep(rng.uniform(0, SLOW_S))
            if calls and rng.random() < 0.05:
                rng.choice(sorted(calls, key=id)).cancel()
            calls = _under_way(calls)
        plant.pace.quick()
        await asyncio.gather(*calls, return_exceptions=True)
        _under_way(calls)
        await plant.settle(audit)


def _happen(plant: ClusterPlant, rng: random.Random) -> None:
    """Something, or nothing."""
    world, pace = plant.world, plant.pace
    kind: Kind = rng.choice(("vm", "vm", "pod"))
    there = sorted(name for of, name in world.now if of == kind)
    match rng.randrange(12):
        case 0 | 1 | 2:
            world.put(kind, rng.choice("abc" if kind == "vm" else "pqr"))
        case 3 if there:
            world.remove(kind, rng.choice(there))
        case 4 if there:
            world.replace(kind, rng.choice(there))
        case 5 if there:
            world.touch(kind, rng.choice(there))
        case 6 if rng.random() < 0.3:
            plant.cut()
        case 7:
            pace.ask_s, pace.answer_s, pace.show_s = ((0.0, rng.uniform(0, 2 * SLOW_S)) for _ in range(3))
            pace.repeats = rng.choice((0.0, 0.3))
        case 8 if rng.random() < 0.3:
            pace.fails = not pace.fails
        case 9:
            pace.fails = False
        case _:
            pass


def _under_way(calls: "set[asyncio.Task[Any]]") -> "set[asyncio.Task[Any]]":
    """Those that have not ended; raises what they ended with, unless the port has that."""
    for call in calls:
        if call.done() and not call.cancelled():
            error = call.exception()
            if error is not None and not isinstance(error, UNREADABLE):
                raise error
    return {call for call in calls if not call.done()}
