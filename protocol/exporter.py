"""Reading an exporter's page: load averages as seed 004 reads them, and named samples for policies.

Lines are filtered by name before any number is parsed, so that a page of thousands of series costs little.
"""

import math
import re
from collections.abc import Container, Iterable, Iterator, Mapping
from typing import Final

from protocol import float32
from protocol.errors import Fault, RemoteProtocolError
from protocol.wire import Metrics

_NUMBER: Final = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")
_NAME: Final = re.compile(r"[^ \t{\r]+")
_LABELS: Final = re.compile(r'\{(?:[^"}]|"(?:[^"\\]|\\.)*")*\}')


def _value(line: str, name: str) -> str | None:
    """The value's text of a sample line of `name`; None when it has none."""
    rest = line[len(name) :]
    labels = _LABELS.match(rest)
    parts = rest[labels.end() if labels else 0 :].split(None, 1)
    return parts[0] if parts else None


def _samples_of(page: bytes, names: Container[str]) -> Iterator[tuple[str, str]]:
    """The sample lines of these names, each with its name."""
    for line in page.decode("utf-8", errors="replace").split("\n"):
        name = _NAME.match(line)
        if name is not None and name[0] in names:
            yield name[0], line


def _number(text: str | None, name: str) -> float:
    if text is None:
        raise RemoteProtocolError("bad metrics", (Fault(name, "has no value"),))
    if not _NUMBER.fullmatch(text):
        raise RemoteProtocolError("bad metrics", (Fault(name, "must be a finite decimal number", text[:40]),))
    return float(text)


def read_metrics(page: bytes, load_prefix: str) -> Metrics:
    """The load averages on an exporter's page, e.g. with `load_prefix` "node_" or "host_".

    The first sample of each name counts; `load1` never matches `load15`. Raises `RemoteProtocolError` that names the
    metric which is missing, empty, no finite decimal number, or beyond a 32-bit float. Source: seed 004, ReadMetrics.
    """
    names = (f"{load_prefix}load1", f"{load_prefix}load5")
    found: dict[str, float] = {}
    for name, line in _samples_of(page, names):
        if name not in found:
            try:
                found[name] = float32.round32(_number(_value(line, name), name))
            except ValueError as error:
                raise RemoteProtocolError("bad metrics", (Fault(name, str(error)),)) from None
    missing = tuple(Fault(name, "no line of the page has this name") for name in names if name not in found)
    if missing:
        raise RemoteProtocolError("bad metrics", missing)
    return Metrics(found[names[0]], found[names[1]])


def samples(page: bytes, names: Iterable[str]) -> Mapping[str, float]:
    """The sum of all samples of each name, over its labels; a name without a sample is left out.

    Raises `RemoteProtocolError` for a value that is no finite decimal number.
    """
    found: dict[str, float] = {}
    for name, line in _samples_of(page, frozenset(names)):
        total = found.get(name, 0.0) + _number(_value(line, name), name)
        if not math.isfinite(total):
            raise RemoteProtocolError("bad metrics", (Fault(name, "must be finite"),))
        found[name] = total
    return found
