"""The three kinds of patches as an API server applies them: merge, strategic merge, and JSON patch."""

import copy
from typing import Any, Final

LISTS_BY_KEY: Final = {
    "containers": "name",
    "initContainers": "name",
    "ephemeralContainers": "name",
    "env": "name",
    "volumes": "name",
    "conditions": "type",
    "containerStatuses": "name",
}
"""Lists that a strategic merge patch merges by an entry's key; all others are replaced."""


class PatchError(Exception):
    """A patch that cannot be applied: the API server answers 422."""


def patched(manifest: dict[str, Any], patch: Any, content_type: str) -> dict[str, Any]:
    """The object after the patch; the one before stays as it is."""
    result = copy.deepcopy(manifest)
    if content_type == "application/json-patch+json":
        for step in patch:
            result = _stepped(result, step)
        return result
    is_strategic = content_type == "application/strategic-merge-patch+json"
    merged: dict[str, Any] = _merged(result, copy.deepcopy(patch), is_strategic)
    return merged


def _merged(found: Any, patch: Any, is_strategic: bool) -> Any:
    if not isinstance(patch, dict):
        return patch
    result = dict(found) if isinstance(found, dict) else {}
    for key, value in patch.items():
        if value is None:
            result.pop(key, None)
        elif is_strategic and isinstance(value, list) and key in LISTS_BY_KEY:
            result[key] = _merged_list(result.get(key) or [], value, LISTS_BY_KEY[key])
        else:
            result[key] = _merged(result.get(key), value, is_strategic)
    return result


def _merged_list(found: list[Any], patch: list[Any], key: str) -> list[Any]:
    result = list(found)
    for entry in patch:
        if key not in entry:
            raise PatchError(f"an entry without its merge key {key!r}")
        places = [index for index, each in enumerate(result) if each.get(key) == entry[key]]
        if entry.get("$patch") == "delete":
            result = [each for each in result if each.get(key) != entry[key]]
        elif places:
            result[places[0]] = _merged(result[places[0]], entry, is_strategic=True)
        else:
            result.append(entry)
    return result


def _stepped(manifest: dict[str, Any], step: dict[str, Any]) -> dict[str, Any]:
    tokens = [each.replace("~1", "/").replace("~0", "~") for each in step["path"].split("/")[1:]]
    parent: Any = manifest
    try:
        for token in tokens[:-1]:
            parent = parent[_place(parent, token)]
        place = _place(parent, tokens[-1])
        if step["op"] == "add" and isinstance(parent, list):
            parent.insert(place if isinstance(place, int) else len(parent), step["value"])
        elif step["op"] == "add":
            parent[place] = step["value"]
        else:
            _changed(parent, place, step)
    except (KeyError, IndexError, TypeError):
        raise PatchError(f"there is nothing at {step['path']}") from None
    return manifest


def _place(parent: Any, token: str) -> Any:
    return int(token) if isinstance(parent, list) and token != "-" else token


def _changed(parent: Any, place: Any, step: dict[str, Any]) -> None:
    found = parent[place]  # every other step needs something there
    match step["op"]:
        case "test":
            if found != step["value"]:
                raise PatchError(f"testing value {step['path']} failed")
        case "replace":
            parent[place] = step["value"]
        case "remove":
            del parent[place]
        case other:
            raise PatchError(f"unknown step {other!r}")
