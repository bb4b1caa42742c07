"""Callers without the extension: where they are served, what closes the connection, and what stays reserved."""

from dataclasses import replace

import pytest

from protocol.reasons import ErrorCode, ReasonCode
from protocol.values import Observation, Resources
from protocol.versions import PluginProtoVersion
from protocol.wire import AgentRequest, SlotResources
from scheduler.core import events, replies
from scheduler.core.ledger import Cause
from scheduler.core.state import SchedulerConfig
from tests.support.amounts import GIB, UNIT, cu
from tests.unit.scheduler_core.core_worlds import EVERYWHERE, HERE, METRICS, World, pod, world_with_vm

TRUSTING = SchedulerConfig(HERE, is_first_start=True, published_agents=("*",), trust_published=True)


def served(
    use: Resources | None = UNIT, *, is_new: bool = True, config: SchedulerConfig = EVERYWHERE
) -> World:
    """A VM on a node where callers without the extension are served."""
    return world_with_vm(use, config=config, is_new=is_new)


def told(answer: events.Answer) -> tuple[int, int]:
    """The permit that the caller reads; what would be fatal to it is checked on the way."""
    assert isinstance(answer, events.Decided), answer
    permit = replies.message(answer).permit
    assert permit.vcpu > 0
    assert permit.mem > 0
    assert replies.message(answer).migrate is None
    return permit.vcpu, permit.mem


# ------------------------------------------------------------ whether it is served


@pytest.mark.parametrize("globs", [(), ("n2", "m*"), ("N1",)])
def test_on_other_nodes_it_is_403(globs: tuple[str, ...]) -> None:
    world = served(config=SchedulerConfig(HERE, is_first_start=True, published_agents=globs))
    answer = world.published("vm", SlotResources(1, 1))
    assert isinstance(answer, events.Refused)
    assert (answer.status, answer.code) == (403, ErrorCode.PUBLISHED_AGENT_NOT_ALLOWED)


@pytest.mark.parametrize("glob", ["n1", "n*", "[mn]1", "*"])
def test_globs_name_the_nodes_where_it_is_served(glob: str) -> None:
    assert told(
        served(config=SchedulerConfig(HERE, is_first_start=True, published_agents=(glob,))).published(
            "vm", SlotResources(2, 2)
        )
    ) == (2, 2)


def test_every_request_takes_a_fresh_look() -> None:
    world = served()
    request = AgentRequest(PluginProtoVersion(2), pod("vm"), SlotResources(1, 1), METRICS)
    assert world.send(request) == events.LookNeeded(7, pod("vm"))
    world.published("vm", SlotResources(1, 1))
    assert world.send(request) == events.LookNeeded(7, pod("vm"))


def test_a_pod_that_the_look_does_not_find_is_404() -> None:
    world = World(config=EVERYWHERE)
    request = AgentRequest(PluginProtoVersion(2), pod("gone"), SlotResources(1, 1), METRICS)
    answer = world.send(request, at=10.0, look=events.Look(found=False), since=0.0)
    assert isinstance(answer, events.Refused)
    assert (answer.status, answer.code) == (404, ErrorCode.UNKNOWN_POD)


def test_a_pod_that_is_there_but_not_understood_is_no_404() -> None:
    """The VM's object may be malformed; 404 would end its agent for good."""
    request = AgentRequest(PluginProtoVersion(2), pod("odd"), SlotResources(1, 1), METRICS)
    answer = World(config=EVERYWHERE).send(request, at=10.0, look=events.Look(found=True), since=0.0)
    assert isinstance(answer, events.HungUp)


@pytest.mark.parametrize("version", [0, 3, 7])
def test_a_version_that_is_not_spoken_is_400(version: int) -> None:
    answer = served().published("vm", SlotResources(1, 1), version=version)
    assert isinstance(answer, events.Refused)
    assert (answer.status, answer.code) == (400, ErrorCode.UNSUPPORTED_VERSION)


def test_null_metrics_need_v1_1() -> None:
    answer = served().published("vm", SlotResources(1, 1), version=1, metrics=None)
    assert isinstance(answer, events.Refused)
    assert (answer.status, answer.code) == (400, ErrorCode.METRICS_REQUIRED)
    assert told(served().published("vm", SlotResources(1, 1), metrics=None)) == (1, 1)


def test_the_unit_is_the_vms_else_the_nodes() -> None:
    world = World(config=EVERYWHERE, unit=cu(1, 2))
    world.vm("vm", cu(1, 2))
    world.vm("own", cu(1, 3), unit=cu(1, 3))
    for name, unit in (("vm", SlotResources(1, 2)), ("own", SlotResources(1, 3))):
        answer = world.published(name, unit, use=cu(1, unit.mem))
        assert isinstance(answer, events.Decided)
        assert replies.message(answer).compute_unit == unit


