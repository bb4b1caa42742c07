"""A scheduler that does not lead, or leads no more, decides nothing; it says who leads where the caller can hear that."""

import json

import pytest

from hosting.server import HangUp, Reply, Request
from scheduler.permits.core.events import PoolVerdict
from scheduler.permits.core.model import Holder, Kind
from scheduler.permits.service.inputs import CorePlacements
from scheduler.ports import NotLeadingError
from tests.support.amounts import cu
from tests.support.virtual_time import turns, virtually
from tests.unit.scheduler_permits.service_worlds import LEADER, Guard, ServiceWorld, ask, plain


def _is_refused(answer: object) -> bool:
    assert isinstance(answer, Reply)
    content = json.loads(answer.body)
    return (answer.status, content["code"], content["leader"]) == (503, "not-leader", LEADER)


@virtually
async def test_who_does_not_lead_names_the_leader_to_those_who_can_hear_it() -> None:
    guard = Guard()
    world = ServiceWorld("a", pool=None, guard=guard)
    guard.leads = False

    assert _is_refused(await world.post(ask("a", 2)))
    assert isinstance(await world.post(plain("a", 2)), HangUp), (
        "any answer would be the end of a published agent"
    )
    batch = await world.batches.serve(Request("POST", "/batch", b"[" + ask("a", 2) + b"]"))
    assert isinstance(batch, Reply)
    assert [(each["status"], each["body"]["leader"]) for each in json.loads(batch.body)] == [(503, LEADER)]
    assert world.record().row.state.current == cu(1)
    assert world.answers["error", "not-leader"] == 2


@virtually
async def test_the_guard_hears_of_the_epoch_that_a_caller_has_seen() -> None:
    guard = Guard()
    world = ServiceWorld("a", pool=None, guard=guard)
    body = ask("a", 2, seenEpoch=7)

    await world.post(body)

    assert guard.seen == [7]


@virtually
async def test_a_verdict_that_comes_after_the_leadership_grants_nothing() -> None:
    guard = Guard()
    world = ServiceWorld("a", guard=guard)
    waiting = await world.begin(ask("a", 3))
    guard.leads = False

    world.pools.answer_all(PoolVerdict())
    await turns()

    assert _is_refused(await waiting)
    assert world.record().row.state.current == cu(1)


def test_who_does_not_lead_places_nobody_and_forgets_all_the_same() -> None:
    guard = Guard()
    world = ServiceWorld(guard=guard)
    placements = CorePlacements(world.core, world.service.take, lambda: 0.0, lambda *_: None)
    holder = Holder(Kind.POD, "uid-new")
    assert placements.assume(holder, "d/new", "n1", cu(2), until_s=9.0) is None
    guard.leads = False
    with pytest.raises(NotLeadingError):
        placements.assume(holder, "d/new", "n1", cu(3), until_s=9.0)
    assert placements.headroom("n1", Holder(Kind.POD, "uid-other")) == cu(18)
    placements.forget(holder)
    assert world.core.ledger.row(holder) is None
