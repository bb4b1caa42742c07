"""`/v1/pools` shows pools that are frozen, claim something, or hold more than they may."""

import json
from dataclasses import replace
from pathlib import Path

from hosting.metrics import Family
from protocol.values import Observation
from scheduler.permits.core import events
from scheduler.permits.core.core import Core
from scheduler.permits.core.model import NodeSpec
from scheduler.permits.core.state import SchedulerConfig
from scheduler.pools.chain.config import ChainConfig, Named, PluginRegistry
from scheduler.pools.chain.plugin import BasePlugin
from scheduler.pools.core.values import Excess, Pool, PoolLimits
from scheduler.pools.service import PoolService, pool_families
from tests.support.amounts import cu
from tests.support.virtual_time import now_s, virtually
from tests.unit.hosting.raw_peers import recorded
from tests.unit.scheduler_permits.service_worlds import INSTANCE, permit, seen
from tests.unit.scheduler_permits.test_pool_api import BANK, Api
from tests.unit.scheduler_pools.pool_worlds import Doorman, until


@virtually
async def test_a_pool_is_frozen_by_a_limit_of_nothing_and_thaws_with_another_one() -> None:
    api = Api()
    await api.create(limits={"maxUnits": 0})
    api.world.born("a", units=2)
    reply = await api.world.reply(api.world.body("a", 4))
    assert permit(reply) == (2, ["pool"])
    assert json.loads(reply.body)["reasons"][0]["message"] == "pool bank is frozen (maxUnits: 0)"
    assert (await api.conditions())["Frozen"] == ("True", "MaxUnitsZero")
    await api.ask("PUT", "/v1/pools/bank", {**BANK, "limits": {"maxUnits": 3}})
    assert await api.world.grow("a", 4) == (3, ["pool"])
    assert "Frozen" not in await api.conditions()


@virtually
async def test_who_came_beyond_the_limit_is_reported_by_condition_metric_and_log() -> None:
    core = Core(SchedulerConfig(instance=INSTANCE, is_first_start=True))
    log, lines = recorded()
    pools = PoolService(core, core.apply, now_s, log, registry=PluginRegistry)
    core.apply(events.NodeSeen(NodeSpec("n1", cu(100))))
    core.apply(events.ClockTicked(0.0))
    await pools.objects.create(Pool("bank", cu(1), PoolLimits(2)))
    for name in "abcde":
        event = seen(name, pool="bank")
        core.apply(replace(event, is_new=True, reading=Observation(cu(1), cu(1), 0.0)))
    await pools.flush()
    await pools.flush()
    said = [line for line in lines if "beyond" in line["event"]]
    assert [(line["pool"], line["vms"], line["units"], line["limit"]) for line in said] == [("bank", 3, 5, 2)]
    view = pools._api.view(pools.objects.pools()[0])
    assert view["status"]["cameBeyondLimit"] == 3
    shown = {each["type"]: (each["reason"], each["message"]) for each in view["status"]["conditions"]}
    assert shown["AboveLimit"][0] == "CameBeyond"
    assert shown["AboveLimit"][1].startswith("3 units beyond maxUnits")
    samples = {
        (family.name, labels): value
        for family in pool_families(core.ledger, pools.admission_queue, pools.stats)
        if isinstance(family, Family)
        for labels, value in family.samples
    }
    assert samples["parley_scheduler_pool_units", ("bank", "beyond")] == 3
    assert samples["parley_scheduler_pool_came_beyond", ("bank",)] == 3
    await pools.close()


class Lender(BasePlugin):
    """Two pools hold too much."""

    def excesses(self) -> list[Excess]:
        return [Excess("org", cu(1), ("bank", "nobody"))]


class Broken(BasePlugin):
    def excesses(self) -> list[Excess]:
        raise RuntimeError("no")


class Silent(BasePlugin):
    def excesses(self) -> None:
        """Nothing is no list."""


@virtually
async def test_the_vms_of_pools_that_hold_too_much_are_asked_for_it() -> None:
    core = Core(SchedulerConfig(instance=INSTANCE, is_first_start=True))
    log, lines = recorded()
    known = PluginRegistry()
    known.register("broken", lambda *_: Broken())
    known.register("silent", lambda *_: Silent())
    known.register("lender", lambda *_: Lender())
    pools = PoolService(core, core.apply, now_s, log, registry=lambda: known)
    await pools.configure(
        ChainConfig((Named("broken"), Named("silent"), Named("lender"))), Path("config.yaml")
    )
    core.apply(events.NodeSeen(NodeSpec("n1", cu(100))))
    for name in "ab":
        core.apply(replace(seen(name, pool="bank"), reading=Observation(cu(1), cu(1), 0.0)))
    assert list(pools.excesses()) == [("org", cu(1), ("uid-a", "uid-b"))]
    assert len([line for line in lines if line["event"] == "pool plugin failed"]) == 2
    await pools.close()


@virtually
async def test_what_was_refused_is_shown_as_claimed_until_when() -> None:
    api = Api(Doorman(4))
    await api.create()
    api.world.born("a")
    assert "claimedUnits" not in (await api.shown())["status"]
    await api.world.grow("a", 9)
    await until(20.0)
    status = (await api.shown())["status"]
    assert (status["claimedUnits"], status["claimedUntil"]) == (5, "2026-05-01T12:01:40Z")
