"""Structured log lines on standard error: one event a line, constant message text, fixed keys.

Keys used everywhere: `vm`, `pod`, `node`, `action`, `reason`, `seq`, `error`. Levels: info for decisions, warning for
"wanted X, could not, because", error for our own faults. docs/reference/logs.md lists them, and the keys of decisions.
"""

import functools
import json
import logging
import os
import sys
import time
from typing import Any, Final, Literal, TextIO, TypeAlias, cast

import msgspec
import structlog

from protocol.texts import clean

Logger: TypeAlias = structlog.typing.FilteringBoundLogger
Style = Literal["auto", "json", "console"]
# Without local variables: they hold request bodies, and other content that a line must not show.
_TRACEBACKS = structlog.processors.ExceptionRenderer(
    structlog.tracebacks.ExceptionDictTransformer(show_locals=False)
)
_STDERR: Final = 2
LEVELS = ("debug", "info", "warning", "error")
MAX_SHOWN: Final = 4096
"""Characters of one value in a line for people."""
FORMATS: Final = ("console", "json")


class _Stderr:
    """Standard error for logs: a line that cannot be written is counted, and never stops the code that logs it."""

    lost = 0

    def write(self, text: str) -> int:
        try:
            return sys.stderr.write(text)
        except (OSError, ValueError):  # a full disk, a reader that has gone, a closed stream
            _Stderr.lost += 1
            return len(text)

    def flush(self) -> None:
        """Nothing: standard error passes on whole lines by itself."""


_ENCODER = msgspec.json.Encoder(enc_hook=repr)


def _json(event: dict[str, Any], **_: Any) -> str:
    """A line as JSON in ASCII, with any values: a value that cannot be encoded must not stop the code that logs it."""
    try:
        line = _ENCODER.encode(event).decode()
        return line if line.isascii() else json.dumps(json.loads(line))
    except Exception:  # noqa: BLE001 - the values may be anything: unpaired surrogates, loops, a `repr` that fails
        return json.dumps({str(key): _shown(value) for key, value in event.items()})


def _shown(value: object) -> object:
    """A value that JSON can carry; a value that cannot be shown is named by its type."""
    if isinstance(value, str):
        return value
    try:
        return json.loads(_ENCODER.encode(value))
    except Exception:  # noqa: BLE001 - as above
        try:
            return repr(value)
        except Exception:  # noqa: BLE001 - as above
            return f"({type(value).__name__}, which cannot be shown)"


@functools.lru_cache(maxsize=1)
def _second(unix_s: int) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(unix_s))


def _stamped(_: object, level: str, event: structlog.typing.EventDict) -> structlog.typing.EventDict:
    """A line with its level and its time, in UTC and to the microsecond. structlog's own two cost a third of a line."""
    now_ns = time.time_ns()
    event["level"] = "warning" if level == "warn" else "error" if level == "exception" else level
    event["timestamp"] = f"{_second(now_ns // 10**9)}.{now_ns // 1000 % 10**6:06}Z"
    return event


def _cleaned(_: object, __: str, event: structlog.typing.EventDict) -> structlog.typing.EventDict:
    """A line for a terminal: JSON escapes the characters that a terminal would obey, and here they are taken out. A traceback keeps its lines."""
    traceback = event.pop("exception", None)
    found = {
        key: clean(value, MAX_SHOWN) if isinstance(value, str) else value for key, value in event.items()
    }
    if isinstance(traceback, str):
        found["exception"] = "\n".join(map(_cleaned_line, traceback.splitlines()))
    return found


def _cleaned_line(line: str) -> str:
    return " " * (len(line) - len(line.lstrip(" "))) + clean(line, MAX_SHOWN)


class _Libraries(logging.Handler):
    """Turns the log records of libraries into lines like ours, tracebacks included; `component` is the library's logger."""

    def emit(self, record: logging.LogRecord) -> None:
        """Write one record. A message that does not fit its arguments is shown as it is."""
        try:
            message = record.getMessage()
        except Exception:  # noqa: BLE001 - the values are a library's: formatting may raise anything
            message = str(record.msg)
        fault = {"exc_info": record.exc_info} if record.exc_info and record.exc_info[1] else {}
        level = min(
            max(record.levelno // 10 * 10, logging.DEBUG), logging.CRITICAL
        )  # libraries have levels in between
        logger(record.name).log(level, message, **fault)


def lost_lines() -> int:
    """How many lines could not be written."""
    return _Stderr.lost


def _open_stderr() -> None:
    """Open /dev/null as standard error, under its number if that is still free."""
    null = os.open(os.devnull, os.O_WRONLY)
    try:
        os.fstat(_STDERR)
    except OSError:
        os.dup2(null, _STDERR)
        os.close(null)
        null = _STDERR
    sys.stderr = open(null, "w", encoding="utf-8", closefd=False)  # noqa: SIM115 - for the life of the process


def configure(level: str = "info", style: Style = "auto") -> None:
    """Set up logging of this process; `auto` is for people on a terminal and JSON elsewhere.

    If standard error is closed, /dev/null takes its place: no file or connection may get its number.
    """
    if sys.stderr is None:
        _open_stderr()
    for_people = style == "console" or (style == "auto" and sys.stderr.isatty())
    renderer: structlog.typing.Processor = (
        structlog.dev.ConsoleRenderer(
            colors=sys.stderr.isatty(), exception_formatter=structlog.dev.plain_traceback
        )
        if for_people
        else structlog.processors.JSONRenderer(serializer=_json)
    )
    own: tuple[structlog.typing.Processor, ...] = (
        (structlog.processors.format_exc_info, _cleaned) if for_people else (_TRACEBACKS,)
    )
    structlog.configure(
        processors=[
            _stamped,
            *own,
            renderer,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.getLevelName(level.upper())),
        logger_factory=structlog.WriteLoggerFactory(cast("TextIO", _Stderr())),
        cache_logger_on_first_use=True,
    )
    # Libraries log through the standard module: their warnings are worth a line, their chatter is not.
    logging.basicConfig(level=logging.WARNING, handlers=[_Libraries()], force=True)
    logging.captureWarnings(True)


def logger(component: str) -> Logger:
    """The logger of one long-lived component; its name is the key `component` of every line."""
    bound: Logger = structlog.get_logger().bind(component=component)
    return bound
