"""Laws of fair shares as time passes: asks, shrinks and cool-downs in any order, through the queue and the plugin.

The model keeps what it saw itself: what everybody has, who was refused how much, and until when that may be come back for.
"""

import json
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hosting.server import Reply
from scheduler.pools.chain.plugin import PoolHandle, ProviderSet
from scheduler.pools.core.queues import MAX_UNMET_S, STAY_AWAY_S
from scheduler.pools.core.tenants import Demand, Tenant, Tree, fair_split
from scheduler.pools.core.values import Pool
from scheduler.pools.shipped import quota, quota_args
from tests.property.fair_split_models import Use
from tests.support.amounts import cu
from tests.support.virtual_time import now_s, virtually
from tests.unit.scheduler_permits.service_worlds import permit
from tests.unit.scheduler_pools.pool_worlds import PoolWorld, until

EXAMPLE = (
    Tenant("org", limit_units=20),
    Tenant("ci", "org", 6, weight=2),
    Tenant("dev", "org", 4, 12),
)
"""The tree of the page (docs/guides/pools.md)."""


@dataclass
class Market:
    """A world whose pools are those of the leaves of a tree, each with one VM of their name."""

    tree: Tree
    world: PoolWorld
    claims: dict[str, tuple[int, float]] = field(default_factory=dict)
    """By tenant: what it wanted when it was refused, and when that is forgotten."""

    @classmethod
    async def open(cls, *tenants: Tenant) -> "Market":
        """Everybody is born with one unit."""
        world = PoolWorld()
        args = {
            "computeUnit": {"cpu": 1, "memory": "1Gi"},
            "tenants": [
                {
                    "name": each.name,
                    "parent": each.parent or None,
                    "guaranteed": each.guaranteed_units,
                    "limit": each.limit_units,
                    "weight": each.weight,
                }
                for each in tenants
            ],
        }
        log = world.service._log
        plugin = quota.factory(PoolHandle(world.objects, world.objects, log), ProviderSet(), args)
        world.use(plugin)
        market = cls(Tree(tenants), world)
        for name in market.names:
            await world.objects.create(Pool(name, cu(1), labels={quota_args.TENANT_LABEL: name}))
            world.born(name, pool=name)
        return market

    @property
    def names(self) -> list[str]:
        """Those who own pools."""
        return [node.tenant.name for node in self.tree.nodes if node.is_leaf]

    def has(self, name: str) -> int:
        """The units of a tenant."""
        return self.world.held(name)

    def use(self) -> Use:
        """The units that everybody has and, as far as the model knows, claims."""
        places = self.tree.places
        claimed = {
            places[name]: wanted - self.has(name)
            for name, (wanted, until_s) in self.claims.items()
            if now_s() < until_s and wanted > self.has(name)
        }
        return Use(self.tree, {places[name]: self.has(name) for name in self.names}, claimed)

    def ask(self, name: str, units: int) -> int:
        """Ask, or give back; what it has then."""
        before = self.has(name)
        reply = self.world.transport.decide(self.world.body(name, units))
        assert isinstance(reply, Reply)
        got, codes = permit(reply)
        if got < before:
            self.claims.pop(name, None)
        elif units > before:
            assert set(codes) <= {"pool", "pool-saturated"}
            self.claims.pop(name, None)
            if got < units:
                wait_s = json.loads(reply.body)["reasons"][0]["retryAfterSeconds"]
                self.claims[name] = units, now_s() + min(wait_s + STAY_AWAY_S, MAX_UNMET_S)
        return got


async def passes(seconds: float) -> None:
    await until(now_s() + seconds)


# ------------------------------------------------------------ the story


@pytest.mark.parametrize("away_s", [1, 59, 61, 119])
@virtually
async def test_who_was_refused_comes_to_its_share_although_another_one_shrinks_and_grows_in_between(
    away_s: int,
) -> None:
    """ci has all that can be lent when dev comes; it shrinks and grows back again and again before dev asks once more."""
    market = await Market.open(*EXAMPLE)
    assert market.ask("ci", 16) == 16
    assert market.ask("dev", 7) == 4, "its guarantee"
    seen = []
    for _ in range(3):
        before = market.has("ci")
        market.ask("ci", before - 2)
        await passes(1)
        market.ask("ci", before)
        await passes(away_s - 1)
        seen.append((market.has("ci"), market.ask("dev", 7)))
    assert seen == [(14, 6), (13, 7), (13, 7)], "14 is above its share of 13; from there on it gets that back"
    assert market.world.queue.unmet_demand() == {}, "everybody has what it wanted last"
    assert await market.world.clean()


