"""Callers without the extension: where they are served, what closes the connection, and what stays reserved."""

from dataclasses import replace

import pytest

from protocol.reasons import ErrorCode, ReasonCode
from protocol.values import Bounds, Observation, Resources
from protocol.versions import PluginProtoVersion
from protocol.wire import AgentRequest, Metrics, SlotResources
from scheduler.permits.core import decision, events
from scheduler.permits.core.ledger import Cause
from scheduler.permits.core.state import SchedulerConfig
from tests.support.amounts import GIB, UNIT, cu
from tests.unit.scheduler_core.core_worlds import EVERYWHERE, HERE, METRICS, World, codes, pod, world_with_vm

TRUSTING = SchedulerConfig(HERE, is_first_start=True, published_agents=("*",), trust_published=True)


def served(
    use: Resources | None = UNIT, *, is_new: bool = True, config: SchedulerConfig = EVERYWHERE
) -> World:
    """A VM on a node where callers without the extension are served."""
    return world_with_vm(use, config=config, is_new=is_new)


def permitted(answer: events.Answer) -> tuple[int, int]:
    """The permit that the caller reads; what would be fatal to it is checked on the way."""
    assert isinstance(answer, events.Decided), answer
    permit = decision.message(answer).permit
    assert permit.vcpu > 0
    assert permit.mem > 0
    assert decision.message(answer).migrate is None
    return permit.vcpu, permit.mem


# ------------------------------------------------------------ whether it is served


@pytest.mark.parametrize(
    ("globs", "is_served"),
    [((), False), (("n2", "m*"), False), (("N1",), False)]
    + [((glob,), True) for glob in ("n1", "n*", "[mn]1", "*")],
)
def test_globs_name_the_nodes_where_it_is_served(globs: tuple[str, ...], is_served: bool) -> None:
    world = served(config=replace(EVERYWHERE, published_agents=globs))
    answer = world.published("vm", SlotResources(2, 2))
    if is_served:
        assert permitted(answer) == (2, 2)
    else:
        assert isinstance(answer, events.Refused)
        assert (answer.status, answer.code) == (403, ErrorCode.PUBLISHED_AGENT_NOT_ALLOWED)


@pytest.mark.parametrize(
    ("version", "metrics", "code"),
    [
        (0, METRICS, ErrorCode.UNSUPPORTED_VERSION),
        (3, METRICS, ErrorCode.UNSUPPORTED_VERSION),
        (1, None, ErrorCode.METRICS_REQUIRED),
        (1, METRICS, None),
        (2, None, None),
    ],
)
def test_versions_and_metrics_are_checked_as_for_all(
    version: int, metrics: Metrics | None, code: ErrorCode | None
) -> None:
    answer = served().published("vm", SlotResources(1, 1), version=version, metrics=metrics)
    if code is None:
        assert permitted(answer) == (1, 1)
    else:
        assert isinstance(answer, events.Refused)
        assert (answer.status, answer.code) == (400, code)


@pytest.mark.parametrize(("unit", "slots"), [(None, SlotResources(1, 2)), (cu(1, 3), SlotResources(1, 3))])
def test_the_unit_is_the_vms_else_the_nodes(unit: Resources | None, slots: SlotResources) -> None:
    world = World(config=EVERYWHERE, unit=cu(1, 2))
    world.vm("vm", cu(1, slots.mem), unit=unit)
    answer = world.published("vm", slots, use=cu(1, slots.mem))
    assert isinstance(answer, events.Decided)
    assert decision.message(answer).compute_unit == slots


def test_every_request_takes_a_fresh_look() -> None:
    world = served()
    request = AgentRequest(PluginProtoVersion(2), pod("vm"), SlotResources(1, 1), METRICS)
    assert world.send(request) == events.LookNeeded(7, pod("vm"))
    world.published("vm", SlotResources(1, 1))
    assert world.send(request) == events.LookNeeded(7, pod("vm"))


# ------------------------------------------------------------ hang-ups


HANG_UPS: dict[str, tuple[Resources | None, Resources | None, Resources | None, SlotResources, str]] = {
    "nothing": (UNIT, None, None, SlotResources(0, 0), "zero"),
    "no CPU": (UNIT, None, None, SlotResources(0, 1), "zero"),
    "no memory": (UNIT, None, None, SlotResources(1, 0), "zero"),
    "no unit": (None, None, None, SlotResources(1, 1), "unit"),
    "a unit in fractions": (Resources(250, GIB), None, None, SlotResources(1, 1), "fractions"),
    "a maximum in fractions": (UNIT, None, cu(2.5, 4), SlotResources(1, 1), "fractions"),
    "a use in fractions": (UNIT, cu(1.5, 2), None, SlotResources(2, 2), "fractions"),
}


