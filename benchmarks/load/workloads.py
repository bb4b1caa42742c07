"""The requests for permits that a load sends, and the judgement of the answers: one at a time, in batches, as published agents write them.

Of single requests every 17th answer is read in full (sequence number, instance, permit), of batches every 17th item; of all others the status
counts. Answers to published agents are all read. An answer that is no full permit is a fault.
"""

import json
from collections import deque
from collections.abc import Sequence
from typing import Any

from benchmarks.load import agents, drive, figures, http
from benchmarks.load.agents import Agent

SAMPLE = 17  # no multiple of the mix's period, so that every kind of request is read
BATCH = 100
BATCH_CONNECTIONS = 8


class Singles:
    """One request at a time for each VM, all VMs in turn."""

    def __init__(self, fleet: Sequence[Agent], instance: bytes, faults: figures.Faults) -> None:
        self._ready = deque(fleet)
        self._instance = instance
        self._faults = faults
        self._answers = 0

    def next(self) -> tuple[bytes, Agent] | None:
        """The request of the agent that has waited longest."""
        if not self._ready:
            return None
        agent = self._ready.popleft()
        return agent.http(agent.ask(agent.next_units(), self._instance)), agent

    def done(self, token: Agent, status: int, body: bytes) -> int:
        """Take the permit; every so often read it in full."""
        self._ready.append(token)
        if status != 200:
            self._faults.add(f"status {status}: {body!r}")
            return 0
        self._answers += 1
        if self._answers % SAMPLE == 0:
            _check(token, self._instance, json.loads(body), self._faults)
        token.held = token.want
        return 1


class Published:
    """One request without the extension at a time for each VM, all VMs in turn; the first of each names its use."""

    def __init__(self, fleet: Sequence[Agent], faults: figures.Faults, *, is_first: bool = False) -> None:
        self._ready = deque(fleet)
        self._faults = faults
        self._is_first = is_first

    def next(self) -> tuple[bytes, Agent] | None:
        """The request of the agent that has waited longest."""
        if not self._ready:
            return None
        agent = self._ready.popleft()
        return agent.http(agent.plain(agent.held if self._is_first else agent.next_units())), agent

    def done(self, token: Agent, status: int, body: bytes) -> int:
        if not self._is_first:
            self._ready.append(token)
        if status != 200 or json.loads(body)["permit"] != {"vCPUs": token.want, "mem": token.want}:
            self._faults.add(f"a request for {token.want} units was answered with {status}: {body!r}")
            return 0
        token.held = token.want
        return 1


class First(Singles):
    """The first request of each VM, which names its use; there is no second one."""

    def next(self) -> tuple[bytes, Agent] | None:
        if not self._ready:
            return None
        agent = self._ready.popleft()
        return agent.http(agent.ask(agent.held, self._instance)), agent

    def done(self, token: Agent, status: int, body: bytes) -> int:
        count = super().done(token, status, body)
        self._ready.pop()
        return count


class Batches:
    """Up to 100 VMs of one node in one request, all nodes in turn."""

    def __init__(self, groups: list[list[Agent]], instance: bytes, faults: figures.Faults) -> None:
        self._ready = deque(groups)
        self._instance = instance
        self._faults = faults

    def next(self) -> tuple[bytes, list[Agent]] | None:
        """The batch that has waited longest."""
        if not self._ready:
            return None
        group = self._ready.popleft()
        bodies = [agent.ask(agent.next_units(), self._instance) for agent in group]
        return agents.batch(group, bodies), group

    def done(self, token: list[Agent], status: int, body: bytes) -> int:
        """Look at the status of every item, and read every so many of them in full."""
        self._ready.append(token)
        if status != 200:
            self._faults.add(f"status {status} of a batch: {body!r}")
            return 0
        items = json.loads(body)
        if len(items) != len(token):
            self._faults.add(f"{len(items)} answers to a batch of {len(token)}")
            return 0
        good = 0
        for place, (agent, item) in enumerate(zip(token, items, strict=True)):
            if item["status"] != 200:
                self._faults.add(f"status {item['status']} in a batch: {item['body']}")
                continue
            good += 1
            if place % SAMPLE == 0:
                _check(agent, self._instance, item["body"], self._faults)
            agent.held = agent.want
        return good


def _check(agent: Agent, instance: bytes, content: Any, faults: figures.Faults) -> None:
    """Note an answer that is not the full permit that was asked for."""
    try:
        permit = agents.read(content)
    except ValueError as error:
        faults.add(str(error))
        return
    if permit != agents.Permit(agent.number, instance, agent.want, ()):
        faults.add(f"request {agent.number} for {agent.want} units was answered with {permit}")


def by_node(fleet: list[Agent], per_node: int) -> list[list[Agent]]:
    """The fleet in batches of up to 100, none of which has VMs of two nodes."""
    nodes = [fleet[begin : begin + per_node] for begin in range(0, len(fleet), per_node)]
    return [node[begin : begin + BATCH] for node in nodes for begin in range(0, len(node), BATCH)]


async def settle(
    port: int, fleet: Sequence[Agent], faults: figures.Faults, connections: int
) -> tuple[bytes, drive.Run]:
    """Let every agent name its use. The very first request learns the scheduler's instance, which is returned."""
    first = fleet[0]
    status, body = await http.call(port, first.http(first.ask(first.held, agents.NOBODY)))
    if status != 200:
        raise SystemExit(f"the first request was answered with status {status}: {body!r}")
    instance = agents.read(json.loads(body)).instance
    return instance, await drive.Closed(First(fleet, instance, faults), faults).over(port, connections)


async def settle_published(
    port: int, fleet: Sequence[Agent], faults: figures.Faults, connections: int
) -> drive.Run:
    """The same without the extension."""
    return await drive.Closed(Published(fleet, faults, is_first=True), faults).over(port, connections)


async def journal_lost(port: int) -> float | None:
    """The inputs that the journal could not take, by the server's own metrics."""
    _, body = await http.get(port, "/metrics")
    values = [
        float(line.split()[-1])
        for line in body.decode().splitlines()
        if "journal" in line and "lost" in line and not line.startswith("#")
    ]
    return sum(values) if values else None
