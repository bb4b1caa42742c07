"""The OpenAPI document of routes: what stands in it, and that it is one."""

import json
from typing import Annotated, Any

import msgspec
import pytest
from pydantic import Field

from hosting import openapi
from hosting.problems import HEALTHZ, NO_CONTENT, DocumentedAnswer, DocumentedParameter, Operation
from hosting.server import Reply, Request, Route
from hosting.settings import Settings
from protocol.reasons import ErrorCode
from tests.support.openapi import document_faults
from tests.unit.hosting.raw_peers import serving


class Shelf(msgspec.Struct, frozen=True, rename="camel"):
    """What is on a shelf."""

    most_books: int
    books: tuple["Book", ...] = ()


class Book(msgspec.Struct, frozen=True):
    """A book."""

    title: str


class WrittenShelf(Settings):
    """A shelf in the body of a request."""

    most_books: Annotated[int, Field(ge=0)] = 3


class Gone(msgspec.Struct, frozen=True):
    """What is no more."""

    name: str


async def answer(_: Request) -> Reply:
    return Reply(200, b"{}")


SHOW = Operation(
    "One shelf",
    {200: DocumentedAnswer("The shelf.", Shelf)},
    "shelves",
    query=(DocumentedParameter("n", "How many books.", {"type": "integer", "minimum": 1}),),
    path=(DocumentedParameter("name", "Its name.", {"type": "string", "maxLength": 9}),),
)
WRITE = Operation(
    "Replace a shelf",
    {
        200: DocumentedAnswer("The shelf, or what is no more.", Shelf | Gone),
        204: DocumentedAnswer("Nothing.", content_type=NO_CONTENT),
    },
    "shelves",
    headers=(DocumentedParameter("X-Reader", "Who reads.", {"type": "string"}, is_required=True),),
    body=WrittenShelf,
    examples={"small": {"mostBooks": 1}},
    problems={409: "It has changed.", 404: "There is no such shelf."},
)
ROUTES = (
    Route("GET", "/v1/shelves/{name}", answer, about=SHOW),
    Route("PUT", "/v1/shelves/{name}", answer, about=WRITE),
    Route("GET", "/v1/shelves/{name}", answer, about=HEALTHZ),  # the first one of a path counts
    Route("*", "/v1/shelves/{name}", answer),
    Route("GET", "/healthz", answer, about=HEALTHZ),
)


def document(*routes: Route) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(msgspec.json.encode(openapi.document("Books", "1.2", routes)))
    assert document_faults(found) == []
    return found


def operation(path: str, method: str) -> dict[str, Any]:
    found: dict[str, Any] = document(*ROUTES)["paths"][path][method]
    return found


def test_every_described_route_is_an_operation_with_a_name_of_its_own() -> None:
    found = document(*ROUTES)
    names = {
        (path, method): about["operationId"]
        for path, methods in found["paths"].items()
        for method, about in methods.items()
    }
    assert names == {
        ("/healthz", "get"): "getHealthz",
        ("/v1/shelves/{name}", "get"): "getShelvesByName",
        ("/v1/shelves/{name}", "put"): "putShelvesByName",
    }
    assert (found["openapi"], found["info"]) == ("3.1.0", {"title": "Books", "version": "1.2"})
    assert found["tags"] == [{"name": "process"}, {"name": "shelves"}]


def test_models_of_both_libraries_are_components() -> None:
    schemas = document(*ROUTES)["components"]["schemas"]
    assert sorted(schemas) == ["Book", "Gone", "Problem", "Shelf", "WrittenShelf"]
    assert schemas["Shelf"]["properties"]["mostBooks"] == {"type": "integer"}
    assert schemas["WrittenShelf"]["properties"]["mostBooks"]["minimum"] == 0
    assert schemas["Shelf"]["description"] == "What is on a shelf."


def test_parameters_say_where_they_are_and_whether_they_must_be_there() -> None:
    places = {
        (each["name"], each["in"], each["required"])
        for each in operation("/v1/shelves/{name}", "get")["parameters"]
    }
    assert places == {("name", "path", True), ("n", "query", False)}
    places = {
        (each["name"], each["in"], each["required"])
        for each in operation("/v1/shelves/{name}", "put")["parameters"]
    }
    assert places == {("name", "path", True), ("X-Reader", "header", True)}


def test_a_body_has_its_model_and_examples() -> None:
    content = operation("/v1/shelves/{name}", "put")["requestBody"]
    assert content == {
        "required": True,
        "content": {
            "application/json": {
                "schema": {"$ref": "#/components/schemas/WrittenShelf"},
                "examples": {"small": {"value": {"mostBooks": 1}}},
            }
        },
    }


