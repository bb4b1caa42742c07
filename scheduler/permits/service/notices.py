"""The notices to the agents: one long poll of each is open here, and what the core would tell a node waits in the node's mailbox.

A notice is a hint (`protocol.notices`), so that everything here may be bounded: the newest notice of a VM and kind is the only one, old
ones are dropped, and nothing is kept for a node whose agent does not ask. A poll costs neither a timer nor a task of its own: polls
without news are answered in turns, each node at its own moment within 25 s, so that 10,000 agents never ask at the same time.
"""

import asyncio
import zlib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final
from uuid import UUID

import msgspec

from hosting import server
from hosting.access import AccessRefused, AccessScope, Refusals
from hosting.logs import logger
from hosting.metrics import Family
from hosting.problems import DocumentedAnswer, DocumentedParameter, Operation
from protocol.explaining import AmountShown
from protocol.notices import LONGEST_POLL_S, MAX_NUMBER, NoticeKind, NoticePage, WireNotice
from protocol.reasons import ErrorCode
from scheduler.explain.core import queries
from scheduler.explain.core.queries import Query, Whole, Word
from scheduler.permits.core import events
from scheduler.permits.core.rules import is_listed

MAX_NODES: Final = 16_384
"""Mailboxes, and so open polls."""
MAX_RETAINED: Final = 512
"""Notices of one node; the oldest give way."""
RETAINED_S: Final = 60.0
UNPOLLED_S: Final = 90.0
"""The mailbox of an agent that has not asked for so long is dropped."""
TURN_S: Final = 0.1
_TURNS: Final = round(LONGEST_POLL_S / TURN_S)
RETRY_AFTER_S: Final = 10
_ENCODER: Final = msgspec.json.Encoder()

_PARAMETERS: Final = (
    Word("agent", "The name of the agent's node.", is_required=True),
    Whole("after", "The number of the latest notice that has arrived.", 0, 0, MAX_NUMBER),
    Word(
        "instance",
        "The scheduler process that was last heard from, by the page's `instance`; left out at first.",
    ),
)
NOTICES: Final = Operation(
    "Wait for what the scheduler tells the agent of a node",
    {200: DocumentedAnswer("The notices after that number, maybe none.", NoticePage)},
    "permits",
    tuple(
        DocumentedParameter(each.name, each.about, each.schema(), each.name == "agent")
        for each in _PARAMETERS
    ),
    problems={
        403: "The caller is the agent of another node.",
        429: "Too many agents are listening.",
        503: "Another scheduler leads (`leader`), or this one ends.",
    },
    about="A long poll: it is answered at once if there are notices, else with the next one, else within 25 s. Another poll for the same node "
    "ends it. If `instance` is another process than this one, or `after` beyond its latest number, the answer is an `epoch` and all "
    "that is retained.",
)


@dataclass(slots=True, eq=False)
class _Mailbox:
    """What one node is told. While a poll is open, every notice here is news to it: those up to `after` were dropped."""

    polled_s: float
    last: int = 0
    after: int = 0
    poll: "asyncio.Future[NoticePage] | None" = None
    notices: dict[tuple[str, str], tuple[float, WireNotice]] = field(default_factory=dict)
    """By kind and UID, the oldest first, each with the time when it was told."""

    def put(self, notice: WireNotice, now_s: float) -> None:
        """Number the notice and keep it."""
        self.last += 1
        key = (notice.kind, notice.pod_uid)
        self.notices.pop(key, None)
        self.notices[key] = (now_s, msgspec.structs.replace(notice, number=self.last))
        if len(self.notices) > MAX_RETAINED:
            del self.notices[next(iter(self.notices))]

    def drop(self, after: int, now_s: float) -> None:
        """Forget what has arrived, and what is old."""
        since_s = now_s - RETAINED_S
        for key, (at_s, notice) in list(self.notices.items()):
            if notice.number > after and at_s >= since_s:
                break
            del self.notices[key]


