"""The published scheduler plugin, asked directly: each quirk that a peer can notice."""

import json
from typing import Any

import pytest

from tests.peers.published_scheduler import ClusterVM, PublishedScheduler, SchedulerKnobs, StartUpFailedError
from tests.peers.recording import Exchange, UnansweredError
from tests.peers.resources import Resources
from tests.peers.support import LOADS, Client, agent_request, running

A, B = ("ns", "a"), ("ns", "b")


def vm(use: tuple[int, int] = (1, 1), high: tuple[int, int] = (4, 4), **more: Any) -> ClusterVM:
    return ClusterVM(Resources(1, 1), Resources(*high), Resources(*use), **more)


def knobs(total: tuple[int, int] = (10, 10), **more: Any) -> SchedulerKnobs:
    return SchedulerKnobs(total=Resources(*total), **more)


def permit(exchange: Exchange) -> tuple[int, int]:
    assert exchange.status == 200, exchange.answer
    return Resources.read(json.loads(exchange.answer)["permit"])


def said(exchange: Exchange) -> tuple[int, bytes, str | None]:
    return exchange.status, exchange.answer, exchange.answer_header("Content-Type")


async def test_a_permit_on_the_wire() -> None:
    """Sections 1.2 and 1.3: JSON with its type, the unit named `resourceUnit`, no `migrate`; any path will do."""
    scheduler, client = PublishedScheduler(knobs(), {A: vm()}), Client()
    async with running(scheduler, client):
        answer = await client(scheduler.address, "POST /any/path", agent_request(Resources(1, 1)))
    wanted = b'{"permit":{"vCPUs":1,"mem":1},"resourceUnit":{"vCPUs":1,"mem":1}}'
    assert said(answer) == (200, wanted, "application/json")
    got = scheduler.journal.received("POST /any/path")[0]
    assert got.body == agent_request(Resources(1, 1))
    assert got.status == 200


async def test_the_first_request_after_a_start_lowers_the_maximum() -> None:
    """Sections 2.3 and 2.7: a VM is loaded at its maximum, so its first message is a decrease, never checked for the unit."""
    scheduler, client = PublishedScheduler(knobs(unit=Resources(1, 4)), {A: vm()}), Client()
    async with running(scheduler, client):
        assert scheduler.state.cpu.reserved == 4
        assert permit(await client(scheduler.address, "POST /", agent_request(Resources(1, 1)))) == (1, 1)
        assert scheduler.state.cpu.reserved == 1


async def test_requests_are_multiples_of_the_unit_last_told() -> None:
    """Sections 1.4 and 2.3 (#108): whole, equal multiples; 0/0 passes."""
    scheduler, client = (
        PublishedScheduler(knobs((10, 40), unit=Resources(1, 4)), {A: vm(high=(4, 16))}),
        Client(),
    )
    async with running(scheduler, client):
        for asked, status in (((1, 1), 200), ((1, 1), 400), ((2, 4), 400), ((2, 8), 200), ((0, 0), 200)):
            answer = await client(scheduler.address, "POST /", agent_request(Resources(*asked)))
            assert answer.status == status, (asked, answer.answer)


async def test_a_changed_unit_binds_only_after_it_was_told() -> None:
    """Section 2.3: the *last communicated* unit is the one that a request is held against."""
    scheduler, client = PublishedScheduler(knobs((10, 40)), {A: vm(high=(4, 16))}), Client()
    async with running(scheduler, client):
        await client(scheduler.address, "POST /", agent_request(Resources(1, 1)))
        scheduler.knobs.unit = Resources(1, 4)
        told = await client(scheduler.address, "POST /", agent_request(Resources(1, 1)))
        assert json.loads(told.answer)["resourceUnit"] == {"vCPUs": 1, "mem": 4}
        assert (await client(scheduler.address, "POST /", agent_request(Resources(1, 1)))).status == 400


async def test_a_permit_lies_between_reserved_and_requested_for_each_resource() -> None:
    """Section 2.3: the two resources do not know of each other, so a permit may be out of ratio."""
    vms = {A: vm(high=(1, 1)), B: vm(use=(5, 8), high=(5, 8))}
    scheduler, client = PublishedScheduler(knobs(), vms), Client()
    async with running(scheduler, client):
        await client(scheduler.address, "POST /", agent_request(Resources(1, 1)))
        assert permit(await client(scheduler.address, "POST /", agent_request(Resources(6, 6)))) == (5, 2)
        assert scheduler.state.pods[A].cpu.pressure == 1
        assert scheduler.state.pods[A].mem.pressure == 4
        again = await client(scheduler.address, "POST /", agent_request(Resources(6, 6)))
        assert permit(again) == (5, 2)
        assert permit(await client(scheduler.address, "POST /", agent_request(Resources(2, 2)))) == (2, 2)
        assert (scheduler.state.cpu.pressure, scheduler.state.mem.pressure) == (0, 0)


