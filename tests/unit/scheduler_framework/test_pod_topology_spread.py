"""`PodTopologySpread`: which domains are too full for a pod, and how nodes are scored by the pods of their domains."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest

from hosting.settings import FaultsError
from protocol.wire import PodName
from scheduler.placing.core.objects import NodeInfo, PodInfo
from scheduler.placing.core.values import ActionType, Code, EventResource, QueueingHint, SchedulingEvent
from scheduler.placing.plugins.node_conditions import HOSTNAME, ZONE
from scheduler.placing.plugins.pod_topology_spread import PodTopologySpread
from tests.unit.scheduler_framework.plugin_worlds import HandleAsTold, Notes, node, pod, told

WEB = {"app": "web"}
SELECTOR = {"matchLabels": WEB}


def constraint(key: str = ZONE, skew: int = 1, *, required: bool = True, **rest: Any) -> dict[str, Any]:
    when = "DoNotSchedule" if required else "ScheduleAnyway"
    return {"maxSkew": skew, "topologyKey": key, "whenUnsatisfiable": when, "labelSelector": SELECTOR, **rest}


def web(name: str = "new", *constraints: Mapping[str, Any], **rest: Any) -> PodInfo:
    return pod(name, labels=WEB, topologySpreadConstraints=list(constraints), **rest)


def zoned(name: str, zone: str | None, pods: Sequence[PodInfo] = (), **rest: Any) -> NodeInfo:
    return node(name, labels={ZONE: zone} if zone is not None else {}, pods=pods, **rest)


def webs(number: int) -> list[PodInfo]:
    return [web(f"web-{index}") for index in range(number)]


THREE = [zoned("a", "east", webs(2)), zoned("b", "west", webs(1)), zoned("c", "west")]
"""Two such pods in the east, one in the west."""


def fitting(asking: PodInfo, nodes: Sequence[NodeInfo], args: Any = None) -> list[str]:
    """The nodes that the filter leaves; all of them where the plugin leaves the filter out."""
    plugin, context = PodTopologySpread(args, HandleAsTold().extended), Notes()
    _, status = plugin.pre_filter(context, asking, nodes)
    if told(status)[0] is Code.SKIP:
        return [each.name for each in nodes]
    return [each.name for each in nodes if plugin.filter(context, asking, each) is None]


# ------------------------------------------------------------ constraints that must hold


@pytest.mark.parametrize(
    ("asking", "fit"),
    [
        (web(), "abc"),
        (web("new", constraint()), "bc"),
        (web("new", constraint(skew=2)), "abc"),
        (web("new", constraint(required=False)), "abc"),
        (web("new", constraint(HOSTNAME)), "c"),
        (web("new", constraint(), constraint(HOSTNAME, 2)), "bc"),
        (web("new", constraint(minDomains=3)), ""),
        (web("new", constraint(minDomains=3, maxSkew=2)), "bc"),
        (web("new", constraint(labelSelector=None)), "abc"),
        (web("new", constraint(labelSelector={})), "bc"),
        (web("new", constraint(labelSelector={"matchLabels": {"app": "db"}})), "abc"),
        (replace(web("new", constraint()), labels={"app": "db"}), "abc"),
        (web("new", constraint(), nodeSelector={HOSTNAME: "b"}), "abc"),
        (web("new", constraint(nodeAffinityPolicy="Ignore"), nodeSelector={HOSTNAME: "b"}), "bc"),
        (web("new", constraint(matchLabelKeys=["app", "missing"])), "bc"),
    ],
    ids=[
        "no constraint",
        "one apart",
        "two apart",
        "only preferred",
        "over nodes",
        "both",
        "a domain is missing",
        "a domain is missing, two apart",
        "no selector",
        "every pod",
        "other pods",
        "not counted itself",
        "nodes that it does not select do not count",
        "they count all the same",
        "the pod's own labels",
    ],
)
def test_no_domain_gets_too_far_ahead(asking: PodInfo, fit: str) -> None:
    assert "".join(fitting(asking, THREE)) == fit


def test_pods_that_go_and_pods_of_other_namespaces_do_not_count() -> None:
    going = web("going")
    going = replace(going, manifest={"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}})
    other = replace(web("other"), pod=PodName("other", "elsewhere"))
    nodes = [zoned("a", "east", [going, other]), zoned("b", "west")]
    assert fitting(web("new", constraint()), nodes) == ["a", "b"]


def test_nodes_with_taints_count_unless_the_constraint_says_otherwise() -> None:
    taint = {"key": "gpu", "effect": "NoSchedule"}
    nodes = [zoned("a", "east", webs(1)), zoned("b", "west", taints=[taint])]
    assert fitting(web("new", constraint()), nodes) == ["b"]
    assert fitting(web("new", constraint(nodeTaintsPolicy="Honor")), nodes) == ["a", "b"]


def test_reasons_have_numbers() -> None:
    plugin, context, asking = (
        PodTopologySpread(None, HandleAsTold().extended),
        Notes(),
        web("n", constraint()),
    )
    plugin.pre_filter(context, asking, THREE)
    code, message = told(plugin.filter(context, asking, THREE[0]))
    assert code is Code.UNSCHEDULABLE
    assert (
        "(topology.kubernetes.io/zone=east would have 3 such pods, and a domain has 1: more than 1 apart)"
        in message
    )
    assert told(plugin.filter(context, asking, zoned("d", None))) == (
        Code.UNSCHEDULABLE_AND_UNRESOLVABLE,
        "node(s) didn't match pod topology spread constraints (missing required label topology.kubernetes.io/zone)",
    )


def test_pods_that_come_and_go_on_trial_are_counted() -> None:
    plugin, context, asking = (
        PodTopologySpread(None, HandleAsTold().extended),
        Notes(),
        web("n", constraint()),
    )
    plugin.pre_filter(context, asking, THREE)
    plugin.remove_pod(context, asking, web("web-0"), THREE[0])
    assert plugin.filter(context, asking, THREE[0]) is None
    plugin.add_pod(context, asking, web("web-0"), THREE[0])
    plugin.add_pod(context, asking, pod("db", labels={"app": "db"}), THREE[2])
    assert plugin.filter(context, asking, THREE[0]) is not None
    plugin.remove_pod(Notes(), asking, web("web-0"), THREE[0])  # where the filter is left out


def test_a_pod_of_another_namespace_changes_nothing() -> None:
    (of_pods, _) = PodTopologySpread(None, HandleAsTold().extended).events_to_register()
    assert of_pods.hint is not None
    other = replace(web("other"), pod=PodName("other", "elsewhere"))
    for about, hint in (
        (web("x"), QueueingHint.QUEUE),
        (other, QueueingHint.SKIP),
        (None, QueueingHint.QUEUE),
    ):
        event = SchedulingEvent(EventResource.POD, ActionType.DELETE, about, None)
        assert of_pods.hint(web(), event) is hint


# ------------------------------------------------------------ constraints that should hold


def scored(
    asking: PodInfo, nodes: Sequence[NodeInfo], everywhere: Sequence[NodeInfo] = (), args: Any = None
) -> dict[str, int] | None:
    """The normalised scores; None where the plugin leaves them out."""
    plugin, context = PodTopologySpread(args, HandleAsTold().extended), Notes()
    if everywhere:
        plugin.pre_filter(context, asking, everywhere)
    if told(plugin.pre_score(context, asking, nodes))[0] is Code.SKIP:
        return None
    scores = {each.name: plugin.score(context, asking, each)[0] for each in nodes}
    plugin.normalize_score(context, asking, scores)
    return scores


PREFERS_ZONES = constraint(required=False)


@pytest.mark.parametrize(
    ("asking", "nodes", "scores"),
    [
        (web("new", constraint()), THREE, None),
        (web("new", PREFERS_ZONES), THREE, {"a": 50, "b": 100, "c": 100}),
        (web("new", constraint(HOSTNAME, required=False)), THREE, {"a": 0, "b": 50, "c": 100}),
        (web("new", PREFERS_ZONES), [zoned("a", "east"), zoned("b", "west")], {"a": 100, "b": 100}),
        (web("new", PREFERS_ZONES), [*THREE, zoned("d", None)], {"a": 50, "b": 100, "c": 100, "d": 0}),
    ],
    ids=["only required", "zones", "nodes", "no pods", "a node without the label"],
)
def test_domains_with_fewer_pods_score_higher(
    asking: PodInfo, nodes: Sequence[NodeInfo], scores: dict[str, int] | None
) -> None:
    assert scored(asking, nodes) == scores


def test_pods_on_nodes_that_do_not_fit_count_for_their_domain() -> None:
    full = zoned("full", "east", webs(4))
    nodes = [zoned("a", "east"), zoned("b", "west", webs(1))]
    assert scored(web("new", PREFERS_ZONES), nodes, [*nodes, full]) == {"a": 25, "b": 100}


# ------------------------------------------------------------ pods without constraints of their own


def owned(name: str, owner: str) -> PodInfo:
    return pod(name, owner=owner, labels={"pod": name})


@pytest.mark.parametrize(
    ("asking", "scores"),
    [
        (owned("new", "rs-1"), {"a": 41, "b": 100}),
        (owned("new", "rs-2"), {"a": 100, "b": 100}),
        (pod("new", labels={"app": "x"}), {"a": 100, "b": 41}),
        (pod("new"), None),
    ],
    ids=["same owner", "another owner", "no owner, same labels", "nothing in common"],
)
def test_siblings_are_spread_over_nodes_and_zones(asking: PodInfo, scores: dict[str, int] | None) -> None:
    nodes = [
        node("a", pods=[owned("one", "rs-1"), owned("two", "rs-1")]),
        node("b", pods=[pod("x", labels={"app": "x"}), pod("y", labels={"app": "x"})]),
    ]
    assert scored(asking, nodes) == scores


def test_default_constraints_can_be_others() -> None:
    args = {
        "defaultingType": "List",
        "defaultConstraints": [{"maxSkew": 1, "topologyKey": ZONE, "whenUnsatisfiable": "DoNotSchedule"}],
    }
    nodes = [zoned("a", "east", [owned("one", "rs-1")]), zoned("b", "west")]
    assert fitting(owned("new", "rs-1"), nodes, args) == ["b"]
    assert scored(owned("new", "rs-1"), nodes, args=args) is None


@pytest.mark.parametrize(
    ("args", "fault"),
    [
        (
            {
                "defaultConstraints": [
                    {"maxSkew": 1, "topologyKey": ZONE, "whenUnsatisfiable": "DoNotSchedule"}
                ]
            },
            "defaultConstraints: must be empty where defaultingType is System",
        ),
        (
            {
                "defaultingType": "List",
                "defaultConstraints": [
                    {"maxSkew": skew, "topologyKey": ZONE, "whenUnsatisfiable": "DoNotSchedule"}
                    for skew in (1, 2)
                ],
            },
            "defaultConstraints: must have each topologyKey with the same whenUnsatisfiable once",
        ),
    ],
)
def test_wrong_args_are_told(args: dict[str, Any], fault: str) -> None:
    with pytest.raises(FaultsError) as caught:
        PodTopologySpread(args, HandleAsTold().extended)
    assert caught.value.faults[0].startswith(fault)
