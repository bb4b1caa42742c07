"""Pools as objects: hooks and their order, conflicts, generations, finalizers, what is stored when, and the file."""

import asyncio
import errno
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from scheduler.pools.core.admission_state import Parking, PoolRecord
from scheduler.pools.core.errors import AppError, new_invalid_spec
from scheduler.pools.core.values import ADMITTED, Admission, Context, Pool, PoolLimits
from tests.support.amounts import cu
from tests.support.virtual_time import turns, virtually
from tests.unit.scheduler_pools.pool_worlds import Doorman, MemoryStore, PoolWorld, raises

DISK_FULL = OSError(errno.ENOSPC, "No space left on device")


def pool(name: str = "bank", most: int | None = None, **more: Any) -> Pool:
    """A pool as somebody writes it."""
    return Pool(name, cu(1), PoolLimits(most), **more)


def adds(**changes: Any) -> Callable[[str, Context, Pool], Admission]:
    return lambda *heard: Admission(pool=replace(heard[2], **changes))


async def refused(work: Any) -> AppError:
    with pytest.raises(AppError) as caught:
        await work
    return caught.value


# ------------------------------------------------------------ hooks


@virtually
async def test_every_change_goes_through_its_hook_in_the_order_of_the_chain() -> None:
    one, two = Doorman(label="one"), Doorman(label="two")
    one.writes = adds(labels={"by": "one"})
    world = PoolWorld(one, two)
    created = await world.objects.create(pool())
    assert (created.generation, dict(created.labels), created.uid != "") == (1, {"by": "one"}, True)
    updated = await world.objects.update(replace(created, annotations={"a": "b"}))
    assert (updated.generation, dict(updated.annotations), updated.uid) == (2, {"a": "b"}, created.uid)
    await world.objects.delete("bank")
    assert [hook for hook, _ in one.written] == ["create", "update", "delete"]
    assert [dict(seen.labels) for _, seen in two.written] == [{"by": "one"}] * 3
    assert [event["event"] for event in world.lines] == ["pool created", "pool updated", "pool deleted"]


@virtually
async def test_hooks_see_the_identity_and_the_units_of_now_whatever_the_writer_says() -> None:
    doorman = Doorman()
    world = await PoolWorld(doorman).open()
    world.born("a", units=4)
    known = await world.objects.get("bank")
    await world.objects.update(replace(known, uid="other", replicas=99, is_deleting=True, labels={"a": "b"}))
    _, seen = doorman.written[-1]
    assert (seen.uid, seen.replicas, seen.is_deleting, seen.generation) == (known.uid, 4, False, 1)


@pytest.mark.parametrize("hook", ["create", "update", "delete"])
@virtually
async def test_a_refusal_of_a_hook_changes_nothing(hook: str) -> None:
    store, doorman = MemoryStore(), Doorman()
    world = PoolWorld(doorman, store=store)
    if hook != "create":
        await world.open()
    saved, before = len(store.saved), world.objects.find("bank")
    doorman.writes = lambda *_: Admission(pool=replace(_[2], labels={"a": "b"}), error=new_invalid_spec("no"))
    work = {
        "create": world.objects.create(pool()) if hook == "create" else None,
        "update": world.objects.update(pool(most=3)) if hook == "update" else None,
        "delete": world.objects.delete("bank") if hook == "delete" else None,
    }[hook]
    error = await refused(work)
    assert (error.code, error.message) == (422, "no")
    assert (len(store.saved), world.objects.find("bank")) == (saved, before)
    account = world.core.ledger.pool("bank")
    assert (account is not None and account.spec is not None) is (hook != "create")


@virtually
async def test_a_hook_may_read_and_write_other_pools() -> None:
    doorman = Doorman()
    world = await PoolWorld(doorman).open("bank", "other")

    async def nosy(hook: str, ctx: Context, seen: Pool) -> Admission:
        if seen.name != "bank":
            return ADMITTED
        other = await world.objects.get("other")
        await world.objects.update(replace(other, annotations={"seen": str(len(await world.objects.list()))}))
        return ADMITTED

    doorman.writes = nosy
    await world.change(labels={"a": "b"})
    found = await world.objects.get("other")
    assert (dict(found.annotations), found.generation) == ({"seen": "2"}, 2)


