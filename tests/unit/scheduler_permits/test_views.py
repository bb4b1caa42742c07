"""People and tools see `/v1/nodes/{node}`, `/v1/audit`, and every family of the metrics page."""

import asyncio
import itertools
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import quote

import pytest
from prometheus_client.parser import text_string_to_metric_families

from hosting import metrics
from hosting.server import Reply, Request, Server
from protocol.values import Resources
from protocol.wire import PodName
from scheduler.explain.pages import ExplainPages
from scheduler.permits.core import events
from scheduler.permits.core.events import PoolVerdict
from scheduler.permits.core.ledger import Cause, Floor, OverCause, RowState
from scheduler.permits.core.model import NodeSpec, PodSpec
from scheduler.permits.service.metrics import families
from scheduler.pools.core.admission_state import PoolAdmissionState
from tests.support.amounts import GIB, cu
from tests.support.virtual_time import virtually
from tests.unit.hosting.raw_peers import Running, recorded, serving
from tests.unit.scheduler_permits.service_worlds import ServiceWorld, ask, plain, seen

Samples = dict[tuple[tuple[str, str], ...], float]


@asynccontextmanager
async def viewing(world: ServiceWorld) -> AsyncIterator[Running]:
    pages = ExplainPages(
        world.core, world.service.recorder.memory, lambda _: PoolAdmissionState(), lambda: 0.0
    )
    async with serving(*pages.routes()) as running:
        yield running


async def view(world: ServiceWorld, path: str) -> tuple[int, Any]:
    """The status and the content of a view; text where it is no JSON."""
    async with viewing(world) as running:
        got = await (await running.connect()).ask("GET", path)
    is_json = got.headers["content-type"] == "application/json"
    return got.status, json.loads(got.body) if is_json else got.body.decode()


def page(world: ServiceWorld, lost: int = 0) -> dict[str, Samples]:
    log, _ = recorded()
    serve = metrics.handler(lambda: list(families(world.core, world.service.stats, Server(log, ()), lost)))
    with asyncio.Runner() as runner:
        reply = runner.run(_reply(serve))
    found: dict[str, Samples] = {}
    for family in text_string_to_metric_families(reply.body.decode()):
        for sample in family.samples:
            labels = tuple(sorted(sample.labels.items()))
            assert labels not in found.setdefault(sample.name, {}), f"{sample.name}{labels} comes twice"
            found[sample.name][labels] = sample.value
    return found


async def _reply(serve: Any) -> Reply:
    reply = await serve(Request("GET", "/metrics"))
    assert isinstance(reply, Reply)
    return reply


# ---------------------------------------------------------------- the node


