"""The journal's lines: a snapshot, then every input of the core with what came of it, as JSON.

Requests are kept as the bytes that were received, so that a replay decodes them as the scheduler did. Values are
written with their type's name; only the types listed here can be read back. Pure: files are the shell's.
"""

import dataclasses
import enum
import json
from dataclasses import dataclass
from typing import Any, Final
from uuid import UUID

from protocol import codec, reasons, sequence, values, versions, wire
from protocol.errors import RemoteProtocolError
from scheduler.core import book, events, ledger, model
from scheduler.core.core import Core

FORMAT: Final = 1
"""Raised when older journals cannot be read any more."""

_TYPES: Final[dict[str, Any]] = {
    kind.__name__: kind
    for kind in (
        events.NodeSeen,
        events.NodeGone,
        events.PodSeen,
        events.PodGone,
        events.VmSeen,
        events.VmGone,
        events.ClockTicked,
        events.ReadNeeded,
        events.Look,
        model.Holder,
        model.NodeSpec,
        model.PodSpec,
        model.Reading,
        model.VmSpec,
        ledger.Floor,
        ledger.RowState,
        book.Reply,
        book.Terms,
        book.VmRecord,
        reasons.Reason,
        sequence.AgentGate,
        sequence.Life,
        values.Bounds,
        values.Resources,
        wire.PodName,
    )
}
_ENUMS: Final[dict[str, Any]] = {
    kind.__name__: kind
    for kind in (model.Kind, ledger.Cause, reasons.ReasonCode, reasons.ErrorCode, versions.PluginProtoVersion)
}


class JournalError(ValueError):
    """A line is not one of a journal's. The text says why."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The whole state of a core: its terms, nodes, rows and records."""

    terms: book.Terms
    nodes: tuple[model.NodeSpec, ...]
    rows: tuple[tuple[model.Holder, str, ledger.RowState], ...]
    records: tuple[book.VmRecord, ...]


def snapshot_of(core: Core) -> Snapshot:
    """The state of `core` now. Values are shared, records copied: the snapshot does not change with the core."""
    return Snapshot(
        core.terms,
        tuple(account.spec for account in core.ledger.nodes()),
        tuple((row.holder, row.node, row.state) for row in core.ledger.rows()),
        tuple(dataclasses.replace(record) for record in core.book),
    )


def restore(snapshot: Snapshot) -> Core:
    """A core in the state of `snapshot`."""
    core = Core(snapshot.terms)
    for node in snapshot.nodes:
        core.ledger.set_node(node)
    for holder, node_name, state in snapshot.rows:
        core.ledger.post(ledger.Verdict(holder, node_name, state))
    for record in snapshot.records:
        core.book.enter(dataclasses.replace(record))
    return core


# ---------------------------------------------------------------- lines


def snapshot_line(core: Core) -> str:
    """The first line of a journal's file."""
    taken = snapshot_of(core)
    body = {
        "format": FORMAT,
        "terms": _written(taken.terms),
        "nodes": _written(taken.nodes),
        "rows": [[_written(part) for part in row] for row in taken.rows],
        "records": _written(taken.records),
    }
    return _line({"snapshot": body})


def input_line(event: events.Input, outputs: tuple[events.Output, ...]) -> str:
    """An input that is no request, and what came of it."""
    assert not isinstance(event, events.RequestArrived), "requests are journaled as their bytes"
    return _line({"input": _written(event), "outputs": [told(output) for output in outputs]})


def request_line(arrived: events.RequestArrived, body: bytes, outputs: tuple[events.Output, ...]) -> str:
    """A request as it was received, and what came of it."""
    request = {
        "ticket": arrived.ticket,
        "now_s": arrived.now_s,
        "look": _written(arrived.look),
        "body": body.decode("latin-1"),
    }
    return _line({"request": request, "outputs": [told(output) for output in outputs]})


def gap_line(lost: int) -> str:
    """So many lines were lost here, because the disk was too slow; a replay stops."""
    return _line({"gap": lost})


def told(output: events.Output) -> dict[str, Any]:
    """An output as it is compared: what the caller was told."""
    match output:
        case events.Decided():
            return {"permit": codec.encode(output.response).decode()}
        case events.Refused():
            return {"refused": output.status, "code": output.code.value, "message": output.message}
        case events.HungUp():
            return {"hung_up": output.why}
        case events.LookNeeded():
            return {"look_needed": str(output.pod)}
        case events.ReadNeeded():
            return {"read_needed": str(output.pod)}


def _line(content: dict[str, Any]) -> str:
    return json.dumps(content, separators=(",", ":")) + "\n"


# ---------------------------------------------------------------- reading


@dataclass(frozen=True, slots=True)
class Step:
    """One line: an input, and what came of it when it was recorded."""

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
    except (ValueError, KeyError, TypeError, AttributeError, RemoteProtocolError) as error:
        raise JournalError(f"not a line of a journal: {type(error).__name__}: {error}") from None


def _read(content: Any) -> Snapshot | Step | Gap:
    if "gap" in content:
        return Gap(int(content["gap"]))
    if "snapshot" in content:
        body = content["snapshot"]
        if body["format"] != FORMAT:
            raise JournalError(f"the journal has format {body['format']}, this program reads {FORMAT}")
        rows = tuple((_read_value(a), str(b), _read_value(c)) for a, b, c in body["rows"])
        return Snapshot(
            _read_value(body["terms"]), _read_value(body["nodes"]), rows, _read_value(body["records"])
        )
    if "request" in content:
        found = content["request"]
        message = codec.decode(wire.AgentRequest, found["body"].encode("latin-1"))
        look = _read_value(found["look"])
        event: Any = events.RequestArrived(found["ticket"], message, found["now_s"], look)
    else:
        event = _read_value(content["input"])
    return Step(event, content["outputs"])


def _written(value: Any) -> Any:
    """A value as JSON: what is no plain JSON value is an object with one key that says its kind."""
    match value:
        case enum.Enum():
            return {"enum": type(value).__name__, "value": value.value}
        case UUID():
            return {"uuid": str(value)}
        case wire.AgentRequest():
            return {"request": codec.encode(value).decode()}
        case None | bool() | int() | float() | str():
            return value
        case tuple():
            return [_written(item) for item in value]
        case _:
            fields = {item.name: _written(getattr(value, item.name)) for item in dataclasses.fields(value)}
            return {
                "type": type(value).__name__,
                **{name: item for name, item in fields.items() if item is not None},
            }


def _read_value(written: Any) -> Any:
    match written:
        case list():
            return tuple(_read_value(item) for item in written)
        case {"type": name, **fields}:
            kind = _TYPES[name]
            given = {key: _read_value(item) for key, item in fields.items()}
            # None is not written, whatever the field's default
            return kind(**{item.name: given.get(item.name) for item in dataclasses.fields(kind)})
        case {"enum": name, "value": value}:
            return _ENUMS[name](value)
        case {"uuid": text}:
            return UUID(text)
        case {"request": text}:
            return codec.decode(wire.AgentRequest, text.encode())
        case _:
            return written


# ---------------------------------------------------------------- replay


@dataclass(frozen=True, slots=True)
class Difference:
    """The first input whose outcome differs: its number among the inputs, what was recorded, and what came now."""

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
        """Apply one step; what differs, if anything."""
        self.steps += 1
        replayed = [told(output) for output in self.core.apply(step.event)]
        if replayed == step.outputs:
            return None
        return Difference(self.steps, step.event, step.outputs, replayed)