@virtually
async def test_a_hook_that_writes_its_own_pool_has_the_first_say() -> None:
    doorman = Doorman()
    world = await PoolWorld(doorman).open()
    own = await world.objects.get("bank")

    async def selfish(hook: str, ctx: Context, seen: Pool) -> Admission:
        doorman.writes = lambda *_: ADMITTED
        await world.objects.update(replace(own, annotations={"own": "word"}))
        return ADMITTED

    doorman.writes = selfish
    assert (await refused(world.objects.update(replace(own, labels={"a": "b"})))).code == 409
    doorman.writes = selfish
    own = await world.objects.get("bank")
    await world.objects.update(replace(own, generation=0, labels={"a": "b"}, annotations={}))
    last = await world.objects.get("bank")
    assert (dict(last.labels), dict(last.annotations)) == ({"a": "b"}, {})


# ------------------------------------------------------------ conflicts and generations


@virtually
async def test_who_has_read_an_older_generation_is_told() -> None:
    world = await PoolWorld().open()
    old = await world.objects.get("bank")
    await world.change(labels={"a": "b"})
    error = await refused(world.objects.update(replace(old, labels={"c": "d"})))
    assert (error.code, "generation 2" in error.message) == (409, True)
    assert (await world.objects.update(replace(old, generation=0, labels={"c": "d"}))).generation == 3


@virtually
async def test_who_overwrites_is_never_told_of_a_conflict_and_the_last_one_wins() -> None:
    """Each is asked about slowly, and others write meanwhile, again and again."""
    doorman = Doorman()
    world = await PoolWorld(doorman).open()

    async def slowly(said: Pool) -> Admission:
        await asyncio.sleep(0.1 if "slow" in said.annotations else 0.01)
        return Admission()

    doorman.writes = lambda _, __, said: slowly(said)
    slow = asyncio.create_task(world.objects.update(pool(annotations={"slow": "1"})), name="slow")
    for number in range(60):
        await world.objects.update(pool(annotations={"number": str(number)}))
        if slow.done():
            break
    written = await slow
    assert number > 30, "it was asked about more than once"
    assert dict(written.annotations) == {"slow": "1"}
    found = world.objects.find("bank")
    assert found is not None
    assert found.generation >= written.generation > number


@virtually
async def test_who_overwrites_a_pool_that_was_made_anew_is_asked_about_that_one() -> None:
    doorman = Doorman()
    world = await PoolWorld(doorman).open()
    old = world.objects.find("bank")

    async def replaced(said: Pool) -> Admission:
        if len(doorman.written) < 3:
            doorman.writes = lambda *_: Admission()
            await world.objects.delete("bank")
            await world.objects.create(pool())
        return Admission()

    doorman.writes = lambda _, __, said: replaced(said)
    written = await world.objects.update(pool(annotations={"a": "b"}))
    assert old is not None
    assert (written.uid != old.uid, dict(written.annotations)) == (True, {"a": "b"})


@virtually
async def test_only_what_changes_raises_the_generation() -> None:
    world = await PoolWorld().open()
    world.born("a", units=3)
    same = await world.objects.get("bank")
    assert (await world.objects.update(same)).generation == 1
    steps: tuple[dict[str, Any], ...] = (
        {"labels": {"a": "b"}},
        {"annotations": {"a": "b"}},
        {"finalizers": ("x",)},
        {"compute_unit": cu(2)},
        {"limits": PoolLimits(9)},
    )
    for number, changes in enumerate(steps):
        assert (await world.change(**changes)).generation == number + 2
    assert world.units() == 2, "counted in the new unit"


