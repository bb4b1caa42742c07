"""The scheduler's process, and what asks it: one agent that counts its requests, and a crowd of them in threads."""

import http.client
import json
import random
import threading
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from tests.support.processes import Program, cluster_file, fetch, free_port, post, running, write_json
from tests.support.waiting import PATIENCE_S, shown_blocking

PUBLISHED = (
    b'{"protoVersion":2,"pod":{"name":"a","namespace":"d"},"resources":{"vCPUs":1,"mem":1},"metrics":null}'
)
"""A request without the extension."""


@dataclass
class AskingAgent:
    """The agent of one VM, the only one for long: it counts its requests, and remembers what it holds and whom it heard."""

    port: int
    name: str = "a"
    number: int = 0
    held: int = 1
    instance: str | None = None
    token: str | None = None
    agent: str = field(default_factory=lambda: str(uuid.uuid4()))
    load: float | None = None

    def body(self, cpus: int) -> bytes:
        """The next request."""
        self.number += 1
        wanted = {"cpu": str(cpus), "memory": f"{cpus}Gi"}
        claim = {"cpu": str(self.held), "memory": f"{self.held}Gi"}
        content = {
            "protoVersion": 2,
            "pod": {"name": self.name, "namespace": "d"},
            "resources": {"vCPUs": cpus, "mem": cpus},
            "metrics": None if self.load is None else {"loadAvg1M": self.load, "loadAvg5M": self.load},
            "agentID": self.agent,
            "agentStartedAtMs": 1000,
            "podUID": f"uid-{self.name}",
            "sequenceNumber": self.number,
            "seenEpoch": 0,
            "schedulerInstance": self.instance,
            "raw": {"resources": wanted, "lastPermit": claim, "computeUnit": None},
        }
        if self.token is not None:
            content["token"] = self.token
        return json.dumps(content).encode()

    def take(self, content: dict[str, Any]) -> tuple[int, list[str]]:
        """A permit: how many units it is, and the codes of its reasons."""
        self.instance, self.token = content["schedulerInstance"], content.get("token")
        self.held = int(content["raw"]["permit"]["cpu"])
        return self.held, [reason["code"] for reason in content["reasons"]]

    def ask(self, cpus: int) -> tuple[int, list[str]]:
        status, answer = post(self.port, self.body(cpus))
        assert status == 200, answer
        return self.take(json.loads(answer))

    def settle(self) -> "AskingAgent":
        """The first words with a scheduler."""
        self.ask(self.held)
        assert self.ask(self.held) == (self.held, [])
        return self


class Crowd:
    """Agents in threads of their own, each with a connection and a VM, who ask until told otherwise."""

    def __init__(self, port: int, names: list[str]) -> None:
        self.stop = threading.Event()
        self.statuses: Counter[int] = Counter()
        self.broken = 0
        self.faults: list[str] = []
        self.agents = [AskingAgent(port, name) for name in names]
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
            thread.join(PATIENCE_S)
            assert not thread.is_alive()

    def seen(self, more: int) -> Callable[[], bool]:
        """Whether so many more were answered, from now on."""
        before = self.statuses.total()
        return lambda: self.statuses.total() >= before + more

    def _run(self, agent: AskingAgent, rng: random.Random) -> None:
        wire = http.client.HTTPConnection("127.0.0.1", agent.port, timeout=30)
        while not self.stop.is_set():
            try:
                self._once(wire, agent, rng)
            except (OSError, http.client.HTTPException):  # it was ended, or is being restarted
                self.broken += 1
                wire.close()
                self.stop.wait(0.01)
        wire.close()

    def _once(self, wire: http.client.HTTPConnection, agent: AskingAgent, rng: random.Random) -> None:
        cpus, kind = rng.randint(1, 4), rng.randrange(10)
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
        held, _ = agent.take(json.loads(content)[0]["body"] if kind == 1 else json.loads(content))
        if held > cpus:
            self.faults.append(f"{agent.name} asked for {cpus} and got {held}")


@contextmanager
def scheduler(
    directory: Path,
    *more: str,
    port: int | None = None,
    names: tuple[str, ...] = ("a", "b"),
    room: int = 8,
    first: bool | None = None,
) -> Iterator[tuple[Program, int]]:
    """A scheduler that serves the `cluster.yaml` of a directory, which is made of `names` where there is none.

    Then nothing ran before, which the scheduler is told; `first` says so of a file that was there.
    """
    port = port or free_port()
    cluster = directory / "cluster.yaml"
    if not cluster.exists():
        cluster_file(cluster, list(names), room=room)
        first = True
    arguments = (
        "--cluster",
        str(cluster),
        "--port",
        str(port),
        *more,
        *(("--first-start",) if first else ()),
    )
    with running("scheduler", *arguments, output=directory / f"scheduler-{free_port()}.log") as program:

        def is_ready() -> bytes:
            assert program.process.poll() is None, program.text()
            return fetch(port, "/readyz")

        shown_blocking("the scheduler's health", is_ready)
        yield program, port


def refused(directory: Path, *arguments: str) -> tuple[int, str]:
    """The exit code and the words of a scheduler that does not start; no traceback is among them."""
    with running("scheduler", "--port", "0", *arguments, output=directory / "refused.log") as program:
        code = program.process.wait(PATIENCE_S)
    assert "Traceback" not in program.text()
    assert "serving" not in program.text()
    return code, program.text()


def put(path: Path, content: object) -> None:
    """Put a new file in the place of an old one."""
    write_json(path.with_suffix(".new"), content).replace(path)


def get(port: int, path: str) -> Any:
    return json.loads(fetch(port, path))


def rows(port: int) -> dict[str, int]:
    return {row["name"]: int(row["reserved"]["cpu"]) for row in get(port, "/v1/nodes/n1")["rows"]}


def figure(port: int, name: str) -> float:
    (line,) = [line for line in fetch(port, "/metrics").decode().splitlines() if line.startswith(f"{name} ")]
    return float(line.split()[-1])


def lines(program: Program, event: str) -> list[dict[str, Any]]:
    found = [json.loads(line) for line in program.text().splitlines() if line.endswith("}")]
    return [line for line in found if line["event"] == event]
