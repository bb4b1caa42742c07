"""Laws of the rules: a watermark is the exact share, an override wins as a reader of the file would say."""

import fnmatch
import math
from fractions import Fraction

from hypothesis import given, settings
from hypothesis import strategies as st

from protocol.values import Resources
from scheduler.permits.core.rules import PPM, GrowthSwitches, NodeOverride, NodeRules, Rules, Watermark
from tests.property import protocol_strategies as some

relaxed = settings(deadline=None, max_examples=100)
shares = st.one_of(st.sampled_from([1, PPM - 1, PPM]), st.integers(1, PPM))
watermarks = st.builds(Watermark, shares, shares)

# Few letters, so that names and globs often meet.
names = st.text("ab", max_size=3)
globs = st.text("ab*?[]!/", max_size=4)
lists = st.lists(st.one_of(names, globs), max_size=4).map(tuple)
overrides = st.builds(
    NodeOverride, lists, st.none() | some.amounts, st.none() | watermarks, st.none() | some.positive_amounts
)
nodes = st.builds(NodeRules, some.amounts, watermarks, st.none() | some.positive_amounts)


def matches(name: str, patterns: tuple[str, ...]) -> bool:
    return any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)


@relaxed
@given(watermarks, some.amounts)
def test_a_watermark_is_the_exact_share_rounded_down(watermark: Watermark, amount: Resources) -> None:
    assert watermark.of(amount) == Resources(
        math.floor(Fraction(watermark.cpu_ppm, 10**6) * amount.vcpu_milli),
        math.floor(Fraction(watermark.memory_ppm, 10**6) * amount.memory_bytes),
    )


@relaxed
@given(watermarks, some.amounts, some.amounts)
def test_a_watermark_keeps_order_and_never_exceeds_the_whole(
    watermark: Watermark, a: Resources, b: Resources
) -> None:
    assert watermark.of(a).fits_in(a)
    assert watermark.of(a.min(b)).fits_in(watermark.of(a))
    assert (watermark.of(a) + watermark.of(b)).fits_in(watermark.of(a + b))


@relaxed
@given(nodes, st.lists(overrides, max_size=5).map(tuple), names)
def test_each_value_is_that_of_the_first_override_that_names_the_node_and_sets_it(
    default: NodeRules, given_overrides: tuple[NodeOverride, ...], name: str
) -> None:
    named = [override for override in given_overrides if matches(name, override.nodes)]
    systems = [each.system for each in named if each.system is not None]
    marks = [each.watermark for each in named if each.watermark is not None]
    units = [each.compute_unit for each in named if each.compute_unit is not None]
    assert Rules(default, given_overrides).for_node(name) == NodeRules(
        [*systems, default.system][0],
        [*marks, default.watermark][0],
        [*units, default.compute_unit][0],
    )


@relaxed
@given(st.booleans(), lists, lists, names, names)
def test_growth_is_recommended_only_for_whom_a_switch_or_a_glob_names(
    everywhere: bool, namespaces: tuple[str, ...], vms: tuple[str, ...], namespace: str, name: str
) -> None:
    growth = GrowthSwitches(
        recommend_only=everywhere, recommend_only_namespaces=namespaces, recommend_only_vms=vms
    )
    rules = Rules(NodeRules(Resources(0, 0), Watermark(PPM, PPM), None), growth=growth)
    expected = everywhere or matches(namespace, namespaces) or matches(f"{namespace}/{name}", vms)
    assert rules.is_recommend_only(namespace, name) == expected
