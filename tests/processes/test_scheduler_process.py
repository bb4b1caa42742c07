"""The scheduler's process: files that change, hostile peers, a crowd, kills and restarts, files that fail."""

import json
import os
import signal
import socket
from contextlib import closing
from pathlib import Path

from parley.replay import INCOMPLETE, SAME
from tests.processes.schedulers import (
    AskingAgent,
    Crowd,
    figure,
    get,
    lines,
    put,
    refused,
    rows,
    scheduler,
)
from tests.support.processes import Program, cluster_file, fetch, free_port, post, running, write_json
from tests.support.waiting import shown_blocking

GROWTH_STOPPED = {"growth": {"stop": True}}
# ---------------------------------------------------------------- starts that fail


def test_a_wrong_file_gives_all_faults_at_once_and_exit_code_2(tmp_path: Path) -> None:
    """Before anything is served."""
    node = {"name": "n1", "allocatable": {"cpu": "many", "memory": "4Gi"}, "colour": "red"}
    code, text = refused(tmp_path, "--cluster", str(write_json(tmp_path / "cluster.yaml", {"nodes": [node]})))
    assert code == 2
    assert "nodes[0].allocatable.cpu: 'many' is not a quantity" in text
    assert "nodes[0].colour: there is no such setting" in text


def test_a_taken_port_is_a_plain_message(tmp_path: Path) -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as taken:
        port = taken.getsockname()[1]
        cluster = cluster_file(tmp_path / "cluster.yaml", ["a"])
        code, text = refused(tmp_path, "--cluster", str(cluster), "--port", str(port))
    assert (code, f"cannot listen on 127.0.0.1:{port}" in text) == (1, True)


# ---------------------------------------------------------------- files that change


def _config_faults(program: Program) -> list[str]:
    return [line["error"] for line in lines(program, "configuration not usable, the old one stays in force")]


def test_the_configuration_is_taken_up_as_it_changes(tmp_path: Path) -> None:
    """Good, bad, gone, restored: what was good last is in force, and each fault is told once with all that is wrong."""
    config = write_json(tmp_path / "config.yaml", GROWTH_STOPPED)
    with scheduler(tmp_path, "--config", str(config)) as (program, port):
        agent = AskingAgent(port).settle()
        assert agent.ask(3) == (1, ["stopped"])
        put(config, {})
        shown_blocking("growth", lambda: agent.ask(3) == (3, []))
        put(config, GROWTH_STOPPED)
        shown_blocking(
            "the stop", lambda: [line["stopped"] for line in lines(program, "configured")][2:] == [True]
        )
        put(config, {"growth": {"stop": "no"}, "nodeDefaults": {"colour": "red"}})
        shown_blocking("the fault", lambda: figure(port, "parley_scheduler_config_stale") == 1)
        assert agent.ask(4) == (3, ["stopped"])
        config.unlink()
        shown_blocking("its absence", lambda: len(_config_faults(program)) == 2)
        assert agent.ask(4) == (3, ["stopped"])
        assert agent.ask(2) == (2, []), "a decrease always passes"
        put(config, {"growth": {"recommendOnlyVms": ["d/b"]}})
        shown_blocking("growth again", lambda: agent.ask(4) == (4, []))
        assert figure(port, "parley_scheduler_config_stale") == 0
        assert AskingAgent(port, "b").settle().ask(2)[1] == ["recommend-only"]
        faulty, absent = _config_faults(program)
        assert (faulty.count("growth.stop"), faulty.count("nodeDefaults.colour")) == (1, 1)
        assert "cannot be read" in absent
        assert "Traceback" not in program.text()


# ---------------------------------------------------------------- peers


def test_a_crowd_is_served_while_the_scheduler_is_killed_started_again_and_ended(tmp_path: Path) -> None:
    """Thousands of mixed requests leave the accounts right; what agents held over a kill is never given away.

    Who names the new process is settled. SIGTERM drains: callers get whole answers, or a connection that ends.
    """
    names, room = [f"vm-{number}" for number in range(8)], 16
    with scheduler(tmp_path, names=tuple(names), room=room) as (program, port), Crowd(port, names) as crowd:
        shown_blocking("thousands of requests", crowd.seen(4000))
        assert get(port, "/v1/audit") == {"faults": []}
        assert (crowd.faults, set(crowd.statuses), crowd.broken) == ([], {200, 400}, 0)
        assert int(get(port, "/v1/nodes/n1")["reserved"]["cpu"]) <= room
        assert figure(port, 'parley_scheduler_requests_total{code="200",outcome="permit"}') >= 3000
        assert lines(program, "request failed by our fault") == []
        first = crowd.agents[0].instance
        program.end(signal.SIGKILL)
        with scheduler(tmp_path, port=port) as (again, _):
            shown_blocking(
                "everybody with it", lambda: first not in {agent.instance for agent in crowd.agents}
            )
            unsettled = 'parley_scheduler_vms{state="unsettled"}'
            shown_blocking("everybody settled", lambda: figure(port, unsettled) == 0)
            shown_blocking("requests", crowd.seen(200))
            assert get(port, "/v1/audit") == {"faults": []}
            assert again.end(signal.SIGTERM) == 0
            crowd.end()
            assert crowd.broken > 0
            assert (crowd.faults, set(crowd.statuses)) == ([], {200, 400})
            assert sum(agent.held for agent in crowd.agents) <= room
            assert any(line["reason"] == "unsettled" for line in lines(again, "decision"))
            assert [line["event"] for line in lines(again, "draining")] == ["draining"]
            assert lines(again, "handler failed") == []
        assert "Traceback" not in program.text() + again.text()