def test_answers_and_problems_stand_by_their_status() -> None:
    responses = operation("/v1/shelves/{name}", "put")["responses"]
    assert sorted(responses) == ["200", "204", "400", "404", "405", "409", "413", "500"]
    either = responses["200"]["content"]["application/json"]["schema"]
    assert either == {
        "anyOf": [{"$ref": "#/components/schemas/Shelf"}, {"$ref": "#/components/schemas/Gone"}]
    }
    assert responses["204"] == {"description": "Nothing."}
    assert responses["404"]["description"] == "There is no such shelf."
    assert list(responses["409"]["content"]) == ["application/problem+json"]
    assert responses["405"] == {"$ref": "#/components/responses/MethodNotAllowed"}
    shared = document(*ROUTES)["components"]["responses"]["MethodNotAllowed"]
    assert shared["headers"]["Allow"]["required"] is True


def test_a_wait_that_not_every_answer_tells_is_not_promised() -> None:
    full = Operation(
        "Ask", {200: DocumentedAnswer("It.", Shelf)}, "shelves", problems={429: "Too many wait."}
    )
    described = document(Route("POST", "/v1/asked", answer, about=full))["paths"]["/v1/asked"]["post"]
    assert described["responses"]["429"]["headers"]["Retry-After"]["required"] is False


def test_a_problem_has_one_of_the_codes() -> None:
    code = document(*ROUTES)["components"]["schemas"]["Problem"]["properties"]["code"]
    assert set(code["enum"]) == {each.value for each in ErrorCode if each is not ErrorCode.OTHER}


def test_callers_of_plain_text_are_named() -> None:
    plain = Operation("Ask", {200: DocumentedAnswer("Yes.", Book)}, plain=True, problems={403: "No."})
    responses = document(Route("POST", "/", answer, about=plain))["paths"]["/"]["post"]["responses"]
    assert sorted(responses["403"]["content"]) == ["application/problem+json", "text/plain"]
    assert sorted(responses["400"]["content"]) == ["application/problem+json", "text/plain"]
    assert "$ref" in responses["405"], "the server's own"


def test_a_problem_that_several_routes_share_is_described_once() -> None:
    shares = Operation("Ask", {200: DocumentedAnswer("Yes.", Book)}, shared=(503,))
    routes = (Route("GET", "/a", answer, about=shares), Route("GET", "/healthz", answer, about=HEALTHZ))
    found = openapi.document("Books", "1", routes, {503: "Nobody is there."})
    assert document_faults(found) == []
    assert found["components"]["responses"]["ServiceUnavailable"]["description"] == "Nobody is there."
    assert found["paths"]["/a"]["get"]["responses"]["503"] == {
        "$ref": "#/components/responses/ServiceUnavailable"
    }
    assert "503" not in found["paths"]["/healthz"]["get"]["responses"]
    with pytest.raises(ValueError, match=r"^GET /a: nothing describes 503$"):
        openapi.document("Books", "1", routes)


def test_a_route_that_is_not_described_is_refused() -> None:
    with pytest.raises(ValueError, match="GET /a: has no about; PUT /a: has no about"):
        openapi.route("Books", "1", (Route("GET", "/a", answer), Route("PUT", "/a", answer), *ROUTES))


def test_a_part_that_the_path_does_not_have_is_refused() -> None:
    with pytest.raises(ValueError, match=r"^/a/\{node\}: has no part name$"):
        openapi.document("Books", "1", (Route("GET", "/a/{node}", answer, about=SHOW),))


def test_two_models_of_one_name_are_refused() -> None:
    other = type("Shelf", (Settings,), {})
    about = Operation(
        "Both", {200: DocumentedAnswer("One.", Shelf), 201: DocumentedAnswer("The other one.", other)}
    )
    with pytest.raises(ValueError, match="Shelf: more than one model has this name"):
        openapi.document("Books", "1", (Route("GET", "/a", answer, about=about),))


@pytest.mark.parametrize(
    ("method", "path", "name"),
    [
        ("POST", "/", "postRoot"),
        ("GET", "/v1/scheduling/__services__", "getSchedulingServices"),
        ("PUT", "/v1/pods/{namespace}/{name}", "putPodsByNamespaceByName"),
        ("GET", "/v1/openapi.json", "getOpenapiJson"),
    ],
)
def test_an_operation_is_named_by_its_path(method: str, path: str, name: str) -> None:
    assert openapi.operation_id(method, path) == name


async def test_the_document_is_served_and_describes_itself() -> None:
    async with serving(*ROUTES, openapi.route("Books", "1", ROUTES)) as running:
        wire = await running.connect()
        first, second = await wire.ask("GET", "/v1/openapi.json"), await wire.ask("GET", "/v1/openapi.json")
        assert (first.status, first.headers["content-type"]) == (200, "application/json")
        assert first.body == second.body
        assert "/v1/openapi.json" in json.loads(first.body)["paths"]