@virtually
async def test_two_writers_at_once_and_one_name() -> None:
    doorman = Doorman()

    async def slow(*_: object) -> Admission:
        await asyncio.sleep(0.1)
        return ADMITTED

    doorman.writes = slow
    world = PoolWorld(doorman)
    got = await asyncio.gather(*(world.objects.create(pool()) for _ in range(3)), return_exceptions=True)
    assert [getattr(each, "code", "created") for each in got] == ["created", 409, 409]
    first = await world.objects.get("bank")
    changed = [replace(first, labels={"by": name}) for name in "abc"]
    got = await asyncio.gather(*map(world.objects.update, changed), return_exceptions=True)
    assert [getattr(each, "code", "updated") for each in got] == ["updated", 409, 409]
    forced = [replace(each, generation=0) for each in changed]
    await asyncio.gather(*map(world.objects.update, forced))
    assert (await world.objects.get("bank")).labels in [{"by": name} for name in "abc"]


@virtually
async def test_what_is_not_there() -> None:
    world = PoolWorld()
    for work in (world.objects.get("x"), world.objects.update(pool("x")), world.objects.delete("x")):
        assert (await refused(work)).code == 404
    assert world.objects.pool("x") is None
    assert await world.objects.list() == ()


@virtually
async def test_a_pool_that_goes_while_its_update_is_asked_about_is_not_there() -> None:
    doorman = Doorman()
    world = await PoolWorld(doorman).open()

    async def slow(hook: str, ctx: Context, seen: Pool) -> Admission:
        if hook == "update":
            await asyncio.sleep(0.1)
        return ADMITTED

    doorman.writes = slow
    task = asyncio.ensure_future(world.objects.update(pool(most=3)))
    await turns()
    await world.objects.delete("bank")
    assert (await refused(task)).code == 404
    assert world.objects.names() == ()


# ------------------------------------------------------------ deletion


@virtually
async def test_a_finalizer_holds_the_pool_until_it_is_taken_off() -> None:
    store = MemoryStore()
    world = await PoolWorld(Doorman(), store=store).open()
    world.born("a", units=2)
    await world.change(finalizers=("keep", "too"))
    await world.objects.delete("bank")
    held = await world.objects.get("bank")
    assert (held.is_deleting, held.finalizers, held.generation) == (True, ("keep", "too"), 3)
    assert store.pools["bank"].is_deleting
    await world.objects.update(replace(held, finalizers=("too",)))
    assert world.objects.names() == ("bank",)
    await world.objects.update(replace(held, generation=0, finalizers=()))
    assert (world.objects.names(), store.pools) == ((), {})
    assert world.held("a") == 2, "its VMs keep what they have"
    assert await world.grow("a", 3) == (2, ["pool"])
    assert (await world.objects.create(pool())).uid != held.uid


@virtually
async def test_a_finalizer_that_the_hook_of_the_deletion_adds_holds_it() -> None:
    doorman = Doorman()
    world = await PoolWorld(doorman).open()
    doorman.writes = adds(finalizers=("cleaning-up",), annotations={"asked": "yes"})
    await world.objects.delete("bank")
    held = await world.objects.get("bank")
    assert (held.is_deleting, held.finalizers, dict(held.annotations)) == (
        True,
        ("cleaning-up",),
        {"asked": "yes"},
    )
    doorman.writes = lambda *_: ADMITTED
    await world.objects.update(replace(held, finalizers=()))
    assert world.objects.names() == ()


@virtually
async def test_what_the_hook_of_a_deletion_changes_is_stored_before_the_pool_goes() -> None:
    store, doorman = MemoryStore(), Doorman()
    world = await PoolWorld(doorman, store=store).open()
    doorman.writes = adds(annotations={"exported": "yes"})
    saved = len(store.saved)
    await world.objects.delete("bank")
    steps = [[dict(entry.pool.annotations) for entry in entries] for entries in store.saved[saved:]]
    assert steps == [[{"exported": "yes"}], []]


# ------------------------------------------------------------ storing


@pytest.mark.parametrize("step", ["create", "update", "delete", "mark"])
@virtually
async def test_where_nothing_can_be_stored_nothing_has_happened(step: str) -> None:
    store = MemoryStore()
    world = PoolWorld(store=store)
    if step != "create":
        await world.open()
    if step == "mark":
        await world.change(finalizers=("keep",))
    before, terms = world.objects.find("bank"), world.core.ledger.pool("bank")
    store.fault = DISK_FULL
    if step == "create":
        error = await refused(world.objects.create(pool()))
    elif step == "update":
        error = await refused(world.objects.update(pool(most=4)))
    else:
        error = await refused(world.objects.delete("bank"))
    assert (error.code, error.message) == (500, "pool bank cannot be stored now")
    assert [(line["pool"], line["error"]) for line in world.lines if line["event"] == "pool not stored"] == [
        ("bank", DISK_FULL.strerror)
    ]
    assert world.objects.find("bank") == before
    assert world.core.ledger.pool("bank") == terms
    store.fault = None
    if step == "create":
        await world.objects.create(pool())
    else:
        await world.objects.update(pool(most=4))
    assert store.pools["bank"] == world.objects.find("bank")