@pytest.mark.parametrize(("unit", "use", "most", "want", "why"), HANG_UPS.values(), ids=HANG_UPS)
def test_what_cannot_be_answered_closes_the_connection_and_is_shown_until_the_caller_is_served(
    unit: Resources | None, use: Resources | None, most: Resources | None, want: SlotResources, why: str
) -> None:
    """Half a CPU that is in use and cannot be told would be a permit below the use."""
    world = World(use, config=EVERYWHERE, unit=unit)
    world.vm("vm", use or UNIT, most=most)
    answer = world.published("vm", want, use=use or UNIT)
    assert isinstance(answer, events.HungUp)
    assert why in answer.why
    assert (world.record().condition, world.state().reserved) == (answer.why, use or UNIT)
    world.node("n1", cu(10))
    world.see("vm", None, at=1.0, bounds=Bounds(UNIT, cu(8)))
    permitted(world.published("vm", SlotResources(1, 1), at=1.0))
    assert world.record().condition == ""


def hung_up(answer: events.Answer) -> str:
    assert isinstance(answer, events.HungUp), answer
    return answer.why


def test_without_sizes_the_connection_is_closed_unless_its_caller_is_trusted() -> None:
    assert "size" in hung_up(served(None, is_new=False).published("vm", SlotResources(1, 1), use=None))
    trusting = served(None, is_new=False, config=TRUSTING)
    assert permitted(trusting.published("vm", SlotResources(3, 3), use=None)) == (3, 3)
    assert trusting.state().current == cu(3)


# ------------------------------------------------------------ permits


@pytest.mark.parametrize(
    "want",
    [SlotResources(1, 1), SlotResources(2, 2), SlotResources(3, 3), SlotResources(5, 5), SlotResources(7, 2)],
)
def test_a_permit_is_never_above_the_request_nor_below_the_smaller_of_request_and_use(
    want: SlotResources,
) -> None:
    world = served(cu(1))
    world.other_pod("filler", cu(9))
    vcpu, mem = permitted(world.published("vm", want, use=cu(3), at=1.0))
    assert min(want.vcpu, 3) <= vcpu <= want.vcpu
    assert min(want.mem, 3) <= mem <= want.mem


# ------------------------------------------------------------ settlement


@pytest.mark.parametrize("want", [3, 5])
def test_what_is_permitted_settles_and_the_rest_of_the_maximum_stays_told(want: int) -> None:
    world = served(cu(3), is_new=False)
    assert permitted(world.published("vm", SlotResources(want, want), use=cu(3))) == (want, want)
    assert (world.record().settled, world.state().current) == (True, cu(want))
    assert world.floors() == [(Cause.TOLD, cu(8))]


REQUEST = AgentRequest(PluginProtoVersion(2), pod("vm"), SlotResources(5, 5), METRICS)


def first_asked(
    world: World, *, at: float, use: Resources | None, begun: float | None = None
) -> events.Answer:
    """A pass of the first request, which arrived at 100 s, after a look that showed `use` (None: no VM there)."""
    look = events.Look(found=False)
    if use is not None:
        reading = Observation(use, use, at if begun is None else begun)
        world.see("vm", reading, at=at)
        look = events.Look(found=True, reading=reading)
    return world.send(REQUEST, at=at, look=look, since=100.0)


def unsettled_and_full() -> World:
    """An unsettled VM of 2 units on a node that leaves it 3."""
    world = served(cu(2), is_new=False)
    world.other_pod("filler", cu(7))
    return world


def test_a_first_request_that_gets_less_is_held_for_a_look_that_shows_more() -> None:
    """Any answer but a permit that covers its use is the end of its caller."""
    world = unsettled_and_full()
    for at in (100.0, 101.0, 102.9):
        assert isinstance(first_asked(world, at=at, use=cu(2)), events.LookNeeded)
    assert world.floors() == [(Cause.START_UP, cu(8))]
    assert permitted(first_asked(world, at=102.99, use=cu(5))) == (5, 5)


