"""The common parts of all objects of the API, and the way that amounts and selectors are written there."""

import functools
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Final, Literal, TypeAlias

from hosting.kubernetes.resources import Manifest, ResourceType
from protocol import quantities

ResourceName: TypeAlias = Literal["cpu", "memory"]
RESOURCE_NAMES: Final[tuple[ResourceName, ResourceName]] = ("cpu", "memory")


def namespace(manifest: Manifest) -> str:
    """Its namespace; empty for an object of the whole cluster."""
    return str(manifest["metadata"].get("namespace", ""))


def name(manifest: Manifest) -> str:
    return str(manifest["metadata"]["name"])


def uid(manifest: Manifest) -> str:
    """Its UID: another object under the same name has another one."""
    return str(manifest["metadata"]["uid"])


def version(manifest: Manifest) -> str:
    """Its resourceVersion: to be compared for equality."""
    return str(manifest["metadata"].get("resourceVersion", ""))


def created(manifest: Manifest) -> str:
    """When it was made, in seconds; texts in the order of time. Empty if it does not tell."""
    return str(manifest["metadata"].get("creationTimestamp") or "")


def labels(manifest: Manifest) -> Mapping[str, str]:
    """Its labels; empty if it has none."""
    return manifest["metadata"].get("labels") or {}


def annotations(manifest: Manifest) -> Mapping[str, str]:
    """Its annotations; empty if it has none."""
    return manifest["metadata"].get("annotations") or {}


def owner(manifest: Manifest, type_: ResourceType) -> str | None:
    """The name of its owner of a type, in any version of that type; None if it has none."""
    for each in manifest["metadata"].get("ownerReferences") or ():
        group = str(each.get("apiVersion")).rpartition("/")[0]
        if (group, each.get("kind")) == (type_.group, type_.kind):
            return str(each.get("name"))
    return None


def condition(manifest: Manifest, type_: str) -> Manifest | None:
    """The condition of that type in its status; None if there is none."""
    found = (manifest.get("status") or {}).get("conditions") or ()
    return next((each for each in found if each.get("type") == type_), None)


def time_written(moment: datetime) -> str:
    """A moment as most fields have it (Time of meta/v1): in seconds."""
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def micro_time_written(moment: datetime) -> str:
    """A moment as Leases and Events have it (MicroTime of meta/v1)."""
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def amount(written: object, resource: ResourceName) -> int:
    """A quantity as whole milli-CPU or bytes, rounded up. Raises `QuantityError`."""
    return _amount(str(written), resource)


@functools.lru_cache(maxsize=4096)
def _amount(written: str, resource: ResourceName) -> int:
    quantity = quantities.parse(written)
    return quantity.milli_value() if resource == "cpu" else quantity.value()


def amounts(written: object) -> dict[ResourceName, int]:
    """The CPU and memory of a `requests` or `limits`; resources that it leaves open are left out. Raises `QuantityError`."""
    found: Mapping[str, Any] = written if isinstance(written, dict | Mapping) else {}
    return {each: amount(found[each], each) for each in RESOURCE_NAMES if each in found}


def selects(selector: Mapping[str, Any], found: Mapping[str, str]) -> bool:
    """Whether a label selector (`matchLabels`, `matchExpressions`) matches these labels; an empty selector matches all.

    An operator that is not known matches nothing.
    """
    wanted = selector.get("matchLabels") or {}
    if any(found.get(key) != value for key, value in wanted.items()):
        return False
    return all(expression_holds(expression, found) for expression in selector.get("matchExpressions") or ())


def expression_holds(expression: Mapping[str, Any], found: Mapping[str, str]) -> bool:
    """Whether an expression of a label selector holds for these labels. An operator that is not known matches nothing."""
    value, values = found.get(str(expression.get("key"))), expression.get("values") or ()
    match expression.get("operator"):
        case "In":
            return value is not None and value in values
        case "NotIn":
            return value is None or value not in values
        case "Exists":
            return value is not None
        case "DoesNotExist":
            return value is None
        case _:
            return False
