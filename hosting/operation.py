"""What a route tells of itself: the OpenAPI document is made from these and from the models that they name."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

NO_CONTENT: Final = ""
"""The content type of an answer without a body."""


@dataclass(frozen=True, slots=True)
class DocumentedParameter:
    """A parameter of the path, of the query or of the headers. `schema` is its JSON Schema; those of the path are always required."""

    name: str
    about: str
    schema: Mapping[str, Any]
    is_required: bool = False


@dataclass(frozen=True, slots=True)
class DocumentedAnswer:
    """An answer with its model, anything that msgspec or pydantic knows a JSON Schema of; None for a body of `content_type` that has no model.

    `headers` are those that come with it, by name with what they say.
    """

    about: str
    model: Any = None
    content_type: str = "application/json"
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Operation:
    """One method of one path. `answers` has what is answered by status; the problems of every route (400, 404, 405, 413, 500) need not be named.

    `body` is the model of the request's body, `examples` are such bodies by name. Callers that are told errors as plain text are `plain`.
    """

    summary: str
    answers: Mapping[int, DocumentedAnswer]
    tag: str = ""
    query: tuple[DocumentedParameter, ...] = ()
    path: tuple[DocumentedParameter, ...] = ()
    headers: tuple[DocumentedParameter, ...] = ()
    body: Any = None
    examples: Mapping[str, Any] = field(default_factory=dict)
    problems: Mapping[int, str] = field(default_factory=dict)
    """Errors of this route alone: by status, what they mean."""
    shared: tuple[int, ...] = ()
    """Statuses of further errors that several routes of the server have, and that its document describes once."""
    plain: bool = False
    """Whether some callers are answered errors as plain text."""
    about: str = ""
    """More than the summary says, in Markdown."""


PROCESS: Final = "process"
"""The tag of what every program serves."""
_OK: Final = DocumentedAnswer("Yes: the text `ok`.", content_type="text/plain")
HEALTHZ: Final = Operation("Whether the program serves", {200: _OK}, PROCESS)
READYZ: Final = Operation(
    "Whether the program has read what it needs",
    {200: _OK},
    PROCESS,
    problems={503: "It has not; ask again."},
)
METRICS: Final = Operation(
    "Metrics for Prometheus",
    {200: DocumentedAnswer("In the text format of Prometheus.", content_type="text/plain")},
    PROCESS,
)
