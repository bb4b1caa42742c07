"""The agent's process: the lock of its node, files that are gone or broken, and the addresses that it tells others."""

import json
import os
import shutil
import signal
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from tests.processes.schedulers import figure
from tests.support.processes import Program, agent_file, cluster_file, fetch, free_port, running, vms
from tests.support.waiting import shown_blocking

LOADED = "import atexit, sys; atexit.register(lambda: print('MODULES', *sys.modules)); from agent import program; program.main()"


@contextmanager
def agent_of(directory: Path, port: int, name: str = "agent", *, code: str = "") -> Iterator[Program]:
    """An agent with the settings of a directory; `code` is run in the place of its module."""
    started = ("-c", code) if code else ("agent",)
    arguments = (*started, "--config", str(directory / "agent.yaml"), "--port", str(port))
    with running(*arguments, output=directory / f"{name}.log") as daemon:
        yield daemon


def test_a_second_agent_waits_for_the_node_lock_and_loads_no_optional_library(tmp_path: Path) -> None:
    """It says that it waits, takes over when the first one is killed, negotiates, listens for notices, and tells at its end what it has
    loaded."""
    scheduler, informant, first_port, second_port = (free_port() for _ in range(4))
    cluster = cluster_file(tmp_path / "cluster.yaml", ["a"])
    agent_file(tmp_path / "agent.yaml", scheduler, {"a": informant})
    with ExitStack() as stack:
        start = stack.enter_context
        serving = ("--cluster", str(cluster), "--port", str(scheduler))
        start(running("scheduler", *serving, output=tmp_path / "scheduler.log"))
        approving = ("--port", str(informant), "--approve-all")
        start(running("informant", *approving, output=tmp_path / "informant.log"))
        first = start(agent_of(tmp_path, first_port, "first"))
        shown_blocking("the first agent's permit", lambda: vms(first_port)["d/a"]["permit"])
        second = start(agent_of(tmp_path, second_port, "second", code=LOADED))
        shown_blocking("that the second waits", lambda: "another agent has this node" in second.text())
        os.kill(first.process.pid, signal.SIGKILL)
        shown_blocking("the second agent's permit", lambda: vms(second_port)["d/a"]["permit"])
        shown_blocking("that it listens", lambda: figure(second_port, "parley_agent_notice_polls") == 1)
        shown_blocking("who listens", lambda: figure(scheduler, "parley_scheduler_notice_polls") == 1)
        assert second.end() == 0
    lines = (tmp_path / "state/changes.jsonl").read_text().splitlines()
    assert [json.loads(line)["kind"] for line in lines].count("daemon") == 2
    loaded = next(line for line in second.text().splitlines() if line.startswith("MODULES")).split()
    assert "agent.backends.simulated" in loaded
    assert not {"kubernetes_asyncio", "textual", "qemu", "grpc", "google.protobuf", "asyncinotify"} & set(
        loaded
    )


def test_an_agent_whose_state_directory_was_taken_away_ends(tmp_path: Path) -> None:
    """Another agent could have the node by now: exit code 1, and a line that says why."""
    agent_file(tmp_path / "agent.yaml", free_port(), {"a": free_port()})
    port = free_port()
    with agent_of(tmp_path, port) as daemon:
        shown_blocking("the agent's health", lambda: fetch(port, "/healthz"))
        shutil.rmtree(tmp_path / "state")
        assert daemon.process.wait(60) == 1
    assert "the state directory was removed or replaced" in daemon.text()


def test_a_broken_file_of_a_vm_is_a_plain_message(tmp_path: Path) -> None:
    """It names the file, says what to do, and ends with 1; no traceback. What is broken is told of the back end."""
    agent_file(tmp_path / "agent.yaml", free_port(), {"a": free_port()})
    broken = tmp_path / "state" / "vms" / "d.a.json"
    broken.parent.mkdir(parents=True)
    broken.write_text("{")
    with agent_of(tmp_path, 0) as daemon:
        assert daemon.process.wait(60) == 1
    assert f"{broken} is no file of a simulated VM" in daemon.text()
    assert "Traceback" not in daemon.text()


def test_what_is_known_of_the_load_is_saved_at_the_end_and_read_at_the_start(tmp_path: Path) -> None:
    """The daemon saves, reads, and says what it cannot read; the tests of the files and of the core tell what comes of it."""
    agent_file(tmp_path / "agent.yaml", free_port(), {"a": free_port()})
    port = free_port()
    for name in ("first", "second"):
        with agent_of(tmp_path, port, name) as daemon:
            shown_blocking("the agent's health", lambda: fetch(port, "/healthz"))
            assert daemon.end() == 0
        (path,) = (tmp_path / "state/load").iterdir()
        assert json.loads(path.read_bytes())["vm"] == "d/a"
        assert daemon.text().count("what was known of the load is ignored") == (name == "second")
        path.write_text("garbage")


@pytest.mark.skipif(not socket.has_ipv6, reason="needs IPv6: a kernel and a Python with it")
def test_over_ipv6_and_a_wildcard_the_informant_calls_back_what_is_advertised(tmp_path: Path) -> None:
    """The agent registers the address at which its informant can call it, and reads metrics where it is told to: here
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
            (
                "informant",
                informant,
                *idle,
                "--host",
                "::",
                "--plain-http",
                "--advertise",
                f"[::1]:{forwarded}",
            ),
            ("informant", forwarded, *busy, "--host", "::1"),
            ("agent", agent, "--config", str(file), "--host", "::", "--plain-http", "--advertise", "[::1]"),
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
