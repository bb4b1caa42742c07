"""Laws of pools that hold after every input of the scheduler's core, computed from what the core was told and its rows.

A VM's part of its pool is the most units of the pool that its permit or any floor but `pending` takes. The laws:

- *No grant that the chain refused.* A permit that takes more of the pool needs a verdict that was formed for this very
  description of the pool, and all that the pool holds after it is within that verdict and within what the chain admitted
  when the verdict was formed. The pool's own limits hold as well; nothing at all grows in a pool that is absent or being
  deleted. What needs no verdict takes no more of the pool than the permit did before.
- *A pool's total rises by grants and by documented causes only*: a birth, a label, another unit (`_enter`, `_join`,
  `recount`); the start-up floor when a larger maximum is told; what a read has shown; a claim; what a published caller
  uses. Each is bounded by what the model knows of it. As a grant's total is within what was admitted, nothing grows in a
  pool that is above that.
- *No refusal for want of what is there.* Every permit is what the limits allow (`tests.machines.permit_laws`), of VMs
  without a pool as well.

None of the core's own sums is used. Most inputs change no row, which costs one look for each VM with a pool.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

from protocol.values import ZERO, Resources
from protocol.wire import AgentRequest, PodName
from tests.machines.core_port import (
    SLOT_BYTES,
    AdmissionCall,
    Answer,
    Holder,
    Kept,
    Observation,
    Permitted,
    VmSpec,
)
from tests.machines.ledger_observer import LawBrokenError
from tests.machines.permit_laws import Asked, PermitLaws

if TYPE_CHECKING:
    from tests.machines.core_port import CorePort
    from tests.machines.pool_models import ChainVerdict, Pool


@dataclass(slots=True, frozen=True)
class Cause:
    """The rise that an input documents: up to where the subject's permit and its floors may come without any verdict."""

    name: str
    permit: Resources = ZERO
    floors: Resources = ZERO
    call: AdmissionCall | None = None
    verdict: "ChainVerdict | None" = None


class Told(NamedTuple):
    """The verdict that a pool gave on a call; void where the pool, or the VM's belonging, was changed meanwhile."""

    call: AdmissionCall
    verdict: "ChainVerdict"
    is_void: bool


_NO_CAUSE: Final = Cause("what was none of its business")


@dataclass(slots=True, eq=False)
class Member:
    """A VM that the core was told of: its part of its pool, in the pool's units, by its permit and altogether.

    `answered` is the last request that was answered with a permit: sent again, it gets the remembered one, which named the
    kind `answered_apart`. `told` is what a caller without the extension was permitted last.
    """

    spec: VmSpec
    holder: Holder
    kept: Kept
    shown: Resources = ZERO
    shown_s: float = -1.0
    permit_units: int = 0
    units: int = 0
    answered: AgentRequest | None = None
    answered_apart: bool = False
    told: Resources = ZERO


