"""The causes that the observer must excuse: they lie in the past, and live on in what agents hold, claim or believe."""

from typing import TYPE_CHECKING

from protocol.values import ZERO, Resources
from tests.machines.agent_models import Packet
from tests.machines.cluster_models import Vm
from tests.machines.core_port import Answer, Permitted

if TYPE_CHECKING:
    from tests.machines.ledger_world import World


class Excuses:
    """Keeps account of them for each VM of one world."""

    def __init__(self, world: "World") -> None:
        self._world = world

    def believed(self, vm: Vm) -> None:
        """Causes of the past left agents with more than a new process can know of.

        They hold what an edit or a change of bounds left above the VM's maximum; and they claim what was in use before
        an edit that they did not see yet.
        """
        account, use = vm.account, vm.size.max(vm.target)
        if use.exceeds(vm.bounds.max) and not self._world.shows_sizes:
            account.edited = use
            self._world.observer.excuse(account)
        self.cut(vm)
        self.learnt(vm)

    def beliefs(self, vm: Vm) -> None:
        """An amount that agents take to be in use because of a documented cause is a cause itself.

        A published agent never learns what the other kind has made of its VM: it goes on from what it set last.
        """
        believed, use = ZERO, vm.size.max(vm.target)
        for agent in vm.agents:
            is_untold = agent.edits != vm.edits or vm.account.edited != ZERO
            is_beyond = agent.in_use().exceeds(vm.bounds.max.max(use))
            if agent.is_misled or is_beyond or (is_untold and agent.in_use().exceeds(use)):
                believed = believed.max(agent.in_use())
        published = vm.published
        if published is not None and published.usage.exceeds(use):
            believed = believed.max(published.usage.min(published.holds()))
        if believed != vm.account.believed:
            self._world.observer.believed(vm.account, believed)
            self._world.ledger_changed(vm.node)

    def late_claim(self, vm: Vm, claim: Resources | None) -> None:
        """An edit, or a maximum that fell, may be over, and an agent that did not look since claim what it saw of it."""
        if vm.account.edited != ZERO or (claim is not None and claim.exceeds(vm.bounds.max)):
            self.beliefs(vm)

    def late_answer(self, vm: Vm, answer: Answer) -> None:
        """An earlier process gave a permit before the maximum fell: it is held above that maximum."""
        if not isinstance(answer, Permitted) or answer.instance == self._world.port.instance:
            return
        if answer.permit.exceeds(vm.bounds.max.max(vm.size.max(vm.target))):
            vm.account.is_cut = True
            self._world.observer.excuse(vm.account)

    def claim_arrives(self, vm: Vm, packet: Packet) -> None:
        """The amount that the ledger comes to keep by this claim is excused as far as an edit has made it, undone or not."""
        vm.account.claimed = vm.account.edited.min(packet.extension.last_permit or ZERO)

    def claim_is_told(self, vm: Vm, packet: Packet) -> None:
        """The scheduler knows now of an edit that this agent saw before it asked; and of two kinds of agent."""
        account = vm.account
        claim = packet.extension.last_permit
        if account.edited == ZERO or packet.edits != vm.edits or claim is None:
            return
        if account.edited.min(vm.size.max(vm.target)).fits_in(claim):
            account.edited = ZERO
            self._world.observer.excuse(account)

    def mixed(self, vm: Vm) -> None:
        """Two kinds of agent on one VM are a documented cause, until one is gone and the ledger keeps all that is left.

        What is left must have been heard of by this scheduler process, too: another kind may have settled the row.
        """
        account, published = vm.account, vm.published
        is_mixed = published is not None and (bool(vm.agents) or published.is_beside)
        if published is not None:
            published.is_beside = is_mixed
        if account.is_mixed and not is_mixed:
            is_mixed = (
                bool(vm.commands)
                or account.use.exceeds(account.ledger_keeps())
                or any(agent.held != ZERO and agent.knows != self._world.port.instance for agent in vm.agents)
            )
        if is_mixed != account.is_mixed:
            account.is_mixed = is_mixed
            self._world.observer.excuse(account)
            for agent in vm.agents:
                agent.is_misled = True

    def learnt(self, vm: Vm) -> None:
        """Causes end: bounds that fell, once nobody holds more than they allow; two kinds of agent; beliefs."""
        account = vm.account
        if account.is_cut:
            most, kept = vm.bounds.max.max(vm.size.max(vm.target)), account.ledger_keeps()
            account.is_cut = account.exceeds(most) or account.use.exceeds(kept)
            self._world.observer.excuse(account)
        if account.is_mixed:
            self.mixed(vm)
        self.beliefs(vm)

    def cut(self, vm: Vm) -> None:
        """An amount that is held above the VM's maximum is a cause."""
        if vm.account.exceeds(vm.bounds.max.max(vm.size.max(vm.target))):
            vm.account.is_cut = True
            self._world.observer.excuse(vm.account)
