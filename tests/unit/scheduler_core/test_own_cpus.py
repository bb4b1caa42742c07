"""VMs with CPUs of their own: what they are permitted, and the words of a refusal."""

from dataclasses import replace

from protocol.reasons import ReasonCode
from protocol.values import Bounds, Resources
from scheduler.permits.core import events
from scheduler.permits.core.snapshots import restore, snapshot_of
from scheduler.permits.service.inputs import CoreOwnCpus
from scheduler.ports import SoleScheduler
from tests.support.amounts import UNIT, cu
from tests.unit.scheduler_core.core_worlds import World, codes

OWN = [ReasonCode.OWN_CPUS]


def pinned(cpus: int = 2) -> World:
    """A VM whose bounds end at that many CPUs of its own; 6 are declared."""
    world = World(cu(16, 64))
    world.vm("vm", UNIT)
    world.permit(world.request("vm", UNIT))
    show(world, cpus)
    return world


def show(world: World, cpus: int) -> tuple[events.Output, ...]:
    bounds = Bounds(UNIT, Resources(1000 * cpus, cu(8).memory_bytes))
    spec = replace(world.record("vm").spec, bounds=bounds, declared_vcpu_milli=6000)
    return world.apply(events.VmSeen(spec, None, 1.0))


def test_it_is_permitted_what_is_pinned_and_told_why_not_more() -> None:
    world = pinned()
    answer = world.decide(world.request("vm", cu(4)))
    assert (answer.permit.vcpu_milli, codes(answer)) == (2000, OWN)
    assert answer.reasons[0].message == "the VM has 2 CPUs of its own, and keeps to them"
    world.apply(events.CpusHeld("uid-vm", why="NUMA node 0 is full"))
    assert world.record("vm").row.state.pressure == Resources(0, 0), "it is not the node that is full"
    assert world.decide(world.request("vm", cu(4))).reasons[0].message == (
        "the VM has 2 CPUs of its own: NUMA node 0 is full"
    )
    world.apply(events.CpusHeld("uid-vm"))
    assert world.record("vm").cpus_held is None


def test_its_agent_is_told_of_more_cpus() -> None:
    world = pinned()
    world.decide(world.request("vm", cu(4)))
    assert show(world, 3) == (
        events.RoomOffered(world.record("vm").spec.pod, "uid-vm", "n1", Resources(3000, cu(4).memory_bytes)),
    )
    assert show(world, 2) == ()
    assert world.decide(world.request("vm", cu(4))).permit.vcpu_milli == 2000
    assert world.decide(world.request("vm", cu(2))).permit == cu(2)
    assert show(world, 4) == (), "it wants no more"


def test_while_cpus_are_taken_back_nothing_grows_into_them() -> None:
    world = pinned(4)
    world.apply(events.CpusHeld("uid-vm", 2000, "they are being given back"))
    answer = world.decide(world.request("vm", cu(4)))
    assert (answer.permit.vcpu_milli, codes(answer)) == (2000, OWN)
    assert restore(snapshot_of(world.core)).state.vms.by_uid("uid-vm") == world.record("vm")
    world.apply(events.CpusHeld("uid-vm"))
    assert world.permit(world.request("vm", cu(4))) == cu(4)


def test_who_is_gone_holds_nothing() -> None:
    world = pinned()
    assert world.apply(events.CpusHeld("uid-other", 1000)) == ()


def test_the_wish_is_that_of_an_agent_that_is_heard_and_within_what_is_declared() -> None:
    world, now_s = pinned(), 0.0
    port = CoreOwnCpus(world.core, world.apply, lambda: now_s, SoleScheduler())
    assert port.wanted_milli("uid-other") is None
    world.decide(world.request("vm", cu(4)))
    assert port.wanted_milli("uid-vm") == 4000
    world.decide(world.request("vm", cu(9)))
    assert port.wanted_milli("uid-vm") == 6000
    now_s = world.core.state.config.handover_s
    assert port.wanted_milli("uid-vm") is None


def test_the_core_is_told_only_of_what_is_new() -> None:
    world, told = pinned(), list[events.Input]()

    def take(event: events.Input) -> tuple[events.Output, ...]:
        told.append(event)
        return world.apply(event)

    port = CoreOwnCpus(world.core, take, lambda: 0.0, SoleScheduler())
    for most, why in ((None, ""), (1000, "a"), (1000, "a"), (None, ""), (None, "")):
        port.hold("uid-vm", most, why)
    port.hold("uid-other", 1000)
    assert told == [events.CpusHeld("uid-vm", 1000, "a"), events.CpusHeld("uid-vm")]