# ------------------------------------------------------------ hang-ups


def hung_up(answer: events.Answer) -> str:
    assert isinstance(answer, events.HungUp), answer
    return answer.why


@pytest.mark.parametrize("want", [SlotResources(0, 0), SlotResources(0, 1), SlotResources(1, 0)])
def test_a_request_of_nothing_closes_the_connection(want: SlotResources) -> None:
    world = served()
    assert "zero" in hung_up(world.published("vm", want))
    assert world.record().condition
    assert world.state().reserved == UNIT


def test_without_a_unit_the_connection_is_closed() -> None:
    world = World(config=EVERYWHERE, unit=None)
    world.vm("vm")
    assert "unit" in hung_up(world.published("vm", SlotResources(1, 1)))


def test_a_vm_whose_unit_or_maximum_is_no_whole_number_closes_the_connection() -> None:
    world = World(config=EVERYWHERE, unit=Resources(250, GIB))
    world.vm("unit")
    world.vm("maximum", most=Resources(2500, 4 * GIB), unit=UNIT)
    assert "fractions" in hung_up(world.published("unit", SlotResources(1, 1)))
    assert "fractions" in hung_up(world.published("maximum", SlotResources(1, 1)))


def test_a_permit_is_not_rounded_below_what_is_in_use() -> None:
    """1.5 CPU are in use and no more is left: one CPU would be told to a VM that uses more."""
    use = Resources(1500, 2 * GIB)
    world = World(use, config=EVERYWHERE)
    world.vm("vm", use)
    answer = world.published("vm", SlotResources(2, 2), use=use)
    if isinstance(answer, events.Decided):
        assert replies.message(answer).permit.vcpu * 1000 >= 1500
    else:
        assert isinstance(answer, events.HungUp)


def test_without_sizes_the_connection_is_closed_unless_its_word_is_trusted() -> None:
    assert "size" in hung_up(served(None, is_new=False).published("vm", SlotResources(1, 1), use=None))
    trusting = served(None, is_new=False, config=TRUSTING)
    assert told(trusting.published("vm", SlotResources(3, 3), use=None)) == (3, 3)
    assert trusting.state().current == cu(3)


# ------------------------------------------------------------ permits


def test_growth_is_judged_like_any_other() -> None:
    world = served()
    world.other_pod("filler", cu(6))
    assert told(world.published("vm", SlotResources(7, 7))) == (4, 4)
    assert world.node_reserved() == cu(10)


@pytest.mark.parametrize(
    "want",
    [SlotResources(1, 1), SlotResources(2, 2), SlotResources(3, 3), SlotResources(5, 5), SlotResources(7, 2)],
)
def test_a_permit_is_never_above_the_request_nor_below_the_smaller_of_request_and_use(
    want: SlotResources,
) -> None:
    world = served(cu(1))
    world.other_pod("filler", cu(9))
    vcpu, mem = told(world.published("vm", want, use=cu(3), at=1.0))
    assert min(want.vcpu, 3) <= vcpu <= want.vcpu
    assert min(want.mem, 3) <= mem <= want.mem


def test_a_condition_ends_when_the_caller_is_served_again() -> None:
    world = served()
    world.published("vm", SlotResources(0, 0))
    world.published("vm", SlotResources(1, 1), at=1.0)
    assert world.record().condition == ""


# ------------------------------------------------------------ settlement


def test_a_read_settles_the_request_up_to_the_use_and_keeps_the_rest_told() -> None:
    world = served(cu(3), is_new=False)
    assert told(world.published("vm", SlotResources(3, 3), use=cu(3))) == (3, 3)
    assert world.record().settled
    assert world.state().current == cu(3)
    assert world.floors() == [(Cause.TOLD, cu(8))]


def test_growth_that_fits_settles_at_once() -> None:
    world = served(cu(1), is_new=False)
    assert told(world.published("vm", SlotResources(5, 5))) == (5, 5)
    assert world.record().settled


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
    assert told(first_asked(world, at=102.99, use=cu(5))) == (5, 5)


def test_what_the_last_look_showed_counts_when_nobody_waits_any_more() -> None:
    world = unsettled_and_full()
    assert told(first_asked(world, at=103.0, use=cu(2))) == (3, 3)
    assert world.record().settled


