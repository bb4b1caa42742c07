"""The scheduler's process: wrong files, hostile peers, and answers while they are at it."""

import json
import signal
import socket
import uuid
from collections.abc import Iterator
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support.processes import Program, cluster_file, fetch, free_port, post, running, write_json
from tests.support.waiting import shown_blocking


@dataclass(frozen=True)
class Scheduler:
    """A running scheduler and its port."""

    program: Program
    port: int


@pytest.fixture
def scheduler(tmp_path: Path) -> Iterator[Scheduler]:
    """A scheduler with one node and two VMs, ready."""
    port = free_port()
    cluster = cluster_file(tmp_path / "cluster.yaml", ["a", "b"])
    arguments = ("--cluster", str(cluster), "--port", str(port))
    with running("scheduler", *arguments, output=tmp_path / "scheduler.log") as program:
        shown_blocking("the scheduler's health", lambda: fetch(port, "/readyz"))
        yield Scheduler(program, port)


def request(number: int, cpus: int, instance: str | None, agent: str = str(uuid.UUID(int=7))) -> bytes:
    """A request of an agent with the extension for VM `a`, which claims one unit."""
    amount = {"cpu": str(cpus), "memory": f"{cpus}Gi"}
    return json.dumps(
        {
            "protoVersion": 2,
            "pod": {"name": "a", "namespace": "d"},
            "resources": {"vCPUs": cpus, "mem": cpus},
            "metrics": None,
            "agentID": agent,
            "agentStartedAtMs": 1000,
            "podUID": "uid-a",
            "sequenceNumber": number,
            "seenEpoch": 0,
            "schedulerInstance": instance,
            "raw": {"resources": amount, "lastPermit": {"cpu": "1", "memory": "1Gi"}, "computeUnit": None},
        }
    ).encode()


def negotiate(port: int) -> None:
    """A first word, and then growth to three units: the scheduler answers as it should."""
    agent = str(uuid.uuid4())
    status, body = post(port, request(1, 1, None, agent))
    assert status == 200, body
    instance = json.loads(body)["schedulerInstance"]
    status, body = post(port, request(2, 3, instance, agent))
    assert (status, json.loads(body)["raw"]["permit"]) == (200, {"cpu": "3", "memory": "3Gi"})


def test_a_wrong_cluster_file_gives_all_faults_at_once_and_exit_code_2(tmp_path: Path) -> None:
    """Each with path, value and rule."""
    wrong = {
        "nodes": [{"name": "n1", "allocatable": {"cpu": "many", "memory": "4Gi"}, "colour": "red"}],
        "vms": [
            {"namespace": "d", "name": "a", "uid": "1", "node": "n2", "min": {"cpu": 2, "memory": "1Gi"}},
            {"namespace": "d", "name": "a", "uid": "1", "node": "n1", "min": {"cpu": 2, "memory": "1Gi"},
             "max": {"cpu": 1, "memory": "1Gi"}},
        ],
    }  # fmt: skip
    cluster = write_json(tmp_path / "wrong.yaml", wrong)
    with running("scheduler", "--cluster", str(cluster), "--port", "0", output=tmp_path / "out") as program:
        code = program.process.wait(30)
    text = program.text()
    assert code == 2
    for fault in (
        "nodes[0].allocatable.cpu: 'many' is not a quantity",
        "nodes[0].colour: there is no such setting",
        "vms[0].max: is required",
        "vms[1].min: must not exceed max in either resource: 2 CPU / 1Gi does not fit in 1 CPU / 1Gi",
        "vms[0].node: there is no node 'n2' in this file",
        "vms[1].name: pod 'd/a' is used more than once",
        "vms[1].uid: UID '1' is used more than once",
    ):
        assert fault in text
    assert "Traceback" not in text


def test_a_taken_port_is_a_plain_message(scheduler: Scheduler, tmp_path: Path) -> None:
    """Exit code 1, no traceback."""
    cluster = cluster_file(tmp_path / "other.yaml", ["a"])
    arguments = ("--cluster", str(cluster), "--port", str(scheduler.port))
    with running("scheduler", *arguments, output=tmp_path / "second.log") as second:
        code = second.process.wait(30)
    assert code == 1
    assert f"cannot listen on 127.0.0.1:{scheduler.port}" in second.text()
    assert "Traceback" not in second.text()


