"""The plugins with kube-scheduler's names that judge a node by its object and its pods, and the ones of the queue."""

from collections.abc import Mapping
from typing import Any

import pytest

from hosting.settings import FaultsError
from scheduler.placing.core.objects import NodeInfo, PodInfo, QueuedPod
from scheduler.placing.core.values import Code, EventResource, QueueingHint, SchedulingEvent
from scheduler.placing.plugins.base import ShippedPlugin
from scheduler.placing.plugins.node_conditions import (
    NodeAffinity,
    NodeName,
    NodeUnschedulable,
    TaintToleration,
)
from scheduler.placing.plugins.node_resources import NodePorts, NodeResources
from scheduler.placing.plugins.queueing import PrioritySort, SchedulingGates, UnhandledFeatures
from tests.unit.scheduler_framework.plugin_worlds import HandleAsTold, Notes, node, pod, told

TAINT = {"key": "gpu", "value": "a100", "effect": "NoSchedule"}
PREFERRED = {"key": "spot", "effect": "PreferNoSchedule"}
UNRESOLVABLE = Code.UNSCHEDULABLE_AND_UNRESOLVABLE
NO_MATCH = (UNRESOLVABLE, "node(s) didn't match Pod's node affinity/selector")
FITS = (Code.SUCCESS, "")


def made(kind: type[ShippedPlugin], args: Any = None) -> Any:
    return kind(args, HandleAsTold().extended)


