"""The OpenAPI 3.1 document of a server, made from its routes and the models that they name, and the route that serves it.

Structs of msgspec and models of pydantic say their own JSON Schema; nothing is written twice.
"""

import re
from collections.abc import Iterable, Mapping
from http import HTTPStatus
from types import UnionType
from typing import Any, Final, get_args

import msgspec
from pydantic import BaseModel
from pydantic.json_schema import GenerateJsonSchema, models_json_schema

from hosting import problems
from hosting.access import AccessScope
from hosting.problems import NO_CONTENT, DocumentedAnswer, DocumentedParameter, Operation
from hosting.server import Reply, Request, Route
from hosting.threads import in_own_thread

PATH: Final = "/v1/openapi.json"
VERSION: Final = "3.1.0"
METHODS: Final = ("GET", "PUT", "POST", "DELETE", "PATCH")
EVERYWHERE: Final = {
    400: "The request breaks a rule; `faults` names each place.",
    404: "There is nothing at this path, or nothing of this name.",
    405: "The path does not take this method; `Allow` names those that it takes.",
    413: "The body is longer than this path reads.",
    500: "A fault of the program, which its log tells more of.",
}
"""Problems that any route may answer with."""
_REF: Final = "#/components/schemas/"
_NAME: Final = {"type": "string", "minLength": 1, "maxLength": 253}
"""The schema of a parameter of the path that is not described."""


def route(
    title: str,
    version: str,
    routes: Iterable[Route],
    path: str = PATH,
    *,
    shared: Mapping[int, str] = {},
) -> Route:
    """The route that serves the document of `routes` at `path`, of which it is one. The document is made when it is first asked for.

    Routes that answer every method (`*`) are not described. `shared` are problems by status, for the routes that name them. Raises
    `ValueError` for another route without `about`.
    """
    served = tuple(routes)
    faults = [f"{each.method} {each.path}: has no about" for each in undescribed(served)]
    if faults:
        raise ValueError("; ".join(faults))
    made: list[bytes] = []

    async def show(_: Request) -> Reply:
        if not made:
            # Schemas of pydantic take tens of milliseconds, which no permit should wait for.
            made.append(
                await in_own_thread(lambda: msgspec.json.encode(document(title, version, everything, shared)))
            )
        return Reply(200, made[0])

    about = Operation(
        "The OpenAPI document of this server",
        {200: DocumentedAnswer("The document.", dict[str, Any])},
        tag="process",
    )
    own = Route("GET", path, show, about=about, scope=AccessScope.OPEN)
    everything = (*served, own)
    return own


def undescribed(routes: Iterable[Route]) -> list[Route]:
    """The routes that the document could not describe."""
    return [each for each in routes if each.about is None and each.method != "*"]


def document(
    title: str, version: str, routes: Iterable[Route], shared: Mapping[int, str] = {}
) -> dict[str, Any]:
    """The document of `routes`; of routes of the same method and path the first one counts. `shared` are problems by status, beside those
    of `EVERYWHERE`, for the routes that name them. Raises `ValueError` for models that share a name, and for a status that nobody describes."""
    described = {
        (each.method, each.path): each.about for each in reversed(tuple(routes)) if each.about is not None
    }
    schemas = _Schemas(described.values())
    texts = {**EVERYWHERE, **shared}
    paths: dict[str, dict[str, Any]] = {}
    for (method, path), about in sorted(described.items(), key=_place):
        paths.setdefault(path, {})[method.lower()] = _operation(method, path, about, schemas, texts)
    return {
        "openapi": VERSION,
        "info": {"title": title, "version": version},
        "paths": paths,
        "tags": [{"name": tag} for tag in sorted({each.tag for each in described.values() if each.tag})],
        "components": {
            "schemas": schemas.components,
            "responses": {_shared_name(status): _problem(status, text) for status, text in texts.items()},
        },
    }


def operation_id(method: str, path: str) -> str:
    """The name of an operation, such as `getPoolsByName` for `GET /v1/pools/{name}`."""
    words = []
    for part in path.removeprefix("/v1").split("/"):
        named = re.findall(r"[A-Za-z0-9]+", part)
        words += ["By", *named] if part.startswith("{") else named
    return method.lower() + ("".join(word[0].upper() + word[1:] for word in words) or "Root")


def parameters_of(path: str) -> list[str]:
    """The names in braces of a path, in their order."""
    return re.findall(r"\{(\w+)\}", path)


class _Untitled(GenerateJsonSchema):
    """Without titles of fields, which say their names again."""

    def field_title_should_be_set(self, schema: object) -> bool:
        del schema
        return False


class _Schemas:
    """The schemas of all models of a document, by its name there."""

    def __init__(self, operations: Iterable[Operation]) -> None:
        models: dict[Any, None] = {problems.Problem: None}
        for each in operations:
            for model in (*(answer.model for answer in each.answers.values()), each.body):
                models.update(dict.fromkeys(_alternatives(model)))
        by_pydantic = [model for model in models if _is_pydantic(model)]
        by_msgspec = [model for model in models if not _is_pydantic(model)]
        shown, components = msgspec.json.schema_components(by_msgspec, ref_template=_REF + "{name}")
        self._found: dict[Any, dict[str, Any]] = dict(zip(by_msgspec, shown, strict=True))
        mapped, definitions = models_json_schema(
            [(model, "validation") for model in by_pydantic],
            by_alias=True,
            ref_template=_REF + "{model}",
            schema_generator=_Untitled,
        )
        self._found.update((model, mapped[model, "validation"]) for model in by_pydantic)
        others = definitions.get("$defs", {})
        twice = sorted(components.keys() & others.keys())
        if twice:
            raise ValueError(f"{', '.join(twice)}: more than one model has this name")
        self.components = dict(sorted({**components, **others}.items()))

    def of(self, model: Any) -> dict[str, Any]:
        found = [self._found[each] for each in _alternatives(model)]
        return found[0] if len(found) == 1 else {"anyOf": found}


