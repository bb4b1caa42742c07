"""Scheduler processes, one after the other: the real core, its clock, its pool, and what it answers to whom."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeAlias, assert_never
from uuid import UUID

from agent.core.events import EpochNoticed, RoomNoticed, YieldNoticed
from protocol.values import ZERO, Resources
from protocol.wire import AgentRequest, PodName
from scheduler.permits.core import events
from scheduler.permits.core.core import Core
from scheduler.permits.core.model import Holder
from scheduler.permits.core.state import SchedulerConfig
from tests.simulation.cluster import Node, Pod, Watch
from tests.simulation.vms import COMMAND_DEADLINE_S, Vm

if TYPE_CHECKING:
    from tests.simulation.world import World

TICK_S: Final = 1.0
HANDOVER_S: Final = 60.0
POOL: Final = "pool"
AUDIT_EVERY: Final = 64
PLACEMENT_S: Final = 20.0
LOOK_S: Final = 0.05

EPOCH_MS: Final = 1_700_000_000_000
"""Unix time at the moment 0 of the clock."""

Answer: TypeAlias = events.Decided | events.Refused | events.HungUp
Reply: TypeAlias = Callable[[Answer | None], object]


@dataclass(slots=True, eq=False)
class _Waiting:
    """A request that is not answered yet."""

    vm: Vm
    request: AgentRequest
    since_s: float
    reply: Reply
    looks: int = 0

    def event(self, ticket: int, now_s: float, look: events.Look | None = None) -> events.Input:
        since_s = None if look is None else self.since_s
        return events.RequestArrived(ticket, self.request, now_s, look, since_s)


class Process:
    """One process, from its start to its death."""

    def __init__(self, world: "World", *, is_first: bool) -> None:
        self.world = world
        self.instance = UUID(int=world.count())
        terms = SchedulerConfig(
            self.instance,
            started_s=world.clock.now_s,
            unix_offset_s=EPOCH_MS / 1000,
            is_first_start=is_first,
            handover_s=HANDOVER_S,
            published_agents=world.published_nodes,
            command_deadline_s=COMMAND_DEADLINE_S,
        )
        self.core = Core(terms)
        self.watch = Watch(world, self)
        self.is_serving = False
        self.is_dead = False
        self.stopped_until_s = 0.0
        self._inbox: list[Callable[[], object]] = []
        self._waiting: dict[int, _Waiting] = {}
        self._placing: dict[int, Pod] = {}
        self._tickets = 0
        self._applied = 0

    def begin(self) -> None:
        """List everything, then serve."""
        self.apply(events.PoolSeen(self.world.pool.spec))
        self.watch.list_all()
        self.is_serving = True
        self.world.coverage.check_all()
        for vm in self.world.vms:
            self.world.notice(vm.pod, EpochNoticed(self.world.network.notices.random()))
        self._tick()
        self.watch.read_now_and_then()

    # ------------------------------------------------------------ the process

    def when_it_runs(self, act: Callable[[], object]) -> None:
        """Do something now, or when the process goes on; never where it has died."""
        if self.is_dead:
            return
        if self.world.clock.now_s < self.stopped_until_s:
            self._inbox.append(act)
        else:
            act()

    def stop(self, span_s: float) -> None:
        """The process is stopped for a while. When it goes on, it may look at its clock before anything else."""
        clock = self.world.clock
        self.world.trace.add(clock.now_s, "scheduler", "is stopped")
        self.stopped_until_s = clock.now_s + span_s
        clock.at(self.stopped_until_s, self._continue)

    def _continue(self) -> None:
        if self.is_dead:
            return
        self.world.trace.add(self.world.clock.now_s, "scheduler", "goes on")
        if self.world.cluster_dice.random() < 0.5:
            self.apply(events.ClockTicked(self.world.clock.now_s))
        inbox, self._inbox = self._inbox, []
        for act in inbox:
            act()

    def _tick(self) -> None:
        if self.is_dead:
            return
        clock = self.world.clock
        if clock.now_s >= self.stopped_until_s:
            self.apply(events.ClockTicked(clock.now_s))
            self.world.coverage.check_waits(self)
        clock.after(TICK_S, self._tick)

    # ------------------------------------------------------------ the core

    def apply(self, event: events.Input) -> None:
        """Give the core an input, check everything, and do what comes of it."""
        outputs = self.core.apply(event)
        self._applied += 1
        if not self._applied % AUDIT_EVERY:
            self.world.coverage.check_audit(self.core)
        if self.is_serving:
            self.world.coverage.applied(self, outputs)
        self._take(outputs)

    def reserved(self, holder: Holder) -> Resources | None:
        """The amount that the ledger keeps for a holder; None if it has no row."""
        row = self.core.ledger.row(holder)
        return row.reserved if row is not None else None

    def _take(self, outputs: tuple[events.Output, ...]) -> None:  # noqa: C901 - one case for each event of the closed union
        for output in outputs:
            match output:
                case events.Decided() | events.Refused() | events.HungUp():
                    self._answer(output)
                case events.LookNeeded(ticket):
                    self._look(ticket)
                case events.AdmissionCallNeeded(ticket):
                    self._consult(ticket)
                case events.ReadNeeded(pod):
                    self.watch.read_later(pod)
                case events.Placed(ticket):
                    self.world.placements.placed(self._placing.pop(ticket))
                case events.NotPlaced(ticket):
                    self._placing.pop(ticket)
                case events.Joined() | events.AdmissionCallCancelled() | events.MigrationWanted():
                    pass
                case events.RoomOffered(pod, _, _, amount):
                    self._notice(pod, RoomNoticed(amount))
                case events.YieldAsked(pod, _, _, keep, _, beneficiary):
                    self._notice(pod, YieldNoticed(keep, str(beneficiary.pod), beneficiary.priority))
                case events.OfferLapsed():
                    pass
                case events.YieldEnded():
                    self.world.trace.add(
                        self.world.clock.now_s, output.pod.name, "has given", output.amount, output.why
                    )
                case _:
                    assert_never(output)

    def _notice(self, pod: PodName, event: RoomNoticed | YieldNoticed) -> None:
        self.world.trace.add(self.world.clock.now_s, pod.name, "is told:", event)
        self.world.notice(pod, event)

    # ------------------------------------------------------------ requests

    def receive(self, vm: Vm, request: AgentRequest, reply: Reply) -> None:
        self._tickets += 1
        waiting = self._waiting[self._tickets] = _Waiting(vm, request, self.world.clock.now_s, reply)
        self.apply(waiting.event(self._tickets, self.world.clock.now_s))

    def _look(self, ticket: int) -> None:
        """A fresh look at the cluster, and the request again with it."""

        def look() -> None:
            waiting = self._waiting[ticket]
            waiting.looks += 1
            shown = self.watch.look(waiting.vm.pod)
            self.apply(waiting.event(ticket, self.world.clock.now_s, shown))

        span_s = LOOK_S * (1 + 4 * self._waiting[ticket].looks)
        self.world.clock.after(span_s, lambda: self.when_it_runs(look))

    def _answer(self, answer: Answer) -> None:
        waiting = self._waiting.pop(answer.ticket)
        if isinstance(answer, events.Decided):
            why = answer.reasons[0].code.value if answer.reasons else ""
            self.world.trace.add(self.world.clock.now_s, waiting.vm.name, "is permitted", answer.permit, why)
        else:
            why = answer.code.value if isinstance(answer, events.Refused) else answer.why
            self.world.trace.add(self.world.clock.now_s, waiting.vm.name, "is refused:", why)
        waiting.reply(answer)

    def _consult(self, ticket: int) -> None:
        word = self.world.pool.word(self.world.clock.now_s)
        if word is None:
            return
        span_s, said = word
        self.world.clock.after(span_s, lambda: self.when_it_runs(lambda: self._word(ticket, said)))

    def _word(self, ticket: int, word: events.PoolVerdict) -> None:
        record = self.core.state.admission_calls.get(ticket)
        before = record.row.state.current if record is not None else ZERO
        self.apply(events.AdmissionCallEnded(ticket, word, self.world.clock.now_s))
        account = self.core.ledger.pool(POOL)
        if record is not None and account is not None and account.spec is not None:
            is_old = word.generation != account.spec.generation
            if is_old and record.row.state.current.exceeds(before):
                grown = f"has grown from {before} to {record.row.state.current}"
                self.world.coverage.fail(
                    record.spec.pod.name, f"{grown} by a word about another generation of its pool"
                )

    # ------------------------------------------------------------ placement

    def place(self, pod: Pod) -> None:
        self._tickets += 1
        self._placing[self._tickets] = pod
        now_s = self.world.clock.now_s
        spec = pod.spec
        wanted = events.PlacementAssumed(
            self._tickets, spec.holder, spec.pod.name, spec.node, spec.requests, now_s + PLACEMENT_S, now_s
        )
        self.apply(wanted)

    # ------------------------------------------------------------ looking

    def is_idle(self) -> str:
        """Something that is still kept for somebody who waits, in words; empty if all is well."""
        if self.core.state.admission_calls:
            return f"questions to pools are open: {sorted(self.core.state.admission_calls)}"
        if any(until_s is not None for until_s in self.core.state.placements.values()):
            return "a placement is assumed for ever"
        return ""


class Scheduler:
    """Whatever process serves, or none."""

    def __init__(self, world: "World") -> None:
        self._world = world
        self.process: Process | None = None
        self._is_first = True

    def start(self) -> None:
        if self.process is None:
            self._world.trace.add(self._world.clock.now_s, "scheduler", "begins")
            self.process = Process(self._world, is_first=self._is_first)
            self._is_first = False
            self.process.begin()

    def kill(self, down_s: float) -> None:
        """The process is killed, and another one begins after a while."""
        if self.process is None:
            return
        self._world.trace.add(self._world.clock.now_s, "scheduler", "is killed")
        self.process.is_dead = True
        self.process = None
        self._world.coverage.nobody_serves()
        self._world.placements.binder_died()
        self._world.clock.after(down_s, self.start)

    def receive(self, vm: Vm, request: AgentRequest, reply: Reply) -> None:
        """A request has arrived where the scheduler should be; None is answered where there is none."""
        process = self.process
        if process is None:
            reply(None)
        else:
            process.when_it_runs(lambda: process.receive(vm, request, reply))

    def pool_changed(self) -> None:
        process, spec = self.process, self._world.pool.spec
        if process is not None:
            process.when_it_runs(lambda: process.apply(events.PoolSeen(spec)))

    def node_changed(self, node: Node) -> None:
        process = self.process
        if process is not None:
            process.when_it_runs(lambda: self._world.node_is_told(process, node))
