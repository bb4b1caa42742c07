"""A scheduler that does not lead names the one that does, on every page and to every agent that would understand it."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from hosting import openapi, problems
from hosting.problems import HEALTHZ
from hosting.server import HangUp, Reply, Request, Route
from protocol.notices import NOTICES_PATH
from scheduler.daemon.leader import AWAITED_S, HeldRequests, led_routes, refuse
from scheduler.daemon.serving import Serving, Sources, description
from tests.support.openapi import document_faults
from tests.support.virtual_time import now_s, virtually
from tests.unit.hosting.raw_peers import hello, serving
from tests.unit.scheduler_clusters.kube_worlds import World
from tests.unit.scheduler_daemon.test_live_scheduling import FIRST, live
from tests.unit.scheduler_daemon.test_serving import OPTIONS

OWN, LEADER = "http://10.0.0.1:10299", "http://10.0.0.2:10299"
PAGES = ("/v1/explain/d/a", "/v1/decisions", "/v1/state", "/v1/pools", "/anything")


@pytest.mark.parametrize("path", PAGES)
def test_every_page_names_the_leader(path: str) -> None:
    got = refuse(Request("GET", path), LEADER, OWN)
    assert isinstance(got, Reply)
    problem = problems.decode(got.body)
    assert problem is not None
    assert (got.status, got.content_type, problem.code) == (503, problems.CONTENT_TYPE, "not-leader")
    assert (problem.leader, problem.detail) == (LEADER, f"another scheduler leads; ask {LEADER}")


@pytest.mark.parametrize(
    ("leader", "detail"),
    [
        (None, "no scheduler leads now, as far as this one knows"),
        (OWN, "this scheduler does not serve yet, or no more"),
    ],
)
def test_where_nobody_else_leads_nobody_else_is_named(leader: str | None, detail: str) -> None:
    got = refuse(Request("GET", "/v1/nodes"), leader, OWN)
    assert isinstance(got, Reply)
    assert json.loads(got.body)["detail"] == detail


def test_where_nobody_leads_it_is_told_why_this_one_cannot() -> None:
    got = refuse(Request("GET", "/v1/nodes"), None, OWN, "growth.stop: must be true or false")
    assert isinstance(got, Reply)
    detail = json.loads(got.body)["detail"]
    assert detail.endswith(
        "as far as this one knows; it cannot lead itself: growth.stop: must be true or false"
    )


def test_an_agent_with_the_extension_is_told_the_leader() -> None:
    ours = {"parley-agent": "x"}
    for method, path in (("POST", "/"), ("POST", "/batch"), ("GET", NOTICES_PATH)):
        got = refuse(Request(method, path, headers=ours if path == "/" else {}), LEADER, OWN)
        assert isinstance(got, Reply)
        content = json.loads(got.body)
        assert (got.status, content["code"], content["leader"]) == (503, "not-leader", LEADER)
        assert content["error"], "as any error to an agent"


def test_a_published_agent_gets_no_answer_which_would_end_it() -> None:
    assert refuse(Request("POST", "/"), LEADER, OWN) == HangUp()


# ---------------------------------------------------------------- the description

ALWAYS = (Route("GET", "/healthz", hello, about=HEALTHZ),)


async def shown(document: Route) -> dict[str, Any]:
    got = await document.answer(Request("GET", openapi.PATH))
    assert isinstance(got, Reply)
    found: dict[str, Any] = json.loads(got.body)
    assert document_faults(found) == []
    return found


async def test_the_document_is_the_same_before_somebody_leads_and_after() -> None:
    world = World()
    async with live(world) as scheduling:
        scheduling.use((FIRST,))
        leader = Serving(OPTIONS, Sources(world.cluster, None, dict))
        leads = await shown(description((*leader.routes(), *scheduling.routes()), ALWAYS))
        await leader.close()
    follows = await shown(description(led_routes(OPTIONS, world.cluster, has_scheduling=True), ALWAYS))
    of_plugins = {path for path in leads["paths"] if path.startswith("/v1/scheduling/plugins/")}
    assert leads["paths"].keys() - follows["paths"].keys() == of_plugins
    assert {path: leads["paths"][path] for path in follows["paths"]} == follows["paths"]


async def test_whatever_is_described_may_be_answered_by_another_scheduler() -> None:
    follows = await shown(description(led_routes(OPTIONS, World().cluster, has_scheduling=True), ALWAYS))
    texts = {
        (method, path): about["responses"].get("503")
        for path, methods in follows["paths"].items()
        for method, about in methods.items()
    }
    without = {place for place, text in texts.items() if text is None}
    assert without == {("get", "/healthz"), ("get", openapi.PATH)}, "every scheduler answers these"
    shared = follows["components"]["responses"]["ServiceUnavailable"]
    for text in texts.values():
        if text is not None:
            told = shared if "$ref" in text else text
            assert "another scheduler leads (`leader`)" in told["description"].lower()
            assert problems.CONTENT_TYPE in told["content"]


async def test_a_scheduler_that_does_not_lead_describes_what_the_leader_serves_and_answers_as_it_says() -> (
    None
):
    async def refused(request: Request) -> Reply | HangUp:
        return refuse(request, LEADER, OWN)

    led = led_routes(OPTIONS, World().cluster, has_scheduling=True)
    fallback = Route("*", "/", refused, cuts=True)
    async with serving(*ALWAYS, description(led, ALWAYS), fallback=fallback) as running:
        wire = await running.connect()
        document = await wire.ask("GET", openapi.PATH)
        assert document.status == 200
        for path, methods in json.loads(document.body)["paths"].items():
            for method, about in methods.items():
                got = await wire.ask(method.upper(), path, b"", "Parley-Agent: x")
                assert str(got.status) in about["responses"], (method, path, got)
                assert (got.status == 503) is (path not in ("/healthz", openapi.PATH))


@virtually
async def test_what_is_made_for_the_description_touches_no_journal(tmp_path: Path) -> None:
    journal = tmp_path / "journal"
    led_routes({**OPTIONS, "journal": journal}, World().cluster, has_scheduling=False)
    assert not journal.exists()


# ---------------------------------------------------------------- published agents that ask before this process leads


async def _told(request: Request) -> Reply:
    return Reply(200, f"{len(request.body)} {request.is_cut} {request.waited_s:g}".encode())


@virtually
async def test_a_request_that_comes_before_this_process_leads_waits_for_that() -> None:
    held = HeldRequests()
    asked = asyncio.create_task(held.serve(Request("POST", "/", b"x" * 2000)))
    await asyncio.sleep(AWAITED_S - 0.5)
    assert not asked.done()
    held.answer_by(_told)

    assert await asked == Reply(200, b"1024 True 2.5")
    assert await held.serve(Request("POST", "/", b"xy")) == Reply(200, b"2 False 0")


@virtually
async def test_a_request_that_has_waited_for_so_long_as_its_caller_is_patient_is_closed() -> None:
    held = HeldRequests()
    held.answer_by(_told)
    held.answer_by(None)  # led, and leads no more

    assert await held.serve(Request("POST", "/")) == HangUp()
    assert now_s() == AWAITED_S
