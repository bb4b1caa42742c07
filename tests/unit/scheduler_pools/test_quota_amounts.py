"""The `quota` plugin where tenants' limits name CPU and memory: its args, its caps, and what VMs get through the queue."""

import json
from dataclasses import replace
from typing import Any

import pytest
import yaml

from hosting.settings import FaultsError, check
from protocol import quantities
from protocol.values import ZERO, Observation, Resources
from scheduler.permits.core import events
from scheduler.pools.chain.plugin import PoolHandle, ProviderSet
from scheduler.pools.core.admission_state import COOLDOWN_S
from scheduler.pools.core.values import ADMITTED, Admission, Context, Measures, Pool, PoolLimits, Purpose
from scheduler.pools.shipped import quota, quota_args
from scheduler.pools.shipped.quota import QuotaPlugin
from scheduler.pools.shipped.quota_args import QuotaArgs
from tests.support.amounts import GIB, UNIT, cu
from tests.support.virtual_time import now_s, virtually
from tests.unit.scheduler_permits.service_worlds import ask, seen
from tests.unit.scheduler_pools.pool_worlds import PoolWorld, until
from tests.unit.scheduler_pools.quota_hosts import QuotaHost

ONE = """
computeUnit: {cpu: 1, memory: 1Gi}
tenants: [{name: t, limits: {cpu: 10, memory: 40Gi}}, {name: free}]
"""
TREE = """
computeUnit: {cpu: 1, memory: 1Gi}
tenants:
- {name: org, limits: {cpu: 20, memory: 40Gi}}
- {name: t, parent: org, guarantees: {memory: 8Gi}}
- {name: u, parent: org}
- {name: plain, limit: 5}
"""
PROBE = Context(Purpose.PROBE)


def pool(name: str, tenant: str, held: Resources = ZERO, least: int = 0) -> Pool:
    labels = {quota_args.TENANT_LABEL: tenant}
    limits = PoolLimits(min_units=least)
    return Pool(name, UNIT, limits, labels, replicas=held.units(UNIT), amount=held)


def plugin(host: Any, text: str = ONE) -> QuotaPlugin:
    return quota.factory(host, ProviderSet(), yaml.safe_load(text))


def asked(made: QuotaPlugin, about: Pool, amount: Resources, units: int | None = None) -> Admission:
    return made.pre_update_pool(PROBE, about.with_replicas(units or amount.units(UNIT), amount), ())


def caps(answer: Admission) -> dict[str, float]:
    return {cap.resource: cap.most / (1000 if cap.resource == "cpu" else GIB) for cap in answer.amounts}


# ------------------------------------------------------------ args


def test_limit_and_guaranteed_are_short_for_the_units() -> None:
    text = "{computeUnit: {cpu: 1, memory: 1Gi}, tenants: [{name: a, %s}, {name: b, parent: a, %s}]}"
    short = check(yaml.safe_load(text % ("limit: 7", "guaranteed: 3")), QuotaArgs)
    whole = check(yaml.safe_load(text % ("limits: {units: 7}", "guarantees: {units: 3}")), QuotaArgs)
    for args in (short, whole):
        (tree,) = quota_args.trees_of(args).values()
        assert [(node.limit_units, node.guaranteed_units) for node in tree.nodes] == [(7, 3), (None, 3)]


def test_all_faults_of_amounts_are_named_at_once() -> None:
    text = """
    computeUnit: {cpu: 1, memory: 1Gi}
    tenants:
    - {name: a, limit: 3, limits: {units: 4, memory: 1Gi}, guarantees: {memory: 2Gi}}
    - {name: b, limits: {cpu: many}, guarantees: {disk: 1}}
    - {name: c, limits: {cpu: 2}}
    - {name: d, parent: c, guarantees: {cpu: 2500m}}
    - {name: e, parent: nobody, guarantees: {units: 2}, limits: {units: 1}}
    """
    with pytest.raises(FaultsError) as caught:
        check(yaml.safe_load(text), QuotaArgs)
    with pytest.raises(ValueError, match="is not a quantity") as quantity:
        quantities.parse("many")
    assert sorted(caught.value.faults) == [
        "tenants[0].guarantees.memory: 2Gi exceeds its limit of 1Gi",
        "tenants[0].limit: is limits.units as well; leave one of them out",
        "tenants[1].guarantees.disk: there is no such setting",
        f"tenants[1].limits.cpu: {quantity.value}",
        "tenants[2].limits.cpu: 2 CPU is less than the 2500m CPU that tenants below it are guaranteed",
        "tenants[4].guarantees.units: 2 exceeds its limit of 1",
        "tenants[4].parent: there is no tenant 'nobody'",
    ]