def test_a_later_request_is_not_held() -> None:
    world = unsettled_and_full()
    first_asked(world, at=103.0, use=cu(2))
    answer = world.send(
        REQUEST, at=110.0, look=events.Look(True, Observation(cu(2), cu(2), 110.0)), since=110.0
    )
    assert told(answer) == (3, 3)


def test_a_first_request_for_a_pod_that_is_not_there_yet_is_held_and_then_404() -> None:
    world = World(config=EVERYWHERE)
    assert isinstance(first_asked(world, at=102.9, use=None), events.LookNeeded)
    answer = first_asked(world, at=103.0, use=None)
    assert isinstance(answer, events.Refused)
    assert (answer.status, answer.code) == (404, ErrorCode.UNKNOWN_POD)


def test_a_first_request_for_a_pod_that_comes_while_it_is_held_is_answered() -> None:
    world = World(config=EVERYWHERE)
    assert isinstance(first_asked(world, at=101.0, use=None), events.LookNeeded)
    world.vm("vm", cu(2), at=102.0)
    assert told(first_asked(world, at=102.0, use=cu(2))) == (5, 5)


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
    assert told(first_asked(world, at=130.0, use=cu(1))) == (3, 3)


def test_such_a_request_that_fits_is_permitted_whole() -> None:
    world = served(cu(1), is_new=False, config=STARTED)
    assert told(first_asked(world, at=100.0, use=cu(1), begun=40.0)) == (5, 5)
    assert world.record().settled


def test_what_this_process_told_it_bounds_its_use_where_reads_are_stale() -> None:
    world = served(cu(1), is_new=False, config=STARTED)
    assert told(first_asked(world, at=100.0, use=cu(1), begun=40.0)) == (5, 5)
    world.other_pod("filler", cu(7))
    wish = AgentRequest(PluginProtoVersion(2), pod("vm"), SlotResources(7, 7), METRICS)
    old = events.Look(True, Observation(cu(1), cu(1), 40.0))
    assert told(world.send(wish, at=110.0, look=old, since=110.0)) == (5, 5)


def test_what_a_trusted_caller_sends_is_a_wish_once_it_was_told_something() -> None:
    """Two VMs of 1 unit on a node of 7.5 are patched to 6: both have asked for what they had before."""
    world = World(cu(7.5), config=TRUSTING)
    for name in ("a", "b"):
        world.vm(name, None, is_new=False)
        assert told(world.published(name, SlotResources(1, 1), use=None)) == (1, 1)
        assert told(world.published(name, SlotResources(1, 1), use=None, at=6.0)) == (1, 1)
    assert told(world.published("a", SlotResources(6, 6), use=None, at=10.0)) == (6, 6)
    assert told(world.published("b", SlotResources(6, 6), use=None, at=10.0)) == (1, 1)
    assert world.core.ledger.node("n1").reserved.fits_in(cu(7.5))  # type: ignore[union-attr]  # it is there


def test_the_word_of_a_trusted_caller_ends_nothing_where_sizes_are_shown() -> None:
    """They are from before our start, and show what it was told before: only a later read frees that."""
    world = served(cu(6), is_new=False, config=replace(TRUSTING, started_s=50.0))
    for at in (100.0, 107.0, 114.0):
        old = events.Look(True, Observation(cu(6), cu(6), 40.0))
        wish = AgentRequest(PluginProtoVersion(2), pod("vm"), SlotResources(2, 2), METRICS)
        assert told(world.send(wish, at=at, look=old, since=at)) == (2, 2)
    assert world.floors() == [(Cause.TOLD, cu(8))]


def test_what_it_was_told_is_no_use_any_more_once_another_agent_has_shrunk_the_vm() -> None:
    """The other one is gone, its room is a neighbour's, and what the caller sends is a wish."""
    world = World(config=TRUSTING)
    for name in ("a", "b"):
        world.vm(name, None, is_new=False)
    for at in (0.0, 7.0):
        assert told(world.published("a", SlotResources(6, 6), use=None, at=at)) == (6, 6)
    world.permit(world.request("a", cu(6), claim=cu(6)), at=100.0)
    world.permit(world.request("a", cu(2), claim=cu(2)), at=110.0)
    world.tick(290.0)
    world.permit(world.request("b", cu(8), claim=UNIT), at=290.0)
    vcpu, _ = told(world.published("a", SlotResources(6, 6), use=None, at=310.0))
    assert vcpu <= 2
    assert world.node_reserved().fits_in(cu(10))