@virtually
async def test_a_claim_that_nobody_comes_back_for_ends() -> None:
    market = await Market.open(*EXAMPLE)
    market.ask("ci", 16)
    market.ask("dev", 7)
    queue = market.world.queue
    assert (queue.unmet_demand()["dev"].units, queue.unmet_until_s("dev")) == (3, 120.0)
    market.ask("ci", 14)
    await passes(119)
    assert market.ask("ci", 16) == 14
    await passes(2)
    assert market.ask("ci", 16) == 16, "at once, although ci was refused 2 s ago"
    assert market.world.queue.unmet_demand() == {}
    assert await market.world.clean()


@virtually
async def test_what_is_given_back_is_there_for_who_waits_before_the_cool_down_is_over() -> None:
    market = await Market.open(*EXAMPLE)
    market.ask("ci", 16)
    assert market.ask("dev", 7) == 4
    market.ask("ci", 15)
    assert market.ask("dev", 7) == 5
    market.ask("ci", 8)
    assert market.ask("dev", 20) == 12, "all that it may have: ci wants no more"
    assert await market.world.clean()


# ------------------------------------------------------------ laws

relaxed = settings(deadline=None, max_examples=100)


def _rows(least: int) -> st.SearchStrategy[list[tuple[int, int, int | None]]]:
    """Tenants: what they are guaranteed, their weights, and how much more than that their limits allow."""
    row = st.tuples(st.integers(least, 5), st.integers(1, 3), st.none() | st.integers(0, 9))
    return st.lists(row, min_size=2, max_size=4)


_moves = st.lists(
    st.tuples(
        st.integers(0, 3),
        st.sampled_from([1, 2, 3, 5, 8, 12, 25]),
        st.sampled_from([0, 0, 0, 1, 14, 61, 130]),
    ),
    min_size=8,
    max_size=40,
)


def tenants_of(rows: list[tuple[int, int, int | None]], spare: int) -> tuple[Tenant, ...]:
    """One parent with room for what its children are guaranteed, one unit for each, and some to spare."""
    children = [
        Tenant("abcd"[at], "org", guaranteed, None if more is None else max(guaranteed + more, 1), weight)
        for at, (guaranteed, weight, more) in enumerate(rows)
    ]
    kept = sum(max(guaranteed, 1) for guaranteed, _, _ in rows)
    return (Tenant("org", limit_units=kept + spare), *children)


@relaxed
@given(_rows(0), st.integers(0, 8), _moves)
def test_an_ask_gets_what_the_rule_gives_now_whatever_was_before(
    rows: list[tuple[int, int, int | None]], spare: int, moves: list[tuple[int, int, int]]
) -> None:
    """No cool-down, and nothing else that is remembered, gives more or less than use and claims of this moment do.

    Guaranteed units never wait, and what is free beyond claims goes to whoever asks.
    """

    @virtually
    async def story() -> None:
        market = await Market.open(*tenants_of(rows, spare))
        for which, units, wait_s in moves:
            name = market.names[which % len(rows)]
            wanted = max(units, 1)
            expected = market.use().most(market.tree.places[name], wanted)
            if wanted <= market.has(name):
                expected = wanted
            assert market.ask(name, wanted) == expected, (name, wanted, market.use())
            await passes(wait_s)
        assert await market.world.clean()

    story()


@settings(relaxed, max_examples=25)
@given(_rows(1), st.integers(0, 15), st.permutations(range(4)))
def test_all_come_to_their_shares_while_those_above_try_to_keep_theirs(
    rows: list[tuple[int, int, int | None]], spare: int, order: list[int]
) -> None:
    """Everybody wants more than there is. Who is above its share gives a unit back now and then, and asks for it again
    at once, before anybody else does: in the end each has its share."""

    @virtually
    async def story() -> None:
        tenants = tenants_of(rows, spare)
        market = await Market.open(*tenants)
        names = [market.names[at] for at in order if at < len(rows)]
        wants = dict.fromkeys(names, 60)
        for name in names:
            market.ask(name, wants[name])
        for _ in range(spare + len(rows) + 5):
            for name in names:
                await passes(1)
                has = market.has(name)
                if has > 1:
                    market.ask(name, has - 1)
                    market.ask(name, wants[name])
                for other in names:
                    market.ask(other, wants[other])
        lendable = market.tree.nodes[0].limit_units or 0
        lendable -= sum(node.guaranteed_units for node in market.tree.nodes[1:])
        mosts = [(node.tenant, node.borrowable_units) for node in market.tree.nodes[1:]]
        shares = fair_split([lendable], [Demand(each.name, each.weight, (most,)) for each, most in mosts])
        for node in market.tree.nodes[1:]:
            share = node.guaranteed_units + shares[node.tenant.name][0]
            assert market.has(node.tenant.name) == share, market.use()

    story()
