"""The check that a document is OpenAPI 3.1."""

from collections.abc import Iterator, Mapping
from typing import Any

import jsonschema_rs
from schemathesis.specs.openapi.definitions import OPENAPI_31

_META = jsonschema_rs.Draft202012Validator(OPENAPI_31)


def document_faults(document: Mapping[str, Any]) -> list[str]:
    """The faults of a document: against the published schema of OpenAPI 3.1, in its own schemas, and references to nothing."""
    faults = [
        f"{'/'.join(map(str, each.instance_path))}: {each.message}" for each in _META.iter_errors(document)
    ]
    names = [operation["operationId"] for path in document["paths"].values() for operation in path.values()]
    faults += [f"{name}: names two operations" for name in {name for name in names if names.count(name) > 1}]
    for place, schema in _schemas(document, ""):
        try:
            jsonschema_rs.meta.validate({**schema, "$schema": "https://json-schema.org/draft/2020-12/schema"})
        except jsonschema_rs.ValidationError as error:
            faults.append(f"{place}: {error.message}")
    for place, reference in _references(document, ""):
        if not _leads_somewhere(document, reference):
            faults.append(f"{place}: there is no {reference}")
    return faults


def _schemas(node: object, place: str) -> Iterator[tuple[str, dict[str, Any]]]:
    if isinstance(node, dict):
        for key, value in node.items():
            at = f"{place}/{key}"
            if key == "schema":
                yield at, value
            elif place == "/components" and key == "schemas":
                yield from ((f"{at}/{name}", schema) for name, schema in value.items())
            else:
                yield from _schemas(value, at)
    elif isinstance(node, list):
        for number, value in enumerate(node):
            yield from _schemas(value, f"{place}/{number}")


def _references(node: object, place: str) -> Iterator[tuple[str, str]]:
    if isinstance(node, dict):
        for key, value in node.items():
            if key == "$ref":
                yield place, value
            else:
                yield from _references(value, f"{place}/{key}")
    elif isinstance(node, list):
        for number, value in enumerate(node):
            yield from _references(value, f"{place}/{number}")


def _leads_somewhere(document: Mapping[str, Any], reference: str) -> bool:
    node: Any = document
    for part in reference.removeprefix("#/").split("/"):
        if part not in node:
            return False
        node = node[part]
    return reference.startswith("#/")
