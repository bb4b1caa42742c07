"""The scheduling plugins show pages over HTTP, and the debug output has switches."""

import json
from typing import Any

import pytest

from hosting import problems
from hosting.server import Reply, Request, Route
from scheduler.placing.core.diagnosis import score_table
from scheduler.placing.core.objects import Reservation
from scheduler.placing.core.values import Endpoint, NodePluginScores
from scheduler.placing.cycle.assembly import ProfileError
from scheduler.placing.cycle.context import CycleState
from tests.support.amounts import cu
from tests.unit.scheduler_framework.extender_worlds import FILTERED, ExtenderWorld, told
from tests.unit.scheduler_framework.plugin_worlds import node, pod, row

POD = pod("p", cu(1))
NODE = node("a", cu(4), [row("v", cu(1))], pods=[pod("v", cu(1))])
RESERVATION = Reservation("uid-r", "r", "a", cu(2))


class Client:
    def __init__(self, world: ExtenderWorld) -> None:
        self.routes = world.shared.routes(lambda: {"a": NODE})

    async def ask(self, path: str, method: str = "GET", *, body: bytes = b"", **how: Any) -> tuple[int, Any]:
        """The status and what the page says, of an error its detail; `path` is that of a route."""
        route, parameters = self._route(method, path)
        reply = await route.answer(Request(method, path, body, parameters=parameters, **how))
        assert isinstance(reply, Reply)
        problem = problems.decode(reply.body) if reply.content_type == problems.CONTENT_TYPE else None
        return reply.status, problem.detail if problem is not None else json.loads(reply.body)

    def _route(self, method: str, path: str) -> tuple[Route, dict[str, str]]:
        parts = path.split("/")
        for route in self.routes:
            named = route.path.split("/")
            if route.method == method and len(named) == len(parts):
                pairs = list(zip(named, parts, strict=True))
                if all(name == part or name.startswith("{") for name, part in pairs):
                    return route, {name.strip("{}"): part for name, part in pairs if name != part}
        raise AssertionError(path)


async def test_a_node_is_shown_as_plugins_see_it() -> None:
    world = ExtenderWorld([], reservations=lambda name: [RESERVATION] if name == "a" else [])
    world.shared.nominations.nominate(POD, "a")
    client = Client(world)
    status, page = await client.ask("/v1/scheduling/nodes/a")
    assert status == 200
    assert page == {
        "node": "a",
        "generation": 0,
        "allocatable": cu(4).written(),
        "requested": cu(1).written(),
        "remaining": cu(3).written(),
        "pods": ["default/v"],
        "nominatedPods": ["default/p"],
        "reservations": [
            {
                "name": "r",
                "uid": "uid-r",
                "allocatable": cu(2).written(),
                "allocated": cu(0).written(),
                "available": True,
            }
        ],
    }
    assert await client.ask("/v1/scheduling/nodes/x") == (404, "there is no node 'x'")


async def test_why_a_pod_is_unschedulable_is_shown() -> None:
    world = ExtenderWorld([])
    client = Client(world)
    assert await client.ask("/v1/scheduling/diagnoses/default/p") == (
        404,
        "pod default/p was not found to be unschedulable",
    )
    world.extender.record_rejection(CycleState(), POD, {"a": FILTERED.by("A")})
    text = "0/1 nodes are available: 1 no."
    assert await client.ask("/v1/scheduling/diagnoses") == (
        200,
        {"diagnoses": [{"pod": "default/p", "text": text}]},
    )
    status, page = await client.ask("/v1/scheduling/diagnoses/default/p")
    assert (status, page["text"], page["nodes"]) == (200, text, 1)
    assert page["failures"] == [
        {
            "reason": "no",
            "plugin": "A",
            "preemptionMightHelp": True,
            "nodes": 1,
            "rejection": "capacity",
            "code": "Unschedulable",
        }
    ]
    assert (page["rejection"], page["waitsSeconds"], page["triedSecondsAgo"]) == ("capacity", 0.0, 0.0)


def broken(_: object) -> Any:
    """A page of a plugin that fails."""
    raise ValueError("whatever")


PAGES = (
    Endpoint("/state", lambda _: {"pods": 3}),
    Endpoint("/nodes/{node}", lambda named: named if named["node"] == "a" else None),
    Endpoint("/broken", broken),
    Endpoint("/strange", lambda _: object()),
    Endpoint("/large", lambda _: "x" * 5_000_000),
)


