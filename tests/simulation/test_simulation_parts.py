"""The parts of the simulation, each by itself: the clock, the network, a VM's back end, the trace, and shrinking."""

import random

from agent.core.events import Resize
from protocol.values import Resources
from tests.simulation import driver
from tests.simulation.clock import Clock
from tests.simulation.network import Call, Network, Weather
from tests.simulation.scripts import Happening, script
from tests.simulation.trace import Trace
from tests.simulation.vms import COMMAND_DEADLINE_S, UNIT, Failure, Vm
from tests.simulation.world import World

ALWAYS = 1.0


def test_the_clock_lets_things_happen_in_order() -> None:
    clock, happened = Clock(), list[str]()
    clock.after(2.0, lambda: happened.append("later"))
    clock.after(1.0, lambda: happened.append("first"))
    clock.after(1.0, lambda: happened.append("second"))
    clock.after(1.5, lambda: happened.append("never")).cancel()
    clock.run_until(Clock.START_S + 2.0)
    assert happened == ["first", "second"], "what is due at the end has not happened yet"
    clock.run_until(Clock.START_S + 3.0)
    assert happened == ["first", "second", "later"]
    assert clock.now_s == Clock.START_S + 3.0


def test_a_lost_request_never_arrives_and_a_late_one_does() -> None:
    clock, arrived = Clock(), list[float]()
    network = Network(
        clock, random.Random(1), random.Random(1), Weather(Clock.START_S + 1.0, lost_request=ALWAYS)
    )
    network.request("v0", lambda: arrived.append(clock.now_s))
    clock.run_until(Clock.START_S + 100.0)
    assert arrived == []
    network.weather = Weather(clock.now_s + 1.0, late_request=ALWAYS, late_s=50.0)
    sent_s = clock.now_s
    network.request("v0", lambda: arrived.append(clock.now_s))
    clock.run_until(sent_s + 60.0)
    assert sent_s + 1.0 < arrived[0] <= sent_s + 51.0


def test_who_is_cut_off_reaches_nobody_and_who_hung_up_hears_nothing() -> None:
    clock, heard = Clock(), list[str]()
    network = Network(clock, random.Random(1), random.Random(1))
    network.cut_until_s["v0"] = clock.now_s + 10.0
    network.request("v0", lambda: heard.append("cut off"))
    network.request("v1", lambda: heard.append("not cut off"))
    call = Call[str](heard.append)
    network.reply("v1", call, "too late")
    call.hang_up()
    clock.run_until(clock.now_s + 20.0)
    assert heard == ["not cut off"]


def _quiet_world() -> tuple[World, Vm]:
    """A world at rest, and a VM that no agent serves."""
    world = World(1)
    vm = world.vms[0]
    world.end_daemon(vm)
    world.clock.run_until(world.clock.now_s + 5.0)
    return world, vm


def _resized(world: World, vm: Vm, wanted: Resize, generation: int) -> str:
    """The error of a resize; empty if it succeeded."""
    told = list[Failure | None]()
    vm.resize(wanted, generation, told.append)
    world.clock.run_until(world.clock.now_s + 1.0)
    (answer,) = told
    return "" if answer is None else answer.error


def test_a_resize_is_accepted_before_it_is_reached_and_counts_on_its_way() -> None:
    world, vm = _quiet_world()
    world.observer.coverage = None  # nobody has permitted this
    answers = list[Failure | None]()
    vm.resize(Resize(UNIT * 2, UNIT, world.clock.now_s + 5.0), vm.generation, answers.append)
    assert (vm.account.use, vm.target) == (UNIT * 2, UNIT)
    world.clock.run_until(world.clock.now_s + 0.1)
    assert (answers, vm.target, vm.size) == ([None], UNIT * 2, UNIT)
    world.clock.run_until(world.clock.now_s + 5.0)
    assert (vm.size, vm.commands) == (UNIT * 2, [])


def test_no_write_is_blind_late_or_of_a_life_that_was_fenced_off() -> None:
    world, vm = _quiet_world()
    now_s = world.clock.now_s
    world.observer.coverage = None
    vm.edit(UNIT * 2)
    assert "was seen" in _resized(world, vm, Resize(UNIT * 3, UNIT, now_s + 9.0), vm.generation)
    assert "too long ago" in _resized(world, vm, Resize(UNIT, UNIT * 2, now_s), vm.generation)
    old = vm.generation
    vm.fence(lambda _: None)
    world.clock.run_until(world.clock.now_s + 1.0)
    assert "fenced off" in _resized(world, vm, Resize(UNIT, UNIT * 2, now_s + 60.0), old)
    assert vm.target == UNIT * 2


def test_a_fence_makes_commands_on_their_way_void() -> None:
    world, vm = _quiet_world()
    world.observer.coverage = None
    stood = list[Resources]()
    for units in range(2, 8):
        vm.slow_until_s = world.clock.now_s + 60.0  # so that commands travel for long
        vm.resize(Resize(UNIT * units, vm.target, world.clock.now_s + 5.0), vm.generation, lambda _: None)
        assert vm.commands
        vm.slow_until_s = 0.0
        vm.fence(lambda _: stood.append(vm.target))
        world.clock.run_until(world.clock.now_s + COMMAND_DEADLINE_S + 1.0)
        assert (vm.target, vm.commands, vm.account.commands) == (stood[-1], [], {})
    assert UNIT in stood, "no command was on its way when a fence came"


def test_the_trace_leaves_out_what_was_said_before() -> None:
    trace = Trace()
    for at_s in range(5):
        trace.add(float(at_s), "v0", "asks", UNIT)
        trace.add(float(at_s), "v1", "asks", UNIT)
    trace.add(5.0, "v0", "asks", UNIT * 2)
    lines = trace.told(0.0, {"v0"}, 10)
    assert [line.split("  ")[-1] for line in lines] == [f"v0: asks {UNIT}", f"v0: asks {UNIT * 2}"]


def test_scripts_are_repeatable_and_differ_by_seed() -> None:
    assert script(1, 600.0, 6) == script(1, 600.0, 6)
    assert script(1, 600.0, 6) != script(2, 600.0, 6)


def test_a_failure_shrinks_to_what_it_needs() -> None:
    needed = [Happening(10.0, "cut_off", 1, 0.5, 0.5), Happening(20.0, "scheduler_stops", 1, 0.5, 0.5)]
    others = [Happening(float(at_s), "load_moves", 2, 0.5, 0.5) for at_s in range(30)]

    def run(seed: int, length_s: float, happenings: list[Happening]) -> driver.Run:
        is_broken = all(each in happenings for each in needed)
        failure = "LawBrokenError: v1: broken" if is_broken else ""
        return driver.Run(seed, 1, failure, 40.0, script=tuple(happenings))

    failed = run(1, 600.0, [*others[:12], *needed, *others[12:]])
    found = driver.shrink(failed, attempt=run)
    assert list(found.script) == needed
