"""The journal's lines: a snapshot, then every input of the core with what came of it, as JSON.

Requests are kept as the bytes that were received, so that a replay decodes them as the scheduler did. Values are
written with their type's name; only the types listed here can be read back. Pure: files are the shell's.
"""

import dataclasses
import enum
import json
from dataclasses import dataclass
from typing import Any, Final, TypeAlias, get_args
from uuid import UUID

import msgspec

from protocol import codec, reasons, sequence, values, versions, wire
from protocol.errors import RemoteProtocolError
from scheduler.permits.core import clock, decision, events, ledger, model, rules, state
from scheduler.permits.core.core import Core

_TO_JSON: Final = msgspec.json.Encoder().encode
FORMAT: Final = 12
"""Raised when older journals cannot be read any more."""

_INPUTS: Final = tuple(kind for kind in get_args(events.Input) if kind is not events.RequestArrived)
_VALUES: Final = (
    events.AmountLimit,
    events.Arrival,
    events.Look,
    events.PoolVerdict,
    ledger.Floor,
    ledger.RowState,
    model.AgentIdentity,
    model.Beneficiary,
    model.Holder,
    model.NodeSpec,
    model.PodSpec,
    model.PoolSpec,
    model.ReservationOwner,
    model.ReservationSpec,
    model.VmSpec,
    reasons.Reason,
    rules.DefaultPool,
    rules.GrowthSwitches,
    rules.NodeOverride,
    rules.NodeRules,
    rules.Rules,
    rules.Watermark,
    sequence.AgentGate,
    sequence.Life,
    state.SchedulerConfig,
    values.Bounds,
    values.Observation,
    values.Resources,
    values.ComputeUnit,
    state.AdmissionCall,
    state.AskedYield,
    state.LastReply,
    state.RoomSearch,
    state.Retired,
    state.VmRecord,
    state.Waiting,
    wire.PodName,
)
_TYPES: Final[dict[str, Any]] = {kind.__name__: kind for kind in (*_INPUTS, *_VALUES)}
_ENUMS: Final[dict[str, Any]] = {
    kind.__name__: kind
    for kind in (
        model.Kind,
        model.Migration,
        ledger.Cause,
        ledger.OverCause,
        reasons.ReasonCode,
        reasons.ErrorCode,
        versions.PluginProtoVersion,
    )
}


ReservationParts: TypeAlias = tuple[
    str,
    model.ReservationSpec | None,
    tuple[tuple[model.Holder, values.Resources], ...],
    bool,
    reasons.Reason | None,
]
"""UID, description, the amount of each user, whether it is used up, the reason why not all of it is kept."""


class JournalError(ValueError):
    """A line is not one of a journal's. The text says why."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The whole state of a core, as values; `parts` is what goes into the journal's first line."""

    config: state.SchedulerConfig
    rules: rules.Rules
    nodes: tuple[model.NodeSpec, ...]
    pools: tuple[model.PoolSpec, ...]
    rows: tuple[tuple[model.Holder, str, str, ledger.RowState, str | None], ...]
    """Holder, its name, its node, its state, its pool."""
    over: tuple[tuple[str, tuple[ledger.OverCause, ...]], ...]
    """Why nodes are over-full."""
    records: tuple[dict[str, Any], ...]
    """The fields of each `state.VmRecord` but its row."""
    retired: tuple[tuple[str, state.Retired], ...]
    placements: tuple[tuple[model.Holder, float | None], ...]
    reservations: tuple[ReservationParts, ...]
    migrate_after: tuple[tuple[str, float], ...]
    serving_since_s: float | None
    now_s: float


_RECORDED: Final = tuple(item.name for item in dataclasses.fields(state.VmRecord) if item.name != "row")


def snapshot_of(core: Core) -> Snapshot:
    """The state of `core` now. Values are shared, records copied: the snapshot does not change with the core."""
    held = core.state
    return Snapshot(
        core.config,
        held.rules,
        tuple(held.nodes.values()),
        tuple(pool.spec for pool in core.ledger.pools() if pool.spec is not None),
        tuple((row.holder, row.name, row.node, row.state, row.pool) for row in core.ledger.rows()),
        tuple(
            (account.capacity.name, tuple(account.over)) for account in core.ledger.nodes() if account.over
        ),
        tuple(_parts(record) for record in core.vms),
        tuple(core.vms.retired().items()),
        tuple(held.placements.items()),
        tuple(
            (each.uid, each.spec, tuple(each.taken.items()), each.is_used_up, each.reason)
            for each in held.reservations
        ),
        tuple(held.migrate_after_s.items()),
        held.serving_since_s,
        held.now_s,
    )


def _parts(record: state.VmRecord) -> dict[str, Any]:
    parts = {name: getattr(record, name) for name in _RECORDED}
    call = record.admission
    if call is not None:
        parts["admission"] = dataclasses.replace(call, joined=list(call.joined))
    return parts


