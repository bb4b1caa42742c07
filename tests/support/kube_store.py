"""The objects of a fake API server: versions, history, selectors, and what each kind of write may change."""

import copy
import itertools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final, TypeAlias

from hosting.kubernetes import koordinator, resources
from hosting.kubernetes.resources import PODS, Manifest, ResourceType

Key: TypeAlias = tuple[str, str]
"""Namespace and name."""
TYPES: Final = {
    (each.group, each.version, each.plural): each
    for each in (*vars(resources).values(), *vars(koordinator).values())
    if isinstance(each, ResourceType)
}
NEVER_CHANGED: Final = ("uid", "creationTimestamp", "generation", "resourceVersion", "deletionTimestamp")


class RefusalError(Exception):
    """A refusal of the API server, with the text of its Status object. Hooks of tests raise it as well."""

    def __init__(self, status: int, reason: str, message: str = "", retry_after_s: int | None = None) -> None:
        super().__init__(f"{status} {reason}: {message}")
        self.status, self.reason, self.message, self.retry_after_s = status, reason, message, retry_after_s

    def body(self) -> Manifest:
        """The Status object."""
        found: Manifest = {"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": self.status}
        found |= {"reason": self.reason, "message": self.message}
        return found | (
            {"details": {"retryAfterSeconds": self.retry_after_s}} if self.retry_after_s is not None else {}
        )


@dataclass(frozen=True, slots=True)
class Change:
    """A write: the object after it (after a deletion: as it was last), and before it."""

    version: int
    type_: ResourceType
    key: Key
    now: Manifest | None
    before: Manifest | None

    def event(self, namespace: str, selector: "Selector") -> tuple[str, Manifest] | None:
        """The view of the change in a watch with a selector; None if it shows nothing."""
        if namespace not in {"", self.key[0]}:
            return None
        was = self.before is not None and selector.matches(self.before)
        if self.now is not None and selector.matches(self.now):
            return ("MODIFIED" if was else "ADDED", self.now)
        if not was or self.before is None:
            return None
        last = copy.deepcopy(self.now or self.before)
        last["metadata"]["resourceVersion"] = str(self.version)
        return ("DELETED", last)


class Selector:
    """A label selector and a field selector as a query writes them."""

    def __init__(self, labels: str = "", fields: str = "") -> None:
        self._labels = [_label_rule(each) for each in _split(labels)]
        self._fields = [_field_rule(each) for each in _split(fields)]

    def matches(self, manifest: Manifest) -> bool:
        found = manifest["metadata"].get("labels") or {}
        return all(rule(found) for rule in self._labels) and all(rule(manifest) for rule in self._fields)


def _split(text: str) -> list[str]:
    parts: list[str] = []
    for part in text.split(","):
        if parts and parts[-1].count("(") > parts[-1].count(")"):
            parts[-1] += "," + part
        elif part.strip():
            parts.append(part.strip())
    return parts


def _label_rule(text: str) -> Callable[[Mapping[str, str]], bool]:
    for word in (" notin ", " in "):
        key, found, listed = text.partition(word)
        if found:
            values = {each.strip() for each in listed.strip(" ()").split(",")}
            return lambda labels: (labels.get(key.strip()) in values) == (word == " in ")
    if "!=" in text:
        key, _, value = text.partition("!=")
        return lambda labels: labels.get(key) != value
    if "=" in text:
        key, _, value = text.replace("==", "=").partition("=")
        return lambda labels: labels.get(key) == value
    if text.startswith("!"):
        return lambda labels: text[1:] not in labels
    return lambda labels: text in labels


def _field_rule(text: str) -> Callable[[Manifest], bool]:
    path, _, value = text.replace("==", "=").partition("=")
    negated, path = path.endswith("!"), path.rstrip("!")

    def holds(manifest: Manifest) -> bool:
        found: Any = manifest
        for part in path.split("."):
            found = found.get(part) if isinstance(found, dict) else None
        return (str(found if found is not None else "") == value) != negated

    return holds


