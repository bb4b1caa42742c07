"""The demo's counts of permits, resizes and refusals, which start anew with the agent and with a VM."""

from parley.demo import Tallies
from protocol.agent_pages import VmInShort
from tests.unit.parley.top_documents import in_short


def told(agent_id: str, permits: int, kills: int = 0, **refusals: int) -> list[VmInShort]:
    ends = {"OOMKilled": kills} if kills else {}
    counts = {"permits": permits, "resizes": 1, "restarts": kills, "ends": ends, "refusals": refusals}
    return [in_short({"vm": "demo/a", "agentID": agent_id, "counts": counts})]


def test_the_last_counts_of_every_life_of_agent_and_vm_are_added() -> None:
    tallies = Tallies()
    for daemon, vms in (
        ("d-1", told("first", 2)),
        ("d-1", told("first", 5, 2, denied=1)),
        ("d-1", told("second", 1)),  # the VM died and came back
        ("d-2", told("third", 3, 1, denied=2)),  # and then the agent
    ):
        tallies.note(daemon, vms)
    counted = {"permits": 9, "resizes": 3, "restarts": 3, "ends": {"OOMKilled": 3}, "refusals": {"denied": 3}}
    assert tallies.totals() == {"demo/a": counted}
