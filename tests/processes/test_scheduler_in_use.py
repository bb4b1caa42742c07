"""The scheduler's process in use: files that change while it serves, batches, many callers at once, ends and restarts."""

import http.client
import json
import os
import random
import signal
import threading
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import pytest

from parley.replay import INCOMPLETE, SAME
from tests.support.processes import Program, amount, cluster_file, fetch, free_port, post, running, write_json
from tests.support.waiting import shown_blocking

GROWTH_STOPPED = {"growth": {"stop": True}}


@dataclass
class Agent:
    """The agent of one VM: it counts its requests, and remembers what it holds and whom it heard."""

    port: int
    name: str = "a"
    number: int = 0
    held: int = 1
    instance: str | None = None
    agent: str = field(default_factory=lambda: str(uuid.uuid4()))

    def body(self, cpus: int) -> bytes:
        """The next request."""
        self.number += 1
        wanted = {"cpu": str(cpus), "memory": f"{cpus}Gi"}
        claim = {"cpu": str(self.held), "memory": f"{self.held}Gi"}
        content = {
            "protoVersion": 2,
            "pod": {"name": self.name, "namespace": "d"},
            "resources": {"vCPUs": cpus, "mem": cpus},
            "metrics": None,
            "agentID": self.agent,
            "agentStartedAtMs": 1000,
            "podUID": f"uid-{self.name}",
            "sequenceNumber": self.number,
            "seenEpoch": 0,
            "schedulerInstance": self.instance,
            "raw": {"resources": wanted, "lastPermit": claim, "computeUnit": None},
        }
        return json.dumps(content).encode()

    def take(self, content: dict[str, Any]) -> tuple[int, list[str]]:
        """A permit: how many units it is, and the codes of its reasons."""
        self.instance = content["schedulerInstance"]
        self.held = int(content["raw"]["permit"]["cpu"])
        return self.held, [reason["code"] for reason in content["reasons"]]

    def ask(self, cpus: int) -> tuple[int, list[str]]:
        """Ask, and take the permit."""
        status, answer = post(self.port, self.body(cpus))
        assert status == 200, answer
        return self.take(json.loads(answer))

    def settle(self) -> "Agent":
        """The first words with a scheduler."""
        self.ask(self.held)
        assert self.ask(self.held) == (self.held, [])
        return self


@contextmanager
def scheduler(
    directory: Path, *more: str, port: int | None = None, names: tuple[str, ...] = ("a", "b"), room: int = 8
) -> Iterator[tuple[Program, int]]:
    """A scheduler that serves, with its cluster file beside its log. Before the first one of a directory nothing ran."""
    port = port or free_port()
    cluster = directory / "cluster.yaml"
    if not cluster.exists():
        cluster_file(cluster, list(names), room=room)
        more = (*more, "--first-start")
    arguments = ("--cluster", str(cluster), "--port", str(port), *more)
    with running("scheduler", *arguments, output=directory / "scheduler.log") as program:
        shown_blocking("the scheduler's health", lambda: fetch(port, "/readyz"))
        yield program, port


def put(path: Path, content: object) -> None:
    """Put a new file in the place of an old one."""
    write_json(path.with_suffix(".new"), content).replace(path)


def node(port: int) -> dict[str, Any]:
    """The view of node `n1`."""
    shown: dict[str, Any] = json.loads(fetch(port, "/v1/nodes/n1"))
    return shown


def rows(port: int) -> dict[str, int]:
    """The CPUs that each row of the node keeps."""
    return {row["name"]: int(row["reserved"]["cpu"]) for row in node(port)["rows"]}


def figure(port: int, name: str) -> float:
    """A figure of the metrics page."""
    (line,) = [line for line in fetch(port, "/metrics").decode().splitlines() if line.startswith(f"{name} ")]
    return float(line.split()[-1])


def lines(program: Program, event: str) -> list[dict[str, Any]]:
    """The log's lines of one event."""
    found = [json.loads(line) for line in program.text().splitlines() if line.endswith("}")]
    return [line for line in found if line["event"] == event]


# ---------------------------------------------------------------- the configuration


