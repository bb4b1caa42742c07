"""Filter, prioritize and preempt: the profile's plugins on the ledger as it is, in the answers that kube-scheduler reads."""

import asyncio
import json
from typing import Any

import pytest

from hosting import problems
from hosting.kubernetes.resources import Manifest
from hosting.metrics import HistogramFamily
from hosting.server import Reply
from scheduler.permits.core.model import PodSpec
from scheduler.placing.core.objects import PodInfo
from scheduler.placing.core.values import Code, PreFilterResult, Status, error_status, new_status
from scheduler.placing.kube_extender.service import PREFIX
from tests.support.virtual_time import now_s, virtually
from tests.unit.scheduler_extender.bodies import BY_NAMES, META_VICTIMS, VICTIMS, WHOLE_NODES
from tests.unit.scheduler_extender.extender_worlds import Says, World, pod

NO = new_status(Code.UNSCHEDULABLE, "not here")
NEVER = new_status(Code.UNSCHEDULABLE_AND_UNRESOLVABLE, "nowhere")
UNKNOWN = "node(s) are not in Parley's ledger yet"


def on(**statuses: Status) -> Says:
    return lambda _, node: statuses.get(node)


async def _hangs(*_: object) -> None:
    await asyncio.sleep(3600)


def told(answer: Reply) -> tuple[int, str, str]:
    """Status, code and detail of a problem."""
    found = problems.decode(answer.body)
    assert found is not None
    return answer.status, found.code, found.detail


def _raises(*_: object) -> None:
    raise OSError("disk full")


# ------------------------------------------------------------ filter

FILTERED: dict[str, tuple[dict[str, Says], list[str], dict[str, str], dict[str, str]]] = {
    "all fit": ({}, ["a", "b", "c"], {}, {}),
    "some are rejected": ({"filter": on(b=NO, c=NEVER)}, ["a"], {"b": "not here"}, {"c": "nowhere"}),
    "none is left": ({"filter": on(a=NO, b=NO, c=NO)}, [], dict.fromkeys("abc", "not here"), {}),
    "a rejection without words": (
        {"filter": on(b=new_status(Code.UNSCHEDULABLE))},
        ["a", "c"],
        {"b": "rejected by Obedient"},
        {},
    ),
    "one that waits for somebody": (
        {"filter": on(b=new_status(Code.PENDING, "later"))},
        ["a", "c"],
        {"b": "later"},
        {},
    ),
    "the pod has no chance": (
        {"pre_filter": lambda *_: (None, NEVER)},
        [],
        {},
        dict.fromkeys("abc", "nowhere"),
    ),
    "the pod has no chance now": (
        {"pre_filter": lambda *_: (None, NO)},
        [],
        dict.fromkeys("abc", "not here"),
        {},
    ),
    "some nodes are worth a look": (
        {"pre_filter": lambda *_: (PreFilterResult(frozenset("b")), None)},
        ["b"],
        {},
        dict.fromkeys("ac", "node(s) didn't satisfy plugin(s) [Obedient]"),
    ),
}


@pytest.mark.parametrize(("says", "left", "failed", "unresolvable"), FILTERED.values(), ids=FILTERED)
@virtually
async def test_filter_names_every_node(
    says: dict[str, Says], left: list[str], failed: dict[str, str], unresolvable: dict[str, str]
) -> None:
    """Those that stay, and each one that does not with the reason. A node that nobody counts does not stay."""
    world = World()
    world.says |= says
    assert await world.filter(pod("p"), "a", "b", "c", "new") == {
        "Nodes": None,
        "NodeNames": left,
        "FailedNodes": failed,
        "FailedAndUnresolvableNodes": {**unresolvable, "new": UNKNOWN},
        "Error": "",
    }
    assert world.node_of("p") is None


@virtually
async def test_filter_goes_by_the_ledger() -> None:
    """Pods that run, and pods that are on their way, take room. A pod that is as large as no node will never fit."""
    world = World()
    world.place("running", "a", 3.5)
    assert await world.bind(world.create("on its way", 4), "b") == ""
    found = await world.filter(pod("p"), "a", "b", "c")
    assert found["NodeNames"] == ["c"]
    assert {name: text.split(":")[0] for name, text in found["FailedNodes"].items()} == dict.fromkeys(
        "ab", "Insufficient cpu"
    )
    huge = pod("huge", 5)
    assert list((await world.filter(huge, "c"))["FailedAndUnresolvableNodes"]) == ["c"]


