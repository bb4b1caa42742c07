"""Labels and annotations of our group that have no meaning: mostly misspelt ones, which would go unnoticed.

An unknown annotation is a fault, whatever its name. An unknown label is one only where it is close to a known name, because labels of
our group may be those of somebody's plugin.
"""

import difflib
from collections.abc import Collection, Iterator
from typing import Final

from hosting.kubernetes import names, objects
from hosting.kubernetes.annotations import short
from hosting.kubernetes.resources import Manifest

_PREFIX: Final = f"{names.GROUP}/"
_MAX_TOLD: Final = 5


def misspelt(manifest: Manifest) -> tuple[str, ...]:
    """The faults, as texts for a person."""
    found = (*_annotations(manifest), *_labels(manifest))
    more = len(found) - _MAX_TOLD
    return (
        found
        if more <= 0
        else (*found[:_MAX_TOLD], f"and {more} more names of {_PREFIX} that have no meaning")
    )


def _annotations(manifest: Manifest) -> Iterator[str]:
    for name in _unknown(objects.annotations(manifest), names.ANNOTATIONS):
        if name in names.LABELS:
            yield f"{name} has no effect as an annotation: it is a label"
        else:
            hint = _closest(name, names.ANNOTATIONS | names.LABELS)
            yield f"{short(name)}: there is no such annotation{f', perhaps {hint} is meant' if hint else ''}"


def _labels(manifest: Manifest) -> Iterator[str]:
    for name in _unknown(objects.labels(manifest), names.LABELS):
        if name in names.ANNOTATIONS:
            yield f"{name} has no effect as a label: it is an annotation"
        elif hint := _closest(name, names.LABELS):
            yield f"{short(name)}: there is no such label, perhaps {hint} is meant"


def _unknown(found: Collection[str], known: Collection[str]) -> Iterator[str]:
    return (name for name in sorted(found) if name.startswith(_PREFIX) and name not in known)


def _closest(name: str, known: Collection[str]) -> str:
    """The known name that is most like it; empty where none is."""
    ours = {each.removeprefix(_PREFIX): each for each in sorted(known)}
    found = difflib.get_close_matches(name.removeprefix(_PREFIX), ours, 1, 0.7)
    return ours[found[0]] if found else ""
