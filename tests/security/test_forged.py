"""Forged words at the scheduler's core and at an agent: UIDs of agents and pods, instances, tokens, numbers, epochs.

Nothing changes in the ledger; each is refused with a code, by which the answer is counted, and a text.
"""

from collections.abc import Callable
from typing import Any, Final
from uuid import UUID

import pytest
from msgspec import structs
from msgspec.structs import replace

from agent.core import events as agent_events
from protocol.values import Resources
from protocol.wire import AgentRequest, PodName
from scheduler.permits.core import events, journal, snapshots
from tests.support.amounts import cu
from tests.unit.agent.driver import Driver, grant, steady
from tests.unit.scheduler_core.core_worlds import AGENT, ELSEWHERE, NEXT_AGENT, World, pod

NAMES: Final = ("vm", "other")


def settled() -> World:
    """Two VMs, whose agents hold two units for each; each may have more."""
    world = World(cu(10))
    for name in NAMES:
        world.vm(name, cu(2))
        assert world.permit(world.request(name, cu(2), agent=AGENT)) == cu(2)
    return world


def kept(world: World) -> str:
    """The whole state of the core, as its journal writes it."""
    return journal.snapshot_line(snapshots.snapshot_of(world.core))


def changed(world: World, name: str = "vm", want: Resources | None = None, **changes: Any) -> AgentRequest:
    request = world.request(name, want or cu(6))
    assert request.extension is not None
    return structs.replace(request, extension=structs.replace(request.extension, **changes))


def renamed(request: AgentRequest, name: PodName) -> AgentRequest:
    return structs.replace(request, pod=name)


FORGED: Final[dict[str, Callable[[World], AgentRequest]]] = {
    "the UID of a pod that is none": lambda world: changed(world, pod_uid="uid-of-nobody"),
    "the UID of another VM's pod": lambda world: changed(world, pod_uid="uid-other"),
    "the name of another VM with the UID of ours": lambda world: renamed(changed(world), pod("other")),
    "the name of a pod that is none": lambda world: renamed(changed(world), pod("nobody")),
    "the name of a pod in another namespace": lambda world: renamed(changed(world), PodName("vm", "else")),
    "an agent that began before the one in use": lambda world: changed(
        world, agent_id=NEXT_AGENT, agent_started_at_ms=1
    ),
    "another agent that began at the same moment": lambda world: changed(world, agent_id=UUID(int=9)),
    "a number that was used": lambda world: changed(world, sequence_number=1, want=cu(8)),
}


@pytest.mark.parametrize("forge", FORGED.values(), ids=FORGED)
def test_a_forged_request_changes_nothing_in_the_ledger(forge: Callable[[World], AgentRequest]) -> None:
    world = settled()
    request, before = forge(world), kept(world)
    answer = world.send(request, at=0.0)
    if isinstance(answer, events.LookNeeded):  # a pod that is not known: the cluster shows none either
        answer = world.send(request, at=0.0, look=events.Look(found=False), since=0.0)
    assert isinstance(answer, events.Refused), answer
    assert answer.status in {404, 409}
    assert answer.message
    assert kept(world) == before


@pytest.mark.parametrize("token", ["", "1", "2", "0", "x" * 64, "\u0661"])
def test_a_forged_token_gives_no_room_of_others(token: str) -> None:
    """A token vouches for the VM's own account only: the sum of the node stays within its room."""
    world = settled()
    for number, name in enumerate(NAMES * 3):
        request = world.request(
            name, cu(8), agent=NEXT_AGENT, started=2000 + number, names=ELSEWHERE, token=token or None
        )
        world.send(request, at=float(number))
        assert world.core.audit() == []


# ------------------------------------------------------------ at an agent


def _asking() -> Driver:
    """An agent that has met epoch 7, and asks for more than it holds."""
    driver = steady(scheduler=lambda request: grant(request, sent_s=1000.0, epoch=7))
    driver.by_hand = {agent_events.RequestPermit}
    driver.busy_cpus = 2.9
    driver.wait(5)
    assert driver.is_flying(agent_events.RequestPermit)
    return driver


@pytest.mark.parametrize(
    "changes",
    [{"epoch": 6}, {"echoed_number": 1}, {"permit": cu(60)}],
    ids=["an epoch that has passed", "another number", "more than was asked for"],
)
def test_a_forged_reply_gives_an_agent_nothing(changes: dict[str, Any]) -> None:
    driver = _asking()
    held = driver.held()
    driver.answer(lambda request: replace(grant(request, sent_s=driver.now_s, epoch=7), **changes))
    assert driver.held() == held
    assert driver.resizes() == []
