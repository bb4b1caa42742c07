"""The pool plugin `elastic-quota`: its args, how far pools grow, what is lent and given back, and what is said."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hosting.settings import FaultsError, check
from protocol.values import Resources
from scheduler.pools.chain.config import standard
from scheduler.pools.chain.plugin import ProviderSet
from scheduler.pools.core.errors import PluginErrorKind, kind_from_app_error
from scheduler.pools.core.values import ADMITTED, Admission, Context, Measures, Pool, PoolLimits, Purpose
from scheduler.pools.shipped.elastic_quota import ElasticQuotaPoolArgs, ElasticQuotaPools, factory
from tests.unit.scheduler_pools.quota_hosts import QuotaHost

GIB = 2**30
UNIT = Resources(1000, GIB)
PROBE = Context(Purpose.PROBE)
TWO: dict[str, Any] = {
    "total": {"cpu": 10, "memory": "100Gi"},
    "quotas": [
        {"name": "ci", "min": {"cpu": 4}, "max": {"cpu": 8}},
        {"name": "dev", "min": {"cpu": 4}, "max": {"cpu": 8}},
    ],
}


def pool(name: str, cpu: int = 0, memory: int = 0, **more: Any) -> Pool:
    return Pool(name, UNIT, amount=Resources(cpu * 1000, memory * GIB), **more)


def plugin(host: QuotaHost, args: dict[str, Any] | None = None) -> ElasticQuotaPools:
    return factory(host, ProviderSet(), TWO if args is None else args)


def cap(made: ElasticQuotaPools, name: str, cpu: int) -> int | None:
    """The CPUs that a pool may have where it asks for so many; None for all of them."""
    found = made.pre_update_pool(PROBE, pool(name, cpu), ())
    return next((each.most // 1000 for each in found.amounts), None)


# ------------------------------------------------------------ args


def test_all_faults_are_named_at_once() -> None:
    wrong = {
        "total": {"cpu": 1},
        "quotas": [
            {"name": "a", "min": {"cpu": 2}, "max": {"cpu": 1}},
            {"name": "b", "parent": "nobody"},
            {"name": "b"},
            {"name": "koordinator-root-quota"},
        ],
        "unknownPool": "maybe",
    }
    with pytest.raises(FaultsError) as caught:
        check(wrong, ElasticQuotaPoolArgs)
    assert sorted({line.split(": ")[0] for line in caught.value.faults}) == [
        "quotas[0]",
        "quotas[1]",
        "quotas[1].name",
        "quotas[2]",
        "quotas[2].name",
        "quotas[3].name",
        "total.memory",
        "unknownPool",
    ]
    assert "quotas[0]: min exceeds max in cpu" in caught.value.faults


def test_it_is_registered() -> None:
    assert standard().get("elastic-quota") is factory


# ------------------------------------------------------------ growth


def test_what_others_do_not_ask_for_is_lent() -> None:
    made = plugin(QuotaHost(pool("ci", 4)))
    assert cap(made, "ci", 8) is None
    assert cap(made, "ci", 9) == 8


def test_it_comes_back_as_others_ask_and_vms_shrink() -> None:
    """`dev` was refused: of the 2 CPUs beyond both minimums one is its own, but only once `ci` has given it back."""
    host = QuotaHost(pool("ci", 8))
    made = plugin(host)
    assert cap(made, "dev", 5) == 2
    host.put(pool("dev", 2))
    host.unmet = {"dev": Measures(0, Resources(3000, 0))}
    assert cap(made, "ci", 9) == 8
    host.put(pool("ci", 6))
    assert cap(made, "ci", 8) == 6
    assert cap(made, "dev", 5) == 4
    host.put(pool("ci", 5))
    assert cap(made, "dev", 5) is None


def test_pools_that_others_want_it_back_from_are_told_by_quota_from_below() -> None:
    below = [{"name": name, "parent": "org", "max": {"cpu": 8}} for name in ("a", "b")]
    org = {"name": "org", "min": {"cpu": 4}, "max": {"cpu": 8}, "sharedWeight": {"cpu": 1}}
    dev = {"name": "dev", "min": {"cpu": 4}, "max": {"cpu": 8}, "sharedWeight": {"cpu": 1}}
    host = QuotaHost(pool("a", 6), pool("b", 2), pool("dev", 2))
    made = plugin(host, {"total": TWO["total"], "quotas": [org, *below, dev]})
    assert made.excesses() == [], "nobody wants anything back"
    host.unmet = {"dev": Measures(0, Resources(3000, 0))}
    found = {each.quota: (each.amount, each.pools) for each in made.excesses()}
    assert list(found)[-1] == "org"
    assert found["org"] == (Resources(3000, 0), ("a", "b"))
    assert found["a"][1] == ("a",)
    host.put(pool("a", 3))
    assert made.excesses() == []


def test_the_reason_names_what_binds() -> None:
    made = plugin(QuotaHost(pool("ci", 8)))
    (found,) = made.pre_update_pool(PROBE, pool("ci", 9), ()).amounts
    assert found.message == "quota ci may use 8 CPU now and 8 CPU is used; pool ci may have 8 CPU"
    assert found.reason == "QuotaExhausted"
    (found,) = made.pre_update_pool(PROBE, pool("dev", 4), ()).amounts
    assert found.message.startswith("all quotas together may use 10 CPU now and 8 CPU is used")


def test_the_quota_above_binds_both() -> None:
    below = [{"name": name, "parent": "org", "max": {"cpu": 6}} for name in ("a", "b")]
    args = {"total": {"cpu": 20, "memory": "1Gi"}, "quotas": [{"name": "org", "max": {"cpu": 6}}, *below]}
    host = QuotaHost(pool("a", 4))
    made = plugin(host, args)
    assert cap(made, "b", 6) == 2
    assert not made.limits_amounts(pool("org"))


def test_a_min_that_is_not_lent_stays() -> None:
    quotas = [{**each, "allowLentResource": False} for each in TWO["quotas"]]
    assert cap(plugin(QuotaHost(), {**TWO, "quotas": quotas}), "ci", 8) == 6


def test_memory_is_shared_by_itself() -> None:
    made = plugin(QuotaHost(pool("ci", 1, 90)))
    (found,) = made.pre_update_pool(PROBE, pool("dev", 1, 20), ()).amounts
    assert (found.resource, found.most) == ("memory", 10 * GIB)


def test_a_warm_minimum_counts_as_used() -> None:
    host = QuotaHost(pool("ci", 1, limits=PoolLimits(min_units=8)))
    made = plugin(host)
    assert cap(made, "dev", 4) == 2
    wants = pool("dev", limits=PoolLimits(min_units=4))
    refused = made.pre_create_pool(Context(Purpose.CREATE), wants)
    assert refused.error is not None
    assert kind_from_app_error(refused.error) is PluginErrorKind.INSUFFICIENT_RESOURCES
    host.held = ()
    assert made.pre_create_pool(Context(Purpose.CREATE), wants) == ADMITTED


@pytest.mark.parametrize("policy", ["refuse", "admit"])
def test_a_pool_without_a_quota(policy: str) -> None:
    made = plugin(QuotaHost(), {**TWO, "unknownPool": policy})
    found: Admission = made.pre_update_pool(PROBE, pool("other", 99), ())
    assert not made.limits_amounts(pool("other"))
    if policy == "admit":
        assert found == ADMITTED
    else:
        assert found.error is not None
        assert kind_from_app_error(found.error) is PluginErrorKind.INVALID_SPEC


def test_a_pool_that_goes_gives_back_and_the_status_tells() -> None:
    host = QuotaHost(pool("ci", 8))
    made = plugin(host)
    told = {each["name"]: (each["used"], each["limit"]) for each in made.status()}
    assert told == {"ci": ({"cpu": "8", "memory": "0"}, {"cpu": "8"}), "dev": ({}, {"cpu": "0"})}
    host.held = ()
    assert cap(made, "dev", 8) is None


_cpus = st.integers(0, 12)


@given(_cpus, _cpus, _cpus, _cpus, _cpus)
def test_no_growth_goes_beyond_the_total_and_a_smaller_one_is_never_refused_where_a_larger_is_not(
    ci: int, dev: int, refused: int, asked: int, less: int
) -> None:
    host = QuotaHost(pool("ci", ci), pool("dev", dev))
    host.unmet = {"ci": Measures(0, Resources(refused * 1000, 0))}
    made = plugin(host)
    most = cap(made, "dev", asked)
    admitted = asked if most is None else most
    assert admitted <= max(dev, 10 - ci)
    assert admitted <= max(dev, 8)
    if most is None and dev <= less <= asked:
        assert cap(made, "dev", less) is None
