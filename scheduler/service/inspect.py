"""Read-only views of the ledger for people and tools: `GET /v1/nodes/{node}` and `GET /v1/audit`."""

from typing import Any

import msgspec

from hosting import server
from protocol import extension
from protocol.values import Resources
from scheduler.core.core import Core
from scheduler.core.ledger import NodeAccount, Row


class Inspection:
    """Answers from the live core."""

    def __init__(self, core: Core) -> None:
        self._core = core

    def routes(self) -> tuple[server.Route, ...]:
        """Where the views are served."""
        return (
            server.Route("GET", "/v1/nodes/{node}", self._node),
            server.Route("GET", "/v1/audit", self._audit),
        )

    async def _node(self, request: server.Request) -> server.Reply:
        name = request.parameters["node"]
        account = self._core.ledger.node(name)
        if account is None:
            return server.text(404, f"there is no node {name[:253]!r}")
        return server.Reply(200, msgspec.json.encode(_shown_node(account)))

    async def _audit(self, _: server.Request) -> server.Reply:
        return server.Reply(200, msgspec.json.encode({"faults": self._core.audit()}))


def _shown_node(account: NodeAccount) -> dict[str, Any]:
    return {
        "node": account.terms.name,
        "reservable": _amount(account.terms.reservable),
        "reserved": _amount(account.reserved),
        "buffer": _amount(account.buffer),
        "pressure": _amount(account.pressure),
        "pressureAccountedFor": _amount(account.accounted),
        "watermark": _amount(account.terms.watermark),
        "overFullBecauseOf": [cause.value for cause in account.over],
        "rows": [_shown_row(row) for row in account.rows.values()],
    }


def _shown_row(row: Row) -> dict[str, Any]:
    return {
        "kind": row.holder.kind.value,
        "uid": row.holder.uid,
        "name": row.name,
        "current": _amount(row.state.current),
        "reserved": _amount(row.reserved),
        "pressure": _amount(row.state.pressure),
        "migrating": row.state.migrating,
        "floors": [
            {"cause": floor.cause.value, "amount": _amount(floor.amount)}
            | ({"about": floor.about} if floor.about else {})
            for floor in row.state.floors
        ],
    }


def _amount(amount: Resources) -> dict[str, str]:
    """Quantities; a negative amount, which only a broken account has, as it is."""
    raw = extension.RawAmount.from_resources(amount)
    return {"cpu": raw.cpu.canonical(), "memory": raw.memory.canonical()}
