"""Labels, annotations and ScalingPolicies decide which pods are scaled, and how. Their faults are told, and never raised."""

import json
from dataclasses import replace
from typing import Any

import pytest

from hosting.kubernetes import names, objects
from hosting.kubernetes.resources import Manifest
from hosting.kubernetes.scaling import (
    DEFAULT_MIN,
    DEFAULT_STEP,
    Scaling,
    ScalingPolicy,
    Share,
    pool_of,
    scaling_of,
)
from protocol.values import Bounds, Resources

GIB = 1024**3
ROOM = Resources(8000, 16 * GIB)
ON = {names.ENABLED: "true"}


def _pod(
    labels: dict[str, str], annotations: dict[str, Any] | None = None, *, requests: Any = None, **spec: Any
) -> Manifest:
    texts = {
        name: value if isinstance(value, str) else json.dumps(value)
        for name, value in (annotations or {}).items()
    }
    asked = {"cpu": "1", "memory": "1Gi"} if requests is None else requests
    containers = [{"name": "app", "resources": {"requests": asked}}, {"name": "log"}]
    return {
        "metadata": {"name": "a", "namespace": "n", "uid": "u", "labels": labels, "annotations": texts},
        "spec": {"containers": containers, **spec},
    }


def _policy(
    name: str = "p", *, namespace: str = "n", created: str = "2026-01-01", **spec: Any
) -> ScalingPolicy:
    metadata = {"name": name, "namespace": namespace, "creationTimestamp": created}
    return ScalingPolicy.read(
        {"metadata": metadata, "spec": {"selector": {"matchLabels": {"app": "x"}}, **spec}}
    )


def _scaling(pod: Manifest, *policies: ScalingPolicy) -> Scaling:
    found = scaling_of(pod, policies, ROOM)
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("labels", "policy", "is_scaled"),
    [
        ({}, None, False),
        (ON, None, True),
        ({names.ENABLED: "false"}, None, False),
        ({"app": "x"}, _policy(), True),
        ({"app": "y"}, _policy(), False),
        ({"app": "x"}, _policy(namespace="other"), False),
        ({"app": "x"}, _policy(enabled=False), False),
        ({"app": "x", **ON}, _policy(enabled=False), True),
        ({"app": "x", names.ENABLED: "false"}, _policy(), False),
    ],
)
def test_who_is_scaled(labels: dict[str, str], policy: ScalingPolicy | None, is_scaled: bool) -> None:
    assert (scaling_of(_pod(labels), [policy] if policy else [], ROOM) is not None) is is_scaled


def test_a_pod_that_says_nothing_may_take_its_nodes_room() -> None:
    found = _scaling(_pod(ON))
    assert (found.bounds, found.step) == (Bounds(DEFAULT_MIN, ROOM), DEFAULT_STEP)
    assert found.faults == found.obstacles == ()


def test_annotations_of_the_pod_go_before_those_of_the_policy() -> None:
    policy = _policy(
        bounds={"max": {"cpu": "2"}},
        unit={"cpu": "500m"},
        shares={"app": {"cpu": 3, "memory": 1}},
        restart="Allowed",
        evictWhenStuck=True,
        tied=True,
        pool="blue",
    )
    own = {names.BOUNDS: {"max": {"cpu": "4"}}, names.RESTART: "never", names.INFORMANT: "10301"}
    found = _scaling(_pod({"app": "x"}, own), policy)
    assert found.bounds.max == Resources(4000, ROOM.memory_bytes)
    assert found.step == Resources(500, DEFAULT_STEP.memory_bytes)
    assert found.shares == {"app": Share(3, 1)}
    assert (found.may_restart, found.may_evict, found.is_tied) == (False, True, True)
    assert (found.pool, found.policy, found.informant_port) == ("blue", "p", 10301)


def test_of_two_policies_the_older_one_counts_and_the_other_is_told() -> None:
    old, new = _policy("old", unit={"cpu": "1"}), _policy("new", created="2026-02-02", unit={"cpu": "2"})
    found = _scaling(_pod({"app": "x"}), new, old)
    assert found.step.vcpu_milli == 1000
    assert found.faults == ("ScalingPolicy new selects the pod too, and has no effect: old is older",)


@pytest.mark.parametrize(
    ("name", "value", "fault"),
    [
        (names.SHARES, {"web": {"cpu": 1}}, "parley.dev/shares: web: the pod has no such container"),
        (names.SHARES, {"app": {"disk": 1}}, "parley.dev/shares: app: must be weights"),
        (names.SHARES, {"app": {"cpu": 1}}, "parley.dev/shares: no container has a weight for memory"),
        (names.RESTART, "yes", "parley.dev/restart: must be one of allowed, never (found yes)"),
        (names.INFORMANT, "high", "parley.dev/informant: must be a port"),
        (names.BOUNDS, {"max": {"cpu": "lots"}}, "parley.dev/bounds: max.cpu"),
    ],
)
def test_what_is_wrong_is_told_and_has_no_effect(name: str, value: Any, fault: str) -> None:
    found = _scaling(_pod(ON, {name: value}))
    assert [text[: len(fault)] for text in found.faults] == [fault]
    assert (found.bounds, found.shares, found.may_restart) == (Bounds(DEFAULT_MIN, ROOM), {}, False)


