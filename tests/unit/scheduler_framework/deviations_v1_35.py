"""The deviations of ours from the recordings of version 1.35, each with its reason. Each entry turns the recording into
our behaviour."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

Outcome = dict[str, Any]


@dataclass(frozen=True)
class Change:
    """Why ours differs in one case, and what ours does there: a function of the recording's `expect`."""

    why: str
    ours: Callable[[Outcome], Outcome]


def _formatted(text: str) -> Change:
    """An answer that has no meaning at its point is a failure in both; only the texts differ."""
    why = (
        "the recorded text is an accident: a null error was formatted; ours says which answer was meaningless"
    )
    return Change(why, lambda expect: json.loads(json.dumps(expect).replace("%!w(<nil>)", text)))


def _failed_post_filter(text: str) -> Change:
    why = "the original dereferences a null status; ours fails as every other point does"
    status = {"as_error": text, "code": "Error", "message": text, "plugin": "p1", "reasons": [text]}
    return Change(why, lambda expect: {"calls": expect["calls"], "result": None, "status": status})


def _ended_by_cancelling(expect: Outcome) -> Outcome:
    first, *rest = expect["results"]
    return {**expect, "results": [first, *({"state": "cancelled"} if each else None for each in rest)]}


_SKIP: Final = _formatted("answered Skip, which has no meaning here")
_WAIT: Final = _formatted("answered Wait, which has no meaning here: hold")

DEVIATIONS: Final = {
    "M-status_null-001": Change(
        "an exception is never null in ours, so there is no status to be made of a null one",
        lambda expect: {key: value for key, value in expect.items() if key != "as_status_of_null_is_null"},
    ),
    "M-status_null-002": Change(
        "a code that nobody knows counts as an error and can be shown; the original ends the process",
        lambda _: {"code": "107"},
    ),
    "M-new_framework-022": Change(
        "args that no plugin would get are most likely a misspelt name, so they are a fault",
        lambda _: {"error": 'config for plugin "zzz", which is not enabled'},
    ),
    "M-prefilter-034": _WAIT,
    "M-filter-008": _SKIP,
    "M-filter-009": _WAIT,
    "M-postfilter-015": _failed_post_filter("answered Skip, which has no meaning here"),
    "M-postfilter-016": _failed_post_filter("answered Wait, which has no meaning here: hold"),
    "M-prescore-009": _WAIT,
    "M-score-029": _SKIP,
    "M-reserve-010": _SKIP,
    "M-reserve-011": _SKIP,
    "M-reserve-012": _WAIT,
    "M-prebind-010": _SKIP,
    "M-prebind-012": _WAIT,
    "M-bind-011": _WAIT,
    "M-permit-008": _SKIP,
    "M-unreserve-004": Change(
        "a panic ended the process there; ours goes on, and who is not called keeps for ever what the pod was given",
        lambda expect: {**expect, "calls": [*expect["calls"], "p1.unreserve"]},
    ),
    "M-permit-048": Change(
        "whoever cancels the run that waits ends the wait: the original ignores that, and the pod waits on for nobody",
        _ended_by_cancelling,
    ),
}
