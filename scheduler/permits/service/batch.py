"""`POST /batch`: up to 128 requests of one agent in one body, each with the extension, one for each pod.

Decreases enter the ledger first, so that growth in the same batch finds their room. Every item is decided at once; only
one that must wait becomes a task, and none waits for another. The answer is an array of `{status, body}` in the order
of the requests; a malformed item is answered by itself. Source: design section 4.
"""

import asyncio
from collections.abc import Awaitable
from time import perf_counter
from typing import Final

from hosting import server
from protocol import codec
from protocol.batch import read_batch, write_batch
from protocol.errors import RemoteProtocolError
from protocol.reasons import ErrorCode
from protocol.wire import AgentRequest
from scheduler.permits.core.vms import VmTable
from scheduler.permits.service.answers import MAX_BATCH, Outcome, error_reply
from scheduler.permits.service.service import PermitService, grows

MAX_BODY_BYTES: Final = MAX_BATCH * (codec.MAX_REQUEST_BYTES + 16)


class BatchService:
    """Takes batches apart and their answers together."""

    def __init__(self, permits: PermitService, vms: VmTable) -> None:
        self._permits = permits
        self._vms = vms

    async def serve(self, batch: server.Request) -> Outcome:
        items = read_batch(batch.body)
        if items is None:
            return self._refused("must be a JSON array of requests with the extension")
        if len(items) > MAX_BATCH:
            return self._refused(f"a batch holds at most {MAX_BATCH} requests, this one has {len(items)}")
        outcomes: dict[int, Outcome | Awaitable[Outcome]] = {}
        requests: list[tuple[bool, int, AgentRequest]] = []
        seen: set[str] = set()
        for index, item in enumerate(items):
            read = self._read(item)
            if isinstance(read, server.Reply):
                outcomes[index] = read
                continue
            request, uid = read
            if uid in seen:
                outcomes[index] = self._refused(f"podUID: {uid} is in this batch already")
                continue
            seen.add(uid)
            record = self._vms.by_uid(uid)
            requests.append((record is None or grows(record, request), index, request))
        requests.sort(key=lambda entry: entry[:2])
        for _, index, request in requests:
            began_s = perf_counter()
            outcomes[index] = self._permits.decide_extended(request, items[index])
            self._permits.stats.latency.observe(perf_counter() - began_s)
        done = await _all({index: outcomes[index] for index in range(len(items))})
        return server.Reply(200, write_batch([_entry(outcome) for outcome in done]))

    def _read(self, item: bytes) -> tuple[AgentRequest, str] | server.Reply:
        """The request of an item, with the UID of its pod; or the answer if there is none."""
        if len(item) > codec.MAX_REQUEST_BYTES:
            return self._refused(f"a request holds at most {codec.MAX_REQUEST_BYTES} bytes")
        try:
            request = codec.decode(AgentRequest, item)
        except RemoteProtocolError as error:
            return self._refused(str(error))
        if request.extension is None:
            return self._refused("a request in a batch needs the extension's fields")
        return request, request.extension.pod_uid

    def _refused(self, message: str) -> server.Reply:
        self._permits.stats.answers["error", ErrorCode.MALFORMED.value] += 1
        return error_reply(400, codec.ErrorBody(message, ErrorCode.MALFORMED))


async def _all(outcomes: dict[int, Outcome | Awaitable[Outcome]]) -> list[Outcome]:
    """Every outcome in the order of the requests; requests that must wait do so side by side."""
    waiting = {
        index: outcome
        for index, outcome in outcomes.items()
        if not isinstance(outcome, server.Reply | server.HangUp)
    }
    done: dict[int, Outcome] = {
        index: outcome
        for index, outcome in outcomes.items()
        if isinstance(outcome, server.Reply | server.HangUp)
    }
    if waiting:
        done.update(zip(waiting, await asyncio.gather(*waiting.values()), strict=True))
    return [done[index] for index in outcomes]


def _entry(outcome: Outcome) -> tuple[int, bytes]:
    assert isinstance(outcome, server.Reply), "an item with the extension always has an answer"
    return outcome.status, outcome.body