def restore(snapshot: Snapshot) -> Core:
    core = Core(snapshot.config, snapshot.rules)
    held = core.state
    for node in snapshot.nodes:
        core.apply(events.NodeSeen(node))
    for spec in snapshot.pools:
        core.apply(events.PoolSeen(spec))
    for holder, name, node_name, row_state, pool in snapshot.rows:
        held.ledger.post(ledger.Verdict(holder, node_name, row_state, name=name))
        held.ledger.join_pool(holder, pool, comes=False)
    for node_name, causes in snapshot.over:
        held.ledger.note_over(node_name, causes)
    for parts in snapshot.records:
        row = held.ledger.require(parts["spec"].holder)
        record = state.VmRecord(row=row, **parts)
        call = record.admission
        if call is not None:
            record.admission = dataclasses.replace(call, joined=list(call.joined))
            held.admission_calls[call.ticket] = record
        held.vms.add(record)
        if record.waiting is not None:
            held.queue(record.spec.node).waiting[record.spec.uid] = None
        if record.asked is not None and record.asked.is_open:
            held.queue(record.spec.node).asked[record.spec.uid] = None
        clock.schedule(held, record)
    held.vms.retired().update(snapshot.retired)
    held.placements.update(snapshot.placements)
    for uid, described, taken, is_used_up, reason in snapshot.reservations:
        account = held.reservations.open(uid)
        account.spec, account.is_used_up, account.reason = described, is_used_up, reason
        for holder, amount in taken:
            held.reservations.use(uid, holder).taken[holder] = amount
    held.migrate_after_s.update(snapshot.migrate_after)
    held.serving_since_s, held.now_s = snapshot.serving_since_s, snapshot.now_s
    held.followed = held.ledger.generation
    return core


# ---------------------------------------------------------------- lines


def snapshot_line(taken: Snapshot) -> str:
    """The first line of a journal's file. It takes a second at 10,000 VMs: not on the loop's thread."""
    body = {item.name: _written(getattr(taken, item.name)) for item in dataclasses.fields(taken)}
    return _line({"snapshot": {"format": FORMAT, **body}})


def input_line(event: events.Input, outputs: tuple[events.Output, ...]) -> str:
    """An input that is no request, and its outcome."""
    assert not isinstance(event, events.RequestArrived), "requests are journaled as their bytes"
    return _line({"input": _written(event), "outputs": [recorded(output) for output in outputs]})


def request_line(arrived: events.RequestArrived, body: bytes, outputs: tuple[events.Output, ...]) -> str:
    """A request as it was received, and its outcome."""
    request = {
        "ticket": arrived.ticket,
        "now_s": arrived.now_s,
        "look": _written(arrived.look),
        "since_s": arrived.since_s,
        "identity": _written(arrived.identity),
        "body": body.decode("latin-1"),
    }
    content = {"request": request, "outputs": [recorded(output) for output in outputs]}
    try:
        return _TO_JSON(content).decode() + "\n"
    except ValueError:  # an unpaired surrogate
        return _line(content)


def gap_line(lost: int) -> str:
    """So many lines were lost here, because the disk was too slow; a replay stops."""
    return _line({"gap": lost})


def recorded(output: events.Output) -> dict[str, Any]:  # noqa: C901, PLR0912 - one line for each event of the closed union
    """An output as it is compared: the part that the caller was told."""
    match output:
        case events.Decided():
            return {"permit": decision.encode(output).decode()}
        case events.Refused():
            return {"refused": output.status, "code": output.code.value, "message": output.message}
        case events.HungUp():
            return {"hung_up": output.why}
        case events.LookNeeded():
            return {"look_needed": str(output.pod)}
        case events.AdmissionCallNeeded():
            return {"admission_call_needed": output.pool, "wanted": str(output.wanted)}
        case events.Joined():
            return {"joined": output.leader}
        case events.AdmissionCallCancelled():
            return {"admission_call_cancelled": output.ticket}
        case events.ReadNeeded():
            return {"read_needed": str(output.pod)}
        case events.Placed():
            return {"placed": output.ticket}
        case events.NotPlaced():
            return {"not_placed": output.ticket, "reason": str(output.reason)}
        case events.MigrationWanted():
            return {"migration_wanted": str(output.pod)}
        case events.RoomOffered():
            return {"room_offered": str(output.pod), "amount": str(output.amount)}
        case events.YieldAsked():
            return {"yield_asked": str(output.pod), "keep": str(output.keep), "for": str(output.beneficiary)}
        case events.OfferLapsed():
            return {"offer_lapsed": str(output.pod), "amount": str(output.amount)}
        case events.YieldEnded():
            return {"yield_ended": str(output.pod), "amount": str(output.amount), "why": output.why}