@pytest.mark.parametrize(
    ("pod", "obstacle"),
    [
        (_pod(ON, requests={}), "none of its containers requests cpu"),
        (_pod(ON, requests={"cpu": "1"}), "none of its containers requests memory"),
        (_pod(ON, requests={"cpu": "x", "memory": "1Gi"}), "its resources cannot be read"),
        (_pod(ON, {"kubernetes.io/config.mirror": "x"}), "a static pod"),
        (_pod(ON, os={"name": "windows"}), "a Windows pod"),
    ],
)
def test_what_keeps_a_pod_from_being_resized_at_all(pod: Manifest, obstacle: str) -> None:
    assert _scaling(pod).obstacles[0].startswith(obstacle)


@pytest.mark.parametrize(
    ("selector", "is_selected"),
    [
        ({}, True),
        ({"matchLabels": {"app": "x"}}, True),
        ({"matchLabels": {"app": "x", "tier": "db"}}, False),
        ({"matchExpressions": [{"key": "app", "operator": "In", "values": ["x", "y"]}]}, True),
        ({"matchExpressions": [{"key": "app", "operator": "NotIn", "values": ["x"]}]}, False),
        ({"matchExpressions": [{"key": "tier", "operator": "NotIn", "values": ["db"]}]}, True),
        ({"matchExpressions": [{"key": "tier", "operator": "Exists"}]}, False),
        ({"matchExpressions": [{"key": "tier", "operator": "DoesNotExist"}]}, True),
        ({"matchExpressions": [{"key": "app", "operator": "Like", "values": ["x"]}]}, False),
    ],
)
def test_selectors(selector: Manifest, is_selected: bool) -> None:
    assert objects.selects(selector, {"app": "x"}) is is_selected


GOOD: dict[str, Any] = {
    names.BOUNDS: {"max": {"memory": "2Gi"}},
    names.UNIT: {"cpu": "250m"},
    names.SHARES: {"app": 1},
    names.CONFIG: {"tied": True},
    names.INFORMANT: "10301",
    names.RESTART: "allowed",
    names.EVICT: "true",
}
BAD: dict[str, Any] = {
    names.BOUNDS: {"max": {"memory": "lots"}},
    names.UNIT: {"cpu": "many"},
    names.SHARES: {"web": 1},
    names.CONFIG: {"tied": "perhaps"},
    names.INFORMANT: "high",
    names.RESTART: "yes",
    names.EVICT: "yes",
}


def _what_counts(found: Scaling) -> tuple[Any, ...]:
    return (
        found.bounds,
        found.step,
        found.shares,
        found.is_tied,
        found.informant_port,
        found.may_restart,
        found.may_evict,
    )


@pytest.mark.parametrize("name", GOOD)
def test_an_annotation_with_faults_keeps_its_last_valid_value(name: str) -> None:
    before = _scaling(_pod(ON, GOOD))
    found = scaling_of(_pod(ON, GOOD | {name: BAD[name]}), (), ROOM, before.valid)
    assert found is not None
    assert _what_counts(found) == _what_counts(before)
    assert [text.partition(": ")[0] for text in found.faults] == [name]
    assert (found.unknown, found.valid) == ((), before.valid)
    again = scaling_of(_pod(ON, GOOD | {name: BAD[name]}), (), ROOM, found.valid)
    assert again == found, "however often it is looked at"


@pytest.mark.parametrize("name", GOOD)
def test_without_a_valid_value_the_size_stays_and_what_needs_a_word_is_not_allowed(name: str) -> None:
    found = _scaling(_pod(ON, GOOD | {name: BAD[name]}))
    is_word = name in (names.RESTART, names.EVICT)
    assert found.unknown == (() if is_word else (name,))
    assert (found.valid is None) is not is_word
    assert (found.may_restart, found.may_evict) == (name != names.RESTART, name != names.EVICT)


def test_who_had_no_such_annotation_keeps_what_counts_without_it() -> None:
    before = _scaling(_pod(ON))
    found = scaling_of(_pod(ON, {names.BOUNDS: BAD[names.BOUNDS]}), (), ROOM, before.valid)
    assert found is not None
    assert (found.bounds, found.unknown) == (before.bounds, ())


def test_an_annotation_that_is_taken_off_is_no_fault() -> None:
    before = _scaling(_pod(ON, GOOD))
    found = scaling_of(_pod(ON), (), ROOM, before.valid)
    assert found is not None
    assert (found.bounds, found.valid, found.faults) == (Bounds(DEFAULT_MIN, ROOM), ON, ())


def test_a_typo_in_a_policy_keeps_each_pods_last_valid_value() -> None:
    pod = _pod({"app": "x"})
    before = _scaling(pod, _policy(bounds={"max": {"cpu": 2}}))
    typo = _policy(bounds={"max": {"cpu": "two"}})
    found = scaling_of(pod, (typo,), ROOM, before.valid)
    assert found is not None
    assert (found.bounds, found.unknown) == (before.bounds, ())
    assert _scaling(pod, typo).unknown == (names.BOUNDS,)


