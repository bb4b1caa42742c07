"""Laws that hold after every input of the scheduler's core, beside the observer's law."""

from typing import TYPE_CHECKING

from protocol.extension import RequestExtension
from protocol.values import ZERO, Resources
from protocol.wire import AgentRequest
from tests.machines.cluster_models import Node, Vm
from tests.machines.core_port import SLOT_BYTES, Glance, Observation, Permitted
from tests.machines.ledger_observer import LawBrokenError
from tests.machines.published_models import PublishedAgent

if TYPE_CHECKING:
    from tests.machines.ledger_world import World


def check_row(world: "World", vm: Vm) -> None:
    """A row keeps what its VM may use, up to what a documented cause did behind the scheduler's back."""
    if not world.is_strict or vm.is_gone:
        return
    account, kept = vm.account, world.port.kept_for_use(vm.holder)
    if vm.published is not None:
        _check_told(world, vm, vm.published, kept)
    if account.cpu_milli <= kept.vcpu_milli and account.memory_bytes <= kept.memory_bytes:
        return
    use = Resources(account.cpu_milli, account.memory_bytes)
    if use.exceeds(kept.max(account.excused())):
        row = world.port.describe(vm.holder)
        raise LawBrokenError(f"{vm.name.name}: {use} may be in use, but its row keeps {kept} ({row})")


def _check_told(world: "World", vm: Vm, agent: PublishedAgent, kept: Resources) -> None:
    """A row keeps what this process told an agent without the extension lately, even if another kind serves the VM."""
    is_heard = agent.told_by == world.port.instance and world.now_s < agent.told_s + world.handover_s
    if is_heard and agent.holds().exceeds(kept):
        row = world.port.describe(vm.holder)
        raise LawBrokenError(
            f"{vm.name.name}: its published agent was told {agent.holds()}, its row keeps {kept} ({row})"
        )


def check_permit(
    request: RequestExtension, answer: Permitted, before: Glance | None, after: Glance | None
) -> None:
    """A permit lies between current and requested; a decrease is exact. `before` is None for a remembered reply."""
    wanted, permit = request.resources, answer.permit
    if permit.exceeds(wanted):
        raise LawBrokenError(f"a permit of {permit} for a request of {wanted}")
    if permit != wanted and not answer.codes:
        raise LawBrokenError(f"a permit of {permit} for a request of {wanted}, and no reason")
    if before is None or after is None:
        return
    least = before.current
    if after.is_settled and not before.is_settled:
        claim = request.last_permit or ZERO
        least = before.shown if before.is_late else claim  # it settles at no less than its claim, or its use
    if wanted.min(least).exceeds(permit):
        raise LawBrokenError(f"a permit of {permit} for a request of {wanted} where {least} was current")


def check_growth(node: Node, before: Glance, after: Glance, request: RequestExtension | None = None) -> None:
    """A request lifts an over-full node's sum only by what is in use: by its claim, or as the last read showed it.

    Who asks for less than it claims holds no more than that from then on. Only where it settles the row the whole claim may stay
    for as long as a hand-over: another life that was never heard may hold as much.
    """
    claim = request.last_permit or ZERO if request is not None else ZERO
    if request is not None and (before.is_settled or before.is_late):
        claim = claim.min(request.resources)
    over = after.node_reserved.exceeds(node.account.reservable)
    if over and after.node_reserved.exceeds(before.node_reserved):
        for name, new, old, limit, row, most in zip(
            ("cpu", "memory"),
            _pair(after.node_reserved),
            _pair(before.node_reserved),
            _pair(node.account.reservable),
            _pair(after.reserved),
            _pair(before.reserved.max(claim).max(after.shown)),
            strict=True,
        ):
            if new > limit and new > old and row > most:
                raise LawBrokenError(
                    f"{node.name}: a request lifted the reserved {name} from {old} to {new} of {limit}"
                )


def check_bystander(answer: Permitted, before: Glance, reading: Observation | None) -> None:
    """A caller beside an agent with the extension gets what is current or in use, never what is pending."""
    use = reading.use if reading is not None else answer.permit  # without sizes what it is told counts
    if answer.permit.exceeds(before.current.max(use).max(before.shown)):
        raise LawBrokenError(
            f"a bystander got {answer.permit} where {before.current} was current, {use} in use"
        )


def check_published(request: AgentRequest, answer: Permitted, shown: Resources) -> None:
    """A caller without the extension never gets less than what the last read has `shown` in use of its request."""
    wanted = Resources(request.resources.vcpu * 1000, request.resources.mem * SLOT_BYTES)
    if wanted.min(shown).exceeds(answer.permit):
        raise LawBrokenError(f"a permit of {answer.permit} for {wanted} where {shown} is in use")


def check_watched(agent: PublishedAgent, answer: object) -> None:
    """A watch may have shown what is old by now, but a permit by it is never below what the VM has been given, which would end the agent.

    What is edited beside agents, a watch that is behind cannot show.
    """
    if not isinstance(answer, Permitted) or agent.vm.edits:
        return
    if agent.vm.target.min(agent.asked).exceeds(answer.permit):
        raise LawBrokenError(f"a permit of {answer.permit} by a watch where {agent.vm.target} is set")


def check_audit(world: "World") -> None:
    wrong = world.port.audit()
    if wrong:
        raise LawBrokenError("the ledger's sums are wrong: " + "; ".join(wrong))


def _pair(amount: Resources) -> tuple[int, int]:
    return amount.vcpu_milli, amount.memory_bytes
