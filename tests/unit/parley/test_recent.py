"""The live view of the demo remembers events, and takes its bar from the scheduler or from permits."""

import json

from hosting.client import HttpClient
from hosting.server import Reply, Request
from parley import recent
from parley.recent import Recent
from parley.top.drawing import NodeFill
from protocol.values import Resources
from tests.support.servers import answering
from tests.unit.parley.top_documents import amount, heard, node_document, vm

GIB = 2**30


async def test_a_bar_is_the_scheduler_s_word_while_that_is_fresh_and_of_permits_otherwise() -> None:
    asked: list[str] = []

    async def answer(request: Request) -> Reply:
        asked.append(request.path)
        nodes = [node_document(reserved=amount(5), reservable=amount(8))]
        return Reply(200, json.dumps({"nodes": nodes}).encode())

    async with answering(answer) as url, HttpClient() as client:
        remembered = Recent("n1", Resources(8000, 8 * GIB), 1, int(url.rpartition(":")[2]))
        remembered.heard(heard(vm("demo/web", 2, load=None), node="n1"), 100.0)
        permitted = NodeFill("n1", (0, 0), (2, 2 * GIB), (8, 8 * GIB), "permitted")
        reserved = NodeFill("n1", (0, 0), (5, 5 * GIB), (8, 8 * GIB), "reserved")
        assert remembered.recent(100.0).fills == (permitted,)
        for at_s in (100.0, 100.5, 100.0 + recent.NODES_EVERY_S):
            await remembered.ask(client, at_s)
    assert asked == ["/v1/nodes"] * 2
    assert remembered.recent(103.0).fills == (reserved,)
    assert remembered.recent(103.0 + recent.OLD_S).fills == (permitted,)


def test_ends_of_programs_and_silence_are_events() -> None:
    remembered = Recent("n1", Resources(8000, 8 * GIB), 1, None)
    remembered.heard(heard(vm("demo/web"), node="n1"), 0.0)
    remembered.note("scheduler", "scheduler was killed by signal 9; it starts again", 1.0)
    remembered.missed("does not answer", 2.0)
    told = [f"{each.subject}: {each.text}" for each in remembered.recent(3.0).history.events()]
    assert told == [
        "agent: http://127.0.0.1:1: does not answer",
        "scheduler: was killed by signal 9; it starts again",
    ]