@pytest.mark.parametrize(
    ("others", "now", "asked", "wanted"), [(7, 1, 5, 3), (10, 2, 3, 2), (8, 4, 2, 2)], ids=str
)
async def test_the_examples_of_the_reference(others: int, now: int, asked: int, wanted: int) -> None:
    """Section 2.3, the examples: node 8 and 1→5 gives 3; node 12 and 2→3 gives 2; node 12 and 4→2 gives 2."""
    scheduler, client = PublishedScheduler(knobs((20, 20)), {A: vm((now, now), (now, now))}), Client()
    async with running(scheduler, client):
        scheduler.state.cpu.total = scheduler.state.mem.total = 10
        scheduler.state.cpu.reserved = scheduler.state.mem.reserved = others + now
        answer = await client(scheduler.address, "POST /", agent_request(Resources(asked, asked)))
        assert permit(answer) == (wanted, wanted)


async def test_a_restart_forgets_what_agents_said() -> None:
    """Sections 1.8 and 2.7: reserved at the maximum again, no unit told, no metrics; the address is the same."""
    scheduler, client = PublishedScheduler(knobs(unit=Resources(1, 4)), {A: vm((1, 4), (2, 8))}), Client()
    async with running(scheduler, client):
        await client(scheduler.address, "POST /", agent_request(Resources(1, 4)))
        assert (await client(scheduler.address, "POST /", agent_request(Resources(1, 1)))).status == 400
        await scheduler.restart()
        assert scheduler.state.pods[A].reserved == (2, 8)
        assert scheduler.state.pods[A].load is None
        assert permit(await client(scheduler.address, "POST /", agent_request(Resources(1, 1)))) == (1, 1)


async def test_the_buffer_of_the_node_wraps_after_a_restart() -> None:
    """Section 2.7 (#424): the node never got the buffer that the first request takes away."""
    scheduler, client = PublishedScheduler(knobs(), {A: vm((1, 1), (4, 4))}), Client()
    async with running(scheduler, client):
        await client(scheduler.address, "POST /", agent_request(Resources(1, 1)))
        assert scheduler.state.cpu.buffer == 65536 - 3


async def test_a_node_whose_maxima_exceed_it_does_not_start() -> None:
    """Section 2.7 (#250): the scheduler crash-loops."""
    scheduler = PublishedScheduler(knobs((6, 6)), {A: vm(), B: vm()})
    with pytest.raises(StartUpFailedError):
        await scheduler.start()


async def test_a_scheduled_and_a_deleted_pod() -> None:
    """Sections 2.5 and 2.6: a new pod has its use reserved; a deleted one is unknown."""
    scheduler, client = PublishedScheduler(knobs((3, 3))), Client()
    async with running(scheduler, client):
        assert scheduler.schedule(A, vm((2, 2)))
        assert not scheduler.schedule(B, vm((2, 2)))
        assert permit(await client(scheduler.address, "POST /", agent_request(Resources(3, 3)))) == (3, 3)
        scheduler.delete(A)
        assert scheduler.state.cpu.reserved == 0
        assert (await client(scheduler.address, "POST /", agent_request(Resources(1, 1)))).status == 404


async def test_migration_fails_and_leaves_the_pod_unchangeable() -> None:
    """Section 2.4: 500 "unimplemented", then every changed request is 400; memory is forgotten (#324)."""
    vms = {A: vm((2, 2), (2, 2), always_migrate=True)}
    scheduler, client = PublishedScheduler(knobs(do_migration=True), vms), Client()
    async with running(scheduler, client):
        statuses = []
        for size in (2, 2, 2, 1):
            answer = await client(scheduler.address, "POST /", agent_request(Resources(size, size)))
            statuses.append(answer.status)
        assert statuses == [200, 500, 200, 400]
        assert (scheduler.state.cpu.accounted, scheduler.state.mem.accounted) == (2, 0)
        scheduler.delete(A)
        assert scheduler.state.mem.accounted == 65536 - 2


async def test_pressure_chooses_the_least_loaded_requester() -> None:
    """Section 2.4: only the requester that was the head of the queue is migrated, and only under pressure."""
    vms = {A: vm((4, 4)), B: vm((4, 4))}
    scheduler, client = PublishedScheduler(knobs((8, 8), do_migration=True), vms), Client()
    async with running(scheduler, client):
        for pod, load, status in ((A, 3.0, 200), (B, 0.1, 200), (A, 3.0, 200), (B, 0.1, 500)):
            body = agent_request(Resources(4, 4), metrics=LOADS | {"loadAvg1M": load}, pod=pod)
            assert (await client(scheduler.address, "POST /", body)).status == status, (pod, load)


async def test_a_pod_with_a_buffer_that_migrates_panics_the_handler() -> None:
    """Sections 1.4 and 2.3: the connection is closed, the process lives on."""
    scheduler, client = PublishedScheduler(knobs(do_migration=True), {A: vm(always_migrate=True)}), Client()
    async with running(scheduler, client):
        scheduler.state.pods[A].load = 0.5
        with pytest.raises(UnansweredError):
            await client(scheduler.address, "POST /", agent_request(Resources(8, 8)))
        assert (await client(scheduler.address, "POST /", agent_request(Resources(1, 1)))).status == 500