def _alternatives(model: Any) -> tuple[Any, ...]:
    """The models of which a body is one: msgspec knows no union of structs without tags."""
    if model is None:
        return ()
    return get_args(model) if isinstance(model, UnionType) else (model,)


def _is_pydantic(model: Any) -> bool:
    return isinstance(model, type) and issubclass(model, BaseModel)


def _place(entry: tuple[tuple[str, str], Operation]) -> tuple[str, int]:
    (method, path), _ = entry
    return path, METHODS.index(method)


def _operation(
    method: str, path: str, about: Operation, schemas: _Schemas, texts: Mapping[int, str]
) -> dict[str, Any]:
    shown: dict[str, Any] = {"operationId": operation_id(method, path), "summary": about.summary}
    if about.about:
        shown["description"] = about.about
    if about.tag:
        shown["tags"] = [about.tag]
    parameters = _parameters(path, about)
    if parameters:
        shown["parameters"] = parameters
    if about.body is not None:
        content: dict[str, Any] = {"schema": schemas.of(about.body)}
        if about.examples:
            content["examples"] = {name: {"value": value} for name, value in about.examples.items()}
        shown["requestBody"] = {"required": True, "content": {"application/json": content}}
    unknown = sorted(set(about.shared) - texts.keys())
    if unknown:
        raise ValueError(f"{method} {path}: nothing describes {', '.join(map(str, unknown))}")
    shown["responses"] = _responses(about, schemas, texts)
    return shown


def _parameters(path: str, about: Operation) -> list[dict[str, Any]]:
    described = {each.name: each for each in about.path}
    names = parameters_of(path)
    unknown = described.keys() - set(names)
    if unknown:
        raise ValueError(f"{path}: has no part {', '.join(sorted(unknown))}")
    within = [described.get(name, DocumentedParameter(name, "", _NAME)) for name in names]
    return [
        *(_parameter("path", each, is_required=True) for each in within),
        *(_parameter("query", each, is_required=each.is_required) for each in about.query),
        *(_parameter("header", each, is_required=each.is_required) for each in about.headers),
    ]


def _parameter(place: str, parameter: DocumentedParameter, *, is_required: bool) -> dict[str, Any]:
    shown = {"name": parameter.name, "in": place, "required": is_required, "schema": dict(parameter.schema)}
    return {**shown, "description": parameter.about} if parameter.about else shown


def _responses(about: Operation, schemas: _Schemas, texts: Mapping[int, str]) -> dict[str, Any]:
    found = {status: _answer(answer, schemas) for status, answer in about.answers.items()}
    for status, text in about.problems.items():
        found[status] = _problem(status, text, is_plain=about.plain)
    for status in (*EVERYWHERE, *about.shared):
        if status not in found:
            is_plain = about.plain and status != 405
            shared = {"$ref": f"#/components/responses/{_shared_name(status)}"}
            found[status] = _problem(status, texts[status], is_plain=True) if is_plain else shared
    return {str(status): found[status] for status in sorted(found)}


def _answer(answer: DocumentedAnswer, schemas: _Schemas) -> dict[str, Any]:
    shown: dict[str, Any] = {"description": answer.about}
    if answer.headers:
        shown["headers"] = _headers(answer.headers)
    if answer.content_type == NO_CONTENT:
        return shown
    schema = schemas.of(answer.model) if answer.model is not None else {"type": "string"}
    return {**shown, "content": {answer.content_type: {"schema": schema}}}


def _problem(status: int, text: str, *, is_plain: bool = False) -> dict[str, Any]:
    content: dict[str, Any] = {
        problems.CONTENT_TYPE: {"schema": {"$ref": f"{_REF}{problems.Problem.__name__}"}}
    }
    if is_plain:
        content["text/plain"] = {"schema": {"type": "string"}}
    shown: dict[str, Any] = {"description": text, "content": content}
    headers = _HEADERS.get(status)
    return {**shown, "headers": _headers(headers)} if headers else shown


_HEADERS: Final[Mapping[int, Mapping[str, str]]] = {
    405: {"Allow": "The methods that the path takes, between commas."},
    429: {"Retry-After": "After how many seconds asking again may help."},
}
"""The headers of a problem, by status."""
_MAY_BE_MISSING: Final = frozenset({"Retry-After"})
"""Headers that not every answer of their status has."""


def _headers(headers: Mapping[str, str]) -> dict[str, Any]:
    return {
        name: {"description": text, "required": name not in _MAY_BE_MISSING, "schema": {"type": "string"}}
        for name, text in headers.items()
    }


def _shared_name(status: int) -> str:
    return HTTPStatus(status).phrase.replace(" ", "")
