"""Agents without a node: each asks schedulers for one pod, and never resizes anything. The sum of their permits is tracked."""

import http.client
import json
import random
import threading
import uuid
from dataclasses import dataclass, field
from typing import Any, Final, Self

from hosting.kubernetes import objects
from hosting.kubernetes.resources import Manifest
from protocol.extension import AGENT_HEADER
from tests.support.waiting import PATIENCE_S

TIMEOUT_S: Final = 2.0
STEP_MILLI: Final = 250
MIB: Final = 2**20


@dataclass
class Holdings:
    """The amounts that the agents of one node hold, in milli-CPU, checked with every permit. `faults` are permits without room."""

    room_milli: int
    held: dict[str, int] = field(default_factory=dict)
    faults: list[str] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def take(self, name: str, milli: int, who: str) -> None:
        """An agent holds so much from now on."""
        with self.lock:
            self.held[name] = milli
            total = sum(self.held.values())
            if total > self.room_milli:
                self.faults.append(
                    f"{who} gave {name} {milli}m, so that {total}m of {self.room_milli}m are held: {self.held}"
                )


class PodAgent:
    """The agent of one pod. It asks the scheduler that answered last, and after a failure the next one."""

    def __init__(self, pod: Manifest, ports: list[int], holdings: Holdings, held_milli: int) -> None:
        self.name = objects.name(pod)
        self._namespace, self._uid = objects.namespace(pod), objects.uid(pod)
        self._ports = ports
        self._holdings = holdings
        self._number = 0
        self._instance: str | None = None
        self._token: str | None = None
        self._agent = str(uuid.uuid4())
        self.epoch = 0
        self.spare_milli = 0
        """The part of its wish that it could give to others."""
        self.permits: list[tuple[int, int]] = []
        """Port and epoch of every scheduler that gave a permit."""
        holdings.take(self.name, held_milli, "the beginning")

    @property
    def held(self) -> int:
        return self._holdings.held[self.name]

    def ask(self, milli: int) -> dict[str, Any] | None:
        """Ask for so much; the answer, None if there is none. A wish for less is told after it is so."""
        claim, wanted = min(self.held, milli), milli
        self._holdings.take(self.name, claim, self.name)
        self._number += 1
        status, content = self._post(json.dumps(self._body(wanted, claim)).encode())
        if status != 200:
            self._ports.append(self._ports.pop(0))
            return None
        answer: dict[str, Any] = json.loads(content)
        if answer["schedulerEpoch"] < self.epoch:
            return None
        self.epoch, self._instance = answer["schedulerEpoch"], answer["schedulerInstance"]
        self._token = answer.get("token")
        self.permits.append((self._ports[0], self.epoch))
        permit = _milli(answer["raw"]["permit"]["cpu"])
        self._holdings.take(
            self.name, max(claim, min(permit, wanted)), f"the scheduler of epoch {self.epoch}"
        )
        return answer

    def status_of(self, milli: int) -> int:
        """The status of the answer to a wish, without taking a permit."""
        self._number += 1
        return self._post(json.dumps(self._body(milli, 0)).encode())[0]

    def _body(self, wanted: int, claim: int) -> dict[str, Any]:
        return {
            "protoVersion": 2,
            "pod": {"name": self.name, "namespace": self._namespace},
            "resources": {"vCPUs": -(-wanted // 1000), "mem": 1},
            "metrics": None,
            "agentID": self._agent,
            "agentStartedAtMs": 1000,
            "podUID": self._uid,
            "sequenceNumber": self._number,
            "seenEpoch": self.epoch,
            "schedulerInstance": self._instance,
            **({"token": self._token} if self._token is not None else {}),
            **({"spare": {**_amount(self.spare_milli), "memory": "0"}} if self.spare_milli else {}),
            "raw": {
                "resources": _amount(wanted),
                "lastPermit": _amount(claim),
                "computeUnit": None,
                "apart": True,
            },
        }

    def _post(self, body: bytes) -> tuple[int, bytes]:
        wire = http.client.HTTPConnection("127.0.0.1", self._ports[0], timeout=TIMEOUT_S)
        try:
            wire.request("POST", "/", body, {AGENT_HEADER: self._agent})
            answer = wire.getresponse()
            return answer.status, answer.read()
        except (OSError, http.client.HTTPException):
            return 0, b""
        finally:
            wire.close()


class PodCrowd:
    """Agents in threads of their own, who ask for more and less until the end of the `with` block."""

    def __init__(self, agents: list[PodAgent], most_milli: int) -> None:
        self.agents = agents
        self._most_steps = most_milli // STEP_MILLI
        self._stop = threading.Event()
        self._threads = [
            threading.Thread(target=self._run, args=(agent, random.Random(number)))
            for number, agent in enumerate(agents)
        ]

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(PATIENCE_S)

    def have_heard(self, port: int, after_epoch: int) -> bool:
        """Whether all have a permit of the scheduler at a port from a later epoch."""
        return all(
            any(at == port and epoch > after_epoch for at, epoch in agent.permits) for agent in self.agents
        )

    @property
    def epoch(self) -> int:
        """The highest that anybody has met."""
        return max(agent.epoch for agent in self.agents)

    def _run(self, agent: PodAgent, rng: random.Random) -> None:
        while not self._stop.wait(0.02):
            agent.ask(rng.randint(1, self._most_steps) * STEP_MILLI)


def _amount(milli: int) -> dict[str, str]:
    return {"cpu": f"{milli}m", "memory": "256Mi"}


def _milli(written: str) -> int:
    return int(written[:-1]) if written.endswith("m") else int(written) * 1000