class PoolLaws:
    """The laws for one scheduler process. Raises `LawBrokenError`."""

    def __init__(self, port: "CorePort", pools: "Mapping[str, Pool]", permits: PermitLaws) -> None:
        self._port = port
        self._pools = pools
        self._permits = permits
        self._members: dict[PodName, Member] = {}
        self._pooled: list[Member] = []
        self._placed: dict[str, tuple[str, Resources]] = {}
        """The amounts that pods which are not seen yet count in their pool, by UID."""
        self.totals: dict[str, int] = dict.fromkeys(pools, 0)
        self.waits: dict[int, tuple[AdmissionCall, AgentRequest, int]] = {}
        """The requests that wait for a verdict: for what, with which request, and in which life of the pool each began."""

    # ------------------------------------------------------------ inputs

    def seen(self, vm: VmSpec, reading: Observation | None) -> None:
        """A VM was told: perhaps its birth, another label, another size."""
        member = self._members.get(vm.pod)
        if member is not None and member.spec.uid != vm.uid:
            self.gone(member.spec)
            member = None
        is_new = member is None
        if member is None:
            kept = self._port.kept(vm.holder)
            if kept is None:
                return
            member = self._members[vm.pod] = Member(vm, vm.holder, kept)
        if reading is not None and reading.begun_s >= member.shown_s:
            member.shown, member.shown_s = reading.use, reading.begun_s
        most = vm.bounds.max if self._port.is_unsettled(member.kept) else ZERO
        cause = Cause("a read", floors=member.shown.max(most))
        if is_new:
            member.spec = vm
            self._enter(member, cause)
        elif member.spec.pool != vm.pool:
            self._leave(member)
            member.spec = vm
            member.kept = self._port.kept(member.holder) or member.kept
            self._join(member)
        else:
            member.spec = vm
        self.nothing_else(member, cause)

    def gone(self, vm: VmSpec) -> None:
        member = self._members.get(vm.pod)
        if member is not None and member.spec.uid == vm.uid:
            del self._members[vm.pod]
            self._leave(member)
        self.nothing_else()

    def refuses(self, name: str | None, amount: Resources) -> bool:
        """Whether a pool by itself has no room for a VM of that amount."""
        if name is None:
            return False
        pool = self._pools[name]
        units, per_vm = amount.units(pool.unit), pool.max_units_per_vm
        if not pool.is_there or pool.is_deleting or (per_vm is not None and units > per_vm):
            return True
        return pool.max_units is not None and self.totals[name] + units > pool.max_units

    def placed(self, uid: str, name: str | None, amount: Resources) -> None:
        """A pod counts in its pool from when its room is kept, and never beyond the pool's own limits."""
        if name is None:
            return
        self._placed[uid] = name, amount
        self.totals[name] += amount.units(self._pools[name].unit)
        self._check_units(name)

    def unplaced(self, uid: str) -> None:
        """A pod that was placed is seen, or will not come."""
        name, amount = self._placed.pop(uid, ("", ZERO))
        if name:
            self.totals[name] -= amount.units(self._pools[name].unit)

    def _check_units(self, name: str) -> None:
        units = self._port.pool_units(name)
        if self._pools[name].is_there and units != self.totals[name]:
            raise LawBrokenError(f"pool {name} counts {units} units, and its VMs have {self.totals[name]}")

    def recount(self, name: str) -> None:
        """A pool was described otherwise: its parts are counted in its unit of now."""
        parts = (amount for pool, amount in self._placed.values() if pool == name)
        self.totals[name] = sum(amount.units(self._pools[name].unit) for amount in parts)
        for member in self._pooled:
            if member.spec.pool == name:
                self._count(member)
                self.totals[name] += member.units
        self.nothing_else()

    def begins(self, pod: PodName | None) -> None:
        """A request of this VM, or a verdict for it, is about to be judged. Without a pool its row was not followed."""
        member = self._members.get(pod) if pod is not None else None
        if member is not None and member.spec.pool is None:
            member.kept = self._port.kept(member.holder) or member.kept

    def waiting(self, ticket: int) -> PodName | None:
        """Whose request waits under that number."""
        return self.waits[ticket][1].pod if ticket in self.waits else None

    def asked(self, request: AgentRequest, answer: Answer | None, call: AdmissionCall | None) -> None:
        """A request was taken. `call` where it waits from now on."""
        if call is not None:
            self.waits[call.ticket] = call, request, self._pools[call.pool].life
        member = self._members.get(request.pod)
        if member is None:
            self.nothing_else()
            return
        current, is_unsettled = member.kept.current, self._port.is_unsettled(member.kept)
        claim = ZERO
        if request.extension is not None:
            claim = request.extension.last_permit or ZERO
            level = claim.max(member.shown)
            cause = Cause("a claim", level if is_unsettled else ZERO, level)
        else:
            cause = Cause("what a published caller uses", member.shown, member.shown)
        self.nothing_else(member, cause)
        if isinstance(answer, Permitted):
            if is_unsettled and request.extension is not None:
                current = member.shown if self._port.is_late(member.spec) else claim.max(member.shown)
            self._answered(member, request, current, answer)

    def told(self, ticket: int, verdict: "ChainVerdict | None", answer: Answer | None) -> None:
        """A verdict was applied. One for nobody changes nothing."""
        waited = self.waits.pop(ticket, None)
        if waited is None:
            if answer is not None:
                raise LawBrokenError(f"a verdict for nobody is answered with {answer}")
            self.nothing_else()
            return
        call, request, life = waited
        member = self._members.get(request.pod)
        if member is None:
            raise LawBrokenError(f"{request.pod.name} waits for pool {call.pool} and is gone")
        current = member.kept.current
        use = ZERO if request.extension is not None else member.shown
        self.nothing_else(member, Cause("a verdict", use, member.shown, call, verdict))
        if isinstance(answer, Permitted) and verdict is not None:
            is_void = life != self._pools[call.pool].life or self._is_void(member, call, verdict)
            self._answered(member, request, current, answer, Told(call, verdict, is_void))

    def nothing_else(self, subject: Member | None = None, cause: Cause = _NO_CAUSE) -> None:
        """After any input: what has changed is the subject, as far as its cause goes, or has not risen."""
        for member in self._pooled:
            kept = self._port.kept(member.holder)
            if kept is not member.kept and kept is not None:
                self._changed(member, kept, cause if member is subject else _NO_CAUSE)

    # ------------------------------------------------------------ who belongs to which pool

    def _enter(self, member: Member, cause: Cause) -> None:
        """A birth: it counts with what was shown of it, and with its maximum while it is unsettled."""
        if member.kept.current.exceeds(member.shown) or self._port.firm(member.kept).exceeds(cause.floors):
            raise LawBrokenError(f"{member.spec.pod.name} begins with more than was shown of it")
        self._join(member)

    def _join(self, member: Member) -> None:
        """A birth or a label may lift the pool to whatever it comes to."""
        if member.spec.pool is not None:
            self._pooled.append(member)
            self._count(member)
            self.totals[member.spec.pool] += member.units

    def _leave(self, member: Member) -> None:
        if member.spec.pool is not None:
            self._pooled.remove(member)
            self.totals[member.spec.pool] -= member.units
        member.units = member.permit_units = 0

    def _count(self, member: Member) -> None:
        assert member.spec.pool is not None
        unit = self._pools[member.spec.pool].unit
        member.permit_units = member.kept.current.units(unit)
        member.units = self._port.firm(member.kept).units(unit)

    # ------------------------------------------------------------ the laws

    def _changed(self, member: Member, kept: Kept, cause: Cause) -> None:
        name = member.spec.pool
        assert name is not None
        pool, old, had, held = self._pools[name], member.kept, member.units, self.totals[name]
        permit_units = member.permit_units
        member.kept = kept
        self._count(member)
        total = self.totals[name] = held + member.units - had
        # Without floors a part is its permit's; nothing of both is looked at where nothing rises.
        if kept.current.exceeds(old.current) and kept.current.exceeds(old.current.max(cause.permit)):
            who = f"{member.spec.pod.name} grows from {old.current} to {kept.current}, and"
            self._check_own(pool, who, total)
            if member.permit_units > max(permit_units, cause.permit.units(pool.unit)):
                self._check_grant(pool, who, member, total, cause)
        if member.units > max(had, member.permit_units, cause.floors.units(pool.unit)):
            raise LawBrokenError(
                f"{member.spec.pod.name} takes {member.units} units of pool {name} instead of {had} by {cause.name}"
            )

    @staticmethod
    def _check_own(pool: "Pool", who: str, total: int) -> None:
        """A VM that grows at all, within its unit or not, is in a pool that is there and within its own limits."""
        if not pool.is_there or pool.is_deleting:
            raise LawBrokenError(f"{who} pool {pool.name} is absent or being deleted")
        if pool.max_units is not None and total > pool.max_units:
            raise LawBrokenError(f"{who} pool {pool.name} holds {total} of at most {pool.max_units} units")

    def _check_grant(self, pool: "Pool", who: str, member: Member, total: int, cause: Cause) -> None:
        """A VM that takes more of the pool has a verdict for just that, and is within the pool's limit for one VM."""
        verdict, call = cause.verdict, cause.call
        if verdict is None or call is None:
            raise LawBrokenError(f"{who} nobody asked pool {pool.name}")
        if self._is_void(member, call, verdict):
            raise LawBrokenError(f"{who} the verdict was not formed for what pool {pool.name} is now")
        if pool.max_units_per_vm is not None and member.permit_units > pool.max_units_per_vm:
            raise LawBrokenError(f"{who} pool {pool.name} allows a VM {pool.max_units_per_vm} units")
        for most in (verdict.total, verdict.admitted):
            if most is not None and total > most:
                raise LawBrokenError(
                    f"{who} pool {pool.name} holds {total} of {most} units that were admitted"
                )

    def _is_void(self, member: Member, call: AdmissionCall, verdict: "ChainVerdict") -> bool:
        """Whether a verdict is about another pool, or about what the pool was before it was changed."""
        pool = self._pools[call.pool]
        return call.pool != member.spec.pool or (verdict.life, verdict.generation) != (
            pool.life,
            pool.generation,
        )

    def _answered(
        self,
        member: Member,
        request: AgentRequest,
        current: Resources,
        answer: Permitted,
        told: "Told | None" = None,
    ) -> None:
        """A permit was told, where `current` was permitted before: it is what the request is owed, or the remembered one."""
        extension, name = request.extension, member.spec.pool
        if extension is None:
            asked = Resources(request.resources.vcpu * 1000, request.resources.mem * SLOT_BYTES)
            base = current.max(member.shown).max(member.told)
            self._permits.published(member.spec, base, asked, answer.permit)
            member.told = answer.permit
            return
        if request is member.answered:
            if answer.is_apart != member.answered_apart:
                raise LawBrokenError(f"a retry of {member.spec.pod.name} is told another kind than at first")
            return
        if answer.is_unsettled:
            return  # nothing is granted, and nothing is remembered
        own = others = 0
        if name is not None:
            before = current.max(self._port.floors(member.kept))
            own = before.units(self._pools[name].unit)
            others = self.totals[name] - member.units
        self._permits.judged(Asked(member.spec, current, extension, own, others, *(told or ())), answer)
        member.answered, member.answered_apart = request, answer.is_apart