def test_after_a_kill_a_silent_vm_keeps_its_maximum_and_the_journal_is_replayed(tmp_path: Path) -> None:
    """The other VM is told why it cannot grow, until the silent one has spoken. What is on the disk gives the same decisions."""
    journal = tmp_path / "journal"
    with scheduler(tmp_path, "--journal", str(journal), room=5) as (program, port):
        a, b = AskingAgent(port).settle(), AskingAgent(port, "b").settle()
        assert (a.ask(2), b.ask(3)) == ((2, []), (3, []))
        assert post(port, b"nonsense")[0] == 400
        file = journal / "journal-000001.jsonl"
        shown_blocking("all decisions on the disk", lambda: file.read_text().count('{"request"') == 6)
        program.end(signal.SIGKILL)
    with running("parley", "replay", str(journal), output=tmp_path / "replay.out") as replay:
        assert replay.process.wait(60) == SAME
    assert "the same decisions" in replay.text()
    with scheduler(tmp_path, port=port):
        assert b.ask(4) == (3, ["unsettled"])
        assert b.ask(4) == (3, ["node-headroom"])
        assert rows(port) == {"d/a": 4, "d/b": 3}
        assert a.ask(1) == (1, ["unsettled"]) or a.held == 1
        assert a.ask(1) == (1, [])
        assert b.ask(4) == (4, [])


# ---------------------------------------------------------------- disks and files that fail

SMALL_FILES = """
import resource, runpy, sys
resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
sys.argv[0] = "scheduler"
runpy.run_module("scheduler", run_name="__main__")
"""


def test_a_full_disk_stops_the_journal_and_nothing_else(tmp_path: Path) -> None:
    """Entries that are lost are counted, the log stays readable, the end is in order, and what was written can be replayed."""
    port, journal = free_port(), tmp_path / "journal"
    cluster = cluster_file(tmp_path / "cluster.yaml", ["a"])
    arguments = ("--cluster", str(cluster), "--port", str(port), "--journal", str(journal))
    with running("-c", SMALL_FILES, *arguments, output=tmp_path / "scheduler.log") as program:
        shown_blocking("the scheduler's health", lambda: fetch(port, "/readyz"))
        agent = AskingAgent(port).settle()

        def lost() -> bool:
            assert agent.ask(1) == (1, [])
            return figure(port, "parley_scheduler_journal_lost_total") > 10

        for _ in range(100):
            agent.ask(1)
        shown_blocking("losses", lost)
        assert agent.ask(3) == (3, [])
        assert program.end(signal.SIGTERM) == 0
        told = [json.loads(line) for line in program.text().splitlines()]
        assert [line["error"] for line in told if line["event"] == "journal stopped"] == [
            "[Errno 27] File too large"
        ]
    with running("parley", "replay", str(journal), output=tmp_path / "replay.out") as replay:
        assert replay.process.wait(60) in {SAME, INCOMPLETE}, replay.text()  # it may end within a line


def test_a_file_that_hangs_holds_nothing_else_up(tmp_path: Path) -> None:
    """As on a file server that has gone: decisions, pages and the other file go on, and the end is an end."""
    config = write_json(tmp_path / "config.yaml", {})
    with scheduler(tmp_path, "--config", str(config)) as (program, port):
        agent = AskingAgent(port).settle()
        pipe = tmp_path / "pipe"
        os.mkfifo(pipe)
        pipe.replace(tmp_path / "cluster.yaml")  # nobody writes it, so that whoever opens it waits
        shown_blocking("the fault", lambda: figure(port, "parley_scheduler_cluster_stale") == 1)
        for number in range(8):  # more than the threads that the loop shares
            post(port, AskingAgent(port, f"unknown-{number}").body(1))
        put(config, GROWTH_STOPPED)
        shown_blocking(
            "the stop", lambda: [line["stopped"] for line in lines(program, "configured")] == [False, True]
        )
        assert agent.ask(3) == (1, ["stopped"])
        assert program.end(signal.SIGTERM) == 0
