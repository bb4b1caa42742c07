"""Every route of a scheduler describes itself, in each mode."""

from collections.abc import Sequence

import pytest

from hosting import logs, openapi
from hosting.server import Reply, Request, Route
from scheduler.daemon.serving import Serving, Sources, description, description_if_any
from scheduler.placing.kube_extender.service import ExtenderService
from scheduler.ports import SoleScheduler
from tests.support.openapi import document_faults
from tests.support.virtual_time import now_s, virtually
from tests.unit.hosting.raw_peers import recorded
from tests.unit.scheduler_clusters.kube_worlds import World
from tests.unit.scheduler_daemon.test_live_scheduling import FIRST, live
from tests.unit.scheduler_daemon.test_serving import OPTIONS


def described(routes: Sequence[Route]) -> set[tuple[str, str]]:
    """The operations of the document of routes, by method and path."""
    assert openapi.undescribed(routes) == []
    document = openapi.document("Parley", "1", routes)
    assert document_faults(document) == []
    return {(method.upper(), path) for path, methods in document["paths"].items() for method in methods}


def served(routes: Sequence[Route]) -> set[tuple[str, str]]:
    """All routes but those that answer every method of a path."""
    return {(route.method, route.path) for route in routes if route.method != "*"}


@virtually
async def test_a_standalone_scheduler_describes_every_route() -> None:
    serving = Serving(OPTIONS, Sources(World().cluster, None, dict))
    led = serving.routes()
    routes = (*led, description(led, ()))
    assert described(routes) == served(routes)
    assert {("POST", "/"), ("POST", "/batch"), ("GET", openapi.PATH)} <= served(routes)
    await serving.close()


def test_pages_that_cannot_be_described_are_served_without_a_document() -> None:
    async def answer(_: Request) -> Reply:
        return Reply(200, b"{}")

    silent = (Route("GET", "/v1/silent", answer),)
    with pytest.raises(ValueError, match="/v1/silent"):
        description(silent, ())
    log, lines = recorded()
    assert description_if_any(silent, (), log) == ()
    assert [(line["log_level"], "/v1/silent" in line["error"]) for line in lines] == [("error", True)]


@pytest.mark.parametrize("is_full", [False, True], ids=["extender", "full"])
@virtually
async def test_scheduling_and_the_port_of_kube_scheduler_are_described(is_full: bool) -> None:
    async with live(World(), is_full=is_full) as scheduling:
        scheduling.use((FIRST,))
        pages = scheduling.routes()
        assert described(pages) == served(pages)
        assert any(path.startswith("/v1/scheduling/plugins/") for _, path in served(pages)), (
            "plugins' own, too"
        )
        verbs = ExtenderService(scheduling, SoleScheduler(), now_s, logs.logger("test")).routes()
        assert described(verbs) == served(verbs)
