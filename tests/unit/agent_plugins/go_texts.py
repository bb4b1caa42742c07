"""Quoted strings, times and structures as the published program writes them into its messages: the recordings have them."""

from agent.node.plugins.core.plugin_info import PluginInfo
from agent.node.plugins.core.sockets import RETRY, PluginSocket, Refusal

_NANOSECONDS = 1_000_000_000
_DAY_S = 86_400

_ESCAPES = {
    "\a": "\\a",
    "\b": "\\b",
    "\f": "\\f",
    "\n": "\\n",
    "\r": "\\r",
    "\t": "\\t",
    "\v": "\\v",
    '"': '\\"',
    "\\": "\\\\",
}


def quoted(text: str) -> str:
    """The text in double quotes as Go's `%q` writes it. A byte of a path that is not UTF-8 (a surrogate here) is `\\xNN`."""
    return (
        '"'
        + "".join(_ESCAPES.get(char) or (char if char.isprintable() else _escaped(char)) for char in text)
        + '"'
    )


def _escaped(char: str) -> str:
    code = ord(char)
    if code < 0x20 or code == 0x7F:
        return f"\\x{code:02x}"
    if 0xDC80 <= code <= 0xDCFF:
        return f"\\x{code - 0xDC00:02x}"
    return f"\\u{code:04x}" if code <= 0xFFFF else f"\\U{code:08x}"


def instant(nanoseconds: int | None) -> str:
    """A time in nanoseconds since 1970 as Go prints it, in UTC; None is Go's zero time."""
    if nanoseconds is None:
        return "0001-01-01 00:00:00 +0000 UTC"
    seconds, fraction = divmod(nanoseconds, _NANOSECONDS)
    days, of_day = divmod(seconds, _DAY_S)
    year, month, day = _date(days)
    clock = f"{of_day // 3600:02}:{of_day // 60 % 60:02}:{of_day % 60:02}"
    tail = f".{fraction:09}".rstrip("0") if fraction else ""
    return f"{year:04}-{month:02}-{day:02} {clock}{tail} +0000 UTC"


def _date(days: int) -> tuple[int, int, int]:
    """Year, month and day of the day that many days after 1970-01-01; the year begins in March, so leap days come last."""
    era, day_of_era = divmod(days + 719_468, 146_097)
    year_of_era = (day_of_era - day_of_era // 1_460 + day_of_era // 36_524 - day_of_era // 146_096) // 365
    day_of_year = day_of_era - (365 * year_of_era + year_of_era // 4 - year_of_era // 100)
    month_from_march = (5 * day_of_year + 2) // 153
    day = day_of_year - (153 * month_from_march + 2) // 5 + 1
    month = month_from_march + 3 if month_from_march < 10 else month_from_march - 9
    return era * 400 + year_of_era + (month <= 2), month, day


def duration(seconds: float) -> str:
    """A duration of half a second or more as Go prints it, such as `500ms` or `1m4s`."""
    if seconds < 1:
        return f"{seconds * 1000:g}ms"
    minutes, rest = divmod(seconds, 60)
    return f"{minutes:g}m{rest:g}s" if minutes else f"{rest:g}s"


def message(text: str, plugin: PluginInfo) -> str:
    """A message of ours about a plugin, with its path and its details as Go prints a string and a structure."""
    handler = "<nil>" if plugin.handler is None else str(plugin.handler)
    fields = (
        plugin.socket_path,
        instant(plugin.timestamp),
        plugin.uuid,
        handler,
        plugin.name,
        plugin.endpoint,
    )
    structure = "&{" + " ".join(fields) + "}"
    return text.replace(str(plugin), structure).replace(repr(plugin.socket_path), quoted(plugin.socket_path))


def refused(socket: PluginSocket, refusal: Refusal) -> str:
    """The published message of an operation that was not started. The clock of the test began in 1970."""
    begin = f"Failed to create operation with name {quoted(socket.path)}. An operation with that name "
    if refusal is Refusal.ALREADY_EXECUTING:
        return f"{begin}is already executing."
    wait_s = RETRY.delay_s(socket.failures, 0.0)
    failed, until = (instant(round(at_s * 1e9)) for at_s in (socket.failed_at_s, socket.failed_at_s + wait_s))
    return (
        f"{begin}failed at {failed}. No retries permitted until {until} ({duration(wait_s)}). "
        f"Last error: {quoted(socket.error)}."
    )
