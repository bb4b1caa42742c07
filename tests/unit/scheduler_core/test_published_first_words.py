"""`--trust-published` after a restart: the first word of a caller without the extension counts as far as the node has room."""

from dataclasses import replace

from protocol.versions import PluginProtoVersion
from protocol.wire import AgentRequest, SlotResources
from scheduler.permits.core import events
from tests.support.amounts import UNIT, cu
from tests.unit.scheduler_core.core_worlds import METRICS, World, pod
from tests.unit.scheduler_core.test_published import TRUSTING, hung_up, permitted


def killed_and_back() -> World:
    """A node of 7.5 units with two VMs, no sizes, and callers whose word is taken; the process has just come back."""
    world = World(cu(7.5), config=replace(TRUSTING, is_first_start=False))
    for name in ("a", "b"):
        world.vm(name, None, is_new=False)
    world.tick(100.0)
    return world


def test_after_a_restart_first_words_count_as_far_as_they_fit_into_the_node_together() -> None:
    """They may be wishes: two of 6 units were told 12 of 7.5. What fits is served: a closed first request may be a runner's last."""
    world = killed_and_back()
    assert permitted(world.published("a", SlotResources(6, 6), use=None, at=101.0)) == (6, 6)
    why = hung_up(world.published("b", SlotResources(6, 6), use=None, at=102.0))
    assert ("n1" in why, "1500m" in why or "1.5" in why, "58 s" in why) == (True, True, True), why
    assert world.record("b").condition == why
    assert permitted(world.published("b", SlotResources(1, 1), use=None, at=103.0)) == (1, 1)


def test_a_first_word_beyond_the_room_is_held_first_and_counts_once_the_hand_over_has_passed() -> None:
    world = killed_and_back()
    permitted(world.published("a", SlotResources(6, 6), use=None, at=101.0))
    request = AgentRequest(PluginProtoVersion(2), pod("b"), SlotResources(6, 6), METRICS)
    look = events.Look(found=True)
    assert isinstance(world.send(request, at=102.0, look=look, since=101.5), events.LookNeeded)
    hung_up(world.published("b", SlotResources(6, 6), use=None, at=159.9))
    assert permitted(world.published("b", SlotResources(6, 6), use=None, at=160.0)) == (6, 6)


def test_a_first_word_beside_an_agent_with_the_extension_must_fit_too() -> None:
    world = killed_and_back()
    permitted(world.published("a", SlotResources(6, 6), use=None, at=101.0))
    assert isinstance(world.send(world.request("b", UNIT, claim=UNIT), at=102.0), events.Decided)
    hung_up(world.published("b", SlotResources(6, 6), use=None, at=103.0))
