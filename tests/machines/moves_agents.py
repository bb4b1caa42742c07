"""Moves of agents, VMs and the network, chosen by small numbers. Each move takes a world and numbers, any of them valid."""

from protocol.values import Resources
from tests.machines.agent_models import ExtendedAgent, Packet
from tests.machines.cluster_models import Vm, cu
from tests.machines.core_port import COMMAND_DEADLINE_S
from tests.machines.ledger_world import World
from tests.machines.published_models import Phase, PublishedAgent

AMOUNTS = (
    cu(1),
    cu(2),
    cu(3),
    cu(5),
    cu(8),
    cu(4, 2),
    cu(2, 6),
    cu(1.5, 2),
    cu(6),
    cu(1, 3),
    cu(8, 1),
    cu(1, 8),
    cu(6, 2.5),
    cu(1.5, 5),
)
# In eighths of a second, so that sums of them are exact and two deadlines that are equal on paper are equal here.
SPANS_S = (0.125, 1.0, 1.0, 2.0, 4.0, 4.5, 5.0, 5.5, 12.0, 20.0, 31.0, 61.0)
SKEWS_MS = (0, 0, 1, 5_000, -1, -20_000)
ANSWERED, ANSWER_UNDER_WAY, UNDER_WAY, ANSWER_LOST, LOST = range(5)
FATES = (ANSWERED, ANSWERED, ANSWERED, ANSWER_UNDER_WAY, UNDER_WAY, UNDER_WAY, ANSWER_LOST, LOST)


def pick_vm(world: World, vm: int) -> Vm:
    return world.vms[vm % len(world.vms)]


def pick_agent(world: World, vm: int, life: int = 0) -> ExtendedAgent | None:
    """One of a VM's living agents that is not dormant; 0 is the newest."""
    agents = pick_vm(world, vm).agents
    if not agents:
        return None
    agent = agents[-1 - life % len(agents)]
    return None if agent.is_dormant else agent


def pick_published(world: World, vm: int) -> PublishedAgent | None:
    """An agent without the extension that is not stuck."""
    agents = [each.published for each in world.vms if each.published is not None]
    there = [agent for agent in agents if agent.phase is not Phase.ENDED]
    return there[vm % len(there)] if there else None