async def test_a_node_shows_its_sums_and_each_row_with_its_floors() -> None:
    world = ServiceWorld("a", pool=None, room=10)
    world.core.apply(seen("old", pool=None, is_new=False, most=4))
    pod = PodSpec(PodName("web", "d"), "uid-web", "n1", Resources(250, GIB // 2))
    world.core.apply(events.PodSeen(pod))
    status, shown = await view(world, "/v1/nodes/n1")
    assert status == 200
    assert (shown["node"], shown["overFullBecauseOf"]) == ("n1", [])
    assert shown["reservable"] == {"cpu": "10", "memory": "10Gi"}
    assert shown["reserved"] == {"cpu": "5250m", "memory": "5632Mi"}
    assert shown["buffer"] == {"cpu": "3", "memory": "3Gi"}
    assert shown["watermark"] == {"cpu": "9", "memory": "9Gi"}
    rows = {row["name"]: row for row in shown["rows"]}
    assert rows["d/web"]["kind"] == "pod"
    assert rows["d/old"] == {
        "kind": "vm",
        "uid": "uid-old",
        "name": "d/old",
        "current": {"cpu": "1", "memory": "1Gi"},
        "reserved": {"cpu": "4", "memory": "4Gi"},
        "pressure": {"cpu": "0", "memory": "0"},
        "migrating": False,
        "floors": [{"cause": "start-up", "amount": {"cpu": "4", "memory": "4Gi"}}],
        "settled": False,
        "max": {"cpu": "4", "memory": "4Gi"},
        "recommendOnly": False,
    }
    assert rows["d/a"]["floors"] == []
    assert shown["free"] == {"cpu": "4750m", "memory": "4608Mi"}
    assert shown["growth"] == {"stop": False, "recommendOnly": False}
    assert (await view(world, "/v1/nodes"))[1]["nodes"][0]["node"] == "n1"


async def test_a_row_shows_what_was_asked_for_last_and_why_it_got_less() -> None:
    world = ServiceWorld("a", pool=None, room=3)
    await world.reply(ask("a", 5))
    _, shown = await view(world, "/v1/nodes/n1")
    (row,) = shown["rows"]
    assert row["lastRequest"] == {"cpu": "5", "memory": "5Gi"}
    assert [reason["code"] for reason in row["lastReasons"]] == ["node-headroom"]


async def test_a_node_shows_what_waits_for_a_pool_and_whose_hand_over_it_is() -> None:
    world = ServiceWorld("a")
    world.pools.answer_with(PoolVerdict())
    await world.reply(ask("a", 4))
    world.pools.behaviour = world.pools._wait
    next_life = ask("a", 6, agentID="00000000-0000-0000-0000-000000000002", agentStartedAtMs=2)
    waiting = await world.begin(next_life)
    _, shown = await view(world, "/v1/nodes/n1")
    floors = {floor["cause"]: floor for floor in shown["rows"][0]["floors"]}
    assert floors["pending"] == {"cause": "pending", "amount": {"cpu": "6", "memory": "6Gi"}}
    assert floors["handover"]["about"] == "00000000-0000-0000-0000-000000000001"
    world.pools.answer_all(PoolVerdict())
    await waiting


ODD = [
    "a b",
    "ä→",
    "%2F",
    "..",
    ".",
    "?x=1",
    "#",
    "a%20b",
    '"quoted"',
    "new\nline",
    "x" * 253,
    "{node}",
]


@pytest.mark.parametrize("name", ODD)
async def test_a_node_of_any_name_is_found_by_it(name: str) -> None:
    world = ServiceWorld()
    world.core.apply(events.NodeSeen(NodeSpec(name, cu(2), cu(1))))
    path = "/v1/nodes/" + quote(name, safe="").replace(".", "%2E")
    status, shown = await view(world, path)
    assert status == 200, shown
    assert (shown["node"], shown["reservable"]["cpu"]) == (name, "2")


@pytest.mark.parametrize("path", ["n2", "N1", "n1%20", "%00", "%FF%FE", "x" * 4000, "n1%0d%0aX-Evil:%201"])
async def test_an_unknown_node_is_404_and_its_name_is_told_in_part(path: str) -> None:
    status, text = await view(ServiceWorld(), f"/v1/nodes/{path}")
    problem = json.loads(text)
    assert (status, problem["code"]) == (404, "unknown-node")
    assert problem["detail"].startswith("there is no node '")
    assert len(text) < 2500


@pytest.mark.parametrize("path", ["/v1/nodes/", "/v1/nodes/n1/", "/v1/nodes/n1/rows"])
async def test_other_paths_are_no_views(path: str) -> None:
    status, _ = await view(ServiceWorld(), path)
    assert status == 404


async def test_views_are_read_only() -> None:
    async with viewing(ServiceWorld()) as running:
        for method, path in itertools.product(
            ("POST", "PUT", "DELETE", "PATCH"), ("/v1/nodes/n1", "/v1/audit")
        ):
            got = await (await running.connect()).ask(method, path)
            assert got.problem() == (405, "wrong-method", f"{method} is not served here; use GET")


async def test_the_audit_is_empty_and_names_what_is_wrong() -> None:
    world = ServiceWorld("a", pool=None)
    assert await view(world, "/v1/audit") == (200, {"faults": []})
    account = world.core.ledger.node("n1")
    assert account is not None
    account.reserved += cu(1)
    status, shown = await view(world, "/v1/audit")
    assert status == 200
    assert shown["faults"] == ["n1: reserved is 2 CPU / 2Gi, its rows' 1 CPU / 1Gi"]


async def test_a_broken_account_is_shown_all_the_same() -> None:
    world = ServiceWorld("a", pool=None)
    account = world.core.ledger.node("n1")
    assert account is not None
    account.buffer -= cu(3)
    status, shown = await view(world, "/v1/nodes/n1")
    assert status == 200
    assert shown["buffer"] == {"cpu": "-3", "memory": "-3Gi"}


# ---------------------------------------------------------------- the metrics page


FAMILIES = {
    "parley_scheduler_units_total",
    "parley_scheduler_sequence_rejections_total",
    "parley_scheduler_decision_seconds_bucket",
    "parley_scheduler_decision_seconds_count",
    "parley_scheduler_decision_seconds_sum",
    "parley_scheduler_migrations_total",
    "parley_scheduler_node_resources",
    "parley_scheduler_start_up_buffer",
    "parley_scheduler_vms",
    "parley_scheduler_cluster_stale",
    "parley_scheduler_config_stale",
    "parley_scheduler_journal_lost_total",
    "parley_http_server_total",
    "parley_log_lost_total",
    "parley_http_connections",
}


def test_every_family_is_there_before_anything_happened() -> None:
    assert set(page(ServiceWorld())) >= FAMILIES


def _figures(found: dict[str, Samples]) -> dict[str, float]:
    """The figures of decisions, as `family label…`."""
    return {
        " ".join([name.removeprefix("parley_scheduler_"), *(value for _, value in labels)]): value
        for name, samples in found.items()
        for labels, value in samples.items()
    }


def test_units_are_counted_as_granted_and_refused() -> None:
    @virtually
    async def requests() -> None:
        await world.reply(ask("a", 4))  # 3 granted
        await world.reply(ask("a", 4, 2))  # a renewal
        await world.reply(ask("a", 2, 3))  # a decrease
        await world.reply(ask("a", 12, 4))  # 3 granted up to the room of 5, 7 refused

    world = ServiceWorld("a", pool=None, room=5)
    requests()
    figures = _figures(page(world))
    assert figures["units_total granted"] == 6
    assert figures["units_total refused"] == 7
    assert figures["permits_total node-headroom partial"] >= 1
    assert figures["requests_total 200 permit"] == 4


def test_sequence_rejections_are_counted_by_code() -> None:
    @virtually
    async def requests() -> None:
        await world.reply(ask("a", 2, 5))
        await world.reply(ask("a", 2, 4))
        await world.reply(ask("a", 2, 3))
        await world.reply(ask("a", 3, 5))
        other = "00000000-0000-0000-0000-000000000002"
        await world.reply(ask("a", 3, 6, agentID=other, agentStartedAtMs=0))

    world = ServiceWorld("a", pool=None)
    assert _figures(page(world))["sequence_rejections_total sequence-stale"] == 0
    requests()
    figures = _figures(page(world))
    assert {name: value for name, value in figures.items() if name.startswith("sequence")} == {
        "sequence_rejections_total sequence-stale": 2,
        "sequence_rejections_total sequence-reused": 1,
        "sequence_rejections_total agent-superseded": 1,
    }


def test_the_histogram_is_cumulative_and_ends_with_all_of_them() -> None:
    world = ServiceWorld()
    latency = world.service.stats.latency
    for duration_s in (0.00005, 0.00006, 0.003, 5.0, 5.1, 100.0):  # a bound belongs to its bucket
        latency.observe(duration_s)
    found = page(world)
    buckets = {
        dict(labels)["le"]: value
        for labels, value in found["parley_scheduler_decision_seconds_bucket"].items()
    }
    assert list(map(float, buckets)) == [*metrics.DURATION_BOUNDS_S, float("inf")]
    counts = list(buckets.values())
    assert counts == sorted(counts)
    assert (counts[0], counts[1], buckets["0.005"], buckets["5"], buckets["+Inf"]) == (1, 2, 3, 4, 6)
    assert found["parley_scheduler_decision_seconds_count"][()] == 6
    assert found["parley_scheduler_decision_seconds_sum"][()] == pytest.approx(110.10311)


async def test_a_page_shows_one_moment_whatever_happens_while_it_is_written() -> None:
    world = ServiceWorld()
    log, _ = recorded()
    taken = list(families(world.core, world.service.stats, Server(log, ())))
    world.service.stats.latency.observe(1.0)
    reply = await _reply(metrics.handler(lambda: taken))
    assert b"parley_scheduler_decision_seconds_count 0.0" in reply.body
    assert b"parley_scheduler_decision_seconds_sum 0.0" in reply.body


def test_the_latency_of_requests_and_of_items_of_batches_is_observed() -> None:
    @virtually
    async def requests() -> None:
        await world.reply(ask("a", 2))
        await world.post(plain("a", 2))
        body = b"[" + ask("a", 2, 2) + b"," + ask("b", 2) + b",{}]"
        await world.batches.serve(Request("POST", "/batch", body))

    world = ServiceWorld("a", "b", pool=None)
    requests()
    assert page(world)["parley_scheduler_decision_seconds_count"][()] == 4


def test_the_start_up_buffer_is_what_unsettled_vms_keep_beyond_their_permits() -> None:
    world = ServiceWorld("new", pool=None)
    for name, has_size in (("shown", True), ("hidden", False)):
        world.core.apply(seen(name, pool=None, is_new=False, has_size=has_size, most=4))
    found = page(world)
    buffer = found["parley_scheduler_start_up_buffer"]
    assert buffer == {(("resource", "cpu"),): 7, (("resource", "memory"),): 7 * GIB}
    assert found["parley_scheduler_vms"] == {(("state", "settled"),): 1, (("state", "unsettled"),): 2}

    @virtually
    async def settle() -> None:
        for name in ("shown", "hidden"):
            await world.reply(ask(name, 1))

    settle()
    assert set(page(world)["parley_scheduler_start_up_buffer"].values()) == {0}


def test_causes_of_an_over_full_node_come_and_go() -> None:
    world = ServiceWorld(room=5)
    assert "parley_scheduler_node_over_full" not in page(world)
    world.core.apply(seen("old", pool=None, is_new=False, most=8))
    world.core.apply(events.PodSeen(PodSpec(PodName("web", "d"), "uid-web", "n1", cu(5))))
    assert page(world)["parley_scheduler_node_over_full"] == {
        (("cause", cause.value), ("node", "n1")): 1 for cause in (OverCause.SETTLING, OverCause.BYPASSED)
    }
    world.core.apply(events.VmGone(PodName("old", "d"), "uid-old", 0.0))
    assert "parley_scheduler_node_over_full" not in page(world)


def test_the_ledger_is_told_in_cpus_and_bytes() -> None:
    world = ServiceWorld(room=10)
    world.core.apply(events.PodSeen(PodSpec(PodName("web", "d"), "uid-web", "n1", Resources(250, GIB // 2))))
    found = {
        (dict(labels)["resource"], dict(labels)["field"]): value
        for labels, value in page(world)["parley_scheduler_node_resources"].items()
    }
    fields = ("reservable", "reserved", "buffer", "pressure", "pressure-accounted", "watermark")
    assert set(found) == set(itertools.product(("cpu", "memory"), fields))
    assert (found["cpu", "reserved"], found["memory", "reserved"]) == (0.25, GIB / 2)
    assert (found["cpu", "watermark"], found["memory", "reservable"]) == (9, 10 * GIB)


def test_vanished_nodes_and_vms_are_gone_from_the_page() -> None:
    world = ServiceWorld("a", pool=None)
    world.record().condition = 'two "agents"\nfor one VM'
    shown = page(world)["parley_scheduler_vm_condition"]
    assert shown == {(("condition", 'two "agents"\nfor one VM'), ("pod", str(PodName("a", "d")))): 1}
    world.core.apply(events.VmGone(PodName("a", "d"), "uid-a", 0.0))
    world.core.apply(events.NodeGone("n1"))
    assert not {"parley_scheduler_vm_condition", "parley_scheduler_node_resources"} & set(page(world))


@pytest.mark.parametrize("name", ODD)
def test_names_of_any_kind_are_read_back_from_the_page(name: str) -> None:
    world = ServiceWorld()
    world.core.apply(events.NodeSeen(NodeSpec(name, cu(2), cu(1))))
    nodes = {dict(labels)["node"] for labels in page(world)["parley_scheduler_node_resources"]}
    assert nodes == {"n1", name}


def test_flags_and_losses() -> None:
    world = ServiceWorld()
    world.service.stats.cluster_stale = world.service.stats.rules_stale = True
    world.service.stats.migrations.update(("started", "failed", "failed"))
    figures = _figures(page(world, lost=3))
    for name, value in (
        ("cluster_stale", 1),
        ("config_stale", 1),
        ("journal_lost_total", 3),
        ("migrations_total started", 1),
        ("migrations_total failed", 2),
    ):
        assert figures[name] == value, name


def test_a_floor_of_start_up_below_the_permit_keeps_nothing() -> None:
    world = ServiceWorld()
    world.core.apply(seen("old", pool=None, is_new=False, most=4))
    row = world.record("old").row
    row.state = RowState(row.state.current, (Floor(Cause.START_UP, Resources(0, 0)),))
    assert set(page(world)["parley_scheduler_start_up_buffer"].values()) == {0}