def test_a_bystander_of_unknown_use_is_not_answered_below_its_request_either() -> None:
    world = served(cu(2), is_new=False, config=STARTED)
    world.permit(world.request("vm", cu(2), claim=cu(2)), at=99.0)
    assert isinstance(first_asked(world, at=100.0, use=cu(2), begun=40.0), events.LookNeeded)
    assert "not known" in hung_up(first_asked(world, at=103.0, use=cu(2), begun=40.0))


def test_where_no_such_caller_is_served_nobody_is_held() -> None:
    world = World(config=SchedulerConfig(HERE, is_first_start=True))
    answer = world.send(REQUEST, at=100.0, look=events.Look(found=False), since=100.0)
    assert isinstance(answer, events.Refused)
    assert answer.status == 404


# ------------------------------------------------------------ told less


def lowered() -> World:
    """Its caller was told 6 at 0 s and asked for 2 at 10 s."""
    world = served()
    assert told(world.published("vm", SlotResources(6, 6), at=0.0)) == (6, 6)
    assert told(world.published("vm", SlotResources(2, 2), at=10.0, use=cu(2))) == (2, 2)
    return world


def test_a_decrease_keeps_what_was_told_before() -> None:
    world = lowered()
    assert world.state().current == cu(2)
    assert world.floors() == [(Cause.TOLD, cu(6))]
    assert world.node_reserved() == cu(6)


@pytest.mark.parametrize(("at", "reserved"), [(14.9, cu(6)), (15.0, cu(2))])
def test_it_ends_with_a_read_begun_a_command_deadline_later(at: float, reserved: Resources) -> None:
    world = lowered()
    world.read("vm", cu(2), at=at)
    assert world.state().reserved == reserved


def test_it_does_not_end_by_the_clock_nor_by_the_same_amount() -> None:
    world = lowered()
    world.tick(500.0)
    world.read("vm", cu(6), at=501.0)
    assert world.state().reserved == cu(6)


def test_a_read_is_wanted_once_it_could_end_the_floor() -> None:
    world = lowered()
    assert world.tick(14.0) == []
    assert world.tick(15.0) == ["vm"]


def test_what_the_read_still_shows_stays_observed() -> None:
    world = lowered()
    world.read("vm", cu(4, 6), at=20.0)
    assert world.state().reserved == cu(4, 6)
    assert world.causes() == {Cause.OBSERVED}


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


def test_a_trusted_word_is_the_read_that_ends_the_floor() -> None:
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
    assert told(world.published("vm", SlotResources(8, 8), at=11.0, use=cu(2))) == (6, 6)


# ------------------------------------------------------------ beside an agent with the extension


def two_kinds(*, held: Resources | None = None) -> World:
    """An agent with the extension was answered at 0 s with `held` (4 units), on a node of 10."""
    world = served()
    world.permit(world.request("vm", held or cu(4)), at=0.0)
    return world


@pytest.mark.parametrize(
    ("want", "permit"),
    [(SlotResources(6, 6), (4, 4)), (SlotResources(3, 3), (3, 3)), (SlotResources(6, 2), (4, 2))],
)
def test_a_bystander_gets_what_is_current_and_changes_nothing(
    want: SlotResources, permit: tuple[int, int]
) -> None:
    world = two_kinds()
    assert told(world.published("vm", want, at=59.9)) == permit
    assert world.state().current == cu(4)
    assert world.state().reserved == cu(4)
    assert world.record().condition


def test_a_bystander_learns_why_it_gets_less() -> None:
    answer = two_kinds().published("vm", SlotResources(6, 6), at=1.0)
    assert isinstance(answer, events.Decided)
    assert [reason.code for reason in answer.reasons] == [ReasonCode.BYSTANDER]


def test_what_a_bystander_was_told_stays_reserved_when_the_agent_shrinks() -> None:
    world = two_kinds()
    world.published("vm", SlotResources(4, 4), at=1.0)
    world.permit(world.request("vm", cu(1)), at=2.0)
    world.read("vm", cu(1), at=30.0)
    assert world.node_reserved() == cu(4)


def test_a_bystander_told_less_keeps_its_floor_until_a_read_shows_less() -> None:
    world = two_kinds()
    world.published("vm", SlotResources(4, 4), at=1.0)
    world.permit(world.request("vm", cu(1)), at=2.0)
    assert told(world.published("vm", SlotResources(4, 4), at=3.0)) == (1, 1)
    assert world.node_reserved() == cu(4)
    world.read("vm", cu(1), at=7.9)
    assert world.node_reserved() == cu(4)
    world.read("vm", cu(1), at=8.0)
    assert world.node_reserved() == cu(1)


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
    assert told(world.published("vm", SlotResources(6, 6), at=60.0)) == (6, 6)
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
    """The retry's reply renews what the agent holds."""
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
