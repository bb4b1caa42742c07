"""The scheduler's log lines of decisions: whatever is decided, they have the same keys."""

import asyncio

from protocol.explaining import DecisionOutcome
from scheduler.permits.core.events import PoolVerdict
from scheduler.permits.service.service import HOLD_S
from tests.support.log_keys import OF_EVERY_LINE, SCHEDULER_KEYS
from tests.support.virtual_time import virtually
from tests.unit.hosting.raw_peers import Lines
from tests.unit.scheduler_permits.service_worlds import ServiceWorld, ask, refusal
from tests.unit.scheduler_permits.test_migrations import FakeMigrator, crowded, ticks


async def _start(_: object) -> None:
    """Start a migration at once."""


async def permits() -> Lines:
    """The lines of a VM that gets all, some and nothing of what it asks for, and of one that is not there."""
    world = ServiceWorld("a", pool=None)
    for number, cpus in enumerate((4, 9, 10), start=1):
        await world.reply(ask("a", cpus, number))
    assert refusal(await world.reply(ask("z", 2))) == (404, "unknown-pod")
    return world.lines


async def waits() -> Lines:
    """The lines of a VM whose pool takes its time."""
    world = ServiceWorld("a")
    asked = await world.begin(ask("a", 4))
    await asyncio.sleep(2 * HOLD_S)
    world.pools.answer_all(PoolVerdict())
    await asked
    return world.lines


async def migrates() -> Lines:
    """The lines of a VM that leaves its node."""
    world = crowded(FakeMigrator(_start), "a")
    await ticks(world, 2)
    return world.lines


async def negotiates() -> Lines:
    """The lines of a full node: one VM gives back room for another."""
    world = ServiceWorld("a", "b", pool=None, room=5)
    await world.reply(ask("a", 4))
    await world.reply(ask("a", 4, 2, claim=4, spare={"cpu": "2", "memory": "2Gi"}))
    await world.reply(ask("b", 3))
    await world.reply(ask("a", 2, 3, claim=4))
    return world.lines


@virtually
async def test_every_outcome_is_a_line_with_the_same_keys() -> None:
    lines = [*await permits(), *await waits(), *await migrates(), *await negotiates()]
    assert {line["event"] for line in lines} == {"decision"}
    assert {line["outcome"] for line in lines} == {each.value for each in DecisionOutcome}
    assert {frozenset(line) for line in lines} == {SCHEDULER_KEYS | OF_EVERY_LINE}


@virtually
async def test_each_outcome_tells_what_it_knows_and_null_for_the_rest() -> None:
    lines = [*await permits(), *await waits(), *await migrates(), *await negotiates()]
    known = {
        line["outcome"]: {key for key in SCHEDULER_KEYS if line[key] is not None} for line in reversed(lines)
    }
    limited = {"vm", "node", "seq", "outcome", "requested", "before", "permit", "reason", "message"}
    assert known["permitted"] == limited - {"reason", "message"}
    assert known["partial"] - {"resource"} == known["denied"] - {"resource"} == limited
    assert known["held"] == limited - {"permit"}
    assert known["refused"] == limited - {"permit", "before"}
    assert known["negotiation"] == limited - {"seq", "requested", "permit"}
    assert known["migration"] == limited - {"seq", "requested", "permit"}
