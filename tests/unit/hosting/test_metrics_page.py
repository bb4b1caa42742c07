"""The metrics handler: the page tells what is so at the moment of the scrape."""

import pytest

from hosting.metrics import CONTENT_TYPE, Family, handler
from hosting.server import Reply, Request

SCRAPE = Request("GET", "/metrics")


@pytest.mark.parametrize(
    ("family", "name", "samples"),
    [
        (Family("counter", "x", "X", ("code",), ((("200",), 3),)), "x_total", ['x_total{code="200"} 3.0']),
        (
            Family("counter", "x_total", "X", ("code",), ((("200",), 3),)),
            "x_total",
            ['x_total{code="200"} 3.0'],
        ),
        (Family("gauge", "x", "X", (), (((), 2.5),)), "x", ["x 2.5"]),
        (Family("gauge", "x", "X", ("a",), ()), "x", []),
    ],
    ids=["a counter ends in total", "whatever its name", "a gauge keeps its name", "without samples"],
)
async def test_a_family_is_announced_and_its_samples_follow(
    family: Family, name: str, samples: list[str]
) -> None:
    reply = await handler(lambda: [family])(SCRAPE)
    assert isinstance(reply, Reply)
    assert (reply.status, reply.content_type) == (200, CONTENT_TYPE)
    assert reply.body.decode().splitlines() == [f"# HELP {name} X", f"# TYPE {name} {family.kind}", *samples]


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
