"""Policies in processes of their own: asked beside everything else, used while they answer, replaced by the built-in one."""

import pytest
from msgspec.structs import replace

from agent.core import events
from agent.core.policies.combined import Combined, PluginPolicy
from agent.core.policies.values import Goal, GoalPart, Load, PluginAnswer, ResourceGoal, Sizing
from protocol.values import ComputeUnit
from tests.support.amounts import UNIT, cu
from tests.unit.agent.driver import APART, TIMING, UTILISATION, VM, Driver, decreed

BUILT_IN = UTILISATION.policies[0][1]
ALONE = Combined((("plugin:theirs", PluginPolicy("theirs", built_in=BUILT_IN)),))
FAILED = events.PoliciesAnswered((PluginAnswer("theirs", None, "policy plugin theirs: no answer"),))


def started(policy: Combined = ALONE) -> Driver:
    """A runner at two units with a load for two, whose plugin wants three."""
    driver = Driver(policy=policy)
    driver.plugins = decreed(3)
    return driver


def test_the_vm_follows_the_plugin_at_once_and_each_reading_is_one_question() -> None:
    driver = started().wait(12)
    assert driver.size == cu(3)
    assert "decree" in driver.plan().reason.cpu
    assert len(driver.of(events.AskPolicies)) == len(driver.of(events.ReadMetrics)) - 1, (
        "the first of two counters"
    )
    driver.plugins = decreed(5)
    assert driver.wait(6).size == cu(5)


def test_the_first_answer_is_waited_for_and_the_built_in_goal_does_not_count_before() -> None:
    driver = started()
    driver.by_hand = {events.AskPolicies}
    driver.load(6).wait(7)
    assert driver.size == cu(2)
    driver.finish(events.AskPolicies, decreed(3)(*_question(driver))).wait(1)
    assert driver.size == cu(3)


def _question(driver: Driver) -> tuple[Load, Sizing]:
    asked = driver.of(events.AskPolicies)[-1]
    return asked.load, asked.sizing


def test_without_an_answer_the_built_in_policy_decides_and_says_so() -> None:
    driver = started()
    driver.plugins = lambda _load, _sizing: FAILED
    driver.load(6).wait(12)
    assert driver.size == cu(6)
    assert driver.plan().reason.cpu.startswith("policy plugin theirs: no answer; built-in utilisation: ")
    assert driver.state.policies.fault == "policy plugin theirs: no answer"
    driver.plugins = decreed(4)
    driver.wait(12)
    assert (driver.size, driver.state.policies.fault) == (cu(4), "")


def test_a_plugin_that_hangs_holds_nothing_up() -> None:
    """The next reading has a goal with what is known, the permit and the resize follow, and no second question is asked."""
    driver = started().wait(12)
    driver.by_hand = {events.AskPolicies}
    driver.load(8).wait(TIMING.metrics_stale_s + 2 * TIMING.metrics_s)
    assert driver.size == cu(8)
    assert driver.is_flying(events.AskPolicies)
    assert driver.plan().reason.cpu.startswith("policy plugin theirs has not answered; built-in")
    driver.finish(events.AskPolicies, FAILED)
    assert driver.is_flying(events.AskPolicies), "the newest reading waited for its turn"


def test_a_late_answer_is_the_goal_for_the_newest_load() -> None:
    both = Combined((*UTILISATION.policies, *ALONE.policies))
    driver = started(both).wait(12)
    driver.by_hand = {events.AskPolicies}
    driver.wait(6).load(7).wait(6)
    driver.finish(events.AskPolicies, decreed(1)(*_question(driver)))
    assert driver.wait(1).size == cu(7)


@pytest.mark.parametrize(
    ("unit", "units"),
    [(ComputeUnit(UNIT), 3), (ComputeUnit(UNIT * 2), 2)],
    ids=["the same unit", "another unit"],
)
def test_answers_count_in_the_units_they_were_asked_in(unit: ComputeUnit, units: int) -> None:
    driver = started().wait(12)
    driver.by_hand = {events.AskPolicies}
    driver.load(4).tell(events.VmChanged(replace(VM, unit=unit))).wait(6)
    latest = driver.state.metrics.remembered.goals.latest
    assert latest is not None
    assert latest.units().cpu == units


def test_parts_of_a_plugins_goal_are_told_with_its_name() -> None:
    goal = ResourceGoal(4, "queue", (GoalPart("queue", 4, "9 jobs wait"),))
    driver = started()
    driver.plugins = lambda _load, _sizing: events.PoliciesAnswered(
        (PluginAnswer("theirs", Goal(goal, goal)),)
    )
    driver.wait(12)
    latest = driver.state.metrics.remembered.goals.latest
    assert latest is not None
    assert [(part.policy, part.reason) for part in latest.cpu.parts] == [
        ("plugin:theirs/queue", "9 jobs wait")
    ]


def test_a_resource_that_the_plugin_says_nothing_about_is_the_built_in_policys() -> None:
    goal = Goal(ResourceGoal(5, "decree"), ResourceGoal(None, "no word on memory"))
    driver = Driver(vm=APART, policy=ALONE).memory(4)
    driver.plugins = lambda _load, _sizing: events.PoliciesAnswered((PluginAnswer("theirs", goal),))
    assert driver.wait(12).size == cu(5, 4)
    assert driver.plan().reason.memory.startswith("no word on memory; built-in utilisation: ")
