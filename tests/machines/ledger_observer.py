"""The observer: folds an append-only log of changes and checks at every line that no node is overcommitted.

It stands outside agents and scheduler. A line says what one agent holds, a VM's size, its target, a command that may
still land, or what other pods use. At every line, for each node and resource:

    Σ over VMs of max(held by any living agent, size, target, command) + other use <= reservable + excess + unseen

`unseen` is what a documented cause did behind the scheduler's back and the scheduler was not told yet (an external
edit, a birth or a pod that bypassed it, two kinds of agent on one VM): the sum may rise by exactly that. `excess` is
what such causes, once told, and a smaller configuration left of the ledger above what is reservable: it rises by a
cause only, and falls with the ledger's own sum. So what the scheduler says may end an excuse and never gives one.

A line costs O(1): each VM keeps its maximum, each node its sum.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from protocol.values import ZERO, Resources


class LawBrokenError(AssertionError):
    """Something that must always hold does not. The text says what."""


@dataclass(slots=True, eq=False)
class NodeAccount:
    """The sums of one node. `excused` are its VMs that a documented cause touches."""

    name: str
    reservable: Resources
    cpu_milli: int = 0
    memory_bytes: int = 0
    excess: Resources = ZERO
    other_unseen: Resources = ZERO
    excused: set["VmAccount"] = field(default_factory=set)


@dataclass(slots=True, eq=False)
class VmAccount:
    """The amounts that may be in use of one VM, and the causes that excuse more than the ledger keeps for it.

    `edited` is the size or target that an external edit set and the scheduler was not told, `claimed` how much of that a
    claim names which is just being told, `believed` what an agent that was misled by a cause still takes to be in use, and
    claims. Whatever may be in use is excused where the
    scheduler cannot know the VM (`is_unknown`), where agents hold more than the VM's maximum, which fell, and a new
    process cannot know that (`is_cut`), and where two kinds of agent serve one VM (`is_mixed`).
    """

    name: str
    node: NodeAccount
    ledger_keeps: Callable[[], Resources]
    size: Resources = ZERO
    target: Resources = ZERO
    held: dict[int, Resources] = field(default_factory=dict)
    commands: dict[int, Resources] = field(default_factory=dict)
    cpu_milli: int = 0
    memory_bytes: int = 0
    edited: Resources = ZERO
    claimed: Resources = ZERO
    believed: Resources = ZERO
    is_unknown: bool = False
    is_cut: bool = False
    is_mixed: bool = False
    kept_before: Resources = ZERO

    @property
    def use(self) -> Resources:
        return Resources(self.cpu_milli, self.memory_bytes)

    def excused(self) -> Resources:
        """Up to where the causes excuse what may be in use."""
        is_whole = self.is_unknown or self.is_cut or self.is_mixed
        return (self.use if is_whole else self.edited.min(self.use)).max(self.believed)

    def exceeds(self, most: Resources) -> bool:
        """Whether more than `most` is held, or under way in a command."""
        return any(amount.exceeds(most) for amount in (*self.held.values(), *self.commands.values()))

    def has_cause(self) -> bool:
        return self.is_unknown or self.is_cut or self.is_mixed or self.edited != ZERO or self.believed != ZERO


class Observer:
    """Folds lines; raises `LawBrokenError` at the first that breaks the law."""

    def __init__(self) -> None:
        self.nodes: dict[str, NodeAccount] = {}
        self.lines: deque[tuple[str, str, object]] = deque(maxlen=40)

    def node(self, name: str, reservable: Resources) -> NodeAccount:
        account = self.nodes[name] = NodeAccount(name, reservable)
        return account

    def vm(self, name: str, node: NodeAccount, ledger_keeps: Callable[[], Resources]) -> VmAccount:
        """A VM begins; nothing of it is in use yet."""
        return VmAccount(name, node, ledger_keeps)

    # ------------------------------------------------------------ lines

    def held(self, vm: VmAccount, agent: int, amount: Resources) -> None:
        if amount is ZERO:
            vm.held.pop(agent, None)
        else:
            vm.held[agent] = amount
        self._fold(vm, "held", amount)

    def size(self, vm: VmAccount, amount: Resources) -> None:
        vm.size = amount
        self._fold(vm, "size", amount)

    def target(self, vm: VmAccount, amount: Resources) -> None:
        vm.target = amount
        self._fold(vm, "target", amount)

    def sent(self, vm: VmAccount, command: int, amount: Resources) -> None:
        """A command was sent that may set the target to `amount`."""
        vm.commands[command] = amount
        self._fold(vm, "command sent", amount)

    def ended(self, vm: VmAccount, command: int) -> None:
        vm.commands.pop(command, None)
        self._fold(vm, "command ended", None)

    def gone(self, vm: VmAccount) -> None:
        vm.held.clear()
        vm.commands.clear()
        vm.size = vm.target = ZERO
        self._fold(vm, "gone", None)
        vm.node.excused.discard(vm)

    def other(self, node: NodeAccount, amount: Resources) -> None:
        """Other pods of a node use `amount` more (or less, where it is negative)."""
        self.lines.append((node.name, "other use", amount))
        node.cpu_milli += amount.vcpu_milli
        node.memory_bytes += amount.memory_bytes
        self._check(node)

    def _fold(self, vm: VmAccount, what: str, amount: object) -> None:
        self.lines.append((vm.name, what, amount))
        size, target = vm.size, vm.target
        cpu = max(target.vcpu_milli, size.vcpu_milli)
        memory = max(target.memory_bytes, size.memory_bytes)
        for amounts in (vm.held, vm.commands):
            for one in amounts.values():
                cpu = max(cpu, one.vcpu_milli)
                memory = max(memory, one.memory_bytes)
        node = vm.node
        rises = cpu > vm.cpu_milli or memory > vm.memory_bytes
        node.cpu_milli += cpu - vm.cpu_milli
        node.memory_bytes += memory - vm.memory_bytes
        vm.cpu_milli, vm.memory_bytes = cpu, memory
        if rises:
            self._check(node)

    # ------------------------------------------------------------ the law

    def _check(self, node: NodeAccount) -> None:
        limit, excess = node.reservable, node.excess
        over_cpu = node.cpu_milli - limit.vcpu_milli - excess.vcpu_milli
        over_memory = node.memory_bytes - limit.memory_bytes - excess.memory_bytes
        if over_cpu <= 0 and over_memory <= 0:
            return
        unseen = self._unseen(node)
        if over_cpu > unseen.vcpu_milli or over_memory > unseen.memory_bytes:
            total = Resources(node.cpu_milli, node.memory_bytes)
            raise LawBrokenError(
                f"{node.name} is overcommitted: {total} of {limit} may be in use "
                f"(documented causes excuse {excess} in the ledger and {unseen} beside it)"
            )

    @staticmethod
    def _unseen(node: NodeAccount) -> Resources:
        cpu, memory = node.other_unseen.vcpu_milli, node.other_unseen.memory_bytes
        for vm in node.excused:
            level, kept = vm.excused(), vm.ledger_keeps()
            cpu += max(0, level.vcpu_milli - kept.vcpu_milli)
            memory += max(0, level.memory_bytes - kept.memory_bytes)
        return Resources(cpu, memory)

    # ------------------------------------------------------------ causes

    def excuse(self, vm: VmAccount) -> None:
        """A cause was recorded on `vm`, or ended there."""
        if vm.has_cause():
            if vm not in vm.node.excused:
                vm.kept_before = vm.ledger_keeps()
                vm.node.excused.add(vm)
        else:
            vm.node.excused.discard(vm)

    def edited(self, vm: VmAccount, level: Resources) -> None:
        """Somebody edits a VM so that `level` may be in use: a cause, also where an over-full ledger keeps that much."""
        self._fill(vm, level)
        vm.edited = vm.edited.max(level)
        self.excuse(vm)

    def believed(self, vm: VmAccount, level: Resources) -> None:
        """Some agent takes `level` to be in use that an edit took away; ZERO when none does any more."""
        if level is not ZERO:
            self._fill(vm, level)
        vm.believed = level
        self.excuse(vm)

    @staticmethod
    def _fill(vm: VmAccount, level: Resources) -> None:
        use, kept = vm.use, vm.ledger_keeps()
        vm.node.excess += (level.min(kept) - use.min(kept)).max(ZERO)

    def other_told(self, node: NodeAccount, amount: Resources) -> None:
        """The scheduler was told of a pod that bypassed it: what was unseen is in its ledger now."""
        node.other_unseen -= amount
        node.excess += amount

    def reservable(self, node: NodeAccount, amount: Resources) -> None:
        """The configuration changed what may be reserved; where it fell, the difference is excused at first."""
        fallen = (node.reservable - amount).max(ZERO)
        node.reservable = amount
        node.excess += fallen

    def ledger_changed(self, node: NodeAccount, reserved: Resources) -> None:
        """The ledger keeps `reserved` of the node now: what it took up of a cause is excess, the rest of the past ends."""
        excess = node.excess
        for vm in node.excused:
            kept, before = vm.ledger_keeps(), vm.kept_before
            if kept != before:
                # A claim that was made before an edit was undone is told late: the ledger keeps all of that.
                level = vm.excused().max(vm.claimed)
                excess += (kept.min(level) - before.min(level)).max(ZERO)
                vm.kept_before = kept
        if excess is not ZERO:
            node.excess = excess.min((reserved - node.reservable).max(ZERO))
            if node.excess == ZERO:
                node.excess = ZERO
