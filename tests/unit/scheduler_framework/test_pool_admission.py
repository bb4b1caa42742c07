"""`PoolAdmission`: what a pool's answer means for its pod, and which events may help a pod that was refused."""

from typing import Any

import pytest

from hosting.settings import FaultsError
from protocol.reasons import Reason, ReasonCode
from scheduler.placing.core.values import ActionType, Code, EventResource, QueueingHint, SchedulingEvent
from scheduler.placing.plugins.ledger_fit import PoolAdmission
from tests.support.amounts import cu
from tests.unit.scheduler_framework.plugin_worlds import (
    Assumed,
    HandleAsTold,
    Notes,
    PoolsAsTold,
    node,
    pod,
    told,
)


@pytest.mark.parametrize(
    ("refusal", "code"),
    [
        (None, Code.SUCCESS),
        (ReasonCode.POOL, Code.UNSCHEDULABLE_AND_UNRESOLVABLE),
        (ReasonCode.POOL_SATURATED, Code.UNSCHEDULABLE_AND_UNRESOLVABLE),
        (ReasonCode.POOL_PARKED, Code.UNSCHEDULABLE_AND_UNRESOLVABLE),
        (ReasonCode.POOL_FAILED, Code.ERROR),
        (ReasonCode.PROBE_DEADLINE, Code.ERROR),
    ],
)
async def test_a_pod_of_a_pool_is_placed_as_the_pool_says(refusal: ReasonCode | None, code: Code) -> None:
    reason = Reason(refusal, "8 of 8 units are used") if refusal is not None else None
    handle = HandleAsTold(placement_admission=PoolsAsTold(reason))
    made = PoolAdmission({"deadlineSeconds": 1.5}, handle.extended)
    found, status = await made.pre_filter(Notes(), pod("new", cu(2), pool="ci"), [])
    assert (found, told(status)) == (None, (code, "pool ci: 8 of 8 units are used" if reason else ""))
    assert handle.placement_admission.asked == [("ci", cu(2), 1001.5)]


@pytest.mark.parametrize(("pool", "kept_on"), [(None, None), ("ci", "b")], ids=["no pool", "kept already"])
async def test_nobody_is_asked_about_a_pod_of_no_pool_or_one_that_counts_there(
    pool: str | None, kept_on: str | None
) -> None:
    handle, nodes = HandleAsTold(), [node("a", cu(8)), node("b", cu(8))]
    if kept_on is not None:
        handle.placements.kept["uid-new"] = Assumed("default/new", kept_on, cu(2), 1000.0, pool, None)
    asking = pod("new", cu(2), pool=pool)
    _, status = await PoolAdmission(None, handle.extended).pre_filter(Notes(), asking, nodes)
    assert (told(status), handle.placement_admission.asked) == ((Code.SKIP, ""), [])


@pytest.mark.parametrize(
    ("resource", "action", "before", "after", "hint"),
    [
        (EventResource.POD, ActionType.DELETE, pod("x", pool="ci"), None, QueueingHint.QUEUE),
        (EventResource.POD, ActionType.DELETE, pod("x", pool="other"), None, QueueingHint.SKIP),
        (EventResource.POD, ActionType.ADD, None, pod("x", pool="ci"), None),
        (EventResource.POOL, ActionType.UPDATE, "ci", "ci", QueueingHint.QUEUE),
        (EventResource.POOL, ActionType.UPDATE, "other", "other", QueueingHint.SKIP),
        (EventResource.POOL, ActionType.UPDATE, None, None, QueueingHint.QUEUE),
    ],
)
def test_only_events_of_its_own_pool_help(
    resource: EventResource, action: ActionType, before: Any, after: Any, hint: QueueingHint | None
) -> None:
    events = PoolAdmission(None, HandleAsTold().extended).events_to_register()
    asked = [each.hint for each in events if each.resource is resource and action in each.action]
    event = SchedulingEvent(resource, action, before, after)
    hints = [asking(pod("new", pool="ci"), event) for asking in asked if asking is not None]
    assert hints == ([hint] if hint is not None else [])


def test_the_deadline_has_a_range() -> None:
    with pytest.raises(FaultsError, match="deadlineSeconds: must be at most 10"):
        PoolAdmission({"deadlineSeconds": 60}, HandleAsTold().extended)
