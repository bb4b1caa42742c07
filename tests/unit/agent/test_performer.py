"""The look that asks who may command the VM: the target that stands is repeated, and the answer is its proof or its end."""

import random

import pytest

from agent.core import events
from agent.core.ports import BackendError, FencedOffError, Fencing, NotNowError, ResizeRefusedError
from agent.runner.peers import Peers, Performer
from protocol.values import Observation, Resources
from tests.support.amounts import cu
from tests.support.virtual_time import virtually
from tests.unit.agent.driver import TIMING, VM
from tests.unit.agent.peers import Backend, Exporter, Held, Informant, Scheduler

ON_ITS_WAY = Observation(cu(2), cu(3), 5.0)


class Answering(Backend):
    """A back end whose VM is on its way to another size, and that answers a resize as told."""

    def __init__(self, answer: BackendError | None) -> None:
        super().__init__(Held(), ON_ITS_WAY.size)
        self._answer = answer
        self.asked: list[tuple[Resources, Resources, Fencing]] = []
        """Target, seen target and fence of each resize."""

    async def observe(self, vm: object) -> Observation:
        del vm
        return ON_ITS_WAY

    async def resize(
        self, vm: object, target: Resources, fencing: Fencing, *, seen: Resources, not_after_s: float
    ) -> None:
        del vm, not_after_s
        self.asked.append((target, seen, fencing))
        if self._answer is not None:
            raise self._answer


async def _looked(backend: Backend, *, checks_fence: bool) -> events.Event:
    peers = Peers(backend, Scheduler(), Informant(), Exporter())
    performer = Performer(peers, TIMING, random.Random(1))
    await performer.perform(VM, events.Started(events.Fence()))
    return await performer.perform(VM, events.Started(events.Observe(checks_fence)))


@pytest.mark.parametrize(
    ("answer", "outcome"),
    [
        (None, events.Observed(ON_ITS_WAY, is_fenced=True)),
        (FencedOffError("a later life"), events.FencedOff()),
        (BackendError("no answer"), events.Observed(ON_ITS_WAY, is_fenced=False)),
        (ResizeRefusedError("too large"), events.Observed(ON_ITS_WAY, is_fenced=False)),
        (NotNowError("a container is dead"), events.Observed(ON_ITS_WAY, is_fenced=False)),
    ],
    ids=["taken", "fenced off", "failed", "refused", "postponed"],
)
@virtually
async def test_a_fence_is_in_force_only_where_the_target_that_stands_may_be_repeated(
    answer: BackendError | None, outcome: events.Event
) -> None:
    backend = Answering(answer)
    assert await _looked(backend, checks_fence=True) == outcome
    assert backend.asked == [(ON_ITS_WAY.target, ON_ITS_WAY.target, Fencing(backend.generation))]


@virtually
async def test_a_look_that_does_not_ask_writes_nothing_and_proves_nothing() -> None:
    backend = Answering(None)
    assert await _looked(backend, checks_fence=False) == events.Observed(ON_ITS_WAY, is_fenced=False)
    assert backend.asked == []