@pytest.mark.parametrize(
    ("path", "status", "shown"),
    [
        ("/state", 200, {"pods": 3}),
        ("/nodes/a", 200, {"node": "a"}),
        ("/nodes/x", 404, "plugin A has nothing at /v1/scheduling/plugins/A/nodes/x"),
        ("/broken", 500, "the page of plugin A failed; the log says why"),
        ("/strange", 500, "the page of plugin A failed; the log says why"),
        ("/large", 500, "the page of plugin A is larger than 4194304 bytes"),
    ],
)
async def test_a_plugin_shows_its_own_pages(path: str, status: int, shown: object) -> None:
    """They are bounded, and a page that fails harms nobody."""
    client = Client(ExtenderWorld([told("A", "reserve", endpoints=PAGES)]))
    assert await client.ask(f"/v1/scheduling/plugins/A{path}") == (status, shown)


async def test_every_route_is_listed_by_its_method() -> None:
    client = Client(ExtenderWorld([told("A", "reserve", endpoints=PAGES[:1])]))
    status, page = await client.ask("/v1/scheduling/__services__")
    assert status == 200
    assert page["PUT"] == ["/v1/scheduling/debug"]
    assert page["GET"][-1] == "/v1/scheduling/plugins/A/state"


@pytest.mark.parametrize(
    "endpoints", [(Endpoint("state", broken),), (Endpoint("/a", broken), Endpoint("/a", broken))]
)
def test_a_path_that_cannot_be_served_stops_the_start(endpoints: tuple[Endpoint, ...]) -> None:
    """With every fault, as all that is wrong with a profile."""
    others = told("B", "reserve", endpoints=RuntimeError("no pages"))
    with pytest.raises(ProfileError) as failed:
        ExtenderWorld([told("A", "reserve", endpoints=endpoints), others])
    first, second = failed.value.faults
    assert "must begin with a slash and be there once" in first
    assert second == 'profile.plugins.reserve.enabled[1].name: initializing plugin "B": no pages'


@pytest.mark.parametrize(
    ("body", "status", "flags"),
    [
        (b'{"scores": 3, "filters": true}', 200, (3, True)),
        (b"{}", 200, (0, False)),
        (b'{"scores": 101}', 400, (1, True)),
        (b"", 400, (1, True)),
        (b"null", 400, (1, True)),
    ],
)
async def test_debug_output_is_switched_while_the_scheduler_runs(
    body: bytes, status: int, flags: tuple[int, bool]
) -> None:
    world = ExtenderWorld([])
    world.shared.flags.scores, world.shared.flags.filters = 1, True
    client = Client(world)
    assert (await client.ask("/v1/scheduling/debug", "PUT", body=body))[0] == status
    assert await client.ask("/v1/scheduling/debug") == (200, {"scores": flags[0], "filters": flags[1]})


async def test_the_debug_output_names_rejections_and_the_best_nodes() -> None:
    world = ExtenderWorld([told("A", filter=FILTERED, score=(7, None))])
    context = CycleState()
    lines = world.lines
    await world.extender.run_filter_plugins(context, POD, NODE)
    await world.extender.run_score_plugins(context, POD, [NODE])
    assert lines == []
    world.shared.flags.scores, world.shared.flags.filters = 1, True
    await world.extender.run_filter_plugins(context, POD, NODE)
    await world.extender.run_score_plugins(context, POD, [NODE])
    rejected, scored = lines
    assert (rejected["node"], rejected["plugin"], rejected["reason"]) == ("a", "A", "no")
    assert scored["table"].splitlines()[1:] == ["#  node  score  A", "0  a     7      7"]


def test_the_table_of_scores_has_the_best_nodes_first_and_a_column_for_each_plugin() -> None:
    scores = [
        NodePluginScores("c", (("A", 1), ("LongName", 0)), 1),
        NodePluginScores("a", (("A", 2), ("LongName", 100)), 102),
        NodePluginScores("b", (("A", 2), ("LongName", 100)), 102),
    ]
    assert score_table("default/p", scores, 2).splitlines() == [
        "scores for default/p",
        "#  node  score  A  LongName",
        "0  a     102    2  100",
        "1  b     102    2  100",
    ]
    assert score_table("default/p", [], 2) == "scores for default/p\n#  node  score"
