"""Pools over HTTP: `/v1/pools`. Each change goes through the hooks of the chain.

Whoever may write pools decides how much VMs may have, so writes are taken from this machine only, unless the operator
says otherwise. Errors are JSON: `error` for a person, `code` for programs, and `faults`, one for each thing that is wrong.
"""

from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

import msgspec

from hosting import addresses, server
from hosting.settings import SettingsError, parse_json
from scheduler.core.core import Core
from scheduler.pools.chain.objects import PoolObjects
from scheduler.pools.core.admission_state import PoolAdmissionState, message_of
from scheduler.pools.core.errors import AppError, kind_from_app_error
from scheduler.pools.core.probe import ProbeResultKind
from scheduler.pools.core.values import Pool
from scheduler.pools.entry import WrittenPool, shown

MAX_BODY_BYTES: Final = 512 * 1024
_BODY: Final = Path("body")
_KINDS: Final = {
    ProbeResultKind.OK: "OK",
    ProbeResultKind.INSUFFICIENT_RESOURCES: "InsufficientResources",
    ProbeResultKind.INTERNAL_ERROR: "InternalError",
    ProbeResultKind.INVALID_SPEC: "InvalidSpec",
}

_CODES: Final = {404: "unknown-pool", 409: "conflict"}
"""Of refusals that name no kind: what the store says."""


