"""Pools over HTTP: `/v1/pools`. Each change goes through the hooks of the chain.

The writers of pools decide how much VMs may have, so writes are taken from this machine only, unless the operator
says otherwise. Errors are problem documents; the refusals of hooks have the hook's own status.
"""

from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

import msgspec

from hosting import server
from hosting.problems import DocumentedAnswer, DocumentedParameter, Operation
from hosting.settings import SettingsError, parse_json
from protocol.explaining import AmountShown
from protocol.pages import (
    ConditionShown,
    DeletedPool,
    LastOutcome,
    ParkedVm,
    PluginShown,
    PluginsShown,
    PoolShown,
    PoolsShown,
    PoolStatusShown,
    SaturatedAmount,
    UnparkedPool,
)
from protocol.reasons import ErrorCode
from protocol.texts import counted
from protocol.values import ZERO, Resources
from scheduler.permits.core.core import Core
from scheduler.pools import entry
from scheduler.pools.chain.objects import PoolObjects
from scheduler.pools.core.admission_state import PoolAdmissionState, message_of
from scheduler.pools.core.errors import AppError, PluginErrorKind, kind_from_app_error
from scheduler.pools.core.probe import ProbeResultKind
from scheduler.pools.core.values import NOTHING, UNITS, Pool
from scheduler.pools.entry import WrittenPool

MAX_BODY_BYTES: Final = 512 * 1024
_BODY: Final = Path("body")
_KINDS: Final = {
    ProbeResultKind.OK: "OK",
    ProbeResultKind.INSUFFICIENT_RESOURCES: "InsufficientResources",
    ProbeResultKind.INTERNAL_ERROR: "InternalError",
    ProbeResultKind.INVALID_SPEC: "InvalidSpec",
}

_CODES: Final = {404: ErrorCode.UNKNOWN_POOL, 409: ErrorCode.CONFLICT}
"""Of refusals that name no kind: what the store says."""
_CODES_OF_KINDS: Final = {
    PluginErrorKind.INSUFFICIENT_RESOURCES: ErrorCode.INSUFFICIENT_RESOURCES,
    PluginErrorKind.INVALID_SPEC: ErrorCode.INVALID_SPEC,
    PluginErrorKind.INTERNAL: ErrorCode.INTERNAL,
    PluginErrorKind.UNKNOWN: ErrorCode.INTERNAL,
}

_NAME: Final = (
    DocumentedParameter("name", "Name of the pool.", {"type": "string", "maxLength": 253, "minLength": 1}),
)
_WRITING: Final = {
    403: "The caller is on another machine, or a web page; or pools are objects of Kubernetes here."
}
_REFUSING: Final = {
    **_WRITING,
    409: "The pool has changed meanwhile, or is there already.",
    422: "A plugin finds the description wrong; a plugin may answer with any other status of an error, too.",
    429: "A plugin refuses the change because a quota is full.",
    503: "A plugin refuses the change because the cluster is full, or cannot say; or another scheduler leads (`leader`).",
}
_EXAMPLE: Final = {
    "a small pool": {"name": "ci", "computeUnit": {"cpu": 1, "memory": "1Gi"}, "limits": {"maxUnits": 8}}
}
LIST_PLUGINS: Final = Operation(
    "The pool plugins, and what each shows of itself",
    {200: DocumentedAnswer("The plugins.", PluginsShown)},
    "pools",
)
LIST: Final = Operation("All pools", {200: DocumentedAnswer("The pools.", PoolsShown)}, "pools")
GET: Final = Operation("One pool", {200: DocumentedAnswer("The pool.", PoolShown)}, "pools", path=_NAME)
CREATE: Final = Operation(
    "Make a pool",
    {201: DocumentedAnswer("The pool as it was made; plugins may have changed it.", PoolShown)},
    "pools",
    body=WrittenPool,
    examples=_EXAMPLE,
    problems=_REFUSING,
)
UPDATE: Final = Operation(
    "Replace the description of a pool",
    {
        200: DocumentedAnswer(
            "The pool, or, where its last finalizer was taken off, what has gone.", PoolShown | DeletedPool
        )
    },
    "pools",
    path=_NAME,
    body=WrittenPool,
    examples=_EXAMPLE,
    problems=_REFUSING,
)
DELETE: Final = Operation(
    "Delete a pool",
    {
        200: DocumentedAnswer("It has gone.", DeletedPool),
        202: DocumentedAnswer("Finalizers hold it; it is gone when the last one is taken off.", PoolShown),
    },
    "pools",
    path=_NAME,
    problems=_REFUSING,
)
UNPARK: Final = Operation(
    "End saturation and parking of a pool, so that plugins are asked anew",
    {200: DocumentedAnswer("The pool.", UnparkedPool)},
    "pools",
    path=_NAME,
    problems=_WRITING,
)


