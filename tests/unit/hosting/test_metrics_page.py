"""The metrics handler: the page tells what is so at the moment of the scrape."""

import pytest

from hosting.metrics import CONTENT_TYPE, Family, handler
from hosting.server import Reply, Request, Route
from tests.unit.hosting.raw_peers import serving

SCRAPE = Request("GET", "/metrics")


async def page(*families: Family) -> list[str]:
    reply = await handler(lambda: families)(SCRAPE)
    assert isinstance(reply, Reply)
    assert (reply.status, reply.content_type) == (200, CONTENT_TYPE)
    return reply.body.decode().splitlines()


@pytest.mark.parametrize("name", ["parley_requests", "parley_requests_total"])
async def test_a_counter_ends_in_total_whatever_its_name(name: str) -> None:
    lines = await page(Family("counter", name, "Requests", ("code",), ((("200",), 3),)))
    assert lines == [
        "# HELP parley_requests_total Requests",
        "# TYPE parley_requests_total counter",
        'parley_requests_total{code="200"} 3.0',
    ]


async def test_a_gauge_keeps_its_name() -> None:
    lines = await page(Family("gauge", "parley_vms", "VMs", (), (((), 2.5),)))
    assert lines == ["# HELP parley_vms VMs", "# TYPE parley_vms gauge", "parley_vms 2.5"]


async def test_a_family_without_samples_is_announced() -> None:
    assert await page(Family("gauge", "g", "G", ("a",), ())) == ["# HELP g G", "# TYPE g gauge"]


async def test_every_scrape_reads_anew_and_what_vanished_is_gone() -> None:
    now = {"a": 1.0, "b": 2.0}
    serve = handler(
        lambda: [Family("gauge", "g", "G", ("vm",), tuple(((vm,), value) for vm, value in now.items()))]
    )
    first = await serve(SCRAPE)
    del now["a"]
    second = await serve(SCRAPE)
    assert isinstance(first, Reply)
    assert isinstance(second, Reply)
    assert b'g{vm="a"} 1.0' in first.body
    assert b'vm="a"' not in second.body
    assert b'g{vm="b"} 2.0' in second.body


async def test_a_page_that_cannot_be_made_is_500_and_the_server_lives_on() -> None:
    def read() -> list[Family]:
        raise RuntimeError("no figures")

    async with serving(Route("GET", "/metrics", handler(read))) as running:
        wire = await running.connect()
        assert (await wire.ask("GET", "/metrics")).status == 500
        assert (await (await running.connect()).ask("GET", "/hello")).status == 200
