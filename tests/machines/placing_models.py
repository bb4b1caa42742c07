"""The binders of pods: room is kept first, then the pod is bound, soon, late or never, and the scheduler is told later.

A pod that is bound before its time is over needs no excuse: all that it uses was kept for it. One that lands later, or after
what was kept was given back, or in another scheduler process, has bypassed the ledger. Reads of the cluster begin at one moment
and are told at a later one, after everything that was accepted before they began.
"""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from protocol.values import ZERO, Resources
from protocol.wire import PodName
from tests.machines import ledger_pods
from tests.machines.cluster_models import Node, OtherPod, Vm, cu
from tests.machines.core_port import Holder, Kind, pod_holder, pod_spec, reservation_spec, vm_holder
from tests.machines.ledger_observer import LawBrokenError
from tests.machines.permit_laws import Reached

if TYPE_CHECKING:
    from tests.machines.ledger_world import World

PLACEMENT_S: Final = 20.0
_MOST: Final = 6


@dataclass(slots=True, eq=False)
class Binding:
    """A pod on its way to a node. `place` is the VM whose place a VM takes, None for a pod that is no VM.

    `holder` is the one that room was kept for; `is_kept` says that the scheduler still keeps it and that nobody has given it back.
    """

    uid: str
    node: Node
    amount: Resources
    until_s: float
    holder: Holder
    place: int | None = None
    pool: str | None = None
    reservation: str | None = None
    is_kept: bool = True


@dataclass(slots=True)
class Read:
    """A read of the whole cluster: when it began, and what was bound by then and may not be told yet."""

    begun_s: float
    vms: list[Vm] = field(default_factory=list)
    pods: list[OtherPod] = field(default_factory=list)


