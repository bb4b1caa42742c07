"""Reading an exporter's page: load averages as seed 004 reads them, and named samples for policies.

Lines are filtered by name before any number is parsed, so that a page of thousands of series costs little.
"""

import functools
import math
import re
from collections.abc import Iterable, Mapping
from typing import Final

from protocol import float32
from protocol.errors import Fault, RemoteProtocolError
from protocol.wire import Metrics

_NUMBER: Final = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")
_LABELS: Final = r'\{(?:[^"}\n]|"(?:[^"\\\n]|\\.)*")*\}'


@functools.lru_cache(maxsize=64)
def _lines_of(names: tuple[str, ...]) -> re.Pattern[str]:
    """Finds the sample lines of these names: the name, and the value's text, empty if there is none."""
    name = "|".join(map(re.escape, names))
    return re.compile(rf"^({name})(?![^ \t{{\r\n])(?:{_LABELS})?[^\S\n]*(\S*)", re.MULTILINE)


def _samples_of(page: bytes, names: Iterable[str]) -> list[tuple[str, str]]:
    """The samples of these names in their order: the name, and the value's text."""
    wanted = tuple(dict.fromkeys(names))
    return _lines_of(wanted).findall(page.decode("utf-8", errors="replace")) if wanted else []


def _number(text: str, name: str) -> float:
    if not text:
        raise RemoteProtocolError("bad metrics", (Fault(name, "has no value"),))
    if not _NUMBER.fullmatch(text):
        raise RemoteProtocolError("bad metrics", (Fault(name, "must be a finite decimal number", text[:40]),))
    return float(text)


def read_metrics(page: bytes, load_prefix: str) -> Metrics:
    """The load averages on an exporter's page, e.g. with `load_prefix` "node_" or "host_".

    The first sample of each name counts; `load1` never matches `load15`. Raises `RemoteProtocolError` that names the
    metric which is missing, empty, no finite decimal number, or beyond a 32-bit float. Source: seed 004, ReadMetrics.
    """
    return _loads(_samples_of(page, _load_names(load_prefix)), load_prefix)


def _load_names(prefix: str) -> tuple[str, str]:
    return f"{prefix}load1", f"{prefix}load5"


def _loads(lines: list[tuple[str, str]], load_prefix: str) -> Metrics:
    names = _load_names(load_prefix)
    found: dict[str, float] = {}
    for name, text in lines:
        if name in names and name not in found:
            try:
                found[name] = float32.round32(_number(text, name))
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
    wanted = tuple(names)
    return _sums(_samples_of(page, wanted), wanted)


def read(page: bytes, load_prefix: str, names: tuple[str, ...]) -> tuple[Metrics, Mapping[str, float]]:
    """Both `read_metrics` and `samples`, by one look at the page."""
    lines = _samples_of(page, (*_load_names(load_prefix), *names))
    return _loads(lines, load_prefix), _sums(lines, names)


def _sums(lines: list[tuple[str, str]], names: tuple[str, ...]) -> Mapping[str, float]:
    found: dict[str, float] = {}
    for name, text in lines:
        if name not in names:
            continue
        total = found.get(name, 0.0) + _number(text, name)
        if not math.isfinite(total):
            raise RemoteProtocolError("bad metrics", (Fault(name, "must be finite"),))
        found[name] = total
    return found