def _line(content: dict[str, Any]) -> str:
    return json.dumps(content, separators=(",", ":")) + "\n"


# ---------------------------------------------------------------- reading


@dataclass(frozen=True, slots=True)
class Step:
    """One line: an input, and its outcome when it was recorded."""

    event: events.Input
    outputs: list[Any]


@dataclass(frozen=True, slots=True)
class Gap:
    """Lines were lost here."""

    lost: int


def read_line(text: str) -> Snapshot | Step | Gap:
    """Read a line. Raises `JournalError`."""
    try:
        return _read(json.loads(text))
    except JournalError:
        raise
    except (
        ValueError,
        KeyError,
        TypeError,
        AttributeError,
        OverflowError,
        RecursionError,
        RemoteProtocolError,
    ) as error:
        raise JournalError(f"not a line of a journal: {_in_words(error)}") from None


def _in_words(error: Exception) -> str:
    """The fault of a line, for a person."""
    match error:
        case json.JSONDecodeError():
            return f"not JSON: {error.msg} (character {error.pos + 1})"
        case KeyError():
            return f"there is no `{error.args[0]}` in it"
        case ValueError() | RemoteProtocolError():
            return str(error)
        case RecursionError():
            return "lists or objects nest too deep"
        case _:
            return "a value in it is not of the kind that belongs there"


def _read(content: Any) -> Snapshot | Step | Gap:
    if not isinstance(content, dict):
        raise JournalError("not a line of a journal: it is no JSON object")
    if "gap" in content:
        return Gap(int(content["gap"]))
    if "snapshot" in content:
        body = content["snapshot"]
        if body["format"] != FORMAT:
            raise JournalError(f"the journal has format {body['format']}, this program reads {FORMAT}")
        return Snapshot(**{name: _read_value(part) for name, part in body.items() if name != "format"})
    if "request" in content:
        found = content["request"]
        message = codec.decode(wire.AgentRequest, found["body"].encode("latin-1"))
        look, identity = _read_value(found["look"]), _read_value(found["identity"])
        event: Any = events.RequestArrived(
            found["ticket"], message, found["now_s"], look, found["since_s"], identity
        )
    else:
        event = _read_value(content["input"])
    return Step(event, content["outputs"])


def _written(value: Any) -> Any:
    """A value as JSON: a value that is no plain JSON is an object with one key that says its kind."""
    match value:
        case enum.Enum():
            return {"enum": type(value).__name__, "value": value.value}
        case UUID():
            return {"uuid": str(value)}
        case wire.AgentRequest():
            return {"request": codec.encode(value).decode()}
        case None | bool() | int() | float() | str():
            return value
        case tuple() | list():
            return [_written(item) for item in value]
        case dict():
            return {"fields": {name: _written(item) for name, item in value.items()}}
        case _:
            fields = {name: _written(getattr(value, name)) for name in _fields(type(value))}
            return {
                "type": type(value).__name__,
                **{name: item for name, item in fields.items() if item is not None},
            }


def _fields(kind: Any) -> tuple[str, ...]:
    if issubclass(kind, msgspec.Struct):
        return tuple(kind.__struct_fields__)
    return tuple(item.name for item in dataclasses.fields(kind))


def _known(name: str, kinds: dict[str, Any]) -> Any:
    if name not in kinds:
        raise JournalError(f"not a line of a journal: no kind of value is called `{name}`")
    return kinds[name]


def _read_value(written: Any) -> Any:
    match written:
        case list():
            return tuple(_read_value(item) for item in written)
        case {"type": name, **fields}:
            kind = _known(name, _TYPES)
            given = {key: _read_value(item) for key, item in fields.items()}
            # None is not written, whether or not it is the field's default
            return kind(**{name: given.get(name) for name in _fields(kind)})
        case {"fields": parts}:
            return {name: _read_value(item) for name, item in parts.items()}
        case {"enum": name, "value": value}:
            return _known(name, _ENUMS)(value)
        case {"uuid": text}:
            return UUID(text)
        case {"request": text}:
            return codec.decode(wire.AgentRequest, text.encode())
        case _:
            return written


# ---------------------------------------------------------------- replay


@dataclass(frozen=True, slots=True)
class Difference:
    """The first input whose outcome differs: its number among the inputs, the recorded outcome, and the outcome now."""

    number: int
    event: events.Input
    recorded: list[Any]
    replayed: list[Any]


class Replay:
    """Applies steps to a core that begins as a snapshot says."""

    def __init__(self, snapshot: Snapshot) -> None:
        self.core = restore(snapshot)
        self.steps = 0

    def take(self, step: Step) -> Difference | None:
        self.steps += 1
        replayed = [recorded(output) for output in self.core.apply(step.event)]
        if replayed == step.outputs:
            return None
        return Difference(self.steps, step.event, step.outputs, replayed)