@virtually
async def test_before_no_node_is_left_the_ledger_catches_up() -> None:
    """kube-scheduler may know already that a pod has gone, such as a victim, and would not soon ask again."""
    world = World()
    gone = world.pod_info(world.place("gone", "a", 4))
    world.place("victim", "b", 1)
    world.place("grown", "b", 3)
    assert (await world.filter(pod("p"), "a", "c"))["NodeNames"] == ["c"]
    assert await preempt(world, pod("p", 2), b=["grown"]) == victims(b=["grown"])
    assert world.caught_up == 0
    world.gone_unseen.append(PodSpec(gone.pod, gone.uid, "a", gone.amount))
    assert (await world.filter(pod("p"), "a"))["NodeNames"] == ["a"]
    assert await preempt(world, pod("p", 2), b=["victim"]) == {}
    assert world.caught_up == 2


@virtually
async def test_nodes_come_back_in_the_form_in_which_they_came() -> None:
    """Whole nodes keep what no model knows."""
    world = World()
    world.says["filter"] = on(b=NO)
    by_names, whole = (
        await world.ask("filter", BY_NAMES.encode()),
        await world.call("filter", WHOLE_NODES.encode()),
    )
    assert (by_names["Nodes"], by_names["NodeNames"]) == (None, ["a"])
    assert b'"kept": [1, 2.50, null]' in whole.body
    found = json.loads(whole.body)
    assert [node["metadata"]["name"] for node in found["Nodes"]["items"]] == ["a"]
    assert (found["NodeNames"], found["FailedNodes"]) == (None, {"b": "not here"})


@virtually
async def test_each_profile_has_its_plugins() -> None:
    """A pod names its profile; any other name is the default one's."""
    world = World()
    for name in ("spread", "default-scheduler", "unheard-of"):
        await world.filter(pod("p", schedulerName=name), "a")
    assert world.asked_of == ["spread", "default-scheduler", "default-scheduler"]


# ------------------------------------------------------------ prioritize


@virtually
async def test_scores_are_tenths_of_the_best_that_there_could_be() -> None:
    """Integers from 0 to 10, for every host that was asked for."""
    world = World()
    scores = {"a": 100, "b": 44, "c": 45}
    world.says["score"] = lambda _, node: (scores[node], None)
    assert await world.prioritize(pod("p"), "a", "b", "c", "new") == {"a": 10, "b": 4, "c": 5, "new": 0}
    answer = await world.call("prioritize", BY_NAMES.encode())
    assert answer.body == b'[{"Host":"a","Score":10},{"Host":"b","Score":4}]'


NO_SCORES: dict[str, dict[str, Says]] = {
    "the pod was rejected meanwhile": {"pre_filter": lambda *_: (None, NO)},
    "a plugin fails": {"score": lambda *_: (0, error_status("no idea"))},
    "a plugin raises": {"score": _raises},
    "a plugin hangs": {"score": _hangs},
}


@pytest.mark.parametrize("says", NO_SCORES.values(), ids=NO_SCORES)
@virtually
async def test_without_an_opinion_no_node_is_preferred(says: dict[str, Says]) -> None:
    world = World()
    world.says |= says
    assert await world.prioritize(pod("p"), "a", "b") == {}
    assert now_s() <= 4


@pytest.mark.parametrize(
    ("asked", "after_s", "pre_filters"),
    [(pod("p"), 0, 1), (pod("p"), 1.1, 2), (pod("q"), 0, 2), (pod("p", priority=1), 0, 2)],
    ids=["the same pod", "later", "another pod", "a pod that was changed"],
)
@virtually
async def test_scores_go_by_the_nodes_and_the_pre_filter_of_the_filter_just_before(
    asked: Manifest, after_s: float, pre_filters: int
) -> None:
    """A cycle has one snapshot. What counts in the end is the bind."""
    world = World()
    framework, rows = world.profiles["default-scheduler"], dict[str, int]()

    def score(_: PodInfo, node: str) -> tuple[int, None]:
        rows[node] = len(framework.node_info_snapshot()[node].rows)
        return 0, None

    world.says["score"] = score
    await world.filter(pod("p"), "a", "b")
    world.place("beside", "a")
    await asyncio.sleep(after_s)
    assert await world.prioritize(asked, "a", "b") == {"a": 0, "b": 0}
    assert (world.called.count("pre_filter"), rows["a"]) == (pre_filters, pre_filters - 1)
    await world.prioritize(pod("p"), "a", "b")
    assert world.called.count("pre_filter") == pre_filters + 1, "the notes of a filter serve once"