@pytest.mark.parametrize("step", ["create", "update", "delete"])
@virtually
async def test_a_writer_that_goes_away_while_it_is_stored_leaves_one_truth(step: str) -> None:
    """The peer hangs up in the middle: what is kept, what is shown and what counts stay the same."""
    store = MemoryStore()
    world = PoolWorld(store=store)
    if step != "create":
        await world.open()
    store.gate = asyncio.Event()
    work = getattr(world.objects, step)("bank" if step == "delete" else pool(most=4))
    task = asyncio.ensure_future(work)
    await turns()
    task.cancel()
    await turns()
    other = asyncio.ensure_future(world.objects.create(pool("other")))
    await turns()
    store.gate.set()
    await other
    await asyncio.wait([task])
    await turns()
    assert store.most_saving == 1, "two writes at once would spoil the file"
    shown = {each.name: each for each in await world.objects.list()}
    assert store.pools == shown
    terms = world.core.ledger.pool("bank")
    assert (terms is not None) is ("bank" in shown)
    if terms is not None and terms.spec is not None:
        assert terms.spec.max_units == shown["bank"].limits.max_units


@virtually
async def test_parking_is_stored_again_where_that_failed_and_goes_with_the_generation() -> None:
    store, doorman = MemoryStore(), Doorman()
    doorman.says = raises(new_invalid_spec("no such team"))
    world = await PoolWorld(doorman, store=store).open()
    world.born("a")
    await world.grow("a", 3)
    saved = len(store.saved)
    store.fault = DISK_FULL
    await world.objects.flush()
    assert [line["error"] for line in world.lines if line["event"] == "pools not stored"] == [
        DISK_FULL.strerror
    ]
    store.fault = None
    await world.objects.flush()
    await world.objects.flush()
    assert len(store.saved) == saved + 1
    (entry,) = store.saved[-1]
    assert entry.parked == Parking(1, "no such team", "doorman")
    await world.change(labels={"team": "b"})
    (entry,) = store.saved[-1]
    assert (entry.pool.generation, entry.parked) == (2, None), "nor is it parked after a restart"


@virtually
async def test_a_restart_keeps_spec_generation_and_parking() -> None:
    store, doorman = MemoryStore(), Doorman()
    doorman.says = raises(new_invalid_spec("no such team"))
    world = await PoolWorld(doorman, store=store).open("bank", "other")
    world.born("a")
    await world.change("other", labels={"a": "b"})
    await world.grow("a", 3)
    await world.objects.flush()
    for keep_parking in (True, False):
        again = PoolWorld(Doorman(), store=MemoryStore())
        again.objects.restore(store.saved[-1], keep_parking=keep_parking)
        again.born("a")
        assert {each.name: each.generation for each in again.objects.pools()} == {"bank": 1, "other": 2}
        assert again.objects.find("other") == world.objects.find("other")
        expected = (1, ["pool-parked"]) if keep_parking else (3, [])
        assert await again.grow("a", 3) == expected


@virtually
async def test_parking_that_a_restart_drops_is_dropped_from_what_is_stored() -> None:
    """Started with another chain, and then with the first one again: what was cleared stays cleared."""
    store = MemoryStore()
    world = PoolWorld(Doorman(), store=store)
    entry = PoolRecord(pool(generation=1, uid="u"), True, Parking(1, "old"), {"uid-a": Parking(1, "old")})
    world.objects.restore((entry,), keep_parking=False)
    await world.objects.flush()
    assert [(each.parked, dict(each.parked_vms)) for each in store.saved[-1:][0]] == [(None, {})]