class Binder:
    """The bindings under way in one world, the reads that are not told yet, and the one reservation."""

    def __init__(self, world: "World") -> None:
        self._world = world
        self.bindings: list[Binding] = []
        self.reads: list[Read] = []
        self.reservation: tuple[str, Node, Resources, bool] | None = None

    # ------------------------------------------------------------ pods

    def place(
        self,
        node: Node,
        amount: Resources,
        *,
        place: int | None = None,
        pool: str | None = None,
        is_other_kind: bool = False,
        uses_reservation: bool = False,
    ) -> Binding | None:
        """Ask for room; None where there is none."""
        world = self._world
        if len(self.bindings) >= _MOST:
            return None
        uid = f"placed-{world.count()}"
        holder = vm_holder(uid) if (place is not None) is not is_other_kind else pod_holder(uid)
        reservation = self.reservation[0] if uses_reservation and self.reservation is not None else None
        binding = Binding(uid, node, amount, world.now_s + PLACEMENT_S, holder, place, pool, reservation)
        if not self._assume(binding):
            return None
        self.bindings.append(binding)
        world.ledger_changed(node)
        return binding

    def _assume(self, binding: Binding) -> bool:
        port, node, amount = self._world.port, binding.node, binding.amount
        before, room = port.node_reserved(node.name), port.free(node.name)
        refused_by_pool = port.laws.refuses(binding.pool, amount) if port.laws is not None else False
        is_placed = port.assume(
            binding.holder,
            node.name,
            amount,
            binding.until_s,
            self._world.now_s,
            binding.pool,
            binding.reservation,
        )
        after = port.node_reserved(node.name)
        if not is_placed and after != before:
            raise LawBrokenError(
                f"{node.name}: a placement was refused, and {after} is kept instead of {before}"
            )
        if is_placed and after.exceeds(before.max(port.reservable(node.name))):
            raise LawBrokenError(f"{node.name}: a placement lifted what is reserved from {before} to {after}")
        if is_placed and refused_by_pool:
            raise LawBrokenError(f"{binding.uid} was placed, and its pool {binding.pool} has no room for it")
        self._count(binding, room, is_placed=is_placed, is_refused=refused_by_pool)
        fits = amount.fits_in(room.max(ZERO)) and not refused_by_pool
        if binding.reservation is None and is_placed is not fits:
            raise LawBrokenError(f"{binding.uid} of {amount} was placed: {is_placed}, where {room} is free")
        return is_placed

    def _count(self, binding: Binding, room: Resources, *, is_placed: bool, is_refused: bool) -> None:
        reached, has_room = self._world.reached, binding.amount.fits_in(room)
        if is_placed and binding.pool is not None:
            reached[Reached.PLACED_IN_POOL] += 1
        if is_refused and has_room:
            reached[Reached.REFUSED_BY_POOL] += 1
        if is_placed and binding.reservation is not None and not has_room:
            reached[Reached.FROM_RESERVATION] += 1

    def bind(self, binding: Binding) -> None:
        """The API server accepts the binding: the pod is there, and the scheduler is told later."""
        world = self._world
        self.bindings.remove(binding)
        is_late = not binding.is_kept or world.now_s >= binding.until_s
        world.reached[Reached.BOUND_LATE] += is_late
        world.reached[Reached.OTHER_KIND] += (binding.place is None) is (binding.holder.kind is Kind.VM)
        if binding.place is not None:
            self._vm_begins(binding, binding.place, is_late=is_late)
            return
        spec = pod_spec(
            PodName(binding.uid, "default"),
            binding.uid,
            binding.node.name,
            binding.amount,
            binding.reservation,
        )
        pod = OtherPod(spec, binding.node, is_unseen=is_late)
        world.pods.append(pod)
        if is_late:
            binding.node.account.other_unseen += binding.amount
        world.observer.other(binding.node.account, binding.amount)

    def _vm_begins(self, binding: Binding, place: int, *, is_late: bool) -> None:
        world = self._world
        old = world.vms[place]
        if old in world.untold_births:
            world.untold_births.remove(old)
        is_published = old.published is not None and binding.node.serves_published
        world.dead(old)
        world.untold_deaths.append(old)
        new = world.vms[place] = world.born(
            old.name,
            binding.node,
            old.bounds.max.max(binding.amount),
            binding.amount,
            unit=old.unit,
            pool=binding.pool,
            uid=binding.uid,
            is_kept=not is_late,
        )
        new.asks_apart = old.asks_apart
        del world.by_uid[old.uid]
        if is_published:
            world.published_starts(new)
        else:
            world.new_life(new, round(world.now_s * 1000))
        world.untold_births.append(new)

    def lose(self, binding: Binding) -> None:
        """The binder dies, or the binding is never accepted: nobody gives the room back."""
        self.bindings.remove(binding)

    def forget(self, binding: Binding) -> None:
        """The room is given back; a binding that was sent may still be accepted."""
        binding.is_kept = False
        self._world.port.forget(binding.holder)
        self._world.ledger_changed(binding.node)

    # ------------------------------------------------------------ reads

    def read_begins(self) -> None:
        world = self._world
        if len(self.reads) < _MOST:
            there = [vm for vm in world.vms if not (vm.is_gone or vm.is_vanished)]
            self.reads.append(Read(world.now_s, there, list(world.pods)))

    def read_is_told(self, read: Read) -> None:
        """The scheduler is told what the read showed, and then that this was all."""
        world = self._world
        self.reads.remove(read)
        for vm in read.vms:
            if vm in world.untold_births and not (vm.is_gone or vm.is_vanished):
                world.watch.tell(world.read(vm))
        for pod in read.pods:
            if pod in world.pods and (pod.has_ended or not pod.is_told):
                ledger_pods.pod_is_told(world, pod)
        world.port.cluster_read(read.begun_s)
        for binding in self.bindings:
            if binding.until_s <= read.begun_s and binding.is_kept:
                binding.is_kept = False
                world.reached[Reached.NEVER_BOUND] += 1
        for node in world.nodes:
            world.ledger_changed(node)

    def restarts(self) -> None:
        """Another scheduler process begins, which knows nothing of what was kept; bindings that were sent may be accepted."""
        self.reads = []
        for binding in self.bindings:
            binding.is_kept = False
        if self.reservation is not None:
            self._tell_reservation()

    # ------------------------------------------------------------ a reservation

    def reserve(self, node: Node, amount: Resources, *, allocate_once: bool) -> None:
        """A reservation is described, anew or otherwise than before."""
        uid = self.reservation[0] if self.reservation is not None else f"reservation-{self._world.count()}"
        self.reservation = uid, node, amount, allocate_once
        self._tell_reservation()

    def _tell_reservation(self) -> None:
        assert self.reservation is not None
        uid, node, amount, allocate_once = self.reservation
        self._world.port.reservation_seen(
            reservation_spec(uid, node.name, amount, allocate_once=allocate_once)
        )
        for each in self._world.nodes:
            self._world.ledger_changed(each)

    def unreserve(self) -> None:
        if self.reservation is not None:
            uid, node, *_ = self.reservation
            self.reservation = None
            self._world.port.reservation_gone(uid)
            self._world.ledger_changed(node)

    def drain(self) -> None:
        """Nobody binds anything any more, and a read shows that."""
        self.unreserve()
        for binding in list(self.bindings):
            self.lose(binding)
        self._world.pass_time(PLACEMENT_S)
        for read in list(self.reads):
            self.read_is_told(read)
        self.read_begins()
        self.read_is_told(self.reads[0])
        self._world.port.check_placements(is_over=True)


AMOUNTS: Final = (cu(1), cu(2), cu(0.5, 2), cu(3, 1))
