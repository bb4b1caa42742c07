"""Read-only views of the ledger for people and tools: `GET /v1/nodes`, `/v1/nodes/{node}` and `/v1/audit`."""

from collections.abc import Callable
from typing import Any

import msgspec

from hosting import server
from protocol.values import ZERO
from scheduler.core.core import Core
from scheduler.core.ledger import NodeAccount, Row
from scheduler.core.model import Kind


class Inspection:
    """Answers from the live core."""

    def __init__(self, core: Core, clock: Callable[[], float]) -> None:
        self._core = core
        self._clock = clock

    def routes(self) -> tuple[server.Route, ...]:
        """Where the views are served."""
        return (
            server.Route("GET", "/v1/nodes", self._nodes),
            server.Route("GET", "/v1/nodes/{node}", self._node),
            server.Route("GET", "/v1/audit", self._audit),
        )

    async def _nodes(self, _: server.Request) -> server.Reply:
        nodes = [_sums(account) for account in self._core.ledger.nodes()]
        return server.Reply(200, msgspec.json.encode({"nodes": nodes}))

    async def _node(self, request: server.Request) -> server.Reply:
        name = request.parameters["node"]
        account = self._core.ledger.node(name)
        if account is None:
            return server.text(404, f"there is no node {name[:253]!r}")
        growth = self._core.state.rules.growth
        shown = _sums(account) | {
            "growth": {"stop": growth.stopped, "recommendOnly": growth.recommend_only},
            "rows": [self._row(row, self._clock()) for row in account.rows.values()],
        }
        return server.Reply(200, msgspec.json.encode(shown))

    def _row(self, row: Row, now_s: float) -> dict[str, Any]:
        shown = _shown_row(row, now_s)
        record = self._core.vms.by_uid(row.holder.uid) if row.holder.kind is Kind.VM else None
        if record is None:
            return shown
        pod, rules = record.spec.pod, self._core.state.rules
        shown |= {
            "settled": record.settled,
            "max": record.spec.bounds.max.written(),
            "recommendOnly": rules.is_recommend_only(pod.namespace, pod.name),
        }
        if record.spec.pool is not None:
            shown |= {"pool": record.spec.pool, "poolUnits": row.units}
        if record.reply is not None:
            shown["lastRequest"] = record.reply.request.written()
            shown["lastReasons"] = [
                {"code": reason.code.value, "message": reason.message} for reason in record.reply.reasons
            ]
        return shown

    async def _audit(self, _: server.Request) -> server.Reply:
        return server.Reply(200, msgspec.json.encode({"faults": self._core.audit()}))


def _sums(account: NodeAccount) -> dict[str, Any]:
    capacity = account.capacity
    return {
        "node": capacity.name,
        "reservable": capacity.reservable.written(),
        "reserved": account.reserved.written(),
        "free": (capacity.reservable - account.reserved).max(ZERO).written(),
        "buffer": account.buffer.written(),
        "pressure": account.pressure.written(),
        "pressureAccountedFor": account.accounted.written(),
        "watermark": capacity.watermark.written(),
        "computeUnit": capacity.compute_unit.written() if capacity.compute_unit is not None else None,
        "overFullBecauseOf": [cause.value for cause in account.over],
    }


def _shown_row(row: Row, now_s: float) -> dict[str, Any]:
    return {
        "kind": row.holder.kind.value,
        "uid": row.holder.uid,
        "name": row.name,
        "current": row.state.current.written(),
        "reserved": row.reserved.written(),
        "pressure": row.state.pressure.written(),
        "migrating": row.state.migrating,
        "floors": [
            {"cause": floor.cause.value, "amount": floor.amount.written()}
            | ({"about": floor.about} if floor.about else {})
            | ({"endsInSeconds": round(floor.until_s - now_s, 1)} if floor.until_s is not None else {})
            for floor in row.state.floors
        ],
    }
