"""The recorder of decisions: which of them are lines of the log."""

import pytest

from protocol.wire import PodName
from scheduler.explain.core.memory import UNKNOWN_BURST
from scheduler.explain.recording import COUNTED_EVERY_S, CountedLine
from scheduler.permits.core import events
from scheduler.permits.service import service
from scheduler.permits.service import waiting as limits
from tests.support.virtual_time import virtually
from tests.unit.hosting.raw_peers import recorded
from tests.unit.scheduler_permits.service_worlds import ServiceWorld, ask, plain, refusal


def test_what_happens_often_is_one_line_a_second_with_its_number() -> None:
    log, lines = recorded()
    line = CountedLine(log, "much")
    for at_s in (0.0, 0.2, 0.9, COUNTED_EVERY_S, 5.0):
        line.count(at_s)
    assert [(each["event"], each["requests"]) for each in lines] == [("much", 1), ("much", 3), ("much", 1)]


@virtually
async def test_a_permit_that_changes_nothing_and_is_all_that_was_asked_leaves_no_trace() -> None:
    world = ServiceWorld("a", pool=None)
    await world.reply(ask("a", 1))
    memory = world.service.recorder.memory
    assert (memory.trail(PodName("a", "d")), memory.number, world.lines) == (None, 0, [])


@virtually
async def test_overload_is_counted_in_the_log_and_told_to_whoever_asks_about_a_vm(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    names = [f"vm-{which}" for which in range(20)]
    world = ServiceWorld(*names)
    for limit in ("MAX_WAITING", "POOL_SHARE", "SURE_SHARE"):
        monkeypatch.setattr(limits, limit, 0)
    monkeypatch.setattr(service, "MAX_PUBLISHED", 0)
    for name in names[1:]:
        assert refusal(await world.reply(ask(name, 4))) == (429, "overloaded")
    await world.post(plain(names[0], 4))
    assert [line["event"] for line in world.lines] == ["requests are turned away, because too many wait"]
    memory = world.service.recorder.memory
    assert [each.vm for each in memory.after(0)] == [f"d/{name}" for name in (*names[1:], names[0])]
    assert world.answers["hang-up", "overloaded"] == 1


@virtually
async def test_invented_names_do_not_flood_the_log() -> None:
    world = ServiceWorld()
    for which in range(UNKNOWN_BURST + 50):
        await world.reply(ask(f"ghost-{which}", 2))
    told = [line["event"] for line in world.lines]
    assert told.count("decision") == UNKNOWN_BURST
    assert told[UNKNOWN_BURST:] == ["decisions about pods that are not there are left out"]


@virtually
async def test_a_migration_of_a_new_vm_is_told_though_that_of_the_vm_before_it_failed() -> None:
    world = ServiceWorld("a", pool=None)
    recorder, pod = world.service.recorder, PodName("a", "d")
    wanted = events.MigrationWanted(pod, "uid-a", "n1")
    for uid in ("uid-a", "uid-a", "uid-new"):
        recorder.migration_wanted(events.MigrationWanted(pod, uid, "n1"))
        recorder.migration_failed(wanted, "no quota", 60.0)
    reasons = [line["reason"] for line in world.lines]
    assert reasons == ["migration-wanted", "migration-failed"] * 2
