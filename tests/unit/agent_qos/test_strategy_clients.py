"""A client carries out a strategy's actions, only recommends them, or tells that the daemon has no means for them."""

from collections.abc import Sequence
from typing import Any

import pytest

from agent.node.qos.client import ActingClient, RecommendingClient, StrategyJournal, StrategyPorts
from agent.node.qos.core.actions import (
    MAX_DECISIONS,
    MAX_REASONS,
    CgroupResource,
    CgroupUpdate,
    DecisionRecord,
    EvictOutcome,
    EvictResult,
    StrategyDecision,
    WriteOutcome,
    WriteResult,
    noted,
)
from agent.node.qos.core.states import PodState
from agent.node.qos.host import ThreadStop
from agent.node.qos.ports import NodeClient
from hosting.cgroups.tree import CgroupTree
from tests.unit.agent_qos.strategies import Lines, pod

QUOTA = CgroupResource.CPU_QUOTA_US
LOWER = CgroupUpdate("kubepods/besteffort", QUOTA, 20_000, "for the test")
SAME = CgroupUpdate("kubepods/burstable", QUOTA, 50_000, "for the test")
POD = pod("a")


class Machine:
    """A node's cgroups, an API server that evicts, and the Events that were reported."""

    def __init__(self) -> None:
        self.cgroups = CgroupTree()
        self.values = {LOWER.group: 40_000, SAME.group: 50_000}
        self.done: list[str] = []

    def write(self, updates: Sequence[CgroupUpdate], writer: str = "") -> tuple[WriteOutcome, ...]:
        self.done += (f"{writer} writes {each.group}" for each in updates)
        return tuple(WriteOutcome(each, WriteResult.WRITTEN) for each in updates)

    def read(self, group: str, resource: CgroupResource) -> int | str | None:
        return self.values.get(group) if resource is QUOTA else None

    def evict(self, pod: PodState, reason: str) -> EvictOutcome:
        self.done.append(f"evict {pod.name}")
        return EvictOutcome(EvictResult.EVICTED)

    def recommend(self, pod: PodState, reason: str) -> EvictOutcome:
        return EvictOutcome(EvictResult.RECOMMENDED)

    def record(self, pod: PodState | None, reason: str, message: str, *, is_warning: bool) -> None:
        self.done.append(f"{reason}: {message}")


def acted(client: NodeClient) -> list[str]:
    """The results of one action of each kind."""
    outcomes = client.write([LOWER, SAME])
    evicted = client.evict(POD, "too much")
    client.record(POD, "Limited", "has 20 ms less")
    return [*(each.result for each in outcomes), evicted.result]


def made(sort: str, ports: StrategyPorts, lines: Any) -> tuple[NodeClient, StrategyJournal, ThreadStop]:
    stop, journal = ThreadStop(), StrategyJournal("Mine", lines, clock=lambda: 0.0)
    if sort == "acting":
        return ActingClient("Mine", ports, journal, stop), journal, stop
    return RecommendingClient(ports, journal), journal, stop


@pytest.mark.parametrize(
    ("sort", "has_ports", "results", "done", "event"),
    [
        (
            "acting",
            True,
            ["written", "written", "evicted"],
            [f"Mine writes {LOWER.group}", f"Mine writes {SAME.group}", "evict a", "Limited: has 20 ms less"],
            "reported",
        ),
        ("acting", False, ["unavailable"] * 3, [], "unavailable"),
        (
            "recommending",
            True,
            ["recommended", "unchanged", "recommended"],
            ["WouldLimited: would: has 20 ms less"],
            "recommended",
        ),
        ("recommending", False, ["recommended"] * 3, [], "unavailable"),
    ],
)
def test_what_becomes_of_actions_is_told_and_counted(
    sort: str, has_ports: bool, results: list[str], done: list[str], event: str
) -> None:
    machine = Machine()
    ports = StrategyPorts(machine, machine, machine) if has_ports else StrategyPorts()
    client, journal, _ = made(sort, ports, Lines())
    assert (acted(client), machine.done) == (results, done)
    assert client.recommends_only is (sort == "recommending")
    assert client.read(LOWER.group, QUOTA) == (40_000 if has_ports else None)
    counts = dict(journal.counts())
    assert counts.pop(("event", event)) == 1
    found = [(action, result) for (action, result), count in counts.items() for _ in range(count)]
    assert sorted(found) == sorted(zip(("write", "write", "evict"), results, strict=True))


def test_a_strategy_that_is_told_to_end_evicts_no_more_but_puts_its_cgroups_back() -> None:
    machine = Machine()
    client, _, stop = made("acting", StrategyPorts(machine, machine, machine), Lines())
    stop.request()
    assert acted(client) == ["written", "written", "refused"]


def decision(reason: str, *, is_action: bool = False, message: str = "") -> StrategyDecision:
    return StrategyDecision(reason, message or reason, {"busy": 1.0}, is_action=is_action)


REST, ACT = decision("within"), decision("too-much", is_action=True)


@pytest.mark.parametrize(
    ("is_done", "decisions", "rounds", "logged"),
    [
        (True, [(0, REST), (1, REST), (2, REST)], [3], []),
        (True, [(0, REST), (1, ACT), (2, ACT), (3, REST)], [1, 1, 1, 1], [1, 2]),
        (False, [(0, REST), (1, ACT), (2, ACT), (60, ACT), (61, ACT), (62, REST)], [1, 4, 1], [1, 61]),
        (False, [(0, ACT), (1, decision("other", is_action=True)), (2, ACT)], [1, 1, 1], [0, 1, 2]),
    ],
)
def test_what_acts_is_a_line_and_what_stands_is_counted(
    is_done: bool, decisions: list[tuple[float, StrategyDecision]], rounds: list[int], logged: list[float]
) -> None:
    records: tuple[DecisionRecord, ...] = ()
    lines = []
    for now_s, each in decisions:
        records, is_logged = noted(records, each, now_s, is_done=is_done)
        assert (records[-1].decision, records[-1].at_s) == (each, now_s)
        lines += [now_s] * is_logged
    assert ([record.rounds for record in records], lines) == (rounds, logged)


def test_the_last_decisions_are_kept_and_the_last_one_that_acted() -> None:
    records: tuple[DecisionRecord, ...] = ()
    for index in range(MAX_DECISIONS + 9):
        found = decision(f"reason-{index}", is_action=index in {2, 5})
        records, _ = noted(records, found, float(index), is_done=True)
    assert [record.at_s for record in records] == [5, *range(10, MAX_DECISIONS + 9)]


def test_a_decision_that_acts_is_one_line_with_its_inputs() -> None:
    for sort, message in (("acting", "lowered"), ("recommending", "would: lowered")):
        lines = Lines()
        client, journal, _ = made(sort, StrategyPorts(), lines)
        client.decided(decision("within"))
        client.decided(decision("too-much", is_action=True, message="lowered"))
        fields = {"strategy": "Mine", "reason": "too-much", "message": message, "inputs": {"busy": 1.0}}
        assert lines.lines == [("info", "strategy decided", fields)]
        assert journal.counts() == {("decision", "within"): 1, ("decision", "too-much"): 1}


def test_a_strategy_cannot_fill_the_memory_with_reasons() -> None:
    client, journal, _ = made("acting", StrategyPorts(), Lines())
    for index in range(MAX_REASONS + 5):
        client.decided(decision(f"reason-{index}"))
    assert len(journal.counts()) == MAX_REASONS + 1
    assert journal.counts()["decision", "other"] == 5
