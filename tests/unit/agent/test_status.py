"""What the agent's page tells of a VM."""

import json
from typing import Any

from agent.core import events
from agent.core.state import PermitRequest
from agent.daemon import status
from tests.support.amounts import cu
from tests.support.virtual_time import now_s, virtually
from tests.support.waiting import until
from tests.unit.agent.driver import FULL, grant
from tests.unit.agent.peers import World, running


@virtually
async def test_the_page_of_a_vm_tells_what_happened_but_not_the_registration() -> None:
    made = World()
    async with running(made) as task:
        await until(lambda: made.runner.state.informant.version is not None, beside=task)
        registration = made.runner.state.informant.registration
        page = status.details(made.runner)
    events = [item["event"] for item in json.loads(page)["journal"]]
    assert {"Started", "Fenced", "Registered"} <= set(events)
    assert str(registration).encode() not in page


@virtually
async def test_a_reason_is_told_while_the_vm_is_denied_and_no_longer() -> None:
    made = World()
    async with running(made) as task:
        await until(lambda: made.held.now() == cu(2), beside=task)
        made.scheduler.script = [_refused] * 9999
        made.policy.units = 3
        await until(lambda: _now(made)["reasonCode"] == "node-headroom", beside=task)
        assert _now(made)["reason"] == "node-headroom: the node is full"
        made.policy.units = 2
        await until(lambda: _now(made)["state"] == "ok", beside=task)
        assert made.runner.state.scheduler.reasons, "the refusal stands until another answer comes"
        planned = made.runner.last_plan
        assert planned is not None
        assert (_now(made)["reasonCode"], _now(made)["reason"]) == (None, planned.reason)


def _now(made: World) -> dict[str, Any]:
    return status.vm_status(made.runner, now_s())


def _refused(request: PermitRequest) -> events.PermitGranted:
    """The size of now, and why not more."""
    return grant(request, cu(2), sent_s=now_s(), reasons=FULL)
