"""The agent's process between a scheduler that misbehaves and an informant: it recovers, and never uses what it does
not hold."""

import json
import os
import shutil
import signal
import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from parley.observer import Tail
from tests.support.processes import agent_file, cluster_file, fetch, free_port, post, running, vms
from tests.support.waiting import shown_blocking

GOOD = "good"
TROUBLES = ("400", "404", "409", "429", "500", "garbage", "half", "silence")


class Middle(ThreadingHTTPServer):
    """Stands between agent and scheduler: passes requests on, or misbehaves as told. `seen` are the bodies it got."""

    daemon_threads = True

    def __init__(self, scheduler: int) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.scheduler = scheduler
        self.mode = GOOD
        self.seen: list[bytes] = []
        self.released = threading.Event()

    def behave(self, mode: str) -> None:
        """From now on answer so; whoever waits in silence is let go."""
        self.mode = mode
        self.released.set()
        self.released = threading.Event()


class _Handler(BaseHTTPRequestHandler):
    server: Middle
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.seen.append(body)
        match self.server.mode:
            case "good":
                status, answer = post(self.server.scheduler, body)
                self._answer(status, answer)
            case "garbage":
                self._answer(200, b"\x00\x01 not JSON")
            case "half":
                self.send_response(200)
                self.send_header("Content-Length", "500")
                self.end_headers()
                self.wfile.write(b'{"permit":')
                self.close_connection = True
            case "silence":
                self.server.released.wait(60)
                self.close_connection = True
            case status:
                self._answer(int(status), b"go away\n")

    def _answer(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base class's name
        """Say nothing."""


@contextmanager
def between(scheduler: int) -> Iterator[Middle]:
    """A `Middle` that listens for the length of a `with` block."""
    middle = Middle(scheduler)
    thread = threading.Thread(target=middle.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield middle
    finally:
        middle.released.set()
        middle.shutdown()
        thread.join()
        middle.server_close()


def _assert_nothing_was_used_without_being_held(state: Path) -> None:
    """In the change log, no target or size is above what was held or had before."""
    held: dict[str, int] = {}
    had: dict[str, int] = {}
    raises = 0
    for line in Tail(state / "changes.jsonl").lines():
        if line["kind"] == "daemon":
            held.clear()
            continue
        vm, cpu = line["vm"], line["cpu"]
        match line["kind"]:
            case "held":
                held[vm] = cpu
            case "target" if cpu > had[vm]:
                raises += 1
                assert cpu <= held[vm], line
        if line["kind"] != "held":
            had[vm] = cpu
    assert raises > 0


@pytest.mark.parametrize("trouble", TROUBLES)
def test_the_agent_recovers_from_a_scheduler_in_trouble(trouble: str, tmp_path: Path) -> None:
    """Bad from its first word on, good, bad again, good again: the VM gets what it needs by itself, and only then."""
    scheduler, informant, agent = free_port(), free_port(), free_port()
    cluster = cluster_file(tmp_path / "cluster.yaml", ["a"])
    with ExitStack() as stack:
        start = stack.enter_context
        start(
            running(
                "scheduler",
                "--cluster",
                str(cluster),
                "--port",
                str(scheduler),
                output=tmp_path / "scheduler.log",
            )
        )
        workload = ("--workload", "step", "--low", "2.6", "--high", "2.6")  # a steady wish for four units
        start(running("informant", "--port", str(informant), *workload, output=tmp_path / "informant.log"))
        shown_blocking("the scheduler's health", lambda: fetch(scheduler, "/readyz"))
        middle = start(between(scheduler))
        middle.behave(trouble)
        config = agent_file(tmp_path / "agent.yaml", middle.server_port, {"a": informant})
        daemon = start(
            running("agent", "--config", str(config), "--port", str(agent), output=tmp_path / "agent.log")
        )
        trouble_seen = 1 if trouble == "silence" else 3
        shown_blocking(
            "bad answers", lambda: len(middle.seen) >= trouble_seen and vms(agent)["d/a"]["faults"]
        )
        assert vms(agent)["d/a"]["size"] == {"cpu": "1", "memory": "1Gi"}
        middle.behave(GOOD)
        shown_blocking(
            "growth to the goal", lambda: vms(agent)["d/a"]["size"] == {"cpu": "4", "memory": "4Gi"}
        )

        middle.behave(trouble)
        shown_blocking("trouble again", lambda: vms(agent)["d/a"]["faults"])
        assert vms(agent)["d/a"]["size"] == {"cpu": "4", "memory": "4Gi"}
        middle.behave(GOOD)
        shown_blocking("no more faults", lambda: not vms(agent)["d/a"]["faults"])
        assert daemon.process.poll() is None
        assert "Traceback" not in daemon.text()
    _assert_nothing_was_used_without_being_held(tmp_path / "state")


def test_a_second_agent_waits_for_the_node_lock(tmp_path: Path) -> None:
    """It says so, and takes over when the first one is killed."""
    scheduler, informant, first_port, second_port = (free_port() for _ in range(4))
    cluster = cluster_file(tmp_path / "cluster.yaml", ["a"])
    config = agent_file(tmp_path / "agent.yaml", scheduler, {"a": informant})
    with ExitStack() as stack:
        start = stack.enter_context
        arguments = ("--cluster", str(cluster), "--port", str(scheduler))
        start(running("scheduler", *arguments, output=tmp_path / "scheduler.log"))
        start(
            running("informant", "--port", str(informant), "--approve-all", output=tmp_path / "informant.log")
        )
        first = start(
            running(
                "agent", "--config", str(config), "--port", str(first_port), output=tmp_path / "first.log"
            )
        )
        shown_blocking("the first agent's permit", lambda: vms(first_port)["d/a"]["permit"])
        second = start(
            running(
                "agent", "--config", str(config), "--port", str(second_port), output=tmp_path / "second.log"
            )
        )
        shown_blocking(
            "the second agent to say that it waits", lambda: "another agent has this node" in second.text()
        )
        os.kill(first.process.pid, signal.SIGKILL)
        shown_blocking("the second agent's permit", lambda: vms(second_port)["d/a"]["permit"])
        assert second.end() == 0
    lines = (tmp_path / "state/changes.jsonl").read_text().splitlines()
    assert [json.loads(line)["kind"] for line in lines].count("daemon") == 2


def test_a_simulated_agent_loads_no_optional_library(tmp_path: Path) -> None:
    """Started for real, and negotiating; at its end it tells which modules it has loaded."""
    scheduler, informant, port = free_port(), free_port(), free_port()
    cluster = cluster_file(tmp_path / "cluster.yaml", ["a"])
    config = agent_file(tmp_path / "agent.yaml", scheduler, {"a": informant})
    tell = "import atexit, sys; atexit.register(lambda: print('MODULES', *sys.modules)); import agent.cli as cli; cli.main()"
    with ExitStack() as stack:
        start = stack.enter_context
        arguments = ("--cluster", str(cluster), "--port", str(scheduler))
        start(running("scheduler", *arguments, output=tmp_path / "scheduler.log"))
        start(running("informant", "--port", str(informant), output=tmp_path / "informant.log"))
        arguments = ("--config", str(config), "--port", str(port))
        daemon = start(running("-c", tell, *arguments, output=tmp_path / "agent.log"))
        shown_blocking("a permit", lambda: vms(port)["d/a"]["permit"])
        assert daemon.end() == 0
    loaded = next(line for line in daemon.text().splitlines() if line.startswith("MODULES")).split()
    assert "agent.backends.simulated" in loaded
    assert not {"kubernetes_asyncio", "textual", "qemu"} & set(loaded)


def test_an_agent_whose_state_directory_was_taken_away_ends(tmp_path: Path) -> None:
    """Another agent could have the node by now: exit code 1, and a line that says why."""
    config = agent_file(tmp_path / "agent.yaml", free_port(), {"a": free_port()})
    port = free_port()
    with running(
        "agent", "--config", str(config), "--port", str(port), output=tmp_path / "agent.log"
    ) as daemon:
        shown_blocking("the agent's health", lambda: fetch(port, "/healthz"))
        shutil.rmtree(tmp_path / "state")
        assert daemon.process.wait(60) == 1
    assert "the state directory was removed or replaced" in daemon.text()


@pytest.mark.parametrize("content", ["", "{", "[]", "{}"])
def test_a_broken_file_of_a_vm_is_a_plain_message(content: str, tmp_path: Path) -> None:
    """It names the file, says what to do, and ends with 1; no traceback."""
    config = agent_file(tmp_path / "agent.yaml", free_port(), {"a": free_port()})
    broken = tmp_path / "state" / "vms" / "d.a.json"
    broken.parent.mkdir(parents=True)
    broken.write_text(content)
    with running("agent", "--config", str(config), "--port", "0", output=tmp_path / "agent.log") as daemon:
        assert daemon.process.wait(60) == 1
    assert f"{broken} is no file of a simulated VM" in daemon.text()
    assert "Traceback" not in daemon.text()


@pytest.mark.skipif(not socket.has_ipv6, reason="needs IPv6: a kernel and a Python with it")
def test_over_ipv6_and_a_wildcard_the_informant_calls_back_what_is_advertised(tmp_path: Path) -> None:
    """What the agent registers with its informant is where it can be called, and it reads metrics where it is told to: here
    another program answers at the port that would be forwarded.
    """
    scheduler, informant, agent, forwarded = free_port(), free_port(), free_port(), free_port()
    cluster = cluster_file(tmp_path / "cluster.yaml", ["a"])
    file = agent_file(tmp_path / "agent.yaml", scheduler, {"a": informant})
    settings = json.loads(file.read_text())
    settings["vms"][0]["informant"] = f"http://[::1]:{informant}"
    file.write_text(json.dumps(settings))
    idle = ("--workload", "step", "--low", "0.2", "--high", "0.2")
    busy = ("--workload", "step", "--low", "2.6", "--high", "2.6")  # of which its one CPU shows 1
    with ExitStack() as stack:
        for module, port, *arguments in (
            ("scheduler", scheduler, "--cluster", str(cluster)),
            ("informant", informant, *idle, "--host", "::", "--advertise", f"[::1]:{forwarded}"),
            ("informant", forwarded, *busy, "--host", "::1"),
            ("agent", agent, "--config", str(file), "--host", "::", "--advertise", "[::1]"),
        ):
            log = tmp_path / f"{module}-{port}.log"
            stack.enter_context(running(module, *arguments, "--port", str(port), output=log))

        def is_whole() -> bool:
            vm = vms(agent)["d/a"]
            return vm["informant"] == "active" and ((vm["load"] or {}).get("busyCPUs") or 0) > 0.6

        shown_blocking("an active informant, and the load from the other port", is_whole)
    started = [json.loads(line) for line in (tmp_path / f"agent-{agent}.log").read_text().splitlines()]
    (serving,) = (line for line in started if line["event"] == "serving")
    assert serving["advertised"] == f"[::1]:{agent}"
    assert serving["address"] == f"http://[::]:{agent}"
