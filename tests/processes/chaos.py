"""Peers of an agent that fail as they are told: guests in the test, and a proxy before the real scheduler."""

import asyncio
import json
import random
import signal
import sys
from pathlib import Path
from typing import Final

from hosting.client import Answered, HttpClient
from hosting.server import HangUp, Reply, Request, text
from protocol import codec, wire
from protocol.versions import InformantProtoVersion
from tests.support.processes import Program, free_port
from tests.support.servers import FaultyPeer
from tests.support.waiting import shown

GUEST_FAULTS: Final = ("slow", "dead", "restarted", "garbage", "old")
SCHEDULER_FAULTS: Final = ("slow", "dead", "killed", "garbage", "old", "cut", "lost", "429", "503")


def tell(line: str) -> None:
    """Print a line that helps to do it again; it is shown if the test fails."""
    sys.stdout.write(line + "\n")


# ---------------------------------------------------------------- peers


class FaultyGuest(FaultyPeer):
    """The informant and the exporter of one VM, which wants so many units: of both resources where it is tied, else of CPU."""

    def __init__(self, number: int, rng: random.Random, client: HttpClient) -> None:
        super().__init__(f"127.0.1.{number + 1}", rng)
        self.name = f"vm-{number}"
        self.wants = rng.randint(1, 3)
        self.is_tied = number % 2 == 0
        self.agent: wire.AgentDesc | None = None
        self._client = client
        self._resuming: set[asyncio.Task[None]] = set()

    async def answer(self, request: Request) -> Reply | HangUp:
        """Version 1.1, or 1.0 where it is old; every downscale that leaves what it wants is approved."""
        match request.path:
            case "/register":
                self.agent = codec.decode(wire.AgentDesc, request.body)
                version = InformantProtoVersion.V1_0 if self.mode == "old" else InformantProtoVersion.V1_1
                task = asyncio.create_task(self._resume(self.agent))
                self._resuming.add(task)
                task.add_done_callback(self._resuming.discard)
                port = {"prometheus": {"port": self.port}}
                return _json({"protoVersion": version.value, "metricsMethod": port})
            case "/metrics":
                load = 0.9 * (self.wants - 0.5)
                return Reply(200, f"node_load1 {load}\nnode_load5 {load}\n".encode(), "text/plain")
            case _ if self.agent is None:
                return text(404, "no agent is registered")
            case "/downscale":
                asked = json.loads(request.body)
                return _json({"Ok": int(asked["cpu"]) >= self.wants, "Status": "wanted"})
            case _:
                return Reply(200, b"{}")

    async def _resume(self, agent: wire.AgentDesc) -> None:
        body = codec.encode(wire.ResumeAgent(agent.agent_id))
        for _ in range(20):
            url = f"http://{agent.server_addr}/resume"
            outcome = await self._client.call("POST", url, body=body, deadline_s=5)
            if isinstance(outcome, Answered):
                return

    async def check(self) -> None:
        """Ask the agent for its ID; one that does not know it any more is forgotten."""
        agent = self.agent
        if agent is None or not self.is_listening:
            return
        url = f"http://{agent.server_addr}/id"
        outcome = await self._client.call("GET", url, body=b"{}", deadline_s=5)
        if isinstance(outcome, Answered) and outcome.status == 404 and self.agent is agent:
            self.agent = None

    async def begin(self, mode: str) -> None:
        if mode in ("dead", "restarted", "old"):
            await self.die()
            self.agent = None
        if mode in ("restarted", "old"):
            await self.listen()
        self.mode = mode

    async def end(self) -> None:
        """It is as it should be, except that an old one stays old until it is replaced."""
        if self.mode == "old":
            await self.die()
            self.agent = None
        self.mode = ""
        if not self.is_listening:
            await self.listen()


def _json(content: object) -> Reply:
    return Reply(200, json.dumps(content).encode())


class FaultyScheduler(FaultyPeer):
    """Stands between the agent and the real scheduler, which it can kill and start again."""

    def __init__(self, rng: random.Random, client: HttpClient, directory: Path, cluster: Path) -> None:
        super().__init__("127.0.0.1", rng)
        self.behind = free_port()
        self._client = client
        self._output = directory / "scheduler.log"
        # One agent lives through it all: nobody waits long for what another life of it may hold.
        self._arguments = ("--cluster", str(cluster), "--port", str(self.behind), "--handover", "5")
        self.program: Program | None = None

    def start_scheduler(self) -> None:
        self.program = Program("scheduler", *self._arguments, output=self._output)

    def kill_scheduler(self) -> None:
        """It had no time to say good-bye."""
        program, self.program = self.program, None
        if program is not None:
            program.end(signal.SIGKILL)

    async def is_ready(self) -> bool:
        """Whether the real one serves."""
        url = f"http://127.0.0.1:{self.behind}/readyz"
        outcome = await self._client.call("GET", url, deadline_s=5)
        return isinstance(outcome, Answered) and outcome.status == 200

    async def answer(self, request: Request) -> Reply | HangUp:
        """The answer of the real scheduler, unless told otherwise."""
        match self.mode:
            case "cut":
                return HangUp()
            case "429":
                return Reply(429, b"busy\n", "text/plain", {"Retry-After": "1"})
            case "503":
                return text(503, "not now")
            case "old":
                return text(400, "cannot use protocol version v1.1")
            case _:
                pass
        passed = {name: request.headers[name] for name in ("parley-agent",) if name in request.headers}
        outcome = await self._client.call(
            request.method,
            f"http://127.0.0.1:{self.behind}{request.path}",
            body=request.body,
            deadline_s=5,
            headers=passed,
        )
        if not isinstance(outcome, Answered) or self.mode == "lost":
            return HangUp()
        back = {name: outcome.headers[name] for name in ("parley-batch",) if name in outcome.headers}
        return Reply(outcome.status, outcome.body, headers=back)

    async def begin(self, mode: str) -> None:
        self.mode = mode
        if mode == "dead":
            await self.die()
        if mode == "killed":
            self.kill_scheduler()
            self.start_scheduler()

    async def end(self) -> None:
        """It is as it should be, once the real one serves."""
        self.mode = ""
        if not self.is_listening:
            await self.listen()
        await shown("the scheduler's health", self.is_ready)
