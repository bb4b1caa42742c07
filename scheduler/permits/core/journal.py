"""The journal's lines: a snapshot, then every input of the core with what came of it, as JSON.

Requests are kept as the bytes that were received, so that a replay decodes them as the scheduler did. Values are
written with their type's name; only the types listed here can be read back. Pure: files are the shell's.
"""

import dataclasses
import enum
import functools
import json
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final, get_args
from uuid import UUID

import msgspec

from protocol import codec, reasons, sequence, values, versions, wire
from protocol.errors import RemoteProtocolError
from scheduler.permits.core import decision, events, ledger, model, rules, state
from scheduler.permits.core.snapshots import Snapshot, restore

FORMAT: Final = 13
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


class JournalError(ValueError):
    """A line is not one of a journal's. The text says why."""


# ---------------------------------------------------------------- lines


def snapshot_pieces(taken: Snapshot) -> Iterator[str]:
    """The first line of a journal's file, piece by piece: at 100,000 VMs it has 200 MB. It takes seconds: not on the loop's thread."""
    yield f'{{"snapshot":{{"format":{FORMAT}'
    for item in dataclasses.fields(taken):
        value = getattr(taken, item.name)
        yield f',"{item.name}":'
        if not isinstance(value, tuple | Iterator):
            yield _text(value)
            continue
        mark = ""
        yield "["
        for each in value:
            yield mark + _text(each)
            mark = ","
        yield "]"
    yield "}}\n"


def snapshot_line(taken: Snapshot) -> str:
    return "".join(snapshot_pieces(taken))


def input_line(event: events.Input, outputs: tuple[events.Output, ...]) -> str:
    """An input that is no request, and its outcome."""
    assert not isinstance(event, events.RequestArrived), "requests are journaled as their bytes"
    return f'{{"input":{_text(event)},"outputs":[{",".join(map(_outcome, outputs))}]}}\n'


def request_line(arrived: events.RequestArrived, body: bytes, outputs: tuple[events.Output, ...]) -> str:
    """A request as it was received, and its outcome."""
    return (
        f'{{"request":{{"ticket":{arrived.ticket},"now_s":{_text(arrived.now_s)},"look":{_text(arrived.look)},'
        f'"since_s":{_text(arrived.since_s)},"identity":{_text(arrived.identity)},'
        f'"body":{_text(body.decode("latin-1"))}}},'
        f'"outputs":[{",".join(map(_outcome, outputs))}]}}\n'
    )


def _outcome(output: events.Output) -> str:
    """`recorded` as it is written, which most requests need for a permit only."""
    if type(output) is events.Decided:
        return f'{{"permit":{_text(decision.encode(output).decode())}}}'
    return _json(recorded(output))


def gap_line(lost: int) -> str:
    """So many lines were lost here, because the disk was too slow; a replay stops."""
    return f'{{"gap":{lost}}}\n'


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


_json: Final = json.JSONEncoder(separators=(",", ":")).encode


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


def _text(value: Any) -> str:
    """A value as JSON: a value that is no plain JSON is an object with one key that says its kind."""
    kind = type(value)
    writer = _writers.get(kind)
    if writer is None:
        writer = _writers[kind] = _writer_of(kind)
    return writer(value)


def _writer_of(kind: Any) -> Callable[[Any], str]:
    name = kind.__name__
    if issubclass(kind, enum.Enum):
        return lambda value: f'{{"enum":"{name}","value":{_text(value.value)}}}'
    if issubclass(kind, UUID):
        return lambda value: f'{{"uuid":"{value}"}}'
    if issubclass(kind, wire.AgentRequest):
        return lambda value: f'{{"request":{_json(codec.encode(value).decode())}}}'
    if kind is type(None) or issubclass(kind, bool | int | float | str):
        return _json
    if issubclass(kind, tuple | list):
        return lambda value: f"[{','.join(map(_text, value))}]"
    if issubclass(kind, dict):
        return lambda value: (
            f'{{"fields":{{{",".join([f"{_json(key)}:{_text(item)}" for key, item in value.items()])}}}}}'
        )
    names, begin = _fields(kind), f'{{"type":"{name}"'
    marked = [(each, f',"{each}":') for each in names]

    def write(value: Any) -> str:
        text = begin
        for each, mark in marked:
            item = getattr(value, each)
            if item is not None:
                text += mark + _text(item)
        return text + "}"

    # Amounts are whole numbers, and few of them are different; of other values equal ones may be written differently.
    return functools.lru_cache(4096)(write) if kind is values.Resources else write


_writers: Final[dict[Any, Callable[[Any], str]]] = {
    str: json.encoder.encode_basestring_ascii,
    int: int.__repr__,
    float: lambda value: repr(value) if math.isfinite(value) else _json(value),
    type(None): lambda _: "null",
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