@pytest.mark.parametrize(("tenant", "limits"), [("t", True), ("plain", False), ("org", False), ("x", False)])
def test_amounts_are_limited_where_the_tenant_or_one_above_it_says_so(tenant: str, limits: bool) -> None:
    assert plugin(QuotaHost(), TREE).limits_amounts(pool("p", tenant)) is limits


# ------------------------------------------------------------ caps


@pytest.mark.parametrize(
    ("held", "wanted", "found"),
    [
        (cu(2, 30), cu(7, 32), {}),
        (cu(2, 30), cu(8, 33), {}),
        (cu(2, 30), cu(9, 33), {"cpu": 8}),
        (cu(2, 30), cu(8, 34), {"memory": 33}),
        (cu(2, 30), cu(99, 99), {"cpu": 8, "memory": 33}),
        (cu(2, 36), cu(2, 38), {"memory": 36}),
        (ZERO, cu(9, 33), {"cpu": 8}),
    ],
)
def test_each_resource_is_capped_by_itself_and_no_units_are(
    held: Resources, wanted: Resources, found: dict[str, float]
) -> None:
    answer = asked(plugin(QuotaHost(pool("p", "t", held), pool("q", "t", cu(2, 7)))), pool("p", "t"), wanted)
    assert (answer.admitted, caps(answer)) == (None, found)
    assert (answer is ADMITTED) == (found == {})


def test_a_warm_minimum_takes_its_amounts() -> None:
    host = QuotaHost(pool("p", "t", cu(1, 20)), pool("q", "t", cu(1, 2), least=4))
    made = plugin(host)
    assert caps(asked(made, pool("p", "t"), cu(9, 99))) == {"cpu": 6, "memory": 36}
    update = Context(Purpose.UPDATE)
    assert made.pre_update_pool(update, pool("q", "t", cu(1, 2), least=9), ()) is ADMITTED
    refused = made.pre_update_pool(update, pool("q", "t", cu(1, 2), least=10), ()).error
    assert refused is not None
    assert refused.message == "tenant t cannot keep 10 CPU of pool q's minUnits: it has 9 CPU for the pool"


def test_what_is_guaranteed_of_a_resource_is_kept_free() -> None:
    made = plugin(QuotaHost(pool("p", "u", cu(1, 4))), TREE)
    assert caps(asked(made, pool("p", "u"), cu(30, 40))) == {"cpu": 20, "memory": 32}
    assert caps(asked(made, pool("q", "t"), cu(5, 40))) == {"memory": 36}


def test_fair_shares_are_by_dominant_share() -> None:
    """`u` wants all 20 CPUs that can be lent and half of the 32 GiB, `t` the memory. A split of the memory by itself would have
    halved it; here `t` gets two thirds, since `u` has as much of the CPUs."""
    host = QuotaHost(pool("p", "u", cu(16, 8)), pool("q", "t", cu(0, 8)))
    host.unmet = {"p": Measures(4, cu(4, 8))}
    answer = asked(plugin(host, TREE), pool("q", "t"), cu(0, 40))
    assert caps(answer) == {"memory": pytest.approx(8 + 32 * 2 / 3)}
    assert answer.amounts[0].message.startswith(
        "tenant t has 22906492245 of memory left of the 31496426837 of memory"
    )


def test_the_status_names_the_measures() -> None:
    made = plugin(QuotaHost(pool("p", "t", cu(2, 30))))
    found = {(each.name, each.measure): (each.used_units, each.limit_units) for each in made.status()}
    assert found["t", "units"] == (30, None)
    assert found["t", "cpu"] == (2000, 10_000)
    assert found["t", "memory"] == (30 * GIB, 40 * GIB)
    assert found["free", "memory"] == (0, None)


# ------------------------------------------------------------ through the queue


