"""The memory of the demo's live view, and its questions to the scheduler about the fill of the node."""

from collections.abc import Sequence
from typing import Final

import msgspec

from hosting.client import Answered, HttpClient
from parley.layout import RecentHistory
from parley.top import drawing
from parley.top.history import History
from parley.top.model import VmRow, rows_of
from protocol.agent_pages import AgentVms
from protocol.explaining import Nodes
from protocol.values import Resources

NODES_EVERY_S: Final = 2.0
DEADLINE_S: Final = 1.0
OLD_S: Final = 6.0
"""An older word of the scheduler is not shown."""


class Recent:
    """The last minutes of one node, for `parley.layout`."""

    def __init__(self, node: str, reservable: Resources, agent_port: int, scheduler_port: int | None) -> None:
        self._node = node
        self._total = reservable.vcpu_milli / 1000, float(reservable.memory_bytes)
        self._agent = f"http://127.0.0.1:{agent_port}"
        self._scheduler = None if scheduler_port is None else f"http://127.0.0.1:{scheduler_port}"
        self._history = History()
        self._rows: tuple[VmRow, ...] = ()
        self._sums = drawing.NodeSums()
        self._asked_s = self._told_s = float("-inf")

    def heard(self, document: AgentVms, now_s: float) -> None:
        """Take the agent's answer of `/v1/vms`."""
        self._rows, _ = rows_of(self._agent, document)
        self._history.heard(self._agent, document.daemon, self._rows, now_s)

    def missed(self, fault: str, now_s: float) -> None:
        self._history.missed(self._agent, fault, now_s)

    def note(self, program: str, text: str, now_s: float) -> None:
        self._history.note(program, text.removeprefix(f"{program} "), now_s)

    async def ask(self, client: HttpClient, now_s: float) -> None:
        """Ask the scheduler for its sums, if that is due."""
        if self._scheduler is None or now_s - self._asked_s < NODES_EVERY_S:
            return
        self._asked_s = now_s
        outcome = await client.call("GET", f"{self._scheduler}/v1/nodes", deadline_s=DEADLINE_S)
        if isinstance(outcome, Answered) and outcome.status == 200:
            self._sums, self._told_s = drawing.node_sums(msgspec.json.decode(outcome.body, type=Nodes)), now_s

    def recent(self, now_s: float) -> RecentHistory:
        self._history.tick(now_s)
        sums = self._sums if now_s - self._told_s <= OLD_S else drawing.NodeSums()
        return RecentHistory(self._history, self._agent, now_s, self._fills(drawing.fills(self._rows, sums)))

    def _fills(self, found: Sequence[drawing.NodeFill]) -> tuple[drawing.NodeFill, ...]:
        """Without the scheduler's word the demo itself knows what may be reserved."""
        return tuple(fill if fill.total is not None else fill.within(self._total) for fill in found)