class PoolApi:
    """Answers from the live objects. `clock` is monotonic, `wall` tells the time of day.

    If pools `are_objects` of Kubernetes, they are described there, and not here.
    """

    def __init__(
        self,
        objects: PoolObjects,
        core: Core,
        clock: Callable[[], float],
        *,
        are_objects: bool = False,
        wall: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._objects = objects
        self._queue = objects.admission_queue
        self._ledger = core.ledger
        self._vms = core.vms
        self._clock = clock
        self._wall = wall
        self._are_objects = are_objects

    def routes(self) -> tuple[server.Route, ...]:
        return (
            server.Route("GET", "/v1/plugins", self._plugins, about=LIST_PLUGINS),
            server.Route("GET", "/v1/pools", self._list, about=LIST),
            server.Route("POST", "/v1/pools", self._writing(self._create), MAX_BODY_BYTES, about=CREATE),
            server.Route("GET", "/v1/pools/{name}", self._get, about=GET),
            server.Route(
                "PUT", "/v1/pools/{name}", self._writing(self._update), MAX_BODY_BYTES, about=UPDATE
            ),
            server.Route("DELETE", "/v1/pools/{name}", self._writing(self._delete), about=DELETE),
            server.Route(
                "POST", "/v1/pools/{name}/unpark", self._writing(self._unpark, describes=False), about=UNPARK
            ),
        )

    def _writing(
        self, handler: Callable[[server.Request], Awaitable[server.Reply]], *, describes: bool = True
    ) -> server.Handler:
        async def guarded(request: server.Request) -> server.Reply:
            if describes and self._are_objects:
                return _forbidden("pools are Pool objects here; change them with kubectl")
            try:
                return await handler(request)
            except AppError as error:
                return _refusal(error)
            except SettingsError as error:
                detail = f"the body is no pool: {error.faults[0]}"
                return server.problem(400, ErrorCode.MALFORMED, detail, error.faults)

        return guarded

    async def _plugins(self, _: server.Request) -> server.Reply:
        shown = (
            PluginShown(name=name, status=_plain(status)) for name, status in self._objects.plugin_statuses()
        )
        return _json(200, PluginsShown(plugins=tuple(shown)))

    async def _list(self, _: server.Request) -> server.Reply:
        return _json(200, PoolsShown(pools=tuple(map(self.shown, self._objects.pools()))))

    async def _get(self, request: server.Request) -> server.Reply:
        name = request.parameters["name"]
        pool = self._objects.pool(name)
        return _json(200, self.shown(pool)) if pool is not None else _no_pool(name)

    async def _create(self, request: server.Request) -> server.Reply:
        written = parse_json(_BODY, request.body, WrittenPool)
        created = await self._objects.create(written.pool())
        return _json(201, self.shown(created))

    async def _update(self, request: server.Request) -> server.Reply:
        written = parse_json(_BODY, request.body, WrittenPool)
        name = request.parameters["name"]
        if written.name != name:
            fault = f"name: must be {name[:60]!r}, as in the path (found {written.name!r})"
            return server.problem(400, ErrorCode.MALFORMED, fault, [fault])
        updated = await self._objects.update(written.pool_as_expected())
        return _json(200, self.shown(updated)) if self._objects.find(name) is not None else _gone(name)

    async def _delete(self, request: server.Request) -> server.Reply:
        name = request.parameters["name"]
        await self._objects.delete(name)
        pool = self._objects.pool(name)
        return _json(202, self.shown(pool)) if pool is not None else _gone(name)

    async def _unpark(self, request: server.Request) -> server.Reply:
        name = request.parameters["name"]
        pool = self._objects.pool(name)
        if pool is None:
            return _no_pool(name)
        changed = self._queue.unpark(name)
        await self._objects.flush()
        return _json(200, UnparkedPool(changed=changed, **msgspec.structs.asdict(self.shown(pool))))

    # ------------------------------------------------------------ views

    def view(self, pool: Pool) -> dict[str, Any]:
        found: dict[str, Any] = msgspec.to_builtins(self.shown(pool))
        return found

    def shown(self, pool: Pool) -> PoolShown:
        return msgspec.convert({**entry.shown(pool), "status": self._status(pool)}, PoolShown)

    def _status(self, pool: Pool) -> PoolStatusShown:
        state, account = self._queue.state_of(pool.name), self._ledger.pool(pool.name)
        limit = pool.limits.max_units
        limits_amounts = account is not None and account.spec is not None and account.spec.limits_amounts
        refusal = state.refused(UNITS)
        unmet = self._queue.unmet_demand().get(pool.name, NOTHING)
        return PoolStatusShown(
            total_units=pool.replicas,
            members=len(account.rows) if account is not None else 0,
            waiting=self._queue.waiting(pool.name),
            is_above_limit=limit is not None and pool.replicas > limit,
            total_amount=_amount(pool.amount) if limits_amounts else None,
            saturated_amounts=self._saturated_amounts(state) if limits_amounts else None,
            claimed_amount=_amount(unmet.amount) if limits_amounts and unmet.amount != ZERO else None,
            came_beyond_limit=account.came_beyond if account is not None else 0,
            saturated_at_units=refusal.total if refusal is not None else None,
            saturated_until=self._time(refusal.until_s) if refusal is not None else None,
            claimed_units=unmet.units,
            claimed_until=self._time(self._queue.unmet_until_s(pool.name)) if unmet.units else None,
            last_outcome=self._last_outcome(state),
            parked_vms=tuple(
                ParkedVm(uid=uid, pod=self._pod(uid), plugin=each.plugin, message=each.message)
                for uid, each in state.parked_vms.items()
                if self._vms.by_uid(uid) is not None
            ),
            conditions=tuple(self._conditions(pool, state)),
        )

    def _saturated_amounts(self, state: PoolAdmissionState) -> dict[str, SaturatedAmount] | None:
        return {
            each.measure: SaturatedAmount(at=each.at, until=self._time(each.until_s))
            for each in state.refusals
            if each.measure != UNITS
        } or None

    def _last_outcome(self, state: PoolAdmissionState) -> LastOutcome | None:
        last = state.last
        if last is None:
            return None
        return LastOutcome(
            kind=_KINDS[last.kind] if last.is_complete else "Deadline",
            message=last.message,
            plugin=last.plugin,
            asked_units=last.candidate,
            admitted_units=last.accepted,
            calls=last.calls,
            at=self._time(last.at_s),
        )

    def _time(self, moment_s: float) -> str:
        """The time of day at a moment of the clock."""
        at = self._wall() + timedelta(seconds=moment_s - self._clock())
        return at.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")

    def _pod(self, uid: str) -> str:
        record = self._vms.by_uid(uid)
        return record.name if record is not None else ""

    def _conditions(self, pool: Pool, state: PoolAdmissionState) -> list[ConditionShown]:
        found = [_admitted(state)]
        if state.parked is not None:
            found.append(_condition("Parked", "True", "AdmissionRejected", state.parked.message))
        if pool.limits.max_units == 0:
            found.append(_condition("Frozen", "True", "MaxUnitsZero", "nothing grows while maxUnits is 0"))
        account = self._ledger.pool(pool.name)
        if account is not None and account.excess_units and pool.limits.max_units:
            message = f"{counted(account.excess_units, 'unit')} beyond maxUnits; nothing grows until it is at or below"
            reason = "CameBeyond" if account.came_beyond else "LimitLowered"
            found.append(_condition("AboveLimit", "True", reason, message))
        if pool.is_deleting:
            held = ", ".join(pool.finalizers)
            found.append(_condition("Deleting", "True", "FinalizersLeft", f"held by the finalizers {held}"))
        if self._objects.is_ignored_in_file(pool.name):
            message = "the cluster file describes this pool otherwise; the stored description counts"
            found.append(_condition("FileIgnored", "True", "StoredWins", message))
        return found


def _admitted(state: PoolAdmissionState) -> ConditionShown:
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
        message = f"more than {counted(last.accepted, 'unit')} {_was(last.accepted)} refused; the next request asks again: {last.message}"
        return _condition("Admitted", "Unknown", "CoolDownOver", message)
    if last.kind is ProbeResultKind.INVALID_SPEC:
        return _condition("Admitted", "Unknown", "NotAsked", "nothing has asked since it was parked")
    return _condition(
        "Admitted",
        "True",
        "AdmissionGranted",
        f"{counted(last.accepted, 'unit')} {_was(last.accepted)} admitted",
    )


def _plain(status: object) -> Any:
    """The status of a plugin as JSON has it; its text if that cannot be."""
    try:
        return msgspec.to_builtins(status)
    except Exception:  # noqa: BLE001 - anybody may write a plugin
        return repr(status)[:1024]


def _was(count: int) -> str:
    return "was" if count == 1 else "were"


def _condition(kind: str, status: str, reason: str, message: str) -> ConditionShown:
    return ConditionShown(type=kind, status=status, reason=reason, message=message)


def _amount(amount: Resources) -> AmountShown:
    return AmountShown(**amount.written())


def _json(status: int, content: msgspec.Struct) -> server.Reply:
    return server.Reply(status, msgspec.json.encode(content))


def _gone(name: str) -> server.Reply:
    return _json(200, DeletedPool(name=name, deleted=True))


def _no_pool(name: str) -> server.Reply:
    return server.problem(404, ErrorCode.UNKNOWN_POOL, f"there is no pool {name[:253]!r}")


def _forbidden(detail: str) -> server.Reply:
    return server.problem(403, ErrorCode.FORBIDDEN, detail)


def _refusal(error: AppError) -> server.Reply:
    """A hook's refusal, or the store's: its message and codes, never its cause."""
    status = error.code if 400 <= error.code <= 599 else 500
    code = _CODES.get(error.code) if error.detail is None else None
    code = code or _CODES_OF_KINDS[kind_from_app_error(error)]
    return server.problem(status, code, message_of(error), biz_code=error.biz_code)
