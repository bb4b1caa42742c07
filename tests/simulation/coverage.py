"""Laws that hold at every step beside the observer's sums, which alone let many faults through.

Every row of the ledger covers what its VM may use: the larger of what any living, leased agent holds, the size, the
target, and the commands on their way. Every grant fits what the others' rows keep of the node, added up anew from these rows.
"""

import enum
import itertools
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, NoReturn

from agent.core.model import Sample, YieldMode
from protocol.values import ZERO, Resources, amount_of
from scheduler.permits.core import events
from scheduler.permits.core.core import Core
from scheduler.permits.core.ledger import Row
from scheduler.permits.core.state import VmRecord
from tests.machines.ledger_observer import LawBrokenError, Observer, VmAccount
from tests.simulation.vms import UNIT, Vm

if TYPE_CHECKING:
    from tests.simulation.schedulers import Process
    from tests.simulation.world import World


LONG_S: Final = 10.0
HEARD_S: Final = 35.0


class Negotiated(enum.StrEnum):
    """Parts of negotiations that the default worlds must reach."""

    OFFERED = "room is offered to a VM that waits"
    GIVEN = "a VM gives back all that it was asked for"
    REFUSED = "a VM does not give back all that it was asked for"


def _takes_part(record: VmRecord, now_s: float) -> bool:
    """Whether a VM can wait, or be asked: its agent was heard lately, and nothing is unclear."""
    is_heard = record.heard_s is not None and now_s - record.heard_s < HEARD_S
    is_clear = record.settled and record.admission is None and not record.owned_by_published
    return is_heard and is_clear and not record.row.state.migrating


class CoveredObserver(Observer):
    """The observer, which says whenever more of a VM may be in use than before."""

    def __init__(self) -> None:
        super().__init__()
        self.coverage: Coverage | None = None

    def _fold(self, vm: VmAccount, what: str, amount: object) -> None:
        cpu, memory = vm.cpu_milli, vm.memory_bytes
        super()._fold(vm, what, amount)
        if self.coverage is not None and (vm.cpu_milli > cpu or vm.memory_bytes > memory):
            self.coverage.check_account(vm)