# ------------------------------------------------------------ preempt


def victims(**uids: list[str]) -> dict[str, Any]:
    """Candidates in the form of names."""
    return {
        name: {"Pods": [{"UID": f"uid-{uid}"} for uid in of_node], "NumPDBViolations": len(of_node)}
        for name, of_node in uids.items()
    }


async def preempt(world: World, pod: Manifest, **uids: list[str]) -> Any:
    asked = {"Pod": pod, "NodeNameToVictims": None, "NodeNameToMetaVictims": victims(**uids)}
    return (await world.ask("preempt", asked))["NodeNameToMetaVictims"]


@virtually
async def test_a_candidate_stays_where_the_ledger_has_room_once_its_victims_are_gone() -> None:
    """With its victims as they were named: none is added. What else stands in the way vetoes the node."""
    world = World()
    for node, size in (("a", 3), ("b", 1), ("c", 3)):
        world.place(f"victim-{node}", node, size)
    world.place("growing", "b", 3)
    world.migrating.add("uid-victim-c")
    asked = pod("p", 3)
    found = await preempt(world, asked, a=["victim-a"], b=["victim-b"], c=["victim-c"], new=["x"])
    assert found == victims(a=["victim-a"])
    assert await preempt(world, asked, a=["unheard-of"], b=["victim-b", "growing"]) == victims(
        b=["victim-b", "growing"]
    )
    assert await preempt(world, pod("p"), a=[]) == {}, "a node without victims is an error to kube-scheduler"
    assert world.node_of("victim-a") == "a"


@virtually
async def test_plugins_judge_a_node_without_its_victims() -> None:
    """Their notes follow each victim, and pods of other nodes are left alone."""
    world = World()
    gone: list[str] = []
    for name, node in (("one", "a"), ("two", "a"), ("three", "b")):
        world.place(name, node)
    world.says["remove_pod"] = lambda _, victim: gone.append(victim)
    world.says["filter"] = on(b=NO)
    assert await preempt(world, pod("p"), a=["one", "two"], b=["three"]) == victims(a=["one", "two"])
    assert sorted(gone) == ["one", "three", "two"]
    world.says["pre_filter"] = lambda *_: (PreFilterResult(frozenset("b")), None)
    assert await preempt(world, pod("p"), a=["one"]) == {}
    world.says["pre_filter"] = lambda *_: (None, NEVER)
    assert await preempt(world, pod("p"), a=["one"]) == {}


@pytest.mark.parametrize("body", [META_VICTIMS, VICTIMS])
@virtually
async def test_candidates_are_answered_in_the_form_of_names(body: str) -> None:
    world = World()
    world.place("one", "a")
    found = await world.ask("preempt", body.encode())
    assert {"UID": "uid-one"} in found["NodeNameToMetaVictims"]["a"]["Pods"]


# ------------------------------------------------------------ what goes wrong

FAULTS: dict[str, tuple[dict[str, Says], str]] = {
    "a plugin fails": (
        {"filter": on(b=error_status("no idea"))},
        'running "Obedient" filter plugin: no idea',
    ),
    "a plugin fails early": (
        {"pre_filter": lambda *_: (None, error_status("no idea"))},
        'running PreFilter plugin "Obedient": no idea',
    ),
    "a plugin raises": (
        {"filter": _raises},
        "internal error: plugin \"Obedient\" failed at filter: OSError('disk full')",
    ),
    "a plugin hangs": ({"filter": _hangs}, "no answer within 4 s"),
}