def test_what_the_last_look_showed_counts_when_nobody_waits_any_more_and_a_later_request_is_not_held() -> (
    None
):
    world = unsettled_and_full()
    assert permitted(first_asked(world, at=103.0, use=cu(2))) == (3, 3)
    assert world.record().settled
    later = world.send(
        REQUEST, at=110.0, look=events.Look(True, Observation(cu(2), cu(2), 110.0)), since=110.0
    )
    assert permitted(later) == (3, 3)


@pytest.mark.parametrize("is_served", [True, False])
def test_a_first_request_for_a_pod_that_is_not_there_yet_is_held_where_such_callers_are_served(
    is_served: bool,
) -> None:
    world = World(config=replace(EVERYWHERE, published_agents=("*",) if is_served else ()))
    for at in (102.9, 103.0):
        answer = first_asked(world, at=at, use=None)
        if is_served and at == 102.9:
            assert isinstance(answer, events.LookNeeded)
        else:
            assert isinstance(answer, events.Refused)
            assert (answer.status, answer.code) == (404, ErrorCode.UNKNOWN_POD)


def test_a_first_request_for_a_pod_that_comes_while_it_is_held_is_answered() -> None:
    world = World(config=EVERYWHERE)
    assert isinstance(first_asked(world, at=101.0, use=None), events.LookNeeded)
    world.vm("vm", cu(2), at=102.0)
    assert permitted(first_asked(world, at=102.0, use=cu(2))) == (5, 5)


def test_a_pod_that_is_there_but_not_understood_is_no_404() -> None:
    """The VM's object may be malformed; 404 would end its agent for good."""
    answer = World(config=EVERYWHERE).send(REQUEST, at=110.0, look=events.Look(found=True), since=100.0)
    assert isinstance(answer, events.HungUp)


# ------------------------------------------------------------ what is not known of its use


STARTED = replace(EVERYWHERE, started_s=50.0)


def stale() -> World:
    """All that is shown was read before our start: 1 unit, of a node that has 3 left. It may use up to 8."""
    world = served(cu(1), is_new=False, config=STARTED)
    world.other_pod("filler", cu(7))
    return world


def test_a_read_begun_before_our_start_never_makes_an_answer_below_the_request() -> None:
    """Less than what it uses ends the published runner for good, and nobody knows what that is."""
    world = stale()
    assert isinstance(first_asked(world, at=100.0, use=cu(1), begun=40.0), events.LookNeeded)
    assert "not known" in hung_up(first_asked(world, at=103.0, use=cu(1), begun=40.0))
    assert (world.record().settled, world.floors()) == (False, [(Cause.START_UP, cu(8))])
    assert permitted(first_asked(world, at=130.0, use=cu(1))) == (3, 3)


def test_what_this_process_told_it_bounds_its_use_where_reads_are_stale() -> None:
    world = served(cu(1), is_new=False, config=STARTED)
    assert permitted(first_asked(world, at=100.0, use=cu(1), begun=40.0)) == (5, 5)
    world.other_pod("filler", cu(7))
    wish = AgentRequest(PluginProtoVersion(2), pod("vm"), SlotResources(7, 7), METRICS)
    old = events.Look(True, Observation(cu(1), cu(1), 40.0))
    assert permitted(world.send(wish, at=110.0, look=old, since=110.0)) == (5, 5)


def test_what_a_trusted_caller_sends_is_a_wish_once_it_was_told_something() -> None:
    """Two VMs of 1 unit on a node of 7.5 are patched to 6: both have asked for what they had before."""
    world = World(cu(7.5), config=TRUSTING)
    for name in ("a", "b"):
        world.vm(name, None, is_new=False)
        assert permitted(world.published(name, SlotResources(1, 1), use=None)) == (1, 1)
        assert permitted(world.published(name, SlotResources(1, 1), use=None, at=6.0)) == (1, 1)
    assert permitted(world.published("a", SlotResources(6, 6), use=None, at=10.0)) == (6, 6)
    assert permitted(world.published("b", SlotResources(6, 6), use=None, at=10.0)) == (1, 1)
    assert world.core.ledger.node("n1").reserved.fits_in(cu(7.5))  # type: ignore[union-attr]  # it is there


def test_what_a_trusted_caller_sends_ends_nothing_where_sizes_are_shown() -> None:
    """They are from before our start, and show what it was told before: only a later read frees that."""
    world = served(cu(6), is_new=False, config=replace(TRUSTING, started_s=50.0))
    for at in (100.0, 107.0, 114.0):
        old = events.Look(True, Observation(cu(6), cu(6), 40.0))
        wish = AgentRequest(PluginProtoVersion(2), pod("vm"), SlotResources(2, 2), METRICS)
        assert permitted(world.send(wish, at=at, look=old, since=at)) == (2, 2)
    assert world.floors() == [(Cause.TOLD, cu(8))]