class NoticeBoard:
    """Owns the mailboxes of one scheduler process, `instance`. `run` keeps the turns."""

    def __init__(self, instance: UUID, epoch: int, refusals: Refusals | None = None) -> None:
        self._refusals = refusals or Refusals(logger("notices"))
        self._instance = str(instance)
        self._epoch = epoch
        self._boxes: list[dict[str, _Mailbox]] = [{} for _ in range(_TURNS)]
        """By the turn at which the node's poll is answered, and by node."""
        self._nodes = 0
        self._is_closed = False
        self.told: Counter[str] = Counter({kind.value: 0 for kind in NoticeKind})
        """Notices that were put into a mailbox, by kind."""

    # ------------------------------------------------------------ what is told

    def tell(self, output: events.RoomOffered | events.YieldAsked) -> None:
        """Tell an agent, with everything else of this moment; nothing if it does not listen."""
        mailbox = self._boxes_of(output.node).get(output.node)
        if mailbox is None:
            return
        self._put(mailbox, _notice(output))
        if mailbox.poll is not None:
            asyncio.get_running_loop().call_soon(self._answer_now, mailbox)

    def _put(self, mailbox: _Mailbox, notice: WireNotice) -> None:
        mailbox.put(notice, _now_s())
        self.told[notice.kind] += 1

    # ------------------------------------------------------------ who listens

    async def serve(self, request: server.Request) -> server.Reply:
        """Answer one poll: with what there is, or with what comes."""
        query = queries.read(request.query, _PARAMETERS)
        if not isinstance(query, Query):
            return server.problem(400, ErrorCode.MALFORMED, "; ".join(query), query)
        if self._is_closed:
            return server.problem(503, ErrorCode.NOT_LEADER, "this scheduler serves no more")
        refusal = _not_its_own(query.words["agent"], request)
        if refusal is not None:
            self._refusals.add(
                request.caller.name if request.caller is not None else "", AccessScope.PERMITS, refusal
            )
            return server.refused(refusal)
        mailbox = self._mailbox(query.words["agent"])
        if mailbox is None:
            headers = {"Retry-After": str(RETRY_AFTER_S)}
            detail = f"{MAX_NODES} agents are listening already; ask again later"
            return server.problem(429, ErrorCode.OVERLOADED, detail, headers=headers)
        if mailbox.poll is not None:
            _answer(mailbox.poll, self._page(mailbox.after))
        after = query.numbers["after"]
        if query.words.get("instance", self._instance) != self._instance or after > mailbox.last:
            after = 0
            self._put(mailbox, WireNotice(number=0, kind=NoticeKind.EPOCH.value))
        mailbox.drop(after, _now_s())
        mailbox.polled_s = _now_s()
        if mailbox.notices:
            mailbox.poll = None
            return _reply(self._news(mailbox))
        mailbox.after = after
        mailbox.poll = poll = asyncio.get_running_loop().create_future()
        try:
            return _reply(await poll)
        finally:
            if mailbox.poll is poll:
                mailbox.poll = None
            mailbox.polled_s = _now_s()

    def _boxes_of(self, node: str) -> dict[str, _Mailbox]:
        return self._boxes[zlib.crc32(node.encode(errors="replace")) % _TURNS]

    def _mailbox(self, node: str) -> _Mailbox | None:
        """The mailbox of a node that asks; None if there are too many."""
        boxes = self._boxes_of(node)
        found = boxes.get(node)
        if found is None and self._nodes < MAX_NODES:
            found = boxes[node] = _Mailbox(_now_s())
            self._nodes += 1
        return found

    def _page(self, last: int, notices: tuple[WireNotice, ...] = ()) -> NoticePage:
        return NoticePage(instance=self._instance, epoch=self._epoch, last=last, notices=notices)

    def _news(self, mailbox: _Mailbox) -> NoticePage:
        return self._page(mailbox.last, tuple(notice for _, notice in mailbox.notices.values()))

    def _answer_now(self, mailbox: _Mailbox) -> None:
        if mailbox.poll is not None:
            _answer(mailbox.poll, self._news(mailbox))
            mailbox.poll = None

    # ------------------------------------------------------------ turns

    async def run(self) -> None:
        turned = int(_now_s() / TURN_S)
        while True:
            await asyncio.sleep(TURN_S)
            reached = int(_now_s() / TURN_S)
            for turn in range(max(turned, reached - _TURNS), reached):  # several after a delay
                self._turn(self._boxes[turn % _TURNS])
            turned = reached

    def _turn(self, boxes: dict[str, _Mailbox]) -> None:
        """Answer the polls whose turn it is, and drop the mailboxes that nobody asks for."""
        unpolled_s = _now_s() - UNPOLLED_S
        for node, mailbox in list(boxes.items()):
            if mailbox.poll is not None:
                _answer(mailbox.poll, self._news(mailbox))
                mailbox.poll = None
            elif mailbox.polled_s < unpolled_s:
                del boxes[node]
                self._nodes -= 1

    def close(self) -> None:
        """Answer all polls: this process tells nothing more."""
        self._is_closed = True
        for mailbox in self._mailboxes():
            if mailbox.poll is not None:
                _answer(mailbox.poll, self._news(mailbox))
                mailbox.poll = None

    # ------------------------------------------------------------ for people

    def open_polls(self) -> int:
        return sum(mailbox.poll is not None for mailbox in self._mailboxes())

    def _mailboxes(self) -> Iterator[_Mailbox]:
        return (mailbox for boxes in self._boxes for mailbox in boxes.values())

    def families(self) -> Iterator[Family]:
        yield Family(
            "gauge",
            "parley_scheduler_notice_polls",
            "Agents that listen for notices",
            (),
            (((), float(self.open_polls())),),
        )
        yield Family(
            "counter",
            "parley_scheduler_notices",
            "Notices to agents that listen, by kind",
            ("kind",),
            tuple(((kind,), float(count)) for kind, count in self.told.items()),
        )


def _now_s() -> float:
    return asyncio.get_running_loop().time()


def _notice(output: events.RoomOffered | events.YieldAsked) -> WireNotice:
    """The notice, without its number."""
    notice = WireNotice(
        number=0,
        kind=NoticeKind.ROOM.value,
        namespace=output.pod.namespace,
        name=output.pod.name,
        pod_uid=output.uid,
        resources=AmountShown.of(output.amount),
    )
    if isinstance(output, events.RoomOffered):
        return notice
    beneficiary = output.beneficiary
    return msgspec.structs.replace(
        notice,
        kind=NoticeKind.YIELD.value,
        resources=AmountShown.of(output.keep),
        waiter=beneficiary.pod.full_name if beneficiary.pod is not None else "",
        priority=beneficiary.priority,
        quota=beneficiary.quota,
    )


def _not_its_own(node: str, request: server.Request) -> AccessRefused | None:
    """Why a caller may not listen for `node`: it is another node's agent."""
    caller = request.caller
    if caller is None or caller.nodes is None or is_listed(caller.nodes, node):
        return None
    own = ", ".join(caller.nodes) or "no node"
    message = f"{caller.name} may listen for {own} only, not for node {node[:253]}"
    return AccessRefused(403, ErrorCode.WRONG_NODE.value, message, ErrorCode.WRONG_NODE)


def _answer(poll: "asyncio.Future[NoticePage]", page: NoticePage) -> None:
    if not poll.done():  # its peer may have gone
        poll.set_result(page)


def _reply(page: NoticePage) -> server.Reply:
    return server.Reply(200, _ENCODER.encode(page))
