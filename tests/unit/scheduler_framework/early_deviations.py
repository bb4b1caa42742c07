"""The deviations of ours from the recordings of the early package: our behaviour, in the words of the recording, and the
reason."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final


@dataclass(frozen=True)
class Deviation:
    """Our behaviour in one case, as a recording's `expect` would say it, and the reason."""

    why: str
    ours: Mapping[str, Any]


_EVERY_NAME: Final = "published defect: names that are enabled at some points were never checked"
_NAMES_FIRST: Final = "published defect: factories ran before the names were checked"
_NO_FACTORY: Final = "a factory that cannot be called is refused at once, not when a framework is built"
_OWN_ARGS: Final = "published defect: each plugin with an entry got the args of the last entry"
_NO_ERROR: Final = "the newest era holds: Wait and Skip (5, which nobody knew then) are no errors"
_NO_CALLS: Final[Mapping[str, list[str]]] = {
    point: [] for point in ("permit", "postbind", "prebind", "reserve", "unreserve")
}
_IMMUTABLE: Final = "a snapshot is an immutable value; a new cycle shows a new one"


def _refused(why: str, error: str, *run: str) -> Deviation:
    """A framework that is not built."""
    return Deviation(why, {"error": error, "factories_run_sorted": [*run]})


def _own_args(seen: Mapping[str, object]) -> Deviation:
    return Deviation(
        _OWN_ARGS,
        {
            "error": None,
            "factories_run_sorted": [*seen],
            "config_seen_by_factories": seen,
            "calls": {**_NO_CALLS, "reserve": [f"{name}.reserve" for name in seen]},
            "has_queue_sort_function": False,
        },
    )


def _no_error(code: int, *messages: str) -> list[Deviation]:
    return [
        Deviation(_NO_ERROR, {"code": code, "message": message, "is_success": False, "as_error": None})
        for message in messages
    ]


_TEXTS: Final = ("x", "node(s) didn't fit", "100% of %s and %d", "line 1\nline 2", " spaces ", "grün ☂")
_WAIT: Final = zip((23, 24, 25, 28), _no_error(3, *_TEXTS[:3], _TEXTS[5]), strict=True)
_SKIP: Final = zip(range(37, 43), _no_error(5, *_TEXTS), strict=True)

DEVIATIONS: Final[Mapping[str, Deviation]] = {
    "A-registry-019": Deviation(
        _NO_FACTORY,
        {
            "results": ["scheduling plugin 'a': the factory must be callable, not None", None],
            "content": {"a": "f1"},
        },
    ),
    "A-new_framework_configured-018": _refused(_EVERY_NAME, "prefilter plugin zzz does not exist"),
    "A-new_framework_configured-020": _refused(_EVERY_NAME, "postfilter plugin zzz does not exist"),
    "A-new_framework_configured-021": _refused(_EVERY_NAME, "score plugin zzz does not exist"),
    "A-new_framework_configured-023": _refused(_EVERY_NAME, "bind plugin zzz does not exist"),
    "A-new_framework_configured-024": _refused(_EVERY_NAME, "plugin a does not extend filter plugin", "a"),
    "A-new_framework_configured-052": _refused(_EVERY_NAME, "plugin a does not extend filter plugin", "a"),
    "A-new_framework_configured-040": _refused(_NAMES_FIRST, "reserve plugin zzz does not exist"),
    "A-new_framework_configured-045": _refused(_NAMES_FIRST, "queue sort plugin zzz does not exist"),
    "A-new_framework_configured-050": _refused(_NAMES_FIRST, "reserve plugin zzz does not exist"),
    "A-new_framework_configured-054": Deviation(_NO_FACTORY, {"panic": "the text is free"}),
    "A-new_framework_configured-058": Deviation(
        "published defect: what was disabled was called all the same",
        {
            "error": None,
            "factories_run_sorted": ["b"],
            "config_seen_by_factories": {"b": None},
            "calls": {**_NO_CALLS, "reserve": ["b.reserve"]},
            "has_queue_sort_function": False,
        },
    ),
    "A-new_framework_configured-067": _own_args({"a": "args-a", "b": None}),
    "A-new_framework_configured-068": _own_args({"a": "args-a", "b": "args-b", "c": None}),
    **{f"B-status-{number:03}": deviation for number, deviation in (*_WAIT, *_SKIP)},
    "B-constants-001": Deviation(
        "a code is written by its name: numbers differ between the eras",
        {
            "Success": 0,
            "Error": 1,
            "Unschedulable": 2,
            "Wait": 3,
            "NotFound": "not found",
            "default_code_text": "Unschedulable",
        },
    ),
    "C-context-020": Deviation("there is no half-made context that cannot be written", {"results": [None]}),
    "D-permit_wait-071": Deviation(
        "published defect: of two pods with one UID, the end of the first took the second out of the map",
        {
            "calls": ["p1.permit", "p1.permit"],
            "results": [
                *(None, None, None, "pod-2", None),
                {
                    "state": "returned",
                    "status": {
                        "code": 2,
                        "message": "pod pod-1 rejected due to timeout after waiting 10s at permit",
                    },
                    "after_ns": 10_000_000_000,
                },
                *("pod-2", True),
                {"state": "returned", "status": None, "after_ns": 6_000_000_000},
                None,
                {"state": "returned", "status": None, "after_ns": 6_000_000_000},
            ],
        },
    ),
    "D-permit_wait-076": Deviation(
        "published defect: a signal that came before the wait began was lost",
        {
            "calls": ["p1.permit"],
            "results": [
                *(None, None),
                [{"in_the_map": "pod-1", "delivered": True}],
                *({"state": "returned", "status": None, "after_ns": 0}, None),
                {"state": "returned", "status": None, "after_ns": 0},
            ],
        },
    ),
    "E-snapshot-007": Deviation(
        _IMMUTABLE,
        {"nodes": ["n1: 0 pods", "n2: 0 pods"], "generation_above_0": True, "same_object": False},
    ),
    "E-snapshot-014": Deviation(_IMMUTABLE, {"nodes": ["n1: 0 pods"]}),
    "E-snapshot-015": Deviation(_IMMUTABLE, {"nodes": ["n1: 0 pods"]}),
}
