"""Moves of a full node that negotiates, chosen by small numbers: what agents say of their needs, and how they take notices."""

from agent.core.model import YieldMode
from protocol.values import ZERO
from tests.machines.agent_models import ExtendedAgent
from tests.machines.core_port import Ask, Offer
from tests.machines.ledger_world import World
from tests.machines.moves_agents import (
    AMOUNTS,
    FATES,
    agent_asks,
    agent_asks_again,
    agent_goes_up,
    amount_for,
    pick_agent,
    pick_vm,
    send,
)
from tests.machines.moves_cluster import ASIDE_S, go_to

PRIORITIES = (0, 0, 5, 10)
MODES = (YieldMode.SLACK, YieldMode.SLACK, YieldMode.TO_MINIMUM, YieldMode.NEVER)
NEEDS = (*range(4), None)
"""Of the amounts those that a VM may need without comfort; None for all that it asks for."""
MUCH = 4
"""Of the amounts a large one."""
TAKEN, TAKEN_TWICE, REFUSED, LOST = range(4)
HOWS = (TAKEN, TAKEN, TAKEN, TAKEN_TWICE, REFUSED, LOST)
_MOST_ROUNDS = 6


def vm_is_described(world: World, vm: int, priority: int, mode: int, need: int) -> None:
    """A VM gets another priority, gives to others in another way, or needs something else without comfort."""
    there = pick_vm(world, vm)
    there.priority, there.yields, there.refuses = PRIORITIES[priority], MODES[mode], False
    chosen = NEEDS[need]
    there.needs = None if chosen is None else amount_for(there, chosen)


def notice_arrives(world: World, which: int, how: int, fate: int) -> None:
    """A notice arrives, in any order, however late, perhaps not for the last time, or is lost."""
    if world.mail:
        at = which % len(world.mail)
        notice = world.mail[at]
        if HOWS[how] is not TAKEN_TWICE:
            del world.mail[at]
        if HOWS[how] is not LOST:
            _takes(world, notice, fate, is_refused=HOWS[how] is REFUSED)


def node_negotiates(world: World, vm: int, want: int, refusing: int, fills: int) -> None:
    """The VMs of a node tell what they can give, one of them wants an amount, and notices arrive at once. One neighbour may refuse.

    Before that the neighbours may have taken all that there is.
    """
    wanting = pick_vm(world, vm)
    there = [at for at, each in enumerate(world.vms) if each.node is wanting.node]
    for at in there:
        world.vms[at].refuses = False
        if fills and world.vms[at] is not wanting:
            agent_goes_up(world, at, MUCH, 2)
        agent_asks_again(world, at, 0, 0)
    agent_asks(world, vm, 0, want, 0)
    refuser = world.vms[there[refusing]].uid if refusing < len(there) else ""
    for _ in range(_MOST_ROUNDS):
        fresh = [notice for notice in world.mail if notice.node == wanting.node.name]
        if not fresh:
            return
        for notice in fresh:
            world.mail.remove(notice)
            _takes(world, notice, 0, is_refused=notice.uid == refuser)


def quota_is_exceeded(world: World, vms: int, amount: int) -> None:
    """The VMs of a quota have to give back."""
    uids = tuple(vm.uid for at, vm in enumerate(world.vms) if vms >> at & 1)
    world.port.quota_exceeded("borrowing", AMOUNTS[amount], uids, world.now_s)


def offer_comes_to_its_end(world: World, which: int, aside: int) -> None:
    """Time passes to about the moment at which room is kept no more."""
    ends_s = world.port.offers_end_s()
    if ends_s:
        go_to(world, ends_s[which % len(ends_s)] + ASIDE_S[aside])


def scheduler_is_restored(world: World) -> None:
    """The scheduler's process goes on from its snapshot."""
    world.port.restore()


def _takes(world: World, notice: Offer | Ask, fate: int, *, is_refused: bool) -> None:
    """The newest living agent of a VM takes a notice as `agent.core.desire` does."""
    vm = world.by_uid.get(notice.uid)
    agent = pick_agent(world, world.vms.index(vm)) if vm is not None and vm in world.vms else None
    if vm is None or agent is None:
        return
    if isinstance(notice, Ask):
        vm.refuses = is_refused
        if not is_refused:
            _yields(world, agent, notice)
    if agent.must_look:
        world.observe(agent)
    agent.attempt = 0
    send(world, agent.ask(agent.wants, world.now_s), FATES[fate])


def _yields(world: World, agent: ExtendedAgent, ask: Ask) -> None:
    """It shrinks to what it is asked to keep, or as far as it can; it never grows by that."""
    agent.wants = agent.wants.min(ask.keep.max(agent.least(ask.beneficiary)))
    command = world.resize(agent, agent.wants) if agent.wants != ZERO else None
    if command is not None:
        agent.vm.end(command, lands=True)
        agent.vm.set_size(agent.vm.target)
    world.observe(agent)