def test_the_configuration_is_taken_up_as_it_changes(tmp_path: Path) -> None:
    """Good, bad, gone, restored: what was good last is in force, and each fault is told once with all that is wrong."""
    config = write_json(tmp_path / "config.yaml", GROWTH_STOPPED)
    with scheduler(tmp_path, "--config", str(config)) as (program, port):
        agent = Agent(port).settle()
        assert agent.ask(3) == (1, ["stopped"])
        put(config, {})
        shown_blocking("growth", lambda: agent.ask(3) == (3, []))
        put(config, GROWTH_STOPPED)
        shown_blocking(
            "the stop", lambda: [line["stopped"] for line in lines(program, "configured")][2:] == [True]
        )
        assert agent.ask(4) == (3, ["stopped"])
        assert agent.ask(2) == (2, []), "a decrease always passes"

        put(config, {"growth": {"stop": "no"}, "nodeDefaults": {"watermark": 2, "colour": "red"}})
        shown_blocking("the fault", lambda: figure(port, "parley_scheduler_config_stale") == 1)
        assert agent.ask(4) == (2, ["stopped"])
        config.unlink()
        shown_blocking("its absence", lambda: len(_config_faults(program)) == 2)
        assert agent.ask(4) == (2, ["stopped"])
        assert figure(port, "parley_scheduler_config_stale") == 1

        put(config, {})
        shown_blocking("growth again", lambda: agent.ask(4) == (4, []))
        assert figure(port, "parley_scheduler_config_stale") == 0
        faulty, absent = _config_faults(program)
        for path in ("growth.stop", "nodeDefaults.watermark", "nodeDefaults.colour"):
            assert faulty.count(path) == 1
        assert "3 faults" in faulty
        assert "cannot be read" in absent
        assert "Traceback" not in program.text()


def _config_faults(program: Program) -> list[str]:
    return [line["error"] for line in lines(program, "configuration not usable, the old one stays in force")]


def test_what_is_only_recommended_is_told_and_not_granted(tmp_path: Path) -> None:
    """One VM by its name; the other one grows."""
    config = write_json(tmp_path / "config.yaml", {"growth": {"recommendOnlyVms": ["d/a"]}})
    with scheduler(tmp_path, "--config", str(config)) as (_, port):
        agent = Agent(port).settle()
        status, answer = post(port, agent.body(3))
        (reason,) = json.loads(answer)["reasons"]
        assert (status, reason["code"]) == (200, "recommend-only")
        assert "3 CPU / 3Gi would be permitted" in reason["message"]
        assert Agent(port, "b").settle().ask(3) == (3, [])


WRONG: dict[str, tuple[object, list[str]]] = {
    "no file": (None, ["config.yaml cannot be read"]),
    "no mapping": ([], ["(file): must be a mapping"]),
    "many faults": (
        {"growth": {"stop": 1}, "migration": {"enabled": True}, "nodeOverrides": [{"nodes": []}], "x": 1},
        ["5 faults", "growth.stop:", "migration.enabled:", "nodeOverrides[0]", "x: there is no such setting"],
    ),
}


@pytest.mark.parametrize(("content", "faults"), WRONG.values(), ids=WRONG)
def test_a_wrong_configuration_gives_all_faults_at_once_and_exit_code_2(
    tmp_path: Path, content: object, faults: list[str]
) -> None:
    """Before anything is served."""
    config = tmp_path / "config.yaml"
    if content is not None:
        write_json(config, content)
    cluster = cluster_file(tmp_path / "cluster.yaml", ["a"])
    arguments = ("--cluster", str(cluster), "--config", str(config), "--port", "0")
    with running("scheduler", *arguments, output=tmp_path / "out") as program:
        assert program.process.wait(60) == 2
    text = program.text()
    for fault in faults:
        assert fault in text, text
    assert "Traceback" not in text
    assert "serving" not in text


# ---------------------------------------------------------------- the cluster


def test_the_cluster_is_taken_up_as_it_changes(tmp_path: Path) -> None:
    """Terminal phases free their room, a pod without requests holds its limits, and faults leave everything as it was."""
    path = tmp_path / "cluster.yaml"
    with scheduler(tmp_path, room=8) as (program, port):
        agent = Agent(port).settle()
        assert rows(port) == {"d/a": 1, "d/b": 4}, "the other one may still use its maximum"
        good = json.loads(path.read_text())
        web = {"namespace": "d", "name": "web", "uid": "uid-web", "node": "n1", "limits": amount(2)}

        put(path, {**good, "pods": [web]})
        shown_blocking("the pod", lambda: rows(port) == {"d/a": 1, "d/b": 4, "d/web": 2})
        assert agent.ask(4) == (2, ["node-headroom"])
        put(path, {**good, "pods": [{**web, "phase": "Succeeded"}]})
        shown_blocking("its end", lambda: agent.ask(4) == (4, []))

        put(path, {**good, "pods": [{**web, "node": "n2", "colour": "red"}]})
        shown_blocking("the fault", lambda: figure(port, "parley_scheduler_cluster_stale") == 1)
        assert agent.ask(4) == (4, [])

        ended = [good["vms"][0], {**good["vms"][1], "phase": "Failed"}]
        put(path, {**good, "vms": ended})
        shown_blocking("the other VM's end", lambda: rows(port) == {"d/a": 4})
        status, answer = post(port, Agent(port, "b").body(1))
        assert (status, json.loads(answer)["code"]) == (404, "unknown-pod")
        assert figure(port, "parley_scheduler_cluster_stale") == 0
        faults = lines(program, "cluster not readable, what was read before stays in force")
        assert len(faults) == 1
        assert "2 faults" in faults[0]["error"]
        assert json.loads(fetch(port, "/v1/audit")) == {"faults": []}