def required(*terms: Mapping[str, Any]) -> dict[str, Any]:
    selector = {"nodeSelectorTerms": list(terms)}
    return {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": selector}}


def term(key: str, operator: str, *values: str) -> dict[str, Any]:
    return {"matchExpressions": [{"key": key, "operator": operator, "values": list(values)}]}


# ------------------------------------------------------------ what pods and nodes say of each other


@pytest.mark.parametrize(
    ("kind", "asking", "where", "outcome"),
    [
        (NodeName, pod("p"), node("a"), FITS),
        (NodeName, pod("p", nodeName="a"), node("a"), FITS),
        (
            NodeName,
            pod("p", nodeName="b"),
            node("a"),
            (UNRESOLVABLE, "node(s) didn't match the requested node name b"),
        ),
        (NodeUnschedulable, pod("p"), node("a"), FITS),
        (
            NodeUnschedulable,
            pod("p"),
            node("a", unschedulable=True),
            (UNRESOLVABLE, "node(s) were unschedulable"),
        ),
        (
            NodeUnschedulable,
            pod("p", tolerations=[{"operator": "Exists"}]),
            node("a", unschedulable=True),
            FITS,
        ),
        (
            TaintToleration,
            pod("p"),
            node("a", taints=[TAINT, PREFERRED]),
            (UNRESOLVABLE, "node(s) had untolerated taint(s) gpu=a100:NoSchedule"),
        ),
        (TaintToleration, pod("p"), node("a", taints=[PREFERRED]), FITS),
    ],
)
def test_a_node_is_taken_or_not(
    kind: type[ShippedPlugin], asking: PodInfo, where: NodeInfo, outcome: tuple[Code, str]
) -> None:
    assert told(made(kind).filter(Notes(), asking, where)) == outcome


@pytest.mark.parametrize(
    ("toleration", "is_tolerated"),
    [
        ({"operator": "Exists"}, True),
        ({"key": "gpu", "operator": "Exists"}, True),
        ({"key": "gpu", "operator": "Exists", "effect": "NoExecute"}, False),
        ({"key": "gpu", "value": "a100"}, True),
        ({"key": "gpu", "operator": "Equal", "value": "t4"}, False),
        ({"key": "other", "operator": "Exists"}, False),
        ({"operator": "Equal", "value": "a100"}, False),
        ({"key": "gpu", "operator": "Wrong"}, False),
        ({"key": "gpu", "operator": "Gt", "value": "1"}, False),
    ],
)
def test_which_tolerations_are_for_a_taint(toleration: dict[str, str], is_tolerated: bool) -> None:
    status = made(TaintToleration).filter(
        Notes(), pod("p", tolerations=[toleration]), node("a", taints=[TAINT])
    )
    assert (status is None) is is_tolerated


def test_tolerations_can_compare_numbers() -> None:
    where = node("a", taints=[{"key": "tier", "value": "5", "effect": "NoSchedule"}])
    for operator, value, is_tolerated in (
        ("Gt", "4", True),
        ("Gt", "5", False),
        ("Lt", "6", True),
        ("Lt", "5", False),
    ):
        asking = pod("p", tolerations=[{"key": "tier", "operator": operator, "value": value}])
        assert (made(TaintToleration).filter(Notes(), asking, where) is None) is is_tolerated


def test_nodes_with_fewer_unwanted_taints_score_higher() -> None:
    plugin, asking = made(TaintToleration), pod("p")
    nodes = [
        node("a", taints=[PREFERRED]),
        node("b"),
        node("c", taints=[PREFERRED, {**PREFERRED, "key": "x"}]),
    ]
    scores = {each.name: plugin.score(Notes(), asking, each)[0] for each in nodes}
    assert scores == {"a": 1, "b": 0, "c": 2}
    plugin.normalize_score(Notes(), asking, scores)
    assert scores == {"a": 50, "b": 100, "c": 0}


LABELLED = node("a", labels={"disk": "ssd", "size": "8"})


@pytest.mark.parametrize(
    ("spec", "outcome"),
    [
        ({"nodeSelector": {"disk": "ssd"}}, FITS),
        ({"nodeSelector": {"disk": "hdd"}}, NO_MATCH),
        ({"affinity": required(term("disk", "In", "ssd", "nvme"))}, FITS),
        ({"affinity": required(term("disk", "In", "hdd"))}, NO_MATCH),
        ({"affinity": required(term("disk", "In", "hdd"), term("size", "Gt", "7"))}, FITS),
        ({"affinity": required(term("size", "Gt", "8"))}, NO_MATCH),
        ({"affinity": required(term("size", "Lt", "9"))}, FITS),
        ({"affinity": required(term("disk", "Gt", "1"))}, NO_MATCH),
        ({"affinity": required(term("disk", "NotIn", "hdd"))}, FITS),
        ({"affinity": required(term("gpu", "NotIn", "a100"))}, FITS),
        ({"affinity": required(term("gpu", "Exists"))}, NO_MATCH),
        ({"affinity": required(term("gpu", "DoesNotExist"))}, FITS),
        ({"affinity": required(term("gpu", "Unknown"))}, NO_MATCH),
        ({"affinity": required({})}, NO_MATCH),
        ({"affinity": required()}, NO_MATCH),
        ({"nodeSelector": {"disk": "ssd"}, "affinity": required(term("size", "In", "9"))}, NO_MATCH),
    ],
)
def test_which_nodes_a_pod_selects(spec: dict[str, Any], outcome: tuple[Code, str]) -> None:
    asking = pod("p", **spec)
    assert told(made(NodeAffinity).pre_filter(Notes(), asking, [])[1]) == FITS
    assert told(made(NodeAffinity).filter(Notes(), asking, LABELLED)) == outcome


def by_name(*names: str) -> dict[str, Any]:
    return {"matchFields": [{"key": "metadata.name", "operator": "In", "values": list(names)}]}


@pytest.mark.parametrize(
    ("terms", "names"),
    [
        ([by_name("a", "b")], {"a", "b"}),
        ([by_name("a"), by_name("c")], {"a", "c"}),
        ([by_name("a"), term("disk", "Exists")], None),
        ([], None),
    ],
)
def test_a_pod_that_goes_by_names_is_given_those_nodes(
    terms: list[dict[str, Any]], names: set[str] | None
) -> None:
    found, status = made(NodeAffinity).pre_filter(Notes(), pod("p", affinity=required(*terms)), [])
    assert (found.node_names if found is not None else None, status) == (names, None)


def test_a_pod_that_asks_for_nothing_is_not_filtered_or_scored() -> None:
    plugin = made(NodeAffinity)
    assert told(plugin.pre_filter(Notes(), pod("p"), [])[1])[0] is Code.SKIP
    assert told(plugin.pre_score(Notes(), pod("p"), []))[0] is Code.SKIP


def test_preferred_terms_that_match_add_their_weights() -> None:
    preferred = [
        {"weight": 30, "preference": term("disk", "In", "ssd")},
        {"weight": 60, "preference": term("size", "Exists")},
    ]
    affinity = {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": preferred}}
    plugin, asking = made(NodeAffinity), pod("p", affinity=affinity)
    assert plugin.pre_score(Notes(), asking, []) is None
    nodes = [LABELLED, node("b", labels={"disk": "ssd"}), node("c")]
    scores = {each.name: plugin.score(Notes(), asking, each)[0] for each in nodes}
    assert scores == {"a": 90, "b": 30, "c": 0}
    plugin.normalize_score(Notes(), asking, scores)
    assert scores == {"a": 100, "b": 33, "c": 0}


# ------------------------------------------------------------ what the ledger does not count


GPU = "example.com/gpu"


def gpu(number: str, **rest: Any) -> dict[str, Any]:
    return {"name": "c", "resources": {"requests": {GPU: number}}, **rest}


def filtered(plugin: Any, asking: PodInfo, where: NodeInfo) -> tuple[Code | int, str]:
    """The filter's outcome; Skip where the plugin leaves that out."""
    context = Notes()
    _, status = plugin.pre_filter(context, asking, [where])
    return told(status if status is not None else plugin.filter(context, asking, where))


HAS_4 = node("a", allocatable={GPU: "4", "pods": "3"}, pods=[pod("x", containers=[gpu("1"), gpu("2")])])


@pytest.mark.parametrize(
    ("spec", "code", "message"),
    [
        ({"containers": [gpu("1")]}, Code.SUCCESS, ""),
        (
            {"containers": [gpu("1"), gpu("1")]},
            Code.UNSCHEDULABLE,
            f"Insufficient {GPU}: the pod needs 2, the node has 4 and others use 3 of that",
        ),
        (
            {"containers": [gpu("5")]},
            UNRESOLVABLE,
            f"Insufficient {GPU}: the pod needs 5, the node has 4 and others use 3 of that",
        ),
        ({"containers": [gpu("1")], "initContainers": [gpu("1")]}, Code.SUCCESS, ""),
        ({"initContainers": [gpu("2")]}, Code.UNSCHEDULABLE, "needs 2"),
        (
            {"containers": [gpu("1")], "initContainers": [gpu("1", restartPolicy="Always")]},
            Code.UNSCHEDULABLE,
            "needs 2",
        ),
        (
            {"initContainers": [gpu("1", restartPolicy="Always"), gpu("1")]},
            Code.UNSCHEDULABLE,
            "needs 2",
        ),
        ({"containers": [gpu("1")], "overhead": {GPU: "1"}}, Code.UNSCHEDULABLE, "needs 2"),
        ({"containers": [{"name": "c", "resources": {"limits": {GPU: "2"}}}]}, Code.UNSCHEDULABLE, "needs 2"),
        ({"containers": [gpu("many")]}, UNRESOLVABLE, "the pod's resources: 'many' is not a quantity"),
        (
            {
                "containers": [
                    {"name": "c", "resources": {"requests": {"cpu": "64", "parley.dev/managed": "1"}}}
                ]
            },
            Code.SUCCESS,
            "",
        ),
    ],
    ids=[
        "fits",
        "not now",
        "never",
        "init containers run before",
        "an init container",
        "a sidecar beside",
        "an init container beside a sidecar",
        "overhead",
        "limits alone",
        "unreadable",
        "not counted here",
    ],
)
def test_a_node_has_what_the_pod_asks_for_beside_the_ledger(
    spec: dict[str, Any], code: Code, message: str
) -> None:
    found, text = filtered(made(NodeResources), pod("p", **spec), HAS_4)
    assert found is code
    assert message in text


def test_a_node_takes_so_many_pods() -> None:
    where = node("a", allocatable={"pods": "2"}, pods=[pod("x"), pod("y")])
    assert filtered(made(NodeResources), pod("p"), where) == (
        Code.UNSCHEDULABLE,
        "Too many pods: the node takes 2 and has 2",
    )


@pytest.mark.parametrize("args", [{"ignoredResources": [GPU]}, {"ignoredResourceGroups": ["example.com"]}])
def test_resources_that_are_ignored_are_not_looked_at(args: dict[str, Any]) -> None:
    assert filtered(made(NodeResources, args), pod("p", containers=[gpu("9")]), HAS_4) == FITS


def test_a_group_of_resources_has_no_slash() -> None:
    with pytest.raises(FaultsError, match=r"ignoredResourceGroups\[0\]"):
        made(NodeResources, {"ignoredResourceGroups": [GPU]})


def port(number: int, **rest: str) -> dict[str, Any]:
    return {"name": "c", "ports": [{"containerPort": 1, "hostPort": number, **rest}]}


@pytest.mark.parametrize(
    ("spec", "outcome"),
    [
        ({}, (Code.SKIP, "")),
        ({"containers": [{"name": "c", "ports": [{"containerPort": 80}]}]}, (Code.SKIP, "")),
        ({"containers": [port(81)]}, FITS),
        ({"containers": [port(80, protocol="UDP")]}, FITS),
        ({"containers": [port(80)]}, "80/TCP is taken by default/web"),
        ({"containers": [port(80, hostIP="10.0.0.1")]}, "10.0.0.1:80/TCP is taken by default/web"),
        ({"initContainers": [port(80) | {"restartPolicy": "Always"}]}, "80/TCP is taken by default/web"),
        ({"containers": [port(90, hostIP="10.0.0.1")]}, "10.0.0.1:90/TCP is taken by default/one"),
        ({"containers": [port(90, hostIP="10.0.0.2")]}, FITS),
    ],
)
def test_a_port_of_a_node_is_taken_once(spec: dict[str, Any], outcome: tuple[Code, str] | str) -> None:
    where = node(
        "a", pods=[pod("web", containers=[port(80)]), pod("one", containers=[port(90, hostIP="10.0.0.1")])]
    )
    if isinstance(outcome, str):
        outcome = (
            Code.UNSCHEDULABLE,
            f"node(s) didn't have free ports for the requested pod ports: {outcome}",
        )
    assert filtered(made(NodePorts), pod("p", **spec), where) == outcome


# ------------------------------------------------------------ what nobody handles


@pytest.mark.parametrize(
    ("spec", "place"),
    [
        ({"volumes": [{"name": "v", "emptyDir": {}}, {"name": "c", "configMap": {}}]}, None),
        (
            {"volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": "x"}}]},
            "spec.volumes[0].persistentVolumeClaim",
        ),
        ({"volumes": [{"name": "v", "ephemeral": {}}]}, "spec.volumes[0].ephemeral"),
        ({"resourceClaims": [{"name": "gpu"}]}, "spec.resourceClaims"),
        (
            {"affinity": {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [{}]}}},
            "spec.affinity.podAntiAffinity.requiredDuringSchedulingIgnoredDuringExecution",
        ),
        (
            {"affinity": {"podAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [{}]}}},
            None,
        ),
        ({"workloadRef": {"name": "w"}}, "spec.workloadRef"),
    ],
)
def test_what_no_plugin_looks_at_is_refused(spec: dict[str, Any], place: str | None) -> None:
    code, message = told(made(UnhandledFeatures).pre_filter(Notes(), pod("p", **spec), [])[1])
    if place is None:
        assert (code, message) == (Code.SKIP, "")
    else:
        assert code is UNRESOLVABLE
        assert f"({place})" in message


# ------------------------------------------------------------ the queue


def test_pods_have_their_turn_by_priority_and_then_by_age() -> None:
    queued = [
        QueuedPod(pod("late", priority=5), 3),
        QueuedPod(pod("low"), 1),
        QueuedPod(pod("early", priority=5), 2),
    ]
    less = made(PrioritySort).less
    found = sorted(queued, key=lambda each: sum(less(other, each) for other in queued))
    assert [each.pod.pod.name for each in found] == ["early", "late", "low"]
    assert not less(queued[0], queued[0])


def test_a_pod_with_gates_waits_until_they_are_gone() -> None:
    plugin = made(SchedulingGates)
    gated, free = pod("p", schedulingGates=[{"name": "quota"}, {"name": "net"}]), pod("p")
    assert told(plugin.pre_enqueue(gated)) == (UNRESOLVABLE, "waiting for scheduling gates: quota, net")
    assert plugin.pre_enqueue(free) is None
    (event,) = plugin.events_to_register()
    for after, hint in (
        (free, QueueingHint.QUEUE),
        (gated, QueueingHint.SKIP),
        (pod("other"), QueueingHint.SKIP),
    ):
        assert event.hint(gated, SchedulingEvent(EventResource.POD, event.action, gated, after)) is hint
