"""Problem documents: what is written of an error, and what readers make of any body."""

import json

import msgspec
import pytest

from hosting import problems, server
from protocol.reasons import ErrorCode


def test_a_problem_has_the_title_of_its_status_and_leaves_out_what_it_does_not_have() -> None:
    reply = server.problem(404, ErrorCode.UNKNOWN_NODE, "there is no node 'x'")
    assert (reply.status, reply.content_type) == (404, "application/problem+json")
    assert json.loads(reply.body) == {
        "status": 404,
        "title": "Not Found",
        "detail": "there is no node 'x'",
        "code": "unknown-node",
    }


def test_a_problem_names_every_fault_the_leader_and_the_code_of_a_plugin() -> None:
    written = problems.problem(
        503, ErrorCode.NOT_LEADER, "ask it", ["a: b", "c: d"], leader="http://10.0.0.2:1", biz_code="X"
    )
    read = problems.decode(msgspec.json.encode(written))
    assert read == written
    assert json.loads(msgspec.json.encode(written))["bizCode"] == "X"


def test_whatever_a_caller_sent_can_be_quoted_in_bounds() -> None:
    half, many = "\ud800", (f"{number}: wrong" for number in range(10_000))
    written = problems.problem(400, ErrorCode.MALFORMED, half + "x" * 10_000, many)
    body = msgspec.json.encode(written)
    assert written.detail.startswith("\\ud800x")
    assert len(written.faults) == problems.MAX_FAULTS
    assert len(body) < 10_000


@pytest.mark.parametrize(("status", "title"), [(418, "I'm a Teapot"), (499, "Error"), (299, "Status")])
def test_every_status_has_a_title(status: int, title: str) -> None:
    """A plugin may refuse with a status that nobody has heard of."""
    assert problems.title_of(status) == title


@pytest.mark.parametrize(
    ("body", "text"),
    [
        (b'{"status":403,"title":"Forbidden","detail":"not from here","code":"forbidden"}', "not from here"),
        (b'{"status":403,"title":"F","detail":"d","code":"of-a-later-version","more":[1]}', "d"),
        (b"served to this machine only\n", "served to this machine only\n"),
        (b'{"error":"an older scheduler"}', '{"error":"an older scheduler"}'),
        (b"\xff", "\ufffd"),
        (b"[" * 100_000, "[" * 100_000),
        (b"", ""),
    ],
)
def test_people_are_told_the_detail_or_the_body_itself(body: bytes, text: str) -> None:
    assert problems.text_of(body) == text
