"""The `quota` plugin: its args, whose a pool is, how much it may have, and what is said when that is less."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from hosting import settings
from hosting.settings import FaultsError, SettingsError, check
from protocol.values import Resources
from scheduler.pools.chain.plugin import ProviderSet
from scheduler.pools.core.errors import PluginErrorKind, Scope, detail_of, kind_from_app_error
from scheduler.pools.core.values import ADMITTED, Admission, Context, Measures, Pool, PoolLimits, Purpose
from scheduler.pools.shipped import quota, quota_args
from scheduler.pools.shipped.quota import QuotaPlugin
from scheduler.pools.shipped.quota_args import QuotaArgs
from tests.unit.scheduler_pools.quota_hosts import QuotaHost

GIB = 2**30
UNIT = Resources(1000, 4 * GIB)
WHOLE = """
computeUnit: {cpu: 1, memory: 4Gi}
tenants:
- {name: org, limit: 20}
- {name: ci, parent: org, guaranteed: 6, weight: 2}
- {name: dev, parent: org, guaranteed: 4}
- {name: batch, parent: org}
- {name: alone, limit: 10}
retryAfter: 30
"""
PROBE = Context(Purpose.PROBE)
UPDATE = Context(Purpose.UPDATE)


def pool(name: str, tenant: str | None, replicas: int = 0, unit: Resources = UNIT) -> Pool:
    labels = {} if tenant is None else {quota_args.TENANT_LABEL: tenant}
    return Pool(name, unit, labels=labels, replicas=replicas)


def plugin(world: QuotaHost, text: str = WHOLE) -> QuotaPlugin:
    return quota.factory(world, ProviderSet(), yaml.safe_load(text))


def asked(made: QuotaPlugin, about: Pool, replicas: int) -> Admission:
    return made.pre_update_pool(PROBE, about.with_replicas(replicas), ())


# ------------------------------------------------------------ args


def test_args_with_defaults() -> None:
    args = check(yaml.safe_load("{computeUnit: {cpu: 2, memory: 1Gi}, tenants: [{name: a}]}"), QuotaArgs)
    assert args.compute_unit == Resources(2000, GIB)
    assert (args.tenant_label, args.unknown_tenant) == ("parley.dev/tenant", "refuse")
    assert (args.retry_after_s, args.reserve_fair_shares) == (None, True)
    tenant = args.tenants[0]
    assert (tenant.parent, tenant.guaranteed_units, tenant.limit_units, tenant.weight) == (
        None,
        None,
        None,
        1,
    )


def test_all_faults_are_named_at_once() -> None:
    text = """
    computeUnit: {cpu: 0, memory: 4Gi}
    tenantlabel: team
    unknownTenant: maybe
    retryAfter: -1
    tenants:
    - {name: a, limit: 3, guaranteed: 4}
    - {name: a, parent: nobody}
    - {name: "", weight: 0, limit: "3"}
    - {name: b, parent: b, guaranteed: -1}
    - 7
    """
    with pytest.raises(FaultsError) as caught:
        check(yaml.safe_load(text), QuotaArgs)
    lines = caught.value.faults
    assert str(caught.value).splitlines() == lines
    assert sorted(line.split(": ")[0] for line in lines) == [
        "computeUnit",
        "retryAfter",
        "tenantlabel",
        "tenants[0].guaranteed",
        "tenants[1].name",
        "tenants[1].parent",
        "tenants[2].limit",
        "tenants[2].name",
        "tenants[2].weight",
        "tenants[3].guaranteed",
        "tenants[3].parent",
        "tenants[4]",
        "unknownTenant",
    ]
    assert "tenantlabel: there is no such setting" in lines
    assert "tenants[0].guaranteed: 4 exceeds its limit of 3" in lines


@pytest.mark.parametrize(
    ("args", "path"),
    [
        (None, "computeUnit"),
        ([], "(file)"),
        ({}, "tenants"),
        ({"tenants": []}, "tenants"),
        ({"tenants": {"a": 1}}, "tenants"),
        ({"retryAfter": float("nan")}, "retryAfter"),
    ],
)
def test_args_of_another_shape_are_refused(args: Any, path: str) -> None:
    with pytest.raises(FaultsError) as caught:
        check(args, QuotaArgs)
    assert path in [line.split(": ")[0] for line in caught.value.faults]


def test_tenants_that_are_no_tree_are_faults_of_a_settings_file_too() -> None:
    text = "{computeUnit: {cpu: 1, memory: 1Gi}, tenants: [{name: a, parent: b}]}"
    with pytest.raises(SettingsError) as caught:
        settings.parse(Path("quota.yaml"), text.encode(), QuotaArgs)
    assert caught.value.faults == ["tenants[0].parent: there is no tenant 'b'"]


# ------------------------------------------------------------ whose a pool is


@pytest.mark.parametrize(
    ("tenant", "text"),
    [
        (None, "pool p has no label parley.dev/tenant, which names its tenant"),
        ("ops", "pool p belongs to tenant ops (parley.dev/tenant), which has no quota"),
        ("org", "pool p cannot belong to tenant org: it has tenants below it, name one of those"),
    ],
)
def test_a_pool_of_nobody_is_refused_by_every_hook(tenant: str | None, text: str) -> None:
    made, about = plugin(QuotaHost()), pool("p", tenant, 1)
    for answer in (
        made.pre_create_pool(Context(Purpose.CREATE), about),
        made.pre_update_pool(UPDATE, about, ()),
        made.pre_update_pool(PROBE, about, ()),
    ):
        assert answer.error is not None
        assert kind_from_app_error(answer.error) is PluginErrorKind.INVALID_SPEC
        assert detail_of(answer.error).scope is Scope.POOL
        assert answer.error.message == text


def test_pools_of_nobody_may_be_let_in_and_count_nowhere() -> None:
    world = QuotaHost(pool("q", None, 100), pool("r", "ops", 100))
    made = plugin(world, WHOLE + "unknownTenant: admit")
    for tenant in (None, "ops"):
        assert made.pre_create_pool(Context(Purpose.CREATE), pool("p", tenant)) is ADMITTED
        assert asked(made, pool("p", tenant), 10**6) is ADMITTED
    assert [each.used_units for each in made.status()] == [0] * 5
    assert made.pre_create_pool(Context(Purpose.CREATE), pool("p", "org")).error is not None


def test_another_label_may_name_the_tenant() -> None:
    made = plugin(QuotaHost(), WHOLE + "tenantLabel: team")
    assert made.pre_create_pool(Context(Purpose.CREATE), Pool("p", UNIT, labels={"team": "ci"})) is ADMITTED


# ------------------------------------------------------------ how much it may have


def test_growth_within_the_quota_is_admitted_and_beyond_it_is_cut() -> None:
    made = plugin(QuotaHost(pool("p", "alone", 3), pool("q", "alone", 4)))
    assert asked(made, pool("p", "alone"), 6) is ADMITTED
    assert asked(made, pool("p", "alone"), 7) == Admission(
        admitted=6,
        retry_after_s=30,
        reason="QuotaExhausted",
        message="tenant alone has 3 of its 10 units left; 6 of 7 replicas fit",
    )


def test_the_pool_is_counted_in_units_of_the_quota_rounded_up() -> None:
    """Two units of (half a CPU, 3 GiB) need 1.5 units of (1 CPU, 4 GiB) for their memory, so 2."""
    odd = Resources(500, 3 * GIB)
    world = QuotaHost(pool("p", "alone", 8), pool("q", "alone", 2, odd))
    made = plugin(world)
    assert made.status()[4].used_units == 10
    assert asked(made, pool("q", "alone", 2, odd), 3).admitted == 2
    world.put(pool("p", "alone", 0))
    assert asked(made, pool("q", "alone", 2, odd), 99).admitted == 13
    assert asked(made, pool("q", "alone", 2, odd), 13) is ADMITTED


def test_a_pool_may_always_have_what_it_has() -> None:
    made = plugin(QuotaHost(pool("p", "alone", 15), pool("q", "alone", 2)))
    assert asked(made, pool("p", "alone"), 15) is ADMITTED
    assert asked(made, pool("p", "alone"), 16).admitted == 15
    assert asked(made, pool("q", "alone"), 3).admitted == 2
    assert made.status()[4].left_units == 0


def test_a_change_of_the_description_is_never_refused_for_the_size() -> None:
    made = plugin(QuotaHost(pool("p", "alone", 15)))
    assert made.pre_update_pool(UPDATE, pool("p", "alone", 15), ()) is ADMITTED
    assert made.pre_update_pool(UPDATE, pool("p", "dev", 15), ()) is ADMITTED


def test_a_pool_that_the_cache_does_not_hold_is_counted_from_nothing() -> None:
    made = plugin(QuotaHost(pool("q", "alone", 4)))
    assert asked(made, pool("p", "alone"), 7).admitted == 6


def test_a_pool_that_is_asked_about_for_another_tenant_is_taken_out_of_its_own() -> None:
    world = QuotaHost(pool("p", "ci", 16), pool("q", "dev", 4))
    made = plugin(world)
    before = made.status()
    assert asked(made, pool("p", "batch"), 20).admitted == 16, "what it has; its share would be 10"
    assert made.status() == before
    world.put(pool("p", "ci", 8))
    assert asked(made, pool("p", "batch"), 20).admitted == 10, "its share, as `ci` would borrow no more"
    assert asked(made, pool("p", None), 1).error is not None


def test_pools_of_a_parent_still_count_when_tenants_were_put_below_it() -> None:
    made = plugin(QuotaHost(pool("p", "org", 8)))
    assert made.status()[0].used_units == 8
    assert asked(made, pool("q", "ci"), 99).admitted == 8
    assert made.pre_update_pool(UPDATE, pool("p", "org", 8), ()).error is not None


def test_the_accounts_follow_the_cache() -> None:
    world = QuotaHost(pool("p", "ci", 2), pool("q", "dev", 3))
    made = plugin(world)

    def used() -> dict[str, int]:
        return {each.name: each.used_units for each in made.status() if each.used_units}

    assert used() == {"org": 5, "ci": 2, "dev": 3}
    world.put(pool("p", "ci", 4))
    assert used() == {"org": 7, "ci": 4, "dev": 3}
    world.put(pool("q", "batch", 3))
    assert used() == {"org": 7, "ci": 4, "batch": 3}
    world.put(pool("r", "alone", 1))
    assert used() == {"org": 7, "ci": 4, "batch": 3, "alone": 1}
    world.put(pool("q", None, 3))
    assert used() == {"org": 4, "ci": 4, "alone": 1}
    world.held = tuple(replace(each) for each in reversed(world.held))
    assert used() == {"org": 4, "ci": 4, "alone": 1}
    world.held = tuple(replace(each) for each in world.held)
    assert used() == {"org": 4, "ci": 4, "alone": 1}
    world.held = world.held[:1]
    assert used() == {"alone": 1}
    world.held = (pool("s", "dev", 2),)
    assert used() == {"org": 2, "dev": 2}
    world.held = (pool("s", "dev", 2, UNIT * 2),)
    assert used() == {"org": 4, "dev": 4}


def test_a_warm_minimum_counts_as_used_and_is_always_there_for_its_pool() -> None:
    warm = replace(pool("q", "dev", 1), limits=PoolLimits(min_units=7))
    world = QuotaHost(pool("p", "ci", 2), warm)
    made = plugin(world)
    assert (made.status()[2].used_units, made.status()[2].borrowed_units) == (7, 3)
    assert asked(made, pool("p", "ci"), 99).admitted == 13, "6 of its own and 7 of the 10 to lend"
    world.put(pool("p", "ci", 13))
    assert asked(made, warm, 7) is ADMITTED
    world.put(replace(warm, replicas=9))
    assert made.status()[2].used_units == 9
    world.put(replace(warm, limits=PoolLimits()))
    assert made.status()[2].used_units == 1


def test_a_warm_minimum_that_does_not_fit_is_refused_when_it_is_written() -> None:
    world = QuotaHost(pool("p", "ci", 14), pool("q", "dev", 4))
    made = plugin(world)

    def said(least: int) -> Admission:
        return made.pre_update_pool(
            UPDATE, replace(pool("q", "dev", 4), limits=PoolLimits(min_units=least)), ()
        )

    assert said(6) is ADMITTED
    refused = said(7).error
    assert refused is not None
    assert kind_from_app_error(refused) is PluginErrorKind.INSUFFICIENT_RESOURCES
    assert "cannot keep the 7 units of pool q's minUnits: it has 6" in refused.message
    new = replace(pool("r", "batch"), limits=PoolLimits(min_units=3))
    assert made.pre_create_pool(Context(Purpose.CREATE), new).error is not None
    world.put(replace(pool("q", "dev", 4), limits=PoolLimits(min_units=30)))
    assert said(30) is ADMITTED, "what is kept already is no growth"


def test_what_pools_claim_is_followed_and_counts_in_units_of_the_quota() -> None:
    odd = Resources(500, 3 * GIB)
    world = QuotaHost(pool("p", "ci", 16), pool("q", "dev", 4, odd))
    made = plugin(world)

    def claimed() -> int:
        return made.status()[2].claimed_units

    assert (claimed(), asked(made, pool("p", "ci"), 17).admitted) == (0, 16)
    world.unmet = {"q": Measures(5)}  # 9 such units need 7 of the quota's, 4 need 3
    assert claimed() == 4
    world.put(pool("q", "dev", 5, odd))
    assert claimed() == 4, "10 such units need 8, 5 need 4"
    world.put(pool("q", "batch", 5, odd))
    assert (claimed(), made.status()[3].claimed_units) == (0, 4)
    world.unmet = {}
    assert made.status()[3].claimed_units == 0


# ------------------------------------------------------------ what is said


@pytest.mark.parametrize(
    ("used", "tenant", "text"),
    [
        (
            {"ci": 15, "dev": 5},
            "ci",
            "tenant ci has 0 units left of the 13 that are its guarantee and fair share",
        ),
        (
            {"ci": 14, "dev": 5},
            "dev",
            "tenant dev has 1 unit left: others use the 20 of org, or are guaranteed them",
        ),
        ({"ci": 18, "dev": 1}, "dev", "tenant dev has 1 unit left of the 20 that org may use"),
        ({}, "alone", "tenant alone has 10 of its 10 units left"),
    ],
)
def test_the_message_says_what_is_left_of_what(used: Mapping[str, int], tenant: str, text: str) -> None:
    world = QuotaHost(*(pool(name, name, units) for name, units in used.items()))
    world.unmet = {"dev": Measures(6)} if tenant == "ci" else {}
    made = plugin(world)
    assert asked(made, pool(tenant, tenant), 40).message.startswith(text + "; ")


def test_the_message_names_the_parent_whose_share_binds() -> None:
    text = """
    computeUnit: {cpu: 1, memory: 4Gi}
    tenants: [{name: top, limit: 12}, {name: a, parent: top}, {name: b, parent: top},
              {name: a1, parent: a}, {name: a2, parent: a}]
    """
    world = QuotaHost(pool("p", "b", 1), pool("q", "a2", 5))
    world.unmet = {"p": Measures(9)}
    answer = asked(plugin(world, text), pool("r", "a1"), 9)
    assert answer.message == (
        "tenant a1 has 1 unit left of the 6 that are a's guarantee and fair share; 1 of 9 replicas fits"
    )
    assert (answer.admitted, answer.retry_after_s) == (1, None)


# ------------------------------------------------------------ in the chain


def test_without_reserved_shares_the_first_takes_what_is_there() -> None:
    world = QuotaHost(pool("p", "ci", 14), pool("q", "dev", 5))
    world.unmet = {"q": Measures(3)}
    assert asked(plugin(world), pool("p", "ci"), 99).admitted == 14
    assert asked(plugin(world, WHOLE + "reserveFairShares: false"), pool("p", "ci"), 99).admitted == 15


def test_the_start_says_what_is_in_force() -> None:
    lines: list[tuple[str, dict[str, Any]]] = []

    class Log:
        def info(self, event: str, **values: Any) -> None:
            lines.append((event, values))

    world = QuotaHost()
    world.log = Log()
    plugin(world).start(world)
    assert lines == [
        (
            "quotas in force",
            {
                "tenants": 4,
                "parents": 1,
                "compute_unit": "1 CPU / 4Gi",
                "tenant_label": "parley.dev/tenant",
                "unknown_tenant": "refuse",
                "reserve_fair_shares": True,
            },
        )
    ]
