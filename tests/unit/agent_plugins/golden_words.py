"""Results of recorded steps in short words, so that what is repaired can be written down, and read."""

import re
from typing import Any

from tests.unit.agent_plugins.recorded_plugins import Case

_TRANSPORT = re.compile(r"code = (Unavailable|Unimplemented) desc = (?!later$).*$")

ERRORS = ("desire", "exec")
"""In these steps, `error` is a result."""


def told(step: Case) -> list[str]:
    """The results of a step: what the pass asked for, then the events at each path, then the worlds, as far as the step has them."""
    lines = [f"{call['call']} {_path(call['socket'])}: {call['result']}" for call in step.get("calls", ())]
    for path, events in sorted(step.get("trace", {}).items()):
        lines.append(f"{_path(path)}: " + ", ".join(_event(event) for event in events))
    results = (
        "blocked_in",
        "result",
        "waits_s",
        "durations_in_error",
        *(("error",) if step["do"] in ERRORS else ()),
    )
    lines += [f"{key} {step[key]}" for key in results if step.get(key) not in (None, "")]
    for world in ("actual", "desired"):
        if world in step:
            entries = sorted(_entry(entry) for entry in step[world])
            lines.append(f"{world}: " + (", ".join(entries) or "nothing"))
    return lines


def _path(path: str) -> str:
    return path.removeprefix("$DIR/")


def _event(event: dict[str, Any]) -> str:
    match event["event"]:
        case "begin":
            return f"begin {event['operation']}"
        case "end":
            failed = f" failed ({_text(event['error'])})" if event.get("error") is not None else ""
            return f"end {event['operation']}{failed}" + (" panicked" if event.get("panicked") else "")
        case "get_info":
            return "get_info"
        case "notify":
            return f"notify {event['plugin_registered']} {event['error']!r}"
        case "actual_add":
            failed = f" failed ({event['error']})" if event.get("error") else ""
            return f"actual_add {_entry(event)}{failed}"
        case "actual_remove":
            return "actual_remove"
        case called:
            assert event.get("plugin_client_timeout") is None, event
            versions = " ".join(["", *event["versions"]]) if "versions" in event else ""
            return f"{event['handler']}.{called} {event['name']} {_path(event['endpoint'])}{versions}"


def _entry(entry: dict[str, Any]) -> str:
    path = f"{_path(entry['socket'])}=" if "socket" in entry else ""
    known = [entry[key] for key in ("handler", "name") if key in entry]
    endpoint = [_path(entry["endpoint"])] if "endpoint" in entry else []
    return path + " ".join([entry["uuid"], *known, *endpoint])


def _text(error: str) -> str:
    """An error without what the gRPC libraries themselves say of it."""
    return _TRANSPORT.sub(r"code = \1 desc = $TRANSPORT", error)
