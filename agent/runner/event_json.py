"""A runner's events for people and tools: the kind, and plain fields in JSON. Pure.

Left out are the ID of a registration, and values that mean nothing outside the process: random numbers, and moments of its clock.
"""

import dataclasses
import enum
import math
import re
from typing import Any, Final
from uuid import UUID

import msgspec
from pydantic.alias_generators import to_camel

from agent.core import events
from protocol.texts import clean
from protocol.values import Resources

MAX_TEXT: Final = 200
"""Characters of one text among the fields."""
MAX_ITEMS: Final = 8
"""Items of one list among the fields."""
_LEFT_OUT: Final = {"registration", "chance", "sent_s", "begun_s", "at_s", "not_after_s"}
_ID_NAME: Final = re.compile(r"(?:Ui|I)d$")
"""The end of a name that is written in capitals here, as in the published messages: `agentID`, `podUID`."""
_ID: Final = re.compile(r"\b([0-9a-f]{8})(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}\b", re.IGNORECASE)


def without_ids(text: str) -> str:
    """A text in which every UUID is cut to its first eight characters: a peer's error may quote the registration."""
    return _ID.sub(r"\1…", text)


def event_document(event: events.Event) -> dict[str, Any]:
    """`event` is the kind of the event, as named in `agent/core/events.py`; `fields` are its fields."""
    return {"event": type(event).__name__, "fields": _fields(event)}


def _fields(value: Any) -> dict[str, Any]:
    if isinstance(value, msgspec.Struct):
        names = value.__struct_fields__
    else:
        names = tuple(item.name for item in dataclasses.fields(value))
    found = {_key(name): _plain(getattr(value, name)) for name in names if name not in _LEFT_OUT}
    return {name: item for name, item in found.items() if item is not None}


def _key(name: str) -> str:
    camel = to_camel(f"{name.removesuffix('_s')}_seconds" if name.endswith("_s") else name)
    return _ID_NAME.sub(lambda found: found[0].upper(), camel)


def _plain(value: Any) -> Any:
    """The value of a field in JSON; None for a value that is left out."""
    match value:
        case enum.Enum():
            return value.value if isinstance(value.value, str) else str(value)
        case None | bool() | int():
            return value
        case float():
            return round(value, 3) if math.isfinite(value) else None
        case str():
            return clean(without_ids(value), MAX_TEXT)
        case UUID():
            return without_ids(str(value))
        case Resources():
            return value.written()
        case list() | tuple():
            return [_plain(item) for item in value[:MAX_ITEMS]]
        case _ if isinstance(value, events.Action):
            return {"kind": type(value).__name__, **_fields(value)}
        case _ if isinstance(value, msgspec.Struct) or dataclasses.is_dataclass(value):
            return _fields(value)
        case _:
            return clean(without_ids(str(value)), MAX_TEXT)