class Coverage:
    """The checks of one world. A VM counts once the process that serves was told of it."""

    def __init__(self, world: "World") -> None:
        self._world = world
        self._told: dict[VmAccount, Vm] = {}
        self.negotiated: Counter[Negotiated] = Counter()
        self._waits_since_s: dict[str, float] = {}

    def is_told(self, vm: Vm) -> None:
        """The process that serves, or will, knows the VM from now on."""
        self._told[vm.account] = vm

    def is_gone(self, vm: Vm) -> None:
        """The process that serves was told that there is no such VM."""
        self._told.pop(vm.account, None)

    def nobody_serves(self) -> None:
        """The process that served has died."""
        self._told.clear()

    # ------------------------------------------------------------ rows

    def check_account(self, account: VmAccount) -> None:
        vm, process = self._told.get(account), self._world.scheduler.process
        if vm is not None and process is not None and process.is_serving:
            self._check(process, vm)

    def check_all(self) -> None:
        process = self._world.scheduler.process
        if process is None or not process.is_serving:
            return
        for vm in self._told.values():
            self._check(process, vm)
        for pod in self._world.placements.pods:
            kept = process.reserved(pod.spec.holder)
            is_known = pod.is_bound and not pod.has_ended and not pod.is_unseen
            if is_known and (kept is None or pod.spec.requests.exceeds(kept)):
                self.fail(
                    pod.node.name,
                    f"pod {pod.spec.pod.name} of {pod.spec.requests} is bound, its row keeps {kept or ZERO}",
                )

    def _check(self, process: "Process", vm: Vm) -> None:
        account, kept = vm.account, process.reserved(vm.holder) or ZERO
        if account.cpu_milli > kept.vcpu_milli or account.memory_bytes > kept.memory_bytes:
            record = process.core.vms.by_uid(vm.spec.uid)
            floors = record.row.state.floors if record is not None else ()
            named = ", ".join(f"{floor.cause.value} {floor.amount}" for floor in floors)
            self.fail(vm.name, f"{account.use} may be in use, its row keeps {kept} ({named or 'no floors'})")

    # ------------------------------------------------------------ grants

    def applied(self, process: "Process", outputs: tuple[events.Output, ...]) -> None:
        """An input was applied, with these outputs, which nobody has heard of yet."""
        ledger = process.core.ledger
        for node in self._world.nodes:
            account = ledger.node(node.name)
            if account is None:
                continue
            if account.is_over_full and not account.over:
                self.fail(
                    node.name,
                    f"{account.reserved} of {account.capacity.reservable} is reserved, and no cause is recorded",
                )
            if node.account.excused or node.account.excess is not ZERO:
                self._world.observer.ledger_changed(node.account, account.reserved)
        for output in outputs:
            if isinstance(output, events.Decided):
                self._check_grant(process, output)
            elif isinstance(output, events.AdmissionCallNeeded):
                row = self._row(process, output.uid)
                self._fits(process, row, output.current, output.wanted, "is kept while its pool is asked")
            elif isinstance(output, events.RoomOffered):
                self.negotiated[Negotiated.OFFERED] += 1
                row = self._row(process, output.uid)
                self._fits(process, row, row.state.current, output.amount, "is offered")
            elif isinstance(output, events.YieldEnded):
                self.negotiated[Negotiated.REFUSED if output.why else Negotiated.GIVEN] += 1
        self.check_all()

    def _check_grant(self, process: "Process", decided: events.Decided) -> None:
        if decided.permit.exceeds(decided.requested):
            self.fail(str(decided.pod.name), f"is permitted {decided.permit}, asked {decided.requested}")
        if decided.unit.is_apart:
            self._check_reasons(decided)
        record = process.core.vms.find(decided.pod)
        if record is not None and decided.permit.exceeds(decided.before) and record.settled:
            self._fits(process, record.row, decided.before, decided.permit, "is permitted")

    def _check_reasons(self, decided: events.Decided) -> None:
        """Each resource that is cut has a reason of its own, or one for both, if resources are apart."""
        named = {reason.resource for reason in decided.reasons}
        for (name, wanted), (_, permit) in zip(
            decided.requested.named(), decided.permit.named(), strict=True
        ):
            if permit < wanted and not named & {name, None}:
                self.fail(
                    str(decided.pod.name),
                    f"is permitted {decided.permit} of {decided.requested}, without a reason for {name}",
                )

    def _row(self, process: "Process", uid: str) -> Row:
        record = process.core.vms.by_uid(uid)
        assert record is not None
        return record.row

    def _fits(self, process: "Process", row: Row, before: Resources, after: Resources, what: str) -> None:
        """A row grows only into what the others leave of the node."""
        account = process.core.ledger.node(row.node)
        assert account is not None
        others = ZERO
        for other in process.core.ledger.rows():
            if other.node == row.node and other is not row:
                others += other.state.reserved
        room = account.capacity.reservable - others
        for (name, old), (_, new), (_, free) in zip(before.named(), after.named(), room.named(), strict=True):
            if new > old and new > free:
                self.fail(
                    row.name.partition("/")[2],
                    f"{after} {what}, {before} before, but the others leave {room} ({name})",
                )

    # ------------------------------------------------------------ yields

    def check_resize(self, vm: Vm, target: Resources, samples: Sequence[Sample]) -> None:
        """No agent takes from its guest what that has just used, unless its VM gives even that to others."""
        if len(samples) < 3 or vm.agent_vm.yields is YieldMode.TO_MINIMUM:
            return
        busy = [
            (later.cpu_busy_s or 0.0) - (sooner.cpu_busy_s or 0.0)
            for sooner, later in itertools.pairwise(samples)
        ]
        spans_s = [later.at_s - sooner.at_s for sooner, later in itertools.pairwise(samples)]
        cpus = min(used_s / span_s for used_s, span_s in zip(busy, spans_s, strict=True))
        memory = min((each.memory_total or 0) - (each.memory_available or 0) for each in samples)
        used = Resources(int(1000 * cpus), memory).min(vm.spec.bounds.max)
        if used.min(vm.target).exceeds(target):
            self.fail(vm.name, f"its agent shrinks it to {target}, and its guest uses {used}")

    def check_waits(self, process: "Process") -> None:
        """Nobody in need waits for long while a neighbour has told that it has a step of that to spare, and is not asked."""
        core, now_s = process.core, self._world.clock.now_s
        waits = {}
        for record in core.vms:
            queue, wish = core.state.queues.get(record.spec.node), record.waiting
            if (
                queue is None
                or queue.asked
                or wish is None
                or not wish.unit.is_apart
                or not _takes_part(record, now_s)
            ):
                continue
            room = core.ledger.headroom(record.spec.node, record.row.holder)
            for name, need in wish.needed.named():
                has, step = amount_of(record.row.state.current, name), amount_of(wish.unit.step, name)
                lacking = (has // step + 1) * step - amount_of(room, name)
                if need > has and lacking > 0 and self._can_give(process, record, name, lacking):
                    waits[record.spec.uid] = self._waits_since_s.get(record.spec.uid, now_s)
        self._waits_since_s = waits
        for uid, since_s in waits.items():
            if now_s - since_s > LONG_S:
                self.fail(
                    self._row(process, uid).name.partition("/")[2],
                    f"waits, and nobody is asked for {LONG_S} s",
                )

    def _can_give(self, process: "Process", waiting: VmRecord, name: str, lacking: int) -> bool:
        now_s = self._world.clock.now_s
        return any(
            amount_of(other.spare.min(other.row.state.current - other.spec.bounds.min), name)
            // amount_of(UNIT, name)
            * amount_of(UNIT, name)
            >= lacking
            for other in process.core.vms
            if other.spec.node == waiting.spec.node
            and other is not waiting
            and other.reply is not None
            and other.reply.unit.is_apart
            and other.waiting is None
            and now_s > other.rests_until_s
            and _takes_part(other, now_s)
        )

    # ------------------------------------------------------------ sums

    def check_audit(self, core: Core) -> None:
        wrong = core.audit()
        if wrong:
            self.fail("scheduler", "the ledger's sums are wrong: " + "; ".join(wrong))

    def fail(self, about: str, what: str) -> NoReturn:
        raise LawBrokenError(f"{about}: {what}")