def test_half_sent_requests_idle_connections_and_a_huge_body_leave_it_answering(scheduler: Scheduler) -> None:
    """Everything at once: half a header, half a body, 1,000 idle connections, 10 MB."""
    port, opened = scheduler.port, []
    try:
        for half in (
            b"POST / HTTP/1.1\r\nHost: x\r\nContent-Le",
            b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 500\r\n\r\n{",
        ):
            half_sent = socket.create_connection(("127.0.0.1", port))
            half_sent.sendall(half)
            opened.append(half_sent)
        opened += [socket.create_connection(("127.0.0.1", port)) for _ in range(1000)]
        negotiate(port)
        with closing(socket.create_connection(("127.0.0.1", port))) as huge:
            huge.sendall(b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 10000000\r\n\r\n")
            with suppress(OSError):  # it need not read what it refuses
                for _ in range(100):
                    huge.sendall(b"x" * 100_000)
        negotiate_again = request(9, 2, None, str(uuid.uuid4()))
        status, _ = post(
            port, negotiate_again.replace(b'"agentStartedAtMs": 1000', b'"agentStartedAtMs": 2000')
        )
        assert status == 200
    finally:
        for each in opened:
            each.close()


def test_half_sent_requests_are_cut_off(scheduler: Scheduler) -> None:
    """The sweeper closes them; the peer sees the end of the connection."""
    for half in (
        b"POST / HTTP/1.1\r\nHost: x\r\nContent-Le",
        b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 500\r\n\r\n{",
    ):
        with closing(socket.create_connection(("127.0.0.1", scheduler.port), timeout=60)) as half_sent:
            half_sent.sendall(half)
            with suppress(ConnectionResetError):  # an abort may arrive as a reset
                assert half_sent.recv(1000) == b""
    assert b'event="aborted"} 2.0' in fetch(scheduler.port, "/metrics")


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"\xff\xfe", b'{"protoVersion":true}', b"nonsense" * 100])
def test_garbage_is_a_400(scheduler: Scheduler, body: bytes) -> None:
    """A clear error, and the scheduler goes on."""
    status, text = post(scheduler.port, body)
    assert (status, text[:8]) == (400, b"bad JSON")
    assert "Traceback" not in scheduler.program.text()


@pytest.mark.parametrize("path", ["/v1/pools/ci/explain", "/v1", "/batches", "/favicon.ico", "//"])
def test_only_the_root_takes_permit_requests(scheduler: Scheduler, path: str) -> None:
    """Elsewhere a caller is told that there is nothing, whatever it sends."""
    for body in (b'{"name": "ci"}', request(1, 1, None, str(uuid.uuid4()))):
        status, text = post(scheduler.port, body, path)
        assert (status, text) == (404, f"there is nothing at {path}\n".encode())
    page = fetch(scheduler.port, "/metrics").decode()
    assert 'code="malformed"' not in page


def test_callers_without_the_extension_are_refused_unless_allowed(scheduler: Scheduler) -> None:
    """403 on nodes that `--published-agents` does not name."""
    body = b'{"protoVersion":2,"pod":{"name":"a","namespace":"d"},"resources":{"vCPUs":1,"mem":1},"metrics":null}'
    status, text = post(scheduler.port, body)
    assert status == 403
    assert b"--published-agents" in text


def test_a_trusted_published_agent_negotiates(tmp_path: Path) -> None:
    """With `--published-agents` and `--trust-published` the published shapes get published answers."""
    port = free_port()
    cluster = cluster_file(tmp_path / "cluster.yaml", ["a", "b"])
    arguments = (
        "--cluster",
        str(cluster),
        "--port",
        str(port),
        "--published-agents",
        "n*",
        "--trust-published",
    )
    with running("scheduler", *arguments, output=tmp_path / "scheduler.log") as program:
        shown_blocking("the scheduler's health", lambda: fetch(port, "/readyz"))
        for version, metrics in ((1, '{"loadAvg1M":0.5,"loadAvg5M":0.25}'), (2, "null")):
            body = (
                f'{{"protoVersion":{version},"pod":{{"name":"a","namespace":"d"}},'
                f'"resources":{{"vCPUs":2,"mem":2}},"metrics":{metrics}}}'
            )
            status, answer = post(port, body.encode())
            assert (status, json.loads(answer)) == (
                200,
                {"permit": {"vCPUs": 2, "mem": 2}, "resourceUnit": {"vCPUs": 1, "mem": 1}},
            )
        assert "--trust-published" in program.text()
        assert program.end(signal.SIGTERM) == 0
        assert '"draining"' in program.text()


def test_the_journal_of_a_killed_scheduler_is_replayed(tmp_path: Path) -> None:
    """kill -9 in mid-service: what is on the disk gives the same decisions."""
    port = free_port()
    cluster = cluster_file(tmp_path / "cluster.yaml", ["a", "b"])
    arguments = ("--cluster", str(cluster), "--port", str(port), "--journal", str(tmp_path / "journal"))
    with running("scheduler", *arguments, output=tmp_path / "scheduler.log") as program:
        shown_blocking("the scheduler's health", lambda: fetch(port, "/readyz"))
        negotiate(port)
        status, _ = post(port, b"nonsense")
        assert status == 400
        file = tmp_path / "journal" / "journal-000001.jsonl"
        shown_blocking("both requests on the disk", lambda: file.read_text().count('{"request"') == 2)
        program.end(signal.SIGKILL)
    with running("parley", "replay", str(tmp_path / "journal"), output=tmp_path / "replay.out") as replay:
        assert replay.process.wait(60) == 0
    assert "the same decisions" in replay.text()