def amount_for(vm: Vm, amount: int) -> Resources:
    """An amount; in whole units where agents without the extension may read it."""
    wanted = AMOUNTS[amount]
    return cu(-(-wanted.vcpu_milli // 1000), wanted.memory_bytes // 2**30) if vm.is_whole else wanted


# ------------------------------------------------------------ agents with the extension


def agent_asks(world: World, vm: int, life: int, want: int, fate: int) -> None:
    """An agent asks for an amount. A request under way before that ended with its connection."""
    agent = pick_agent(world, vm, life)
    if agent is not None:
        if agent.must_look:
            world.observe(agent)
        agent.attempt = 0
        send(world, agent.ask(amount_for(agent.vm, want), world.now_s), FATES[fate])


def agent_asks_again(world: World, vm: int, life: int, fate: int) -> None:
    """An agent sends its request again, or asks for the same anew where it must not."""
    agent = pick_agent(world, vm, life)
    if agent is not None:
        if agent.must_look:
            world.observe(agent)
        agent.attempt = 0
        again = agent.may_ask_again()
        packet = agent.ask_again(world.now_s) if again else agent.ask(agent.wants, world.now_s)
        send(world, packet, FATES[fate])


def send(world: World, packet: Packet, fate: int) -> None:
    if fate == UNDER_WAY:
        world.send(packet)
    elif fate != LOST:
        returned = world.deliver(packet, is_taken=fate == ANSWERED)
        if returned is None:
            return
        if fate == ANSWERED:
            world.takes(returned)
        elif fate == ANSWER_UNDER_WAY:
            world.send_back(returned)


def agent_changes_kind(world: World, vm: int, life: int, is_apart: int) -> None:
    """An agent, and each life after it, asks for the other kind from its next request on, or for the same as before."""
    agent = pick_agent(world, vm, life)
    if agent is not None:
        agent.is_apart = agent.vm.asks_apart = is_apart > 0


def agent_observes(world: World, vm: int, life: int, how: int) -> None:
    """An agent looks at its VM: at once, or a look begins, or the one that began before is in."""
    agent = pick_agent(world, vm, life)
    if agent is None:
        return
    if how == 0:
        world.observe(agent)
    elif how == 1 and agent.looking is None:
        agent.look(agent.vm.snapshot(world.now_s), agent.vm.writes)
    else:
        world.observed(agent)


def agent_resizes(world: World, vm: int, life: int, want: int, how: int) -> None:
    """An agent sends a resize, which may land at once, and the VM may reach it at once."""
    agent = pick_agent(world, vm, life)
    if agent is None:
        return
    command = world.resize(agent, amount_for(agent.vm, want))
    if command is not None and how > 0:
        agent.vm.end(command, lands=True)
        if how > 1:
            agent.vm.set_size(agent.vm.target)


def agent_goes_up(world: World, vm: int, want: int, how: int) -> None:
    """An agent asks and uses at once what it was permitted."""
    agent = pick_agent(world, vm)
    if agent is not None:
        agent_asks(world, vm, 0, want, 0)
        agent_resizes(world, vm, 0, want, how)


def agent_goes_down(world: World, vm: int, want: int, fate: int) -> None:
    """An agent shrinks its VM, sees that, and reports it."""
    agent = pick_agent(world, vm)
    if agent is not None:
        agent_resizes(world, vm, 0, want, 2)
        world.observe(agent)
        agent_asks(world, vm, 0, want, fate)


# ------------------------------------------------------------ the network


def packet_arrives(world: World, which: int, again: int, is_back: int) -> None:
    """A packet arrives, in any order, perhaps not for the last time; its answer is on its way or lost."""
    if world.packets:
        at = which % len(world.packets)
        returned = world.deliver(world.packets[at] if again else world.packets.pop(at))
        if is_back and returned is not None:
            world.send_back(returned)


def answer_arrives(world: World, which: int, again: int) -> None:
    """An answer arrives, in any order, perhaps not for the last time."""
    if world.answers:
        at = which % len(world.answers)
        world.takes(world.answers[at] if again else world.answers.pop(at))


# ------------------------------------------------------------ lives


def agent_restarts(world: World, vm: int, skew: int) -> None:
    """All runners of a VM are killed and one starts, on a clock that may have been set."""
    there = pick_vm(world, vm)
    if not _may_have(world, there, published=False):
        return
    for agent in list(there.agents):
        world.dies(agent)
    _start(world, there, skew)


def agent_overlaps(world: World, vm: int, skew: int) -> None:
    """A second daemon starts a runner while the first one still lives.

    Not where nobody but an agent sees what the first one does: there the node lock is what helps.
    """
    there = pick_vm(world, vm)
    if len(there.agents) < 3 and world.shows_sizes and _may_have(world, there, published=False):
        _start(world, there, skew)


def agent_takes_over(world: World, vm: int, before: int, after: int) -> None:
    """A second daemon's runner asks as soon as it can, after the first one's last words."""
    for _ in range(before):
        agent_asks_again(world, vm, 0, 0)
    agent_overlaps(world, vm, 0)
    for _ in range(after):
        agent_asks_again(world, vm, 0, 0)


def neighbours_go_up(world: World, vm: int, want: int) -> None:
    """The agents of the other VMs of the node ask until they are settled, and then for an amount, which they use at once."""
    node = pick_vm(world, vm).node
    for at, other in enumerate(world.vms):
        if other.node is node and other is not pick_vm(world, vm):
            agent_asks_again(world, at, 0, 0)
            agent_asks_again(world, at, 0, 0)
            agent_goes_up(world, at, want, 2)


def _may_have(world: World, vm: Vm, *, published: bool) -> bool:
    """Whether an agent of that kind may begin beside what the VM has."""
    return world.mixes_kinds or not (vm.agents if published else vm.published is not None)


def agent_dies(world: World, vm: int, life: int) -> None:
    agents = pick_vm(world, vm).agents
    if agents:
        world.dies(agents[-1 - life % len(agents)])


def _start(world: World, vm: Vm, skew: int) -> None:
    # Where the cluster shows no sizes, nobody sees what a life did that a late packet of a life with a wrong clock
    # superseded: the clocks are right there.
    skew_ms = SKEWS_MS[skew] if world.shows_sizes else 0
    world.new_life(vm, round(world.now_s * 1000) + skew_ms)


def dormant_wakes(world: World, vm: int) -> None:
    """The daemon of a superseded runner starts another life, when no other daemon has the node lock."""
    agents = pick_vm(world, vm).agents
    if agents and all(agent.is_dormant for agent in agents):
        agent = agents[-1]
        if world.now_s >= agent.dormant_since_s + 1.0:
            world.wake(agent)


# ------------------------------------------------------------ VMs


def command_ends(world: World, vm: int, which: int, how: int) -> None:
    """A command takes effect, or it is refused; or its sender is told that it failed, and it may take effect later."""
    there = pick_vm(world, vm)
    if there.commands:
        command = there.commands[which % len(there.commands)]
        if how > 1:
            there.fails(command)
        else:
            there.end(command, lands=how > 0)


def vm_moves(world: World, vm: int, part: int) -> None:
    """A VM reaches its target, or only one resource of it does."""
    there = pick_vm(world, vm)
    size, target = there.size, there.target
    if part == 1:
        target = Resources(target.vcpu_milli, size.memory_bytes)
    elif part == 2:
        target = Resources(size.vcpu_milli, target.memory_bytes)
    there.set_size(target)


# ------------------------------------------------------------ agents without the extension


def published_scales(world: World, vm: int, want: int, how: int) -> None:
    """It wants an amount: it sets what it may, and asks, unless its resize takes time or its informant is away."""
    agent = pick_published(world, vm)
    if agent is not None:
        _scales(world, agent, want, how)


def _scales(world: World, agent: PublishedAgent, want: int, how: int) -> None:
    if not agent.is_idle:
        return
    agent.wants = amount_for(agent.vm, want)
    command = world.published_resizes(agent)
    if command is not None and how > 0:
        agent.vm.end(command, lands=True)
    if how > 1:
        agent.vm.set_size(agent.vm.target)
    if how < 3 and agent.may_ask():
        _published_asks(world, agent, how)


def published_goes(world: World, vm: int, want: int, how: int) -> None:
    """It goes through with what it wants: its resizes land, and what it was told is in use at once, or soon."""
    agent = pick_published(world, vm)
    if agent is not None:
        _goes(world, agent, want, how)


def _goes(world: World, agent: PublishedAgent, want: int, how: int) -> None:
    _scales(world, agent, want, 2)
    if agent.command is not None and how > 0:
        agent.vm.end(agent.command, lands=True)
        if how > 1:
            agent.vm.set_size(agent.vm.target)


def published_fails(world: World, vm: int, want: int, is_read: int, wants: int) -> None:
    """It is told that its resize has failed, which may land yet; it is started again, and goes through with so many wishes."""
    agent = pick_published(world, vm)
    if agent is None:
        return
    _scales(world, agent, want, 2)
    if agent.command is None:
        return
    agent.vm.fails(agent.command)
    world.published_dies(agent.vm)
    again = world.published_starts(agent.vm)
    _published_asks(world, again, 2)
    if is_read and not again.vm.is_vanished:
        world.watch.tell(world.read(again.vm))
    for number in range(wants):
        _goes(world, again, (want + 3 * number) % len(AMOUNTS), 2)


def published_stands_by(world: World, vm: int, want: int, is_quiet: int) -> None:
    """It asks beside an agent with the extension, which then gives back what it can; perhaps neither is heard for a while."""
    both = [each for each in world.vms if each.published is not None and each.agents]
    if not both:
        return
    there = both[vm % len(both)]
    if there.published is not None and there.published.is_idle:
        _published_asks(world, there.published, 2)
    agent_goes_down(world, world.vms.index(there), want, 0)
    if is_quiet:
        for _ in range(2):
            world.pass_time(COMMAND_DEADLINE_S)
        world.watch.tell_all()


def published_asks(world: World, vm: int, how: int) -> None:
    agent = pick_published(world, vm)
    if agent is not None and agent.is_idle and agent.next_target() is None:
        _published_asks(world, agent, how)


def _published_asks(world: World, agent: PublishedAgent, how: int) -> None:
    waiting = world.published_asks(agent)
    if waiting is not None and how > 0:
        world.published_look_ends(waiting, is_answered=how > 1)


def look_ends(world: World, which: int, is_answered: int) -> None:
    """The look of a request without the extension is in."""
    if world.waiting:
        waiting = world.waiting[which % len(world.waiting)]
        world.published_look_ends(waiting, is_answered=is_answered > 0)


def published_restarts(world: World, vm: int, how: int) -> None:
    """It is killed and started again, where agents of its kind are served, and may ask for what it has at once."""
    there = pick_vm(world, vm)
    if there.node.serves_published and not there.is_gone and _may_have(world, there, published=True):
        world.published_dies(there)
        agent = world.published_starts(there)
        if how < 3:
            _published_asks(world, agent, how)
            world.watch.begin(there)


def published_comes_back(world: World, vm: int, how: int) -> None:
    """One that met what is fatal to it is started again."""
    stuck = [
        at
        for at, each in enumerate(world.vms)
        if each.published is not None and each.published.phase is Phase.ENDED
    ]
    if stuck:
        published_restarts(world, stuck[vm % len(stuck)], how)


def published_dies(world: World, vm: int) -> None:
    world.published_dies(pick_vm(world, vm))