class Quotas(PoolWorld):
    """A world whose plugin is the quota, with pools of their tenants, and VMs whose resources are apart."""

    @classmethod
    async def of(cls, text: str, **tenants: str) -> "Quotas":
        world = cls()
        handle = PoolHandle(world.objects, world.objects, world.service._log)
        world.use(plugin(handle, text))
        for name, tenant in tenants.items():
            await world.objects.create(Pool(name, UNIT, labels={quota_args.TENANT_LABEL: tenant}))
        return world

    def vm(self, name: str, of: str, size: Resources = UNIT) -> None:
        event = seen(name, pool=of, most=100)
        vm = replace(event.vm, compute_unit=None)
        self.service.take(replace(event, vm=vm, reading=Observation(size, size, 0.0)))

    def has(self, name: str) -> Resources:
        return self.record(name).row.state.current

    async def wants(self, name: str, want: Resources, *, tied: bool = False) -> tuple[Resources, list[str]]:
        """The size that a VM gets, and the codes of its reasons with their resources."""
        raw = {
            "resources": want.written(),
            "lastPermit": self.has(name).min(want).written(),
            "computeUnit": {"cpu": "500m", "memory": "512Mi"},
            **({} if tied else {"apart": True}),
        }
        body = ask(name, 1, self.record(name).gate.last + 1, raw=raw)
        content = json.loads((await self.reply(body)).body)
        permit = content["raw"]["permit"]
        assert permit == self.has(name).written()
        codes = [f"{each['code']} {each.get('resource', '')}".strip() for each in content["reasons"]]
        return self.has(name), codes

    def shows_size(self, name: str, size: Resources) -> None:
        self.service.take(events.VmSeen(self.record(name).spec, Observation(size, size, now_s()), now_s()))

    async def gives_back(self, name: str, size: Resources) -> None:
        assert await self.wants(name, size) == (size, [])
        self.shows_size(name, size)


@virtually
async def test_a_memory_heavy_pool_is_not_charged_for_cpus_that_it_does_not_have() -> None:
    """The tenant has 10 CPUs and 40 GiB. By units, 30 GiB would have been 30 of 10."""
    world = await Quotas.of(ONE, caches="t", batch="t")
    world.vm("cache", "caches")
    world.vm("job", "batch")
    assert await world.wants("cache", cu(1, 30)) == (cu(1, 30), [])
    assert await world.wants("job", cu(12, 4)) == (cu(9, 4), ["pool cpu"])
    assert await world.wants("cache", cu(2, 40)) == (cu(1, 36), ["pool cpu", "pool memory"])
    assert await world.wants("job", cu(9, 5)) == (cu(9, 4), ["pool memory"])
    assert await world.clean()


@virtually
async def test_growth_within_the_units_of_a_pool_does_not_pass_its_limit() -> None:
    world = await Quotas.of(ONE, caches="t")
    world.vm("cache", "caches", cu(1, 30))
    assert await world.wants("cache", cu(30, 30)) == (cu(10, 30), ["pool cpu"])
    assert await world.wants("cache", cu(30, 30)) == (cu(10, 30), ["pool-saturated cpu"])
    assert await world.wants("cache", cu(30, 32)) == (cu(10, 32), ["pool cpu"])


@virtually
async def test_a_tied_vm_gets_as_many_units_as_the_tightest_resource_leaves() -> None:
    world = await Quotas.of(ONE, batch="t")
    world.vm("job", "batch")
    assert await world.wants("job", cu(20), tied=True) == (cu(10), ["pool cpu"])
    assert await world.wants("job", cu(20), tied=True) == (cu(10), ["pool-saturated cpu"])


@virtually
async def test_several_that_wait_together_share_one_verdict_in_order() -> None:
    world = await Quotas.of(ONE, one="t")
    for name in "abc":
        world.vm(name, "one")
    assert await world.wants("a", cu(6, 1)) == (cu(6, 1), [])
    assert await world.wants("b", cu(6, 20)) == (cu(3, 20), ["pool cpu"])
    assert await world.wants("c", cu(2, 30)) == (cu(1, 19), ["pool cpu", "pool memory"])