@pytest.mark.parametrize(("says", "error"), FAULTS.values(), ids=FAULTS)
@virtually
async def test_own_faults_are_an_error_in_time(says: dict[str, Says], error: str) -> None:
    """An answer with `Error`, which kube-scheduler shows; preempt has no place for one. The daemon goes on."""
    world = World()
    world.place("one", "b")
    world.says |= says
    found = await world.filter(pod("p"), "a", "b")
    assert found == {
        "Nodes": None,
        "NodeNames": None,
        "FailedNodes": {},
        "FailedAndUnresolvableNodes": {},
        "Error": error,
    }
    began_s = now_s()
    asked = {"Pod": pod("p"), "NodeNameToMetaVictims": victims(b=["one"])}
    answer = await world.call("preempt", asked)
    assert told(answer) == (500, "internal", error)
    assert now_s() - began_s <= 4
    world.says.clear()
    assert (await world.filter(pod("p"), "a"))["NodeNames"] == ["a"]


@virtually
async def test_a_pod_that_cannot_be_read_is_an_error() -> None:
    world = World()
    found = await world.filter(pod("p", overhead="unreadable"), "a")
    assert found["Error"] == "spec.overhead: must be an object"


@pytest.mark.parametrize("verb", ["filter", "prioritize", "preempt", "bind"])
@virtually
async def test_garbage_and_other_leaders(verb: str) -> None:
    """Statuses that kube-scheduler takes for a failed call: it fails the attempt or goes on, as `ignorable` says."""
    world = World()
    for body in (b"", b"[]", b"{", b'{"Pod": 3, "PodName": 3}', b"\xff\x00"):
        answer = await world.call(verb, body)
        status, code, detail = told(answer)
        assert (status, code, detail.startswith(f"{verb}: ")) == (400, "malformed", True)
    world.leader = "http://10.0.0.2:10298"
    answer = await world.call(verb, BY_NAMES.encode())
    assert told(answer) == (503, "not-leader", "another scheduler leads at http://10.0.0.2:10298")


def test_routes_take_full_node_lists() -> None:
    limits = {
        route.path: route.max_body_bytes for route in World().service.routes() if route.method == "POST"
    }
    assert limits == {
        f"{PREFIX}/filter": 32 << 20,
        f"{PREFIX}/prioritize": 32 << 20,
        f"{PREFIX}/preempt": 32 << 20,
        f"{PREFIX}/bind": 16 << 10,
    }


# ------------------------------------------------------------ metrics


@virtually
async def test_calls_and_dropped_nodes_are_counted() -> None:
    world = World()
    world.says["filter"] = on(b=NO, c=NEVER)
    await world.filter(pod("p"), "a", "b", "c", "new")
    await world.filter(pod("p"), "b")
    await world.call("filter", b"")
    await world.bind(world.create("p"), "a")
    assert world.service.stats.calls == {
        ("filter", "ok"): 1,
        ("filter", "refused"): 1,
        ("filter", "malformed"): 1,
        ("bind", "ok"): 1,
    }
    assert world.service.stats.dropped == {
        ("Obedient", "Unschedulable"): 2,
        ("Obedient", "UnschedulableAndUnresolvable"): 1,
        ("ledger", "UnschedulableAndUnresolvable"): 1,
    }
    durations = {
        family.name: family.durations
        for family in world.service.families()
        if isinstance(family, HistogramFamily)
    }
    assert sum(durations["parley_scheduler_extender_seconds"][0][1].counts) == 3


# ------------------------------------------------------------ what is remembered


def _victims(node: str, *uids: str) -> dict[str, Any]:
    return {node: {"Pods": [{"UID": uid} for uid in uids], "NumPDBViolations": 0}}


@virtually
async def test_refused_pods_are_remembered_until_they_are_bound() -> None:
    """By filter and by preempt; a pod with a node left is not refused."""
    world = World()
    fills = [world.place(f"fills-{node}", node, 4) for node in "ab"]
    small, large = world.create("small", 1), world.create("large", 2)
    await world.filter(small, "a", "c")
    assert len(world.service.refused) == 0
    await world.filter(large, "a", "b")
    assert len(world.service.refused) == 1
    body = {"Pod": world.create("first", 4.5), "NodeNameToVictims": None}
    victims = _victims("a", fills[0]["metadata"]["uid"])
    assert await world.ask("preempt", {**body, "NodeNameToMetaVictims": victims}) == {
        "NodeNameToMetaVictims": {}
    }
    assert len(world.service.refused) == 2
    assert await world.bind(large, "a") != ""
    assert len(world.service.refused) == 2
    assert await world.bind(large, "c") == ""
    assert len(world.service.refused) == 1