class PoolApi:
    """Answers from the live objects. `clock` is monotonic, `wall` tells the time of day.

    Where pools `are_objects` of Kubernetes, they are described there, and not here.
    """

    def __init__(
        self,
        objects: PoolObjects,
        core: Core,
        clock: Callable[[], float],
        *,
        writes_from_anywhere: bool = False,
        are_objects: bool = False,
        wall: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._objects = objects
        self._queue = objects.admission_queue
        self._ledger = core.ledger
        self._vms = core.vms
        self._clock = clock
        self._wall = wall
        self._from_anywhere = writes_from_anywhere
        self._are_objects = are_objects

    def routes(self) -> tuple[server.Route, ...]:
        return (
            server.Route("GET", "/v1/plugins", self._plugins),
            server.Route("GET", "/v1/pools", self._list),
            server.Route("POST", "/v1/pools", self._writing(self._create), MAX_BODY_BYTES),
            server.Route("GET", "/v1/pools/{name}", self._get),
            server.Route("PUT", "/v1/pools/{name}", self._writing(self._update), MAX_BODY_BYTES),
            server.Route("DELETE", "/v1/pools/{name}", self._writing(self._delete)),
            server.Route("POST", "/v1/pools/{name}/unpark", self._writing(self._unpark, describes=False)),
        )

    def _writing(
        self, handler: Callable[[server.Request], Awaitable[server.Reply]], *, describes: bool = True
    ) -> server.Handler:
        async def guarded(request: server.Request) -> server.Reply:
            if describes and self._are_objects:
                return _error(403, "forbidden", "pools are Pool objects here; change them with kubectl")
            if not self._from_anywhere and not addresses.is_loopback(request.peer):
                message = "pools are written from this machine only (--pool-writes-from-anywhere)"
                return _error(403, "forbidden", message)
            if "origin" in request.headers:  # a page in a browser on this machine, which may be anybody's
                return _error(403, "forbidden", "pools are not written by web pages")
            try:
                return await handler(request)
            except AppError as error:
                return _refusal(error)
            except SettingsError as error:
                return _error(400, "malformed", f"the body is no pool: {error.faults[0]}", error.faults)

        return guarded

    async def _plugins(self, _: server.Request) -> server.Reply:
        shown = [{"name": name, "status": _plain(status)} for name, status in self._objects.plugin_statuses()]
        return _json(200, {"plugins": shown})

    async def _list(self, _: server.Request) -> server.Reply:
        return _json(200, {"pools": [self.view(pool) for pool in self._objects.pools()]})

    async def _get(self, request: server.Request) -> server.Reply:
        name = request.parameters["name"]
        pool = self._objects.pool(name)
        return _json(200, self.view(pool)) if pool is not None else _no_pool(name)

    async def _create(self, request: server.Request) -> server.Reply:
        written = parse_json(_BODY, request.body, WrittenPool)
        created = await self._objects.create(written.pool())
        return _json(201, self.view(created))

    async def _update(self, request: server.Request) -> server.Reply:
        written = parse_json(_BODY, request.body, WrittenPool)
        name = request.parameters["name"]
        if written.name != name:
            fault = f"name: must be {name[:60]!r}, as in the path (found {written.name!r})"
            return _error(400, "malformed", fault, [fault])
        updated = await self._objects.update(written.pool_as_expected())
        return _json(200, self.view(updated)) if self._objects.find(name) is not None else _gone(name)

    async def _delete(self, request: server.Request) -> server.Reply:
        name = request.parameters["name"]
        await self._objects.delete(name)
        pool = self._objects.pool(name)
        return _json(202, self.view(pool)) if pool is not None else _gone(name)

    async def _unpark(self, request: server.Request) -> server.Reply:
        name = request.parameters["name"]
        pool = self._objects.pool(name)
        if pool is None:
            return _no_pool(name)
        changed = self._queue.unpark(name)
        await self._objects.flush()
        return _json(200, {"changed": changed, **self.view(pool)})

    # ------------------------------------------------------------ views

    def view(self, pool: Pool) -> dict[str, Any]:
        """A pool with its status, as people see it."""
        state, account = self._queue.state_of(pool.name), self._ledger.pool(pool.name)
        limit = pool.limits.max_units
        status: dict[str, Any] = {
            "totalUnits": pool.replicas,
            "members": len(account.rows) if account is not None else 0,
            "waiting": self._queue.waiting(pool.name),
            "isAboveLimit": limit is not None and pool.replicas > limit,
        }
        if account is not None and account.spec is not None and account.spec.limits_amounts:
            status |= self._amounts(pool, state)
        if account is not None and account.came_beyond:
            status["cameBeyondLimit"] = account.came_beyond
        if state.refusal is not None:
            status["saturatedAtUnits"] = state.refusal.total
            status["saturatedUntil"] = self._time(state.refusal.until_s)
        claimed, claimed_until_s = self._queue.claimed(pool.name)
        if claimed:
            status["claimedUnits"] = claimed
            status["claimedUntil"] = self._time(claimed_until_s)
        if state.last is not None:
            last = state.last
            status["lastOutcome"] = {
                "kind": _KINDS[last.kind] if last.is_complete else "Deadline",
                "message": last.message,
                "plugin": last.plugin,
                "askedUnits": last.candidate,
                "admittedUnits": last.accepted,
                "calls": last.calls,
                "at": self._time(last.at_s),
            }
        if state.parked_vms:
            status["parkedVms"] = [
                {"uid": uid, "pod": self._pod(uid), "plugin": each.plugin, "message": each.message}
                for uid, each in state.parked_vms.items()
                if self._vms.by_uid(uid) is not None
            ]
        status["conditions"] = self._conditions(pool, state)
        return {**shown(pool), "status": status}

    def _amounts(self, pool: Pool, state: PoolAdmissionState) -> dict[str, Any]:
        """What a pool whose amounts are limited holds and claims of each resource, and where it is full."""
        found: dict[str, Any] = {"totalAmount": pool.amount.written()}
        if state.refused_amounts:
            found["saturatedAmounts"] = {
                each.resource: {"at": each.at, "until": self._time(each.until_s)}
                for each in state.refused_amounts
            }
        claimed = self._queue.claimed_amounts().get(pool.name)
        return {**found, "claimedAmount": claimed.written()} if claimed is not None else found

    def _time(self, moment_s: float) -> str:
        """The time of day at a moment of the clock."""
        at = self._wall() + timedelta(seconds=moment_s - self._clock())
        return at.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")

    def _pod(self, uid: str) -> str:
        record = self._vms.by_uid(uid)
        return record.name if record is not None else ""

    def _conditions(self, pool: Pool, state: PoolAdmissionState) -> list[dict[str, str]]:
        found = [_admitted(state)]
        if state.parked is not None:
            found.append(_condition("Parked", "True", "AdmissionRejected", state.parked.message))
        if pool.limits.max_units == 0:
            found.append(_condition("Frozen", "True", "MaxUnitsZero", "nothing grows while maxUnits is 0"))
        account = self._ledger.pool(pool.name)
        if account is not None and account.excess_units and pool.limits.max_units:
            message = f"{account.excess_units} units beyond maxUnits; nothing grows until it is at or below"
            reason = "CameBeyond" if account.came_beyond else "LimitLowered"
            found.append(_condition("AboveLimit", "True", reason, message))
        if pool.is_deleting:
            held = ", ".join(pool.finalizers)
            found.append(_condition("Deleting", "True", "FinalizersLeft", f"held by the finalizers {held}"))
        if self._objects.is_ignored_in_file(pool.name):
            message = "the cluster file describes this pool otherwise; the stored description counts"
            found.append(_condition("FileIgnored", "True", "StoredWins", message))
        return found


def _admitted(state: PoolAdmissionState) -> dict[str, str]:
    """Whether the chain admits growth, as far as it was asked. The message is never empty."""
    last = state.last
    if state.parked is not None:
        return _condition("Admitted", "False", "AdmissionRejected", state.parked.message)
    if state.refusals:
        full = state.refusals[0]
        message = f"full at {' and '.join(each.at for each in state.refusals)}: {full.message}"
        return _condition("Admitted", "False", full.reason or "QuotaExhausted", message)
    if last is None:
        return _condition("Admitted", "Unknown", "NotAsked", "nothing has asked for more yet")
    if last.kind is ProbeResultKind.INTERNAL_ERROR:
        return _condition("Admitted", "False", "AdmissionError", last.message or "a plugin failed")
    if not last.is_complete:
        return _condition("Admitted", "Unknown", "ProbeDeadline", "the plugins did not answer in time")
    if last.kind is ProbeResultKind.INSUFFICIENT_RESOURCES:
        message = f"more than {last.accepted} units were refused; the next request asks again: {last.message}"
        return _condition("Admitted", "Unknown", "CoolDownOver", message)
    if last.kind is ProbeResultKind.INVALID_SPEC:
        return _condition("Admitted", "Unknown", "NotAsked", "nothing has asked since it was parked")
    return _condition("Admitted", "True", "AdmissionGranted", f"{last.accepted} units were admitted")


def _plain(status: object) -> Any:
    """What a plugin shows of itself, as JSON has it; its text where that cannot be."""
    try:
        return msgspec.to_builtins(status)
    except Exception:  # noqa: BLE001 - anybody may write a plugin
        return repr(status)[:1024]


def _condition(kind: str, status: str, reason: str, message: str) -> dict[str, str]:
    return {"type": kind, "status": status, "reason": reason, "message": message}


def _json(status: int, content: dict[str, Any]) -> server.Reply:
    return server.Reply(status, msgspec.json.encode(content))


def _gone(name: str) -> server.Reply:
    return _json(200, {"name": name, "deleted": True})


def _no_pool(name: str) -> server.Reply:
    return _error(404, "unknown-pool", f"there is no pool {name[:253]!r}")


def _error(status: int, code: str, message: str, faults: list[str] | None = None) -> server.Reply:
    content: dict[str, Any] = {"error": message, "code": code}
    if faults:
        content["faults"] = faults
    return _json(status, content)


def _refusal(error: AppError) -> server.Reply:
    """A hook's refusal, or the store's: its message and codes, never its cause."""
    status = error.code if 400 <= error.code <= 599 else 500
    message = message_of(error)
    code = _CODES.get(error.code) if error.detail is None else None
    content: dict[str, Any] = {"error": message, "code": code or kind_from_app_error(error).value}
    if error.biz_code:
        content["bizCode"] = error.biz_code
    return _json(status, content)