def test_what_it_was_told_is_no_use_any_more_once_another_agent_has_shrunk_the_vm() -> None:
    """The other one is gone, its room is a neighbour's, and what the caller sends is a wish."""
    world = World(config=TRUSTING)
    for name in ("a", "b"):
        world.vm(name, None, is_new=False)
    for at in (0.0, 7.0):
        assert permitted(world.published("a", SlotResources(6, 6), use=None, at=at)) == (6, 6)
    world.permit(world.request("a", cu(6), claim=cu(6)), at=100.0)
    world.permit(world.request("a", cu(2), claim=cu(2)), at=110.0)
    world.tick(290.0)
    world.permit(world.request("b", cu(8), claim=UNIT), at=290.0)
    vcpu, _ = permitted(world.published("a", SlotResources(6, 6), use=None, at=310.0))
    assert vcpu <= 2
    assert world.node_reserved().fits_in(cu(10))


def test_a_bystander_of_unknown_use_is_not_answered_below_its_request_either() -> None:
    world = served(cu(2), is_new=False, config=STARTED)
    world.permit(world.request("vm", cu(2), claim=cu(2)), at=99.0)
    assert isinstance(first_asked(world, at=100.0, use=cu(2), begun=40.0), events.LookNeeded)
    assert "not known" in hung_up(first_asked(world, at=103.0, use=cu(2), begun=40.0))


# ------------------------------------------------------------ told less


def lowered() -> World:
    """Its caller was told 6 at 0 s and asked for 2 at 10 s."""
    world = served()
    assert permitted(world.published("vm", SlotResources(6, 6), at=0.0)) == (6, 6)
    assert permitted(world.published("vm", SlotResources(2, 2), at=10.0, use=cu(2))) == (2, 2)
    return world


@pytest.mark.parametrize(
    ("at", "shown", "floors"),
    [
        (14.9, cu(2), [(Cause.TOLD, cu(6))]),
        (15.0, cu(2), []),
        (501.0, cu(6), [(Cause.TOLD, cu(6)), (Cause.OBSERVED, cu(6))]),
        (20.0, cu(4, 6), [(Cause.OBSERVED, cu(4, 6))]),
    ],
)
def test_what_was_told_before_stays_until_a_read_begun_a_command_deadline_later_shows_less(
    at: float, shown: Resources, floors: list[tuple[Cause, Resources]]
) -> None:
    world = lowered()
    assert (world.state().current, world.floors(), world.node_reserved()) == (
        cu(2),
        [(Cause.TOLD, cu(6))],
        cu(6),
    )
    assert (world.tick(14.0), world.tick(15.0)) == ([], ["vm"]), (
        "a read is wanted once it could end the floor"
    )
    world.tick(500.0)
    world.read("vm", shown, at=at)
    assert world.floors() == floors


def test_two_decreases_at_one_instant_keep_the_larger_amount() -> None:
    world = served()
    world.published("vm", SlotResources(8, 8), at=0.0)
    world.published("vm", SlotResources(4, 4), at=10.0, use=cu(8))
    world.published("vm", SlotResources(2, 2), at=10.0, use=cu(4))
    world.read("vm", cu(2), at=11.0)
    assert world.state().reserved == cu(8)


def test_growing_again_does_not_shorten_the_floor_of_a_later_decrease() -> None:
    world = lowered()
    world.published("vm", SlotResources(6, 6), at=20.0, use=cu(6))
    world.published("vm", SlotResources(2, 2), at=21.0, use=cu(6))
    world.read("vm", cu(2), at=25.0)
    assert world.state().reserved == cu(6)
    world.read("vm", cu(2), at=26.0)
    assert world.state().reserved == cu(2)


def test_floors_do_not_pile_up_while_a_vm_is_stuck_at_its_size() -> None:
    world = served()
    world.published("vm", SlotResources(8, 8), at=0.0)
    for round_ in range(1, 100):
        world.published("vm", SlotResources(2 + round_ % 3, 2 + round_ % 3), at=10.0 * round_, use=cu(8))
    assert len(world.state().floors) < 20