def test_a_value_that_was_valid_and_cannot_be_any_more_is_unknown() -> None:
    pod = _pod(ON, {names.BOUNDS: {"min": {"cpu": 4}}})
    before = _scaling(pod)
    found = scaling_of(pod, (), Resources(2000, 16 * GIB), before.valid)
    assert found is not None
    assert found.unknown == (names.BOUNDS,)
    typo = _pod(ON, {names.BOUNDS: '{"min": {"cpu": "lots"}}'})
    again = scaling_of(typo, (), ROOM, found.valid)
    assert again is not None
    assert (again.bounds, again.unknown) == (before.bounds, ()), "it counts again where it can"


TYPOS = ["flase", "False", "True", "yes", ""]


@pytest.mark.parametrize("typo", TYPOS)
@pytest.mark.parametrize("policies", [(), (_policy(),)], ids=["no policy", "a policy"])
def test_without_a_known_state_a_pod_with_an_unknown_word_is_not_scaled_and_its_pool_counts(
    typo: str, policies: tuple[ScalingPolicy, ...]
) -> None:
    pod = _pod({"app": "x", names.ENABLED: typo})
    found = _scaling(pod, *policies)
    assert found.obstacles == (f"{names.ENABLED}: must be true or false (found {typo})",)
    assert found.valid is None, "what is not known is not known at the next look either"
    assert pool_of(pod, (_policy(pool="blue", enabled=False),)) == "blue"


@pytest.mark.parametrize("typo", TYPOS)
@pytest.mark.parametrize(
    ("labels", "policies"), [(ON, ()), ({"app": "x"}, (_policy(),))], ids=["by its label", "by a policy"]
)
def test_a_pod_that_was_scaled_stays_so_with_an_unknown_word(
    typo: str, labels: dict[str, str], policies: tuple[ScalingPolicy, ...]
) -> None:
    before = _scaling(_pod(labels), *policies)
    for _ in range(2):
        found = scaling_of(_pod({**labels, names.ENABLED: typo}), policies, ROOM, before.valid)
        assert found is not None
        assert replace(found, faults=()) == before
        assert found.faults == (f"{names.ENABLED}: must be true or false (found {typo})",)
        before = replace(found, faults=())


def test_a_pod_whose_policy_goes_while_its_word_is_unknown_is_not_scaled() -> None:
    before = _scaling(_pod({"app": "x"}), _policy())
    found = scaling_of(_pod({"app": "x", names.ENABLED: "flase"}), (), ROOM, before.valid)
    assert found is not None
    assert found.obstacles


@pytest.mark.parametrize(
    ("labels", "annotations", "faults"),
    [
        ({}, {"parley.dev/bonds": "{}"}, ["parley.dev/bonds: there is no such annotation, perhaps parley.dev/bounds is meant"]),
        ({}, {"parley.dev/Bounds": "{}"}, ["parley.dev/Bounds: there is no such annotation, perhaps parley.dev/bounds is meant"]),
        ({}, {"parley.dev/xyz": "1"}, ["parley.dev/xyz: there is no such annotation"]),
        ({}, {"parley.dev/pool": "blue"}, ["parley.dev/pool has no effect as an annotation: it is a label"]),
        ({"parley.dev/restart": "never"}, {}, ["parley.dev/restart has no effect as a label: it is an annotation"]),
        ({"parley.dev/poool": "blue"}, {}, ["parley.dev/poool: there is no such label, perhaps parley.dev/pool is meant"]),
        ({"parley.dev/of-a-plugin": "x", "app": "y"}, {"other.dev/bonds": "{}"}, []),
        ({}, {names.FENCE: "3.1", names.RESERVATION: "u", names.CPU_BURST: "{}", names.EVICTION_PRIORITY: "1"}, []),
    ],
)  # fmt: skip
def test_names_of_our_group_without_a_meaning_are_told_and_stop_nothing(
    labels: dict[str, str], annotations: dict[str, str], faults: list[str]
) -> None:
    found = _scaling(_pod({**ON, **labels}, annotations))
    assert list(found.faults) == faults
    assert (found.unknown, found.obstacles) == ((), ())


def test_of_many_unknown_names_a_few_are_told() -> None:
    found = _scaling(_pod(ON, {f"parley.dev/x{index:02}": "1" for index in range(30)}))
    assert len(found.faults) == 6
    assert found.faults[-1] == "and 25 more names of parley.dev/ that have no meaning"


@pytest.mark.parametrize("spec", ["x", ["x"], {"selector": "x"}])
def test_a_policy_whose_spec_is_no_mapping_is_a_fault(spec: Any) -> None:
    with pytest.raises(ValueError, match=r"^spec.*: must be a mapping$"):
        ScalingPolicy.read({"metadata": {"name": "p", "namespace": "n"}, "spec": spec})