# ---------------------------------------------------------------- batches


def test_a_batch_over_http(tmp_path: Path) -> None:
    """Offered in a header, answered item by item; what is too large or no array is refused as a whole."""
    with (
        scheduler(tmp_path, room=5) as (_, port),
        closing(http.client.HTTPConnection("127.0.0.1", port)) as wire,
    ):
        first, second = Agent(port, "a"), Agent(port, "b")
        wire.request("POST", "/", first.body(1))
        answer = wire.getresponse()
        assert (answer.status, answer.headers["Parley-Batch"]) == (200, "128")
        first.take(json.loads(answer.read()))
        second.settle()
        assert second.ask(4) == (1, ["node-headroom"])

        items = [second.body(4), b"{}", first.body(1)]
        for body, expected in (
            (b"[" + b",".join(items) + b"]", [200, 400, 200]),
            (b"[]", []),
        ):
            wire.request("POST", "/batch", body)
            answer = wire.getresponse()
            content = json.loads(answer.read())
            assert (answer.status, [each["status"] for each in content]) == (200, expected)
            if content:
                assert second.take(content[0]["body"]) == (4, []), (
                    "the first one has settled in the same batch"
                )
        assert post(port, b"[" + b"{}," * 128 + b"{}]", "/batch")[0] == 400
        assert post(port, b"{}", "/batch")[0] == 400
        assert post(port, b"[" + b" " * 140_000 + b"]", "/batch")[0] == 413
        assert json.loads(fetch(port, "/v1/audit")) == {"faults": []}


# ---------------------------------------------------------------- many at once


class Crowd:
    """Callers in threads of their own, each with a connection and a VM, until told otherwise."""

    def __init__(self, port: int, names: list[str]) -> None:
        self.stop = threading.Event()
        self.statuses: Counter[int] = Counter()
        self.broken = 0
        self.faults: list[str] = []
        self.agents = [Agent(port, name) for name in names]
        self._threads = [
            threading.Thread(target=self._run, args=(agent, random.Random(number)))
            for number, agent in enumerate(self.agents)
        ]

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def end(self) -> None:
        """Stop asking, and wait for the last answers."""
        self.stop.set()
        for thread in self._threads:
            thread.join(60)
            assert not thread.is_alive()

    def _run(self, agent: Agent, rng: random.Random) -> None:
        wire = http.client.HTTPConnection("127.0.0.1", agent.port, timeout=30)
        while not self.stop.is_set():
            try:
                self._once(wire, agent, rng)
            except (OSError, http.client.HTTPException):  # it was ended, or is being restarted
                self.broken += 1
                wire.close()
                self.stop.wait(0.01)
        wire.close()

    def _once(self, wire: http.client.HTTPConnection, agent: Agent, rng: random.Random) -> None:
        cpus = rng.randint(1, 4)
        kind = rng.randrange(10)
        if kind == 0:
            wire.request("POST", "/", b"nonsense")
        elif kind == 1:
            wire.request("POST", "/batch", b"[" + agent.body(cpus) + b",7]")
        else:
            wire.request("POST", "/", agent.body(cpus))
        answer = wire.getresponse()
        content = answer.read()
        self.statuses[answer.status] += 1
        if answer.status != 200:
            return
        permit = json.loads(content)[0]["body"] if kind == 1 else json.loads(content)
        held, _ = agent.take(permit)
        if held > cpus:
            self.faults.append(f"{agent.name} asked for {cpus} and got {held}")

    def seen(self, more: int) -> Callable[[], bool]:
        """Whether so many more were answered, from now on."""
        before = self.statuses.total()
        return lambda: self.statuses.total() >= before + more


