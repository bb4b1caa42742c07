"""The scheduler's notices: one long poll of the whole daemon, whose pages become events of the runners.

A notice is a hint (`protocol.notices`): if none comes, each runner asks with its tick as ever. So no fault here is more than a line
in the log, and a while without notices.
"""

import asyncio
import random
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import Final, Protocol
from urllib.parse import urlencode

import msgspec

from agent.core import events
from agent.core.model import Vm
from agent.peers.scheduler import SchedulerLink
from hosting.backoff import Backoff
from hosting.client import Answered, HttpClient
from hosting.fault_log import FaultLog
from hosting.logs import Logger
from hosting.metrics import Family
from protocol import quantities
from protocol.explaining import AmountShown
from protocol.extension import RawAmount
from protocol.notices import LONGEST_POLL_S, NOTICES_PATH, NoticeKind, NoticePage, WireNotice
from protocol.texts import clean
from protocol.values import Resources

DEADLINE_S: Final = LONGEST_POLL_S + 5.0
RETRY: Final = Backoff(base_s=0.5, cap_s=30.0)
HASTY_S: Final = 1.0
"""The second answer in a row without news that comes sooner counts as a failure: two agents of one node would end each other's polls
without a pause. One alone is the turn of this node, which may come at any moment after the last news."""
_NOT_SERVED: Final = (400, 404, 405)
_WAITER_CHARS: Final = 320
"""Of a namespace and a name."""


class NoticeTaker(Protocol):
    """The runner of a VM."""

    vm: Vm

    def offer(self, event: events.Event) -> bool: ...


class NoticeListener:
    """Listens to the scheduler of `link` while that serves notices. `node` names this agent; `runners` gives those that are there now."""

    def __init__(
        self,
        client: HttpClient,
        link: SchedulerLink,
        node: str,
        runners: Callable[[], Iterable[NoticeTaker]],
        rng: random.Random,
        log: Logger,
    ) -> None:
        """`client` is not that of permits: a poll holds its connection."""
        self._client = client
        self._link = link
        self._node = node
        self._runners = runners
        self._rng = rng
        self._faults = FaultLog(
            log,
            "no notices of the scheduler; what it would tell is asked for with the tick",
            "notices come again",
        )
        self._instance: str | None = None
        """The scheduler process that was heard last."""
        self._after = 0
        self._is_listening = False
        self._heard: Counter[str] = Counter({kind.value: 0 for kind in NoticeKind})

    async def run(self) -> None:
        clock, failures = asyncio.get_running_loop().time, 0
        while True:
            url = await self._link.notices_url()
            began_s = clock()
            page = await self._poll(url)
            if isinstance(page, NoticePage):
                self._faults.worked()
                if self._take(page) or clock() - began_s >= HASTY_S:
                    failures = 0
                    continue
                failures += 1
                if failures == 1:
                    continue
            else:
                self._faults.failed(page)
                failures += 1
            await asyncio.sleep(RETRY.delay_s(failures, self._rng.random()))

    async def _poll(self, url: str) -> NoticePage | str:
        """The next page, or why there is none."""
        query = {"agent": self._node, "after": str(self._after)}
        if self._instance is not None:
            query["instance"] = self._instance
        self._is_listening = True
        try:
            outcome = await self._client.call(
                "GET", f"{url.rstrip('/')}{NOTICES_PATH}?{urlencode(query)}", deadline_s=DEADLINE_S
            )
        finally:
            self._is_listening = False
        if not isinstance(outcome, Answered):
            return outcome.message
        if outcome.status in _NOT_SERVED:
            self._link.forget_notices(url)
        if outcome.status != 200:
            return f"status {outcome.status} for a poll"
        try:
            return msgspec.json.decode(outcome.body, type=NoticePage)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            return clean(f"no page of notices: {error}", 300)

    def _take(self, page: NoticePage) -> bool:
        """Tell the runners; whether there was anything new."""
        is_other = self._instance not in (None, page.instance)
        has_news = is_other or page.last > self._after
        self._instance, self._after = page.instance, page.last
        runners = {each.vm.pod_uid: each for each in self._runners()}
        if is_other or any(notice.kind == NoticeKind.EPOCH for notice in page.notices):
            self._heard[NoticeKind.EPOCH] += 1
            for runner in runners.values():
                runner.offer(events.EpochNoticed(self._rng.random()))
        for notice in page.notices:
            event = _event(notice)
            if event is not None:
                self._heard[notice.kind] += 1
                found = runners.get(notice.pod_uid)
                if found is not None and found.vm.name == f"{notice.namespace}/{notice.name}":
                    found.offer(event)
        return has_news

    def families(self) -> Iterator[Family]:
        yield Family(
            "gauge",
            "parley_agent_notice_polls",
            "Open polls for notices of the scheduler: 1, or 0 while it offers none or does not answer",
            (),
            (((), float(self._is_listening)),),
        )
        yield Family(
            "counter",
            "parley_agent_notices",
            "Notices of the scheduler, by kind",
            ("kind",),
            tuple(((kind,), float(count)) for kind, count in self._heard.items()),
        )


def _event(notice: WireNotice) -> events.RoomNoticed | events.YieldNoticed | None:
    """The event of a notice to one VM; None if it is of another kind, or its amount cannot be read."""
    amount = _amount(notice.resources) if notice.resources is not None else None
    if amount is None:
        return None
    match notice.kind:
        case NoticeKind.ROOM:
            return events.RoomNoticed(amount)
        case NoticeKind.YIELD:
            if notice.quota:
                lenders = f"the lenders of quota {clean(notice.quota, _WAITER_CHARS)}"
                return events.YieldNoticed(amount, lenders, None)
            return events.YieldNoticed(amount, clean(notice.waiter, _WAITER_CHARS), notice.priority)
        case _:
            return None


def _amount(shown: AmountShown) -> Resources | None:
    try:
        return RawAmount(quantities.parse(shown.cpu), quantities.parse(shown.memory)).to_resources()
    except ValueError:
        return None
