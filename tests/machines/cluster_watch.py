"""The cluster as one scheduler process reads it: lists, reads that begin at one time and are told later, births."""

from typing import TYPE_CHECKING

from protocol.values import ZERO
from tests.machines import ledger_laws
from tests.machines.cluster_models import Snapshot, Vm

if TYPE_CHECKING:
    from tests.machines.ledger_world import World

_MOST_PENDING = 24


class Watch:
    """The reads that were not told yet, and the VMs that this process knows to be new.

    `first` are the VMs of the list that the process began with, which may come from a cache and lag; `listed` are those
    of the consistent list that it made when it began to serve; `seen` are those that it was ever told of.
    """

    def __init__(self, world: "World") -> None:
        self._world = world
        self.pending: list[Snapshot] = []
        self.first: frozenset[str] = frozenset()
        self.listed: frozenset[str] = frozenset()
        self.seen: set[str] = set()

    def start(self, *, is_cached: bool) -> None:
        """The lists of a process that begins to serve: perhaps an old one from a cache, then a consistent one."""
        there = [vm for vm in self._world.vms if not (vm.is_gone or vm.is_vanished)]
        cached = [vm.cached for vm in there if vm.cached is not None] if is_cached else []
        self.listed = frozenset(vm.uid for vm in there)
        self.first = frozenset(old.uid for old in cached) if is_cached else self.listed
        for old in cached:
            self.tell(old)
        for vm in there:
            self.tell(self._world.read(vm))

    def is_new(self, uid: str) -> bool:
        """Only if a consistent list made after the process began to serve did not hold it, nor anything since."""
        return uid not in self.listed and uid not in self.seen

    def begin(self, vm: Vm) -> Snapshot | None:
        """A read of one VM begins; None where the cluster does not show it."""
        if vm.is_gone or vm.is_vanished:
            return None
        snapshot = self._world.read(vm)
        self.pending.append(snapshot)
        if len(self.pending) > _MOST_PENDING:
            del self.pending[0]
        return snapshot

    def tell(self, snapshot: Snapshot) -> None:
        """The scheduler is told what a read showed, and knows from then on what was done behind its back."""
        world = self._world
        vm = world.by_uid.get(snapshot.uid)
        if vm is None or vm.is_gone or vm.is_vanished:
            return
        reading = snapshot.reading if world.shows_sizes else None
        kept = world.port.reserved(vm.holder) if vm.edits else None
        world.port.vm_seen(vm.spec, reading, world.now_s, is_new=self.is_new(vm.uid))
        self.seen.add(vm.uid)
        vm.told_version = max(vm.told_version, snapshot.version)
        if kept is not None:  # perhaps late news of an edit that is over
            vm.node.account.excess += (world.port.reserved(vm.holder) - kept).max(ZERO)
        if vm.vanished_with is not ZERO:  # others may have got what it had, and it may claim that again
            vm.node.account.excess += vm.vanished_with
            vm.vanished_with = ZERO
        world.ledger_changed(vm.node)
        if not world.is_starting:
            self.is_told(vm, edits=snapshot.edits)

    def is_told(self, vm: Vm, *, edits: int) -> None:
        """From now on the scheduler knows the VM, and what was edited until the read: these excuses end."""
        world, account = self._world, vm.account
        if world.untold_births:
            world.untold_births = [born for born in world.untold_births if born is not vm]
        if account in account.node.excused:
            if account.is_unknown:
                account.is_unknown = False
                world.excuses.believed(vm)
            if world.shows_sizes and edits == vm.edits:
                account.edited = ZERO
            world.observer.excuse(account)
        ledger_laws.check_row(world, vm)

    def tell_all(self) -> None:
        """A fresh look at everything, told at once."""
        self.pending = []
        for vm in self._world.vms:
            if not (vm.is_gone or vm.is_vanished):
                self.tell(self._world.read(vm))
