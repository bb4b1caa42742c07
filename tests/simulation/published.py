"""A peer without the extension, as the published runner behaves. Source: reference/neon.md section 3.3.

It does one thing at a time: sets the target within its last permit, asks, sets what it was told. It has no lease and no
claim; it never asks again after its first request has failed, and a permit below what it uses ends it for good.
"""

import random
from typing import TYPE_CHECKING, Final

from agent.core.events import Resize
from protocol.values import ZERO, Resources
from protocol.versions import PluginProtoVersion
from protocol.wire import AgentRequest, SlotResources
from scheduler.permits.core.events import Decided
from tests.machines.ledger_observer import LawBrokenError
from tests.simulation.network import Call
from tests.simulation.schedulers import Answer
from tests.simulation.vms import SLOT_BYTES, Failure, Vm

if TYPE_CHECKING:
    from tests.simulation.world import World

EVERY_S: Final = 5.0
REQUEST_DEADLINE_S: Final = 5.0
AGAIN_S: Final = 20.0


class PublishedRunner:
    """One runner; where it ends by what is no fault of ours, its daemon begins another one."""

    def __init__(self, world: "World", vm: Vm, dice: random.Random) -> None:
        self._world = world
        self._vm = vm
        self._dice = dice
        self._ident = 0
        self.is_at_rest = False
        self._begin()

    def _begin(self) -> None:
        """A new runner reads the VM once."""
        self._ident = self._world.count()
        self._usage = self._vm.target
        self._approved: Resources | None = None
        self._asked = ZERO
        self._later(self._dice.random())

    def _later(self, span_s: float = EVERY_S) -> None:
        ident = self._ident
        self._world.clock.after(span_s, lambda: self._tick() if ident == self._ident else None)

    def _end(self, why: str) -> None:
        """It is fatal: somebody starts it again after a while."""
        self._world.trace.add(self._world.clock.now_s, self._vm.name, "published runner ends:", why)
        self._vm.observer.held(self._vm.account, self._ident, ZERO)
        self._ident = 0
        self._world.clock.after(AGAIN_S, self._begin)

    def _hold(self, approved: Resources) -> None:
        self._approved = approved
        self._vm.observer.held(self._vm.account, self._ident, approved)

    def _tick(self) -> None:
        """The runner moves towards what it wants: down at once, within its last permit; then it asks."""
        wanted = self._world.goal(self._vm)
        if self._approved is None:
            self._ask(self._usage)
            return
        within = wanted.min(self._approved)
        self.is_at_rest = within == self._usage == wanted
        if within != self._usage:
            self._resize(within, then_s=0.01)
        else:
            self._ask(wanted)

    def _resize(self, target: Resources, then_s: float) -> None:
        ident, clock = self._ident, self._world.clock
        wanted = Resize(target, self._vm.target, clock.now_s + 1.0)

        def done(answer: Failure | None) -> None:
            if ident != self._ident:
                return
            if answer is not None:
                self._end(answer.error)
                return
            self._usage = target
            self._later(then_s)

        self._vm.resize(wanted, self._vm.generation, done)

    def _ask(self, wanted: Resources) -> None:
        ident, world, vm = self._ident, self._world, self._vm
        self._asked = wanted
        if self._approved is not None:
            self._hold(self._approved.min(wanted))
        slots = SlotResources(wanted.vcpu_milli // 1000, wanted.memory_bytes // SLOT_BYTES)
        request = AgentRequest(PluginProtoVersion.V1_1, vm.pod, slots, None)
        call = Call[Answer | None](lambda answer: self._answered(answer) if ident == self._ident else None)
        world.clock.after(REQUEST_DEADLINE_S, lambda: call.answer(None))

        def arrive() -> None:
            world.trace.add(world.clock.now_s, vm.name, "asks without the extension", wanted)
            world.scheduler.receive(vm, request, lambda answer: world.network.reply(vm.name, call, answer))

        world.network.request(vm.name, arrive)

    def _answered(self, answer: Answer | None) -> None:
        if isinstance(answer, Decided):
            if self._usage.exceeds(answer.permit):
                raise LawBrokenError(
                    f"{self._vm.name}: is permitted {answer.permit} where it uses {self._usage}, which is fatal to it"
                )
            self._hold(answer.permit)
            if answer.permit != self._usage:
                self._resize(answer.permit, then_s=EVERY_S)
            else:
                self._later()
        elif self._approved is None:
            self._end("its first request has failed")
        else:
            self._hold(self._usage)
            self._later()