def test_thousands_of_mixed_requests_leave_the_accounts_right(tmp_path: Path) -> None:
    """Eight callers on a node that cannot hold them all."""
    names = [f"vm-{number}" for number in range(8)]
    with scheduler(tmp_path, names=tuple(names), room=16) as (program, port):
        with Crowd(port, names) as crowd:
            shown_blocking("thousands of requests", crowd.seen(4000))
            assert json.loads(fetch(port, "/v1/audit")) == {"faults": []}
        assert crowd.faults == []
        assert set(crowd.statuses) == {200, 400}
        assert crowd.broken == 0
        shown = node(port)
        assert json.loads(fetch(port, "/v1/audit")) == {"faults": []}
        assert int(shown["reserved"]["cpu"]) <= 16
        held = {f"d/{agent.name}": agent.held for agent in crowd.agents}
        assert {name: kept for name, kept in rows(port).items() if kept < held[name]} == {}
        assert figure(port, 'parley_scheduler_requests_total{code="200",outcome="permit"}') >= 3000
        assert lines(program, "request failed by our fault") == []


def test_sigterm_while_everybody_asks_drains(tmp_path: Path) -> None:
    """Exit code 0 and no traceback: callers get whole answers, or a connection that ends."""
    names = [f"vm-{number}" for number in range(8)]
    with scheduler(tmp_path, names=tuple(names), room=16) as (program, port), Crowd(port, names) as crowd:
        shown_blocking("requests", crowd.seen(200))
        assert program.end(signal.SIGTERM) == 0
        crowd.end()
        assert set(crowd.statuses) <= {200, 400}
        assert crowd.broken > 0
        assert [line["event"] for line in lines(program, "draining")] == ["draining"]
        assert "Traceback" not in program.text()
        assert lines(program, "handler failed") == []


def test_a_scheduler_that_is_killed_and_started_again_under_load_is_unsettled_and_then_settled(
    tmp_path: Path,
) -> None:
    """What agents held is never given away; who names the new process is settled."""
    names, room = [f"vm-{number}" for number in range(6)], 12
    with scheduler(tmp_path, names=tuple(names), room=room) as (program, port), Crowd(port, names) as crowd:
        shown_blocking("requests", crowd.seen(200))
        first = crowd.agents[0].instance
        program.end(signal.SIGKILL)
        with scheduler(tmp_path, port=port) as (again, _):
            shown_blocking(
                "everybody with the new process", lambda: first not in {a.instance for a in crowd.agents}
            )
            shown_blocking(
                "everybody settled", lambda: figure(port, 'parley_scheduler_vms{state="unsettled"}') == 0
            )
            shown_blocking("requests", crowd.seen(200))
            crowd.end()
            assert crowd.broken > 0
            assert crowd.faults == []
            assert sum(agent.held for agent in crowd.agents) <= room
            assert json.loads(fetch(port, "/v1/audit")) == {"faults": []}
            assert any(line["reason"] == "unsettled" for line in lines(again, "permit"))
            assert "Traceback" not in again.text()
            assert again.end(signal.SIGTERM) == 0


def test_a_vm_that_nobody_speaks_for_keeps_its_maximum_after_a_restart(tmp_path: Path) -> None:
    """The other one is told why it cannot grow, until the first one has spoken."""
    with scheduler(tmp_path, room=5) as (program, port):
        a, b = Agent(port, "a").settle(), Agent(port, "b").settle()
        assert (a.ask(2), b.ask(3)) == ((2, []), (3, []))
        program.end(signal.SIGKILL)
        with scheduler(tmp_path, port=port) as _:
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
    """What is lost is counted, the log stays readable, the end is in order, and what was written can be replayed."""
    port, journal = free_port(), tmp_path / "journal"
    cluster = cluster_file(tmp_path / "cluster.yaml", ["a"])
    arguments = ("--cluster", str(cluster), "--port", str(port), "--journal", str(journal))
    with running("-c", SMALL_FILES, *arguments, output=tmp_path / "scheduler.log") as program:
        shown_blocking("the scheduler's health", lambda: fetch(port, "/readyz"))
        agent = Agent(port).settle()

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
        agent = Agent(port).settle()
        pipe = tmp_path / "pipe"
        os.mkfifo(pipe)
        pipe.replace(tmp_path / "cluster.yaml")  # nobody writes it, so that whoever opens it waits
        shown_blocking("the fault", lambda: figure(port, "parley_scheduler_cluster_stale") == 1)
        for number in range(8):  # more than the threads that the loop shares
            post(port, Agent(port, f"unknown-{number}").body(1))
        put(config, GROWTH_STOPPED)
        shown_blocking(
            "the stop", lambda: [line["stopped"] for line in lines(program, "configured")] == [False, True]
        )
        assert agent.ask(3) == (1, ["stopped"])
        assert program.end(signal.SIGTERM) == 0