class KubeStore:
    """All objects. Each write raises the version, which all types share, and is remembered until `compact`."""

    def __init__(self) -> None:
        self.version = 1000
        self.oldest = 1000
        """The oldest version that a watch may begin at."""
        self.history: list[Change] = []
        self.on_change: list[Callable[[Change], None]] = []
        self._objects: dict[tuple[ResourceType, Key], Manifest] = {}
        self._numbers = itertools.count(1)

    def find(self, type_: ResourceType, key: Key) -> Manifest | None:
        """One object; None if there is none."""
        return self._objects.get((type_, key))

    def select(self, type_: ResourceType, namespace: str, selector: Selector) -> list[Manifest]:
        """The objects of a namespace ("" for all), by their names."""
        found = sorted((key, each) for (of, key), each in self._objects.items() if of == type_)
        return [each for key, each in found if namespace in {"", key[0]} and selector.matches(each)]

    def compact(self) -> None:
        """Forget the history: watches that begin before now are answered with 410."""
        self.version += 1
        self.oldest = self.version
        self.history.clear()

    def changes(self, after: int) -> Iterator[Change]:
        return (change for change in self.history if change.version > after)

    # ------------------------------------------------------------ writes

    def create(self, type_: ResourceType, namespace: str, body: Manifest) -> Manifest:
        """A new object. Its UID and version are the store's."""
        manifest, number = copy.deepcopy(body), next(self._numbers)
        metadata = manifest.setdefault("metadata", {})
        if "name" not in metadata:
            metadata["name"] = f"{metadata['generateName']}{number:05}"
        key = (namespace if type_.is_namespaced else "", metadata["name"])
        if self.find(type_, key) is not None:
            raise RefusalError(409, "AlreadyExists", f'{type_.plural} "{key[1]}" already exists')
        created = f"{datetime(2026, 1, 1, tzinfo=UTC) + timedelta(seconds=number):%Y-%m-%dT%H:%M:%SZ}"
        metadata |= {"uid": f"uid-{number}", "generation": 1, "creationTimestamp": created}
        if key[0]:
            metadata["namespace"] = key[0]
        manifest |= {"apiVersion": type_.api_version, "kind": type_.kind}
        return self._write(type_, key, manifest)

    def update(self, type_: ResourceType, key: Key, wanted: Manifest, subresource: str = "") -> Manifest:
        """The object as wanted, as far as a write to that subresource may change it."""
        found = self.find(type_, key)
        if found is None:
            raise RefusalError(404, "NotFound", f'{type_.plural} "{key[1]}" not found')
        _guard(found, wanted.get("metadata") or {})
        result = _taken(found, copy.deepcopy(wanted), subresource)
        result["metadata"] |= {
            name: found["metadata"][name] for name in NEVER_CHANGED if name in found["metadata"]
        }
        if result.get("spec") != found.get("spec"):
            result["metadata"]["generation"] += 1
        if "deletionTimestamp" in result["metadata"] and not result["metadata"].get("finalizers"):
            self._write(type_, key, None)
            return result
        return found if result == found else self._write(type_, key, result)

    def bind(self, key: Key, binding: Manifest) -> None:
        """Give a pod its node, and the annotations of the binding, as the subresource `binding` does."""
        found = self.find(PODS, key)
        if found is None:
            raise RefusalError(404, "NotFound", f'pods "{key[1]}" not found')
        metadata = binding["metadata"]
        _guard(found, {"uid": metadata.get("uid")})
        spec, has_gates = found["spec"], found["spec"].get("schedulingGates")
        if "deletionTimestamp" in found["metadata"] or has_gates or spec.get("nodeName"):
            why = f'already assigned to node "{spec["nodeName"]}"' if spec.get("nodeName") else "not ready"
            raise RefusalError(409, "Conflict", f"pod {key[1]} is {why}")
        bound = copy.deepcopy(found)
        bound["spec"]["nodeName"] = binding["target"]["name"]
        bound["metadata"].setdefault("annotations", {}).update(metadata.get("annotations") or {})
        conditions = bound.setdefault("status", {}).setdefault("conditions", [])
        conditions[:] = [each for each in conditions if each["type"] != "PodScheduled"]
        conditions.append({"type": "PodScheduled", "status": "True"})
        self._write(PODS, key, bound)

    def delete(
        self, type_: ResourceType, key: Key, preconditions: Mapping[str, str] | None = None
    ) -> Manifest:
        """Delete an object, or mark it if it has finalizers."""
        found = self.find(type_, key)
        if found is None:
            raise RefusalError(404, "NotFound", f'{type_.plural} "{key[1]}" not found')
        _guard(found, preconditions or {})
        if found["metadata"].get("finalizers"):
            marked = copy.deepcopy(found)
            marked["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
            return self._write(type_, key, marked)
        self._write(type_, key, None)
        return found

    def _write(self, type_: ResourceType, key: Key, manifest: Manifest | None) -> Manifest:
        self.version += 1
        before = self._objects.pop((type_, key), None)
        if manifest is not None:
            manifest["metadata"]["resourceVersion"] = str(self.version)
            self._objects[type_, key] = manifest
        change = Change(self.version, type_, key, manifest, before)
        self.history.append(change)
        for listener in list(self.on_change):
            listener(change)
        return manifest or before or {}


def _guard(found: Manifest, wanted: Mapping[str, Any]) -> None:
    for name in ("resourceVersion", "uid"):
        if wanted.get(name) and wanted[name] != found["metadata"][name]:
            raise RefusalError(409, "Conflict", f"the object has been modified: {name} is another")


def _taken(found: Manifest, wanted: Manifest, subresource: str) -> Manifest:
    result = copy.deepcopy(found)
    match subresource:
        case "":
            kept = {name: found[name] for name in ("status", "apiVersion", "kind") if name in found}
            wanted.pop("status", None)
            return wanted | kept
        case "status":
            result["status"] = wanted.get("status") or {}
            result["metadata"] |= {
                name: wanted["metadata"][name]
                for name in ("labels", "annotations")
                if name in wanted["metadata"]
            }
        case "resize":
            for place in ("containers", "initContainers"):
                sizes = {each["name"]: each.get("resources") for each in wanted["spec"].get(place) or ()}
                for container in result["spec"].get(place) or ():
                    container["resources"] = sizes.get(container["name"]) or {}
        case _:
            raise RefusalError(404, "NotFound", f"no subresource {subresource}")
    return result
