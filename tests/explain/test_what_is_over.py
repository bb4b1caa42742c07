"""What is over is no cause: a wait that has ended, a refusal after which another agent was answered; and a migration that fails limits nothing."""

import asyncio
from dataclasses import replace
from typing import Any
from uuid import UUID

from hosting.server import Request
from parley.explain.program import gather
from protocol.explaining import Explanation
from protocol.extension import AGENT_HEADER
from scheduler.permits.core import events
from scheduler.permits.core.model import Migration
from scheduler.permits.core.rules import DEFAULT_RULES
from scheduler.pools.core.values import Context, Pool
from tests.explain.plays_of_agents import AWAY
from tests.explain.scheduler_side import SchedulerSide
from tests.explain.stage import Stage, StageReach, staged
from tests.support.virtual_time import now_s, virtually
from tests.unit.scheduler_permits.service_worlds import ask
from tests.unit.scheduler_pools.pool_worlds import Doorman, raises

OTHER_AGENT = UUID(int=9)


def code_of(lines: tuple[str, ...]) -> str:
    """The code at the end of the first line."""
    return lines[0].rpartition("(")[2].removesuffix(").")


async def explained(stage: Stage) -> Explanation:
    """What the scheduler tells."""
    found = (await gather(StageReach(stage), "shop/web")).evidence.scheduler
    assert isinstance(found, Explanation), found
    return found


async def _fails_late(ctx: Context, pool: Pool) -> Any:
    del ctx, pool
    await asyncio.sleep(0.4)
    raise RuntimeError("broken")


@virtually
async def test_a_vm_whose_request_was_held_and_that_has_what_it_wants_is_satisfied() -> None:
    """Its slow pool fails as before; then its load falls. Neither leaves a decision behind, so the latest one is the wait."""
    scheduler, slow, broken = SchedulerSide(), Doorman(label="slow"), Doorman(label="broken")
    broken.says = raises(RuntimeError("broken"))
    scheduler.use(slow, broken)
    await scheduler.pool("bank")
    async with staged(scheduler, pool="bank") as stage:
        await stage.grows_in_vain(5)
        slow.delay_s, broken.says = 0.4, _fails_late
        await stage.wait(30.0)
        stage.agent.load(2)
        await stage.wait(60.0)
        outcomes = [each.outcome.value for each in (await explained(stage)).decisions]
        assert outcomes == ["held", "denied"]
        assert code_of(await stage.lines()) == "satisfied"


async def _other_agent_asks(stage: Stage, number: int) -> None:
    started_ms = stage.agent.runner.state.life.started_at_ms + 5000
    body = ask(
        "web",
        2,
        number,
        claim=2,
        pod={"name": "web", "namespace": "shop"},
        agentID=str(OTHER_AGENT),
        agentStartedAtMs=started_ms,
    )
    await stage.scheduler.serve(Request("POST", "/", body, {AGENT_HEADER.lower(): str(OTHER_AGENT)}))


@virtually
async def test_a_vm_whose_agent_was_superseded_long_ago_is_not() -> None:
    """The other agent's requests change nothing, so the latest decision is the refusal."""
    async with staged(SchedulerSide()) as stage:
        await stage.settled()
        await _other_agent_asks(stage, 1)
        await stage.until(lambda: stage.agent.document()["state"] == "dormant")
        await stage.agent_ends(AWAY)
        assert code_of(await stage.lines()) == "superseded"
        for number in range(2, 20):
            await _other_agent_asks(stage, number)
            assert code_of(await stage.lines()) == "permitted"
            await stage.wait(15.0)
        last = (await explained(stage)).decisions[0]
        assert [each.code for each in last.limits] == ["agent-superseded"]


@virtually
async def test_a_migration_that_cannot_be_started_is_a_note_beside_the_limit() -> None:
    """Web should leave its node, and nothing can move it; what holds it back is its node."""
    scheduler = SchedulerSide(room=8)
    scheduler.pod("proxy", 5)
    async with staged(scheduler) as stage:
        await stage.grows_in_vain(5)
        record = scheduler.record("web")
        record.spec = replace(record.spec, migration=Migration.ALWAYS)
        record.load1 = 4.0
        scheduler.service.take(events.Configured(replace(DEFAULT_RULES, migration_enabled=True)))
        await stage.wait(90.0)
        lines = await stage.lines()
        assert code_of(lines) == "node-headroom"
        assert "its migration could not be started: nothing here can migrate VMs" in lines[-1]
        scheduler.service.take(events.MigrationStarted("uid-web"))
        await stage.wait(20.0)
        lines = await stage.lines()
        assert code_of(lines) == "migrating"
        assert not any("could not be started" in line for line in lines)
        scheduler.service.take(events.MigrationEnded("uid-web", now_s() + 60.0))
        await stage.wait(20.0)
        assert (
            "the migration was given up, and the VM stays on node n1; the next one is tried in 40 s"
            in (await stage.lines())[-1]
        )
