"""The rules: exact watermarks, overrides value by value, and whose growth is only recommended."""

import dataclasses

import pytest

from protocol.values import MAX_MEMORY_BYTES, MAX_VCPU_MILLI, ZERO, Resources
from scheduler.permits.core.rules import (
    DEFAULT_RULES,
    GrowthSwitches,
    NodeOverride,
    NodeRules,
    Rules,
    Watermark,
    is_glob,
)

GIB = 2**30
SMALL, LARGE = Resources(500, GIB), Resources(2000, 4 * GIB)
UNIT = Resources(1000, GIB)
DEFAULT = NodeRules(SMALL, Watermark(700_000, 800_000), UNIT)
HIGH = Watermark(900_000, 900_000)


# ------------------------------------------------------------ watermarks


def test_a_watermark_takes_its_share_of_each_resource() -> None:
    assert Watermark(700_000, 850_000).of(Resources(10_000, 1000)) == Resources(7000, 850)


def test_a_watermark_rounds_down() -> None:
    assert Watermark(333_333, 1).of(Resources(10, 999_999)) == Resources(3, 0)
    assert Watermark(999_999, 999_999).of(Resources(1, 1)) == ZERO


def test_a_watermark_is_exact_where_a_float_is_not() -> None:
    cpu, memory = MAX_VCPU_MILLI, MAX_MEMORY_BYTES
    found = Watermark(999_998, 700_000).of(Resources(cpu, memory))
    assert found == Resources(cpu - cpu // 500_000 - 1, memory * 7 // 10)
    assert found.vcpu_milli != int(cpu * 999_998 / 1_000_000)
    assert found.memory_bytes != int(memory * 0.7)
    assert [type(amount) for _, amount in found.named()] == [int, int]


def test_the_whole_is_a_watermark_too() -> None:
    assert Watermark(1_000_000, 1_000_000).of(LARGE) == LARGE


@pytest.mark.parametrize(("cpu", "memory", "name"), [(0, 1, "cpu"), (1, 1_000_001, "memory"), (-1, 1, "cpu")])
def test_what_is_no_share_is_refused_by_name(cpu: int, memory: int, name: str) -> None:
    with pytest.raises(ValueError, match=f"watermark: {name} must be 1 to 1000000 parts per million, not "):
        Watermark(cpu, memory)


# ------------------------------------------------------------ nodes


def rules(*overrides: NodeOverride) -> Rules:
    return Rules(DEFAULT, overrides)


def test_a_node_without_an_override_has_the_defaults() -> None:
    assert rules().for_node("n1") == DEFAULT
    assert rules(NodeOverride(("n2", "gpu-*"), system=LARGE)).for_node("n1") == DEFAULT


def test_an_override_changes_only_what_it_sets() -> None:
    found = rules(NodeOverride(("n1",), watermark=HIGH)).for_node("n1")
    assert found == NodeRules(SMALL, HIGH, UNIT)


def test_of_each_value_the_first_override_that_sets_it_wins() -> None:
    found = rules(
        NodeOverride(("other",), system=UNIT, watermark=HIGH, compute_unit=SMALL),
        NodeOverride(("n1",), system=LARGE),
        NodeOverride(("n*",), system=UNIT, watermark=HIGH),
        NodeOverride(("n1",), watermark=Watermark(1, 1), compute_unit=LARGE),
    )
    assert found.for_node("n1") == NodeRules(LARGE, HIGH, LARGE)
    assert found.for_node("n2") == NodeRules(UNIT, HIGH, UNIT)


def test_an_override_may_set_nothing_aside_where_the_default_does() -> None:
    assert rules(NodeOverride(("n1",), system=ZERO)).for_node("n1").system == ZERO


@pytest.mark.parametrize(
    ("name", "pattern", "matches"),
    [
        ("gpu-1", "gpu-*", True),
        ("gpu-1", "gpu-?", True),
        ("gpu-1", "gpu-[0-9]", True),
        ("gpu-12", "gpu-?", False),
        ("GPU-1", "gpu-*", False),
        ("gpu-1.example", "gpu-1", False),
        ("anything", "*", True),
        ("[", "[", True),
    ],
)
def test_names_are_matched_whole_and_with_their_case(name: str, pattern: str, matches: bool) -> None:
    found = rules(NodeOverride(("none", pattern), system=LARGE)).for_node(name)
    assert (found.system == LARGE) == matches


def test_a_name_is_no_glob() -> None:
    assert [is_glob(name) for name in ("big-1", "a]b", "a.b", "", "a*", "?", "[ab]")] == [False] * 4 + [
        True
    ] * 3


# ------------------------------------------------------------ growth


def recommend_only(namespace: str, name: str, growth: GrowthSwitches) -> bool:
    return Rules(DEFAULT, growth=growth).is_recommend_only(namespace, name)


def test_by_default_all_growth_is_granted() -> None:
    assert not recommend_only("default", "db-0", GrowthSwitches())
    assert not recommend_only("default", "db-0", GrowthSwitches(stopped=True))


def test_the_switch_holds_for_every_vm() -> None:
    assert recommend_only("default", "db-0", GrowthSwitches(recommend_only=True))


@pytest.mark.parametrize(
    ("namespace", "name", "expected"),
    [
        ("ci-1", "db-0", True),
        ("prod", "db-0", False),
        ("default", "test-1", True),
        ("default", "db-test-1", False),
        ("other", "test-1", False),
        ("prod", "one", True),
        ("prod", "one-more", False),
    ],
)
def test_globs_name_namespaces_and_vms(namespace: str, name: str, expected: bool) -> None:
    growth = GrowthSwitches(
        recommend_only_namespaces=("ci-*",), recommend_only_vms=("default/test-*", "prod/one")
    )
    assert recommend_only(namespace, name, growth) == expected


def test_only_the_list_that_is_there_is_matched() -> None:
    assert recommend_only("a", "b", GrowthSwitches(recommend_only_vms=("a/b",)))
    assert not recommend_only("b", "a", GrowthSwitches(recommend_only_vms=("a/b",)))
    assert recommend_only("a", "b", GrowthSwitches(recommend_only_namespaces=("a",)))
    assert not recommend_only("b", "a", GrowthSwitches(recommend_only_namespaces=("a",)))


# ------------------------------------------------------------ values


def test_the_default_rules_hold_nothing_back() -> None:
    assert DEFAULT_RULES.for_node("any") == NodeRules(ZERO, Watermark(900_000, 900_000), None)
    assert (
        Rules(DEFAULT_RULES.node, (), GrowthSwitches(False, False, (), ()), migration_enabled=False)
        == DEFAULT_RULES
    )


def test_rules_are_values() -> None:
    assert hash(rules(NodeOverride(("a",), LARGE))) == hash(rules(NodeOverride(("a",), LARGE)))
    with pytest.raises(dataclasses.FrozenInstanceError):
        DEFAULT_RULES.migration_enabled = True  # type: ignore[misc]  # that it is refused is the point