def test_a_trusted_request_is_the_read_that_ends_the_floor() -> None:
    world = served(None, is_new=False, config=TRUSTING)
    world.published("vm", SlotResources(6, 6), at=0.0, use=None)
    assert world.state().reserved == cu(8)
    world.published("vm", SlotResources(2, 2), at=10.0, use=None)
    assert world.state().reserved == cu(6)
    world.published("vm", SlotResources(2, 2), at=15.0, use=None)
    assert world.state().reserved == cu(2)


def test_a_caller_that_grew_again_is_judged_from_what_it_has() -> None:
    world = lowered()
    world.other_pod("filler", cu(4))
    assert permitted(world.published("vm", SlotResources(8, 8), at=11.0, use=cu(2))) == (6, 6)


# ------------------------------------------------------------ beside an agent with the extension


def two_kinds() -> World:
    """An agent with the extension was answered at 0 s with 4 units, on a node of 10."""
    world = served()
    world.permit(world.request("vm", cu(4)), at=0.0)
    return world


@pytest.mark.parametrize(
    ("want", "permit"),
    [(SlotResources(6, 6), (4, 4)), (SlotResources(3, 3), (3, 3)), (SlotResources(6, 2), (4, 2))],
)
def test_a_bystander_gets_what_is_current_and_changes_nothing(
    want: SlotResources, permit: tuple[int, int]
) -> None:
    world = two_kinds()
    answer = world.published("vm", want, at=59.9)
    assert permitted(answer) == permit
    assert codes(answer) == ([] if permit == (want.vcpu, want.mem) else [ReasonCode.BYSTANDER])
    assert (world.state().current, world.state().reserved) == (cu(4), cu(4))
    assert world.record().condition


def test_what_a_bystander_was_told_stays_until_it_was_told_less_and_a_later_read_shows_that() -> None:
    world = two_kinds()
    world.published("vm", SlotResources(4, 4), at=1.0)
    world.permit(world.request("vm", cu(1)), at=2.0)
    world.read("vm", cu(1), at=2.5)
    assert world.node_reserved() == cu(4)
    assert permitted(world.published("vm", SlotResources(4, 4), at=3.0)) == (1, 1)
    for at, reserved in ((7.9, cu(4)), (8.0, cu(1))):
        world.read("vm", cu(1), at=at)
        assert world.node_reserved() == reserved


def test_the_floor_of_a_bystander_that_fell_silent_ends_by_a_read() -> None:
    world = two_kinds()
    world.published("vm", SlotResources(4, 4), at=1.0)
    for at in range(2, 200, 10):
        world.permit(world.request("vm", cu(1)), at=float(at))
        world.tick(float(at))
        world.read("vm", cu(1), at=float(at))
    assert world.floors() == []


def test_after_the_agents_silence_the_caller_owns_the_row() -> None:
    world = two_kinds()
    assert permitted(world.published("vm", SlotResources(6, 6), at=60.0)) == (6, 6)
    assert world.state().current == cu(6)


def test_an_agent_that_replaces_such_a_caller_takes_over_with_a_hand_over() -> None:
    world = served()
    world.published("vm", SlotResources(6, 6), at=0.0)
    assert world.permit(world.request("vm", cu(2), claim=cu(2)), at=10.0) == cu(2)
    assert world.floor("vm", Cause.HANDOVER).until_s == 70.0
    assert world.node_reserved() == cu(6)
    world.tick(70.0)
    assert world.node_reserved() == cu(2)


def test_an_agents_retry_makes_the_other_caller_a_bystander_again() -> None:
    world = served()
    request = world.request("vm", cu(4))
    world.permit(request, at=0.0)
    world.published("vm", SlotResources(4, 4), at=60.0)
    world.permit(request, at=61.0)
    world.published("vm", SlotResources(1, 1), at=62.0)
    assert world.state().current == cu(4)


def test_a_look_that_began_before_the_latest_read_is_no_news() -> None:
    world = world_with_vm(cu(4), config=EVERYWHERE)
    world.permit(world.request("vm", cu(4)), at=0.0)
    world.permit(world.request("vm", cu(2), claim=cu(4)), at=2.0)
    world.read("vm", cu(2), at=2.0)
    look = events.Look(found=True, reading=Observation(cu(4), cu(4), 1.0))
    request = AgentRequest(PluginProtoVersion.V1_1, pod("vm"), SlotResources(4, 4), METRICS)
    answer = world.send(request, at=3.0, look=look)
    assert isinstance(answer, events.Decided)
    assert answer.permit == cu(2)