@virtually
async def test_a_refusal_of_one_resource_is_remembered_for_that_alone_and_ends_when_others_give_back() -> (
    None
):
    world = await Quotas.of(ONE, one="t", other="t")
    world.vm("a", "one")
    world.vm("b", "other", cu(8, 1))
    assert await world.wants("a", cu(4, 1)) == (cu(2, 1), ["pool cpu"])
    state = world.queue.state_of("one")
    assert (state.refused("units"), [(each.resource, each.total) for each in state.refusals]) == (
        None,
        [("cpu", 2000)],
    )
    calls = world.stats.probe_calls["one"]
    assert await world.wants("a", cu(4, 1)) == (cu(2, 1), ["pool-saturated cpu"])
    assert world.stats.probe_calls["one"] == calls, "nobody was asked"
    assert await world.wants("a", cu(4, 9)) == (cu(2, 9), ["pool cpu"]), "another proportion is asked about"
    await world.gives_back("b", cu(7.5, 1))
    assert await world.wants("a", cu(4, 9)) == (cu(2.5, 9), ["pool cpu"]), "half a CPU, which is no unit"
    await until(now_s() + COOLDOWN_S + 1)
    assert world.queue.state_of("one").refusals == ()


@virtually
async def test_what_was_refused_of_a_resource_is_claimed_and_kept_from_others() -> None:
    """Both tenants may lend of 40 GiB; `u` has all, gives back, and cannot take what `t` was refused."""
    world = await Quotas.of(TREE, mine="t", theirs="u")
    world.vm("a", "mine", cu(1, 1))
    world.vm("b", "theirs", cu(1, 1))
    assert await world.wants("b", cu(1, 40)) == (cu(1, 32), ["pool memory"])
    assert await world.wants("a", cu(1, 24)) == (cu(1, 8), ["pool memory"])
    assert world.objects.unmet_demand() == {
        "mine": Measures(0, cu(0, 16)),
        "theirs": Measures(0, cu(0, 8)),
    }, "units were not refused"
    await world.gives_back("b", cu(1, 30))
    assert world.objects.unmet_demand() == {"mine": Measures(0, cu(0, 16))}, "it does not want more"
    assert await world.wants("b", cu(1, 32)) == (cu(1, 30), ["pool memory"])
    assert await world.wants("a", cu(1, 24)) == (cu(1, 10), ["pool memory"])
    await world.gives_back("b", cu(1, 4))
    assert await world.wants("a", cu(1, 24)) == (cu(1, 24), [])
    assert "mine" not in world.objects.unmet_demand()


@virtually
async def test_what_is_guaranteed_never_waits_for_a_cool_down() -> None:
    world = await Quotas.of(TREE, mine="t", theirs="u")
    world.vm("a", "mine", cu(1, 1))
    world.vm("b", "theirs", cu(1, 1))
    assert await world.wants("b", cu(1, 40)) == (cu(1, 32), ["pool memory"])
    assert await world.wants("a", cu(1, 20)) == (cu(1, 8), ["pool memory"])
    await world.gives_back("a", cu(1, 2))
    assert await world.wants("b", cu(1, 40)) == (cu(1, 32), ["pool memory"]), "asked anew"
    assert await world.wants("a", cu(1, 8)) == (cu(1, 8), [])
    assert now_s() < COOLDOWN_S


@virtually
async def test_another_chain_says_anew_whether_it_limits_amounts() -> None:
    world = await Quotas.of(ONE, one="t")
    world.vm("a", "one", cu(1, 20))
    world.use()
    assert await world.wants("a", cu(20, 20)) == (cu(20, 20), []), "within its units: nobody is asked"
    handle = PoolHandle(world.objects, world.objects, world.service._log)
    world.use(plugin(handle))
    assert await world.wants("a", cu(20.5, 20)) == (cu(20, 20), ["pool cpu"])


@virtually
async def test_a_pool_that_goes_to_another_tenant_is_limited_by_that() -> None:
    world = await Quotas.of(ONE, one="free")
    world.vm("a", "one", cu(1, 20))
    assert await world.wants("a", cu(15, 20)) == (cu(15, 20), [])
    await world.change("one", labels={quota_args.TENANT_LABEL: "t"})
    assert await world.wants("a", cu(16, 22)) == (cu(15, 22), ["pool cpu"])
