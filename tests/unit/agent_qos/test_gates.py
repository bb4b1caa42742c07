"""Feature gates: what is on, what the published flag may say, and what is said of a wrong one."""

import pytest

from agent.node.qos.core.gates import FeatureGates, FeatureSpec, FeatureStage, is_name, parsed

GATES = FeatureGates({"Alpha": FeatureSpec(), "Beta": FeatureSpec(default=True, stage=FeatureStage.BETA)})


@pytest.mark.parametrize(
    ("text", "switches", "faults"),
    [
        ("", {}, 0),
        ("A=true", {"A": True}, 0),
        (" A = true , B=f,", {"A": True, "B": False}, 0),
        ("A=1,B=0,C=TRUE,D=F", {"A": True, "B": False, "C": True, "D": False}, 0),
        ("A=true,A=1", {"A": True}, 0),
        ("A=true,A=false", {"A": True}, 1),
        ("A", {}, 1),
        ("=true", {}, 1),
        ("A=yes,B=,C=true,D", {"C": True}, 3),
    ],
)
def test_the_published_flag_is_read_with_all_faults_at_once(
    text: str, switches: dict[str, bool], faults: int
) -> None:
    found, told = parsed(text)
    assert (found, len(told)) == (switches, faults)


def test_a_feature_has_its_default_until_it_is_switched() -> None:
    switched = GATES.with_values({"Alpha": True})
    assert [gates.enabled(name) for gates in (GATES, switched) for name in ("Alpha", "Beta")] == [
        False,
        True,
        True,
        True,
    ]
    assert not switched.with_values({"Beta": False}).enabled("Alpha"), "switches are replaced, not added"


def test_each_wrong_switch_is_told_and_an_unknown_gate_names_the_known_ones() -> None:
    assert GATES.faults({"Gamma": True, "Alpha": "on", "Beta": False}) == [
        "Gamma: there is no such feature gate (there are: Alpha, Beta)",
        "Alpha: must be true or false (found 'on')",
    ]


@pytest.mark.parametrize(
    ("name", "is_good"),
    [
        *((name, True) for name in ("CPUSuppress", "a", "My.Own-gate_2", "A" * 63)),
        *((name, False) for name in ("", "1st", "A=B", "A,B", "A B", "A" * 64, None)),
    ],
)
def test_names_of_features(name: object, is_good: bool) -> None:
    assert is_name(name) == is_good
